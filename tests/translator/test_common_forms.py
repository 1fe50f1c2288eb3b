"""Spellings of small kernels that many people use: each ports and computes the same, or says what to change."""

import numpy as np
import pytest

from .evidence import codes, computes, plan, ported

HEAD = """\
import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

CP = plgpu.CompilerParams()

"""
RUN = """

def run(x, m):
    n, d = x.shape
    block = pl.BlockSpec((None, d), lambda i: (i, 0))
    return pl.pallas_call(kernel, grid=GRID, in_specs=[block, block], out_specs=block, out_shape=x, compiler_params=CP)(x, m)
"""
X = np.linspace(-3, 3, 4 * 64, dtype=np.float32).reshape(4, 64)
M = np.arange(4 * 64).reshape(4, 64) % 3 == 0


def module(kernel: str, grid: str = "(n,)") -> str:
    return HEAD + kernel + RUN.replace("GRID", grid)


FORMS = {
    "inverted mask from memory": ("""
def kernel(x_ref, m_ref, o_ref):
    o_ref[...] = jnp.where(~m_ref[...], x_ref[...], 0)
""", lambda x, m: np.where(~m, x, 0)),
    "inverted integers": ("""
def kernel(x_ref, m_ref, o_ref):
    o_ref[...] = (~x_ref[...].astype(jnp.int32)).astype(jnp.float32)
""", lambda x, m: (~x.astype(np.int32)).astype(np.float32)),
    "refs in a loop": ("""
def kernel(x_ref, m_ref, o_ref):
    total = jnp.zeros(o_ref.shape, jnp.float32)
    for i, (ref, weight) in enumerate(zip([x_ref, m_ref], (2.0, 3.0))):
        total += ref[...].astype(jnp.float32) * weight + i
    o_ref[...] = total
""", lambda x, m: 2 * x + 3 * m + 1),
    "inverted by a function": ("""
def kernel(x_ref, m_ref, o_ref):
    o_ref[...] = jnp.where(jnp.invert(m_ref[...]) & ~(x_ref[...] > 1), x_ref[...], 0)
""", lambda x, m: np.where(~m & ~(x > 1), x, 0)),
    "when as a call": ("""
def kernel(x_ref, m_ref, o_ref):
    i = pl.program_id(0)
    def even(): o_ref[...] = x_ref[...] * 2
    pl.when(i % 2 == 0)(even)
    pl.when(i % 2 == 1)(lambda: plgpu.store(o_ref.at[...], -x_ref[...]))
""", lambda x, m: x * np.array([[2], [-1], [2], [-1]], np.float32)),
    "branches of a switch that load": ("""
def kernel(x_ref, m_ref, o_ref):
    def twice():
        return x_ref[...] * 2
    o_ref[...] = jax.lax.switch(pl.program_id(0) % 3, [twice, lambda: -x_ref[...], lambda: x_ref[...]])
""", lambda x, m: x * np.array([[2], [-1], [1], [2]], np.float32)),
    "slices of a loop's index": ("""
def kernel(x_ref, m_ref, o_ref):
    half = 32
    for j in range(2):
        o_ref[j * half:(j + 1) * half] = x_ref[half - j * half:half * 2 - half * j]
""", lambda x, m: np.roll(x, 32, 1)),
    "slices from the end": ("""
def kernel(x_ref, m_ref, o_ref):
    o_ref[:-32] = x_ref[-32:]
    o_ref[-32:] = x_ref[:32]
""", lambda x, m: np.roll(x, 32, 1)),
    "numbers of Python and NumPy": ("""
import math
import numpy as np
SCALE = np.float32(0.5)


def kernel(x_ref, m_ref, o_ref):
    o_ref[...] = x_ref[...] * (SCALE / math.sqrt(64)) + math.log(2)
""", lambda x, m: x / 16 + np.log(2)),
    "on one line": ("""
def kernel(x_ref, m_ref, o_ref): x = x_ref[...]; o_ref[...] = x - jnp.max(x)
""", lambda x, m: x - x.max(1, keepdims=True)),
    "parameters on lines of their own": ("""
def kernel(x_ref,
           m_ref, o_ref): o_ref[...] = x_ref[...] * 2
""", lambda x, m: 2 * x),
}


@pytest.mark.parametrize("form", FORMS)
def test_form(form):
    kernel, expected = FORMS[form]
    np.testing.assert_allclose(computes(module(kernel), X, M), expected(X, M), rtol=1e-6)


def test_augmented_stores_by_numbers():
    source = HEAD + """
def kernel(x_ref, o_ref):
    o_ref[...] = x_ref[...]
    o_ref[...] *= 3
    o_ref[...] -= 1
    o_ref[...] /= 2

def run(x): return pl.pallas_call(kernel, out_shape=x, compiler_params=CP)(x)
"""
    np.testing.assert_allclose(computes(source, X[0]), (3 * X[0] - 1) / 2, rtol=1e-6)


def test_call_on_one_line_gets_its_views_above():
    text = ported(HEAD + """
def kernel(x_ref, o_ref):
    o_ref[...] = x_ref[...] * 2

def run(x): return pl.pallas_call(kernel, grid=(4,), in_specs=[S], out_specs=S, out_shape=x, compiler_params=CP)(x)
""".replace("S", "pl.BlockSpec((64,), lambda i: (i,))", 2))
    assert """
def run(x):
    def kernel_blocks(x_ref, o_ref):
""" in text


def test_body_of_one_line_goes_below_the_signature():
    text = ported(HEAD + """
class Scale:
    def call(self, x):
        def kernel(x_ref, o_ref): o_ref[...] = x_ref[...] * 2.0 + jnp.exp(x_ref[...]) * jnp.cos(x_ref[...])
        return pl.pallas_call(kernel, out_shape=x, compiler_params=CP)(x)
""")
    assert """
        def kernel(x_ref, o_ref):
            vec = _vec((x_ref, o_ref))
            layout = _blocked(x_ref.shape, vec)
            _store(
                o_ref, ...,
""" in text


TWICE = """
def kernel(x_ref, m_ref, o_ref):
    o_ref[...] = x_ref[...] * 2
"""


@pytest.mark.parametrize("grid", ["n", "x.shape[0]", "len(x)", "x.shape[:1]", "(n,)"])
def test_grid_of_one_axis(grid):
    assert 'grid_names=("i",)' in ported(module(TWICE, grid))


def test_axis_tells_the_rank():
    source = HEAD + """
def kernel(x_ref, o_ref):
    x = x_ref[...]
    o_ref[...] = x - jnp.max(x, axis=1)[:, None]

def run(x):
    return pl.pallas_call(kernel, out_shape=x, compiler_params=CP)(x)
"""
    np.testing.assert_array_equal(computes(source, X), X - X.max(1, keepdims=True))


REFUSED = {
    "refs in a dictionary": ('refs = {"x": x_ref}', 'refs["x"][...]'),
    "refs in a list that grows": ("refs = []\n    refs.append(x_ref)", "refs[0][...]"),
    "refs through map": ("x, = map(lambda ref: ref[...], [x_ref])", "x"),
    "refs by a loop's index": ("refs = (x_ref, m_ref)", "sum(refs[i][...] for i in range(2))"),
}


@pytest.mark.parametrize("form", REFUSED)
def test_refs_that_are_not_followed_keep_the_call(form):
    before, value = REFUSED[form]
    source = module(f"\ndef kernel(x_ref, m_ref, o_ref):\n    {before}\n    o_ref[...] = {value}\n")
    assert codes(source) & {"B101", "B104", "B110"}
    assert plan(source).text == source


def test_loop_over_an_index_of_refs_is_named():
    source = module("""
def kernel(x_ref, m_ref, o_ref):
    refs = (x_ref, m_ref)
    total = 0.0
    for i in range(2):
        total = total + refs[i][...]
    o_ref[...] = total
""")
    assert "B104" in codes(source)


@pytest.mark.parametrize("head, value, code, reason", [
    pytest.param("", "x_ref[-1]", "B104", "the index -1 lies before the array", id="index-before-the-array"),
    pytest.param("EPS = jnp.float32(1e-3)\n", "x_ref[...] + EPS", "B110", "EPS is a JAX array", id="captured-array"),
    pytest.param("class State: pass\n", "x_ref[...] + State().x", "B110", "an object of the class State", id="object"),
    pytest.param("", "jax.lax.associative_scan(lambda a, b: a + b, x_ref[...])", "B102", "associative_scan of a function", id="function"),
    pytest.param("", "jax.lax.cumsum(x_ref[...], reverse=True)", "B120", "its rewrite does not take these arguments", id="arguments"),
])
def test_what_keeps_a_call_is_said(head, value, code, reason):
    source = module(f"\n{head}\ndef kernel(x_ref, m_ref, o_ref):\n    o_ref[...] = {value}\n")
    assert any(d.code == code and reason in d.reason for d in plan(source).diagnostics)
    assert plan(source).text == source


@pytest.mark.parametrize("store, reason", [
    ("o_ref[...] = y = x_ref[...]", "a store in a chained assignment"),
    ("o_ref[...], y = x_ref[...], 1", "o_ref[...] is stored to among other targets"),
    ("y = x_ref[...]\n    y **= 0.5\n    o_ref[...] = y", "its rewrite does not take this form"),
])
def test_assignments_that_stay(store, reason):
    source = module(f"\ndef kernel(x_ref, m_ref, o_ref):\n    {store}\n")
    assert any(reason in d.reason for d in plan(source).diagnostics)
    assert plan(source).text == source


def test_operands_in_a_dictionary_are_named():
    source = HEAD + """
def kernel(x, o_ref):
    o_ref[...] = x["a"][...]

def run(x):
    return pl.pallas_call(kernel, out_shape=x["a"], compiler_params=CP)(x)
"""
    (diagnosis,) = plan(source).diagnostics
    assert diagnosis.code == "B104" and "dictionary" in diagnosis.reason


@pytest.mark.parametrize("elements, found", [(16384, set()), (32768, {"P302"}), (65536, {"B125"})])
def test_tiles_above_what_registers_hold(elements, found):
    source = f"""
BLOCK = {elements}

def kernel(x_ref, o_ref):
    o_ref[...] = x_ref[...] + 1

def run(x):
    block = pl.BlockSpec((BLOCK,), lambda i: (i,))
    return pl.pallas_call(kernel, grid=(4,), in_specs=[block], out_specs=block, out_shape=x, compiler_params=CP)(x)
"""
    assert {d.code for d in plan(HEAD + source).diagnostics} == found


def test_tile_that_only_tracing_shows_is_refused_there():
    source = module(TWICE)
    assert not codes(source)
    with pytest.raises(ValueError, match="does not fit the registers"):
        computes(source, np.zeros((1, 65536), np.float32), np.zeros((1, 65536), bool))
