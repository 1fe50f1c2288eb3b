"""Launches the kernel with `plgpu.kernel` instead of `pl.pallas_call`.

Why: the Triton backend of `pallas_call` is deprecated, and `pl.pallas_call` for Mosaic GPU kernels
is deprecated in favour of `plgpu.kernel`.

`out_shape` becomes `out_type`, `name` becomes `kernel_name`, the grid gets axis names, and
`interpret` and `debug` stay. A kernel with matrix products is launched by a function of its own (MG501,
MG502), which takes the call's place. Triton's compiler parameters go: the number of warps is one warpgroup
per program for kernels without matrix products, else planned from the tile.

Does not cover: dynamic grids, scalar prefetch, `grid_spec`; such calls stay on Triton.
"""

from __future__ import annotations

import ast

import libcst as cst

from ..translator import actions
from ..translator.names import MOSAIC
from .engine import Example, Rule, expression

_DROPPED = {
    "compiler_params", "in_specs", "out_specs", "cost_estimate", "backend", "input_output_aliases", "grid", "grid_spec",
    "name",
    "num_warps", "num_stages", "metadata",
}


class Launch(Rule):
    code = "MG101"
    name = "launch"
    title = "pl.pallas_call becomes plgpu.kernel"
    nodes = {actions.Launch: (cst.Call,), actions.CallLaunch: (cst.Call,)}
    EXAMPLES = (
        Example(
            before='''
import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu


def double(x_ref, o_ref):
    i = pl.program_id(0)
    o_ref[pl.ds(i * 256, 256)] = 2 * x_ref[pl.ds(i * 256, 256)]


def run(x):
    return pl.pallas_call(
        double,
        grid=(x.shape[0] // 256,),
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        compiler_params=plgpu.CompilerParams(num_warps=4),
        name="double",
    )(x)
''',
            after='''
    return plgpu.kernel(
        double,
        grid=(x.shape[0] // 256,),
        grid_names=("i",),
        out_type=jax.ShapeDtypeStruct(x.shape, x.dtype),
        kernel_name="double",
    )(x)
''',
        ),
    )

    def rewrite(self, action: actions.Action, node: cst.Call) -> cst.BaseExpression:
        if isinstance(action, actions.CallLaunch):
            return expression(action.name)
        assert isinstance(action, actions.Launch)
        function = expression(f"{self.modules.name(MOSAIC)}.kernel")
        args = list(node.args)
        partial = bool(args) and args[0].keyword is None and _ends_with(args[0].value, "pallas_call")
        head = [args.pop(0).with_changes(value=function)] if partial else []
        new: list[cst.Arg] = []
        positional = 0
        extra = dict(action.extra)
        for arg in args:
            keyword = arg.keyword.value if arg.keyword is not None else ("kernel", "out_shape")[positional]
            positional += arg.keyword is None
            if keyword in ("kernel", "f"):
                value = expression(action.body) if action.body else arg.value
                new.append(arg.with_changes(value=value, keyword=None, equal=cst.MaybeSentinel.DEFAULT))
            elif keyword == "out_shape":
                new.append(_keyword(arg, "out_type", _tuple(arg.value) if action.listed else arg.value))
            elif keyword in ("grid", "grid_spec") and action.grid:
                new += _grid(action, arg)
            elif keyword == "compiler_params" and "compiler_params" in extra:
                new.append(_keyword(arg, keyword, expression(extra.pop(keyword))))
            elif keyword == "name":
                new.append(_keyword(arg, "kernel_name", arg.value))
                extra.pop("kernel_name", None)
            elif keyword not in _DROPPED:
                new.append(arg)
        for name, text in extra.items():
            new.append(_keyword(args[-1], name, expression(text)))
        return node.with_changes(func=node.func if partial else function, args=_close(head + new, node))


def _grid(action: actions.Launch, arg: cst.Arg) -> list[cst.Arg]:
    """The arguments that take the place of ``grid=`` or ``grid_spec=``."""
    same = arg.keyword is not None and arg.keyword.value == "grid" and _same(arg.value, action.grid)
    order = action.order or tuple(range(len(action.grid_names)))
    grid = arg.value if same else expression(action.grid)
    grid = _ordered(grid, order) if action.order else grid
    names = expression(repr(tuple(action.grid_names[i] for i in order)).replace("'", '"'))
    if action.may_be_long:
        call = cst.Call(cst.Name("_grid"), [cst.Arg(grid), cst.Arg(names)])
        return [arg.with_changes(keyword=None, equal=cst.MaybeSentinel.DEFAULT, value=call, star="**")]
    if not same or action.order:
        arg = _keyword(arg, "grid", grid)
    return [arg, _keyword(arg, "grid_names", names)]


def _tuple(value: cst.BaseExpression) -> cst.BaseExpression:
    """A list, or an expression for one, as a tuple."""
    if not isinstance(value, cst.List):
        return expression("tuple(x)").with_changes(args=[cst.Arg(value)])
    left, right = value.lbracket.whitespace_after, value.rbracket.whitespace_before
    elements = list(value.elements)
    if len(elements) == 1 and not isinstance(elements[0].comma, cst.Comma):
        elements[0] = elements[0].with_changes(comma=cst.Comma())
    return cst.Tuple(elements, lpar=[cst.LeftParen(whitespace_after=left)], rpar=[cst.RightParen(whitespace_before=right)])


def _same(node: cst.BaseExpression, text: str) -> bool:
    """Whether an expression is that text but for its layout."""
    own = cst.Module([]).code_for_node(node)
    return ast.dump(ast.parse(f"({own})", mode="eval")) == ast.dump(ast.parse(text, mode="eval"))


def _ordered(grid: cst.BaseExpression, order: tuple[int, ...]) -> cst.BaseExpression:
    """The grid with its axes in another order."""
    if order == tuple(range(len(order))):
        return grid
    if isinstance(grid, cst.Tuple):
        values = [grid.elements[i].value for i in order]
        return grid.with_changes(elements=[e.with_changes(value=v) for e, v in zip(grid.elements, values)])
    text = cst.Module([]).code_for_node(grid)
    if order == tuple(reversed(range(len(order)))):
        return expression(f"{text}[::-1]")
    return expression(f"({', '.join(f'{text}[{i}]' for i in order)})")


def _keyword(like: cst.Arg, name: str, value: cst.BaseExpression) -> cst.Arg:
    equal = like.equal if like.keyword is not None else cst.AssignEqual(
        cst.SimpleWhitespace(""), cst.SimpleWhitespace("")
    )
    return like.with_changes(keyword=cst.Name(name), equal=equal, value=value, star="")


def _close(args: list[cst.Arg], node: cst.Call) -> list[cst.Arg]:
    """The arguments with the original call's separators: the last one ends as the last one did."""
    between = next((a.comma for a in node.args[:-1]), cst.Comma(whitespace_after=cst.SimpleWhitespace(" ")))
    last = node.args[-1]
    result = [a if isinstance(a.comma, cst.Comma) and a.comma is not last.comma else a.with_changes(comma=between)
              for a in args[:-1]]
    result.append(args[-1].with_changes(comma=last.comma, whitespace_after_arg=last.whitespace_after_arg))
    return result


def _ends_with(node: cst.BaseExpression, name: str) -> bool:
    return (node.attr.value if isinstance(node, cst.Attribute) else getattr(node, "value", "")) == name
