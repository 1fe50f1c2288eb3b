"""Loads tiles from GMEM into an anchored register layout.

Why: a plain `ref[...]` gets a layout from which reductions and broadcasts cannot be inferred, and
Mosaic GPU has no masked load. `_load` (support code) takes the source's index, mask and fill value
and issues one predicated access per register, as Triton does, so that tails, rows that are not
aligned and index vectors cost no padding.

`vec` appears where the plan proved that neighbours in the tile are neighbours in memory and that no
tile start, row or mask bound cuts a vector; elsewhere elements are loaded one by one. Loads of one
element become plain subscripts; with a mask they stay calls, of `_load` without a layout.

Does not cover: loads from views of views, and index vectors behind slices, which Triton refuses too.
"""

from __future__ import annotations

import libcst as cst

from ..translator import actions
from .engine import Example, Rule, expression

MASKED = '''
import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu


def softmax_row(x_ref, o_ref, *, width):
    columns = jnp.arange(width)
    inside = columns < x_ref.shape[0]
    row = plgpu.load(x_ref.at[columns], mask=inside, other=-jnp.inf)
    e = jnp.exp(row - jnp.max(row, axis=0))
    plgpu.store(o_ref.at[columns], e / jnp.sum(e, axis=0), mask=inside)


def softmax(x):
    kernel = functools.partial(softmax_row, width=pl.next_power_of_2(x.shape[1]))
    f = pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((x.shape[1],), x.dtype),
        compiler_params=plgpu.CompilerParams(num_warps=4),
    )
    return jax.vmap(f)(x)
'''


_LINE = 76  # columns that a call may take before its arguments are put on lines of their own


class Loads(Rule):
    code = "MG201"
    name = "loads"
    title = "Loads get a register layout and a predicate"
    nodes = {actions.Load: (cst.Call, cst.Subscript)}
    EXAMPLES = (
        Example(before=MASKED, after='''
    row = _load(x_ref, columns, mask=inside, other=-jnp.inf, layout=layout, vec=vec)
'''),
    )

    def rewrite(self, action: actions.Load, node: cst.CSTNode) -> cst.BaseExpression:
        ref, index, rest = access(node)
        if action.scalar and not action.masked:
            return element(ref, index).with_changes(lpar=getattr(node, "lpar", ()), rpar=getattr(node, "rpar", ()))
        index = without_unit(index, action.unit)
        rest = [a for a in rest if a.keyword is None or a.keyword.value not in ("cache_modifier", "volatile")]
        if action.part:
            ref, index = part_of(ref, index, action.part)
        return call("_load", node, [ref, index], rest, action.layout, action.vec)


def access(node: cst.CSTNode, values: int = 0) -> tuple[cst.BaseExpression, cst.BaseExpression, list[cst.Arg]]:
    """(ref, index, other arguments) of ``load(ref.at[index], ...)``, ``load(ref, index, ...)`` or ``ref[index]``.

    values: how many positional arguments a call takes after the index.
    """
    rest: list[cst.Arg] = []
    if isinstance(node, cst.Call):
        rest = list(node.args[1:])
        node = node.args[0].value
        if (apart := _index_apart(rest, values)) is not None:  # until JAX 0.8
            rest.remove(apart)
            return node, apart.value, rest
        if not isinstance(node, cst.Subscript):
            return node, expression("..."), rest  # type: ignore[return-value]
    assert isinstance(node, cst.Subscript)
    ref = node.value
    if isinstance(ref, cst.Attribute) and ref.attr.value == "at":
        ref = ref.value
    return ref, _index(node), rest


def without_unit(index: cst.BaseExpression, unit: int | None) -> cst.BaseExpression:
    """``index`` with a number for dimension ``unit``: the start of its ``pl.ds``, or 0."""
    if unit is None:
        return index
    parts = [e.value for e in index.elements] if isinstance(index, cst.Tuple) else [index]
    parts = [p for p in parts if not isinstance(p, cst.Ellipsis)]
    parts += [expression("slice(None)")] * (unit + 1 - len(parts))
    part = parts[unit]
    whole = not isinstance(part, cst.Call) or isinstance(part.func, cst.Name) and part.func.value == "slice"
    parts[unit] = cst.Integer("0") if whole else part.args[0].value  # type: ignore[union-attr]
    return cst.Tuple([cst.Element(p) for p in parts])


def _index_apart(rest: list[cst.Arg], values: int) -> cst.Arg | None:
    """The argument that is the index, where the index is an argument of its own."""
    positional = [a for a in rest if a.keyword is None]
    named = (a for a in rest if a.keyword is not None and a.keyword.value == "idx")
    return positional[0] if len(positional) > values else next(named, None)


def element(ref: cst.BaseExpression, index: cst.BaseExpression) -> cst.Subscript:
    """``ref[index]``, without parentheses around several indices."""
    elements = index.elements if isinstance(index, cst.Tuple) else ()
    if not elements or any(isinstance(e, cst.StarredElement) for e in elements):
        return cst.Subscript(ref, [cst.SubscriptElement(cst.Index(index))])
    parts = [cst.SubscriptElement(cst.Index(e.value)) for e in elements]
    if len(parts) == 1:
        parts = [parts[0].with_changes(comma=cst.MaybeSentinel.DEFAULT)]
    return cst.Subscript(ref, parts)


def part_of(ref: cst.BaseExpression, index: cst.BaseExpression, part: str) -> tuple[cst.BaseExpression, cst.BaseExpression]:
    """(ref, index) of a warpgroup's part of ``ref[index]``."""
    if not isinstance(index, cst.Ellipsis):
        parts = [e.value for e in index.elements] if isinstance(index, cst.Tuple) else [index]
        at = cst.Attribute(ref, cst.Name("at"))
        ref = cst.Subscript(at, [cst.SubscriptElement(_in_brackets(p)) for p in parts])
        if len(parts) > 1:
            ref = ref.with_changes(slice=[
                e.with_changes(comma=cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))) if i + 1 < len(parts) else e
                for i, e in enumerate(ref.slice)
            ])
    return ref, expression(f"({part})" if "," in part else part)


def _in_brackets(part: cst.BaseExpression) -> cst.BaseSlice:
    """``slice(None)`` as ``:``, and other indices as they are."""
    if cst.Module([]).code_for_node(part) == "slice(None)":
        return cst.Slice(None, None)
    return cst.Index(part)


def _index(node: cst.Subscript) -> cst.BaseExpression:
    parts = [_one_index(e.slice) for e in node.slice]
    if len(parts) == 1 and not isinstance(node.slice[0].comma, cst.Comma):
        return parts[0]
    return cst.Tuple([cst.Element(p) for p in parts])


def _one_index(part: cst.BaseSlice) -> cst.BaseExpression:
    if isinstance(part, cst.Index):
        return part.value
    assert isinstance(part, cst.Slice)
    none = cst.Name("None")
    if part.lower is None and part.upper is None:
        return expression("slice(None)")
    bounds = [part.lower or none, part.upper or none, *([part.step] if part.step else [])]
    return cst.Call(cst.Name("slice"), [cst.Arg(b) for b in bounds])


def call(
    name: str, node: cst.CSTNode, first: list[cst.BaseExpression], rest: list[cst.Arg], layout: str, vec: str
) -> cst.Call:
    """``name(first..., rest..., layout=..., vec=...)``, laid out over lines as ``node`` was."""
    like = list(node.args) if isinstance(node, cst.Call) else []
    if "#" not in cst.Module([]).code_for_node(node):
        return _filled(name, node, first, rest, layout, vec)
    named = _layout_arguments(layout, vec)
    args = [cst.Arg(e) for e in first] + rest + named
    space = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    breaks = [a.comma for a in like[:-1] if isinstance(a.comma, cst.Comma)]
    wrapped = next((c for c in breaks if isinstance(c.whitespace_after, cst.ParenthesizedWhitespace)), None)
    out = []
    for a in args[:-1]:
        comma = a.comma if isinstance(a.comma, cst.Comma) and a in rest and a is not like[-1] else space
        if wrapped is not None and a is args[len(first) - 1]:
            comma = wrapped
        out.append(a.with_changes(comma=comma, whitespace_after_arg=cst.SimpleWhitespace("")))
    last = args[-1]
    if like:
        last = last.with_changes(comma=like[-1].comma, whitespace_after_arg=like[-1].whitespace_after_arg)
    result = cst.Call(cst.Name(name), [*out, last], lpar=getattr(node, "lpar", ()), rpar=getattr(node, "rpar", ()))
    if isinstance(node, cst.Call):
        result = result.with_changes(whitespace_before_args=node.whitespace_before_args)
    return result


def _filled(
    name: str, node: cst.CSTNode, first: list[cst.BaseExpression], rest: list[cst.Arg], layout: str, vec: str
) -> cst.Call:
    """The call on one line, or its arguments filled into lines where it is long."""
    args = [cst.Arg(e) for e in first] + rest
    args += _layout_arguments(layout, vec)
    plain = cst.SimpleWhitespace("")
    space = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    args = [a.with_changes(comma=space, whitespace_after_arg=plain) for a in args]
    args[-1] = args[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
    parens = {"lpar": getattr(node, "lpar", ()), "rpar": getattr(node, "rpar", ())}
    code = cst.Module([]).code_for_node
    sizes = [len(code(a)) for a in args]
    if sum(sizes) + len(name) <= _LINE:
        return cst.Call(cst.Name(name), args, **parens)
    wrap = cst.ParenthesizedWhitespace(cst.TrailingWhitespace(), indent=True, last_line=cst.SimpleWhitespace("    "))
    width = 0
    for i, (arg, size, following) in enumerate(zip(args, sizes, sizes[1:])):
        width += size
        if width + following > _LINE:
            args[i] = arg.with_changes(comma=space.with_changes(whitespace_after=wrap))
            width = 0
    close = wrap.with_changes(last_line=plain)
    args[-1] = args[-1].with_changes(whitespace_after_arg=close)
    return cst.Call(cst.Name(name), args, whitespace_before_args=wrap, **parens)


def _layout_arguments(layout: str, vec: str) -> list[cst.Arg]:
    return [named(k, v) for k, v in (("layout", layout), ("vec", vec)) if v]


def named(keyword: str, value: str) -> cst.Arg:
    none = cst.SimpleWhitespace("")
    return cst.Arg(expression(value), keyword=cst.Name(keyword), equal=cst.AssignEqual(none, none))
