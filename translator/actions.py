"""What the plan tells the rewrites to do: one dataclass per rule, each at a place in the source.

Actions are data: they hold every decision (layout names, axis names, whether vectors are proven),
so that a rewrite never decides anything.  ``span`` is the place of the syntax node to rewrite.
"""

from __future__ import annotations

import ast
import dataclasses
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from .dot_plan import DotPlan, LaunchData


class Span(NamedTuple):
    """Place of a node: lines from 1, columns from 0 in characters; the end is exclusive."""

    line: int
    column: int
    end_line: int
    end_column: int


@dataclasses.dataclass(frozen=True)
class Action:
    """``rule`` is the code of the rewrite that carries it out."""

    span: Span
    rule = ""


@dataclasses.dataclass(frozen=True)
class GridAxis(Action):
    """``program_id`` (``size`` False) or ``num_programs`` of the grid axis called ``axis``."""

    axis: str
    size: bool
    rule = "MG102"


@dataclasses.dataclass(frozen=True)
class Load(Action):
    """A vector load into ``layout``; ``vec`` is the name of the proven vector width, or "".

    scalar: one element is loaded; it becomes a plain subscript, or keeps its ``masked`` call.
    unit: the dimension of extent 1 that is indexed by a number instead.
    part: the index of a warpgroup's part of the tile, "" for all of it.
    """

    layout: str
    vec: str
    scalar: bool = False
    masked: bool = False
    unit: int | None = None
    part: str = ""
    rule = "MG201"


@dataclasses.dataclass(frozen=True)
class Store(Action):
    """A vector store from ``layout``, see Load. ``statement``: an assignment ``ref[...] = value``."""

    layout: str
    vec: str
    statement: bool
    scalar: bool = False
    masked: bool = False
    unit: int | None = None
    part: str = ""
    rule = "MG202"


@dataclasses.dataclass(frozen=True)
class Atomic(Action):
    """An atomic operation on a tile in ``layout``, or on one element (``layout`` "").

    operation: ``add``, ``max``, ..., ``cas``. fetch: whether its result is read.
    ordered: whether other programs wait for what it writes.
    """

    operation: str
    layout: str
    fetch: bool
    ordered: bool
    rule = "MG204"


@dataclasses.dataclass(frozen=True)
class Accumulate(Action):
    """``ref[...] += value``: the tile is loaded, combined and stored, see Load."""

    layout: str
    vec: str
    unit: int | None = None
    rule = "MG202"


@dataclasses.dataclass(frozen=True)
class DefineLayouts(Action):
    """Lines that define layouts, put before the statement at ``span``."""

    lines: tuple[str, ...]
    rule = "MG203"


@dataclasses.dataclass(frozen=True)
class LayoutParameters(Action):
    """A helper function gets layouts and the vector width as keyword-only parameters."""

    names: tuple[str, ...]
    rule = "MG203"


@dataclasses.dataclass(frozen=True)
class PassLayouts(Action):
    """A call of such a helper passes them on: (parameter, local name)."""

    arguments: tuple[tuple[str, str], ...]
    rule = "MG203"


@dataclasses.dataclass(frozen=True)
class DropNewAxis(Action):
    """``x[:, None]`` becomes ``x``: the array stays at rank 1 until it meets a full tile.

    method: the node is ``x.squeeze()`` and the like.
    """

    method: bool = False
    rule = "MG301"


@dataclasses.dataclass(frozen=True)
class RepeatIndices(Action):
    """The name of an index vector becomes ``text``, which computes it again for the other axis of a tile."""

    text: str
    rule = "MG301"


@dataclasses.dataclass(frozen=True)
class AddNewAxis(Action):
    """``x`` becomes ``x[:, None]`` (axis 0) or ``x[None, :]`` (axis 1)."""

    axis: int
    rule = "MG301"


@dataclasses.dataclass(frozen=True)
class BroadcastTo(Action):
    """``x``, or ``x[:, None]``, becomes ``lax.broadcast_in_dim(x, shape, [axis])``; ``function`` is its local name."""

    axis: int
    shape: str
    function: str
    rule = "MG301"


@dataclasses.dataclass(frozen=True)
class DropKeepdims(Action):
    rule = "MG301"


@dataclasses.dataclass(frozen=True)
class AxisOfThin(Action):
    """The axis argument of a call on an array that has lost its dimension of extent 1 becomes 0."""

    rule = "MG301"


@dataclasses.dataclass(frozen=True)
class ThinShape(Action):
    """The shape of an array that is made loses its extents of 1: ``(1, n)`` becomes ``text``."""

    text: str
    rule = "MG301"


@dataclasses.dataclass(frozen=True)
class ReduceInTwoSteps(Action):
    """A sum over a whole tile becomes a sum over columns, then over rows. ``method``: the reduction."""

    method: str
    rule = "MG302"


@dataclasses.dataclass(frozen=True)
class DropColumnSum(Action):
    """``x.sum(axis=0)`` inside an accumulating loop becomes ``x``: the loop keeps whole tiles."""

    rule = "MG303"


@dataclasses.dataclass(frozen=True)
class WidenCarry(Action):
    """The loop's initial ``zeros(n)`` becomes ``zeros((m, n))``; ``shape`` is that tuple."""

    shape: str
    rule = "MG303"


@dataclasses.dataclass(frozen=True)
class SumAfterLoop(Action):
    """Adds ``name = name.sum(axis=0)`` for each name after the statement at ``span``."""

    names: tuple[str, ...]
    rule = "MG303"


@dataclasses.dataclass(frozen=True)
class Sqrt(Action):
    """``form``: ``reciprocal``, ``quotient`` or ``plain``. floats: False if the operand may be of integers."""

    form: str
    floats: bool = True
    rule = "MG401"


@dataclasses.dataclass(frozen=True)
class CallSupport(Action):
    """A call or an operator becomes a call of the support function.

    method: of an array's method. layout: of the operand, "" for functions that need none.
    """

    function: str
    method: bool = False
    layout: str = ""
    rule = "MG402"


@dataclasses.dataclass(frozen=True)
class ComputeInInt32(Action):
    """An operation on 8-bit integers becomes ``_in_int32(function)(...)``; "" for the function that is called."""

    function: str
    rule = "MG402"


@dataclasses.dataclass(frozen=True)
class Convert(Action):
    """``x.astype(dtype)`` becomes ``_convert(x, dtype)``, which calls of ``jnp.float32(x)`` are as well."""

    dtype: str
    method: bool
    rule = "MG402"


@dataclasses.dataclass(frozen=True)
class Unwrap(Action):
    """A call becomes its first argument."""

    rule = "MG403"


@dataclasses.dataclass(frozen=True)
class CallWrapped(Action):
    """The name of a decorated function becomes the function below ``depth`` decorators."""

    depth: int
    rule = "MG403"


@dataclasses.dataclass(frozen=True)
class BlockViews(Action):
    """A function that passes the kernel views of its blocks, put before the statement at ``span``."""

    lines: tuple[str, ...]
    rule = "MG103"


@dataclasses.dataclass(frozen=True)
class Launch(Action):
    """``pallas_call`` becomes ``plgpu.kernel``.

    body: name of the function to launch, "" to keep the call's first argument.
    grid: the grid as source text, "" for none. grid_names: one per axis.
    drop: keywords that have no counterpart.
    extra: keywords to add, as (name, source text).
    order: the axes from the slowest to the fastest, () for the order of the source. Triton's first
        axis is the fastest, ``plgpu.kernel``'s the last.
    may_be_long: an axis may be too long for its place in CUDA's grid; the support function ``_grid`` orders them.
    listed: ``out_shape`` is a list. ``pallas_call`` returns a tuple all the same, ``plgpu.kernel`` would not.
    """

    body: str
    grid: str
    grid_names: tuple[str, ...]
    extra: tuple[tuple[str, str], ...] = ()
    order: tuple[int, ...] = ()
    may_be_long: bool = False
    listed: bool = False
    rule = "MG101"


@dataclasses.dataclass(frozen=True)
class CallLaunch(Action):
    """The ``pallas_call`` expression becomes the name of the function that launches the pipeline."""

    name: str
    rule = "MG101"


@dataclasses.dataclass(frozen=True)
class ReplaceCall(Action):
    """The ``pallas_call`` expression becomes the name of a function made for it."""

    name: str
    rule = "MG104"


@dataclasses.dataclass(frozen=True)
class OwnVersion(Action):
    """A helper stays as it is, and its port stands below it under ``name``."""

    name: str
    rule = "MG108"


@dataclasses.dataclass(frozen=True)
class UseVersion(Action):
    """A use of such a helper becomes a use of its port."""

    name: str
    rule = "MG108"


@dataclasses.dataclass(frozen=True)
class RemoveStatement(Action):
    """The assignment at ``span`` goes: nothing reads its name any more."""

    rule = "MG105"


@dataclasses.dataclass(frozen=True)
class RemoveFunction(Action):
    """A function in a kernel that nothing calls any more is removed, with the comments in it."""

    rule = "MG105"


@dataclasses.dataclass(frozen=True)
class LoopOverCarry(Action):
    """``for_loop(n, body, state)`` becomes ``fori_loop(0, n, body, state)``; ``state`` False: there is none."""

    state: bool
    rule = "MG106"


@dataclasses.dataclass(frozen=True)
class CarryName(Action):
    """A parameter, ``acc_ref[:]`` or the target of a store becomes the plain name ``name``."""

    name: str
    rule = "MG106"


@dataclasses.dataclass(frozen=True)
class ReturnCarry(Action):
    """Puts ``return returned`` after the statement at ``span``, the last one of a loop body."""

    returned: str
    rule = "MG106"


@dataclasses.dataclass(frozen=True)
class StepOfLoop(Action):
    """``program_id`` or ``num_programs`` of an axis that the launch loops over becomes a parameter."""

    name: str
    rule = "MG107"


@dataclasses.dataclass(frozen=True)
class AddParameters(Action):
    """The function gets more keyword-only parameters."""

    names: tuple[str, ...]
    rule = "MG107"


@dataclasses.dataclass(frozen=True)
class InvertMask(Action):
    """``~mask`` becomes ``mask ^ True``; a support function decides where the dtype is not ``known``."""

    known: bool = True
    rule = "MG304"


@dataclasses.dataclass(frozen=True)
class PipelineSm90(Action):
    """The kernel function is split into warpgroups as its ``DotPlan`` says."""

    plan: DotPlan
    rule = "MG501"


@dataclasses.dataclass(frozen=True)
class PipelineSm100(Action):
    """As PipelineSm90, with accumulators in tensor memory."""

    plan: DotPlan
    rule = "MG502"


@dataclasses.dataclass(frozen=True)
class LaunchSm90(Action):
    """A function that launches the split kernel, put before the statement at ``span``."""

    data: LaunchData
    rule = "MG501"


@dataclasses.dataclass(frozen=True)
class LaunchSm100(Action):
    data: LaunchData
    rule = "MG502"


@dataclasses.dataclass(frozen=True)
class EpilogueLoad(Action):
    """A block loaded beside a product; ``axis``: the tile axis that a rank-1 block runs along."""

    part: str
    axis: int | None
    rule = "MG503"


@dataclasses.dataclass(frozen=True)
class EpilogueStore(Action):
    """``window``: the block that is stored to, where the source spelled it by index vectors."""

    part: str
    statement: bool
    window: str = ""
    rule = "MG503"


@dataclasses.dataclass(frozen=True)
class ReplaceExpression(Action):
    """An expression becomes a name that the split kernel defines."""

    text: str
    rule = "MG503"


@dataclasses.dataclass(frozen=True)
class StagedFunction(Action):
    """A function that is put before the one at ``span``."""

    lines: tuple[str, ...]
    rule = "MG504"


@dataclasses.dataclass(frozen=True)
class StagedParameters(Action):
    """The function at ``span`` gets keyword parameters, ahead of its own."""

    parameters: tuple[str, ...]
    rule = "MG504"


@dataclasses.dataclass(frozen=True)
class StagedLines(Action):
    """Lines before or after a statement; ``apart``: with an empty line on both sides."""

    lines: tuple[str, ...]
    after: bool = False
    apart: bool = False
    rule = "MG504"


@dataclasses.dataclass(frozen=True)
class StagedText(Action):
    """An expression becomes ``text``."""

    text: str
    rule = "MG504"


@dataclasses.dataclass(frozen=True)
class StagedCondition(Action):
    """``x`` becomes ``x if test else None``: nothing reads it otherwise."""

    test: str
    rule = "MG504"


@dataclasses.dataclass(frozen=True)
class RegisterDot(Action):
    """A product becomes ``part.dot(left, right)``.

    left, right: what stands around each operand, with ``{}`` for the operand.
    added: the accumulator as source text, "" if none. turn: see ``staged_plan.RegisterDot``.
    """

    part: str
    left: str
    right: str
    added: str
    turn: bool
    rule = "MG504"


@dataclasses.dataclass(frozen=True)
class StagedTarget(Action):
    """The assignment at ``span`` gets another target."""

    name: str
    rule = "MG504"


@dataclasses.dataclass(frozen=True)
class StagedReturn(Action):
    """``return value`` at ``span`` becomes ``name = value``; ``StagedLines`` return it behind."""

    name: str
    rule = "MG504"


@dataclasses.dataclass(frozen=True)
class StagedOffset(Action):
    """``jnp.arange(n)`` becomes ``(start + jnp.arange(n))``."""

    start: str
    rule = "MG504"


@dataclasses.dataclass(frozen=True)
class AddToDot(Action):
    """``acc + part.dot(...)`` becomes ``part.dot(..., acc)``. product_right: the product stands on the right."""

    product_right: bool
    rule = "MG504"


def span_of(node: ast.AST, source_lines: list[str]) -> Span:
    """The span of a syntax node, with columns in characters (``ast`` counts UTF-8 bytes)."""

    def characters(line: int, column: int) -> int:
        text = source_lines[line - 1]
        return column if text.isascii() else len(text.encode()[:column].decode())

    return Span(
        node.lineno,  # type: ignore[attr-defined]
        characters(node.lineno, node.col_offset),  # type: ignore[attr-defined]
        node.end_lineno,  # type: ignore[attr-defined]
        characters(node.end_lineno, node.end_col_offset),  # type: ignore[attr-defined]
    )


@dataclasses.dataclass(frozen=True)
class SplitLoop(Action):
    """``fori_loop(...)`` becomes ``_split_loop(..., start=, end=)``. bounds: (keyword, name)."""

    bounds: tuple[tuple[str, str], ...]
    rule = "MG505"


@dataclasses.dataclass(frozen=True)
class WholeParameter(Action):
    """The loop's function gets a flag: no mask cuts this step."""

    name: str
    rule = "MG505"


@dataclasses.dataclass(frozen=True)
class WholeMask(Action):
    """A comparison becomes ``ones if flag else comparison``. ones: a mask that holds everywhere, source text."""

    flag: str
    ones: str
    rule = "MG505"
