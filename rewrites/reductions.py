"""Reduces a whole tile in two steps, along columns and then along rows.

Why: a reduction over both axes of a tile in a blocked layout does not lower in one step.

`mean` divides by the same count in two steps, which rounds once more.
"""

from __future__ import annotations

import libcst as cst

from ..translator import actions
from .engine import Example, Rule, expression


class Reductions(Rule):
    code = "MG302"
    name = "reductions"
    title = "Full reductions of a tile take two steps"
    nodes = {actions.ReduceInTwoSteps: (cst.Call,)}
    EXAMPLES = (
        Example(
            before='''
import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu


def total(x_ref, o_ref):
    o_ref[pl.program_id(0)] = jnp.sum(x_ref[...])


def run(x):
    return pl.pallas_call(
        total, grid=(x.shape[0] // 32,), in_specs=[pl.BlockSpec((32, 64), lambda i: (i, 0))],
        out_shape=jax.ShapeDtypeStruct((x.shape[0] // 32,), x.dtype),
        compiler_params=plgpu.CompilerParams(num_warps=4),
    )(x)
''',
            after='''
    o_ref[lax.axis_index("i")] = jnp.sum(_load(x_ref, ..., layout=layout, vec=vec), axis=1).sum(axis=0)
''',
        ),
    )

    def rewrite(self, action: actions.ReduceInTwoSteps, node: cst.Call) -> cst.BaseExpression:
        none = cst.SimpleWhitespace("")
        axis = cst.Arg(cst.Integer("1"), keyword=cst.Name("axis"), equal=cst.AssignEqual(none, none))
        method = isinstance(node.func, cst.Attribute) and not (
            node.args and node.args[0].keyword is None and not isinstance(node.args[0].value, cst.Integer)
        )
        kept = [] if method else [a for a in node.args[:1]]
        kept += [a for a in node.args if a.keyword is not None and a.keyword.value == "dtype"]
        first = node.with_changes(args=[*[a.with_changes(comma=cst.MaybeSentinel.DEFAULT) for a in kept], axis])
        second = expression(f"x.{action.method.removeprefix('a')}(axis=0)")
        assert isinstance(second, cst.Call) and isinstance(second.func, cst.Attribute)
        return second.with_changes(func=second.func.with_changes(value=first))
