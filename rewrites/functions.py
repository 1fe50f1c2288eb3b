"""Calls support functions in place of functions that Mosaic GPU does not lower.

Why: `jnp.floor`, `jnp.log1p`, `x ** y`, `jax.nn.softplus` and others come down to primitives that
have a rule on the Triton backend and none on Mosaic GPU. What takes their place is a support
function: a short formula of operations that have a rule, in float32 and rounded to the dtype of
the original, as the Triton backend computes them. Special values (0, -0, infinities, nan,
subnormal numbers) come out as jnp has them; `golden/results/accuracy-*.json` has the errors.

`argmax`, `argmin`, `var`, `std`, `logsumexp` and `softmax` over one axis have support functions too; ties go
to the lowest index and nan wins, as in NumPy. `cumsum` along an axis becomes shuffles within warps, and
shared memory between them; it needs the layout of its operand, so it must stand in the kernel itself.

`//` and `%` become support functions where an operand may be a float. They are exact, as jnp's are; the Triton
backend subtracts a rounded multiple, which is wrong for large quotients.

`elementwise_inline_asm` becomes `_inline_asm`, which packs elements into words as Triton does.

Mosaic GPU computes nothing on 8-bit integers. Where the source names int8 or uint8, or a recording shows them,
`x + y` becomes `_in_int32(jnp.add)(x, y)`, which casts the result back, so that it wraps around as before.
`astype(bool)` and conversions of 8-bit floats become `_convert`.

Which function becomes which is measured where it is one such primitive, and listed where it is
several: `translator/replacements.py`. Calls stay on Triton if the function is neither, is passed
around by name, is called with numbers known while tracing (`jnp.floor(2.5)`: use `math.floor`), or
gets keywords that the support function does not take.
"""

from __future__ import annotations

import libcst as cst

from ..translator import actions
from .engine import Example, Rule, expression

_KERNEL = '''
import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu


def bend(x_ref, p_ref, o_ref):
    here = pl.ds(pl.program_id(0) * 256, 256)
    x = x_ref[here]
    o_ref[here] = EXPRESSION


def run(x, p):
    return pl.pallas_call(
        bend, grid=(x.shape[0] // 256,), out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        compiler_params=plgpu.CompilerParams(num_warps=4),
    )(x, p)
'''


class Functions(Rule):
    code = "MG402"
    name = "functions"
    title = "Functions without a rule become support functions"
    nodes = {
        actions.CallSupport: (cst.Call, cst.BinaryOperation),
        actions.ComputeInInt32: (cst.Call, cst.BinaryOperation, cst.UnaryOperation, cst.Comparison),
        actions.Convert: (cst.Call,),
    }
    EXAMPLES = (
        Example(_KERNEL.replace("EXPRESSION", "jnp.log1p(x) + jnp.floor(x)"), '''
    _store(o_ref, here, _log1p(x) + _floor(x), layout=layout, vec=vec)
'''),
        Example(_KERNEL.replace("EXPRESSION", "abs(x) ** (x + p_ref[here])"), '''
        o_ref, here, _pow(abs(x), x + _load(p_ref, here, layout=layout, vec=vec)),
'''),
        Example(_KERNEL.replace("EXPRESSION", "jnp.cumsum(x)"), '''
    _store(o_ref, here, _cumsum(x, layout=layout), layout=layout, vec=vec)
'''),
        Example(_KERNEL.replace("EXPRESSION", "jax.nn.elu(x, alpha=0.5)"), '''
    _store(o_ref, here, _elu(x, alpha=0.5), layout=layout, vec=vec)
'''),
    )

    def rewrite(self, action: actions.Action, node: cst.CSTNode) -> cst.BaseExpression:
        if isinstance(action, actions.ComputeInInt32):
            return _in_int32(action, node)
        if isinstance(action, actions.Convert):
            assert isinstance(node, cst.Call)
            value = node.func.value if action.method else node.args[0].value  # type: ignore[attr-defined]
            operands = [cst.Arg(_bare(value)), cst.Arg(expression(action.dtype))]
            return cst.Call(cst.Name("_convert"), operands, lpar=node.lpar, rpar=node.rpar)
        assert isinstance(action, actions.CallSupport)
        function = cst.Name(action.function)
        if isinstance(node, cst.BinaryOperation):
            operands = [cst.Arg(_bare(node.left)), cst.Arg(_bare(node.right))]
            return cst.Call(function, operands, lpar=node.lpar, rpar=node.rpar)
        assert isinstance(node, cst.Call)
        args = list(node.args)
        if action.method:
            assert isinstance(node.func, cst.Attribute)
            args.insert(0, cst.Arg(_bare(node.func.value)))
        if action.layout:
            none = cst.SimpleWhitespace("")
            layout = cst.Arg(cst.Name(action.layout), cst.Name("layout"), equal=cst.AssignEqual(none, none))
            args[-1] = args[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
            args.append(layout)
        return node.with_changes(func=function, args=args)


def _in_int32(action: actions.ComputeInInt32, node: cst.CSTNode) -> cst.BaseExpression:
    if isinstance(node, cst.Call):
        return node.with_changes(func=cst.Call(cst.Name("_in_int32"), [cst.Arg(node.func)]))
    match node:
        case cst.BinaryOperation():
            operands = [node.left, node.right]
        case cst.Comparison():
            operands = [node.left, node.comparisons[0].comparator]
        case _:
            assert isinstance(node, cst.UnaryOperation)
            operands = [node.expression]
    function = cst.Call(cst.Name("_in_int32"), [cst.Arg(expression(action.function))])
    return cst.Call(function, [cst.Arg(_bare(o)) for o in operands], lpar=node.lpar, rpar=node.rpar)


def _bare(node: cst.BaseExpression) -> cst.BaseExpression:
    """An operand without the parentheses that precedence asked for; those over several lines may hold comments."""
    if len(node.lpar) != 1 or isinstance(node.lpar[0].whitespace_after, cst.ParenthesizedWhitespace):
        return node
    if isinstance(node.rpar[0].whitespace_before, cst.ParenthesizedWhitespace):
        return node
    return node.with_changes(lpar=(), rpar=())
