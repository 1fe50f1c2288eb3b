"""Programs that write the same block: said, made a loop, or kept on Triton; never in silence."""

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
CALL = """

def run(x):
    return pl.pallas_call(
        {kernel}, grid=({grid}), in_specs=[pl.BlockSpec((16, 32), {inputs})],
        out_specs=pl.BlockSpec((16, 32), {outputs}), out_shape=jax.ShapeDtypeStruct({shape}, x.dtype), compiler_params=CP)(x)
"""
X = np.linspace(-1, 2, 64 * 128, dtype=np.float32).reshape(64, 128)
SUM = X.reshape(4, 16, 128).sum(0)  # of the blocks of rows


def kernel(body: str, **parts) -> str:
    lines = "".join(f"    {line}\n" if line else "\n" for line in body.strip("\n").split("\n"))
    given = {"kernel": "kernel", "grid": "4, 4", "inputs": "lambda i, j: (j, i)", "outputs": "lambda i, j: (0, i)", "shape": "(16, 128)"} | parts
    return f"{HEAD}def kernel(x_ref, o_ref):\n{lines}{CALL.format(**given)}"


START = """
@pl.when(pl.program_id(1) == 0)
def _():
    o_ref[...] = jnp.zeros_like(o_ref)
"""
ACCUMULATIONS = {
    "plus-equals": START + "\no_ref[...] += x_ref[...]",
    "written out": START + "\no_ref[...] = o_ref[...] + x_ref[...]",
    "step in a variable": START.replace("\n@pl.when(pl.program_id(1) == 0)", "j = pl.program_id(1)\n\n@pl.when(j == 0)") + "\no_ref[...] += x_ref[...]",
    "starts with the first block": """
@pl.when(pl.program_id(1) == 0)
def _():
    o_ref[...] = x_ref[...]

@pl.when(pl.program_id(1) > 0)
def _():
    o_ref[...] += x_ref[...]
""",
}


@pytest.mark.parametrize("body", [ACCUMULATIONS[k] for k in list(ACCUMULATIONS)[:3]], ids=list(ACCUMULATIONS)[:3])
def test_accumulation_becomes_a_loop(body):
    source = kernel(body)
    assert np.allclose(computes(source, X), SUM, rtol=1e-6)
    text = ported(source)
    assert "lax.fori_loop(0, 4, step, None)" in text and 'grid_names=("i",)' in text


def test_first_axis():
    source = kernel(START.replace("(1)", "(0)") + "\no_ref[...] += x_ref[...]", inputs="lambda r, c: (r, c)", outputs="lambda r, c: (0, c)")
    assert np.allclose(computes(source, X), SUM, rtol=1e-6)
    assert 'grid_names=("j",)' in ported(source)


def test_only_axis():
    body = START.replace("(1)", "(0)") + "\no_ref[...] += x_ref[...]"
    source = kernel(body, grid="4,", inputs="lambda i: (i, 0)", outputs="lambda i: (0, 0)", shape="(16, 32)")
    assert np.allclose(computes(source, X[:, :32].copy()), SUM[:, :32], rtol=1e-6)
    assert "grid" not in ported(source).rpartition("plgpu.kernel(")[2]


def test_number_of_steps_and_keyword_statics():
    body = START + """
o_ref[...] += x_ref[...]

@pl.when(pl.program_id(1) == pl.num_programs(1) - 1)
def _():
    o_ref[...] = o_ref[...] * scale
"""
    source = kernel(body, kernel="functools.partial(kernel, scale=2.0)").replace("def kernel(x_ref, o_ref):", "def kernel(x_ref, o_ref, *, scale):")
    assert np.allclose(computes(source, X), SUM * 2, rtol=1e-6)
    assert "def kernel(x_ref, o_ref, *, scale, j, num_j):" in ported(source)


def test_name_of_the_step_that_the_kernel_has():
    source = kernel("j = 2.0\n" + START + "\no_ref[...] += x_ref[...] * j")
    assert np.allclose(computes(source, X), SUM * 2, rtol=1e-6)
    assert "step=j" in ported(source)


def test_accumulation_into_an_aliased_operand():
    source = HEAD + """def kernel(x_ref, old_ref, o_ref):
    o_ref[...] += x_ref[...]


def run(x, old):
    tile = pl.BlockSpec((16, 32), lambda i, j: (0, i))
    return pl.pallas_call(
        kernel, grid=(4, 4), in_specs=[pl.BlockSpec((16, 32), lambda i, j: (j, i)), tile], out_specs=tile,
        out_shape=jax.ShapeDtypeStruct(old.shape, old.dtype), input_output_aliases={1: 0}, compiler_params=CP)(x, old)
"""
    assert np.allclose(computes(source, X, X[:16] * 3), SUM + X[:16] * 3, atol=1e-5)


def test_whole_array_indexed_in_the_kernel():
    source = HEAD + """def kernel(x_ref, o_ref):
    columns = pl.ds(pl.program_id(0) * 32, 32)

    @pl.when(pl.program_id(1) == 0)
    def _():
        o_ref[:, columns] = jnp.zeros((16, 32))

    o_ref[:, columns] += x_ref[pl.ds(pl.program_id(1) * 16, 16), columns]


def run(x):
    return pl.pallas_call(kernel, grid=(4, 4), out_shape=jax.ShapeDtypeStruct((16, 128), x.dtype), compiler_params=CP)(x)
"""
    assert np.allclose(computes(source, X), SUM, rtol=1e-6)


# -- said, or kept ------------------------------------------------------------------------------------

PLAIN = "o_ref[...] = x_ref[...]"


@pytest.mark.parametrize("source, axes", [
    pytest.param(kernel(PLAIN), {1}, id="index-map"),
    pytest.param(kernel(PLAIN, outputs="lambda *_: (0, 0)", shape="(16, 32)"), {0, 1}, id="both-axes"),
    pytest.param(kernel(PLAIN, grid="4, 1"), set(), id="one-program"),
    pytest.param(kernel(PLAIN, outputs="lambda i, j: (j, i)", shape="(64, 128)"), set(), id="own-blocks"),
    pytest.param(kernel(f"@pl.when(pl.program_id(1) == 0)\ndef _():\n    {PLAIN}"), set(), id="one-of-them"),
    pytest.param(kernel(f"j = pl.program_id(1)\n@pl.when(j == 3)\ndef _():\n    {PLAIN}"), set(), id="one-of-them-by-name"),
    pytest.param(kernel(f"lax.cond(pl.program_id(1) == 0, lambda: o_ref.__setitem__(..., x_ref[...]), lambda: None)"), set(), id="cond"),
])
def test_programs_that_write_the_same(source, axes):
    said = {d.reason for d in plan(source).diagnostics if d.code == "N206"}
    assert {int(reason.split("axis ")[1][0]) for reason in said} == axes


def test_mask_that_tells_programs_apart():
    source = HEAD + """def kernel(x_ref, o_ref):
    at = jnp.arange(128)
    mask = at < pl.program_id(0) * 32
    plgpu.store(o_ref.at[at], x_ref[at], mask=mask)


def run(x):
    return pl.pallas_call(kernel, grid=(4,), out_shape=x, compiler_params=CP)(x)
"""
    assert not {d.code for d in plan(source).diagnostics if d.code == "N206"}
    assert {d.code for d in plan(source.replace(", mask=mask", "")).diagnostics} == {"N206"}


@pytest.mark.parametrize("source", [
    pytest.param(kernel("o_ref[...] += x_ref[...]"), id="nothing-written-before"),
    pytest.param(kernel(START + "\no_ref[...] += x_ref[...]", outputs="lambda i, j: (0, 0)", shape="(16, 32)"), id="two-axes"),
    pytest.param(kernel(START + "\no_ref[...] += x_ref[...]", kernel="lambda *refs: kernel(*refs)"), id="lambda"),
    pytest.param(kernel(START + "\no_ref[...] += x_ref[...] @ x_ref[...].T").replace("(16, 32)", "(64, 64)"), id="product"),
])
def test_accumulations_that_stay(source):
    assert "B140" in codes(source)
    assert plan(source).text == source


def test_calls_of_one_kernel_that_differ():
    body = START + "\no_ref[...] += x_ref[...]"
    source = kernel(body)
    second = CALL.format(kernel="kernel", grid="4, 4", inputs="lambda i, j: (j, i)", outputs="lambda i, j: (j, i)", shape="(64, 128)")
    assert codes(source + second.replace("def run", "def other")) == {"B140"}


def test_one_element_that_every_thread_would_change():
    source = HEAD + """def kernel(x_ref, o_ref):
    o_ref[0] += jnp.sum(x_ref[...])


def run(x):
    return pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct((1,), x.dtype), compiler_params=CP)(x)
"""
    assert codes(source) == {"B103"}


@pytest.mark.parametrize("statement, expected", [
    ("o_ref[...] += y * 2 - 1", lambda x: x + (2 * x - 1)), ("o_ref[...] *= y + 1", lambda x: x * (x + 1)),
    ("o_ref[...] -= y - 1", lambda x: x - (x - 1)), ("o_ref[...] /= y * y + 1", lambda x: x / (x * x + 1)),
    ("o_ref[pl.ds(0, 8), :] += y[...] if True else y", None),
])
def test_operations_in_place(statement, expected):
    source = kernel(f"y = x_ref[...]\no_ref[...] = y\n{statement}", grid="4, 4", outputs="lambda i, j: (j, i)", shape="(64, 128)")
    if expected is not None:
        assert np.allclose(computes(source, X), expected(X), rtol=1e-6)
