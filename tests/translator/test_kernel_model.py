"""What the model says of a kernel: accesses, masks, thin arrays, reductions, findings."""

import ast

import pytest

from pallas_port.translator.kernel_model import build_model
from pallas_port.translator.names import Resolver
from pallas_port.translator.sites import find_sites

HEAD = """
import functools
import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

W = 64
"""


def model_of(body: str, params="x_ref, o_ref, *, n, m, w, flag", dims=None, before=""):
    lines = "\n".join(f"    {line}" for line in body.strip("\n").split("\n"))
    source = f"{HEAD}{before}\ndef kernel({params}):\n{lines}\n\npl.pallas_call(kernel, grid=(4, 4, 4), out_shape=s)(x)\n"
    resolver = Resolver(ast.parse(source))
    (site,) = find_sites(resolver)
    return build_model([site], resolver, dims or {})


def loads(model):
    return [a for a in model.accesses if a.kind == "load"]


def codes(model):
    return sorted({f.code for f in model.findings})


# -- what the vector width must divide --------------------------------------------------------------

# body with one load of x_ref; the divisors, None where no vector may be taken
DIVISORS = [
    pytest.param("x_ref[pl.ds(0, w)]", {"w"}, id="from-0"),
    pytest.param("x_ref[pl.ds(n, w)]", {"n", "w"}, id="from-n"),
    pytest.param("x_ref[pl.ds(n * m, w)]", {"n * m", "w"}, id="from-a-static-product"),
    pytest.param("x_ref[pl.ds(pl.program_id(0) * w, w)]", {"w"}, id="block"),
    pytest.param("x_ref[pl.ds(pl.program_id(0) * w + n, w)]", {"w", "n"}, id="block-plus"),
    pytest.param("x_ref[pl.ds(pl.program_id(0) * w - 3, w)]", {"w", "3"}, id="block-minus"),
    pytest.param("x_ref[pl.ds(pl.program_id(0), w)]", {"1", "w"}, id="unknown-start"),
    pytest.param("x_ref[pl.ds(pl.program_id(0) * w // 3, w)]", {"1", "w"}, id="quotient"),
    pytest.param("x_ref[pl.ds(pl.program_id(0) % w, w)]", {"1", "w"}, id="remainder"),
    pytest.param("x_ref[pl.ds(x_ref[0] * 8, w)]", {"8", "w"}, id="from-memory"),
    pytest.param("x_ref[jnp.arange(w)]", {"w"}, id="arange"),
    pytest.param("x_ref[n + jnp.arange(w)]", {"n", "w"}, id="arange-plus"),
    pytest.param("x_ref[jnp.arange(w) - n]", {"n", "w"}, id="arange-minus"),
    pytest.param("x_ref[n - jnp.arange(w)]", None, id="backwards"),
    pytest.param("x_ref[-jnp.arange(w)]", None, id="negated"),
    pytest.param("x_ref[jnp.arange(w) * 2]", None, id="strided"),
    pytest.param("x_ref[jnp.arange(w) // 2]", None, id="repeated"),
    pytest.param("x_ref[jnp.arange(w) % n]", None, id="wrapped"),
    pytest.param("x_ref[jnp.arange(w) + jnp.arange(w)]", None, id="sum-of-vectors"),
    pytest.param("x_ref[jnp.minimum(jnp.arange(w), n)]", None, id="clamped"),
    pytest.param("x_ref[jnp.where(jnp.arange(w) < n, jnp.arange(w), 0)]", None, id="where"),
    pytest.param("x_ref[pl.ds(0, w, 2)]", None, id="ds-with-stride"),
    pytest.param("x_ref[pl.ds(0, n), pl.ds(m, w)]", {"m", "w"}, id="rank-2"),
    pytest.param("x_ref[pl.ds(0, n), m]", None, id="column"),
    pytest.param("x_ref[m, pl.ds(0, n)]", {"n"}, id="row"),
    pytest.param("x_ref[jnp.arange(n)[:, None], jnp.arange(w)[None, :]]", {"w"}, id="two-vectors"),
    pytest.param("x_ref[jnp.arange(n)[None, :], jnp.arange(w)[:, None]]", None, id="two-vectors-transposed"),
    pytest.param("x_ref[jnp.arange(n)[:, None], (m + jnp.arange(w))[None, :]]", {"m", "w"}, id="two-vectors-plus"),
]


@pytest.mark.parametrize("expression, divisors", DIVISORS)
def test_divisors(expression, divisors):
    access = loads(model_of(f"o_ref[...] = {expression}"))[-1]
    assert (None if access.divisors is None else set(access.divisors)) == divisors


MASKS = [
    pytest.param("c < n", {"w", "n"}, id="less"),
    pytest.param("n > c", {"w", "n"}, id="less-turned"),
    pytest.param("c >= n", {"w", "n"}, id="at-least"),
    pytest.param("c + 1 < n", {"w", "1", "n"}, id="shifted"),
    pytest.param("c < x_ref.shape[0]", {"w", "x_ref.shape[0]"}, id="extent"),
    pytest.param("(c >= m) & (c < n)", {"w", "m", "n"}, id="both-ends"),
    pytest.param("jnp.logical_and(c >= m, c < n)", {"w", "m", "n"}, id="logical-and"),
    pytest.param("c < x_ref[0] * 4", {"w", "4"}, id="bound-from-memory"),
    pytest.param("None", {"w"}, id="None"),
    pytest.param("True", {"w"}, id="scalar"),
    pytest.param("c <= n", None, id="at-most"),
    pytest.param("n >= c", None, id="at-most-turned"),
    pytest.param("c > n", None, id="greater"),
    pytest.param("c == n", None, id="equal"),
    pytest.param("c != n", None, id="not-equal"),
    pytest.param("(c < n) | (c >= m)", None, id="or"),
    pytest.param("~(c < n)", None, id="not"),
    pytest.param("(c < n) & (c % 2 == 0)", None, id="and-parity"),
    pytest.param("(c < n) ^ (c < m)", None, id="xor"),
    pytest.param("c < jnp.arange(w)", None, id="two-vectors"),
    pytest.param("c * 2 < n", None, id="scaled"),
    pytest.param("x_ref[c] > 0", None, id="of-values"),
    pytest.param("jnp.where(c < n, True, False)", None, id="where"),
]


@pytest.mark.parametrize("mask, divisors", MASKS)
def test_divisors_of_a_mask(mask, divisors):
    model = model_of(f"c = jnp.arange(w)\no_ref[c] = plgpu.load(x_ref.at[c], mask={mask}, other=0.)")
    access = next(a for a in loads(model) if isinstance(a.node, ast.Call))
    assert (None if access.divisors is None else set(access.divisors)) == divisors


@pytest.mark.parametrize("mask, divisors", [
    pytest.param("c[None, :] < n", {"w", "n"}, id="columns"),
    pytest.param("r[:, None] < n", {"w"}, id="rows"),
    pytest.param("(r[:, None] < m) & (c[None, :] < n)", {"w", "n"}, id="both"),
    pytest.param("(r[:, None] <= m) & (c[None, :] < n)", {"w", "n"}, id="rows-at-most"),
    pytest.param("(r[:, None] < m) & (c[None, :] <= n)", None, id="columns-at-most"),
    pytest.param("r[:, None] >= c[None, :]", None, id="triangle"),
])
def test_divisors_of_a_mask_of_rank_2(mask, divisors):
    model = model_of(f"r, c = jnp.arange(m), jnp.arange(w)\no_ref[...] = plgpu.load(x_ref.at[r[:, None], c[None, :]], mask={mask})")
    (access,) = loads(model)
    assert (None if access.divisors is None else set(access.divisors)) == divisors


STATE = [
    pytest.param("s = 0\nfor t in range(4):\n    x = x_ref[pl.ds(s, w)]\n    s += 3", id="python-loop-state"),
    pytest.param("s = 0\nfor t in range(4):\n    x = x_ref[pl.ds(s, w)]\n    s = s + 3", id="python-loop-assigned"),
    pytest.param("c = jnp.arange(w)\nfor t in range(4):\n    x = x_ref[c]\n    c = c + 3", id="python-loop-vector"),
    pytest.param("c = pl.ds(0, w)\nfor t in range(4):\n    x = x_ref[c]\n    c = pl.ds(3, w)", id="python-loop-slice"),
    pytest.param("def body(t, s):\n    x = x_ref[pl.ds(s, w)]\n    return s + 3\nlax.fori_loop(0, 4, body, 0)", id="carry"),
    pytest.param("def body(c):\n    x = x_ref[pl.ds(c[0], w)]\n    return (c[0] + 3,)\nlax.while_loop(lambda c: c[0] < n, body, (0,))", id="while-carry"),
    pytest.param("def body(t, c):\n    x = x_ref[c]\n    return c + 3\nlax.fori_loop(0, 4, body, jnp.arange(w))", id="carried-vector"),
]


@pytest.mark.parametrize("body", STATE)
def test_state_of_a_loop_proves_nothing(body):
    (access,) = loads(model_of(f"{body}\no_ref[pl.ds(0, w)] = jnp.zeros(w)"))
    assert access.divisors is None or "1" in access.divisors


@pytest.mark.parametrize("body, divisors", [
    pytest.param("s = 8\nif flag:\n    s = 3\nx = x_ref[pl.ds(s, w)]", {"8", "3", "w"}, id="if"),
    pytest.param("if flag:\n    s = 8\nelse:\n    s = 3\nx = x_ref[pl.ds(s, w)]", {"8", "3", "w"}, id="if-else"),
    pytest.param("x = x_ref[pl.ds(8 if flag else 3, w)]", {"8", "3", "w"}, id="conditional-expression"),
    pytest.param("s = pl.ds(8, w) if flag else pl.ds(3, w)\nx = x_ref[s]", {"8", "3", "w"}, id="slices"),
    pytest.param("s = pl.ds(8, w)\nif flag:\n    s = pl.ds(3, w)\nx = x_ref[s]", {"8", "3", "w"}, id="slices-if"),
    pytest.param("c = 8 + jnp.arange(w) if flag else 3 + jnp.arange(w)\nx = x_ref[c]", None, id="vectors"),
])
def test_either_of_two_starts(body, divisors):
    (access,) = loads(model_of(f"{body}\no_ref[pl.ds(0, w)] = x"))
    assert (None if access.divisors is None else set(access.divisors)) == divisors


def test_start_of_joined_vectors_is_not_known():
    model = model_of("i, j = pl.program_id(0), pl.program_id(1)\nr = i * w + jnp.arange(w)\nif flag:\n    r = j * w + jnp.arange(w)\no_ref[r] = x_ref[r]")
    (access,) = loads(model)
    assert access.view[0].start == ""


def test_start_is_told_in_terms_of_the_grid():
    (access,) = loads(model_of("i = pl.program_id(1)\nr = i * w + jnp.arange(w)\no_ref[r] = x_ref[r]"))
    assert access.view[0].start == "program_id(1) * w"


def test_rebound_name_is_no_divisor():
    """``_vec(..., s)`` would see another value than the index did."""
    (access,) = loads(model_of("s = n * 3\nc = s + jnp.arange(w)\ns = 16\no_ref[c] = x_ref[c]"))
    assert set(access.divisors) == {"n * 3", "w"}


def test_static_call_in_a_helper_is_told_in_the_kernels_names():
    model = model_of("c = half(n)\no_ref[c] = x_ref[c]", before="def half(m):\n    return jnp.arange(pl.next_power_of_2(m))\n")
    (access,) = loads(model)
    assert access.dims == ("pl.next_power_of_2(n)",)


# -- reductions and thin arrays ---------------------------------------------------------------------

TILE = "x = x_ref[pl.ds(0, m), pl.ds(0, w)]\n"


@pytest.mark.parametrize("expression, axis, keepdims", [
    ("jnp.sum(x, axis=1)", 1, False),
    ("jnp.sum(x, 1)", 1, False),
    ("x.sum(axis=-1)", 1, False),
    ("x.max(0)", 0, False),
    ("jnp.mean(x, axis=1, keepdims=True)", 1, True),
    ("jnp.sum(x)", None, False),
    ("jnp.sum(x, axis=None)", None, False),
    ("jnp.sum(x, axis=1, dtype=jnp.float32)", 1, False),
    ("jnp.sum(x, axis=(0, 1))", None, False),
    ("jnp.sum(x, axis=(-1,), keepdims=True)", 1, True),
    ("jnp.sum(x, axis=0, where=x > 0)", 0, False),
    ("jnp.max(x, axis=1, initial=-jnp.inf)", 1, False),
])
def test_reduction(expression, axis, keepdims):
    model = model_of(f"{TILE}y = {expression}\no_ref[pl.ds(0, 4)] = jnp.zeros(4)")
    (found,) = model.reductions
    assert (found.axis, found.keepdims, found.rank) == (axis, keepdims, 2)
    assert not model.findings


@pytest.mark.parametrize("expression", [
    "jnp.sum(x, axis=axes)", "jnp.sum(x, axis=n)", "jnp.max(x, axis=1, initial=x)",
    "jnp.sum(x, axis=1, keepdims=flag)", "jnp.sum(x, 1, None)", "jnp.linalg.norm(x, 2, 1)", "lax.reduce_sum(x, (0, 1))", "lax.reduce(x, 0.0, lax.add, (1,))",
])
def test_reduction_that_is_not_followed(expression):
    assert codes(model_of(f"{TILE}y = {expression}\no_ref[pl.ds(0, 4)] = jnp.zeros(4)")) == ["B112"]


def unparsed(nodes):
    return sorted(ast.unparse(n) for n in nodes)


@pytest.mark.parametrize("body, strips, expands", [
    pytest.param("s = x.sum(axis=1, keepdims=True)\ny = x - s", [], ["s"], id="keepdims"),
    pytest.param("s = x.sum(axis=1, keepdims=True)\ny = x - (s + 1) * 2", [], ["(s + 1) * 2"], id="arithmetic-stays-thin"),
    pytest.param("r = x.sum(axis=1)\ny = x - r[:, None]", [], ["r[:, None]"], id="written-out"),
    pytest.param("r = x.sum(axis=1)[:, None]\ny = x - r", ["x.sum(axis=1)[:, None]"], ["r"], id="new-axis-in-a-variable"),
    pytest.param("r = x.sum(axis=1)\nq = r[:, None] * 2\ny = x - q", ["r[:, None]"], ["q"], id="arithmetic-on-a-new-axis"),
    pytest.param("r = x.sum(axis=1)\nq = x.sum(axis=0)\ny = r[:, None] * q[None, :]", [], ["q[None, :]", "r[:, None]"], id="outer-product"),
])
def test_thin_arrays(body, strips, expands):
    model = model_of(f"{TILE}{body}\no_ref[pl.ds(0, m), pl.ds(0, w)] = y")
    assert unparsed(model.strips) == strips
    assert unparsed(model.expands) == expands
    assert not model.findings


CENTER = "def center(x, m):\n    return x - m\n"


@pytest.mark.parametrize("body", [
    pytest.param("a = center(x, x.sum(axis=1, keepdims=True))\nb = center(x, x.sum(axis=0, keepdims=True))", id="rows-and-columns"),
    pytest.param("a = center(x, x.sum(axis=1, keepdims=True))\nb = center(x, a)", id="thin-and-full"),
    pytest.param("a = center(x, a0)\nb = center(x, x.sum(axis=1, keepdims=True))".replace("a0", "x"), id="full-and-thin"),
    pytest.param("a = center(x, x.sum(axis=1, keepdims=True))\nb = center(x, 1.0)", id="thin-and-number"),
])
def test_helper_called_with_different_shapes(body):
    """One text cannot expand an array in one call and not in the other."""
    model = model_of(f"{TILE}{body}\no_ref[pl.ds(0, m), pl.ds(0, w)] = a + b", before=CENTER)
    assert codes(model) == ["B105"]


def test_helper_called_twice_with_the_same_shapes():
    model = model_of(f"{TILE}s = x.sum(axis=1, keepdims=True)\no_ref[pl.ds(0, m), pl.ds(0, w)] = center(x, s) + center(x * 2, s)", before=CENTER)
    assert not model.findings and unparsed(model.expands) == ["m"]


def test_helper_that_reduces_different_ranks():
    model = model_of(f"{TILE}v = x_ref[0, pl.ds(0, w)]\no_ref[0] = total(x) + total(v)", before="def total(x):\n    return jnp.sum(x)\n")
    assert codes(model) == ["B112"]


def test_thin_carry():
    model = model_of(f"{TILE}def body(t, c):\n    return c + jnp.sum(x, axis=1, keepdims=True)\nc = lax.fori_loop(0, 3, body, jnp.zeros((m, 1)))\no_ref[pl.ds(0, m), pl.ds(0, w)] = x + c")
    assert not model.findings
    assert list(model.thin_shapes.values()) == ["(m,)"]


# -- square roots -----------------------------------------------------------------------------------

@pytest.mark.parametrize("expression, forms", [
    ("jnp.sqrt(x)", ["plain"]),
    ("1 / jnp.sqrt(x)", ["reciprocal"]),
    ("1.0 / jnp.sqrt(x)", ["reciprocal"]),
    ("2 / jnp.sqrt(x)", ["quotient"]),
    ("x / jnp.sqrt(x)", ["quotient"]),
    ("x * 1 / jnp.sqrt(x)", ["quotient"]),
    ("1 / (jnp.sqrt(x) + n)", ["plain"]),
    ("1 / -jnp.sqrt(x)", ["plain"]),
    ("1 // jnp.sqrt(x)", ["plain"]),
    ("jnp.sqrt(x) / jnp.sqrt(x)", ["plain", "quotient"]),
    ("1 / jnp.sqrt(x) if flag else jnp.sqrt(x)", ["plain", "reciprocal"]),
    ("1 / jnp.sqrt(n) * x", []),
    ("lax.rsqrt(x)", []),
])
def test_square_roots(expression, forms):
    model = model_of(f"x = x_ref[pl.ds(0, w)]\no_ref[pl.ds(0, w)] = {expression}")
    assert sorted(r.form for r in model.square_roots) == forms


# -- the grid, loops, findings ----------------------------------------------------------------------

def test_grid_queries_in_nested_functions():
    model = model_of("@pl.when(pl.program_id(2) == 0)\ndef _():\n    def get():\n        return pl.program_id(axis=1) + pl.num_programs(0)\n    o_ref[get()] = x_ref[0]")
    assert sorted((q.axis, q.size) for q in model.grid_queries) == [(0, True), (1, False), (2, False)]
    assert not model.findings


@pytest.mark.parametrize("body, code", [
    pytest.param("while True:\n    pass", "B101", id="while"),
    pytest.param("x_ref[0], o_ref.foo = 1, 2\no_ref.foo = 1", "B101", id="attribute"),
    pytest.param("lax.fori_loop(0, 4, other, 0)", "B102", id="loop-body"),
    pytest.param("o_ref[0] += 1", "B103", id="augmented"),
    pytest.param("y = x_ref.at[0].at[0][0]", "B104", id="view-of-view"),
    pytest.param("y = x_ref[pl.ds(0, w)][0]", "B105", id="register-index"),
    pytest.param("o_ref[pl.ds(0, w)] = 1.0", "B108", id="scalar-into-tile"),
    pytest.param("y = unknown(x_ref[pl.ds(0, w)])", "B110", id="unknown-function"),
    pytest.param("y = pl.run_scoped(f, x_ref)", "B110", id="unknown-pallas"),
    pytest.param("y = jnp.arange(x_ref[0])", "B111", id="arange-dynamic"),
    pytest.param("y = pl.program_id(n)", "B113", id="axis"),
    pytest.param("y = pl.load(x_ref, *at)", "B114", id="starred-load"),
])
def test_finding(body, code):
    assert code in codes(model_of(body))


EITHER = [
    pytest.param("r = x_ref if flag else y_ref\no_ref[pl.ds(0, w)] = r[pl.ds(0, w)]", "B104", id="ref"),
    pytest.param("r = x_ref\nif flag:\n    r = y_ref\no_ref[pl.ds(0, w)] = r[pl.ds(0, w)]", "B104", id="ref-if"),
    pytest.param(f"{TILE}s = x.sum(axis=1, keepdims=True) if flag else x.sum(axis=0, keepdims=True)\ny = x - s", "B105", id="rows-or-columns"),
    pytest.param(f"{TILE}s = x.sum(axis=1, keepdims=True)\nif flag:\n    s = x\ny = x - s", "B105", id="thin-or-full"),
    pytest.param(f"{TILE}s = x.sum(axis=1, keepdims=True)\nif flag:\n    s = 1.0\ny = x - s", "B105", id="thin-or-number"),
    pytest.param(f"{TILE}y = x\nfor a in (x.sum(axis=1, keepdims=True), x.sum(axis=0, keepdims=True)):\n    y = y - a", "B105", id="shapes-of-a-loop"),
    pytest.param(f"{TILE}y = lax.cond(n > x_ref[0], lambda: x.sum(axis=1), lambda: x)\nz = y + 1", "B105", id="cond"),
    pytest.param("if flag:\n    def body(t, c): return c + 1\nelse:\n    def body(t, c): return c + x_ref[t]\ny = lax.fori_loop(0, n, body, 0.0)", "B102", id="functions"),
]


@pytest.mark.parametrize("body, code", EITHER)
def test_either_of_two_that_need_different_rewrites(body, code):
    assert code in codes(model_of(body, params="x_ref, y_ref, o_ref, *, n, m, w, flag"))


@pytest.mark.parametrize("body", [
    pytest.param("r = x_ref if flag else None\no_ref[pl.ds(0, w)] = r[pl.ds(0, w)]", id="optional-ref"),
    pytest.param(f"{TILE}s = None\nif flag:\n    s = x.sum(axis=1, keepdims=True)\nif s is not None:\n    x = x - s\no_ref[0] = 1.0", id="optional-array"),
    pytest.param("x = x_ref[pl.ds(0, w)]\nif flag:\n    x = x + 1\no_ref[pl.ds(0, w)] = x", id="same-shape"),
    pytest.param("s = 0.0\nif flag:\n    s = x_ref[pl.ds(0, w)]\no_ref[pl.ds(0, w)] = s + x_ref[pl.ds(0, w)]", id="number-or-array"),
    pytest.param(f"{TILE}if flag:\n    t = x.sum(axis=1, keepdims=True)\nelse:\n    t = x.sum(axis=0, keepdims=True)\no_ref[0] = 1.0", id="not-used"),
    pytest.param("for r in (x_ref, x_ref):\n    o_ref[pl.ds(0, w)] = r[pl.ds(0, w)]", id="same-ref"),
])
def test_either_of_two_that_one_text_serves(body):
    assert not model_of(body, params="x_ref, y_ref, o_ref, *, n, m, w, flag").findings


@pytest.mark.parametrize("params, refs", [
    ("x_ref, o_ref", ["x_ref", "o_ref"]),
    ("x_ref, /, o_ref, *, n", ["x_ref", "o_ref"]),
    ("x_ref, o_ref, extra_ref=None", ["x_ref", "o_ref", "extra_ref"]),
])
def test_refs(params, refs):
    assert [r.name for r in model_of("o_ref[0] = x_ref[0]", params=params).refs] == refs


@pytest.mark.parametrize("body, refs", [
    ("x, *_, o = refs\no[0] = 1", []),
    ("x, o = refs\no[0] = x[0]", ["x", "o"]),
    ("refs[1][0] = refs[0][0]", ["refs[0]", "refs[1]"]),
])
def test_star_refs(body, refs):
    model = model_of(body, params="*refs")
    assert sorted(r.name for r in model.refs) == sorted(refs)


def test_dims_from_unpacked_shape():
    model = model_of("a, b = x_ref.shape\no_ref[0] = 1.0")
    assert model.ref_ranks == {"x_ref": 2}


def test_access_in_a_helper_of_two_refs():
    model = model_of("o_ref[pl.ds(0, w)] = get(x_ref, w) + get(o_ref, w)", before="def get(ref, w):\n    return ref[pl.ds(0, w)]\n")
    assert codes(model) == [] and [a.ref.name for a in model.accesses] == ["x_ref", "o_ref", "o_ref"]


def test_access_in_a_helper_of_two_shapes():
    model = model_of("o_ref[pl.ds(0, w)] = get(x_ref, w) + get(o_ref, 2 * w)", before="def get(ref, w):\n    return ref[pl.ds(0, w)]\n")
    assert codes(model) == ["B109"]
