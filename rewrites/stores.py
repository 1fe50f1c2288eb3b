"""Stores register tiles to GMEM with `_store`.

Why: as for loads; a store must not touch what its mask excludes, and GMEM stores of 16-bit types in
some layouts are refused by newer JAX. `ref[...] = value` becomes a call of `_store`, which also
casts to the ref's dtype as the assignment did.

Does not cover: `ref[...] += value`; write the load and the store out.
"""

from __future__ import annotations

import libcst as cst

from ..translator import actions
from .engine import Example, Rule
from .loads import MASKED, access, call, element, without_unit


class Stores(Rule):
    code = "MG202"
    name = "stores"
    title = "Stores get a register layout and a predicate"
    nodes = {actions.Store: (cst.Call, cst.Assign)}
    EXAMPLES = (
        Example(before=MASKED, after='''
    _store(
        o_ref, columns, e / jnp.sum(e, axis=0), mask=inside, layout=layout, vec=vec
    )
'''),
    )

    def rewrite(self, action: actions.Store, node: cst.CSTNode) -> cst.CSTNode:
        if action.statement:
            assert isinstance(node, cst.Assign)
            ref, index, _ = access(node.targets[0].target)
            index = without_unit(index, action.unit)
            value = node.value
            if isinstance(value, cst.Tuple) and not value.lpar:
                value = value.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
            return cst.Expr(call("_store", node, [ref, index, value], [], action.layout, action.vec), semicolon=node.semicolon)
        ref, index, rest = access(node, values=1)
        value, rest = rest[0].value, rest[1:]
        if action.scalar and not action.masked:
            return cst.Assign([cst.AssignTarget(element(ref, index))], value)
        return call("_store", node, [ref, without_unit(index, action.unit), value], rest, action.layout, action.vec)
