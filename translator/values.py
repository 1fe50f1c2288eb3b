"""The abstract values that the kernel model computes with.

A value says what is known of an expression without running it: a scalar's static factors, an
array's symbolic shape, whether it is a contiguous run of indices or a bounds mask.  Dimensions are
source text (``block_size``), valid in the kernel's scope.

Two facts are tracked because the port depends on them:

* **Factors.** ``i * block_size + pad`` has the terms ``("block_size", "pad")``: any number that
  divides every term divides the value.  They prove that vector accesses are aligned.
* **Thin arrays.** An array with a dimension of extent 1 beside a real one (``x[:, None]``,
  ``keepdims=True``) cannot be computed with at Warpgroup semantics.  The port keeps it at rank 1
  and expands it where it meets a full tile; ``thin_axis`` is the real axis of such an array.
"""

from __future__ import annotations

import dataclasses

UNKNOWN_FACTOR = "1"  # a term of which no divisor is known


class Value:
    """Any abstract value."""


@dataclasses.dataclass(frozen=True)
class Unknown(Value):
    """Nothing is known; ``why`` helps the diagnosis."""

    why: str = ""


@dataclasses.dataclass(frozen=True)
class Scalar(Value):
    """A number.

    static: known at trace time (a Python number), so usable in shapes.
    terms: divisors of the additive terms, see the module docstring.
    text: an expression for it in the kernel's scope, "" if it is not static.
    expr: how it was computed, with local names replaced by what they hold; ``program_id(0)`` and
        loop variables stand for themselves. Equal texts are equal numbers. "" if not known.
    ones: in the source it is an array of so many dimensions of extent 1, as ``keepdims`` makes them.
    """

    static: bool = False
    terms: tuple[str, ...] = (UNKNOWN_FACTOR,)
    text: str = ""
    expr: str = ""
    ones: int = 0

    def __post_init__(self) -> None:
        if self.static and not self.expr:
            object.__setattr__(self, "expr", self.text)


@dataclasses.dataclass(frozen=True)
class ShapeOf(Value):
    """``ref.shape`` or ``array.shape``: ``dims`` None if the rank is unknown."""

    base: str
    dims: tuple[str, ...] | None


@dataclasses.dataclass(frozen=True)
class TupleValue(Value):
    items: tuple[Value, ...]


@dataclasses.dataclass(frozen=True)
class FunctionValue(Value):
    """A function of the source: ``node`` with what its enclosing call bound."""

    node: object
    env: dict[str, Value]
    bound: dict[str, Value] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, eq=False)
class RefValue(Value):
    """A kernel argument in GMEM, the one at ``position``.

    ``dims`` None: rank unknown; ``name`` is its source spelling.
    """

    name: str
    dims: tuple[str, ...] | None
    position: int = 0

    def extent(self, dimension: int) -> str:
        """The text of one extent: "1" where blocks are known to be thin."""
        known = self.dims is not None and dimension < len(self.dims)
        return self.dims[dimension] if known else f"{self.name}.shape[{dimension}]"  # type: ignore[index]


@dataclasses.dataclass(frozen=True)
class ViewValue(Value):
    """``ref.at[...]``: an access not yet made."""

    ref: RefValue
    index: tuple["Index", ...]


@dataclasses.dataclass(frozen=True)
class SliceValue(Value):
    """``pl.ds(start, size)``, ``a:b`` (``full`` for a bare ``:``)."""

    start: Scalar
    size: str
    full: bool = False
    stride: int | None = 1


@dataclasses.dataclass(eq=False)
class Tile:
    """The layout variable of a family of register arrays: a union-find cell.

    Arrays that meet in elementwise operations share a tile and so a layout.  A rank-1 array that
    varies along ``axis`` of a rank-2 ``parent`` gets the parent's layout reduced to that axis; the
    tiles along which one array varies share a layout, though not a shape.

    runs: the (tile, axis) pairs along which this rank-1 tile varies.
    """

    rank: int | None
    shape_text: str = ""
    link: "Tile | None" = None
    parent: "Tile | None" = None
    axis: int = -1
    conflict: bool = False
    anchored: bool = False
    same_shape: "Tile | None" = None
    runs: list[tuple["Tile", int]] = dataclasses.field(default_factory=list)

    def find(self) -> "Tile":
        tile = self
        while tile.link is not None:
            tile = tile.link
        return tile

    def shape_root(self) -> "Tile":
        """The tile that stands for all of the same shape."""
        tile = self
        while tile.same_shape is not None:
            tile = tile.same_shape
        return tile

    def unify(self, other: "Tile") -> None:
        """States that two tiles have the same shape and layout."""
        mine, theirs = self.shape_root(), other.shape_root()
        if mine is not theirs:
            theirs.same_shape = mine
        self._share_layout(other)

    def _share_layout(self, other: "Tile") -> None:
        a, b = self.find(), other.find()
        if a is b:
            return
        b.link = a
        if not a.shape_text or (a.rank is None and b.rank is not None):
            a.shape_text = b.shape_text or a.shape_text
        a.anchored = a.anchored or b.anchored
        a.conflict = a.conflict or b.conflict
        if a.rank is None:
            a.rank = b.rank
        if b.parent is not None:
            a._follow(b.parent, b.axis)

    def vary(self, parent: "Tile", axis: int) -> None:
        """States that this rank-1 tile runs along ``axis`` of ``parent``."""
        self.runs.append((parent, axis))
        self._follow(parent, axis)

    def _follow(self, parent: "Tile", axis: int) -> None:
        a, parent = self.find(), parent.find()
        if a.parent is None:
            a.parent, a.axis = parent, axis
        elif a.axis != axis:
            a.conflict = True
        elif a.parent.find() is not parent:
            a.parent.find()._share_layout(parent)


@dataclasses.dataclass(frozen=True)
class Index:
    """How one dimension of a ref is indexed.

    kind: ``slice`` (consecutive from ``start``), ``run`` (a vector of consecutive indices),
        ``scalar``, ``full`` or ``gather`` (any index vector).
    terms: divisors of the start.
    size: extent, source text.
    start: the ``expr`` of the first index, "" if not known.
    """

    kind: str
    terms: tuple[str, ...] = ()
    size: str = ""
    value: Value | None = None
    start: str = ""


@dataclasses.dataclass(frozen=True)
class MaskTerm:
    """One conjunct of a mask: ``index < bound`` along an axis counted from the last (0).

    divisors None: the conjunct can cut anywhere along that axis.
    start, bound: the ``expr`` of the first index and of the bound, "" for other conjuncts.
    many: of ``flags < n``, which holds wherever n is more than one, n; "" for other conjuncts.
    """

    axis_from_end: int
    divisors: tuple[str, ...] | None
    start: str = ""
    bound: str = ""
    many: str = ""


@dataclasses.dataclass(frozen=True, eq=False)
class Array(Value):
    """A register array.

    dims: its shape in the source, None if the rank is unknown.
    tile: its layout variable.
    run: divisors of the first element, if the array counts up by one along its real axis.
    start: the ``expr`` of that first element.
    mask: conjuncts, for boolean arrays that are bounds tests; None if anything else.
    thin_axis: the real axis of a thin array, else None.
    kind: ``float``, ``int``, ``bool`` or "" (unknown).
    dtype: the name of its dtype, or the source text that says it (``x_ref.dtype``); "" if not known.
        Equal texts are equal dtypes.
    """

    dims: tuple[str, ...] | None
    tile: Tile
    run: tuple[str, ...] | None = None
    mask: tuple[MaskTerm, ...] | None = None
    thin_axis: int | None = None
    kind: str = ""
    axis_from_end: int = 0
    start: str = ""
    dtype: str = ""

    @property
    def rank(self) -> int | None:
        return None if self.dims is None else len(self.dims)


def holds_refs(value: Value) -> bool:
    """Whether a value is a ref, a view of one, or a tuple that holds one."""
    if isinstance(value, TupleValue):
        return any(map(holds_refs, value.items))
    return isinstance(value, (RefValue, ViewValue)) or isinstance(value, Unknown) and value.why == "refs"
