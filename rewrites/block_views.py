"""Writes BlockSpecs out as views of the whole arrays.

Why: on the Triton backend a BlockSpec is an address window. In Mosaic GPU it would be a staged
copy in shared memory. The port leaves operands in GMEM and passes the kernel `ref.at[...]` views
that a small function beside the call builds from the index maps.

A dimension that a block takes whole is `:` where the source shows that it is the operand's own
extent. Index maps must be lambdas or functions of one return statement.
"""

from __future__ import annotations

from ..translator import actions
from .engine import Example, Insertion, Rule


class BlockViews(Rule):
    code = "MG103"
    name = "block-views"
    title = "BlockSpecs become ref.at[...] views"
    inserts = (actions.BlockViews,)
    EXAMPLES = (
        Example(
            before='''
import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu


def scale_rows(x_ref, s_ref, o_ref):
    o_ref[...] = x_ref[...] * s_ref[...][:, None]


def run(x, s):
    rows = pl.BlockSpec((8, x.shape[1]), lambda b: (b, 0))
    return pl.pallas_call(
        scale_rows,
        grid=(x.shape[0] // 8,),
        in_specs=[rows, pl.BlockSpec((8,), lambda b: (b,))],
        out_specs=rows,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        compiler_params=plgpu.CompilerParams(num_warps=4),
    )(x, s)
''',
            after='''
    def scale_rows_blocks(x_ref, s_ref, o_ref):
        """Views of the blocks that one program works on."""
        i = lax.axis_index("i")
        scale_rows(
            x_ref.at[pl.ds(i * 8, 8), :],
            s_ref.at[pl.ds(i * 8, 8)],
            o_ref.at[pl.ds(i * 8, 8), :],
        )

    return plgpu.kernel(
''',
        ),
    )

    def insert(self, action: actions.BlockViews) -> Insertion:
        return Insertion(action.lines, apart=True)
