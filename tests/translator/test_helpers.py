"""Loads and stores in helper functions of the kernel's file."""

import numpy as np
import pytest

from .evidence import codes, computes, plan, ported

HEAD = """\
import functools
import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

CP = plgpu.CompilerParams(num_warps=4)

"""
RUN = """

def run(x):
    return pl.pallas_call(kernel, grid=(4,), out_shape=x, compiler_params=CP)(x)
"""
X = np.linspace(-1, 2, 4 * 64, dtype=np.float32).reshape(4, 64)
TWICE = lambda x: 2 * x  # noqa: E731

HELPERS = {
    "load": ("""
def row(ref, i):
    return ref[i, :]


def kernel(x_ref, o_ref):
    i = pl.program_id(0)
    o_ref[i, :] = row(x_ref, i) * 2
""", TWICE),
    "load and store": ("""
def read(ref, i, n, other=0.0):
    columns = jnp.arange(n)
    return plgpu.load(ref.at[i, columns], mask=columns < 64, other=other)


def write(ref, i, n, value):
    columns = jnp.arange(n)
    plgpu.store(ref.at[i, columns], value, mask=columns < 64)


def kernel(x_ref, o_ref):
    i = pl.program_id(0)
    x = read(x_ref, i, 64)
    write(o_ref, i, 64, x - jnp.max(x))
""", lambda x: x - x.max(1, keepdims=True)),
    "for two refs": ("""
def row(ref, i):
    return ref[i, :]


def kernel(x_ref, o_ref):
    i = pl.program_id(0)
    o_ref[i, :] = row(x_ref, i)
    o_ref[i, :] = row(o_ref, i) + row(x_ref, i)
""", TWICE),
    "through another helper": ("""
def row(ref, i):
    return ref[i, :]


def doubled(ref, i):
    return 2 * row(ref, i)


def kernel(x_ref, o_ref):
    i = pl.program_id(0)
    o_ref[i, :] = doubled(x_ref, i)
""", TWICE),
    "called in a loop": ("""
def part(ref, i, t):
    return ref[i, pl.ds(t * 16, 16)]


def kernel(x_ref, o_ref):
    i = pl.program_id(0)

    def body(t, _):
        o_ref[i, pl.ds(t * 16, 16)] = 2 * part(x_ref, i, t)

    lax.fori_loop(0, 4, body, None)
""", TWICE),
    "names that the helper has": ("""
def row(ref, i, layout=1.0, vec=2.0):
    return ref[i, :] * (layout * vec)


def kernel(x_ref, o_ref):
    i = pl.program_id(0)
    o_ref[i, :] = row(x_ref, i)
""", TWICE),
    "inside the kernel, for two refs": ("""
def kernel(x_ref, o_ref):
    i = pl.program_id(0)

    def row(ref):
        return ref[i, :]

    o_ref[i, :] = row(x_ref)
    o_ref[i, :] = row(o_ref) + row(x_ref)
""", TWICE),
}


@pytest.mark.parametrize("source, expected", HELPERS.values(), ids=list(HELPERS))
def test_helpers(source, expected):
    assert np.allclose(computes(HEAD + source + RUN, X), expected(X), rtol=1e-6)


def test_text_of_a_port_with_helpers():
    text = ported(HEAD + HELPERS["through another helper"][0] + RUN)
    assert "def row(ref, i, *, layout, vec):" in text
    assert "return 2 * row(ref, i, layout=layout, vec=vec)" in text
    assert "doubled(x_ref, i, layout=layout, vec=vec)" in text


TWO_KERNELS = HEAD + """
def row(ref, i):
    return ref[i, :]


def kernel(x_ref, o_ref):
    i = pl.program_id(0)
    o_ref[i, :] = 2 * row(x_ref, i)


def other(x_ref, o_ref):
    i = pl.program_id(0)
    o_ref[i, :] = row(x_ref, i) - row(x_ref, i)


def run(x):
    y = pl.pallas_call(kernel, grid=(4,), out_shape=x, compiler_params=CP)(x)
    return y + pl.pallas_call(other, grid=(4,), out_shape=x, compiler_params=CP)(x)
"""


def test_helper_of_two_kernels():
    assert np.array_equal(computes(TWO_KERNELS, X), 2 * X)


def test_helper_of_a_kernel_that_stays():
    source = TWO_KERNELS.replace("grid=(4,), out_shape=x, compiler_params=CP)(x)\n    return", "grid=(4,), out_shape=x, scratch_shapes=[], compiler_params=CP)(x)\n    return")
    result = plan(source)
    assert [s.status for s in result.sites] == ["kept", "ported"]
    assert "def row(ref, i):\n    return ref[i, :]\n\n\ndef row_mosaic(ref, i, *, " in result.text
    assert "2 * row(x_ref, i)" in result.text and "- row_mosaic(x_ref, i, layout=" in result.text


OTHER_CALLERS = HEAD + """
def centred(x, middle):
    # the middle may be one number for each row
    return x - middle


def scaled(x, middle):
    return centred(x, middle) / 2


def kernel(x_ref, o_ref):
    x = x_ref[pl.ds(0, 4), pl.ds(0, 64)]
    o_ref[pl.ds(0, 4), pl.ds(0, 64)] = scaled(x, jnp.max(x, axis=1, keepdims=True))


def reference(x):
    return scaled(x, jnp.max(x, axis=1, keepdims=True))


def run(x):
    call = pl.pallas_call(kernel, grid=(1,), out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), compiler_params=CP)
    return call(x) - reference(x), centred(x, x[:, :1])
"""


def test_other_callers_of_a_helper_keep_working():
    """The kernel's ``middle`` has rank 1 in the port, that of the other callers has not."""
    difference, centred = computes(OTHER_CALLERS, X)
    assert not difference.any() and np.array_equal(centred, X - X[:, :1])
    text = ported(OTHER_CALLERS)
    assert text.count("# the middle may be") == 2
    assert "return centred_mosaic(x, middle) / 2" in text and "return centred(x, middle) / 2" in text
    (site,) = plan(OTHER_CALLERS).sites
    assert "MG108" in site.rules and any("centred_mosaic" in line for line in site.plan)


def test_port_is_not_ported_again_where_helpers_have_versions():
    assert plan(ported(OTHER_CALLERS)).text == ported(OTHER_CALLERS)


def test_helper_that_the_call_passes_in_and_others_call_stays():
    source = HEAD + """
def centred(x, middle):
    return x - middle


def kernel(x_ref, o_ref, *, change):
    x = x_ref[pl.ds(0, 4), pl.ds(0, 64)]
    o_ref[pl.ds(0, 4), pl.ds(0, 64)] = change(x, jnp.max(x, axis=1, keepdims=True))


def run(x):
    return pl.pallas_call(functools.partial(kernel, change=centred), grid=(1,), out_shape=x, compiler_params=CP)(x)
"""
    assert not codes(source)
    assert codes(source + "\n\nbest = centred(run(table), 1.0)\n") == {"C205"}


@pytest.mark.parametrize("source, code", [
    pytest.param(HEAD + HELPERS["load"][0].replace("row(x_ref, i) * 2", "functools.partial(row, x_ref)(i)") + RUN, "B109", id="passed-on"),
    pytest.param(HEAD + HELPERS["load"][0].replace("def row", "@functools.lru_cache\ndef row") + RUN, "B102", id="decorated"),
    pytest.param(HEAD + HELPERS["called in a loop"][0].replace("ref, i, t):\n    return ref[i, pl.ds(t * 16, 16)]", "ref, i, t, n=16):\n    return ref[i, pl.ds(t * n, n)]").replace("2 * part(x_ref, i, t)", "2 * part(x_ref, i, t) + 0 * part(x_ref, i, t, n=32).sum()") + RUN, "B109", id="two-shapes"),
    pytest.param(HEAD + HELPERS["load"][0].replace("def row(ref, i):\n    return ref[i, :]", "row = lambda ref, i: ref[i, :]") + RUN, "B109", id="lambda"),
])
def test_helpers_that_keep_the_call_on_triton(source, code):
    assert code in codes(source)
    assert plan(source).text == source
