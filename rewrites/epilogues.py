"""Loads and stores beside a matrix product take the part of the tile that a warpgroup holds.

Why: the output tile is shared by warpgroups (and read in chunks on Blackwell), and register arrays
that meet the accumulator must have its layout. The store goes through SMEM and the copy engine,
which drops what lies past the ends of the array.
"""

from __future__ import annotations

import libcst as cst

from ..translator import actions
from .dot_sm90 import MATMUL
from .engine import Example, Rule, expression
from .loads import access


class Epilogues(Rule):
    code = "MG503"
    name = "epilogues"
    title = "Epilogues work on one warpgroup's part of the tile"
    nodes = {
        actions.EpilogueLoad: (cst.Call, cst.Subscript),
        actions.EpilogueStore: (cst.Call, cst.Assign),
        actions.ReplaceExpression: (cst.BaseExpression,),
    }
    EXAMPLES = (
        Example(before=MATMUL, after='''
    part.store(acc.astype(o_ref.dtype), o_ref)
'''),
    )

    def rewrite(self, action: actions.Action, node: cst.CSTNode) -> cst.CSTNode:
        if isinstance(action, actions.ReplaceExpression):
            return expression(action.text)
        if isinstance(action, actions.EpilogueLoad):
            ref, index, _ = access(node)
            method = {None: "load", 0: "load_rows", 1: "load_cols"}[action.axis]
            return cst.Call(expression(f"{action.part}.{method}"), [cst.Arg(_window(ref, index))])
        assert isinstance(action, actions.EpilogueStore)
        if action.statement:
            assert isinstance(node, cst.Assign)
            ref, index, _ = access(node.targets[0].target)
            value = node.value
        else:
            ref, index, rest = access(node, values=1)
            value = rest[0].value
        window = expression(action.window) if action.window else _window(ref, index)
        args = [cst.Arg(value), cst.Arg(window)]
        if sum(len(cst.Module([]).code_for_node(a)) for a in args) > 72:
            wrap = cst.ParenthesizedWhitespace(indent=True, last_line=cst.SimpleWhitespace("    "))
            args[0] = args[0].with_changes(comma=cst.Comma(whitespace_after=wrap))
            close = wrap.with_changes(last_line=cst.SimpleWhitespace(""))
            args[1] = args[1].with_changes(whitespace_after_arg=close)
            call = cst.Call(expression(f"{action.part}.store"), args, whitespace_before_args=wrap)
        else:
            call = cst.Call(expression(f"{action.part}.store"), args)
        return cst.Expr(call) if action.statement else call


def _window(ref: cst.BaseExpression, index: cst.BaseExpression) -> cst.BaseExpression:
    """``ref.at[index]``, or ``ref`` for all of it."""
    if isinstance(index, cst.Ellipsis):
        return ref
    at = cst.Attribute(ref, cst.Name("at"))
    parts = [e.value for e in index.elements] if isinstance(index, cst.Tuple) else [index]
    return cst.Subscript(at, [cst.SubscriptElement(cst.Index(p)) for p in parts])
