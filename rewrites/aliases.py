"""Updates an operand in place through a ref instead of `input_output_aliases`.

Why: `plgpu.kernel` has no `input_output_aliases`. The operand is copied into a `jax.new_ref`, the
kernel gets that ref both as the operand and as the result, and the result is read from it. Under
`jit` XLA leaves the copy out where it may.

Covers aliases written as a literal dictionary, of calls whose operands have names.
"""

from __future__ import annotations

import libcst as cst

from ..translator import actions
from .engine import Example, Rule, expression


class Aliases(Rule):
    code = "MG104"
    name = "aliases"
    title = "input_output_aliases become refs"
    nodes = {actions.ReplaceCall: (cst.Call,)}
    EXAMPLES = (
        Example(
            before='''
import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu


def accumulate(x_ref, old_ref, new_ref):
    i = pl.program_id(0)
    block = pl.ds(i * 128, 128)
    new_ref[block] = old_ref[block] + x_ref[block]


def run(x, total):
    return pl.pallas_call(
        accumulate,
        grid=(x.shape[0] // 128,),
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        input_output_aliases={1: 0},
        compiler_params=plgpu.CompilerParams(num_warps=4),
    )(x, total)
''',
            after='''
    def accumulate_in_place(x, old):
        """Runs the kernel on a copy of the operand that its result replaces."""
        old = jax.new_ref(old)

        def accumulate_refs(x_ref, old_ref):
            accumulate(x_ref, old_ref, old_ref)

        plgpu.kernel(
            accumulate_refs,
            out_type=(),
            grid=(x.shape[0] // 128,),
            grid_names=("i",),
        )(x, old)
        return old[...]

    return accumulate_in_place(x, total)
''',
        ),
    )

    def rewrite(self, action: actions.ReplaceCall, node: cst.Call) -> cst.BaseExpression:
        return expression(action.name)
