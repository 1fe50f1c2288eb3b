"""Chooses the register layouts of a kernel without matrix products and proves vector widths.

Every family of arrays that meet in elementwise operations (a ``Tile`` of the model) gets one
layout, anchored at its loads and stores; JAX's layout inference does the rest.  Rank-1 arrays that
run along one axis of a rank-2 tile get that tile's layout reduced to the axis.  Tiles of the same
shape share a layout variable.

The vector width is one number per kernel: up to 16 bytes, divided down at trace time until it
divides every row length, tile start and mask bound that the accesses involve.  An access takes part
only if its last index is consecutive and its mask cannot cut between two neighbours of a vector
(both proven by the model); every other access goes element by element.

Sums over rows inside an accumulating loop are hoisted: the loop accumulates whole tiles and the sum
is taken once.  That is exact up to the order of additions, and avoids a reduction across warps in
every step.
"""

from __future__ import annotations

import ast
import dataclasses
import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Callable

from . import actions as act
from .actions import Action, Span
from .model.events import Access, KernelModel, Loop, Reduction
from .names import Resolver, walk
from .plan_calls import alone
from .plan_helpers import helper_of
from .values import UNKNOWN_FACTOR, Array, RefValue, Tile

Problem = tuple[str, ast.AST, str, str]

# Elements of a tile: 256 for each thread of a warpgroup, in registers of 32 bits that is one more than there are.
_LARGEST = 32768


@dataclasses.dataclass(frozen=True, eq=False)
class Hoist:
    """A column sum moved out of its loop."""

    reduction: Reduction
    zeros: ast.expr
    shape: str
    statement: ast.stmt
    name: str

    def actions(self, span: Callable[[ast.AST], Span]) -> list[Action]:
        return [
            act.DropColumnSum(span(self.reduction.node)),
            act.WidenCarry(span(self.zeros), self.shape),
            act.SumAfterLoop(span(self.statement), (self.name,)),
        ]


@dataclasses.dataclass
class Layouts:
    """``lines`` define the layouts before the kernel statement ``before``."""

    lines: tuple[str, ...] = ()
    before: ast.stmt | None = None
    names: dict[Tile, str] = dataclasses.field(default_factory=dict)
    vectors: set[Access] = dataclasses.field(default_factory=set)
    vec_name: str = ""
    support: set[str] = dataclasses.field(default_factory=set)
    hoists: list[Hoist] = dataclasses.field(default_factory=list)
    notes: list[str] = dataclasses.field(default_factory=list)
    parameters: tuple[tuple[str, str], ...] = ()

    def name_of(self, access: Access) -> str | None:
        return self.names.get(access.tile.find()) if access.tile is not None else None

    def names_for(self, access: Access) -> tuple[str, ...]:
        """What the rewritten access reads of the names at the head of the kernel."""
        layout = self.name_of(access)
        return tuple(n for n in (layout, self.vec_name if access in self.vectors else "") if n)


def plan_layouts(
    model: KernelModel, resolver: Resolver, names, strided: frozenset[str] = frozenset(),
    skip: frozenset[Access] = frozenset(), layout: str = "", extents: Mapping[str, int] = MappingProxyType({}),
) -> tuple[Layouts, list[Problem]]:
    """The layouts of a kernel, or problems that keep it on Triton.

    strided: refs whose specs squeeze the array's last dimension, so that neighbours are a row apart.
    skip: accesses that need no layout. layout: the one of all tiles of rank 2, where a matrix unit
    prescribes it. extents: what names and dimensions of refs are in some call, where the source shows it.
    """
    layouts, problems = Layouts(), [] if layout else _without_a_tile(model, resolver)
    tiled = [a for a in model.accesses if a.tile is not None and a not in skip and _needs_layout(a, model)]
    if not tiled:
        return layouts, problems
    kernel = model.kernel
    if isinstance(kernel, ast.Lambda):
        return layouts, [("B102", kernel, "a kernel written as a lambda", "write it as a function")]
    before = _first_statement(tiled, model, resolver)
    layouts.before = before
    known = _Known(model, resolver, before, extents)

    layouts.hoists = [] if layout else _find_hoists(model, resolver)
    narrow = any(r.axis == 0 and r.rank == 2 for r in model.reductions)
    for access in tiled:
        tile = access.tile.find()
        indices = [ix.value.tile.find() for ix in access.view or () if isinstance(ix.value, Array)]
        if any(t.conflict for t in (tile, *indices)):
            problems.append(("B121", access.node, "one index vector runs along rows and along columns",
                             "use two jnp.arange"))
        divisors = access.divisors
        if access.ref.name in strided or tile.parent is not None and tile.axis == 0 or access.dims is None and tile.rank is not None:
            continue  # one element per row, or one number for all
        if divisors is not None and UNKNOWN_FACTOR not in divisors and all(known.text(d) for d in divisors):
            layouts.vectors.add(access)

    scalars = {a.node for a in tiled if a not in layouts.vectors}  # one text, in a helper, for several refs
    layouts.vectors = {a for a in layouts.vectors if a.node not in scalars}
    if layouts.vectors:
        layouts.vec_name = names.pick("vec")
        layouts.support.add("_vec")
    vec_line = _vec_line(layouts, model) if layouts.vectors else ()
    layout_lines, more = _name_tiles(tiled, model.refs, layouts, known, names, narrow, {a.tile.find() for a in layouts.vectors}, layout)
    problems += more
    layouts.lines = (*vec_line, *layout_lines)
    if any("_blocked(" in line for line in layout_lines):
        layouts.support.add("_blocked")
    if narrow and any(h.reduction.axis == 0 for h in layouts.hoists) or narrow:
        layouts.parameters = (("reduction_scratch_bytes", "8192"),)
        layouts.notes.append("8192 bytes of shared memory for the sums across warps")
    one = "one warpgroup per program; a tile takes elements / 128 registers of each thread"
    layouts.notes.insert(0, one)
    for access in tiled:
        how = f"vectors of {layouts.vec_name}" if access in layouts.vectors else "element by element"
        layouts.notes.append(
            f"line {access.node.lineno}: {access.kind} of {access.ref.name} in {layouts.name_of(access)}, {how}{_mask_note(access)}"
        )
    return layouts, problems


def _without_a_tile(model: KernelModel, resolver: Resolver) -> list[Problem]:
    """Index vectors that meet no load or store, so that nothing gives them a layout."""
    problems = []
    for node, value in model.values.items():
        if not (isinstance(node, ast.Call) and isinstance(value, Array)):
            continue
        if resolver.qualified(node.func) in ("jax.numpy.arange", "jax.lax.iota", "jax.lax.broadcasted_iota"):
            tile = value.tile.find()
            while not tile.anchored and tile.parent is not None:
                tile = tile.parent.find()
            if not tile.anchored:
                what = f"{ast.unparse(node)[:60]} meets no tile that is loaded or stored"
                problems.append(("B124", node, what, "remove it, if it is not used"))
    return problems


def _mask_note(access: Access) -> str:
    """What kind of mask an access has."""
    if access.mask is None:
        return ""
    value = access.mask_value
    if isinstance(value, Array) and value.mask is not None and all(t.bound for t in value.mask):
        return ", bounds mask"
    return ", predicate mask"


def _needs_layout(access: Access, model: KernelModel) -> bool:
    """Scalars stored into refs of unknown rank stay plain stores: they only work for rank 0."""
    if access.kind == "store" and access.value is not None:
        return access.accumulates or isinstance(model.values.get(access.value), Array) or access.dims is not None
    return True


def _first_statement(tiled: list[Access], model: KernelModel, resolver: Resolver) -> ast.stmt:
    """The first top-level statement of the kernel that holds an access, or names a function that does."""
    wanted: set[ast.AST] = {a.node for a in tiled}
    helpers = {f for a in tiled if (f := helper_of(a.node, model, resolver)) is not None}
    known = -1
    while known != len(helpers):  # and the functions that call these
        known = len(helpers)
        uses = [n for f in helpers for n in resolver.named(getattr(f, "name", "")) if resolver.value(n) is f]
        helpers |= {f for n in uses if (f := helper_of(n, model, resolver)) is not None}
        wanted |= set(uses)
    return next(s for s in model.kernel.body if not wanted.isdisjoint(walk(s)))  # type: ignore[union-attr]


class _Known:
    """Which source expressions can be evaluated before a given statement of the kernel."""

    def __init__(self, model: KernelModel, resolver: Resolver, before: ast.stmt, extents: Mapping[str, int]) -> None:
        self.resolver, self.extents = resolver, extents
        self.scope = resolver.scopes[model.kernel]
        self.before = before
        self.refs = {r.name for r in model.refs}

    def text(self, text: str) -> bool:
        if not text:
            return False
        try:
            tree = ast.parse(text, mode="eval")
        except SyntaxError:
            return False
        return all(self.name(n.id) for n in walk(tree) if isinstance(n, ast.Name))

    def number(self, node: ast.expr) -> int | None:
        """The largest value of an extent, where the source shows it."""
        if (text := ast.unparse(node)) in self.extents:
            return self.extents[text]
        if isinstance(node, ast.Name):
            bindings = (self.scope.find(node.id) or (None, []))[1]
            node = bindings[0].node if len(bindings) == 1 and bindings[0].kind == "value" else node  # type: ignore[assignment]
        return node.value if isinstance(node, ast.Constant) and isinstance(node.value, int) else None

    def name(self, name: str) -> bool:
        bindings = self.scope.bindings.get(name)
        if bindings is None:
            return True  # a free variable of the kernel
        if len(bindings) > 1:
            return False  # which of them the text means is not known
        for b in bindings:
            if b.kind == "parameter":
                continue
            if b.node is None:
                return False
            statement = self.resolver.statement_of(b.node)
            if statement not in self.scope.node.body or statement.lineno >= self.before.lineno:
                return False
        return True


def _vec_line(layouts: Layouts, model: KernelModel) -> tuple[str, ...]:
    refs = list(dict.fromkeys(a.ref for a in model.accesses if a in layouts.vectors))
    rows = {f"{r.name}.shape[-1]" for r in refs}
    rows |= {r.dims[-1] for r in refs if r.dims}
    extents: list[str] = []
    for access in model.accesses:
        if access in layouts.vectors:
            extents += [d for d in access.divisors or () if d not in rows]
    extents = list(dict.fromkeys(extents))
    arguments = ", ".join([f"({', '.join(r.name for r in refs)}{',' if len(refs) == 1 else ''})", *extents])
    return (f"{layouts.vec_name} = _vec({arguments})",)


def _name_tiles(
    tiled: list[Access], refs: list[RefValue], layouts: Layouts, known: _Known, names, narrow: bool, vectored: set[Tile], product_layout: str = "",
) -> tuple[list[str], list[Problem]]:
    lines: list[str] = []
    problems: list[Problem] = []
    by_shape: dict[str, str] = {}
    tiles = list(dict.fromkeys(a.tile.find() for a in tiled))  # type: ignore[union-attr]
    roots = list(dict.fromkeys((t.parent or t).find() for t in tiles))
    vectored_roots = {(t.parent or t).find() for t in vectored}
    ranks = {r.name: len(r.dims) for r in refs if r.dims is not None}
    shapes = {_shape_text(r, ranks) for r in roots}
    for root in roots:
        if product_layout and root.rank == 2:
            if product_layout not in by_shape:
                by_shape[product_layout] = names.pick("layout")
                lines.append(f"{by_shape[product_layout]} = {product_layout}")
            layouts.names[root] = by_shape[product_layout]
            continue
        shape = _shape_text(root, ranks)
        node = next(a.node for a in tiled if (a.tile.find().parent or a.tile.find()).find() is root)  # type: ignore[union-attr]
        if not shape or not known.text(shape):
            problems.append(("B122", node, f"the shape of this tile ({shape or 'unknown'}) is not known where the kernel starts",
                             "compute it from static arguments before the first load"))
            continue
        if root.rank is not None and root.rank > 2:
            problems.append(("B123", node, f"a tile of rank {root.rank}", "work on tiles of rank 1 or 2"))
            continue
        problems += _size_problems(root, node, known)
        key = f"{shape} {root in vectored_roots}"
        if key not in by_shape:
            wish = "layout" if len(shapes) == 1 else ("tile_layout" if root.rank == 2 else "vector_layout")
            by_shape[key] = names.pick(wish, "layout")
            vec = layouts.vec_name if root in vectored_roots else ""
            if vec and narrow:
                vec = f"min({vec}, 4)"
            lines.append(f"{by_shape[key]} = _blocked({shape}{', ' + vec if vec else ''})")
        layouts.names[root] = by_shape[key]
    reduced: dict[tuple[str, int], str] = {}
    for tile in tiles:
        if tile.parent is None or tile.parent.find() not in layouts.names:
            continue
        parent = layouts.names[tile.parent.find()]
        if (parent, tile.axis) not in reduced:
            name = names.pick("row_layout" if tile.axis == 0 else "column_layout")
            reduced[parent, tile.axis] = name
            lines.append(f"{name} = {parent}.reduce({1 - tile.axis})")
        layouts.names[tile] = reduced[parent, tile.axis]
    return lines, problems


def _size_problems(tile: Tile, node: ast.AST, known: _Known) -> list[Problem]:
    """Whether a tile of evident extents fits the registers of the one warpgroup that holds it."""
    dims = ast.parse(tile.shape_text, mode="eval").body
    extents = [known.number(d) for d in dims.elts] if isinstance(dims, ast.Tuple) else [None]
    if None in extents:
        return []
    size = math.prod(extents)  # type: ignore[arg-type]
    text = f"a tile of {size} elements takes {size // 128} registers of each thread at 32 bits, of 255"
    if size > _LARGEST:
        return [("B125", node, text, f"use tiles of at most {_LARGEST // 2} elements, or a loop over such tiles")]
    return [("P302", node, text, f"tiles of at most {_LARGEST // 2} elements need no memory for registers")] if 2 * size > _LARGEST else []


def _shape_text(tile: Tile, ranks: dict[str, int]) -> str:
    """``x_ref.shape`` for a tile that is a whole ref, else the tuple of its dimensions."""
    text = tile.shape_text
    if text.startswith("("):
        dims = ast.parse(text, mode="eval").body.elts  # type: ignore[attr-defined]
        bases = {ast.unparse(d.value) for d in dims if isinstance(d, ast.Subscript)}
        if len(bases) == 1 and len(bases) == len({type(d) for d in dims}):
            (base,) = bases
            ref = base.removesuffix(".shape")
            if ranks.get(ref) == len(dims) and [ast.unparse(d) for d in dims] == [f"{base}[{i}]" for i in range(len(dims))]:
                return base
    return text


# -- column sums ----------------------------------------------------------------------------


def _find_hoists(model: KernelModel, resolver: Resolver) -> list[Hoist]:
    hoists = []
    for loop in model.loops:
        hoists += _loop_hoists(loop, model, resolver)
    return hoists


def _loop_hoists(loop: Loop, model: KernelModel, resolver: Resolver) -> list[Hoist]:
    """Carry components of the form ``acc + x.sum(axis=0)`` that start at zero."""
    body = loop.body
    if not isinstance(body, ast.FunctionDef) or len(body.args.args) != 2:
        return []
    statement = resolver.statement_of(loop.node)
    if not isinstance(statement, ast.Assign) or statement.value is not loop.node or len(statement.targets) != 1:
        return []
    if not alone(statement, resolver):
        return []
    returned = body.body[-1]
    if not isinstance(returned, ast.Return) or returned.value is None:
        return []
    if sum(isinstance(n, ast.Return) for n in walk(body)) != 1:
        return []
    if sum(isinstance(n, ast.Name) and n.id == body.name and isinstance(n.ctx, ast.Load) for n in walk(model.kernel)) != 1:
        return []  # another loop has the same body
    results = returned.value.elts if isinstance(returned.value, ast.Tuple) else [returned.value]
    inits = loop.init.elts if isinstance(loop.init, ast.Tuple) else [loop.init]
    target = statement.targets[0]
    targets = target.elts if isinstance(target, ast.Tuple) else [target]
    carried = _carry_names(body, len(results))
    if not (len(results) == len(inits) == len(targets) == len(carried or ())):
        return []
    found: list[Hoist] = []
    for name, result, init, out in zip(carried, results, inits, targets):  # type: ignore[arg-type]
        reduction = _accumulated(result, name, model)
        names = [n for n in walk(body) if isinstance(n, ast.Name) and n.id == name]
        stores = sum(isinstance(n.ctx, ast.Store) for n in names)
        once = stores == (len(results) > 1) and len(names) - stores == 1  # unpacked and added to
        if reduction is None or not once or not isinstance(out, ast.Name):
            continue
        value = model.values.get(reduction.operand)
        zeros = resolver.value(init)
        zero = isinstance(zeros, ast.Call) and resolver.qualified(zeros.func) == "jax.numpy.zeros" and zeros.args
        if isinstance(value, Array) and value.kind == "bool":
            continue  # the sum counts; adding the tile itself would not
        if not zero or not isinstance(value, Array) or value.dims is None or len(value.dims) != 2:
            continue
        shape = f"({', '.join(value.dims)})"
        found.append(Hoist(reduction, zeros, shape, statement, out.id))
    # zeros held in a variable are widened for all that start from it
    shared = [i for i in inits if isinstance(i, ast.Name)]
    for init in shared:
        uses = [n for n in walk(model.kernel) if isinstance(n, ast.Name) and n.id == init.id and isinstance(n.ctx, ast.Load)]
        same = [h for h in found if h.zeros is resolver.value(init)]
        if len(uses) != len(same) or len({h.shape for h in same}) > 1:
            found = [h for h in found if h.zeros is not resolver.value(init)]
    return found


def _carry_names(body: ast.FunctionDef, count: int) -> list[str] | None:
    """The names that the components of the carry have inside the loop body."""
    carry = body.args.args[1].arg
    if count == 1:
        return [carry]
    for statement in body.body:
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Name) and statement.value.id == carry:
            target = statement.targets[0]
            if isinstance(target, ast.Tuple) and all(isinstance(e, ast.Name) for e in target.elts):
                return [e.id for e in target.elts]  # type: ignore[attr-defined]
    return None


def _accumulated(result: ast.expr, name: str, model: KernelModel) -> Reduction | None:
    """The ``x.sum(axis=0)`` of ``acc + x.sum(axis=0)``, in either order."""
    if not (isinstance(result, ast.BinOp) and isinstance(result.op, ast.Add)):
        return None
    for acc, other in ((result.left, result.right), (result.right, result.left)):
        if isinstance(acc, ast.Name) and acc.id == name:
            for reduction in model.reductions:
                if reduction.node is other and reduction.axis == 0 and reduction.rank == 2:
                    keywords = {k.arg for k in reduction.node.keywords}
                    if reduction.operation == "sum" and keywords <= {"axis"}:
                        return reduction
    return None


