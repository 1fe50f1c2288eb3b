"""Removes local names that only the old call used, and helpers whose calls became products.

Why: after the port a BlockSpec or Triton compiler parameters held in a variable have no reader
left, and would keep an import of the deprecated module alive.

Only plain assignments to one name are removed, with what is appended to a list of specs, and only
if every use of the name was inside the rewritten calls. A function of the kernel that only multiplies
its two arguments goes with its comments, since each call of it became the product itself.
"""

from __future__ import annotations

import libcst as cst

from ..translator import actions
from .engine import Example, Rule
from .block_views import BlockViews


class RemoveUnused(Rule):
    code = "MG105"
    name = "remove-unused"
    title = "Specs and parameters that nothing uses any more are removed"
    nodes = {actions.RemoveStatement: (cst.SimpleStatementLine,), actions.RemoveFunction: (cst.FunctionDef,)}
    removes = (actions.RemoveFunction,)
    EXAMPLES = (
        Example(before=BlockViews.EXAMPLES[0].before, after='''
def run(x, s):

    def scale_rows_blocks(x_ref, s_ref, o_ref):
'''),
    )

    def rewrite(self, action: actions.Action, node: cst.CSTNode):
        if isinstance(action, actions.RemoveFunction):
            return cst.RemovalSentinel.REMOVE
        assert isinstance(node, cst.SimpleStatementLine)
        kept = [s for s in node.body if not isinstance(s, (cst.Assign, cst.Expr))] if len(node.body) != 1 else []
        return node.with_changes(body=kept) if kept else cst.RemovalSentinel.REMOVE
