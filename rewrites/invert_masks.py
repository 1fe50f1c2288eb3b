"""Inverts masks with `^ True`.

Why: `~` on a boolean array has no Mosaic GPU rule. Where the dtype is not visible in the source, as of an
array that comes from memory, `_invert(mask)` decides when the port is traced.
"""

from __future__ import annotations

import libcst as cst

from ..translator import actions
from .engine import Example, Rule, expression
from .loads import MASKED


class InvertMasks(Rule):
    code = "MG304"
    name = "invert-masks"
    title = "~mask becomes mask ^ True"
    nodes = {actions.InvertMask: (cst.UnaryOperation,)}
    EXAMPLES = (
        Example(
            before=MASKED.replace("    e = jnp.exp", "    row = jnp.where(~inside, -jnp.inf, row)\n    e = jnp.exp"),
            after='''
    row = jnp.where((inside ^ True), -jnp.inf, row)
''',
        ),
    )

    def rewrite(self, action: actions.InvertMask, node: cst.UnaryOperation) -> cst.BaseExpression:
        assert isinstance(action, actions.InvertMask)
        if not action.known:
            return cst.Call(cst.Name("_invert"), [cst.Arg(node.expression)])
        xor = expression("(x ^ True)")
        assert isinstance(xor, cst.BinaryOperation)
        return xor.with_changes(left=node.expression)
