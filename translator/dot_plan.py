"""The plan of a kernel with matrix products, as data.

``plan_dots.py`` fills a ``DotPlan`` per kernel, ``plan_dot_launch.py`` a ``LaunchData`` per call;
the rewrites turn both into functions.
"""

from __future__ import annotations

import ast
import dataclasses

from .model.events import Access, Dot
from .names import TRITON
from .values import UNKNOWN_FACTOR, Index


class Unplanned(Exception):
    """The kernel is not of a planned form: (node, reason, advice). final: no other form is tried."""

    def __init__(self, node: ast.AST, reason: str, advice: str = "", final: bool = False) -> None:
        super().__init__(reason)
        self.node, self.reason, self.advice, self.final = node, reason, advice, final


class NameTaken(Unplanned):
    """The kernel or the code around its call uses a name that the port needs."""

    def __init__(self, node: ast.AST, name: str) -> None:
        super().__init__(node, f"the port needs the name {name}", "rename it", final=True)


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
    epilogue: first statement after the loop. left_out: those after it that only the store's mask needs.
    bounds: (ref, dimension, bound) of the masks that the copy engine stands in for.
    many: numbers that must be more than one, for masks that then hold everywhere.
    statics: parameters of the kernel that are no refs though they may be passed by position.
    tf32: float32 operands may be multiplied as TF32: the target can, and the source allows it.
    accumulate: the dtype of the accumulators, "float32" or "int32".
    starts: (accumulator, the tile that it starts as: a method of the part).
    converted: the sums in int32 become float32, in which the source adds them up.
    parts: float32 operands are split into bfloat16 parts, since the source allows no TF32.
    turned: operands that are transposed ahead of the kernel if their dtype asks for it: on sm90 those
        that are not contracted along their last dimension.
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
    many: tuple[str, ...] = ()
    left_out: frozenset[int] = frozenset()
    statics: frozenset[str] = frozenset()
    tf32: bool = False
    accumulate: str = "float32"
    converted: bool = False
    starts: tuple[tuple[str, str], ...] = ()
    turned: frozenset[int] = frozenset()
    parts: bool = False


@dataclasses.dataclass(frozen=True)
class LaunchData:
    """The launch of one call, as source text of the caller.

    name: the function that replaces ``pallas_call(...)``. parameters: its array parameters.
    refs: the kernel's refs in order. views: the view of each, "" for the whole ref.
    grid: one expression per axis. tile: the output tile. blocks: (extents, array parameter) of
    each operand. bound: keyword arguments of the kernel. extra: further keywords of the launch.
    checks: (extent, extent of the array) that must agree when the launch is traced.
    many: numbers that must be more than one then.
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
    many: tuple[str, ...]


def check_alignment(access: Access, index: Index) -> None:
    """Raises Unplanned for a tile whose start in one dimension may be any number.

    The copy engine fills swizzled tiles of 8 rows; JAX refuses a start that it cannot prove to be a
    multiple of that.
    """
    if index.kind in ("slice", "run") and UNKNOWN_FACTOR in index.terms:
        what = f"at {index.start}" if index.start else "at an index"
        raise Unplanned(access.node, f"an operand in {access.ref.name} that starts {what}, of which no divisor is known",
                        "say pl.multiple_of(start, 8) where that is so")


def contracted_dimension(at: int, plan: DotPlan) -> int:
    """Which dimension of an operand's tile its products contract."""
    for p in plan.products:
        if p.left == at:
            return 0 if p.left_transposed else 1
        if p.right == at:
            return 1 if p.right_transposed else 0
    raise AssertionError(at)


def transposed_by_call(dot: Dot, flag: str) -> bool:
    """Whether the product's call transposes an operand: ``trans_a=True``, dimension numbers.

    flag: ``trans_a`` for the left operand, ``trans_b`` for the right.
    Raises Unplanned for contractions that are no product of two matrices.
    """
    if not isinstance(dot.node, ast.Call):
        return False
    flags = {k.arg: k.value for k in dot.node.keywords}
    if dot.function == f"{TRITON}.dot" and len(dot.node.args) > 2 or not isinstance(flags.get(flag, ast.Constant(False)), ast.Constant):
        raise Unplanned(dot.node, f"{flag} is not a literal keyword", f"write {flag}=True or {flag}=False")
    transposed = flag in flags and flags[flag].value is True  # type: ignore[attr-defined]
    return transposed ^ _contracts_other(dot, flags, flag)


def _contracts_other(dot: Dot, flags: dict, flag: str) -> bool:
    """Whether ``lax.dot_general`` contracts the other dimension than a plain product does."""
    assert isinstance(dot.node, ast.Call)
    if dot.function == "jax.numpy.einsum":
        raise Unplanned(dot.node, "einsum", "write it as a product of two matrices")
    numbers = flags.get("dimension_numbers")
    if dot.function == "jax.lax.dot_general" and numbers is None and len(dot.node.args) > 2:
        numbers = dot.node.args[2]
    if numbers is None:
        return False
    try:
        (left, right), batch = ast.literal_eval(numbers)
        left, right = tuple(left), tuple(right)
    except (ValueError, TypeError):
        raise Unplanned(numbers, "dimension_numbers that are not literal") from None
    if any(tuple(b) for b in batch) or len(left) != 1 or len(right) != 1:
        raise Unplanned(numbers, "a batched or full contraction")
    return left[0] % 2 == 0 if flag == "trans_a" else right[0] % 2 == 1
