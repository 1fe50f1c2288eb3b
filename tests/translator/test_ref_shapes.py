"""Ranks of refs, from specs, shapes beside the call and the kernel's own use."""

import ast

import pytest

from pallas_port.translator.names import Resolver
from pallas_port.translator.ref_shapes import ref_dims
from pallas_port.translator.sites import find_sites

HEAD = """
import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu
"""
KERNEL = "def kernel(x_ref, o_ref):\n    o_ref[0] = x_ref[0]\n"


def ranks(source: str, kernel: str = KERNEL):
    """({name: rank}, number of inputs)."""
    resolver = Resolver(ast.parse(HEAD + kernel + source))
    dims, inputs = ref_dims(find_sites(resolver), resolver, {})
    for i, d in dims.items():
        assert d == tuple(f"{d[0].partition('.')[0]}.shape[{k}]" for k in range(len(d))), (i, d)
    return {d[0].partition(".")[0]: len(d) for d in dims.values()}, inputs


OUT = "out_shape=jax.ShapeDtypeStruct((4, 4), jnp.float32)"

CASES = [
    pytest.param("pl.pallas_call(kernel, in_specs=[pl.BlockSpec((8, 8), f)], out_specs=pl.BlockSpec((8,), f), out_shape=s)(x)", {"x_ref": 2, "o_ref": 1}, id="specs"),
    pytest.param("pl.pallas_call(kernel, in_specs=[pl.BlockSpec((None, 8, 8), f)], out_specs=pl.BlockSpec((None, None, 8), f), out_shape=s)(x)", {"x_ref": 2, "o_ref": 1}, id="squeezed"),
    pytest.param(f"pl.pallas_call(kernel, {OUT})(x)", {"o_ref": 2}, id="out-shape"),
    pytest.param(f"pl.pallas_call(kernel, {OUT.replace('(4, 4)', '(4,)')})(x)", {"o_ref": 1}, id="out-shape-1"),
    pytest.param(f"pl.pallas_call(kernel, {OUT.replace('((4, 4), ', '(dtype=d, shape=(4, 4, 4), ').replace(', jnp.float32', '')})(x)", {"o_ref": 3}, id="out-shape-keyword"),
    pytest.param("m, n = x.shape\npl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)", {"x_ref": 2, "o_ref": 2}, id="unpacked-beside-the-call"),
    pytest.param("(m, n), k = x.shape, 3\npl.pallas_call(kernel, out_shape=s)(x)", {"x_ref": 2}, id="nested-pattern"),
    pytest.param("m, *n = x.shape\npl.pallas_call(kernel, out_shape=s)(x)", {}, id="starred-pattern"),
    pytest.param("pl.pallas_call(kernel, out_shape=s)(jnp.zeros((4, 4)))", {"x_ref": 2}, id="literal-operand"),
    pytest.param("pl.pallas_call(kernel, out_shape=[jax.ShapeDtypeStruct((4,), d)])(x)", {"o_ref": 1}, id="list-of-shapes"),
    pytest.param("pl.pallas_call(kernel, out_shape=s)(x)", {}, id="nothing-known"),
    pytest.param("pl.pallas_call(kernel, in_specs=[None], out_specs=None, out_shape=s)(x)", {}, id="specs-of-whole-arrays"),
]


@pytest.mark.parametrize("source, expected", CASES)
def test_ranks(source, expected):
    assert ranks(source)[0] == expected


def test_rank_from_the_kernel():
    kernel = "def kernel(x_ref, o_ref):\n    m, n = x_ref.shape\n    o_ref[0] = x_ref[0, 0]\n"
    assert ranks("pl.pallas_call(kernel, out_shape=s)(x)", kernel)[0]["x_ref"] == 2


@pytest.mark.parametrize("call, inputs", [
    ("pl.pallas_call(kernel, out_shape=s)(x)", 1),
    ("pl.pallas_call(kernel, in_specs=[pl.BlockSpec((8,), f)], out_shape=s)", 1),
    ("f = pl.pallas_call(kernel, out_shape=s)", 1),
    ("pl.pallas_call(kernel, out_shape=s)(*x)", 1),
])
def test_number_of_inputs(call, inputs):
    assert ranks(call)[1] == inputs


def test_sites_that_disagree():
    call = "pl.pallas_call(kernel, in_specs=[pl.BlockSpec(({}), f)], out_shape=s)(x)\n"
    assert "x_ref" not in ranks(call.format("8, 8") + call.format("8,"))[0]


def test_operand_rebound():
    found = ranks("m, n = x.shape\nx = x.reshape(-1)\npl.pallas_call(kernel, out_shape=s)(x)")[0]
    assert found.get("x_ref") != 2
