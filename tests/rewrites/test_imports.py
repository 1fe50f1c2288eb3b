"""Imports of a ported module: what is needed comes, what nothing uses any more goes, the rest stays."""

import ast

import pytest

from pallas_port.rewrites import imports

TRITON = "from jax.experimental.pallas import triton as plgpu\n"
MOSAIC = "from jax.experimental.pallas import mosaic_gpu as plgpu\n"
NEED = {"jax.experimental.pallas.mosaic_gpu": "plgpu"}


def update(before: str, after: str, needed=NEED, newline="\n") -> str:
    return imports.update(ast.parse(before), after, needed, newline)


CASES = [
    pytest.param(f"import jax\n{TRITON}plgpu.x\n", f"import jax\n{TRITON}plgpu.y\n", NEED, f"import jax\n{MOSAIC}plgpu.y\n", id="name-taken-over-in-place"),
    pytest.param("import jax\njax.a\n", "import jax\njax.a\nlax.b\n", {"jax.lax": "lax"}, "import jax\nfrom jax import lax\njax.a\nlax.b\n", id="added-after-the-last"),
    pytest.param("import functools\nfunctools.a\n", "import functools\nb\n", {}, "b\n", id="unused-goes"),
    pytest.param("import functools\na\n", "import functools\nb\n", {}, "import functools\nb\n", id="unused-before-stays"),
    pytest.param("import os\nimport jax\nos.a\n", "import os\nimport jax\nos.a\nmath.b\n", {"math": "math"}, "import os\nimport math\nimport jax\nos.a\nmath.b\n", id="standard-library-first"),
    pytest.param("from a import b, c\nb, c\n", "from a import b, c\nb\n", {}, "from a import b\nb\n", id="one-of-two-names-goes"),
    pytest.param("from a import (\n    b,\n    c,\n)\nb, c\n", "from a import (\n    b,\n    c,\n)\nb\n", {}, "from a import (\n    b,\n)\nb\n", id="over-lines"),
    pytest.param('"""Doc."""\nx\n', '"""Doc."""\nx\nlax.y\n', {"jax.lax": "lax"}, '"""Doc."""\nfrom jax import lax\nx\nlax.y\n', id="no-imports-after-the-docstring"),
    pytest.param("x\n", "lax.y\n", {"jax.lax": "lax"}, "from jax import lax\nlax.y\n", id="no-imports"),
    pytest.param('"""Doc."""\nfrom __future__ import annotations\nx\n', '"""Doc."""\nfrom __future__ import annotations\nlax.x\n', {"jax.lax": "lax"}, '"""Doc."""\nfrom __future__ import annotations\nfrom jax import lax\nlax.x\n', id="after-future"),
    pytest.param("import jax\njax.a\n", "import jax\nnp.a + jax.b\n", {"jax.numpy": "np"}, "import jax\nimport jax.numpy as np\nnp.a + jax.b\n", id="jax-numpy"),
    pytest.param(f"{TRITON}__all__ = ['plgpu']\nplgpu.a\n", f"{TRITON}__all__ = ['plgpu']\n", {}, f"{TRITON}__all__ = ['plgpu']\n", id="exported-stays"),
    pytest.param("import a  # noqa\na\n", "import a  # noqa\na\n", {}, "import a  # noqa\na\n", id="nothing-to-do"),
    pytest.param("try:\n    import a\nexcept ImportError:\n    a = None\na.b\n", "try:\n    import a\nexcept ImportError:\n    a = None\nc\n", {}, "try:\n    import a\nexcept ImportError:\n    a = None\nc\n", id="conditional-import-stays"),
]


@pytest.mark.parametrize("before, after, needed, expected", CASES)
def test_update(before, after, needed, expected):
    assert update(before, after, needed) == expected


@pytest.mark.parametrize("before, after, needed, expected", CASES)
def test_update_keeps_crlf(before, after, needed, expected):
    crlf = [t.replace("\n", "\r\n") for t in (before, after, expected)]
    assert update(crlf[0], crlf[1], needed, "\r\n") == crlf[2]


@pytest.mark.parametrize("before, after, needed, expected", CASES)
def test_update_twice_changes_nothing_more(before, after, needed, expected):
    assert update(expected, expected, {}) == expected


KEPT = [
    pytest.param("import a; import b\na, b\n", "import a; import b\na\n", "a", id="two-imports-on-a-line"),
    pytest.param("import a, b\na, b\n", "import a, b\na\n", "a", id="two-modules"),
    pytest.param("import a; x = 1\na, x\n", "import a; x = 1\nx\n", "x = 1", id="statement-after-the-import"),
    pytest.param("x = 1; import a\na, x\n", "x = 1; import a\nx\n", "x = 1", id="statement-before-the-import"),
    pytest.param("import a  # why\nimport b\na, b\n", "import a  # why\nimport b\nb\n", "import b", id="comment"),
]


@pytest.mark.parametrize("before, after, kept", KEPT)
def test_what_shares_a_line_with_a_removed_import_stays(before, after, kept):
    assert kept in update(before, after, {}).rsplit("\n", 2)[0]


SHORTENED = [
    pytest.param("from a import (\n    b,  # first\n    c,  # second\n)\n", "from a import (\n    b,  # first\n)\n", id="last"),
    pytest.param("from a import (\n    c,  # second\n    b,  # first\n)\n", "from a import (\n    b,  # first\n)\n", id="first"),
    pytest.param("from a import (\n    b,  # first\n    c  # second\n)\n", "from a import (\n    b  # first\n)\n", id="no-comma"),
    pytest.param("from a import (b,  # first\n               c)\n", "from a import (b  # first\n               )\n", id="hanging"),
    pytest.param("from a import (b, c)  # both\n", "from a import (b)  # both\n", id="one-line"),
    pytest.param("from a import b, c  # both\n", "from a import b  # both\n", id="plain"),
    pytest.param("from a import c as b, b as c\n", "from a import c as b\n", id="renamed"),
    pytest.param("import b, c  # both\n", "import b  # both\n", id="modules"),
    pytest.param("from a import b, \\\n    c\n", "from a import b\n", id="continued"),
]


@pytest.mark.parametrize("before, after", SHORTENED)
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_shortened_import_keeps_its_form_and_comments(before, after, newline):
    was, now = f"{before}b, c\n".replace("\n", newline), f"{before}b\n".replace("\n", newline)
    assert update(was, now, {}, newline) == f"{after}b\n".replace("\n", newline)


def test_import_that_takes_the_place_of_another_keeps_the_comment():
    before = "from a import b as plgpu  # lint\nplgpu\n"
    after = update(before, before, {"jax.experimental.pallas.mosaic_gpu": "plgpu"}, "\n")
    assert after == "from jax.experimental.pallas import mosaic_gpu as plgpu  # lint\nplgpu\n"
