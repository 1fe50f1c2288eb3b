"""Defines the register layouts and the vector width of a kernel.

Why: at Warpgroup semantics every register array has a layout. One blocked layout per tile shape,
anchored at loads and stores, lets inference find the rest; arrays that run along one axis of a tile
take the tile's layout reduced to that axis.

`_blocked` needs power-of-two extents, as Triton does. `_vec` is computed when the kernel is traced:
16 bytes, or less where a row length, a tile start or a mask bound is not a multiple of that.
"""

from __future__ import annotations

from ..translator import actions
from .engine import Example, Insertion, Rule
from .loads import MASKED


class Layouts(Rule):
    code = "MG203"
    name = "layouts"
    title = "Register layouts and vector widths are named at the head of the kernel"
    inserts = (actions.DefineLayouts,)
    EXAMPLES = (
        Example(before=MASKED, after='''
    vec = _vec((x_ref, o_ref), width, x_ref.shape[0])
    layout = _blocked((width,), vec)
'''),
    )

    def insert(self, action: actions.DefineLayouts) -> Insertion:
        return Insertion(action.lines)
