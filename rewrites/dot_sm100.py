"""Multiplies with tcgen05 on Blackwell: accumulators in tensor memory, operands in shared memory.

Why: `jnp.dot` has no Mosaic GPU rule, and wgmma does not exist on Blackwell. The split into a memory
warpgroup and compute warpgroups is that of Hopper. `plgpu.tcgen05_mma` writes to an accumulator in
TMEM and gives the stage back by itself; after the loop the accumulator is read in chunks of columns,
and the epilogue runs once per chunk.

Accumulates in float32; int8 operands in int32. Tiles have 64, 128 or 256 rows and up to 256 columns, a
multiple of 16 (32 for 64 rows); 16 and 32 rows are multiplied as 128, of which the rest is dropped. The
emitted code checks this when it is traced.

Does not cover what MG501 does not cover, nor float32 operands (which JAX's tcgen05_mma does not take),
nor loops whose bounds are known only at run time.
"""

from __future__ import annotations

import libcst as cst

from ..translator import actions
from ..translator.model.text import call_lines
from .dot_sm90 import MATMUL
from .engine import Example, Insertion, Rule
from .pipeline import any_steps, dropped_comments, epilogue, kernel_head, launch_lines, left_tile, loads_function, loop_call, right_tile, starts, wait_line


class DotSm100(Rule):
    code = "MG502"
    name = "dot-sm100"
    title = "Matrix products become tcgen05_mma with a memory warpgroup"
    nodes = {actions.PipelineSm100: (cst.FunctionDef,)}
    inserts = (actions.LaunchSm100,)
    EXAMPLES = (
        Example(before=MATMUL, target="sm100", after='''
        plgpu.tcgen05_mma(
            tile.accumulators[0], a.at[tile.rows, :], b, ring.freed(count), accumulate=t > 0
        )
'''),
    )

    def insert(self, action: actions.LaunchSm100) -> Insertion:
        return Insertion(tuple(launch_lines(action.data, "_Tcgen05Tile", self.modules)), apart=True)

    def rewrite(self, action: actions.PipelineSm100, node: cst.FunctionDef) -> list[str]:
        plan, modules = action.plan, self.modules
        plgpu = modules.name("jax.experimental.pallas.mosaic_gpu")
        count, step = plan.count, plan.step or "step_index"
        lines = kernel_head(node, plan, "tile")
        before, inside, on_loop = dropped_comments(node, plan)
        lines += [*(f"  {c}" for c in before), f"  def {plan.body_name}({step}, {count}):"]
        lines += [*(f"    {c}" for c in inside), f"    {wait_line(plan)}"]
        single = len(plan.products) == 1
        for i, p in enumerate(plan.products):
            left = left_tile(p, plan).replace(f"{plan.part}.rows", "tile.rows")
            freed = [f"ring.freed({count})"] if single else []
            arguments = [f"tile.accumulators[{i}]", left, right_tile(p, plan, ""), *freed, f"accumulate={step} > {plan.lower}"]
            lines += call_lines(f"    {plgpu}.tcgen05_mma", arguments)
        if not single:
            lines.append(f"    {plgpu}.tcgen05_commit_arrive(ring.freed({count}))  # once all have read the stage")
        lines += [f"    return {count} + 1", "", *(f"  {c}" for c in on_loop)]
        lines += [f"  {count} = {loop_call(plan, modules)}", f"  tile.finish({any_steps(plan, modules)})"]
        lines.append(f"  for {plan.part} in tile.chunks():")
        single = f".astype({modules.name('jax.numpy')}.float32)" if plan.converted else ""
        for i, p in enumerate(plan.products):
            lines.append(f"    {p.accumulator} = {plan.part}.accumulator({i}){single}")
        lines += [*starts(plan, 2), *epilogue(node, plan, 2)]
        lines += ["  tile.free()", f"  return {count}"]
        return [*loads_function(node, plan, modules), "", "", *lines]
