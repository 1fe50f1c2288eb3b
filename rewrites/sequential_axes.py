"""Runs a grid axis along which programs accumulate as a loop in each program.

Why: on a GPU the programs of a grid run at the same time. `o_ref[...] += x` in programs that share a
block of the output is a race on Triton and on Mosaic GPU alike; the kernel means what it does where
programs run one after the other, as on a TPU or in interpret mode. The axis leaves the grid, and the
launch calls the kernel once per step with the step as a parameter.

Does not cover: kernels with matrix products, several such axes, outputs that are read before
anything is written to them; these stay on Triton.
"""

from __future__ import annotations

import libcst as cst

from ..translator import actions
from .engine import Example, Rule
from .parameters import with_parameters

_BEFORE = '''
import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu


def column_sums(x_ref, o_ref):
    @pl.when(pl.program_id(1) == 0)
    def _():
        o_ref[...] = jnp.zeros_like(o_ref)

    o_ref[...] += jnp.sum(x_ref[...], axis=0)


def run(x):
    m, n = x.shape
    return pl.pallas_call(
        column_sums,
        grid=(n // 128, m // 64),
        in_specs=[pl.BlockSpec((64, 128), lambda c, r: (r, c))],
        out_specs=pl.BlockSpec((128,), lambda c, r: (c,)),
        out_shape=jax.ShapeDtypeStruct((n,), x.dtype),
        compiler_params=plgpu.CompilerParams(num_warps=4),
    )(x)
'''


class SequentialAxes(Rule):
    code = "MG107"
    name = "sequential-axes"
    title = "A grid axis that programs accumulate along becomes a loop"
    nodes = {actions.StepOfLoop: (cst.Call,), actions.AddParameters: (cst.FunctionDef,)}
    EXAMPLES = (
        Example(before=_BEFORE, after='''
    def column_sums_blocks(x_ref, o_ref):
        """Views of the blocks that one program works on."""
        i = lax.axis_index("i")

        def step(j, _):
            column_sums(
                x_ref.at[pl.ds(j * 64, 64), pl.ds(i * 128, 128)],
                o_ref.at[pl.ds(i * 128, 128)],
                j=j,
            )

        lax.fori_loop(0, m // 64, step, None)

    return plgpu.kernel(
        column_sums_blocks,
        grid=(n // 128,),
        grid_names=("i",),
'''),
    )

    def rewrite(self, action: actions.Action, node: cst.CSTNode) -> cst.CSTNode:
        if isinstance(action, actions.StepOfLoop):
            return cst.Name(action.name)
        assert isinstance(action, actions.AddParameters) and isinstance(node, cst.FunctionDef)
        return with_parameters(node, action.names)
