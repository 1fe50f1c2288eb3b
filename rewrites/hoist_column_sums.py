"""Takes sums over rows out of the loop that accumulates them.

Why: `acc + x.sum(axis=0)` in a loop reduces across warps in every step. Accumulating whole tiles and
summing once is the same up to the order of additions and measured 1.7 times faster.

Applies to loop carries that start as zeros, are only used in that sum, and whose loop is assigned to
plain names. The accumulator takes rows * columns / 128 registers of each thread.
"""

from __future__ import annotations

import libcst as cst

from ..translator import actions
from .engine import Example, Insertion, Rule, expression


class HoistColumnSums(Rule):
    code = "MG303"
    name = "hoist-column-sums"
    title = "Column sums are taken once, after the loop"
    nodes = {
        actions.DropColumnSum: (cst.Call,),
        actions.WidenCarry: (cst.Call,),
    }
    inserts = (actions.SumAfterLoop,)
    EXAMPLES = (
        Example(
            before='''
import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu


def column_sums(x_ref, o_ref, *, block_m, block_n):
    columns = pl.ds(pl.program_id(0) * block_n, block_n)

    def body(t, acc):
        x = x_ref[pl.ds(t * block_m, block_m), columns]
        return acc + x.sum(axis=0)

    acc = lax.fori_loop(0, x_ref.shape[0] // block_m, body, jnp.zeros(block_n))
    o_ref[columns] = acc


def run(x, block_m=16, block_n=16):
    return pl.pallas_call(
        functools.partial(column_sums, block_m=block_m, block_n=block_n),
        grid=(x.shape[1] // block_n,),
        out_shape=jax.ShapeDtypeStruct((x.shape[1],), x.dtype),
        compiler_params=plgpu.CompilerParams(num_warps=8),
    )(x)
''',
            after='''
        return acc + x

    acc = lax.fori_loop(0, x_ref.shape[0] // block_m, body, jnp.zeros((block_m, block_n)))
    acc = acc.sum(axis=0)
''',
        ),
    )

    def rewrite(self, action: actions.Action, node: cst.CSTNode) -> cst.CSTNode:
        if isinstance(action, actions.DropColumnSum):
            assert isinstance(node, cst.Call)
            if isinstance(node.func, cst.Attribute) and not (node.args and node.args[0].keyword is None):
                return node.func.value
            return node.args[0].value
        assert isinstance(action, actions.WidenCarry) and isinstance(node, cst.Call)
        return node.with_changes(args=[node.args[0].with_changes(value=expression(action.shape)), *node.args[1:]])

    def insert(self, action: actions.SumAfterLoop) -> Insertion:
        return Insertion(tuple(f"{n} = {n}.sum(axis=0)" for n in action.names), after=True)
