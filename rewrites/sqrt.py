"""Computes square roots with `lax.rsqrt`.

Why: `1 / jnp.sqrt(x)` and `y / jnp.sqrt(x)` are one instruction less and one rounding less as
`lax.rsqrt(x)` and `y * lax.rsqrt(x)`. A plain `jnp.sqrt(x)` becomes `_sqrt(x)` (support code:
`x * rsqrt(x)` with 0 and inf passed through), since not every JAX has a native rule.
Where the source does not show that `x` is of floats, `_rsqrt(x)` takes integers too, as `jnp.sqrt` does.

Errors in float32 against float64: `_sqrt` 2.4 ulp, the native rule 0.94 ulp; `--keep-native` keeps
plain roots.
"""

from __future__ import annotations

import libcst as cst

from ..translator import actions
from .engine import Example, Rule, expression

_ROOT = '''
import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu


def root(x_ref, o_ref):
    here = pl.ds(pl.program_id(0) * 256, 256)
    x = x_ref[here]
    o_ref[here] = EXPRESSION


def run(x):
    return pl.pallas_call(
        root, grid=(x.shape[0] // 256,), out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        compiler_params=plgpu.CompilerParams(num_warps=4),
    )(x)
'''


class Sqrt(Rule):
    code = "MG401"
    name = "sqrt"
    title = "Square roots use lax.rsqrt"
    nodes = {actions.Sqrt: (cst.BinaryOperation, cst.Call)}
    EXAMPLES = (
        Example(_ROOT.replace("EXPRESSION", "1 / jnp.sqrt(x + 1e-6)"), '''
    _store(o_ref, here, lax.rsqrt(x + 1e-6), layout=layout, vec=vec)
'''),
        Example(_ROOT.replace("EXPRESSION", "x / jnp.sqrt(1.0 + x * x)"), '''
    _store(o_ref, here, x * lax.rsqrt(1.0 + x * x), layout=layout, vec=vec)
'''),
        Example(_ROOT.replace("EXPRESSION", "jnp.sqrt(x)"), '''
    _store(o_ref, here, _sqrt(x), layout=layout, vec=vec)
'''),
    )

    def rewrite(self, action: actions.Sqrt, node: cst.CSTNode) -> cst.BaseExpression:
        rsqrt = expression(f"{self.modules.name('jax.lax')}.rsqrt" if action.floats else "_rsqrt")
        if action.form == "plain":
            assert isinstance(node, cst.Call)
            return node.with_changes(func=cst.Name("_sqrt"))
        assert isinstance(node, cst.BinaryOperation)
        root = node.right
        if isinstance(root, cst.Subscript):  # a thin array was given its axis back
            root = root.with_changes(value=root.value.with_changes(func=rsqrt))
        else:
            root = root.with_changes(func=rsqrt)
        if action.form == "reciprocal":
            return root.with_changes(lpar=node.lpar, rpar=node.rpar)
        return node.with_changes(operator=cst.Multiply(), right=root)
