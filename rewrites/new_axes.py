"""Keeps arrays with a dimension of extent 1 at rank 1 until they meet a full tile.

Why: at Warpgroup semantics nothing can be computed on an (M, 1) or (1, N) array, and a reduction
with `keepdims=True` never lowers. The port reduces without `keepdims`, leaves `[:, None]` out where
arithmetic on the thin array follows, and adds it where the array is broadcast against a tile. Where the
two may have different dtypes that is `lax.broadcast_in_dim(x, tile.shape, [axis])`: the conversion to the
common dtype then is one of whole tiles, since nothing converts an (M, 1) array.
`jnp.expand_dims`, and `x[:, 0]` or `squeeze` of a thin array, are treated alike. One index vector that
numbers both rows and columns is computed twice, since an array has one layout.

Blocks of extent 1 along one axis, `(M, 1)` beside tiles, are loaded and stored at rank 1 as well (MG201, MG202).

Reduced once more with `keepdims=True`, a thin array becomes a number.

Does not cover: thin arrays that are stored by index vectors or reshaped, numbers made so that are stored.
"""

from __future__ import annotations

import libcst as cst

from ..translator import actions
from .engine import Example, Rule, expression


class NewAxes(Rule):
    code = "MG301"
    name = "new-axes"
    title = "keepdims and new axes move to where an array meets a tile"
    nodes = {
        actions.DropKeepdims: (cst.Call,),
        actions.AxisOfThin: (cst.BaseExpression,),
        actions.ThinShape: (cst.Tuple, cst.List),
        actions.DropNewAxis: (cst.Subscript, cst.Call),
        actions.RepeatIndices: (cst.Name,),
        actions.AddNewAxis: (cst.BaseExpression,),
        actions.BroadcastTo: (cst.BaseExpression,),
    }
    EXAMPLES = (
        Example(
            before='''
import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu


def normalise(x_ref, o_ref):
    x = x_ref[...]
    scale = lax.rsqrt(jnp.mean(x * x, axis=1, keepdims=True) + 1e-6)
    o_ref[...] = x * scale


def run(x):
    tile = pl.BlockSpec((16, 256), lambda i: (i, 0))
    return pl.pallas_call(
        normalise, grid=(x.shape[0] // 16,), in_specs=[tile], out_specs=tile,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        compiler_params=plgpu.CompilerParams(num_warps=4),
    )(x)
''',
            after='''
    scale = lax.rsqrt(jnp.mean(x * x, axis=1) + 1e-6)
    _store(o_ref, ..., x * scale[:, None], layout=layout, vec=vec)
''',
        ),
    )

    def rewrite(self, action: actions.Action, node: cst.CSTNode) -> cst.CSTNode:
        if isinstance(action, actions.DropNewAxis):
            if isinstance(node, cst.Call):
                kept = node.func.value if action.method else node.args[0].value  # type: ignore[attr-defined]
                return kept.with_changes(lpar=(*node.lpar, *kept.lpar), rpar=(*kept.rpar, *node.rpar))
            assert isinstance(node, cst.Subscript)
            return node.value.with_changes(lpar=(*node.lpar, *node.value.lpar), rpar=(*node.value.rpar, *node.rpar))
        if isinstance(action, actions.ThinShape):
            return expression(action.text)
        if isinstance(action, actions.AxisOfThin):
            return cst.Integer("0")
        if isinstance(action, actions.RepeatIndices):
            again = expression(action.text)
            plain = isinstance(again, (cst.Name, cst.Call))
            return again if plain else again.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
        if isinstance(action, actions.DropKeepdims):
            assert isinstance(node, cst.Call)
            kept = [a for a in node.args if a.keyword is None or a.keyword.value != "keepdims"]
            if kept and kept[-1] is not node.args[-1]:
                last = node.args[-1]
                kept[-1] = kept[-1].with_changes(comma=last.comma, whitespace_after_arg=last.whitespace_after_arg)
            return node.with_changes(args=kept)
        if isinstance(action, actions.BroadcastTo):
            call = expression(f"{action.function}(x, {action.shape}, [{action.axis}])")
            assert isinstance(call, cst.Call)
            return call.with_changes(args=[call.args[0].with_changes(value=_at_rank_1(node)), *call.args[1:]])
        assert isinstance(action, actions.AddNewAxis)
        text = "x[:, None]" if action.axis == 0 else "x[None, :]"
        base = node
        if isinstance(node, (cst.BinaryOperation, cst.UnaryOperation, cst.Comparison, cst.IfExp, cst.BooleanOperation)) and not node.lpar:
            base = node.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
        return expression(text).with_changes(value=base)


def _at_rank_1(node: cst.CSTNode) -> cst.BaseExpression:
    """An array without the new axis that the source gives it."""
    assert isinstance(node, cst.BaseExpression)
    match node:
        case cst.Subscript(slice=parts) if any(isinstance(p.slice, cst.Index) and _is_none(p.slice.value) for p in parts):
            return node.value
        case cst.Call(args=args) if isinstance(node.func, cst.Attribute) and node.func.attr.value == "expand_dims":
            return args[0].value
    return node


def _is_none(node: cst.BaseExpression) -> bool:
    return isinstance(node, cst.Name) and node.value == "None"
