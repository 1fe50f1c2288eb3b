"""Asks for the position in the grid with `lax.axis_index` instead of `pl.program_id`.

Why: `pl.program_id` does not work in `plgpu.kernel`; its grid axes have names. `pl.num_programs`
becomes `lax.axis_size`.

Axes are named i, j, k, l in the order of the grid.
"""

from __future__ import annotations

import libcst as cst

from ..translator import actions
from .engine import Example, Rule, expression
from .launch import Launch


class GridAxes(Rule):
    code = "MG102"
    name = "grid-axes"
    title = "pl.program_id becomes lax.axis_index"
    nodes = {actions.GridAxis: (cst.Call,)}
    EXAMPLES = (
        Example(before=Launch.EXAMPLES[0].before, after='''
    i = lax.axis_index("i")
'''),
    )

    def rewrite(self, action: actions.GridAxis, node: cst.Call) -> cst.BaseExpression:
        function = "axis_size" if action.size else "axis_index"
        axis = node.args[0].with_changes(
            value=cst.SimpleString(f'"{action.axis}"'), keyword=None, equal=cst.MaybeSentinel.DEFAULT
        )
        return node.with_changes(func=expression(f'{self.modules.name("jax.lax")}.{function}'), args=[axis])
