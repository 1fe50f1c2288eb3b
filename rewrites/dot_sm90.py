"""Multiplies with wgmma on Hopper: accumulators in registers, operands in shared memory.

Why: `jnp.dot` has no Mosaic GPU rule. The kernel is split into warpgroups: one copies the operand
tiles ahead into a ring of SMEM stages, one or two compute. Each step issues `plgpu.wgmma`, waits for it (a warpgroup alone:
for the one before, so that the tensor core stays busy) and gives the stage back. The grid becomes persistent: one block
per SM walks over the programs, so that copies run ahead into the next program.

Accumulates in float32; int8 operands in int32. Tiles are a multiple of 64 rows and of 8 columns; 16 and
32 rows are multiplied as 64, of which the rest is dropped. The emitted code checks this when it is traced.

float32 operands are rounded to TF32 where the source's precision lets Triton do that too (anything below
HIGHEST). Elsewhere each is split into three bfloat16 parts ahead of the kernel, whose six largest products
are added up, step by step in float32 registers. wgmma reads 8-bit and float32 elements only along the
contraction: arrays that lie the other way (`b` of `a @ b`) are transposed ahead of the kernel, which costs
a copy in each call.

Does not cover: operands computed in registers (attention; `rewrites/staged.py` takes such kernels),
products in several loops, fewer than 16 rows, products of int8 that do not ask for int32 sums.
"""

from __future__ import annotations

import libcst as cst

from ..translator import actions
from ..translator.model.text import call_lines
from .dot_parts import parts_loop
from .engine import Example, Insertion, Rule
from .pipeline import dropped_comments, epilogue, kernel_head, launch_lines, left_tile, loads_function, loop_call, right_tile, starts, wait_line

MATMUL = '''
import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu


def matmul_kernel(a_ref, b_ref, o_ref, *, bm, bn, bk):
    def step(t, acc):
        ks = pl.ds(t * bk, bk)
        return acc + jnp.dot(a_ref[:, ks], b_ref[ks, :], preferred_element_type=jnp.float32)

    acc = lax.fori_loop(0, a_ref.shape[1] // bk, step, jnp.zeros((bm, bn), jnp.float32))
    o_ref[...] = acc.astype(o_ref.dtype)


def matmul(a, b, bm=128, bn=256, bk=64):
    (m, k), n = a.shape, b.shape[1]
    return pl.pallas_call(
        functools.partial(matmul_kernel, bm=bm, bn=bn, bk=bk),
        grid=(m // bm, n // bn),
        in_specs=[pl.BlockSpec((bm, k), lambda i, j: (i, 0)), pl.BlockSpec((k, bn), lambda i, j: (0, j))],
        out_specs=pl.BlockSpec((bm, bn), lambda i, j: (i, j)),
        out_shape=jax.ShapeDtypeStruct((m, n), a.dtype),
        compiler_params=plgpu.CompilerParams(num_warps=8, num_stages=3),
    )(a, b)
'''


class DotSm90(Rule):
    code = "MG501"
    name = "dot-sm90"
    title = "Matrix products become wgmma with a memory warpgroup"
    nodes = {actions.PipelineSm90: (cst.FunctionDef,)}
    inserts = (actions.LaunchSm90,)
    EXAMPLES = (
        Example(before=MATMUL, after='''
            plgpu.wgmma(acc, a.at[part.rows, :], b.at[:, part.cols])
            plgpu.wgmma_wait(part.behind)
            ring.release(count - part.behind, t >= part.behind)
'''),
    )

    def insert(self, action: actions.LaunchSm90) -> Insertion:
        return Insertion(tuple(launch_lines(action.data, "_WgmmaTile", self.modules)), apart=True)

    def rewrite(self, action: actions.PipelineSm90, node: cst.FunctionDef) -> list[str]:
        plan, modules = action.plan, self.modules
        plgpu = modules.name("jax.experimental.pallas.mosaic_gpu")
        pl, jnp = modules.name("jax.experimental.pallas"), modules.name("jax.numpy")
        accumulators = [p.accumulator for p in plan.products]
        count, part, step = plan.count, plan.part, plan.step or "step_index"
        each = f" * {len(plan.products)}" if len(plan.products) > 1 else ""
        lower = "" if plan.lower == "0" else f"{plan.lower} + "
        lines = kernel_head(node, plan, part)
        before, inside, on_loop = dropped_comments(node, plan)
        lines += [f"  {c}" for c in before]
        if plan.parts:
            lines += parts_loop(plan, modules, inside, on_loop)
            lines += [*starts(plan, 1), *epilogue(node, plan, 1), f"  return {count}"]
            return [*loads_function(node, plan, modules), "", "", *lines]
        lines += [f"  def products({', '.join(accumulators)}):", f"    def {plan.body_name}({plan.step or 'step_index'}, {count}):"]
        lines += [f"      {c}" for c in inside]
        lines.append(f"      {wait_line(plan)}")
        for p in plan.products:
            operands = [p.accumulator, left_tile(p, plan), right_tile(p, plan, f"{part}.cols")]
            lines += call_lines(f"      {plgpu}.wgmma", operands)
        lines += [
            f"      {plgpu}.wgmma_wait({part}.behind{each})",
            f"      ring.release({count} - {part}.behind, {step} >= {lower}{part}.behind)",
            f"      return {count} + 1",
            "",
            *[f"    {c}" for c in on_loop],
            f"    end = {loop_call(plan, modules)}",
            *[f"    {a} = {part}.value({a}[...]){'.astype(' + jnp + '.float32)' if plan.converted else ''}" for a in accumulators],
            f"    ring.release(end - 1, ({part}.behind > 0) & (end > {count}))",
            f"    return {', '.join(accumulators)}, end",
            "",
        ]
        shapes = [f"{plgpu}.ACC({part}.shape, {jnp}.{plan.accumulate})"] * len(accumulators)
        lines += call_lines(f"  {', '.join(accumulators)}, {count} = {pl}.run_scoped", ["products", *shapes])
        lines += [*starts(plan, 1), *epilogue(node, plan, 1)]
        lines.append(f"  return {count}")
        return [*loads_function(node, plan, modules), "", "", *lines]
