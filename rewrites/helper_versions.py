"""Gives ported kernels their own version of a helper that other code uses as well.

Why: what changes in a helper holds in ported kernels only. An array `x[:, None]` is of rank 1 there, loads
take a layout, support functions take the place of others. Code outside of them, kernels that stay on
Triton among it, keeps calling the helper as it was.

Helpers that nothing else in the file uses are changed in place: another module that imports them gets
the changed ones. Does not cover: decorated helpers and those that are no functions at the top of the file.
"""

from __future__ import annotations

import libcst as cst

from ..translator import actions
from .engine import Example, Rule


class HelperVersions(Rule):
    code = "MG108"
    name = "helper-versions"
    title = "A helper of other code too gets a version for ported kernels"
    nodes = {actions.OwnVersion: (cst.FunctionDef,), actions.UseVersion: (cst.Name,)}
    keeps_original = (actions.OwnVersion,)
    EXAMPLES = (
        Example(
            before='''
import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu


def scaled(x, largest):
    return x / largest


def kernel(x_ref, o_ref):
    x = x_ref[...]
    o_ref[...] = scaled(x, jnp.max(x, axis=1, keepdims=True))


def run(x):
    tile = pl.BlockSpec((16, 256), lambda i: (i, 0))
    return pl.pallas_call(
        kernel, grid=(x.shape[0] // 16,), in_specs=[tile], out_specs=tile,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        compiler_params=plgpu.CompilerParams(num_warps=4),
    )(x)


def reference(x):
    return scaled(x, x.max(axis=1, keepdims=True))
''',
            after='''
def scaled(x, largest):
    return x / largest


def scaled_mosaic(x, largest):
    return x / largest[:, None]
''',
        ),
    )

    def rewrite(self, action: actions.Action, node: cst.CSTNode) -> cst.CSTNode:
        assert isinstance(action, (actions.OwnVersion, actions.UseVersion))
        if isinstance(node, cst.FunctionDef):
            return node.with_changes(name=cst.Name(action.name))
        assert isinstance(node, cst.Name)
        return node.with_changes(value=action.name)
