"""Original and port as two modules side by side."""

import sys
import traceback

import pytest

from pallas_port.translator.verify import modules


def test_two_texts_of_one_file_are_two_modules(tmp_path):
    file = tmp_path / "kernel.py"
    file.write_text("value = 1\n")
    original = modules.load(str(file))
    port = modules.load(str(file), "value = 2\n", role="port")
    assert (original.value, port.value) == (1, 2)
    assert original.__name__ != port.__name__
    assert original.__file__ == port.__file__ == str(file)
    assert list(tmp_path.iterdir()) == [file]


def test_siblings_and_relative_imports(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    package = tmp_path / "outer_for_test" / "inner"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package.parent / "__init__.py").write_text("")
    (package / "helper.py").write_text("value = 3\n")
    (package / "kernel.py").write_text("from .helper import value\n")
    assert modules.load(str(package / "kernel.py")).value == 3
    (tmp_path / "sibling_for_test.py").write_text("value = 4\n")
    (tmp_path / "flat.py").write_text("from sibling_for_test import value\n")
    assert modules.load(str(tmp_path / "flat.py")).value == 4


def test_tracebacks_show_the_lines_of_the_port(tmp_path):
    file = tmp_path / "kernel.py"
    file.write_text("def f():\n    return 1\n")
    port = modules.load(str(file), "def f():\n    return missing\n", role="port")
    with pytest.raises(NameError) as info:
        port.f()
    frame = traceback.extract_tb(info.value.__traceback__)[-1]
    assert (frame.line, frame.filename) == ("return missing", f"<port of {file}>")


def test_a_module_that_fails_is_not_left_behind(tmp_path):
    before = set(sys.modules)
    with pytest.raises(ZeroDivisionError):
        modules.load(str(tmp_path / "kernel.py"), "1 / 0\n")
    assert {name for name in set(sys.modules) - before if "kernel" in name} == set()


def test_dataclasses_work_in_both(tmp_path):
    text = "import dataclasses\n@dataclasses.dataclass\nclass Config:\n    size: 'int' = 1\n"
    assert modules.load(str(tmp_path / "kernel.py"), text).Config().size == 1
