"""Kernels of ``test_access_forms.py``: one form of load or store each.

Every part has ``run``, its arguments ``example_NAME()`` and ``reference``; the test ports each part alone.
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plt

CP = plt.CompilerParams(num_warps=4)
key = jax.random.key(0)

# -- gather_arr_whole
def k(t_ref, i_ref, o_ref):
    o_ref[...] = t_ref[i_ref[...]]


def run(t, i):
    return pl.pallas_call(
        k,
        grid=(i.shape[0] // 256,),
        in_specs=[pl.BlockSpec(t.shape, lambda i: (0,)), pl.BlockSpec((256,), lambda i: (i,))],
        out_specs=pl.BlockSpec((256,), lambda i: (i,)),
        out_shape=jax.ShapeDtypeStruct(i.shape, t.dtype),
        compiler_params=CP,
    )(t, i)


def example_gather_arr_whole():
    return jax.random.normal(key, (1000,)), jax.random.randint(key, (1024,), 0, 1000)


def reference(t, i):
    return t[i]


# -- gather_masked
def k(t_ref, i_ref, o_ref, *, block):
    o = pl.program_id(0) * block + jnp.arange(block)
    m = o < o_ref.shape[0]
    ix = plt.load(i_ref.at[o], mask=m, other=0)
    plt.store(o_ref.at[o], plt.load(t_ref.at[ix], mask=m & (ix > 10), other=-1.0), mask=m)


def run(t, i):
    return pl.pallas_call(
        functools.partial(k, block=128),
        grid=(pl.cdiv(i.shape[0], 128),),
        out_shape=jax.ShapeDtypeStruct(i.shape, t.dtype),
        compiler_params=CP,
    )(t, i)


def example_gather_masked():
    return jax.random.normal(key, (1000,)), jax.random.randint(key, (1001,), 0, 1000)


def reference(t, i):
    return jnp.where(i > 10, t[i], -1.0)


# -- gather_rows_full
def k(t_ref, i_ref, o_ref):
    o_ref[...] = t_ref[i_ref[...], :]


def run(t, i):
    return pl.pallas_call(
        k,
        grid=(i.shape[0] // 16,),
        in_specs=[pl.BlockSpec(t.shape, lambda i: (0, 0)), pl.BlockSpec((16,), lambda i: (i,))],
        out_specs=pl.BlockSpec((16, t.shape[1]), lambda i: (i, 0)),
        out_shape=jax.ShapeDtypeStruct((i.shape[0], t.shape[1]), t.dtype),
        compiler_params=CP,
    )(t, i)


def example_gather_rows_full():
    return jax.random.normal(key, (100, 64)), jax.random.randint(key, (64,), 0, 100)


def reference(t, i):
    return t[i]


# -- gather_rows_ds
def k(t_ref, i_ref, o_ref):
    j = pl.program_id(1)
    ix = i_ref[...]
    o_ref[...] = t_ref[ix, pl.ds(j * 32, 32)] * 2


def run(t, i):
    return pl.pallas_call(
        k,
        grid=(i.shape[0] // 16, t.shape[1] // 32),
        in_specs=[pl.BlockSpec(t.shape, lambda i, j: (0, 0)), pl.BlockSpec((16,), lambda i, j: (i,))],
        out_specs=pl.BlockSpec((16, 32), lambda i, j: (i, j)),
        out_shape=jax.ShapeDtypeStruct((i.shape[0], t.shape[1]), t.dtype),
        compiler_params=CP,
    )(t, i)


def example_gather_rows_ds():
    return jax.random.normal(key, (100, 64)), jax.random.randint(key, (64,), 0, 100)


def reference(t, i):
    return t[i] * 2


# -- gather_outer
def k(t_ref, r_ref, c_ref, o_ref):
    r, c = r_ref[...], c_ref[...]
    o_ref[...] = t_ref[r[:, None], c[None, :]]


def run(t, r, c):
    return pl.pallas_call(
        k,
        out_shape=jax.ShapeDtypeStruct((r.shape[0], c.shape[0]), t.dtype),
        compiler_params=CP,
    )(t, r, c)


def example_gather_outer():
    return jax.random.normal(key, (50, 70)), jax.random.randint(key, (32,), 0, 50), jax.random.randint(key, (64,), 0, 70)


def reference(t, r, c):
    return t[r[:, None], c[None, :]]


# -- gather_two_vectors
def k(t_ref, r_ref, c_ref, o_ref):
    o_ref[...] = t_ref[r_ref[...], c_ref[...]]


def run(t, r, c):
    return pl.pallas_call(k, out_shape=jax.ShapeDtypeStruct(r.shape, t.dtype), compiler_params=CP)(t, r, c)


def example_gather_two_vectors():
    return jax.random.normal(key, (50, 70)), jax.random.randint(key, (64,), 0, 50), jax.random.randint(key, (64,), 0, 70)


def reference(t, r, c):
    return t[r, c]


# -- gather_scalar_and_vector
def k(t_ref, c_ref, o_ref):
    i = pl.program_id(0)
    o_ref[i, :] = t_ref[i, c_ref[...]]


def run(t, c):
    return pl.pallas_call(
        k,
        grid=(t.shape[0],),
        out_shape=jax.ShapeDtypeStruct((t.shape[0], c.shape[0]), t.dtype),
        compiler_params=CP,
    )(t, c)


def example_gather_scalar_and_vector():
    return jax.random.normal(key, (50, 70)), jax.random.randint(key, (64,), 0, 70)


def reference(t, c):
    return t[:, c]


# -- gather_arith
def k(t_ref, o_ref):
    i = pl.program_id(0)
    o = i * 64 + jnp.arange(64)
    o_ref[o] = t_ref[o // 3 + 1]


def run(t):
    return pl.pallas_call(k, grid=(4,), out_shape=jax.ShapeDtypeStruct((256,), t.dtype), compiler_params=CP)(t)


def example_gather_arith():
    return (jax.random.normal(key, (1000,)),)


def reference(t):
    return t[jnp.arange(256) // 3 + 1]


# -- gather_2d_index
def k(t_ref, i_ref, o_ref):
    o_ref[...] = t_ref[i_ref[...]]


def run(t, i):
    return pl.pallas_call(
        k,
        grid=(4,),
        in_specs=[pl.BlockSpec(t.shape, lambda i: (0,)), pl.BlockSpec((16, 64), lambda i: (i, 0))],
        out_specs=pl.BlockSpec((16, 64), lambda i: (i, 0)),
        out_shape=jax.ShapeDtypeStruct(i.shape, t.dtype),
        compiler_params=CP,
    )(t, i)


def example_gather_2d_index():
    return jax.random.normal(key, (1000,)), jax.random.randint(key, (64, 64), 0, 1000)


def reference(t, i):
    return t[i]


# -- scatter
def k(v_ref, i_ref, o_ref):
    o_ref[i_ref[...]] = v_ref[...]


def run(v, i):
    b = pl.BlockSpec((256,), lambda i: (i,))
    return pl.pallas_call(
        k,
        grid=(v.shape[0] // 256,),
        in_specs=[b, b],
        out_specs=pl.BlockSpec(v.shape, lambda i: (0,)),
        out_shape=v,
        compiler_params=CP,
    )(v, i)


def example_scatter():
    return jax.random.normal(key, (1024,)), jax.random.permutation(key, 1024).astype(jnp.int32)


def reference(v, i):
    return jnp.zeros_like(v).at[i].set(v)


# -- scatter_rows
def k(v_ref, i_ref, o_ref):
    plt.store(o_ref.at[i_ref[...], :], v_ref[...])


def run(v, i):
    return pl.pallas_call(
        k,
        grid=(v.shape[0] // 16,),
        in_specs=[pl.BlockSpec((16, 64), lambda i: (i, 0)), pl.BlockSpec((16,), lambda i: (i,))],
        out_specs=pl.BlockSpec(v.shape, lambda i: (0, 0)),
        out_shape=v,
        compiler_params=CP,
    )(v, i)


def example_scatter_rows():
    return jax.random.normal(key, (128, 64)), jax.random.permutation(key, 128).astype(jnp.int32)


def reference(v, i):
    return jnp.zeros_like(v).at[i].set(v)


# -- scatter_masked_pred
def k(v_ref, i_ref, z_ref, o_ref, *, block):
    o = pl.program_id(0) * block + jnp.arange(block)
    m = o < v_ref.shape[0]
    ix = plt.load(i_ref.at[o], mask=m, other=-1)
    v = plt.load(v_ref.at[o], mask=m, other=0.0)
    plt.store(o_ref.at[ix], v, mask=m & (v > 0))


def run(v, i):
    return pl.pallas_call(
        functools.partial(k, block=128),
        grid=(pl.cdiv(v.shape[0], 128),),
        input_output_aliases={2: 0},
        out_shape=v,
        compiler_params=CP,
    )(v, i, jnp.zeros_like(v))


def example_scatter_masked_pred():
    return jax.random.normal(key, (1001,)), jax.random.permutation(key, 1001).astype(jnp.int32)


def reference(v, i):
    return jnp.zeros_like(v).at[i].set(jnp.where(v > 0, v, 0))


# -- scalar_dyn
def k(s_ref, x_ref, o_ref):
    i = pl.program_id(0)
    o_ref[...] = x_ref[...] * s_ref[i]


def run(s, x):
    b = pl.BlockSpec((128,), lambda i: (i,))
    return pl.pallas_call(
        k,
        grid=(x.shape[0] // 128,),
        in_specs=[pl.BlockSpec(s.shape, lambda i: (0,)), b],
        out_specs=b,
        out_shape=x,
        compiler_params=CP,
    )(s, x)


def example_scalar_dyn():
    return jax.random.normal(key, (4,)), jax.random.normal(key, (512,))


def reference(s, x):
    return (x.reshape(4, 128) * s[:, None]).reshape(-1)


# -- scalar_2d_store
def k(x_ref, o_ref):
    i, j = pl.program_id(0), pl.program_id(1)
    x = x_ref[i, pl.ds(j * 64, 64)]
    o_ref[i, j] = jnp.sum(x, axis=0)


def run(x):
    return pl.pallas_call(
        k,
        grid=(x.shape[0], x.shape[1] // 64),
        out_shape=jax.ShapeDtypeStruct((x.shape[0], x.shape[1] // 64), x.dtype),
        compiler_params=CP,
    )(x)


def example_scalar_2d_store():
    return (jax.random.normal(key, (6, 256)),)


def reference(x):
    return x.reshape(6, 4, 64).sum(-1)


# -- scalar_pl_store
def k(x_ref, o_ref):
    i = pl.program_id(0)
    s = plt.load(x_ref.at[i])
    plt.store(o_ref.at[i], s * 2)


def run(x):
    return pl.pallas_call(k, grid=(8,), out_shape=x, compiler_params=CP)(x)


def example_scalar_pl_store():
    return (jax.random.normal(key, (8,)),)


def reference(x):
    return x * 2


# -- scalar_bf16
def k(x_ref, o_ref):
    i = pl.program_id(0)
    o_ref[i] = x_ref[i] * 2


def run(x):
    return pl.pallas_call(k, grid=(8,), out_shape=x, compiler_params=CP)(x)


def example_scalar_bf16():
    return (jax.random.normal(key, (8,), jnp.bfloat16),)


def reference(x):
    return x * 2


# -- scalar_masked_load
def k(x_ref, o_ref):
    i = pl.program_id(0)
    a = plt.load(x_ref.at[i - 1], mask=i > 0, other=0.0)
    plt.store(o_ref.at[i], a + x_ref[i], mask=i < 6)


def run(x):
    return pl.pallas_call(k, grid=(7,), out_shape=jax.ShapeDtypeStruct((6,), x.dtype), compiler_params=CP)(x)


def example_scalar_masked_load():
    return (jax.random.normal(key, (8,)),)


def reference(x):
    return (x + jnp.concatenate([jnp.zeros(1), x[:-1]]))[:6]


# -- segment_bounds
def k(off_ref, x_ref, o_ref):
    g = pl.program_id(0)
    lo, hi = off_ref[g], off_ref[g + 1]
    cols = jnp.arange(64)
    def step(c, acc):
        rows = lo + c * 16 + jnp.arange(16)
        t = plt.load(x_ref.at[rows[:, None], cols[None, :]], mask=(rows < hi)[:, None], other=0.0)
        return acc + jnp.sum(t, axis=0)
    acc = lax.fori_loop(0, lax.div(hi - lo + 15, 16), step, jnp.zeros((64,), jnp.float32))
    o_ref[g, :] = acc


def run(off, x):
    return pl.pallas_call(
        k,
        grid=(off.shape[0] - 1,),
        out_shape=jax.ShapeDtypeStruct((off.shape[0] - 1, 64), x.dtype),
        compiler_params=CP,
    )(off, x)


def example_segment_bounds():
    return jnp.array([0, 7, 7, 40, 100], jnp.int32), jax.random.normal(key, (100, 64))


def reference(o, x):
    own = jnp.searchsorted(o[1:], jnp.arange(x.shape[0]), side="right")
    return jax.ops.segment_sum(x, own, o.shape[0] - 1)


# -- mask_from_memory
def k(x_ref, m_ref, o_ref):
    m = m_ref[...] != 0
    x = plt.load(x_ref.at[pl.ds(0, 16), pl.ds(0, 64)], mask=m, other=-3.0)
    plt.store(o_ref.at[pl.ds(0, 16), pl.ds(0, 64)], x)


def run(x, m):
    return pl.pallas_call(k, out_shape=x, compiler_params=CP)(x, m)


def example_mask_from_memory():
    return jax.random.normal(key, (16, 64)), jax.random.randint(key, (16, 64), 0, 2)


def reference(x, m):
    return jnp.where(m != 0, x, -3.0)


# -- mask_tri
def k(x_ref, o_ref):
    r, c = jnp.arange(32), jnp.arange(64)
    m = r[:, None] >= c[None, :]
    x = plt.load(x_ref.at[r[:, None], c[None, :]], mask=m, other=0.0)
    o_ref[...] = x


def run(x):
    return pl.pallas_call(k, out_shape=x, compiler_params=CP)(x)


def example_mask_tri():
    return (jax.random.normal(key, (32, 64)),)


def reference(x):
    return jnp.tril(x)


# -- col_store_load
def k(x_ref, o_ref):
    j = pl.program_id(0)
    o_ref[:, j] = x_ref[:, j] * 2


def run(x):
    return pl.pallas_call(k, grid=(x.shape[1],), out_shape=x, compiler_params=CP)(x)


def example_col_store_load():
    return (jax.random.normal(key, (64, 5)),)


def reference(x):
    return x * 2


# -- strided
def k(x_ref, o_ref):
    o_ref[...] = x_ref[pl.ds(0, 64, stride=2)] + x_ref[pl.ds(1, 64, 2)]


def run(x):
    return pl.pallas_call(k, out_shape=jax.ShapeDtypeStruct((64,), x.dtype), compiler_params=CP)(x)


def example_strided():
    return (jax.random.normal(key, (128,)),)


def reference(x):
    return x[::2] + x[1::2]


# -- dyn_slice
def k(s_ref, x_ref, o_ref):
    start = s_ref[0]
    o_ref[...] = x_ref[pl.ds(start, 64)]


def run(s, x):
    return pl.pallas_call(k, out_shape=jax.ShapeDtypeStruct((64,), x.dtype), compiler_params=CP)(s, x)


def example_dyn_slice():
    return jnp.array([13], jnp.int32), jax.random.normal(key, (128,))


def reference(s, x):
    return x[13:77]


# -- py_slices
def k(x_ref, o_ref):
    o_ref[...] = x_ref[0:32] + x_ref[32:64] + x_ref[0:64:2]


def run(x):
    return pl.pallas_call(k, out_shape=jax.ShapeDtypeStruct((32,), x.dtype), compiler_params=CP)(x)


def example_py_slices():
    return (jax.random.normal(key, (64,)),)


def reference(x):
    return x[0:32] + x[32:64] + x[0:64:2]


# -- arange_start
def k(x_ref, o_ref):
    ix = jnp.arange(64, 128)
    o_ref[...] = x_ref[ix] + jnp.arange(0, 128, 2)


def run(x):
    return pl.pallas_call(k, out_shape=jax.ShapeDtypeStruct((64,), x.dtype), compiler_params=CP)(x)


def example_arange_start():
    return (jax.random.uniform(key, (128,)),)


def reference(x):
    return x[64:] + jnp.arange(0, 128, 2)


# -- atomic_hist
def k(i_ref, z_ref, h_ref, *, block):
    o = pl.program_id(0) * block + jnp.arange(block)
    m = o < i_ref.shape[0]
    ix = plt.load(i_ref.at[o], mask=m, other=0)
    plt.atomic_add(h_ref, (ix,), jnp.ones((block,), jnp.float32), mask=m)


def run(i, z):
    return pl.pallas_call(
        functools.partial(k, block=128),
        grid=(pl.cdiv(i.shape[0], 128),),
        out_shape=jax.ShapeDtypeStruct(z.shape, z.dtype),
        input_output_aliases={1: 0},
        compiler_params=CP,
    )(i, z)


def example_atomic_hist():
    return jax.random.randint(key, (1001,), 0, 40), jnp.zeros((40,))


def reference(i, z):
    return z.at[i].add(1.0)


# -- atomic_max_i32
def k(v_ref, i_ref, z_ref, h_ref):
    plt.atomic_max(h_ref, i_ref[...], v_ref[...])


def run(v, i, z):
    b = pl.BlockSpec((128,), lambda i: (i,))
    w = pl.BlockSpec(z.shape, lambda i: (0,))
    return pl.pallas_call(
        k,
        grid=(i.shape[0] // 128,),
        in_specs=[b, b, w],
        out_specs=w,
        out_shape=jax.ShapeDtypeStruct(z.shape, z.dtype),
        input_output_aliases={2: 0},
        compiler_params=CP,
    )(v, i, z)


def example_atomic_max_i32():
    return jax.random.randint(key, (512,), -100, 100), jax.random.randint(key, (512,), 0, 40), jnp.zeros((40,), jnp.int32)


def reference(v, i, z):
    return z.at[i].max(v)


# -- atomic_min_i32
def k(v_ref, i_ref, z_ref, h_ref):
    plt.atomic_min(h_ref, i_ref[...], v_ref[...])


def run(v, i, z):
    b = pl.BlockSpec((128,), lambda i: (i,))
    w = pl.BlockSpec(z.shape, lambda i: (0,))
    return pl.pallas_call(
        k,
        grid=(i.shape[0] // 128,),
        in_specs=[b, b, w],
        out_specs=w,
        out_shape=jax.ShapeDtypeStruct(z.shape, z.dtype),
        input_output_aliases={2: 0},
        compiler_params=CP,
    )(v, i, z)


def example_atomic_min_i32():
    return jax.random.randint(key, (512,), -100, 100), jax.random.randint(key, (512,), 0, 40), jnp.zeros((40,), jnp.int32)


def reference(v, i, z):
    return z.at[i].min(v)


# -- atomic_scalar
def k(x_ref, z_ref, o_ref):
    i = pl.program_id(0)
    plt.atomic_add(o_ref, 0, jnp.sum(x_ref[...]))
    plt.atomic_max(o_ref, (1,), jnp.max(x_ref[...], axis=0), mask=i > 1)


def run(x, z):
    return pl.pallas_call(
        k,
        grid=(4,),
        in_specs=[pl.BlockSpec((64,), lambda i: (i,)), pl.BlockSpec((2,), lambda i: (0,))],
        out_specs=pl.BlockSpec((2,), lambda i: (0,)),
        out_shape=jax.ShapeDtypeStruct((2,), x.dtype),
        input_output_aliases={1: 0},
        compiler_params=CP,
    )(x, z)


def example_atomic_scalar():
    return jax.random.normal(key, (256,)), jnp.zeros((2,))


def reference(x, z):
    return jnp.stack([x.sum(), jnp.maximum(0, x[128:].max())])


# -- atomic_tickets
def k(x_ref, c_ref, c2_ref, o_ref):
    x = x_ref[...]
    first = plt.atomic_add(c2_ref, 0, 64)
    o_ref[first + jnp.arange(64)] = x


def run(x, c):
    return pl.pallas_call(
        k,
        grid=(4,),
        in_specs=[pl.BlockSpec((64,), lambda i: (i,)), pl.BlockSpec((1,), lambda i: (0,))],
        out_specs=[pl.BlockSpec((1,), lambda i: (0,)), pl.BlockSpec((256,), lambda i: (0,))],
        out_shape=[jax.ShapeDtypeStruct((1,), jnp.int32), x],
        input_output_aliases={1: 0},
        compiler_params=CP,
    )(x, c)


def example_atomic_tickets():
    return jnp.ones((256,)), jnp.zeros((1,), jnp.int32)


def reference(x, c):
    return c + 256, x


# -- atomic_fetch_vector
def k(i_ref, c_ref, c2_ref, o_ref):
    old = plt.atomic_add(c2_ref, (i_ref[...],), jnp.full((64,), 2, jnp.int32))
    o_ref[...] = old


def run(i, c):
    return pl.pallas_call(
        k,
        grid=(4,),
        in_specs=[pl.BlockSpec((64,), lambda i: (i,)), pl.BlockSpec((256,), lambda i: (0,))],
        out_specs=[pl.BlockSpec((256,), lambda i: (0,)), pl.BlockSpec((64,), lambda i: (i,))],
        out_shape=[jax.ShapeDtypeStruct((256,), jnp.int32), jax.ShapeDtypeStruct((256,), jnp.int32)],
        input_output_aliases={1: 0},
        compiler_params=CP,
    )(i, c)


def example_atomic_fetch_vector():
    return jax.random.permutation(key, 256).astype(jnp.int32), jnp.arange(256, dtype=jnp.int32)


def reference(i, c):
    return c + 2, i


# -- atomic_lock
def k(x_ref, l_ref, acc_ref, l2_ref, o_ref):
    def wait(_):
        return plt.atomic_cas(l2_ref, 0, 1)
    lax.while_loop(lambda locked: locked == 1, wait, wait(0))
    o_ref[...] = o_ref[...] + x_ref[...]
    plt.atomic_xchg(l2_ref, (), 0)


def run(x, lock, acc):
    n = pl.BlockSpec((64,), lambda i: (0,))
    s = pl.BlockSpec((), lambda i: ())
    return pl.pallas_call(
        k,
        grid=(4,),
        in_specs=[pl.BlockSpec((64,), lambda i: (i,)), s, n],
        out_specs=[s, n],
        out_shape=[jax.ShapeDtypeStruct((), jnp.int32), jax.ShapeDtypeStruct((64,), jnp.float32)],
        input_output_aliases={1: 0, 2: 1},
        compiler_params=CP,
    )(x, lock, acc)


def example_atomic_lock():
    return jnp.ones((256,)), jnp.int32(0), jnp.zeros((64,))


def reference(x, l, a):
    return l, a + 4


# -- atomic_rows_vec
def k(x_ref, z_ref, o_ref, *, bm):
    i, j = pl.program_id(0), pl.program_id(1)
    rows = i * bm + jnp.arange(bm)
    cols = j * 64 + jnp.arange(64)
    m = rows < x_ref.shape[0]
    x = plt.load(x_ref.at[rows[:, None], cols[None, :]], mask=m[:, None], other=0.0)
    plt.atomic_add(o_ref, rows, jnp.sum(x, axis=1), mask=m)


def run(x, z):
    return pl.pallas_call(
        functools.partial(k, bm=32),
        grid=(pl.cdiv(x.shape[0], 32), x.shape[1] // 64),
        out_shape=jax.ShapeDtypeStruct(z.shape, z.dtype),
        input_output_aliases={1: 0},
        compiler_params=CP,
    )(x, z)


def example_atomic_rows_vec():
    return jax.random.normal(key, (77, 256)), jnp.zeros((77,))


def reference(x, z):
    return x.sum(1)


# -- atomic_tile
def k(x_ref, z_ref, o_ref):
    plt.atomic_add(o_ref, (slice(None), pl.ds(0, 64)), x_ref[...])


def run(x, z):
    w = pl.BlockSpec((16, 64), lambda i: (0, 0))
    return pl.pallas_call(
        k,
        grid=(4,),
        in_specs=[pl.BlockSpec((16, 64), lambda i: (i, 0)), w],
        out_specs=w,
        out_shape=jax.ShapeDtypeStruct(z.shape, z.dtype),
        input_output_aliases={1: 0},
        compiler_params=CP,
    )(x, z)


def example_atomic_tile():
    return jax.random.normal(key, (64, 64)), jnp.zeros((16, 64))


def reference(x, z):
    return x.reshape(4, 16, 64).sum(0)


# -- thin_refs
def k(x_ref, s_ref, o_ref):
    o_ref[...] = x_ref[...] * s_ref[...]


def run(x, s):
    return pl.pallas_call(
        k,
        grid=(4,),
        in_specs=[pl.BlockSpec((16, 64), lambda i: (i, 0)), pl.BlockSpec((16, 1), lambda i: (i, 0))],
        out_specs=pl.BlockSpec((16, 64), lambda i: (i, 0)),
        out_shape=x,
        compiler_params=CP,
    )(x, s)


def example_thin_refs():
    return jax.random.normal(key, (64, 64)), jax.random.normal(key, (64, 1))


def reference(x, s):
    return x * s


# -- thin_store
def k(x_ref, o_ref):
    o_ref[...] = jnp.sum(x_ref[...], axis=1, keepdims=True)


def run(x):
    return pl.pallas_call(
        k,
        grid=(4,),
        in_specs=[pl.BlockSpec((16, 64), lambda i: (i, 0))],
        out_specs=pl.BlockSpec((16, 1), lambda i: (i, 0)),
        out_shape=jax.ShapeDtypeStruct((64, 1), x.dtype),
        compiler_params=CP,
    )(x)


def example_thin_store():
    return (jax.random.normal(key, (64, 64)),)


def reference(x):
    return x.sum(1, keepdims=True)


# -- thin_row
def k(x_ref, s_ref, o_ref):
    o_ref[...] = x_ref[...] * s_ref[...]


def run(x, s):
    return pl.pallas_call(
        k,
        grid=(4,),
        in_specs=[pl.BlockSpec((16, 64), lambda i: (i, 0)), pl.BlockSpec((1, 64), lambda i: (0, 0))],
        out_specs=pl.BlockSpec((16, 64), lambda i: (i, 0)),
        out_shape=x,
        compiler_params=CP,
    )(x, s)


def example_thin_row():
    return jax.random.normal(key, (64, 64)), jax.random.normal(key, (1, 64))


def reference(x, s):
    return x * s


# -- thin_mixed
def k(x_ref, s_ref, b_ref, o_ref, m_ref):
    x = x_ref[...] * s_ref[...] + b_ref[...]
    m = jnp.max(x, axis=-1, keepdims=True) + s_ref[...]
    o_ref[...] = jnp.exp(x - m)
    m_ref[...] = m


def run(x, s, b):
    t, c = pl.BlockSpec((16, 64), lambda i: (i, 0)), pl.BlockSpec((16, 1), lambda i: (i, 0))
    return pl.pallas_call(
        k,
        grid=(4,),
        in_specs=[t, c, pl.BlockSpec((1, 64), lambda i: (0, 0))],
        out_specs=[t, c],
        out_shape=[x, s],
        compiler_params=CP,
    )(x, s, b)


def example_thin_mixed():
    return jax.random.normal(key, (64, 64)), jax.random.normal(key, (64, 1)), jax.random.normal(key, (1, 64))


def reference(x, s, b):
    x = x * s + b
    m = x.max(1, keepdims=True) + s
    return jnp.exp(x - m), m


# -- thin_whole
def k(x_ref, o_ref):
    x = x_ref[...]
    o_ref[...] = jnp.sum(x, axis=1, keepdims=True)


def run(x):
    m, n = x.shape
    return pl.pallas_call(k, out_shape=jax.ShapeDtypeStruct((m, 1), x.dtype), compiler_params=CP)(x)


def example_thin_whole():
    return (jax.random.normal(key, (64, 64)),)


def reference(x):
    return x.sum(1, keepdims=True)


# -- thin_column_ds
def k(x_ref, o_ref):
    j = pl.program_id(0)
    x = x_ref[:, pl.ds(j, 1)]
    o_ref[...] = x * 2


def run(x):
    m, n = x.shape
    return pl.pallas_call(
        k,
        grid=(n,),
        in_specs=[pl.BlockSpec((m, n), lambda j: (0, 0))],
        out_specs=pl.BlockSpec((m, 1), lambda j: (0, j)),
        out_shape=x,
        compiler_params=CP,
    )(x)


def example_thin_column_ds():
    return (jax.random.normal(key, (64, 5)),)


def reference(x):
    return x * 2


# -- thin_masked
def k(x_ref, o_ref):
    i = pl.program_id(0)
    rows = i * 16 + jnp.arange(16)
    x = plt.load(x_ref.at[pl.ds(i * 16, 16), pl.ds(0, 1)], mask=(rows < 61)[:, None], other=0.0)
    plt.store(o_ref.at[pl.ds(i * 16, 16), :], x + 1, mask=(rows < 61)[:, None])


def run(x):
    m, n = x.shape
    return pl.pallas_call(
        k,
        grid=(4,),
        in_specs=[pl.BlockSpec((m, n), lambda j: (0, 0))],
        out_specs=pl.BlockSpec((m, 1), lambda j: (0, 0)),
        out_shape=x,
        compiler_params=CP,
    )(x)


def example_thin_masked():
    return (jax.random.normal(key, (61, 1)),)


def reference(x):
    return x + 1


# -- one_row_block
def k(x_ref, o_ref):
    x = x_ref[...]
    o_ref[...] = x / jnp.sum(x, axis=1, keepdims=True)


def run(x):
    b = pl.BlockSpec((1, 64), lambda i: (i, 0))
    return pl.pallas_call(k, grid=(x.shape[0],), in_specs=[b], out_specs=b, out_shape=x, compiler_params=CP)(x)


def example_one_row_block():
    return (jax.random.uniform(key, (6, 64)),)


def reference(x):
    return x / x.sum(1, keepdims=True)


# -- one_element
def k(x_ref, s_ref, o_ref):
    i = pl.program_id(0)
    a = x_ref[pl.ds(i, 1)] * 2
    o_ref[...] = a + s_ref[0]


def run(x, s):
    return pl.pallas_call(
        k,
        grid=(5,),
        in_specs=[pl.BlockSpec((5,), lambda i: (0,)), pl.BlockSpec((1,), lambda i: (0,))],
        out_specs=pl.BlockSpec((1,), lambda i: (i,)),
        out_shape=x,
        compiler_params=CP,
    )(x, s)


def example_one_element():
    return jax.random.normal(key, (5,)), jax.random.normal(key, (1,))


def reference(x, s):
    return x * 2 + s


# -- tiny_1
def k(x_ref, o_ref):
    o_ref[...] = x_ref[...] * 2 + 1


def run(x):
    return pl.pallas_call(k, out_shape=x, compiler_params=CP)(x)


def example_tiny_1():
    return (jax.random.normal(key, (1,)),)


def reference(x):
    return x * 2 + 1


# -- tiny_2
def k(x_ref, o_ref):
    o_ref[...] = x_ref[...] * 2 + 1


def run(x):
    return pl.pallas_call(k, out_shape=x, compiler_params=CP)(x)


def example_tiny_2():
    return (jax.random.normal(key, (2,)),)


def reference(x):
    return x * 2 + 1


# -- tiny_8
def k(x_ref, o_ref):
    o_ref[...] = x_ref[...] * 2 + 1


def run(x):
    return pl.pallas_call(k, out_shape=x, compiler_params=CP)(x)


def example_tiny_8():
    return (jax.random.normal(key, (8,)),)


def reference(x):
    return x * 2 + 1


# -- b121
def k(x_ref, o_ref):
    r = jnp.arange(16)
    x = x_ref[r[:, None], r[None, :]]
    o_ref[...] = jnp.where(r[:, None] == r[None, :], x, 0.0)


def run(x):
    return pl.pallas_call(k, out_shape=x, compiler_params=CP)(x)


def example_b121():
    return (jax.random.uniform(key, (16, 16)),)


def reference(x):
    return x * jnp.eye(16)


# -- b121_mask
def k(x_ref, o_ref):
    i = pl.program_id(0)
    r = i * 16 + jnp.arange(16)
    ok = r < x_ref.shape[0]
    m = ok[:, None] & ok[None, :] & (r[:, None] >= r[None, :])
    x = plt.load(x_ref.at[r[:, None], r[None, :]], mask=m, other=0.0)
    plt.store(o_ref.at[r[:, None], r[None, :]], x, mask=ok[:, None] & ok[None, :])


def run(x):
    return pl.pallas_call(k, grid=(1,), out_shape=x, compiler_params=CP)(x)


def example_b121_mask():
    return (jax.random.uniform(key, (16, 16)),)


def reference(x):
    return jnp.tril(x)


# -- expand_dims
def k(x_ref, w_ref, o_ref, m_ref):
    x = x_ref[...]
    m = jnp.expand_dims(jnp.max(x, axis=1), 1)
    e = jnp.exp(x - m) * jnp.expand_dims(w_ref[...], axis=0)
    o_ref[...] = e
    m_ref[...] = (m * 2)[:, 0] + jnp.squeeze(m) + m.reshape(-1)


def run(x, w):
    return pl.pallas_call(
        k,
        out_shape=[x, jax.ShapeDtypeStruct(x.shape[:1], x.dtype)],
        in_specs=[pl.BlockSpec((16, 64), lambda: (0, 0)), pl.BlockSpec((64,), lambda: (0,))],
        out_specs=[pl.BlockSpec((16, 64), lambda: (0, 0)), pl.BlockSpec((16,), lambda: (0,))],
        compiler_params=CP,
    )(x, w)


def example_expand_dims():
    return jax.random.uniform(key, (16, 64)), jax.random.uniform(key, (64,))


def reference(x, w):
    return jnp.exp(x - x.max(1, keepdims=True)) * w, x.max(1) * 4


# -- m_scalar_mask
def k(a_ref, o_ref):
    i, j = pl.program_id(0), pl.program_id(1)
    rows, cols = i * 16 + jnp.arange(16), j * 64 + jnp.arange(64)

    at = (rows[:, None], cols[None, :])
    x = plt.load(a_ref.at[at], mask=i > 1, other=7.0)
    plt.store(o_ref.at[at], x)


def run(*args):
    x = args[0]
    return pl.pallas_call(
        k,
        grid=(pl.cdiv(x.shape[0], 16), pl.cdiv(x.shape[1], 64)),
        out_shape=x,
        compiler_params=CP,
    )(*args)


def example_m_scalar_mask():
    return (jax.random.normal(key, (64, 128)),)


def reference(*args):
    x = args[0]
    return jnp.where(jnp.arange(64)[:, None] >= 32, x, 7.0)


# -- m_two_loaded
def k(a_ref, b_ref, o_ref):
    i, j = pl.program_id(0), pl.program_id(1)
    rows, cols = i * 16 + jnp.arange(16), j * 64 + jnp.arange(64)

    at = (rows[:, None], cols[None, :])
    a, b = a_ref[at], b_ref[at]
    m = a < b
    c = plt.load(a_ref.at[at], mask=m, other=b)
    plt.store(o_ref.at[at], c)
    plt.store(o_ref.at[at], c * 2, mask=a > b)


def run(*args):
    x = args[0]
    return pl.pallas_call(
        k,
        grid=(pl.cdiv(x.shape[0], 16), pl.cdiv(x.shape[1], 64)),
        out_shape=x,
        compiler_params=CP,
    )(*args)


def example_m_two_loaded():
    return (jax.random.normal(key, (64, 128)), jax.random.normal(jax.random.key(1), (64, 128)),)


def reference(*args):
    x = args[0]
    return jnp.where(args[0] < args[1], x, 2 * args[1])


# -- m_lo_hi_mem
def k(a_ref, b_ref, o_ref):
    i, j = pl.program_id(0), pl.program_id(1)
    rows, cols = i * 16 + jnp.arange(16), j * 64 + jnp.arange(64)

    at = (rows[:, None], cols[None, :])
    lo, hi = b_ref[0], b_ref[1]
    m = ((rows >= lo) & (rows < hi))[:, None] & (cols[None, :] < b_ref[2])
    x = plt.load(a_ref.at[at], mask=m, other=-5.0)
    plt.store(o_ref.at[at], x)


def run(*args):
    x = args[0]
    return pl.pallas_call(
        k,
        grid=(pl.cdiv(x.shape[0], 16), pl.cdiv(x.shape[1], 64)),
        out_shape=x,
        compiler_params=CP,
    )(*args)


def example_m_lo_hi_mem():
    return (jax.random.normal(key, (64, 128)), jnp.array([3, 40, 77], jnp.int32),)


def reference(*args):
    x = args[0]
    return jnp.where((jnp.arange(64)[:, None] >= 3) & (jnp.arange(64)[:, None] < 40) & (jnp.arange(128)[None] < 77), x, -5.0)


# -- m_causal
def k(a_ref, b_ref, o_ref):
    i, j = pl.program_id(0), pl.program_id(1)
    rows, cols = i * 16 + jnp.arange(16), j * 64 + jnp.arange(64)

    at = (rows[:, None], cols[None, :])
    m = rows[:, None] >= cols[None, :] - b_ref[i]
    x = plt.load(a_ref.at[at], mask=m, other=-jnp.inf)
    o_ref[at] = x


def run(*args):
    x = args[0]
    return pl.pallas_call(
        k,
        grid=(pl.cdiv(x.shape[0], 16), pl.cdiv(x.shape[1], 64)),
        out_shape=x,
        compiler_params=CP,
    )(*args)


def example_m_causal():
    return (jax.random.normal(key, (64, 128)), jnp.array([3, 40, 77, 1], jnp.int32),)


def reference(*args):
    x = args[0]
    return jnp.where(jnp.arange(64)[:, None] >= jnp.arange(128)[None] - jnp.repeat(args[1], 16)[:, None], x, -jnp.inf)


# -- m_row_from_mem
def k(a_ref, b_ref, o_ref):
    i, j = pl.program_id(0), pl.program_id(1)
    rows, cols = i * 16 + jnp.arange(16), j * 64 + jnp.arange(64)

    at = (rows[:, None], cols[None, :])
    n = b_ref[rows]
    m = cols[None, :] < n[:, None]
    x = plt.load(a_ref.at[at], mask=m, other=0.0)
    o_ref[at] = x


def run(*args):
    x = args[0]
    return pl.pallas_call(
        k,
        grid=(pl.cdiv(x.shape[0], 16), pl.cdiv(x.shape[1], 64)),
        out_shape=x,
        compiler_params=CP,
    )(*args)


def example_m_row_from_mem():
    return (jax.random.normal(key, (64, 128)), jax.random.randint(key, (64,), 0, 128),)


def reference(*args):
    x = args[0]
    return jnp.where(jnp.arange(128)[None] < args[1][:, None], x, 0)


# -- m_seg_ids
def k(a_ref, b_ref, c_ref, o_ref):
    i, j = pl.program_id(0), pl.program_id(1)
    rows, cols = i * 16 + jnp.arange(16), j * 64 + jnp.arange(64)

    at = (rows[:, None], cols[None, :])
    m = b_ref[rows][:, None] == c_ref[cols][None, :]
    x = plt.load(a_ref.at[at], mask=m, other=0.0)
    o_ref[at] = x


def run(*args):
    x = args[0]
    return pl.pallas_call(
        k,
        grid=(pl.cdiv(x.shape[0], 16), pl.cdiv(x.shape[1], 64)),
        out_shape=x,
        compiler_params=CP,
    )(*args)


def example_m_seg_ids():
    return (jax.random.normal(key, (64, 128)), jax.random.randint(key, (64,), 0, 3), jax.random.randint(key, (128,), 0, 3),)


def reference(*args):
    x = args[0]
    return jnp.where(args[1][:, None] == args[2][None], x, 0)


# -- m_mod
def k(a_ref, o_ref):
    i, j = pl.program_id(0), pl.program_id(1)
    rows, cols = i * 16 + jnp.arange(16), j * 64 + jnp.arange(64)

    at = (rows[:, None], cols[None, :])
    m = (cols % 3 != 0)[None, :]
    x = plt.load(a_ref.at[at], mask=m, other=0.0)
    o_ref[at] = x


def run(*args):
    x = args[0]
    return pl.pallas_call(
        k,
        grid=(pl.cdiv(x.shape[0], 16), pl.cdiv(x.shape[1], 64)),
        out_shape=x,
        compiler_params=CP,
    )(*args)


def example_m_mod():
    return (jax.random.normal(key, (64, 128)),)


def reference(*args):
    x = args[0]
    return jnp.where(jnp.arange(128)[None] % 3 != 0, x, 0)


# -- m_int8_mask
def k(a_ref, b_ref, o_ref):
    i, j = pl.program_id(0), pl.program_id(1)
    rows, cols = i * 16 + jnp.arange(16), j * 64 + jnp.arange(64)

    at = (rows[:, None], cols[None, :])
    m = b_ref[at] != 0
    x = plt.load(a_ref.at[at], mask=m, other=0.0)
    o_ref[at] = x


def run(*args):
    x = args[0]
    return pl.pallas_call(
        k,
        grid=(pl.cdiv(x.shape[0], 16), pl.cdiv(x.shape[1], 64)),
        out_shape=x,
        compiler_params=CP,
    )(*args)


def example_m_int8_mask():
    return (jax.random.normal(key, (64, 128)), jax.random.randint(key, (64, 128), 0, 2).astype(jnp.int8),)


def reference(*args):
    x = args[0]
    return jnp.where(args[1] != 0, x, 0)


# -- m_bool_mask
def k(a_ref, b_ref, o_ref):
    i, j = pl.program_id(0), pl.program_id(1)
    rows, cols = i * 16 + jnp.arange(16), j * 64 + jnp.arange(64)

    at = (rows[:, None], cols[None, :])
    m = b_ref[at]
    x = plt.load(a_ref.at[at], mask=m, other=0.0)
    o_ref[at] = x


def run(*args):
    x = args[0]
    return pl.pallas_call(
        k,
        grid=(pl.cdiv(x.shape[0], 16), pl.cdiv(x.shape[1], 64)),
        out_shape=x,
        compiler_params=CP,
    )(*args)


def example_m_bool_mask():
    return (jax.random.normal(key, (64, 128)), jax.random.bernoulli(key, .5, (64, 128)),)


def reference(*args):
    x = args[0]
    return jnp.where(args[1], x, 0)


# -- m_ds_mask
def k(a_ref, o_ref):
    i, j = pl.program_id(0), pl.program_id(1)
    rows, cols = i * 16 + jnp.arange(16), j * 64 + jnp.arange(64)

    at = (pl.ds(i * 16, 16), pl.ds(j * 64, 64))
    m = (rows < a_ref.shape[0])[:, None] & (cols < a_ref.shape[1])[None, :]
    x = plt.load(a_ref.at[at], mask=m)
    plt.store(o_ref.at[at], x + 1, mask=m)


def run(*args):
    x = args[0]
    return pl.pallas_call(
        k,
        grid=(pl.cdiv(x.shape[0], 16), pl.cdiv(x.shape[1], 64)),
        out_shape=x,
        compiler_params=CP,
    )(*args)


def example_m_ds_mask():
    return (jax.random.normal(key, (61, 99)),)


def reference(*args):
    x = args[0]
    return x + 1


# -- m_col_mask_only
def k(a_ref, o_ref):
    i, j = pl.program_id(0), pl.program_id(1)
    rows, cols = i * 16 + jnp.arange(16), j * 64 + jnp.arange(64)

    at = (rows[:, None], cols[None, :])
    x = plt.load(a_ref.at[at], mask=cols[None, :] < 100, other=1.5)
    plt.store(o_ref.at[at], x)


def run(*args):
    x = args[0]
    return pl.pallas_call(
        k,
        grid=(pl.cdiv(x.shape[0], 16), pl.cdiv(x.shape[1], 64)),
        out_shape=x,
        compiler_params=CP,
    )(*args)


def example_m_col_mask_only():
    return (jax.random.normal(key, (64, 128)),)


def reference(*args):
    x = args[0]
    return jnp.where(jnp.arange(128)[None] < 100, x, 1.5)


# -- m_always
def k(a_ref, o_ref):
    i, j = pl.program_id(0), pl.program_id(1)
    rows, cols = i * 16 + jnp.arange(16), j * 64 + jnp.arange(64)

    at = (rows[:, None], cols[None, :])
    x = plt.load(a_ref.at[at], mask=None)
    plt.store(o_ref.at[at], x, mask=None)


def run(*args):
    x = args[0]
    return pl.pallas_call(
        k,
        grid=(pl.cdiv(x.shape[0], 16), pl.cdiv(x.shape[1], 64)),
        out_shape=x,
        compiler_params=CP,
    )(*args)


def example_m_always():
    return (jax.random.normal(key, (64, 128)),)


def reference(*args):
    x = args[0]
    return x


# -- m_other_int
def k(a_ref, o_ref):
    i, j = pl.program_id(0), pl.program_id(1)
    rows, cols = i * 16 + jnp.arange(16), j * 64 + jnp.arange(64)

    at = (rows[:, None], cols[None, :])
    x = plt.load(a_ref.at[at], mask=(cols < 100)[None, :], other=0)
    plt.store(o_ref.at[at], x)


def run(*args):
    x = args[0]
    return pl.pallas_call(
        k,
        grid=(pl.cdiv(x.shape[0], 16), pl.cdiv(x.shape[1], 64)),
        out_shape=x,
        compiler_params=CP,
    )(*args)


def example_m_other_int():
    return (jax.random.normal(key, (64, 128)),)


def reference(*args):
    x = args[0]
    return jnp.where(jnp.arange(128)[None] < 100, x, 0)


# -- m_other_dtype_min
def k(a_ref, o_ref):
    i, j = pl.program_id(0), pl.program_id(1)
    rows, cols = i * 16 + jnp.arange(16), j * 64 + jnp.arange(64)

    at = (rows[:, None], cols[None, :])
    x = plt.load(a_ref.at[at], mask=(cols < 100)[None, :], other=jnp.finfo(jnp.float32).min)
    plt.store(o_ref.at[at], x)


def run(*args):
    x = args[0]
    return pl.pallas_call(
        k,
        grid=(pl.cdiv(x.shape[0], 16), pl.cdiv(x.shape[1], 64)),
        out_shape=x,
        compiler_params=CP,
    )(*args)


def example_m_other_dtype_min():
    return (jax.random.normal(key, (64, 128)),)


def reference(*args):
    x = args[0]
    return jnp.where(jnp.arange(128)[None] < 100, x, jnp.finfo(jnp.float32).min)


# -- v_ternary
def k(a_ref, o_ref):
    i = pl.program_id(0)
    at = i * 128 + jnp.arange(128)
    inside = at < o_ref.shape[0]

    x = plt.load(a_ref.at[at], mask=inside & (at % 7 > 2), other=0.0)
    plt.store(o_ref.at[at], x, mask=inside)


def run(*args):
    x = args[0]
    return pl.pallas_call(k, grid=(pl.cdiv(x.shape[0], 128),), out_shape=x, compiler_params=CP)(*args)


def example_v_ternary():
    return (jax.random.normal(key, (1000,)),)


def reference(*args):
    x = args[0]
    return jnp.where(jnp.arange(1000) % 7 > 2, x, 0)


# -- v_reverse
def k(a_ref, o_ref):
    i = pl.program_id(0)
    at = i * 128 + jnp.arange(128)
    inside = at < o_ref.shape[0]

    x = plt.load(a_ref.at[a_ref.shape[0] - 1 - at], mask=inside, other=0.0)
    plt.store(o_ref.at[at], x, mask=inside)


def run(*args):
    x = args[0]
    return pl.pallas_call(k, grid=(pl.cdiv(x.shape[0], 128),), out_shape=x, compiler_params=CP)(*args)


def example_v_reverse():
    return (jax.random.normal(key, (1000,)),)


def reference(*args):
    x = args[0]
    return x[::-1]


# -- v_shift
def k(a_ref, o_ref):
    i = pl.program_id(0)
    at = i * 128 + jnp.arange(128)
    inside = at < o_ref.shape[0]

    p = at - 1
    x = plt.load(a_ref.at[p], mask=inside & (p >= 0), other=0.0)
    plt.store(o_ref.at[at], x, mask=inside)


def run(*args):
    x = args[0]
    return pl.pallas_call(k, grid=(pl.cdiv(x.shape[0], 128),), out_shape=x, compiler_params=CP)(*args)


def example_v_shift():
    return (jax.random.normal(key, (1000,)),)


def reference(*args):
    x = args[0]
    return jnp.concatenate([jnp.zeros(1), x[:-1]])


# -- v_where_index
def k(a_ref, o_ref):
    i = pl.program_id(0)
    at = i * 128 + jnp.arange(128)
    inside = at < o_ref.shape[0]

    x = a_ref[jnp.where(inside, at, 0)]
    plt.store(o_ref.at[at], x, mask=inside)


def run(*args):
    x = args[0]
    return pl.pallas_call(k, grid=(pl.cdiv(x.shape[0], 128),), out_shape=x, compiler_params=CP)(*args)


def example_v_where_index():
    return (jax.random.normal(key, (1000,)),)


def reference(*args):
    x = args[0]
    return x


# -- v_min_index
def k(a_ref, o_ref):
    i = pl.program_id(0)
    at = i * 128 + jnp.arange(128)
    inside = at < o_ref.shape[0]

    x = a_ref[jnp.minimum(at, a_ref.shape[0] - 1)]
    plt.store(o_ref.at[at], x, mask=inside)


def run(*args):
    x = args[0]
    return pl.pallas_call(k, grid=(pl.cdiv(x.shape[0], 128),), out_shape=x, compiler_params=CP)(*args)


def example_v_min_index():
    return (jax.random.normal(key, (1000,)),)


def reference(*args):
    x = args[0]
    return x


# -- v_scalar_from_array_idx
def k(a_ref, b_ref, o_ref):
    i = pl.program_id(0)
    at = i * 128 + jnp.arange(128)
    inside = at < o_ref.shape[0]

    s = a_ref[b_ref[i]]
    x = plt.load(a_ref.at[at], mask=inside, other=0.0)
    plt.store(o_ref.at[at], x * s, mask=inside)


def run(*args):
    x = args[0]
    return pl.pallas_call(k, grid=(pl.cdiv(x.shape[0], 128),), out_shape=x, compiler_params=CP)(*args)


def example_v_scalar_from_array_idx():
    return (jax.random.normal(key, (1000,)), jnp.arange(8, dtype=jnp.int32) * 3,)


def reference(*args):
    x = args[0]
    return x * jnp.repeat(x[args[1]], 128)[:1000]


# -- v_loop_gather
def k(a_ref, b_ref, o_ref):
    i = pl.program_id(0)
    at = i * 128 + jnp.arange(128)
    inside = at < o_ref.shape[0]

    def step(t, acc):
        ix = plt.load(b_ref.at[at, t], mask=inside, other=0)
        return acc + a_ref[ix]
    acc = lax.fori_loop(0, 3, step, jnp.zeros((128,), jnp.float32))
    plt.store(o_ref.at[at], acc, mask=inside)


def run(*args):
    x = args[0]
    return pl.pallas_call(k, grid=(pl.cdiv(x.shape[0], 128),), out_shape=x, compiler_params=CP)(*args)


def example_v_loop_gather():
    return (jax.random.normal(key, (1000,)), jax.random.randint(key, (1000, 3), 0, 1000),)


def reference(*args):
    x = args[0]
    return x[args[1]].sum(1)


# -- v_i16
def k(a_ref, o_ref):
    i = pl.program_id(0)
    at = i * 128 + jnp.arange(128)
    inside = at < o_ref.shape[0]

    x = plt.load(a_ref.at[at], mask=inside, other=0)
    plt.store(o_ref.at[at], x, mask=inside)


def run(*args):
    x = args[0]
    return pl.pallas_call(k, grid=(pl.cdiv(x.shape[0], 128),), out_shape=x, compiler_params=CP)(*args)


def example_v_i16():
    return (jax.random.randint(key, (1000,), -100, 100).astype(jnp.int16),)


def reference(*args):
    x = args[0]
    return x


# -- v_i8
def k(a_ref, o_ref):
    i = pl.program_id(0)
    at = i * 128 + jnp.arange(128)
    inside = at < o_ref.shape[0]

    x = plt.load(a_ref.at[at], mask=inside, other=0)
    plt.store(o_ref.at[at], x, mask=inside)


def run(*args):
    x = args[0]
    return pl.pallas_call(k, grid=(pl.cdiv(x.shape[0], 128),), out_shape=x, compiler_params=CP)(*args)


def example_v_i8():
    return (jax.random.randint(key, (1000,), -100, 100).astype(jnp.int8),)


def reference(*args):
    x = args[0]
    return x


# -- v_when_store
def k(a_ref, o_ref):
    i = pl.program_id(0)
    at = i * 128 + jnp.arange(128)
    inside = at < o_ref.shape[0]

    x = plt.load(a_ref.at[at], mask=inside, other=0)
    @pl.when(i % 2 == 0)
    def _():
        plt.store(o_ref.at[at], x, mask=inside)
    @pl.when(i % 2 == 1)
    def _():
        plt.store(o_ref.at[at], -x, mask=inside)


def run(*args):
    x = args[0]
    return pl.pallas_call(k, grid=(pl.cdiv(x.shape[0], 128),), out_shape=x, compiler_params=CP)(*args)


def example_v_when_store():
    return (jax.random.normal(key, (1000,)),)


def reference(*args):
    x = args[0]
    return jnp.where(jnp.arange(1000) // 128 % 2 == 0, x, -x)


# -- v_scalar_loop
def k(a_ref, o_ref):
    i = pl.program_id(0)
    at = i * 128 + jnp.arange(128)
    inside = at < o_ref.shape[0]

    def step(t, s):
        return s + a_ref[t]
    s = lax.fori_loop(0, 10, step, jnp.float32(0))
    x = plt.load(a_ref.at[at], mask=inside, other=0)
    plt.store(o_ref.at[at], x + s, mask=inside)


def run(*args):
    x = args[0]
    return pl.pallas_call(k, grid=(pl.cdiv(x.shape[0], 128),), out_shape=x, compiler_params=CP)(*args)


def example_v_scalar_loop():
    return (jax.random.normal(key, (1000,)),)


def reference(*args):
    x = args[0]
    return x + x[:10].sum()


# -- atomic_in_loop
def k(x_ref, z_ref, o_ref):
    i = pl.program_id(0)
    def step(t, c):
        x = x_ref[:, pl.ds(t * 64, 64)]
        plt.atomic_add(o_ref, (i * 32 + jnp.arange(32),), jnp.sum(x, axis=1))
        return c + jnp.max(x)
    m = lax.fori_loop(0, x_ref.shape[1] // 64, step, jnp.float32(-1e30))
    @pl.when(i % 2 == 0)
    def _():
        plt.atomic_max(o_ref, 64, m)
        n = plt.atomic_add(o_ref, 65, 1.0)
        o_ref[66 + i] = n * 0


def run(x, z):
    w = pl.BlockSpec((z.shape[0],), lambda i: (0,))
    return pl.pallas_call(
        k,
        grid=(2,),
        in_specs=[pl.BlockSpec((32, x.shape[1]), lambda i: (i, 0)), w],
        out_specs=w,
        out_shape=z,
        input_output_aliases={1: 0},
        compiler_params=CP,
    )(x, z)


def example_atomic_in_loop():
    return jax.random.normal(key, (64, 256)), jnp.zeros((72,))


def reference(x, z):
    b = x.reshape(2, 32, 4, 64).max((1, 3)).sum(1) - 1e30
    return z.at[:64].set(x.sum(1)).at[64].set(jnp.maximum(0, b[0])).at[65].set(1)


# -- atomic_of_earlier_jax
def k(x_ref, z_ref, o_ref):
    i = pl.program_id(0)
    pl.atomic_add(o_ref, (pl.dslice(0, 64),), x_ref[...])
    pl.atomic_max(o_ref, (64,), jnp.max(x_ref[...]))


def run(x, z):
    w = pl.BlockSpec((z.shape[0],), lambda i: (0,))
    return pl.pallas_call(
        k,
        grid=(2,),
        in_specs=[pl.BlockSpec((64,), lambda i: (i,)), w],
        out_specs=w,
        out_shape=z,
        input_output_aliases={1: 0},
        compiler_params=CP,
    )(x, z)


def example_atomic_of_earlier_jax():
    return jax.random.normal(key, (128,)), jnp.zeros((65,))


def reference(x, z):
    return jnp.concatenate([x[:64] + x[64:], x.max()[None]])


# -- atomic_ragged_groups
def k(off_ref, x_ref, z_ref, o_ref):
    g, c = pl.program_id(0), pl.program_id(1)
    lo, hi = off_ref[g], off_ref[g + 1]
    rows = lo + c * 16 + jnp.arange(16)
    @pl.when(lo + c * 16 < hi)
    def _():
        x = plt.load(x_ref.at[rows[:, None], jnp.arange(64)[None, :]], mask=(rows < hi)[:, None], other=0.0)
        plt.atomic_add(o_ref, (g, jnp.arange(64)), jnp.sum(x, axis=0))


def run(off, x):
    g = off.shape[0] - 1
    return pl.pallas_call(
        k,
        grid=(g, 4),
        out_shape=jax.ShapeDtypeStruct((g, 64), x.dtype),
        input_output_aliases={2: 0},
        compiler_params=CP,
    )(off, x, jnp.zeros((g, 64)))


def example_atomic_ragged_groups():
    return jnp.array([0, 7, 7, 40, 100], jnp.int32), jax.random.normal(key, (100, 64))


def reference(o, x):
    own = jnp.searchsorted(o[1:], jnp.arange(x.shape[0]), side="right")
    return jax.ops.segment_sum(x, own, o.shape[0] - 1)


# -- gather_four
def k(x_ref, i_ref, o_ref):
    ix = i_ref[...]
    o_ref[...] = x_ref[ix] + ix.astype(jnp.float32)


def run(x, i):
    return pl.pallas_call(k, out_shape=jax.ShapeDtypeStruct(i.shape, x.dtype), compiler_params=CP)(x, i)


def example_gather_four():
    return jax.random.normal(key, (64,)), jnp.array([3, 5, 1, 0], jnp.int32)


def reference(x, i):
    return x[i] + i


# -- atomic_bf16
def k(x_ref, i_ref, z_ref, o_ref):
    plt.atomic_add(o_ref, (i_ref[...],), x_ref[...].astype(o_ref.dtype))


def run(x, i, z):
    b = pl.BlockSpec((64,), lambda i: (i,))
    w = pl.BlockSpec((z.shape[0],), lambda i: (0,))
    return pl.pallas_call(
        k,
        grid=(2,),
        in_specs=[b, b, w],
        out_specs=w,
        out_shape=z,
        input_output_aliases={2: 0},
        compiler_params=CP,
    )(x, i, z)


def example_atomic_bf16():
    return jnp.ones((128,)), jax.random.randint(key, (128,), 0, 9), jnp.zeros((9,), jnp.bfloat16)


def reference(x, i, z):
    return z.at[i].add(1)


# -- tile_float8
def k(x_ref, wide_ref, half_ref):
    i = pl.program_id(0) * 64 + jnp.arange(64)
    x = plt.load(x_ref.at[i], mask=i < x_ref.shape[0], other=1.5).astype(jnp.float32)
    wide_ref[i] = x
    half_ref[i] = (x * 0.5).astype(half_ref.dtype)


def run(x):
    return pl.pallas_call(
        k,
        grid=(4,),
        out_shape=[jax.ShapeDtypeStruct((256,), jnp.float32), jax.ShapeDtypeStruct((256,), jnp.float8_e5m2)],
        compiler_params=CP,
    )(x)


def example_tile_float8():
    return ((jnp.arange(250) / 10).astype(jnp.float8_e4m3fn),)


def reference(x):
    wide = jnp.pad(x.astype(jnp.float32), (0, 6), constant_values=1.5)
    return [wide, (wide * 0.5).astype(jnp.float8_e5m2)]
