"""The loop of products of float32 operands that are split into 16-bit parts (`support/parts.py`), for sm90."""

from __future__ import annotations

from ..translator.dot_plan import DotPlan
from ..translator.model.text import call_lines
from ..translator.names import MOSAIC
from .pipeline import left_tile, loop_call, right_tile, wait_line


def parts_loop(plan: DotPlan, modules, inside: list[str], on_loop: list[str]) -> list[str]:
    """Source lines of the loop; its sums are carried in registers, a step's products are added to them.

    inside, on_loop: the user's comments in its body and on it.
    """
    jnp, plgpu = modules.name("jax.numpy"), modules.name(MOSAIC)
    carry = ", ".join([*(p.accumulator for p in plan.products), plan.count])
    lines = [f"  def {plan.body_name}({plan.step or 'step_index'}, carry):", f"    {carry} = carry"]
    lines += [*(f"    {c}" for c in inside), f"    {wait_line(plan)}"]
    for p in plan.products:
        operands = [plan.part, left_tile(p, plan), right_tile(p, plan, f"{plan.part}.cols")]
        lines += call_lines(f"    {p.accumulator} += _parts_product", operands)
    lines += [f"    ring.release({plan.count})", f"    return {carry} + 1", "", *(f"  {c}" for c in on_loop)]
    lines.append(f"  zeros = {plgpu}.layout_cast({jnp}.zeros({plan.part}.shape, {jnp}.float32), {plgpu}.Layout.WGMMA)")
    start = ", ".join([*("zeros" for _ in plan.products), plan.count])
    lines.append(f"  {carry} = {loop_call(plan, modules, f'({start})')}")
    lines += [f"  {p.accumulator} = {plan.part}.value({p.accumulator})" for p in plan.products]
    return lines
