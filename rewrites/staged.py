"""Multiplies in kernels that mix products with register work, as attention does.

Why: `jnp.dot` has no Mosaic GPU rule. The kernel keeps its statements and runs on one or two compute
warpgroups; a further one, the memory warpgroup, runs a slice of the kernel (`..._loads`) that
computes bounds and addresses and copies operand tiles ahead into rings of SMEM stages. A load that
only products read becomes a wait for its stage; `dot(a, b)` becomes `part.dot(a, b)`, and
`acc + dot(a, b)` becomes `part.dot(a, b, acc)`.

Two warpgroups divide the rows of a block: `rows` is a warpgroup's part. Where a loop has a product,
register work and a product of its result of 128 columns or more, they take turns at the tensor core.
Programs whose loops are longest start first.

Accumulates in float32. Operands must be float16 or bfloat16, divided rows a multiple of 64 (128 on
sm100); the emitted code checks this when it is traced.

A loop may stand in a function that runs once, below a `lax.cond` or `pl.when`: the memory warpgroup
takes the same branch. Where the kernel reaches a block's rows by slices only, fewer of them than the
matrix unit takes are padded: `part.rows` passes the block's end, and loads and stores stop there.
`ref[table].reshape(...)` becomes a stage that the memory warpgroup puts together page by page.
A computed float32 factor of a 16-bit tile is multiplied in two parts, together of 16 bits where TF32 has 11 (sm90).

Does not cover: loops in loops, operands loaded in other branches, addresses that depend on a loop's
carry, computed operands that would have to be transposed, pages of 8 bits.
"""

from __future__ import annotations

import libcst as cst

from ..translator import actions
from .engine import Example, Insertion, Rule, expression

ATTENTION = '''
import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu


def attention_kernel(q_ref, k_ref, v_ref, o_ref, *, bq, bk):
    q = q_ref[...]

    def step(t, carry):
        acc, m, l = carry
        keys = pl.ds(t * bk, bk)
        k = k_ref[keys, :]
        s = jnp.dot(q, k.T, preferred_element_type=jnp.float32)
        m_new = jnp.maximum(m, jnp.max(s, axis=1))
        scale = jnp.exp2(m - m_new)
        p = jnp.exp2(s - m_new[:, None])
        v = v_ref[keys, :]
        acc = scale[:, None] * acc + jnp.dot(p.astype(v.dtype), v, preferred_element_type=jnp.float32)
        return acc, m_new, scale * l + jnp.sum(p, axis=1)

    acc = jnp.zeros((bq, q_ref.shape[1]), jnp.float32)
    start = acc, jnp.full(bq, -jnp.inf), jnp.zeros(bq)
    acc, m, l = lax.fori_loop(0, k_ref.shape[0] // bk, step, start)
    o_ref[...] = (acc / l[:, None]).astype(o_ref.dtype)


def attention(q, k, v, bq=128, bk=128):
    rows = pl.BlockSpec((bq, q.shape[1]), lambda i: (i, 0))
    whole = pl.BlockSpec(k.shape, lambda i: (0, 0))
    return pl.pallas_call(
        functools.partial(attention_kernel, bq=bq, bk=bk),
        grid=(q.shape[0] // bq,),
        in_specs=[rows, whole, whole],
        out_specs=rows,
        out_shape=jax.ShapeDtypeStruct(q.shape, q.dtype),
        compiler_params=plgpu.CompilerParams(num_warps=8, num_stages=2),
    )(q, k, v)
'''


class Staged(Rule):
    code = "MG504"
    name = "staged"
    title = "Products among register work: stages, parts and part.dot"
    nodes = {
        actions.StagedParameters: (cst.FunctionDef,),
        actions.StagedTarget: (cst.Assign,),
        actions.StagedReturn: (cst.Return,),
        actions.StagedText: (cst.BaseExpression,),
        actions.StagedOffset: (cst.Call,),
        actions.StagedCondition: (cst.BaseExpression,),
        actions.RegisterDot: (cst.Call, cst.BinaryOperation),
        actions.AddToDot: (cst.BinaryOperation, cst.AugAssign),
    }
    inserts = (actions.StagedFunction, actions.StagedLines)
    EXAMPLES = (
        Example(before=ATTENTION, after='''
        k, v = ring.wait(t)
        s = part.dot(q, k.transpose((1, 0)), turn=True)
'''),
    )

    def insert(self, action: actions.Action) -> Insertion:
        if isinstance(action, actions.StagedFunction):
            return Insertion(("", *action.lines), apart=True)
        assert isinstance(action, actions.StagedLines)
        return Insertion(action.lines, after=action.after, apart=action.apart)

    def rewrite(self, action: actions.Action, node: cst.CSTNode) -> cst.CSTNode:
        match action:
            case actions.StagedParameters():
                return self._parameters(action, node)  # type: ignore[arg-type]
            case actions.StagedTarget():
                target = node.targets[0].with_changes(target=cst.Name(action.name))  # type: ignore[attr-defined]
                return node.with_changes(targets=[target])
            case actions.StagedReturn():
                return cst.Assign([cst.AssignTarget(cst.Name(action.name))], node.value)  # type: ignore[attr-defined]
            case actions.StagedText():
                return expression(action.text)
            case actions.StagedOffset():
                return expression(f"({action.start} + x)").with_changes(right=node)
            case actions.StagedCondition():
                return expression(f"x if {action.test} else None").with_changes(body=node)
            case actions.RegisterDot():
                return self._dot(action, node)  # type: ignore[arg-type]
        assert isinstance(action, actions.AddToDot)
        if isinstance(node, cst.AugAssign):
            call = _with_accumulator(node.value, node.target)
            return cst.Assign([cst.AssignTarget(node.target)], call)
        product, added = (node.right, node.left) if action.product_right else (node.left, node.right)
        return _with_accumulator(product, added)

    def _parameters(self, action: actions.StagedParameters, node: cst.FunctionDef) -> cst.FunctionDef:
        """The function with more keyword parameters, ahead of its own, set as those are."""
        params = node.params
        like = next(iter((*params.kwonly_params, *params.params)), None)
        comma = like.comma if like is not None and isinstance(like.comma, cst.Comma) else cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
        added = [cst.Param(cst.Name(p), star="", comma=comma) for p in action.parameters]
        star = params.star_arg
        if isinstance(star, cst.MaybeSentinel):
            star = cst.ParamStar(comma=comma)
            if params.params:
                last = params.params[-1].with_changes(comma=comma)
                params = params.with_changes(params=[*params.params[:-1], last])
        elif isinstance(star, cst.Param) and not params.kwonly_params:
            star = star.with_changes(comma=comma)
        kwonly = [*added, *params.kwonly_params]
        if not params.kwonly_params:
            kwonly[-1] = kwonly[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
        return node.with_changes(params=params.with_changes(star_arg=star, kwonly_params=kwonly))

    def _dot(self, action: actions.RegisterDot, node: cst.BaseExpression) -> cst.Call:
        if isinstance(node, cst.Call):
            left, right = node.args[0].value, node.args[1].value
        else:
            assert isinstance(node, cst.BinaryOperation)
            left, right = node.left, node.right
        operands = [_around(action.left, left), _around(action.right, right)]
        arguments = [cst.Arg(o) for o in operands]
        if action.added:
            arguments.append(cst.Arg(expression(action.added)))
        call = cst.Call(expression(f"{action.part}.dot"), arguments)
        return _with_keyword(call, "turn", "True") if action.turn else call


def _around(text: str, operand: cst.BaseExpression) -> cst.BaseExpression:
    """The operand without its own transposes, with ``text`` around it."""
    while True:
        if isinstance(operand, cst.Attribute) and operand.attr.value == "T":
            operand = operand.value
        elif isinstance(operand, cst.Call) and isinstance(operand.func, cst.Attribute) and operand.func.attr.value == "transpose" and len(operand.args) == 1:
            operand = operand.args[0].value
        else:
            break
    if text == "{}":
        return operand
    code = cst.Module([]).code_for_node(operand)
    simple = isinstance(operand, (cst.Name, cst.Attribute, cst.Call, cst.Subscript)) or "({" in text
    return expression(text.format(code if simple else f"({code})"))


def _with_accumulator(call: cst.BaseExpression, added: cst.BaseExpression) -> cst.Call:
    """``part.dot(a, b, turn=...)`` with the accumulator as third argument; a cast of the product goes."""
    while isinstance(call, cst.Call) and isinstance(call.func, cst.Attribute) and call.func.attr.value == "astype":
        call = call.func.value
    assert isinstance(call, cst.Call)
    space = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    args = [*call.args[:2], cst.Arg(added.with_changes(lpar=(), rpar=()) if hasattr(added, "lpar") else added), *call.args[2:]]
    return call.with_changes(args=[a.with_changes(comma=space if i + 1 < len(args) else cst.MaybeSentinel.DEFAULT) for i, a in enumerate(args)], lpar=(), rpar=())


def _with_keyword(call: cst.Call, name: str, value: str) -> cst.Call:
    none = cst.SimpleWhitespace("")
    return call.with_changes(args=[*call.args, cst.Arg(expression(value), keyword=cst.Name(name), equal=cst.AssignEqual(none, none))])
