"""Stores register tiles to GMEM with `_store`.

Why: as for loads; a store must not touch what its mask excludes, and GMEM stores of 16-bit types in
some layouts are refused by newer JAX. `ref[...] = value` becomes a call of `_store`, which also
casts to the ref's dtype as the assignment did. `ref[...] += value` becomes a load, the operation
and a store.

Does not cover: `ref[i] += value` of one element, which every thread would read, change and write.
"""

from __future__ import annotations

import libcst as cst

from ..translator import actions
from .engine import Example, Rule
from .loads import MASKED, access, call, element, part_of, without_unit


class Stores(Rule):
    code = "MG202"
    name = "stores"
    title = "Stores get a register layout and a predicate"
    nodes = {actions.Store: (cst.Call, cst.Assign), actions.Accumulate: (cst.AugAssign,)}
    EXAMPLES = (
        Example(before=MASKED, after='''
    _store(
        o_ref, columns, e / jnp.sum(e, axis=0), mask=inside, layout=layout, vec=vec
    )
'''),
    )

    def rewrite(self, action: actions.Store | actions.Accumulate, node: cst.CSTNode) -> cst.CSTNode:
        if isinstance(action, actions.Accumulate):
            assert isinstance(node, cst.AugAssign)
            ref, index, _ = access(node.target)
            index = without_unit(index, action.unit)
            old = call("_load", node, [ref, index], [], action.layout, action.vec)
            operator = getattr(cst, type(node.operator).__name__.removesuffix("Assign"))()
            value = cst.BinaryOperation(old, operator, _grouped(node.value, operator))
            return cst.Expr(call("_store", node, [ref, index, value], [], action.layout, action.vec), semicolon=node.semicolon)
        if action.statement:
            assert isinstance(node, cst.Assign)
            ref, index, _ = access(node.targets[0].target)
            index = without_unit(index, action.unit)
            value = node.value
            if isinstance(value, cst.Tuple) and not value.lpar:
                value = value.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
            if action.part:
                ref, index = part_of(ref, index, action.part)
            return cst.Expr(call("_store", node, [ref, index, value], [], action.layout, action.vec), semicolon=node.semicolon)
        ref, index, rest = access(node, values=1)
        value, rest = rest[0].value, rest[1:]
        if action.scalar and not action.masked:
            return cst.Assign([cst.AssignTarget(element(ref, index))], value)
        if action.part:
            ref, index = part_of(ref, index, action.part)
        return call("_store", node, [ref, without_unit(index, action.unit), value], rest, action.layout, action.vec)


def _grouped(value: cst.BaseExpression, operator: cst.BaseBinaryOp) -> cst.BaseExpression:
    """``value`` as the right operand, in parentheses unless it binds tighter."""
    tight = isinstance(operator, cst.Add) and isinstance(value, cst.BinaryOperation) and isinstance(
        value.operator, (cst.Multiply, cst.Divide, cst.MatrixMultiply)
    )
    loose = (cst.BinaryOperation, cst.IfExp, cst.Comparison, cst.BooleanOperation, cst.Lambda, cst.Tuple)
    if value.lpar or tight or not isinstance(value, loose):
        return value
    return value.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
