"""What the model records, each tied to the syntax node that causes it."""

from __future__ import annotations

import ast
import dataclasses

from ..names import FunctionNode
from ..values import Array, Index, RefValue, Tile, Value


@dataclasses.dataclass(frozen=True, eq=False)
class Access:
    """One load, store or atomic operation (``kind`` "load", "store", "atomic") on a ref.

    node: the load call, the ``ref[...]`` subscript, or the call that stores.
    statement: for ``ref[...] = value``, the assignment; else None.
    view: the index of each dimension; None for the whole ref.
    tile: the layout variable of the loaded or stored array; None for a scalar.
    divisors: what the vector width must divide; None if neighbouring elements are not
        consecutive in memory, so that no vector access is possible.
    unit: the dimension of extent 1 that the port indexes by a number, so that the array has rank 1.
    operation, fetched: of an atomic, "add" and the like, and whether its result is read.
    guards: the conditions of the run-time branches around it.
    accumulates: a store ``ref[...] += value``, which loads the same elements first.
    """

    kind: str
    node: ast.AST
    statement: ast.stmt | None
    ref: RefValue
    view: tuple[Index, ...] | None
    dims: tuple[str, ...] | None
    tile: Tile | None
    divisors: tuple[str, ...] | None
    mask: ast.expr | None = None
    value: ast.expr | None = None
    eviction: bool = False
    mask_value: Value | None = None
    other: ast.expr | None = None
    operation: str = ""
    fetched: bool = False
    unit: int | None = None
    guards: tuple[ast.expr, ...] = ()
    accumulates: bool = False


@dataclasses.dataclass(frozen=True, eq=False)
class GridQuery:
    """``program_id(axis)``, or ``num_programs(axis)`` if ``size``."""

    node: ast.Call
    axis: int
    size: bool


@dataclasses.dataclass(frozen=True, eq=False)
class Reduction:
    """``axis`` None: over all axes. ``rank`` is that of the operand, None if unknown."""

    node: ast.Call
    operation: str
    axis: int | None
    rank: int | None
    keepdims: bool
    operand: ast.expr
    tile: Tile
    function: str = ""


@dataclasses.dataclass(frozen=True, eq=False)
class Strip:
    """``x[:, None]``, ``jnp.expand_dims(x, 1)`` that the port leaves out: the array stays thin; or
    ``x[:, 0]``, ``jnp.squeeze(x)`` of an array that is thin. method: ``x.squeeze()``."""

    node: ast.expr
    method: bool = False


@dataclasses.dataclass(frozen=True, eq=False)
class Expand:
    """A thin array that meets a full tile: the port expands it here along ``axis`` of ``rank``.

    shape: source text of the tile's shape, where the array may be converted to the tile's dtype.
    """

    node: ast.expr
    axis: int
    rank: int
    shape: str = ""


@dataclasses.dataclass(frozen=True, eq=False)
class SquareRoot:
    """``form``: ``reciprocal`` (1/sqrt), ``quotient`` (y/sqrt) or ``plain``; ``node`` is the
    division or the call. floats: not of an array whose dtype the source does not show."""

    node: ast.expr
    call: ast.Call
    form: str
    floats: bool = True


@dataclasses.dataclass(frozen=True, eq=False)
class Conversion:
    """``operand.astype(dtype)``; ``before``, ``after``: the dtypes as ``Array.dtype``."""

    node: ast.Call
    operand: ast.expr
    before: str
    dtype: ast.expr
    after: str


@dataclasses.dataclass(frozen=True, eq=False)
class Dot:
    """A matrix product; operands as values and nodes."""

    node: ast.expr
    left: ast.expr
    right: ast.expr
    left_value: Value
    right_value: Value
    result: Array
    function: str


@dataclasses.dataclass(frozen=True, eq=False)
class Loop:
    """A ``fori_loop``: ``body`` with ``carry`` (parameter names of the carry's components)."""

    node: ast.Call
    body: FunctionNode
    lower: ast.expr
    upper: ast.expr
    init: ast.expr
    env: dict[str, Value]
    static_bounds: bool


@dataclasses.dataclass(frozen=True, eq=False)
class Pages:
    """``ref[table].reshape(...)``: rows of pages that a vector of page numbers picks, one below the other.

    node: the reshape. load: the load. table: the name of the vector. result: the array, of one dimension less.
    """

    node: ast.expr
    load: ast.expr
    table: ast.Name
    result: Array


@dataclasses.dataclass(frozen=True, eq=False)
class Finding:
    """Something that the plan must diagnose."""

    code: str
    node: ast.AST
    reason: str
    advice: str = ""


@dataclasses.dataclass(eq=False)
class KernelModel:
    """Events in the order of evaluation, and the names known at the kernel's top level.

    refs: by position. named_refs: how many of them are parameters with a name, ahead of ``*refs``.
    calls: library functions, methods (``.T``) and operators (``operator.pow``) on arrays and traced numbers.
    product_helpers: functions of the kernel whose calls stand for the product that they return.
    unwraps: calls that stand for their first argument.
    wrapped: names of decorated functions where they are called, and below how many decorators the function is.
    """

    kernel: FunctionNode
    refs: list[RefValue]
    named_refs: int = 0
    accesses: list[Access] = dataclasses.field(default_factory=list)
    grid_queries: list[GridQuery] = dataclasses.field(default_factory=list)
    reductions: list[Reduction] = dataclasses.field(default_factory=list)
    repeats: dict[ast.AST, str] = dataclasses.field(default_factory=dict)
    strips: dict[ast.AST, Strip] = dataclasses.field(default_factory=dict)
    thin_axes: list[ast.expr] = dataclasses.field(default_factory=list)
    thin_shapes: dict[ast.expr, str] = dataclasses.field(default_factory=dict)
    expands: dict[ast.AST, Expand] = dataclasses.field(default_factory=dict)
    square_roots: list[SquareRoot] = dataclasses.field(default_factory=list)
    conversions: list[Conversion] = dataclasses.field(default_factory=list)
    dots: list[Dot] = dataclasses.field(default_factory=list)
    loops: list[Loop] = dataclasses.field(default_factory=list)
    calls: list[tuple[ast.AST, str]] = dataclasses.field(default_factory=list)
    unwraps: list[ast.Call] = dataclasses.field(default_factory=list)
    wrapped: list[tuple[ast.Name, int]] = dataclasses.field(default_factory=list)
    findings: list[Finding] = dataclasses.field(default_factory=list)
    values: dict[ast.AST, Value] = dataclasses.field(default_factory=dict)
    tiles: list[Tile] = dataclasses.field(default_factory=list)
    pages: list[Pages] = dataclasses.field(default_factory=list)
    product_helpers: set[ast.FunctionDef] = dataclasses.field(default_factory=set)
    functions: set[FunctionNode] = dataclasses.field(default_factory=set)
    ref_ranks: dict[str, int] = dataclasses.field(default_factory=dict)
