"""Plans kernels whose products are mixed with register work: attention and what looks like it.

The kernel keeps its statements.  It runs on one or two compute warpgroups; what they do to tiles
they do in registers, in the layout of the matrix unit.  A further warpgroup, the memory warpgroup,
runs a *slice* of the kernel: what computes loop bounds and addresses, and the copies.

* **Staged loads.** A load that only products read is copied by the memory warpgroup: operands of
  one loop go through a ring of stages, those outside of loops are copied once.  In the kernel the
  load becomes a wait; the stage is released where the loop's body ends.
* **Products** become ``part.dot(left, right, accumulator)``.  A sum ``acc + dot(...)`` becomes the
  accumulator's argument, since another set of registers would not fit.  Operands may be stages or
  computed; computed ones that the matrix unit cannot take from registers go through shared memory.
* **Division.** Dimensions along which nothing adds up (``tile_axes.py``) are divided between the
  warpgroups: ``rows`` is a warpgroup's part, arrays are made with its size, blocks are viewed
  through it.  Scalars, bounds and addresses stay those of the program, so that all warpgroups
  count the same steps.
* **Phases.** Loops that run one after another use the same shared memory in turn, with the tiles that
  only one of them and its products read.
* **Turns.** Where a loop has a product, register work, and a product of its result, the two
  warpgroups take turns at the matrix unit.

Loads and stores that no product reads are predicated accesses as in other kernels.  Masks of staged
loads must be tests against the ends of arrays with a zero fill.

* **Few rows.** A block of fewer rows than the matrix unit takes (16 queries of a decode step) is
  padded: along a divided dimension nothing adds up, so what stands in further rows reaches no real
  one, and accesses end with their block.  An operand of such rows is loaded into registers.
* **Branches.** Loops of products may stand in functions that run once (``once_functions.py``); both
  sides take the same branch.

Not planned: loops in loops, staged loads in other branches, addresses that depend on a loop's carry,
products of more than rank 2.
"""

from __future__ import annotations

import ast
import dataclasses
import re

from .dot_plan import Unplanned, check_alignment, transposed_by_call
from .kernel_shapes import names_in
from .model.events import Access, Dot, KernelModel, Loop
from .model.text import wrap
from .names import PALLAS, Resolver, walk
from .once_functions import once_functions
from .product_operands import readers, sources
from .product_sums import find_sum
from .replacements import ALONG_AXES, PLAIN_REDUCTIONS, replacement
from .slice_loads import names_loaded, names_stored, target_of
from .staged_emission import emit_kernel
from .staged_launch import plan_launches
from .staged_plan import RegisterDot, Ring, StagedLoad
from .tile_axes import Axis, TileAxes, Transposed, operand_root, without_transpose
from .values import Array, Index, SliceValue


def plan_staged(group, names, modules, emission) -> None:
    """Plans a kernel group; raises Unplanned where the form is not covered."""
    planner = StagedPlanner(group)
    planner.plan()
    launches = plan_launches(planner, names, modules)
    emit_kernel(planner, modules, emission)
    emission.actions += launches
    group.notes += group.call_notes() + planner.notes
    group.block("N205", group.model.dots[0].node, "products accumulate in float32; float16 and bfloat16 operands only")


class StagedPlanner:
    """Finds rings, products and divided dimensions of one kernel."""

    def __init__(self, group) -> None:
        self.group = group
        self.model: KernelModel = group.model
        self.resolver: Resolver = group.resolver
        kernel = self.model.kernel
        if not isinstance(kernel, ast.FunctionDef):
            raise Unplanned(kernel, "a kernel with matrix products that is not a plain function")
        if kernel.body[0].lineno == kernel.lineno:
            raise Unplanned(kernel, "a kernel written on one line", "put its body on lines of its own")
        self.kernel = kernel
        self.once = once_functions(kernel, self.resolver)
        self.notes: list[str] = []
        self.bounds: list[tuple[str, int, str]] = []

    def plan(self) -> None:
        from .plan import FreshNames

        if any(call.sequence is not None for call in self.group.calls):
            raise Unplanned(self.kernel, "matrix products in programs that revisit their results")
        for pages in self.model.pages:
            if pages.result.dims is None:
                raise Unplanned(pages.node, "pages put together to a tile of unknown shape")
        self.fresh = FreshNames.within(self.kernel)
        pick = self.fresh.pick
        self.loads_name = f"{self.kernel.name}_loads"
        self.program, self.part = pick("program", "program_index"), pick("part", "warpgroup_part")
        self.flags = {
            d.node: Transposed(transposed_by_call(d, "trans_a"), transposed_by_call(d, "trans_b")) for d in self.model.dots
        }
        self.pages = {p.load: p for p in self.model.pages}
        self.tables = self._tables()
        self.casts: dict[ast.Assign, Access] = {}
        self._refuse()
        self.axes = TileAxes(self.model, self.flags)
        self._divide()
        self._stage()
        self._pad()
        dropped = {n for load in self.staged.values() for n in walk(load.access.node)}
        for node in self.model.repeats:
            if node not in dropped:
                raise Unplanned(node, "one index vector for rows and columns beside matrix products", "use two jnp.arange")
        self._register_dots()
        self._turns()

    def _refuse(self) -> None:
        """What would change its meaning where several warpgroups run the kernel, each on its part."""
        for access in self.model.accesses:
            if access.kind == "atomic":
                raise Unplanned(access.node, "an atomic operation beside matrix products")
            if access.kind == "store" and access.tile is None:
                raise Unplanned(access.node, "a store of one element, which each of the warpgroups would make")
        for reduction in self.model.reductions:
            if reduction.operation not in PLAIN_REDUCTIONS:
                raise Unplanned(reduction.node, f"{reduction.operation} beside matrix products")
            if reduction.rank != 2 or reduction.axis != 1:
                raise Unplanned(reduction.node, "a reduction across the warps of a warpgroup, beside matrix products")
        for node, name in self.model.calls:
            if replacement(name) in ALONG_AXES:
                raise Unplanned(node, f"{name} beside matrix products")
        for query in self.model.grid_queries:
            if query.size:
                raise Unplanned(query.node, "num_programs in a kernel with matrix products")
            if not self.resolver.is_inside(query.node, self.kernel):
                raise Unplanned(query.node, "program_id in a helper function, beside matrix products", "pass it to the helper")
        for dot in self.model.dots:
            if any(isinstance(v, Array) and v.rank not in (None, 2) for v in (dot.left_value, dot.right_value)):
                raise Unplanned(dot.node, "a product of arrays that are no matrices")

    # -- division ---------------------------------------------------------------------------

    def _divide(self) -> None:
        """``parts``: for each divided dimension the name of a warpgroup's part of it."""
        self.parts: dict[Axis, str] = {}
        self.extents: dict[str, str] = {}
        stores = [a for a in self.model.accesses if a.kind == "store" and a.tile is not None]
        wanted = [self.axes.find((a.tile, 0)) for a in stores if a.dims is not None]  # type: ignore[union-attr]
        for axis in dict.fromkeys(wanted):
            if self.axes.adds_up(axis) is not None or any(self._meets(axis, other) for other in self.parts):
                continue
            name = self.fresh.pick("rows") if not self.parts else self.fresh.pick("columns", "part_rows")
            self.parts[axis] = name
            self.extents[name] = self._extent(axis)
        for access in stores:
            if access.dims is not None and self.parts and not any(self.split(access)):
                raise Unplanned(access.node, "a store that each of the warpgroups would make")

    def _meets(self, axis: Axis, other: Axis) -> bool:
        """Whether some tile has both dimensions."""
        tiles = {t.shape_root() for t in self.model.tiles if t.rank == 2}
        return any({self.axes.find((t, 0)), self.axes.find((t, 1))} == {axis, other} for t in tiles)

    def _extent(self, axis: Axis) -> str:
        """The extent of a dimension, as short as the kernel spells it."""
        texts = []
        for value in self._arrays():
            texts += [d for a, d in zip(self.axes.of(value), _real_dims(value)) if a == axis]
        known = [t for t in dict.fromkeys(texts) if t]
        if not known:
            raise Unplanned(self.model.dots[0].node, "a tile whose extents are not known")
        late = self._named_late()
        return min(known, key=lambda t: (bool(names_in(t) & late), ".shape[" in t, len(t)))

    def _named_late(self) -> set[str]:
        """What the kernel names only behind its first load or store of a tile, as in ``bq, d = q.shape``."""
        nodes = {a.node for a in self.model.accesses if a.tile is not None}
        first = next((i for i, s in enumerate(self.kernel.body) if nodes & set(walk(s))), len(self.kernel.body))
        return {
            n.id for s in self.kernel.body[first:] for n in walk(s) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
        }

    def _arrays(self) -> list[Array]:
        found = [v for v in self.model.values.values() if isinstance(v, Array) and v.dims is not None]
        return found + [d.result for d in self.model.dots if d.result.dims is not None]

    def split(self, access: Access) -> tuple[str, ...]:
        """For each axis of an access's tile: the name of a warpgroup's part of it, or ""."""
        return tuple(self.parts.get(self.axes.find((access.tile, a)), "") for a in range(len(access.dims or ())))

    def _pad(self) -> None:
        """``padded``: whether blocks of fewer rows than the matrix unit takes may be padded.

        Nothing adds up along a divided dimension, so what stands in further rows reaches no real one.
        Accesses leave them out, since slices end with their block; index vectors would not, and
        neither would the copy of a stage.
        """
        accesses = [a for a in self.model.accesses if a.tile is not None and any(self.split(a))]
        self.padded = bool(self.parts) and all(
            a not in self.staged and all(
                ix.kind in ("slice", "full") for ix, part in zip(_kept(a), self.split(a)) if part
            ) for a in accesses
        )

    # -- staging ----------------------------------------------------------------------------

    def _stage(self) -> None:
        self.staged: dict[Access, StagedLoad] = {}
        by_place: dict[tuple[Loop | None, int], list[StagedLoad]] = {}
        for access in self.model.accesses:
            pages = self.pages.get(access.node)  # type: ignore[arg-type]
            rank = len(access.dims or ()) - (pages is not None)
            if access.kind != "load" or access.tile is None or rank not in (1, 2) or access in self.tables:
                continue
            uses = self._uses(access) if rank == 2 else None
            if uses is not None and self._stays_in_registers(access):
                continue
            if uses is not None:
                loop = self._loop_of(access)
                for ix in access.view or () if access.node not in self.pages else ():
                    check_alignment(access, ix)
                load = self._staged_load(access, uses)
            else:
                read = self._staged_read(access)
                if read is None:
                    continue
                loop, load = read
            self.staged[access] = load
            # copies outside of loops wait for none of the loops before which they stand
            earlier = sum(other.node.lineno < access.node.lineno for other in self.model.loops) if loop is None else 0  # type: ignore[attr-defined]
            by_place.setdefault((loop, earlier), []).append(load)
        stored = {a.ref for a in self.model.accesses if a.kind != "load"}
        for access in (*self.staged, *self.tables):
            if access.ref in stored:
                raise Unplanned(access.node, f"{access.ref.name} is read by products and stored to")
        self.rings: list[Ring] = []
        for (loop, _), loads in by_place.items():
            ordered = tuple(sorted(loads, key=lambda x: (x.access.node.lineno, x.access.node.col_offset)))  # type: ignore[attr-defined]
            if loop is None:
                self.rings.append(Ring(self.fresh.pick("once", "copied_once"), ordered, None, "0", "1"))
                continue
            lower, upper = self.text(loop.lower), self.text(loop.upper)
            variable = loop.body.args.args[0].arg  # type: ignore[union-attr]
            if len(self.resolver.scopes[loop.body].bindings[variable]) > 1:
                raise Unplanned(loop.body, f"{variable} counts the loop's steps and is assigned again", "use another name")
            step = variable if lower == "0" else f"{variable} - {wrap(lower)}"
            steps = upper if lower == "0" else f"{wrap(upper)} - {wrap(lower)}"
            self.rings.append(Ring(self.fresh.pick("ring", "stages"), ordered, loop, step, steps))
        if not self.rings:
            raise Unplanned(self.model.dots[0].node, "products of which no operand is a tile of an array")
        self._share()

    def _share(self) -> None:
        """``phases``: the rings that are in use at a time, by loop; none if there is one loop only."""
        looped = sorted((r for r in self.rings if r.loop is not None), key=lambda r: _line(r.loop.node))  # type: ignore[union-attr]
        self.phases: list[list[Ring]] = []
        plain = all(self.resolver.parents[self.resolver.statement_of(r.loop.node)] is self.kernel for r in looped)  # type: ignore[union-attr]
        if len(looped) < 2 or not plain or any(r.paged for r in self.rings):
            return
        ends = [_line(r.loop.node) for r in looped]  # type: ignore[union-attr]
        for at, ring in enumerate(looped):
            first = ends[at - 1] if at else 0
            once = [
                r for r in self.rings
                if r.loop is None and all(self._used_until(load, first, ends[at], ring.loop) for load in r.loads)
            ]
            self.phases.append([*once, ring])

    def _used_until(self, load: StagedLoad, first: int, last: int, loop: Loop) -> bool:
        """Whether a tile is copied and read after the line ``first``, up to ``last`` or in the loop there."""
        nodes: list[ast.AST] = [load.access.node]
        if isinstance(target := target_of(load.access.node, load.statement), ast.Name):
            nodes += [n for n in self.resolver.named(target.id) if self.resolver.value(n) is load.access.node]
        return first < _line(load.access.node) and all(
            self.resolver.is_inside(n, loop.body) or first < _line(n) < last and self.resolver.scope_of(n).node is self.kernel
            for n in nodes
        )

    def _uses(self, access: Access) -> tuple[str, ast.stmt, bool] | None:
        """(name, statement, alone) of a load that only products read; None for other loads."""
        node = self.node_of(access)
        statement = self.resolver.statement_of(node)
        operands = {operand_root(n, self.resolver) for d in self.model.dots for n in (d.left, d.right)}
        if node in operands:
            return access.ref.name.removesuffix("_ref") or "tile", statement, False
        if access.node in self.pages:
            return self._uses_of_pages(access, statement, operands)
        target = self._assigned_to(node, statement)
        if target is None or not self._only_for_products(target, node, operands):
            return None
        alone = True
        if isinstance(statement.value, ast.Tuple):  # type: ignore[attr-defined]
            loads = {a.node for a in self.model.accesses if a.kind == "load" and a.tile is not None}
            alone = all(
                node in loads and (name := self._assigned_to(node, statement)) is not None
                and self._only_for_products(name, node, operands) for node in statement.value.elts  # type: ignore[attr-defined]
            )
        return target.id, statement, alone

    def _assigned_to(self, node: ast.AST, statement: ast.stmt) -> ast.Name | None:
        """The only name of a load: of ``k = load``, or of its place in ``k, v = load, load``."""
        target = target_of(node, statement)
        if not isinstance(target, ast.Name):
            return None
        return target if len(self.resolver.scope_of(target).bindings.get(target.id, ())) == 1 else None

    def _only_for_products(self, target: ast.Name, load: ast.AST, operands: set[ast.expr]) -> bool:
        found = readers(target.id, load, operands, self.resolver)
        return bool(found) and all(n in operands or self._is_attribute(n) for n in found)

    def _is_attribute(self, name: ast.Name) -> bool:
        """Whether only the dtype or shape of what a name holds is read."""
        parent = self.resolver.parents[name]
        return isinstance(parent, ast.Attribute) and parent.attr in ("dtype", "shape", "ndim")

    def _uses_of_pages(self, access: Access, statement: ast.stmt, operands: set[ast.expr]) -> tuple[str, ast.stmt, bool] | None:
        """As ``_uses``; casts of pages are left to the copies."""
        node = self.node_of(access)
        if not (isinstance(statement, ast.Assign) and statement.value is node and len(statement.targets) == 1):
            return None
        target = statement.targets[0]
        if not isinstance(target, ast.Name):
            return None
        casts = self._casts_of(target)
        if len(self.resolver.scope_of(target).bindings.get(target.id, ())) != 1 + len(casts):
            return None
        found = [n for n in self.resolver.named(target.id) if isinstance(n.ctx, ast.Load) and self._reads(n, target, bool(casts))]
        for name in found:
            cast = any(self.resolver.is_inside(name, c.value.func) for c in casts)  # type: ignore[attr-defined]
            if not (cast or name in operands or self._is_attribute(name)):
                return None
        if found:
            self.casts |= dict.fromkeys(casts, access)
        return (target.id, statement, True) if found else None

    def node_of(self, access: Access) -> ast.AST:
        """What stands for a loaded tile in the kernel."""
        pages = self.pages.get(access.node)  # type: ignore[arg-type]
        return pages.node if pages is not None else access.node

    def _casts_of(self, target: ast.Name) -> list[ast.Assign]:
        """The assignments ``tile = tile.astype(dtype)`` of a name that holds a loaded tile."""
        scope = self.resolver.scope_of(target)
        found = []
        for name in self.resolver.named(target.id):
            statement = self.resolver.parents[name]
            if name is target or not isinstance(statement, ast.Assign) or self.resolver.scope_of(name) is not scope:
                continue
            value = statement.value
            if (
                statement.targets == [name] and isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute)
                and value.func.attr == "astype" and isinstance(value.func.value, ast.Name) and value.func.value.id == target.id
                and name.lineno > target.lineno
            ):
                found.append(statement)
        return found

    def dtypes_after(self, cast: ast.Assign) -> list[tuple[ast.Attribute, str]]:
        """Where the dtype of a tile is asked for behind its cast, with the dtype that the source means there.

        The tile itself may stand in another dtype, as operands of products do.
        """
        target = cast.targets[0]
        assert isinstance(target, ast.Name) and isinstance(cast.value, ast.Call)
        dtype = ast.unparse(cast.value.args[0])
        test = self._tests(cast, self._place(cast), self.casts[cast])
        if test is None:
            raise Unplanned(cast, "a cast of pages under a test that reads more than parameters")
        asked = [self.resolver.parents[n] for n in self.resolver.named(target.id) if n.lineno > cast.lineno and self._reads(n, target, True)]
        text = f"({dtype} if {test} else {target.id}.dtype)" if test else dtype
        return [(n, text) for n in asked if isinstance(n, ast.Attribute) and n.attr == "dtype"]

    def _reads(self, name: ast.Name, target: ast.Name, several: bool) -> bool:
        """Whether a name means what ``target`` was assigned; ``several``: or what was made of that."""
        if not several:
            return self.resolver.value(name) is self.resolver.parents[target].value  # type: ignore[attr-defined]
        found = self.resolver.scope_of(name).find(name.id)
        return found is not None and found[0] is self.resolver.scope_of(target)

    def _tables(self) -> dict[Access, ast.stmt]:
        """The vectors of page numbers that nothing but loads of pages reads, with their statements."""
        found: dict[Access, ast.stmt] = {}
        names = {p.table for p in self.pages.values()}
        for pages in self.pages.values():
            node = self.resolver.value(pages.table)
            access = next((a for a in self.model.accesses if a.node is node and a.kind == "load"), None)
            statement = self.resolver.statement_of(node)
            readers = [n for n in self.resolver.named(pages.table.id) if isinstance(n.ctx, ast.Load) and self.resolver.value(n) is node]
            simple = isinstance(statement, ast.Assign) and statement.value is node and isinstance(node, ast.Subscript)
            if access is None or not simple or not set(readers) <= names or len(access.dims or ()) != 1 or access.mask is not None:
                raise Unplanned(pages.node, "pages named by something else than a vector that is loaded for that alone")
            if [ix.kind for ix in access.view or ()] not in ([], ["slice"], ["full"]):
                raise Unplanned(node, "a table of pages that is not loaded as one slice")
            found[access] = statement
        return found

    def _staged_read(self, access: Access) -> tuple[Loop, StagedLoad] | None:
        """A load that a loop of products computes with, where its copy can run ahead as well."""
        statement = self.resolver.statement_of(access.node)
        place = self._place(statement)
        loop = next((x for x in self.model.loops if x.body is self.resolver.parents[place]), None)
        if loop is None or not any(self.resolver.is_inside(d.node, loop.body) for d in self.model.dots):
            return None
        test = self._tests(statement, place, access)
        if test is None:
            return None
        kept = len(self.bounds)
        try:
            self._check_loop(loop, access)
            name = access.ref.name.removesuffix("_ref")
            load = self._staged_load(access, (name, statement, False))
        except Unplanned:
            del self.bounds[kept:]
            return None
        load = dataclasses.replace(load, place=place, test=test, read=True)
        if place is not statement and names_stored(place) & names_loaded(ast.parse(load.window, mode="eval")):
            del self.bounds[kept:]
            return None
        return loop, load

    def _place(self, statement: ast.stmt) -> ast.stmt:
        """The statement around which no ``if`` stands."""
        while isinstance(parent := self.resolver.parents[statement], ast.If):
            statement = parent
        return statement

    def _tests(self, statement: ast.stmt, place: ast.stmt, access: Access) -> str | None:
        """The test under which a statement inside of ``place`` runs, None if the memory warpgroup cannot make it.

        Only that of the innermost ``if`` if it asks for the ref itself: a copy too many is harmless.
        """
        tests: list[str] = []
        while statement is not place:
            parent = self.resolver.parents[statement]
            assert isinstance(parent, ast.If)
            if not self._of_parameters(parent.test):
                return None
            text = ast.unparse(parent.test)
            if statement not in parent.body:
                tests.insert(0, f"not {wrap(text)}")
            elif not tests and text == f"{access.ref.name} is not None":
                return text
            else:
                tests.insert(0, text if isinstance(parent.test, (ast.Name, ast.Compare)) else f"({text})")
            statement = parent
        return " and ".join(tests)

    def _of_parameters(self, test: ast.expr) -> bool:
        """Whether a test reads nothing but parameters of the kernel, which keep their values."""
        kernel = self.kernel
        parameters = {a.arg for a in walk(kernel.args) if isinstance(a, ast.arg)}
        names = names_loaded(test)
        return names <= parameters and all(len(self.resolver.scopes[kernel].bindings.get(n, ())) == 1 for n in names)

    def _loop_of(self, access: Access) -> Loop | None:
        """The loop whose body's own statement holds a load; None outside of loops."""
        statement = self.resolver.statement_of(access.node)
        block = self.resolver.parents[statement]
        if block is self.kernel:
            return None
        for loop in self.model.loops:
            if loop.body is block:
                self._check_loop(loop, access)
                return loop
        if isinstance(block, (ast.For, ast.While)):
            raise Unplanned(access.node, "an operand of a product that is loaded in a Python loop", "use one lax.fori_loop")
        raise Unplanned(access.node, "an operand of a product that is loaded in a branch, a while_loop or a loop within a loop")

    def _check_loop(self, loop: Loop, access: Access) -> None:
        """Raises Unplanned for a loop that the memory warpgroup cannot run along."""
        body = loop.body
        if not isinstance(body, ast.FunctionDef) or not self.is_straight(self.resolver.parents[body]):
            raise Unplanned(access.node, "a loop of products whose body is not a function in the kernel", "define it in the kernel")
        if not self.is_straight(self.resolver.parents[self.resolver.statement_of(loop.node)]):
            raise Unplanned(loop.node, "a loop of products in a branch or in another loop")
        if any(isinstance(n, (ast.Lambda, ast.IfExp, ast.BoolOp, ast.comprehension)) for n in self._around(loop.node)):
            raise Unplanned(loop.node, "a loop of products in a branch of an expression", "put it into a function of the kernel")
        if sum(other.body is body for other in self.model.loops) > 1:
            raise Unplanned(loop.node, "two loops with the same body", "write a body for each")

    def _stays_in_registers(self, access: Access) -> bool:
        """Whether an operand is loaded into registers: a left one, in a branch and outside of loops, or of few rows.

        Its copy could not start before the branch is taken, and is made once. Rows that are padded have no copy.
        """
        operands = [operand_root(d.right, self.resolver) for d in self.model.dots]
        is_right = any(self.resolver.value(o) is access.node if isinstance(o, ast.Name) else o is access.node for o in operands)
        block = self.resolver.parents[self.resolver.statement_of(access.node)]
        unit = 64 if self.group.target == "sm90" else 128
        extents = [self.extents[part] for part in self.split(access) if part]
        few = block is self.kernel and any(n.isdigit() and int(n) % unit for n in extents)
        return (block in self.once or few) and not is_right

    def _around(self, node: ast.AST) -> list[ast.AST]:
        """The nodes between a node and its statement."""
        found = []
        while not isinstance(node := self.resolver.parents[node], ast.stmt):
            found.append(node)
        return found

    def is_straight(self, block: ast.AST) -> bool:
        """Whether a block's statements run once: those of the kernel, or of a function that it calls once."""
        return block is self.kernel or block in self.once

    def _staged_load(self, access: Access, uses: tuple[str, ast.stmt, bool]) -> StagedLoad:
        name, statement, alone = uses
        if not alone:
            name = self.fresh.pick(f"{name}_tile")
        pages = self.pages.get(access.node)  # type: ignore[arg-type]
        if pages is not None:
            kept = tuple(d for a, d in enumerate(pages.result.dims or ()) if pages.result.thin_axis in (None, a))
            split = tuple(self.parts.get(axis, "") for axis in self.axes.of(pages.result))
            return StagedLoad(access, name, (), kept, statement, alone, split, statement, pages=pages)
        view = access.view or ()
        ref = access.ref
        rank = len(ref.dims) if ref.dims is not None else len(view)
        full = [*view, *[Index("full", (), f"{ref.name}.shape[{d}]") for d in range(len(view), rank)]]
        texts, block, starts = [], [], []
        for d, ix in enumerate(full):
            if ix.kind == "full":
                texts.append(":")
                block.append(ix.size)
                starts.append(("0", d))
            elif ix.kind == "scalar":
                texts.append(self._index_text(access, d, ix))
            elif ix.kind in ("slice", "run") and ix.size:
                texts.append(self._index_text(access, d, ix))
                block.append(ix.size)
                starts.append((ix.start, d))
            else:
                raise Unplanned(access.node, f"the operand {ref.name} is gathered by an index vector or has no known extent")
        if len(block) != len(access.dims or ()):
            raise Unplanned(access.node, f"the operand {ref.name} is not a tile of rank 2")
        if access.mask is not None:
            self._take_bounds(access, starts)
        return StagedLoad(access, name, tuple(texts), tuple(block), statement, alone, self.split(access), statement)  # type: ignore[arg-type]

    def _index_text(self, access: Access, dim: int, ix: Index) -> str:
        """The user's own text of one index where it is a slice or a number, else one made from its start."""
        node = access.node.args[0] if isinstance(access.node, ast.Call) else access.node
        if isinstance(node, ast.Subscript):
            parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            if dim < len(parts):
                part = parts[dim]
                if isinstance(self.model.values.get(part), SliceValue) or ix.kind == "scalar":
                    return self.text(part)
        if not ix.start:
            raise Unplanned(access.node, f"an index of {access.ref.name} whose start is not known")
        start = self.of_program(ix.start)
        pl = next((n for _, n, t in self.resolver.imports() if t == PALLAS), "pl")
        return f"{pl}.ds({start}, {ix.size})"

    def of_program(self, text: str) -> str:
        """A number of the model (``Scalar.expr``) with ``program_id`` replaced by the parameter that holds it."""
        return re.sub(r"\bprogram_id\((\d+)\)", rf"{self.program}[\1]", text)

    def _take_bounds(self, access: Access, starts: list[tuple[str, int]]) -> None:
        """Notes what a mask compares with; the launch checks that it is the end of the array."""
        if access.other is not None and not (isinstance(access.other, ast.Constant) and access.other.value in (0, 0.0)):
            raise Unplanned(access.other, "an operand whose mask fills with something other than 0")
        value = access.mask_value
        if not isinstance(value, Array) or value.mask is None:
            raise Unplanned(access.mask or access.node, "a mask that is not a test against the ends of the array")
        for term in value.mask:
            start, dim = starts[len(starts) - 1 - term.axis_from_end]
            if not term.bound or not term.start or term.start != start:
                raise Unplanned(access.mask or access.node, "a mask on other indices than those of the load")
            self.bounds.append((access.ref.name, dim, term.bound))

    def whole_shape(self, node: ast.Attribute, array: Array) -> tuple[ast.expr, str]:
        """The expression around ``array.shape`` that stands for extents, and these as the refs of the kernel have them."""
        dims = array.dims or ("",)
        if not all(dims):
            raise Unplanned(node, f"the extents of {ast.unparse(node.value)} are not known", "write them out")
        around = self.resolver.parents[node]
        if isinstance(around, ast.Subscript) and isinstance(around.slice, ast.Constant) and isinstance(around.slice.value, int):
            return around, dims[around.slice.value]
        owner = dims[0].partition(".shape[")[0]
        rank = next((len(r.dims) for r in self.model.refs if r.name == owner and r.dims is not None), None)
        if rank == len(dims) and dims == tuple(f"{owner}.shape[{i}]" for i in range(len(dims))):
            return node, f"{owner}.shape"
        return node, f"({', '.join(dims)}{',' if len(dims) == 1 else ''})"

    def text(self, node: ast.expr) -> str:
        """The user's own expression with ``program_id`` replaced by the parameter that holds it."""
        return ast.unparse(self.rebuilt(node))

    def rebuilt(self, node: ast.AST) -> ast.AST:
        queries = {q.node: q for q in self.model.grid_queries}
        scalars = {a.node for a in self.model.accesses if a.tile is None and a.kind == "load"}

        def copy(n):
            if isinstance(n, ast.AST):
                shape = n.value if isinstance(n, ast.Subscript) else n
                base = self.model.values.get(shape.value) if isinstance(shape, ast.Attribute) and shape.attr == "shape" else None
                if isinstance(base, Array):  # the memory warpgroup has no tiles
                    place, whole = self.whole_shape(shape, base)  # type: ignore[arg-type]
                    if place is n:
                        return ast.parse(whole, mode="eval").body
                if n in queries and not queries[n].size:
                    return ast.Subscript(ast.Name(self.program, ast.Load()), ast.Constant(queries[n].axis), ast.Load())
                if n in scalars and isinstance(n, ast.Call):
                    place = n.args[0]  # ref.at[i]
                    return ast.Subscript(copy(place.value.value), copy(place.slice), ast.Load()) if isinstance(place, ast.Subscript) else copy(place)
                return type(n)(**{field: copy(value) for field, value in ast.iter_fields(n)})
            return [copy(v) for v in n] if isinstance(n, list) else n

        return ast.fix_missing_locations(copy(node))

    def innermost_test(self, node: ast.AST) -> str:
        """The test of the ``if`` around a node, if it reads nothing but the kernel's parameters."""
        child, parent = node, self.resolver.parents[node]
        while parent is not self.kernel:
            if isinstance(parent, ast.If) and child in parent.body:
                return ast.unparse(parent.test) if self._of_parameters(parent.test) else ""
            child, parent = parent, self.resolver.parents[parent]
        return ""

    # -- products ---------------------------------------------------------------------------

    def _register_dots(self) -> None:
        self.dots: list[RegisterDot] = []
        for dot in self.model.dots:
            left, right = self.stage_of(dot.left), self.stage_of(dot.right)
            flags = self.flags[dot.node]
            left_t = flags.left ^ self.is_transposed(dot.left)
            added, total, target = find_sum(dot, self)
            spill_left = left is None and (left_t or self.group.target == "sm100")
            if spill_left and right is None:
                raise Unplanned(dot.node, "a product of two computed operands that both pass through shared memory")
            self.dots.append(RegisterDot(
                dot, flags.left, flags.right, spill_left, spill_right=right is None, added=added, sum=total, target=target
            ))

    def stage_of(self, operand: ast.expr) -> StagedLoad | None:
        """The stage that an operand is read from; None for operands in registers."""
        root = operand_root(operand, self.resolver)
        for access, load in self.staged.items():
            if isinstance(root, ast.Name) and access in self.casts.values() and load.name == root.id and not load.read:
                if self.resolver.scope_of(root) is self.resolver.scope_of(load.statement):
                    return load
        staged = {load.node: load for load in self.staged.values() if not load.read}  # the others go into registers
        found = [staged.get(s) for s in sources(operand, self.resolver)]  # type: ignore[call-overload]
        if any(found) and not all(found):
            raise Unplanned(operand, f"{ast.unparse(operand)} is a tile of an array in some calls only")
        return found[0]

    def is_transposed(self, node: ast.expr) -> bool:
        flipped = False
        while (inner := without_transpose(node, self.resolver)) is not None:
            flipped, node = not flipped, inner
        return flipped

    def _turns(self) -> None:
        """Marks the two products of a loop of which the second reads what is made of the first."""
        self.turn_loops: list[Loop] = []
        for ring in self.rings:
            if ring.loop is None or not self.parts:
                continue
            inside = [d for d in self.dots if self.resolver.is_inside(d.dot.node, ring.loop.body)]
            straight = all(self.resolver.parents[self.resolver.statement_of(d.dot.node)] is ring.loop.body for d in inside)
            returned = isinstance(self.resolver.statement_of(ring.loop.node), ast.Return)  # nothing runs behind it
            if self.group.target != "sm90" or len(inside) != 2 or not straight or returned:
                continue
            first, second = inside
            if not first.added and second.added and self.stage_of(second.dot.left) is None:
                self.turn_loops.append(ring.loop)
        turning = [d for loop in self.turn_loops for d in self.dots if self.resolver.is_inside(d.dot.node, loop.body)]
        self.dots = [dataclasses.replace(d, turn=d in turning) for d in self.dots]


def _kept(access: Access) -> list[Index]:
    """The index of each dimension of an access's tile."""
    view = [ix for ix in access.view or () if ix.kind != "scalar"]
    return [*view, *[Index("full")] * (len(access.dims or ()) - len(view))]


def _line(node: ast.AST) -> int:
    return node.lineno  # type: ignore[attr-defined]


def _real_dims(value: Array) -> tuple[str, ...]:
    assert value.dims is not None
    return value.dims if value.thin_axis is None else (value.dims[value.thin_axis],)
