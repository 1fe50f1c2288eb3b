"""Turns Triton's atomic operations into `_atomic` and `_atomic_element`.

Why: Mosaic GPU's own atomics take neither index vectors nor masks, return nothing, refuse arrays that
several threads hold (such as the sums of rows), and compare int32 as unsigned. The support code issues
one predicated `red` or `atom` per element, from one of the threads that hold it; sums of rows go
through shared memory first, so that neighbouring threads hit neighbouring elements.

An atomic whose result nobody reads is a relaxed `red`. If the kernel reads results of atomics, or loads
what they write, programs may wait for each other, and all its atomics are `order="acq_rel"`, as all of
Triton's are.

Does not cover: 64-bit types, and 16-bit types but for `add`. Atomics beside matrix products stay on
Triton.
"""

from __future__ import annotations

import libcst as cst

from ..translator import actions
from .engine import Example, Rule, expression
from .loads import call, named

BEFORE = '''
import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu


def count_kernel(bins_ref, zeros_ref, counts_ref, *, block):
    del zeros_ref  # the same memory as counts_ref
    at = pl.program_id(0) * block + jnp.arange(block)
    inside = at < bins_ref.shape[0]
    bins = plgpu.load(bins_ref.at[at], mask=inside, other=0)
    plgpu.atomic_add(counts_ref, (bins,), jnp.ones((block,), jnp.int32), mask=inside)


def count(bins, counts):
    return pl.pallas_call(
        functools.partial(count_kernel, block=256),
        grid=(pl.cdiv(bins.shape[0], 256),),
        out_shape=jax.ShapeDtypeStruct(counts.shape, jnp.int32),
        input_output_aliases={1: 0},
        compiler_params=plgpu.CompilerParams(num_warps=4),
    )(bins, counts)
'''


class Atomics(Rule):
    code = "MG204"
    name = "atomics"
    title = "Atomic operations keep their index vectors, masks and results"
    nodes = {actions.Atomic: (cst.Call,)}
    EXAMPLES = (
        Example(before=BEFORE, after='''
    _atomic(
        "add", counts_ref, (bins,), jnp.ones((block,), jnp.int32), mask=inside,
        layout=layout
    )
'''),
    )

    def rewrite(self, action: actions.Atomic, node: cst.Call) -> cst.BaseExpression:
        positional = [a.value for a in node.args if a.keyword is None]
        rest = [a for a in node.args if a.keyword is not None]
        if action.operation == "cas":
            positional.insert(1, expression("..."))
        name = expression(f'"{action.operation}"')
        if action.fetch:
            rest.append(named("fetch", "True"))
        if action.ordered:
            rest.append(named("order", '"acq_rel"'))
        function = "_atomic" if action.layout else "_atomic_element"
        return call(function, node, [name, *positional], rest, action.layout, "")
