"""Elements and rows picked by index vectors from memory, with ragged ends."""

import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu


def gather_kernel(table_ref, index_ref, out_ref, *, block):
    at = pl.program_id(0) * block + jnp.arange(block)
    inside = at < index_ref.shape[0]
    index = plgpu.load(index_ref.at[at], mask=inside, other=0)
    plgpu.store(out_ref.at[at], plgpu.load(table_ref.at[index], mask=inside), mask=inside)


def gather(table, index, block=1024):
    return pl.pallas_call(
        functools.partial(gather_kernel, block=block),
        grid=(pl.cdiv(index.shape[0], block),),
        out_shape=jax.ShapeDtypeStruct(index.shape, table.dtype),
        compiler_params=plgpu.CompilerParams(num_warps=4),
    )(table, index)


def gather_rows_kernel(table_ref, index_ref, out_ref):
    # An embedding: the rows are far apart, each row is consecutive.
    index = index_ref[...]
    out_ref[...] = table_ref[index, :]


def gather_rows(table, index, rows=8):
    n, width = index.shape[0], table.shape[1]
    return pl.pallas_call(
        gather_rows_kernel,
        grid=(n // rows,),
        in_specs=[
            pl.BlockSpec(table.shape, lambda i: (0, 0)),
            pl.BlockSpec((rows,), lambda i: (i,)),
        ],
        out_specs=pl.BlockSpec((rows, width), lambda i: (i, 0)),
        out_shape=jax.ShapeDtypeStruct((n, width), table.dtype),
        compiler_params=plgpu.CompilerParams(num_warps=4),
    )(table, index)
