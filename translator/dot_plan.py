"""The plan of a kernel with matrix products, as data.

``plan_dots.py`` fills a ``DotPlan`` per kernel, ``plan_dot_launch.py`` a ``LaunchData`` per call;
the rewrites turn both into functions.
"""

from __future__ import annotations

import ast
import dataclasses


class Unplanned(Exception):
    """The kernel is not of a planned form: (node, reason, advice)."""

    def __init__(self, node: ast.AST, reason: str, advice: str = "") -> None:
        super().__init__(reason)
        self.node, self.reason, self.advice = node, reason, advice


@dataclasses.dataclass(frozen=True)
class Operand:
    """A tile that the memory warpgroup copies.

    ref: the kernel's ref. name: the stage's name in the compute function.
    index: the index of each dimension in the loads function, as source text.
    block: its extents as source text of the kernel.
    """

    ref: str
    name: str
    index: tuple[str, ...]
    block: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Product:
    """``accumulator += left @ right``; operands by position, ``True`` where transposed first."""

    accumulator: str
    left: int
    right: int
    left_transposed: bool
    right_transposed: bool


@dataclasses.dataclass(frozen=True)
class DotPlan:
    """Everything that the emission of one kernel needs; statements by position in the kernel body.

    indices: the name of each grid axis that the functions take as a parameter.
    lower, upper, step: bounds and variable of the loop; step "" for a loop that the port makes.
    load_statements, compute_statements: what each function keeps ahead of the loop.
    loop_statement: the loop, or the first statement of the epilogue where there is none.
    body_function: position of the loop body's def, None for a lambda.
    body_statements: what the loads function keeps of the loop body.
    epilogue: first statement after the loop.
    bounds: (ref, dimension, bound) of the masks that the copy engine stands in for.
    statics: parameters of the kernel that are no refs though they may be passed by position.
    tf32: float32 operands may be multiplied as TF32: the target can, and the source allows it.
    """

    name: str
    operands: tuple[Operand, ...]
    products: tuple[Product, ...]
    indices: tuple[tuple[int, str], ...]
    lower: str
    upper: str
    step: str
    load_statements: tuple[int, ...]
    compute_statements: tuple[int, ...]
    body_function: int | None
    body_statements: tuple[int, ...]
    epilogue: int
    tile: tuple[str, str]
    part: str
    count: str
    body_name: str
    masked: bool
    bounds: tuple[tuple[str, int, str], ...] = ()
    statics: frozenset[str] = frozenset()
    tf32: bool = False


@dataclasses.dataclass(frozen=True)
class LaunchData:
    """The launch of one call, as source text of the caller.

    name: the function that replaces ``pallas_call(...)``. parameters: its array parameters.
    refs: the kernel's refs in order. views: the view of each, "" for the whole ref.
    grid: one expression per axis. tile: the output tile. blocks: (extents, array parameter) of
    each operand. bound: keyword arguments of the kernel. extra: further keywords of the launch.
    checks: (extent, extent of the array) that must agree when the launch is traced.
    """

    name: str
    parameters: tuple[str, ...]
    refs: tuple[str, ...]
    views: tuple[str, ...]
    grid: tuple[str, ...]
    axes: tuple[str, ...]
    tile: tuple[str, str]
    blocks: tuple[tuple[tuple[str, ...], str], ...]
    bound: tuple[tuple[str, str], ...]
    num_stages: str
    out_type: str
    listed: bool
    plan: DotPlan
    extra: tuple[tuple[str, str], ...]
    checks: tuple[tuple[str, str], ...]


def contracted_dimension(at: int, plan: DotPlan) -> int:
    """Which dimension of an operand's tile its products contract."""
    for p in plan.products:
        if p.left == at:
            return 0 if p.left_transposed else 1
        if p.right == at:
            return 1 if p.right_transposed else 0
    raise AssertionError(at)
