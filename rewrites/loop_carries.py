"""Makes the state of a mutable `for_loop` a carry that its body returns.

Why: the `for_loop` of early Pallas kernels ran a body that wrote its state through refs. It is gone
from JAX; a register array that lives over a loop is a carry of `lax.fori_loop`.

The parts of the state become plain arrays: `acc_ref[:] += x` is `acc += x`, and the body returns
them. The `_ref` of their names goes where the name without it is free.

Does not cover: state that is indexed, passed on, or used in a nested function; `reverse=True`.
"""

from __future__ import annotations

import libcst as cst

from ..translator import actions
from .engine import Example, Insertion, Rule, expression

_BEFORE = '''
import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax._src.lax.control_flow.for_loop import for_loop


def row_sums(x_ref, o_ref, *, block):
    def add(i, total_ref):
        columns = i * block + jnp.arange(block)
        total_ref[:] += pl.load(x_ref, (columns,), mask=columns < x_ref.shape[0], other=0.0)

    total = for_loop(pl.cdiv(x_ref.shape[0], block), add, jnp.zeros(block))
    o_ref[...] = total.sum()


def run(x):
    kernel = lambda *refs: row_sums(*refs, block=1024)
    call = pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((), x.dtype),
        compiler_params=dict(triton=dict(num_warps=4)),
    )
    return jax.vmap(call)(x)
'''


class LoopCarries(Rule):
    code = "MG106"
    name = "loop-carries"
    title = "State of a mutable loop becomes its carry"
    nodes = {
        actions.LoopOverCarry: (cst.Call,),
        actions.CarryName: (cst.Name, cst.Subscript),
    }
    inserts = (actions.ReturnCarry,)
    EXAMPLES = (
        Example(before=_BEFORE, after='''
    def add(i, total):
        columns = i * block + jnp.arange(block)
        total += _load(
            x_ref, (columns,), mask=columns < x_ref.shape[0], other=0.0, layout=layout,
            vec=vec
        )
        return total

    total = lax.fori_loop(0, pl.cdiv(x_ref.shape[0], block), add, jnp.zeros(block))
'''),
    )

    def rewrite(self, action: actions.Action, node: cst.CSTNode) -> cst.CSTNode:
        if isinstance(action, actions.CarryName):
            return cst.Name(action.name)
        assert isinstance(action, actions.LoopOverCarry) and isinstance(node, cst.Call)
        function = expression(f'{self.modules.name("jax.lax")}.fori_loop')
        args = [a for a in node.args if a.keyword is None or a.keyword.value != "jit"]
        if not action.state:
            args = [a.with_changes(value=cst.Name("None")) if _is_state(a, i) else a for i, a in enumerate(args)]
        named = {"nsteps": "upper", "body": "body_fun", "init_state": "init_val"}
        args = [
            a.with_changes(keyword=cst.Name(named.get(a.keyword.value, a.keyword.value))) if a.keyword is not None else a
            for a in args
        ]
        comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
        zero = cst.Arg(cst.Integer("0"), comma=comma)
        if args[0].keyword is not None:
            zero = args[0].with_changes(keyword=cst.Name("lower"), value=cst.Integer("0"), comma=comma)
        return node.with_changes(func=function, args=[zero, *args])

    def insert(self, action: actions.ReturnCarry) -> Insertion:
        return Insertion((f"return {action.returned}",), after=True)


def _is_state(arg: cst.Arg, position: int) -> bool:
    return position == 2 if arg.keyword is None else arg.keyword.value == "init_state"
