"""Runs the steps of a loop in which a causal mask holds everywhere without the mask.

Why: most blocks of a causal kernel lie wholly below the diagonal; computing and applying their mask
takes as many instructions as the softmax. The loop's function gets a flag `whole`, the comparison
becomes `(...) | whole`, and `_split_loop` sets it where that is right.

Does not cover: comparisons in helper functions, of more than one diagonal on each side, of index
vectors whose starts are not known; loops that the source has split already.
"""

from __future__ import annotations

import libcst as cst

from ..translator import actions
from .engine import Example, Rule, expression
from .staged import ATTENTION

CAUSAL = ATTENTION.replace('''        m_new =''', '''        rows = pl.program_id(0) * bq + jnp.arange(bq)
        s = jnp.where(rows[:, None] >= (t * bk + jnp.arange(bk))[None, :], s, -1e30)
        m_new =''')


class WholeSteps(Rule):
    code = "MG505"
    name = "whole-steps"
    title = "Steps without a mask run apart"
    nodes = {
        actions.SplitLoop: (cst.Call,),
        actions.WholeParameter: (cst.FunctionDef,),
        actions.WholeMask: (cst.Comparison,),
    }
    EXAMPLES = (
        Example(before=CAUSAL, after='''
    acc, m, l = _split_loop(
'''),
    )

    def rewrite(self, action: actions.Action, node: cst.CSTNode) -> cst.CSTNode:
        none = cst.SimpleWhitespace("")
        equal = cst.AssignEqual(none, none)
        if isinstance(action, actions.SplitLoop):
            assert isinstance(node, cst.Call)
            added = [cst.Arg(cst.Name(bound), keyword=cst.Name(name), equal=equal) for name, bound in action.bounds]
            last = node.args[-1]  # what ends the list of arguments now ends it after the new ones
            comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
            args = [*node.args[:-1], last.with_changes(whitespace_after_arg=none), *added]
            args = [a if a in node.args[:-1] else a.with_changes(comma=comma) for a in args]
            args[-1] = args[-1].with_changes(comma=last.comma, whitespace_after_arg=last.whitespace_after_arg)
            return node.with_changes(func=cst.Name("_split_loop"), args=args)
        if isinstance(action, actions.WholeParameter):
            assert isinstance(node, cst.FunctionDef)
            flag = cst.Param(cst.Name(action.name), default=cst.Name("False"), equal=equal)
            return node.with_changes(params=node.params.with_changes(params=[*node.params.params, flag]))
        assert isinstance(action, actions.WholeMask) and isinstance(node, cst.Comparison)
        choice = expression(f"({action.ones} if {action.flag} else mask)" if node.lpar else f"{action.ones} if {action.flag} else mask")
        assert isinstance(choice, cst.IfExp)
        return choice.with_changes(orelse=node.with_changes(lpar=(), rpar=()))
