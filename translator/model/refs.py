"""Loads and stores: indices, masks, and what vector accesses demand."""

from __future__ import annotations

import ast
import dataclasses
import re

from ..names import walk
from ..values import (
    Array,
    Index,
    RefValue,
    Scalar,
    SliceValue,
    Tile,
    TupleValue,
    Value,
    ViewValue,
)
from .events import (
    Access,
)
from .text import difference, tuple_text, wrap


_NEGATIVE = re.compile(r"-\w+")


class Refs:
    """Loads and stores: indices, masks, and what vector accesses demand. Part of ``Interpreter``."""

    def further_ref(self, position: int, name: str) -> RefValue:
        """The ref at a position of ``*refs``; one value for all the places that read it."""
        at = self.model.named_refs + position
        known = {r.position: r for r in self.model.refs}
        if at not in known:
            known[at] = RefValue(name, self.ref_dims.get(at), position=at)
            self.model.refs.append(known[at])
            self.model.refs.sort(key=lambda r: r.position)
        return known[at]

    def index(self, node: ast.expr, base: RefValue | ViewValue, env: dict[str, Value]) -> tuple[Index, ...]:
        """The index of each dimension named; () for ``...`` (the whole ref)."""
        value: ast.AST = node
        if isinstance(node, ast.Name) and isinstance(env.get(node.id), TupleValue):
            value = self.resolver.value(node)
            if not isinstance(value, ast.Tuple):
                self.find("B104", node, "an index tuple that is not written out in the kernel")
                return (Index("gather"),)
        parts = value.elts if isinstance(value, ast.Tuple) else [value]
        if len(parts) == 1 and isinstance(parts[0], ast.Constant) and parts[0].value is Ellipsis:
            return ()
        result = []
        ref = base if isinstance(base, RefValue) else base.ref
        for i, p in enumerate(parts):
            if isinstance(p, ast.Slice):
                result.append(self.slice_index(p, ref, i, env))
            elif isinstance(p, ast.Constant) and p.value is Ellipsis:
                if i == len(parts) - 1:
                    break
                self.find("B104", node, "an ellipsis before other indices")
                result.append(Index("gather"))
            else:  # a tuple held in a variable was evaluated where it is made
                one = self.model.values[p] if value is not node else self.eval(p, env)
                if isinstance(one, Scalar) and _NEGATIVE.fullmatch(one.text):
                    self.find("B104", p, f"the index {one.text} lies before the array: the Triton backend does not count from the end",
                              f"write {ref.name}.shape[{i}] - ...")
                if isinstance(one, SliceValue) and one.full:  # ``slice(None)``
                    one = dataclasses.replace(one, size=ref.extent(i))
                result.append(self.one_index(p, one))
        vectors = [i for i, ix in enumerate(result) if isinstance(ix.value, Array)]
        picked = [i for i, ix in enumerate(result) if isinstance(ix.value, (Array, Scalar))]
        if vectors and picked[0] > 0 and picked == list(range(picked[0], picked[-1] + 1)):
            self.find("B104", node, "an index vector behind a slice", "use index vectors for both dimensions")
        arrays = [
            (p, ix.value) for p, ix in zip(parts, result)
            if isinstance(ix.value, Array) and ix.value.rank == 2
        ]
        if arrays:
            self.elementwise(node, arrays, tuple(n for n, _ in arrays))  # index vectors broadcast together
        return tuple(result)

    def slice_index(self, node: ast.Slice, ref: RefValue, i: int, env: dict[str, Value]) -> Index:
        if node.lower is None and node.upper is None and node.step is None:
            return Index("full", (), ref.extent(i))
        lower = self.eval(node.lower, env) if node.lower is not None else Scalar(True, (), "0")
        end = Scalar(True, (f"{ref.name}.shape[{i}]",), f"{ref.name}.shape[{i}]")
        upper = self.eval(node.upper, env) if node.upper is not None else end
        lower, upper = (_from_start(v, end.text) for v in (lower, upper))
        step = self.eval(node.step, env) if node.step is not None else Scalar(True, ("1",), "1")
        if not (isinstance(lower, Scalar) and isinstance(upper, Scalar) and isinstance(step, Scalar) and step.text.isdigit()):
            self.find("B104", node, f"the slice {ast.unparse(node)}", "use pl.ds(start, size)")
            return Index("gather")
        size = upper.text if lower.terms == () else difference(upper.text, lower.text)
        known = bool(upper.text and (lower.text or lower.terms == ()))
        if not known and node.lower is not None and node.upper is not None:  # bounds of a loop's index
            size = difference(ast.unparse(node.upper), ast.unparse(node.lower))
            names = [env.get(n.id) for n in walk(ast.parse(size)) if isinstance(n, ast.Name) and n.id in env]
            known = all(isinstance(v, Scalar) and v.static and v.text for v in names)
        if step.text != "1":
            size = f"-(-({size}) // {step.text})"
            return Index("strided", lower.terms, size if known else "", start=lower.expr)
        return Index("slice", lower.terms, size if known else "", start=lower.expr)

    def one_index(self, node: ast.expr | None, value: Value) -> Index:
        if isinstance(value, SliceValue):
            if value.full:
                return Index("full", (), value.size, value)
            kind = "slice" if value.stride == 1 else "strided"
            return Index(kind, value.start.terms, value.size, value, value.start.expr)
        if isinstance(value, Scalar):
            return Index("scalar", value.terms, "", value, value.expr)
        if isinstance(value, Array):
            real = value.dims[value.thin_axis or 0] if value.dims else ""
            if value.run is not None:
                return Index("run", value.run, real, value, value.start)
            return Index("gather", (), real, value)
        return Index("gather", (), "", value)

    def access_shape(
        self, ref: RefValue, index: tuple[Index, ...]
    ) -> tuple[tuple[str, ...] | None, Tile | None, tuple[str, ...] | None]:
        """(dims, tile, divisors) of an access; tile None for a scalar."""
        rest: list[Index] = []
        if ref.dims is not None:
            rest = [Index("full", (), ref.extent(i)) for i in range(len(index), len(ref.dims))]
        elif not index:
            tile = self.tile(None, f"{ref.name}.shape")
            return None, tile, (f"{ref.name}.shape[-1]",)
        dims_index = [*index, *rest]
        vectors = [ix for ix in dims_index if isinstance(ix.value, Array)]
        if not vectors:
            kept = [ix for ix in dims_index if ix.kind != "scalar"]
            if not kept:
                return (), None, None
            dims = tuple(ix.size for ix in kept)
            last = dims_index[-1]
            divisors = None
            if last.kind in ("slice", "full") and last.size:
                divisors = (*last.terms, last.size)
            return dims, self.tile(len(dims), tuple_text(dims)), divisors
        arrays = [ix.value for ix in vectors]
        beside = [ix for ix in dims_index if ix.value is None or isinstance(ix.value, SliceValue)]
        if beside:
            return self.outer_shape(arrays, beside, dims_index[-1])  # type: ignore[arg-type]
        # Index vectors broadcast together.
        rank = max(a.rank or 1 for a in arrays)  # type: ignore[union-attr]
        result: Array = arrays[0]  # type: ignore[assignment]
        if rank == 1:
            for a in arrays[1:]:
                result.tile.unify(a.tile)  # type: ignore[union-attr]
            dims, tile = result.dims, result.tile
        else:
            out = ["1", "1"]
            for a in arrays:
                for k, d in enumerate(a.dims or ()):  # type: ignore[union-attr]
                    if d != "1":
                        out[k] = d
            dims = tuple(out)
            full = [a for a in arrays if a.thin_axis is None and a.rank == 2]  # type: ignore[union-attr]
            tile = full[0].tile if full else self.tile(2)  # type: ignore[union-attr]
            for a in arrays:
                if a.thin_axis is not None:  # type: ignore[union-attr]
                    a.tile.vary(tile, a.thin_axis)  # type: ignore[union-attr]
                elif a.rank == 2:  # type: ignore[union-attr]
                    tile.unify(a.tile)  # type: ignore[union-attr]
        root = tile.find()
        root.shape_text = root.shape_text or tuple_text(dims or ())
        last_index = dims_index[-1]
        divisors = None
        if last_index.kind == "run" and last_index.value.axis_from_end == 0 and all(  # type: ignore[union-attr]
            ix.kind == "scalar" or (isinstance(ix.value, Array) and ix.value.axis_from_end == 1
                                    and ix.value.thin_axis == 0)
            or ix is last_index
            for ix in dims_index
        ):
            divisors = (*last_index.terms, last_index.size)
        return dims, tile, divisors

    def outer_shape(
        self, arrays: list[Array], beside: list[Index], last: Index
    ) -> tuple[tuple[str, ...] | None, Tile | None, tuple[str, ...] | None]:
        """(dims, tile, divisors) of rows picked by an index vector, ``ref[rows, pl.ds(...)]``."""
        first = arrays[0]
        for other in arrays[1:]:
            first.tile.unify(other.tile)
        ranked = all(a.rank == 1 or a.dims is None for a in arrays)
        dims = next((a.dims for a in arrays if a.dims), ("",))
        dims = (*dims, *(ix.size for ix in beside))
        tile = self.tile(len(dims) if ranked else 3, tuple_text(dims))  # rank 3 and more have no layout
        if ranked and len(beside) == 1:
            for a in arrays:
                a.tile.vary(tile, 0)
        divisors = None
        if last.kind in ("slice", "full") and last.size:
            divisors = (*last.terms, last.size)
        return dims, tile, divisors

    def load(
        self, node: ast.AST, base: RefValue | ViewValue, index: tuple[Index, ...],
        mask: ast.expr | None, mask_value: Value | None, other: Value | None, eviction: bool = False,
        other_node: ast.expr | None = None,
    ) -> Value:
        ref = base if isinstance(base, RefValue) else base.ref
        index = index if isinstance(base, RefValue) else base.index + index
        dims, tile, divisors = self.access_shape(ref, index)
        if tile is None:
            self.record(Access("load", node, None, ref, index, (), None, None, mask, mask_value=mask_value, other=other_node))
            return Scalar()
        thin = self.thin_axis(ref, dims)
        if thin is None and node in self.thin:
            thin = 1
        unit = None
        if thin is not None:
            tile, unit = self.tile(1, tuple_text((dims[thin],))), self.unit(ref, index, thin)  # type: ignore[index]
            self.thin_mask(mask, mask_value, thin)
        divisors = self.apply_mask(node, mask, mask_value, tile, divisors)
        if isinstance(other, Array):
            tile.unify(other.tile)
        root = tile.find()
        root.anchored = True
        self.record(Access("load", node, None, ref, index, dims, tile, divisors if thin != 0 else None, mask,
                           eviction=eviction, mask_value=mask_value, other=other_node, unit=unit))
        return Array(dims, tile, thin_axis=thin, axis_from_end=1 - thin if thin is not None else 0, dtype=f"{ref.name}.dtype")

    def thin_axis(self, ref: RefValue, dims: tuple[str, ...] | None) -> int | None:
        """The real axis of a loaded array that has a dimension of extent 1 beside it."""
        if dims is None or len(dims) != 2 or dims.count("1") != 1:
            return None
        if dims[1] == "1":
            return 0
        return 1 if ref.dims is not None and ref.dims[0] == "1" else None

    def unit(self, ref: RefValue, index: tuple[Index, ...], thin: int) -> int:
        """The dimension of ``ref`` that is the extent 1 of an array which varies along ``thin``."""
        rank = len(ref.dims) if ref.dims is not None else max(2, len(index))
        kept = [d for d in range(rank) if d >= len(index) or index[d].kind != "scalar"]
        return kept[1 - thin]

    def thin_mask(self, mask: ast.expr | None, value: Value | None, thin: int) -> None:
        if mask is not None and isinstance(value, Array) and value.thin_axis != thin:
            self.find("B107", mask, "a mask of another shape than the array with a dimension of extent 1",
                      "make it from one index vector: mask[:, None]")

    def store(
        self, node: ast.AST, statement: ast.stmt | None, base: RefValue | ViewValue,
        index: tuple[Index, ...], value: Value, value_node: ast.expr, mask: ast.expr | None,
        mask_value: Value | None = None, accumulates: bool = False,
    ) -> None:
        ref = base if isinstance(base, RefValue) else base.ref
        index = index if isinstance(base, RefValue) else base.index + index
        dims, tile, divisors = self.access_shape(ref, index)
        if isinstance(value, Scalar) and value.ones:
            self.find("B107", value_node, "a store of an array with nothing but dimensions of extent 1", "drop keepdims")
        if isinstance(value, Scalar) and dims is None and not index:
            tile = None  # a number stored into a whole ref of unknown rank: only rank 0 makes sense
        if tile is None:
            if isinstance(value, Array):
                self.find("B106", node, "a store of an array into one element")
            self.record(Access("store", node, statement, ref, index, (), None, None, mask, value_node))
            return
        unit = thin = None
        if isinstance(value, Array):
            if value.thin_axis is not None:
                thin = value.thin_axis
                if any(isinstance(ix.value, Array) for ix in index) or dims is not None and len(dims) != 2:
                    self.find("B107", value_node, "an array with a dimension of extent 1 stored by index vectors",
                              "store it without that dimension")
                    return
                unit, tile = self.unit(ref, index, thin), value.tile
                self.thin_mask(mask, mask_value, thin)
            elif self.thin_axis(ref, dims) is not None:
                self.find("B107", value_node, f"an array stored into {ref.name}, whose blocks have a dimension of extent 1",
                          "compute it with keepdims=True or add the dimension: x[:, None]")
            elif value.rank is None or dims is None or len(dims) == value.rank:
                value.tile.unify(tile)
        elif isinstance(value, Scalar):
            self.find("B108", value_node, "a scalar stored into a whole tile", "use jnp.full")
        divisors = self.apply_mask(node, mask, mask_value, tile, divisors)
        tile.find().anchored = True
        self.record(Access("store", node, statement, ref, index, dims, tile, divisors if thin != 0 else None, mask,
                           value_node, mask_value=mask_value, accumulates=accumulates, unit=unit))

    def atomic(
        self, node: ast.Call, operation: str, base: RefValue | ViewValue, index: tuple[Index, ...],
        value: Value, value_node: ast.expr, mask: ast.expr | None, mask_value: Value | None,
    ) -> Value:
        ref = base if isinstance(base, RefValue) else base.ref
        index = index if isinstance(base, RefValue) else base.index + index
        fetched = not isinstance(self.resolver.parents.get(node), ast.Expr)
        dims, tile, _ = self.access_shape(ref, index)
        if isinstance(value, Scalar):
            if tile is not None and dims is not None:
                self.find("B108", value_node, "a number combined with a whole tile", "use jnp.full")
            dims, tile = (), None
        elif tile is None or not isinstance(value, Array):
            self.find("B106", node, "an atomic operation of an array on one element")
        elif value.thin_axis is not None:
            self.find("B107", value_node, "an atomic operation of an array with a dimension of extent 1",
                      "leave that dimension out")
        else:
            value.tile.unify(tile)
            self.apply_mask(node, mask, mask_value, tile, None)
            tile.find().anchored = True
        self.record(Access("atomic", node, None, ref, index, dims, tile, None, mask, value_node,
                           mask_value=mask_value, operation=operation, fetched=fetched))
        return Scalar() if tile is None else Array(dims, tile, dtype=f"{ref.name}.dtype")

    def apply_mask(
        self, node: ast.AST, mask: ast.expr | None, value: Value | None, tile: Tile,
        divisors: tuple[str, ...] | None,
    ) -> tuple[str, ...] | None:
        """Unifies the mask's layout with the tile's and adds what its bounds demand."""
        if mask is None or value is None:
            return divisors
        if isinstance(value, Scalar):
            return divisors
        if not isinstance(value, Array):
            return None
        rank = tile.find().rank
        if value.thin_axis is not None and rank == 2:
            self.expand(mask, value, tile, 2)
        elif value.rank == 1 and rank == 2:
            value.tile.vary(tile, 1)
        else:
            tile.unify(value.tile)
        if value.mask is None or divisors is None:
            return None
        for term in value.mask:
            if term.axis_from_end == 0:
                if term.divisors is None:
                    return None
                divisors += term.divisors
        return divisors

    def record(self, access: Access) -> None:
        """A node met twice (a helper called twice) must mean the same both times."""
        access = dataclasses.replace(access, guards=tuple(self.guards))
        for old in self.model.accesses:
            if old.node is access.node:
                if (old.tile is None) != (access.tile is None) or old.unit != access.unit:
                    self.find("B109", access.node, "a load or store in a helper or loop that runs for an element and for a tile")
                elif old.tile is not None and access.tile is not None:
                    if _unlike(old, access):
                        self.find("B109", access.node, "a load or store in a helper or loop that runs for tiles of different shapes",
                                  "write one helper for each shape")
                    old.tile.unify(access.tile)
                if old.ref is access.ref:
                    return
        self.model.accesses.append(access)


def _from_start(bound: Value, extent: str) -> Value:
    """The bound of a slice, counted from the start of the dimension."""
    if isinstance(bound, Scalar) and _NEGATIVE.fullmatch(bound.text):
        return Scalar(bound.static, (extent, bound.text[1:]), f"{extent} - {bound.text[1:]}")
    return bound


def _unlike(a: Access, b: Access) -> bool:
    """Whether two accesses at one place of the source have tiles of different shapes."""
    assert a.tile is not None and b.tile is not None
    own = a.dims is not None and b.dims is not None  # the tile may have met arrays of other texts since
    texts = [
        (tuple_text(x.dims or ()) if own else x.tile.find().shape_text).replace(f"{x.ref.name}.", "ref.")  # type: ignore[union-attr]
        for x in (a, b)
    ]
    if a.ref is b.ref:  # one ref's extents may be spelled in several ways
        return texts[0] != texts[1] and all(re.fullmatch(r"[(\d, )]+", t) for t in texts)
    return texts[0] != texts[1] or a.tile.find().rank != b.tile.find().rank
