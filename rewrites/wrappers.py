"""Leaves out wrappers that mean nothing in a kernel.

Why: `lax.stop_gradient(x)`, `jax.checkpoint(f)` and `max_contiguous(x, n)` have no Mosaic GPU rule.
The first two concern derivatives, which nobody takes of a kernel's body; the third is a hint that
ports replace by proven vector widths. Each becomes its first argument. A function of the file that
is decorated with `jax.checkpoint` or `jax.custom_jvp` is called without its wrapper:
`f.__wrapped__(x)`.
"""

from __future__ import annotations

import libcst as cst

from ..translator import actions
from .engine import Example, Rule

_KERNEL = '''
import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu


@jax.custom_jvp
def bump(x):
    return x * jnp.exp(-x * x)


def rise(x_ref, o_ref):
    here = pl.ds(pl.program_id(0) * 256, 256)
    x = x_ref[here]
    o_ref[here] = EXPRESSION


def run(x):
    return pl.pallas_call(
        rise, grid=(x.shape[0] // 256,), out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        compiler_params=plgpu.CompilerParams(num_warps=4),
    )(x)
'''


class Wrappers(Rule):
    code = "MG403"
    name = "wrappers"
    title = "Wrappers without a meaning in kernels are left out"
    nodes = {actions.Unwrap: (cst.Call,), actions.CallWrapped: (cst.Name,)}
    EXAMPLES = (
        Example(_KERNEL.replace("EXPRESSION", "x - lax.stop_gradient(x + 1)"), '''
    _store(o_ref, here, x - (x + 1), layout=layout, vec=vec)
'''),
        Example(_KERNEL.replace("EXPRESSION", "bump(x) + 1"), '''
    _store(o_ref, here, bump.__wrapped__(x) + 1, layout=layout, vec=vec)
'''),
    )

    def rewrite(self, action: actions.Action, node: cst.CSTNode) -> cst.BaseExpression:
        if isinstance(action, actions.CallWrapped):
            assert isinstance(node, cst.BaseExpression)
            for _ in range(action.depth):
                node = cst.Attribute(node, cst.Name("__wrapped__"))
            return node
        assert isinstance(node, cst.Call)
        value = node.args[0].value
        simple = isinstance(value, (cst.Name, cst.Attribute, cst.Subscript, cst.Call, cst.BaseNumber))
        if simple or value.lpar:
            return value
        return value.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
