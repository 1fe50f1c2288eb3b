"""Kernels of ``test_staged_forms.py``: one form of products among register work each.

Every part has ``run``, its arguments ``example_NAME()`` and ``reference``; the test ports each part alone.
"""

import functools
import math

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plt

F32 = jnp.float32
CP = plt.CompilerParams(num_warps=8, num_stages=2)
key = jax.random.key(0)


def normal(at, *shape, dtype="float16"):
    return jax.random.normal(jax.random.fold_in(key, at), shape).astype(dtype)


def attention(q, k, v, change=lambda s: s):
    q, k, v = (x.astype(F32) for x in (q, k, v))
    return jax.nn.softmax(change(jnp.dot(q, k.T, precision="highest")) * jnp.log(2.0), axis=1) @ v


# -- bias_and_weights
def kernel(q_ref, k_ref, v_ref, bias_ref, w_ref, o_ref, *, bq, bk):
    q = q_ref[...]
    i = pl.program_id(0)

    def step(t, carry):
        acc, m, l = carry
        keys = pl.ds(t * bk, bk)
        s = jnp.dot(q, k_ref[keys, :].T, preferred_element_type=F32)
        s = s + bias_ref[pl.ds(i * bq, bq), keys].astype(F32)
        s *= w_ref[keys][None, :]
        m_new = jnp.maximum(m, jnp.max(s, axis=1))
        scale = jnp.exp2(m - m_new)
        p = jnp.exp2(s - m_new[:, None])
        v = v_ref[keys, :]
        acc = scale[:, None] * acc + jnp.dot(p.astype(v.dtype), v, preferred_element_type=F32)
        return acc, m_new, scale * l + jnp.sum(p, axis=1)

    acc = jnp.zeros((bq, q_ref.shape[1]), F32)
    acc, m, l = lax.fori_loop(0, k_ref.shape[0] // bk, step, (acc, jnp.full(bq, -jnp.inf), jnp.zeros(bq)))
    o_ref[...] = (acc / l[:, None]).astype(o_ref.dtype)


def run(q, k, v, bias, w):
    rows = pl.BlockSpec((128, q.shape[1]), lambda i: (i, 0))
    return pl.pallas_call(
        functools.partial(kernel, bq=128, bk=64),
        grid=(q.shape[0] // 128,),
        in_specs=[rows, None, None, None, None],
        out_specs=rows,
        out_shape=jax.ShapeDtypeStruct(q.shape, q.dtype),
        compiler_params=CP,
    )(q, k, v, bias, w)


def example_bias_and_weights():
    return normal(0, 256, 64), normal(1, 128, 64), normal(2, 128, 64), normal(3, 256, 128), normal(4, 128, dtype=F32)


def reference(q, k, v, bias, w):
    return attention(q, k, v, lambda s: (s + bias.astype(F32)) * w)


# -- two_loops
def kernel(q_ref, k_ref, v_ref, o_ref, *, bq, bk):
    i = pl.program_id(0)
    q = q_ref[...]

    def full(t, carry):
        acc, l = carry
        k = k_ref[pl.ds(t * bk, bk), :]
        v = v_ref[pl.ds(t * bk, bk), :]
        p = jnp.exp2(jnp.dot(q, k.T) * 0.125)
        return acc + jnp.dot(p.astype(v.dtype), v), l + jnp.sum(p, axis=1)

    def masked(t, carry):
        acc, l = carry
        k = k_ref[pl.ds(t * bk, bk), :]
        v = v_ref[pl.ds(t * bk, bk), :]
        above = (i * bq + jnp.arange(bq))[:, None] >= (t * bk + jnp.arange(bk))[None, :]
        p = jnp.where(above, jnp.exp2(jnp.dot(q, k.T) * 0.125), 0.0)
        return acc + jnp.dot(p.astype(v.dtype), v), l + jnp.sum(p, axis=1)

    whole = (i * bq) // bk
    carry = jnp.zeros((bq, q_ref.shape[1]), F32), jnp.zeros(bq, F32)
    carry = lax.fori_loop(0, whole, full, carry)
    acc, l = lax.fori_loop(whole, pl.cdiv((i + 1) * bq, bk), masked, carry)
    o_ref[...] = (acc / l[:, None]).astype(o_ref.dtype)


def run(q, k, v):
    rows = pl.BlockSpec((128, q.shape[1]), lambda i: (i, 0))
    return pl.pallas_call(
        functools.partial(kernel, bq=128, bk=64),
        grid=(q.shape[0] // 128,),
        in_specs=[rows, None, None],
        out_specs=rows,
        out_shape=jax.ShapeDtypeStruct(q.shape, q.dtype),
        compiler_params=CP,
    )(q, k, v)


def example_two_loops():
    return normal(0, 256, 64), normal(1, 256, 64), normal(2, 256, 64)


def reference(q, k, v):
    at = jnp.arange(256)
    return attention(q, k, v, lambda s: jnp.where(at[:, None] >= at, s * 0.125, -1e30))


# -- computed_operand
def kernel(q_ref, k_ref, v_ref, o_ref, *, bq, bk):
    def step(t, acc):
        ks = pl.ds(t * bk, bk)
        x = q_ref[:, ks]
        x = x * 2
        return acc + jnp.dot(x, v_ref[ks, :], preferred_element_type=F32)

    acc = lax.fori_loop(0, q_ref.shape[1] // bk, step, jnp.zeros((bq, v_ref.shape[1]), F32))
    o_ref[...] = acc.astype(o_ref.dtype)


def run(q, k, v):
    rows = pl.BlockSpec((128, q.shape[1]), lambda i: (i, 0))
    return pl.pallas_call(
        functools.partial(kernel, bq=128, bk=64),
        grid=(q.shape[0] // 128,),
        in_specs=[rows, None, None],
        out_specs=pl.BlockSpec((128, v.shape[1]), lambda i: (i, 0)),
        out_shape=jax.ShapeDtypeStruct((q.shape[0], v.shape[1]), q.dtype),
        compiler_params=CP,
    )(q, k, v)


def example_computed_operand():
    return normal(0, 256, 128), normal(1, 8, 8), normal(2, 128, 128)


def reference(q, k, v):
    return jnp.dot(2 * q.astype(F32), v.astype(F32), precision="highest")


# -- transposed_product
def kernel(q_ref, k_ref, v_ref, o_ref, *, bq, bk):
    k = k_ref[...]

    def step(t, dv):
        rows = pl.ds(t * bk, bk)
        q = q_ref[rows, :]
        do = v_ref[rows, :]
        p = jnp.exp2(0.125 * jnp.dot(q, k.T))
        dv = dv + jnp.dot(p.astype(do.dtype).T, do)
        return dv

    dv = lax.fori_loop(0, q_ref.shape[0] // bk, step, jnp.zeros((bq, v_ref.shape[1]), F32))
    o_ref[...] = dv.astype(o_ref.dtype)


def run(q, k, do):
    rows = pl.BlockSpec((128, k.shape[1]), lambda i: (i, 0))
    return pl.pallas_call(
        functools.partial(kernel, bq=128, bk=128),
        grid=(k.shape[0] // 128,),
        in_specs=[None, rows, None],
        out_specs=rows,
        out_shape=jax.ShapeDtypeStruct(k.shape, k.dtype),
        compiler_params=CP,
    )(q, k, do)


def example_transposed_product():
    return normal(0, 256, 64), normal(1, 128, 64), normal(2, 256, 64)


def reference(q, k, do):
    q, k, do = (x.astype(F32) for x in (q, k, do))
    return jnp.dot(jnp.exp2(0.125 * jnp.dot(q, k.T, precision="highest")).T, do, precision="highest")


# -- sliding_window
def kernel(q_ref, k_ref, v_ref, o_ref, *, bq, bk, window):
    q = q_ref[...]
    rows = pl.program_id(0) * bq + jnp.arange(bq)

    def step(t, carry):
        acc, m, l = carry
        k = k_ref[pl.ds(t * bk, bk), :]
        s = jnp.dot(q, k.T, preferred_element_type=F32)
        cols = t * bk + jnp.arange(bk)
        near = cols[None, :] + window > rows[:, None]
        s = jnp.where(near & (rows[:, None] >= cols[None, :]), s, -1e30)
        m_new = jnp.maximum(m, jnp.max(s, axis=1))
        scale = jnp.exp2(m - m_new)
        p = jnp.exp2(s - m_new[:, None])
        v = v_ref[pl.ds(t * bk, bk), :]
        acc = scale[:, None] * acc + jnp.dot(p.astype(v.dtype), v, preferred_element_type=F32)
        return acc, m_new, scale * l + jnp.sum(p, axis=1)

    acc = jnp.zeros((bq, q_ref.shape[1]), F32)
    acc, m, l = lax.fori_loop(0, k_ref.shape[0] // bk, step, (acc, jnp.full(bq, -jnp.inf), jnp.zeros(bq)))
    o_ref[...] = (acc / l[:, None]).astype(o_ref.dtype)


def run(q, k, v):
    rows = pl.BlockSpec((128, q.shape[1]), lambda i: (i, 0))
    return pl.pallas_call(
        functools.partial(kernel, bq=128, bk=64, window=200),
        grid=(q.shape[0] // 128,),
        in_specs=[rows, None, None],
        out_specs=rows,
        out_shape=jax.ShapeDtypeStruct(q.shape, q.dtype),
        compiler_params=CP,
    )(q, k, v)


def example_sliding_window():
    return normal(0, 512, 64), normal(1, 512, 64), normal(2, 512, 64)


def reference(q, k, v):
    def mask(s):
        gap = jnp.arange(s.shape[0])[:, None] - jnp.arange(s.shape[1])
        return jnp.where((gap >= 0) & (gap < 200), s, -jnp.inf)

    return attention(q, k, v, mask)


# -- optional_ref
def kernel(q_ref, k_ref, v_ref, ids_ref, o_ref, *, bq, bk, causal):
    q = q_ref[...]
    i = pl.program_id(0)

    def step(t, carry):
        acc, m, l = carry
        keys = pl.ds(t * bk, bk)
        k = k_ref[keys, :]
        s = jnp.dot(q, k.T, preferred_element_type=F32)
        if causal or ids_ref is not None:
            mask = None
            if ids_ref is not None:
                mask = ids_ref[pl.ds(i * bq, bq)][:, None] == ids_ref[keys][None, :]
            if causal:
                below = (i * bq + jnp.arange(bq))[:, None] >= (t * bk + jnp.arange(bk))[None, :]
                mask = below if mask is None else mask & below
            s = jnp.where(mask, s, -1e30)
        m_new = jnp.maximum(m, jnp.max(s, axis=1))
        scale = jnp.exp2(m - m_new)
        p = jnp.exp2(s - m_new[:, None])
        v = v_ref[keys, :]
        acc = scale[:, None] * acc + jnp.dot(p.astype(v.dtype), v, preferred_element_type=F32)
        return acc, m_new, scale * l + jnp.sum(p, axis=1)

    acc = jnp.zeros((bq, q_ref.shape[1]), F32)
    acc, m, l = lax.fori_loop(0, k_ref.shape[0] // bk, step, (acc, jnp.full(bq, -jnp.inf), jnp.zeros(bq)))
    o_ref[...] = (acc / l[:, None]).astype(o_ref.dtype)


def call(q, k, v, ids, causal):
    rows = pl.BlockSpec((128, q.shape[1]), lambda i: (i, 0))
    return pl.pallas_call(
        functools.partial(kernel, bq=128, bk=64, causal=causal),
        grid=(q.shape[0] // 128,),
        in_specs=[rows, None, None, None],
        out_specs=rows,
        out_shape=jax.ShapeDtypeStruct(q.shape, q.dtype),
        compiler_params=CP,
    )(q, k, v, ids)


def run(q, k, v, ids):
    return call(q, k, v, ids, True), call(q, k, v, None, True), call(q, k, v, ids, False)


def example_optional_ref():
    ids = jnp.repeat(jnp.arange(3), jnp.array([100, 60, 96]), total_repeat_length=256)
    return normal(0, 256, 64), normal(1, 256, 64), normal(2, 256, 64), ids.astype(jnp.int32)


def reference(q, k, v, ids):
    same = ids[:, None] == ids[None, :]
    below = jnp.tril(jnp.ones_like(same))
    return tuple(
        attention(q, k, v, lambda s: jnp.where(mask, s, -jnp.inf)) for mask in (same & below, below, same)
    )


# -- two_phases
def kernel(q_ref, k_ref, o_ref, p_ref, *, b, n):
    i = pl.program_id(0)
    mine = pl.ds(i * b, b)
    k = k_ref[mine, :]

    def over_queries(t, acc):
        q_block = q_ref[pl.ds(t * n, n), :]
        s = jnp.dot(k, q_block.T, preferred_element_type=F32)
        return acc + jnp.dot(s.astype(q_block.dtype), q_block, preferred_element_type=F32)

    steps = q_ref.shape[0] // n
    acc = lax.fori_loop(i, steps, over_queries, jnp.zeros((b, q_ref.shape[1]), F32))  # none for the last programs
    o_ref[...] = acc.astype(o_ref.dtype)
    q = q_ref[mine, :]

    def over_keys(t, acc):
        k_block = k_ref[pl.ds(t * n, n), :]
        s = jnp.dot(q, k_block.T, preferred_element_type=F32)
        return acc + jnp.dot(s.astype(k_block.dtype), k_block, preferred_element_type=F32)

    acc = lax.fori_loop(0, steps, over_keys, jnp.zeros((b, q_ref.shape[1]), F32))
    p_ref[...] = acc.astype(p_ref.dtype)


def run(q, k):
    rows = pl.BlockSpec((128, q.shape[1]), lambda i: (i, 0))
    return pl.pallas_call(
        functools.partial(kernel, b=128, n=256),
        grid=(q.shape[0] // 128,),
        in_specs=[None, None],
        out_specs=[rows, rows],
        out_shape=[jax.ShapeDtypeStruct(q.shape, q.dtype)] * 2,
        compiler_params=CP,
    )(q, k)


def example_two_phases():
    return normal(0, 512, 64) / 8, normal(1, 512, 64) / 8


def reference(q, k):
    q, k = q.astype(F32), k.astype(F32)
    later = (jnp.arange(512) // 128)[:, None] <= jnp.arange(512) // 256
    return jnp.where(later, k @ q.T, 0) @ q, q @ k.T @ k


# -- shared_step
def kernel(q_ref, k_ref, v_ref, o_ref, lse_ref, *, keys, bk):
    q = q_ref[...]
    bq, d = q.shape
    scale = 1 / math.sqrt(d)

    def attend(s, v, acc, m, l):
        m_new = jnp.maximum(m, s.max(1))
        p = jnp.exp(s - m_new[:, None])
        fade = jnp.exp(m - m_new)
        return acc * fade[:, None] + plt.dot(p.astype(v.dtype), v), m_new, l * fade + p.sum(1)

    def whole(t, carry):
        k, v = k_ref[pl.ds(t * bk, bk), :], v_ref[pl.ds(t * bk, bk), :]
        return attend(plt.dot(q, k.T) * scale, v, *carry)

    def tail(t, carry):
        at = t * bk + jnp.arange(bk)
        k = plt.load(k_ref.at[pl.ds(t * bk, bk), :], mask=(at < keys)[:, None], other=0.0)
        v = plt.load(v_ref.at[pl.ds(t * bk, bk), :], mask=(at < keys)[:, None], other=0.0)
        s = lax.dot_general(q, k, (((1,), (1,)), ((), ())), preferred_element_type=F32) * scale
        column = t * bk + lax.broadcasted_iota(jnp.int32, s.shape, 1)
        s = jnp.where((column < keys) & (at < keys)[None, :], s, -1e30)
        return attend(s, v, *carry)

    start = jnp.zeros_like(o_ref, dtype=F32), jnp.full((bq,), -jnp.inf, F32), jnp.zeros((bq,), F32)
    carry = lax.fori_loop(0, keys // bk, whole, start)
    acc, m, l = lax.fori_loop(keys // bk, pl.cdiv(keys, bk), tail, carry)
    o_ref[...] = (acc / l[:, None]).astype(o_ref.dtype)
    lse_ref[...] = m + jnp.log(l)


def run(q, k, v):
    rows = pl.BlockSpec((128, q.shape[1]), lambda i: (i, 0))
    return pl.pallas_call(
        functools.partial(kernel, keys=k.shape[0], bk=64),
        grid=(q.shape[0] // 128,),
        in_specs=[rows, None, None],
        out_specs=[rows, pl.BlockSpec((128,), lambda i: (i,))],
        out_shape=[jax.ShapeDtypeStruct(q.shape, q.dtype), jax.ShapeDtypeStruct(q.shape[:1], F32)],
        compiler_params=CP,
    )(q, k, v)


def example_shared_step():
    return normal(0, 256, 64), normal(1, 168, 64), normal(2, 168, 64)


def reference(q, k, v):
    s = jnp.dot(q.astype(F32), k.astype(F32).T, precision="highest") / 8
    return [jax.nn.softmax(s, axis=1) @ v.astype(F32), jax.nn.logsumexp(s, axis=1)]


# -- matmul_with_row_maxima
def kernel(a_ref, b_ref, start_ref, o_ref, peak_ref, *, bm, bk):
    rows, cols = pl.program_id(0) * bm + jnp.arange(bm), jnp.arange(o_ref.shape[1])

    def step(t, acc):
        ks = t * bk + jnp.arange(bk)
        a = plt.load(a_ref.at[rows[:, None], ks[None, :]])
        b = plt.load(b_ref.at[ks[:, None], cols[None, :]])
        return acc + plt.dot(a, b)

    acc = start_ref[pl.ds(pl.program_id(0) * bm, bm), :].astype(F32)
    acc = lax.fori_loop(0, a_ref.shape[1] // bk, step, acc)
    o_ref[pl.ds(pl.program_id(0) * bm, bm), :] = acc.astype(o_ref.dtype)
    peak_ref[pl.ds(pl.program_id(0) * bm, bm)] = jnp.max(acc, axis=1)


def run(a, b, start):
    return pl.pallas_call(
        functools.partial(kernel, bm=128, bk=64),
        grid=(a.shape[0] // 128,),
        out_shape=[jax.ShapeDtypeStruct(start.shape, a.dtype), jax.ShapeDtypeStruct(a.shape[:1], F32)],
        compiler_params=CP,
    )(a, b, start)


def example_matmul_with_row_maxima():
    return normal(0, 256, 256), normal(1, 256, 128), normal(2, 256, 128)


def reference(a, b, start):
    result = start.astype(F32) + jnp.dot(a.astype(F32), b.astype(F32), precision="highest")
    return [result, result.max(axis=1)]


# -- low_rank
def kernel(x_ref, down_ref, up_ref, o_ref):
    """Without a loop; the operands of the first product are converted, the second contracts 16."""
    low = plt.dot(x_ref[...].astype(jnp.bfloat16), down_ref[...])
    o_ref[...] = plt.dot(low.astype(up_ref.dtype), up_ref[...])


def run(x, down, up):
    return pl.pallas_call(
        kernel,
        grid=(x.shape[0] // 128,),
        in_specs=[
            pl.BlockSpec((128, x.shape[1]), lambda i: (i, 0)),
            pl.BlockSpec(down.shape, lambda i: (0, 0)),
            pl.BlockSpec(up.shape, lambda i: (0, 0)),
        ],
        out_specs=pl.BlockSpec((128, up.shape[1]), lambda i: (i, 0)),
        out_shape=jax.ShapeDtypeStruct((x.shape[0], up.shape[1]), F32),
        compiler_params=CP,
    )(x, down, up)


def example_low_rank():
    return normal(0, 256, 128, dtype="float32"), normal(1, 128, 16, dtype="bfloat16"), normal(2, 16, 64, dtype="bfloat16")


def reference(x, down, up):
    low = jnp.dot(x.astype(jnp.bfloat16), down, preferred_element_type=F32)
    return jnp.dot(low.astype(jnp.bfloat16), up, preferred_element_type=F32)


# -- parallel_assignments
def kernel(q_ref, k_ref, v_ref, o_ref):
    i, q, d = pl.program_id(0), q_ref[...], q_ref.shape[1]

    def step(t, carry):
        acc, m, l = carry
        keys = pl.ds(t * 64, 64)
        k, v = k_ref[keys, :], v_ref[keys, :]
        s = jnp.dot(q, k.T, preferred_element_type=F32)
        s = jnp.where((i * 64 + jnp.arange(64))[:, None] >= (t * 64 + jnp.arange(64))[None, :], s, -1e30)
        m_new = jnp.maximum(m, jnp.max(s, axis=1))
        p, scale = jnp.exp2(s - m_new[:, None]), jnp.exp2(m - m_new)
        pv = jnp.dot(p.astype(q.dtype), v, preferred_element_type=F32)
        return acc * scale[:, None] + pv, m_new, scale * l + jnp.sum(p, axis=1)

    start = jnp.zeros((64, d), F32), jnp.full((64,), -1e30), jnp.zeros((64,))
    acc, _, l = lax.fori_loop(0, i + 1, step, start)
    o_ref[...] = (acc / l[:, None]).astype(o_ref.dtype)


def run(q, k, v):
    rows, whole = pl.BlockSpec((64, 64), lambda i: (i, 0)), pl.BlockSpec(k.shape, lambda i: (0, 0))
    return pl.pallas_call(
        kernel, grid=(q.shape[0] // 64,), in_specs=[rows, whole, whole], out_specs=rows, out_shape=q, compiler_params=CP
    )(q, k, v)


def example_parallel_assignments():
    return normal(0, 256, 64), normal(1, 256, 64), normal(2, 256, 64)


def reference(q, k, v):
    return attention(q, k, v, lambda s: jnp.where(jnp.tril(jnp.ones_like(s, bool)), s, -jnp.inf))
