"""Which axes of a kernel's register tiles run along the same dimension of the problem.

An attention kernel has rows of queries and columns of keys; its tiles, vectors and products all
run along one of a few such dimensions.  Axes are joined where arrays meet in elementwise
operations (their tiles have the same shape), where a vector runs along an axis of a tile, where an array is
transposed, and where a product takes rows from its left and columns from its right operand.

Warpgroups may divide a dimension among them if nothing adds up along it: no reduction over it, no
product that contracts it.  Each warpgroup then computes its part of every tile, alone.
"""

from __future__ import annotations

import ast
import dataclasses

from .model.events import Dot, KernelModel
from .names import Resolver
from .values import Array, Tile

Axis = tuple[Tile, int]


@dataclasses.dataclass(frozen=True)
class Transposed:
    """A product's operands as the kernel writes them: whether each is contracted the other way."""

    left: bool
    right: bool


class TileAxes:
    """The axes of all tiles of a kernel, joined where they run along the same dimension."""

    def __init__(self, model: KernelModel, flags: dict[ast.AST, Transposed]) -> None:
        self._links: dict[Axis, Axis] = {}
        self._flags = flags
        self.model = model
        for tile in model.tiles:
            for parent, axis in tile.runs:
                self.join((tile, 0), (parent, axis))
        for node, name in model.calls:
            if name == ".T" or name.endswith(".transpose"):
                base = node.value if isinstance(node, ast.Attribute) else _transposed_operand(node)
                self._join_transposed(model.values.get(node), model.values.get(base))  # type: ignore[arg-type]
        for dot in model.dots:
            left, right = self.operand_axes(dot)
            for mine, theirs in (((dot.result.tile, 0), left[0]), ((dot.result.tile, 1), right[0]), (left[1], right[1])):
                if mine is not None and theirs is not None:
                    self.join(mine, theirs)

    def operand_axes(self, dot: Dot) -> tuple[tuple[Axis | None, Axis | None], tuple[Axis | None, Axis | None]]:
        """For the left and the right operand: (the axis that stays, the axis that is contracted)."""
        found = []
        for value, kept in ((dot.left_value, self._flags[dot.node].left), (dot.right_value, not self._flags[dot.node].right)):
            tile = value.tile if isinstance(value, Array) else None
            found.append((tile and (tile, int(kept)), tile and (tile, 1 - int(kept))))
        return tuple(found)  # type: ignore[return-value]

    def find(self, axis: Axis) -> Axis:
        """The axis that stands for all that run along the same dimension."""
        found = axis[0].shape_root(), axis[1]
        while found in self._links:
            found = self._links[found]
        return found

    def join(self, a: Axis, b: Axis) -> None:
        first, second = self.find(a), self.find(b)
        if first != second:
            self._links[second] = first

    def of(self, value: object) -> tuple[Axis, ...]:
        """The dimension of each axis of an array; () if its rank is not known."""
        if not isinstance(value, Array) or value.rank is None:
            return ()
        if value.thin_axis is not None or value.rank == 1:
            return (self.find((value.tile, 0)),)
        return tuple(self.find((value.tile, a)) for a in range(value.rank))

    def adds_up(self, axis: Axis) -> ast.AST | None:
        """Where the kernel adds up (or takes a maximum) along a dimension; None if nowhere."""
        for reduction in self.model.reductions:
            tile = reduction.tile
            axes = range(reduction.rank or 2) if reduction.axis is None else [reduction.axis]
            if reduction.rank == 1:
                axes = [0]
            if any(self.find((tile, a)) == axis for a in axes):
                return reduction.node
        for dot in self.model.dots:
            left, right = self.operand_axes(dot)
            if any(a is not None and self.find(a) == axis for a in (left[1], right[1])):
                return dot.node
        return None

    def _join_transposed(self, result: object, base: object) -> None:
        if isinstance(result, Array) and isinstance(base, Array):
            self.join((result.tile, 0), (base.tile, 1))
            self.join((result.tile, 1), (base.tile, 0))


def _transposed_operand(node: ast.AST) -> ast.AST | None:
    """What ``jnp.transpose(x)`` or ``x.transpose()`` transposes."""
    if not isinstance(node, ast.Call):
        return None
    return node.args[0] if node.args and not isinstance(node.args[0], (ast.Constant, ast.Tuple)) else getattr(node.func, "value", None)


def operand_root(node: ast.expr, resolver: Resolver) -> ast.expr:
    """The name or load below the transposes of a product's operand."""
    while (inner := without_transpose(node, resolver)) is not None:
        node = inner
    return node


def without_transpose(node: ast.expr, resolver: Resolver) -> ast.expr | None:
    """What ``x.T`` or ``jnp.transpose(x)`` transposes."""
    if isinstance(node, ast.Attribute) and node.attr == "T":
        return node.value
    if isinstance(node, ast.Call) and resolver.qualified(node.func) == "jax.numpy.transpose" and len(node.args) == 1:
        return node.args[0]
    return None
