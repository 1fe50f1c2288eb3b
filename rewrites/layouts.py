"""Defines the register layouts and the vector width of a kernel.

Why: at Warpgroup semantics every register array has a layout. One blocked layout per tile shape,
anchored at loads and stores, lets inference find the rest; arrays that run along one axis of a tile
take the tile's layout reduced to that axis.

`_blocked` needs power-of-two extents, as Triton does. `_vec` is computed when the kernel is traced:
16 bytes, or less where a row length, a tile start or a mask bound is not a multiple of that.

A helper function of the file that loads or stores gets them as keyword-only parameters.
"""

from __future__ import annotations

import libcst as cst

from ..translator import actions
from .engine import Example, Insertion, Rule
from .loads import MASKED, named
from .parameters import with_parameters


class Layouts(Rule):
    code = "MG203"
    name = "layouts"
    title = "Register layouts and vector widths are named at the head of the kernel"
    nodes = {actions.LayoutParameters: (cst.FunctionDef,), actions.PassLayouts: (cst.Call,)}
    inserts = (actions.DefineLayouts,)
    EXAMPLES = (
        Example(before=MASKED, after='''
    vec = _vec((x_ref, o_ref), width, x_ref.shape[0])
    layout = _blocked((width,), vec)
'''),
    )

    def insert(self, action: actions.DefineLayouts) -> Insertion:
        return Insertion(action.lines)

    def rewrite(self, action: actions.Action, node: cst.CSTNode) -> cst.CSTNode:
        if isinstance(action, actions.LayoutParameters):
            assert isinstance(node, cst.FunctionDef)
            return with_parameters(node, action.names)
        assert isinstance(action, actions.PassLayouts) and isinstance(node, cst.Call)
        args = list(node.args)
        comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
        new = [named(parameter, name).with_changes(comma=comma) for parameter, name in action.arguments]
        if args:
            last = args[-1]
            new[-1] = new[-1].with_changes(comma=last.comma, whitespace_after_arg=last.whitespace_after_arg)
            args[-1] = last.with_changes(comma=comma, whitespace_after_arg=cst.SimpleWhitespace(""))
        else:
            new[-1] = new[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
        return node.with_changes(args=[*args, *new])
