"""Every earlier spelling of a Pallas kernel ports to today's API, with the right values."""

import ast

import numpy as np
import pytest

from .evidence import codes, computes, plan, ported

X = np.linspace(-2, 3, 4 * 256, dtype=np.float32).reshape(4, 256)

# Each computes x * 2 + 1 of a (4, 256) array, row by row.
CALL = """

def run(x):
    return pl.pallas_call(
        kernel, grid=(4,), out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), {params})(x)
"""
HEAD = "import jax\nimport jax.numpy as jnp\nfrom jax.experimental import pallas as pl\n"
OLD = "compiler_params=dict(triton=dict(num_warps=4, num_stages=1))"


def era(body: str, params: str = OLD, head: str = HEAD) -> str:
    lines = "\n".join(f"    {line}" for line in body.strip().split("\n"))
    return f"{head}\n\ndef kernel(x_ref, o_ref):\n{lines}\n{CALL.format(params=params)}"


ACCESSES = {
    "index tuple": """
i = pl.program_id(0)
x = pl.load(x_ref, (i, pl.ds(0, 256)))
pl.store(o_ref, (i, pl.ds(0, 256)), x * 2 + 1)""",
    "dslice": """
i = pl.program_id(0)
x = pl.load(x_ref, (pl.dslice(i, 1), pl.dslice(None)))
pl.store(o_ref, (pl.dslice(i, 1), pl.dslice(256)), x * 2 + 1)""",
    "slices": """
i = pl.program_id(axis=0)
x = pl.load(x_ref, (i, slice(None)))
pl.store(o_ref, (i, slice(None)), x * 2 + 1)""",
    "mask and fill": """
i = pl.program_id(0)
columns = jnp.arange(256)
x = pl.load(x_ref, (i, columns), mask=columns < 256, other=0., eviction_policy="evict_last")
pl.store(o_ref, (i, columns), x * 2 + 1, mask=columns < 256)""",
    "index in a variable": """
where = (pl.program_id(0), pl.ds(0, 256))
pl.store(o_ref, where, pl.load(x_ref, where) * 2 + 1)""",
    "named arguments": """
i = pl.program_id(0)
x = pl.load(x_ref, idx=(i, slice(None)), mask=None)
pl.store(o_ref, idx=(i, slice(None)), val=x * 2 + 1)""",
    "scalar elements": """
i = pl.program_id(0)
first = pl.load(x_ref, (i, 0))
pl.store(o_ref, (i, slice(None)), pl.load(x_ref, (i, pl.ds(0, 256))) * 2 + 1 + 0 * first)""",
    "swap for a store": """
i = pl.program_id(0)
pl.swap(o_ref, (i, slice(None)), pl.load(x_ref, (i, slice(None))) * 2 + 1)""",
    "tuple of slices": """
i = pl.program_id(0)
o_ref[i, pl.ds(0, 256)] = x_ref[i, pl.ds(0, 256)] * 2 + 1""",
}


@pytest.mark.parametrize("body", ACCESSES.values(), ids=list(ACCESSES))
def test_accesses(body):
    source = era(body)
    assert np.array_equal(computes(source, X), X * 2 + 1)
    assert "pl.load" not in ported(source) and "pl.store" not in ported(source)


STORE = "o_ref[pl.program_id(0), :] = x_ref[pl.program_id(0), :] * 2 + 1"
TRITON = HEAD + "from jax.experimental.pallas import {module} as plgpu\n"
CALLS = {
    "keywords of the call": ("num_warps=4, num_stages=2", HEAD),
    "dictionary": ("compiler_params=dict(triton=dict(num_warps=4))", HEAD),
    "literal dictionary": ('compiler_params={"triton": {"num_warps": 4}}', HEAD),
    "TritonCompilerParams": ("compiler_params=plgpu.TritonCompilerParams(num_warps=4)", TRITON.format(module="triton")),
    "pallas.gpu": ("compiler_params=plgpu.TritonCompilerParams(num_warps=4)", TRITON.format(module="gpu")),
    "CompilerParams": ("compiler_params=plgpu.CompilerParams(num_warps=4)", TRITON.format(module="triton")),
    "backend": ('backend="triton"', HEAD),
    "debug and interpret": ("num_warps=4, debug=False, interpret=False", HEAD),
}


@pytest.mark.parametrize("params, head", CALLS.values(), ids=list(CALLS))
def test_calls(params, head):
    source = era(STORE, params, head)
    assert np.array_equal(computes(source, X), X * 2 + 1)
    assert "num_warps" not in ported(source)
    assert not {d.code for d in plan(source).diagnostics}


def test_kernel_passed_as_f():
    source = era(STORE).replace("        kernel, grid", "        f=kernel, grid")
    assert np.array_equal(computes(source, X), X * 2 + 1)


def test_file_that_names_no_backend_says_so():
    assert [d.code for d in plan(era(STORE, "name='k'")).diagnostics] == ["N204"]


def test_pallas_of_jax_triton_is_imported_from_jax():
    head = "import jax\nimport jax.numpy as jnp\nimport jax_triton as jt\nfrom jax_triton import pallas as pl\n"
    source = era(ACCESSES["index tuple"], "num_warps=4", head).replace("import jax_triton as jt\n", "")
    text = ported(source)
    assert "jax_triton" not in text and "from jax.experimental import pallas as pl\n" in text
    assert np.array_equal(computes(source, X), X * 2 + 1)


@pytest.mark.parametrize("spec", [
    "pl.BlockSpec(lambda i: (i, 0), (None, 256))",
    "pl.BlockSpec(index_map=lambda i: (i, 0), block_shape=(None, 256))",
    "pl.BlockSpec((None, 256), lambda i: (i, 0))",
])
def test_argument_order_of_block_specs(spec):
    source = era("o_ref[...] = x_ref[...] * 2 + 1").replace("grid=(4,)", f"grid=(4,), in_specs=[{spec}], out_specs={spec}")
    assert np.array_equal(computes(source, X), X * 2 + 1)


LOOP_HEAD = HEAD.replace("import jax.numpy", "from jax._src.lax.control_flow.for_loop import for_loop\nimport jax.numpy")
LOOPS = {
    "state": """
i = pl.program_id(0)
def add(t, acc_ref):
    acc_ref[:] += x_ref[i, pl.ds(t * 64, 64)]
total = for_loop(4, add, jnp.zeros(64))
o_ref[i, :] = jnp.broadcast_to(total.sum(), (256,))""",
    "ellipsis, read and written": """
i = pl.program_id(0)
def add(t, acc_ref: object):
    old = acc_ref[...]
    acc_ref[...] = old + x_ref[i, pl.ds(t * 64, 64)]
total = for_loop(4, add, jnp.zeros(64)).sum()
o_ref[i, :] = jnp.full((256,), total)""",
    "state of two parts": """
i = pl.program_id(0)
def add(t, refs):
    acc_ref, twice_ref = refs
    x = x_ref[i, pl.ds(t * 64, 64)]
    acc_ref[:] += x
    twice_ref[:] = twice_ref[:] + 2 * x
one, two = for_loop(4, add, (jnp.zeros(64), jnp.zeros(64)))
o_ref[i, :] = jnp.full((256,), two.sum() - one.sum())""",
    "named arguments": """
i = pl.program_id(0)
def add(t, acc_ref):
    acc_ref[:] += x_ref[i, pl.ds(t * 64, 64)]
total = for_loop(nsteps=4, body=add, init_state=jnp.zeros(64))
o_ref[i, :] = jnp.full((256,), total.sum())""",
}


@pytest.mark.parametrize("body", LOOPS.values(), ids=list(LOOPS))
def test_loops_over_mutable_state(body):
    source = era(body, head=LOOP_HEAD)
    assert "for_loop import" not in ported(source)
    expected = np.broadcast_to(X.sum(1, keepdims=True), X.shape)
    assert np.allclose(computes(source, X), expected, rtol=1e-5)


def test_loop_without_state():
    body = """
i = pl.program_id(0)
def copy(t, _):
    at = (i, pl.ds(t * 64, 64))
    pl.store(o_ref, at, pl.load(x_ref, at) * 2 + 1)
for_loop(4, copy, ())"""
    assert np.array_equal(computes(era(body, head=LOOP_HEAD), X), X * 2 + 1)


@pytest.mark.parametrize("body", [
    pytest.param("def add(t, a_ref):\n    a_ref[0] += x_ref[0, 0]\nz = for_loop(4, add, jnp.zeros(64))", id="indexed"),
    pytest.param("def add(t, a_ref):\n    def f(): a_ref[:] += 1.\n    f()\nz = for_loop(4, add, jnp.zeros(64))", id="nested"),
    pytest.param("def add(t, a_ref):\n    a_ref[:] += 1.\nz = for_loop(4, add, jnp.zeros(64), reverse=True)", id="reverse"),
    pytest.param("def add(t, a_ref):\n    g(a_ref)\nz = for_loop(4, add, jnp.zeros(64))", id="passed-on"),
])
def test_loops_that_stay(body):
    source = era(f"{body}\n{STORE}", head=LOOP_HEAD)
    assert "B102" in codes(source)
    assert plan(source).text == source


def test_name_without_the_suffix_is_taken():
    body = "acc = 1.\ndef add(t, acc_ref):\n    acc_ref[:] += acc * x_ref[0, pl.ds(0, 64)]\nz = for_loop(4, add, jnp.zeros(64))\no_ref[0, pl.ds(0, 64)] = z"
    text = ported(era(body, head=LOOP_HEAD))
    assert "acc_ref += acc * " in text and "return acc_ref" in text
    ast.parse(text)


def test_arguments_passed_with_stars():
    assert codes(era("at = ((0, slice(None)),)\no_ref[0, :] = pl.load(x_ref, *at)")) == {"B114"}


def test_swap_whose_result_is_read():
    assert codes(era("o_ref[0, :] = pl.swap(x_ref, (0, slice(None)), x_ref[0, :])")) == {"B110"}
