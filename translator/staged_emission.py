"""Turns the plan of a kernel with staged loads into actions inside the kernel function."""

from __future__ import annotations

import ast

from . import actions as act
from .dot_plan import Unplanned
from .names import MOSAIC, walk
from .plan_layouts import plan_layouts
from .plan_whole_steps import plan_whole_steps
from .slice_loads import loads_lines
from .staged_plan import RegisterDot, Ring, handed_over
from .values import Array, RefValue

_CREATION = {"zeros", "ones", "full", "empty"}


def emit_kernel(planner, modules, emission) -> None:
    """Adds the actions of the kernel function, and names the support code."""
    _Emission(planner, modules, emission).emit()


class _Emission:
    def __init__(self, planner, modules, emission) -> None:
        self.planner, self.modules, self.emission = planner, modules, emission
        self.group, self.model, self.resolver = planner.group, planner.model, planner.resolver
        self.add = emission.actions.append
        self.span = self.group.span

    def emit(self) -> None:
        planner = self.planner
        for module in ("jax", "jax.numpy", "jax.lax", "math", MOSAIC):
            self.modules.name(module)
        parameters = [planner.program, *(r.name for r in planner.rings)]
        lines = loads_lines(planner, planner.loads_name, parameters)
        self.add(act.StagedFunction(self.span(planner.kernel), lines))
        self.add(act.StagedParameters(self.span(planner.kernel), (planner.program, planner.part, *parameters[1:])))
        self._accesses()
        for ring in planner.rings:
            self._ring(ring)
        for dot in planner.dots:
            self._dot(dot)
        self._created()
        for ring in planner.rings:
            if lines := tuple(f"{r.name}.release(0)" for r in handed_over(planner.phases, ring)):
                self.add(act.StagedLines(self.span(self.resolver.statement_of(ring.loop.node)), lines, after=True))  # type: ignore[union-attr]
        for loop in planner.turn_loops:
            statement = self.resolver.statement_of(loop.node)
            self.add(act.StagedLines(self.span(statement), (f"{planner.part}.start_turns()",)))
            self.add(act.StagedLines(self.span(statement), (f"{planner.part}.end_turns()",), after=True))
        split = plan_whole_steps(planner, self.modules.name("jax.lax"), self.modules.name("jax.numpy"))
        self.emission.actions += split
        self.emission.support |= {"_split_loop"} if split else set()
        for statement in planner.tables.values():
            self.add(act.RemoveStatement(self.span(statement)))
        for cast in planner.casts:
            name, (dtype,) = cast.value.func.value.id, cast.value.args
            self.add(act.StagedText(self.span(cast.value), f"{planner.part}.cast({name}, {ast.unparse(dtype)})"))
            for place, text in planner.dtypes_after(cast):
                self.add(act.StagedText(self.span(place), text))
        staged = {n for load in planner.staged.values() for n in walk(load.statement if load.alone else load.node)}
        staged |= {n for statement in planner.tables.values() for n in walk(statement)}
        self.group.emit_body(self.modules, self.add, self.emission, layouts=self.layouts, queries=False, skip=staged)
        for query in self.model.grid_queries:
            self.add(act.StagedText(self.span(query.node), f"{planner.program}[{query.axis}]"))
        self.emission.support |= {"_in_turn", "_rings_in_turn"} if planner.phases else set()
        kind = "_WgmmaRows" if self.group.target == "sm90" else "_Tcgen05Rows"
        if any(r.paged for r in planner.rings):
            self.emission.support.add("_PagedRing")
        self.emission.support |= {"_Ring", "_swizzle", "_fitting_stages", "_block_views", "_specialize", kind}

    # -- loads and stores ---------------------------------------------------------------------

    def _accesses(self) -> None:
        planner = self.planner
        layouts, problems = plan_layouts(
            self.model, self.resolver, planner.fresh, self.group.strided_refs(),
            skip=frozenset(a for a, load in planner.staged.items() if not load.read or load.pages) | planner.tables.keys(), layout=f"{planner.part}.layout",
        )
        for _, node, reason, advice in problems:
            raise Unplanned(node, reason, advice)
        lines = [f"{name} = {planner.part}.rows({planner.extents[name]})" for name in planner.parts.values()]
        users = self._divided_nodes()
        staged = {a.node for a, load in planner.staged.items() if not load.read}
        at = self._head(lines, users)
        self._head(layouts.lines, [n for n in users if n not in staged], at)
        self.layouts = layouts
        for access in self.model.accesses:
            if access in planner.staged or access in planner.tables:
                continue
            part = ""
            if access.tile is not None:
                split = planner.split(access)
                kinds = [ix.kind for ix in access.view or () if ix.kind != "scalar"]
                kinds += ["full"] * (len(split) - len(kinds))
                if any(s and k in ("slice", "full") for s, k in zip(split, kinds)):
                    if any(s and k not in ("slice", "full") for s, k in zip(split, kinds)):
                        raise Unplanned(access.node, "index vectors beside slices of a divided tile")
                    part = ", ".join(s if s and k in ("slice", "full") else "slice(None)" for s, k in zip(split, kinds))
            self.group.emit_access(access, layouts, self.add, self.emission, part)
        self.emission.support |= layouts.support
        planner.notes += [n for n in layouts.notes if n.startswith("line")]

    def _head(self, lines: list[str], users: list[ast.AST], wanted: int = 0) -> int:
        """Puts lines before the first statement that is not only names of extents, and so before all ``users``.

        wanted: the statement before which they should stand if their users allow it. Returns the one before which they do.
        """
        kernel = self.planner.kernel
        needed = {n.id for line in lines for n in walk(ast.parse(line)) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
        at = 0
        for i, s in enumerate(kernel.body):
            if isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant):
                at = i + 1
            if {n.id for n in walk(s) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)} & needed:
                at = i + 1
        first = min((self._top(n) for n in users), default=len(kernel.body))
        if at > first:
            raise Unplanned(kernel.body[first], "a tile that is made before its extents are known", "compute them at the head of the kernel")
        at = max(at, min(wanted, first))
        if lines:
            self.add(act.StagedLines(self.span(kernel.body[at]), tuple(lines)))
        return at

    def _top(self, node: ast.AST) -> int:
        """The position of the kernel's statement that holds a node."""
        while self.resolver.parents.get(node) is not self.planner.kernel:
            node = self.resolver.parents[node]
        return self.planner.kernel.body.index(node)  # type: ignore[arg-type]

    def _divided_nodes(self) -> list[ast.AST]:
        nodes: list[ast.AST] = [a.node for a in self.model.accesses if a.tile is not None]
        nodes += [n for n, *_ in (*self._creations(), *self._like_refs())]
        for n in nodes:
            if not self.resolver.is_inside(n, self.planner.kernel):
                raise Unplanned(n, "a tile that is made or loaded in a helper function", "move it into the kernel")
        return nodes

    # -- stages -------------------------------------------------------------------------------

    def _ring(self, ring: Ring) -> None:
        loads = [*ring.operands, *ring.reads]
        names = [load.name for load in loads]
        wait = f"{names[0]} = {ring.name}.wait({ring.step})[0]" if len(names) == 1 else f"{', '.join(names)} = {ring.name}.wait({ring.step})"
        lines = [wait]
        for load in loads:
            if any(load.split) and not load.read:
                index = ", ".join(s or ":" for s in load.split).removesuffix(", :")
                if len(names) == 1:
                    lines = [f"{wait}.at[{index}]"]
                else:
                    lines.append(f"{load.name} = {load.name}.at[{index}]")
        first = ring.loads[0]
        done = set()
        for load in ring.loads:
            if load.read:
                self.add(act.StagedText(self.span(load.node), self._read(load)))
            elif not load.alone:
                self.add(act.StagedText(self.span(load.node), load.name))
            if load.statement in done:
                continue
            done.add(load.statement)
            if load is first:
                self.add(act.StagedLines(self.span(load.place), tuple(lines)))
            if load.alone:
                self.add(act.RemoveStatement(self.span(load.statement)))
        if ring.loop is not None:
            body = ring.loop.body
            returns = [n for n in walk(body) if isinstance(n, ast.Return) and self.resolver.scope_of(n).node is body]
            if len(returns) != 1 or returns[0] is not body.body[-1]:  # type: ignore[union-attr]
                raise Unplanned(body, "a loop body with several returns")
            self._release(ring, returns[0])

    def _release(self, ring: Ring, returned: ast.Return) -> None:
        """Gives a stage back once all of the loop's body has read it, what it returns included."""
        release = f"{ring.name}.release({ring.step})"
        names = {load.name for load in ring.loads}
        if not any(self._reads_stage(n, names) for n in walk(returned)):
            self.add(act.StagedLines(self.span(returned), (release,)))
            return
        result = self.planner.fresh.pick("carry", "carried", "next_carry")
        self.add(act.StagedReturn(self.span(returned), result))
        self.add(act.StagedLines(self.span(returned), (release, f"return {result}"), after=True))

    def _reads_stage(self, node: ast.AST, names: set[str]) -> bool:
        """Whether an expression has a load or product, calls something with a stage, or names one."""
        if any(node is dot.dot.node for dot in self.planner.dots) or any(node is a.node for a in self.planner.staged):
            return True
        return isinstance(node, ast.Name) and node.id in names and not isinstance(self.resolver.parents[node], ast.Attribute)

    def _read(self, load) -> str:
        """A stage, or a warpgroup's part of it, in registers."""
        plgpu = self.modules.name(MOSAIC)
        index = ", ".join(s or ":" for s in load.split).removesuffix(", :")
        stage = f"{load.name}.at[{index}]" if any(load.split) else load.name
        layout = self.layouts.name_of(load.access)
        if load.pages is not None:  # along the columns of the tiles that it meets
            layout = f"{self.planner.part}.layout.reduce({1 - load.pages.result.tile.find().axis})"
        return f"{plgpu}.load({stage}, layout={layout}, optimized=False)"

    # -- products -----------------------------------------------------------------------------

    def _dot(self, planned: RegisterDot) -> None:
        planner, dot = self.planner, planned.dot
        left, right = self._around(dot.left, planned.left_transposed, planned.spill_left), self._around(
            dot.right, planned.right_transposed, planned.spill_right)
        if planned.sum is None:
            self.add(act.RegisterDot(self.span(dot.node), planner.part, left, right, "", planned.turn))
        elif planned.target:
            statement = self.resolver.statement_of(dot.node)
            self.add(act.RegisterDot(self.span(dot.node), planner.part, left, right, planned.added, planned.turn))
            self.add(act.StagedTarget(self.span(statement), planned.target))
            self.add(act.RemoveStatement(self.span(planned.sum)))
        else:
            self.add(act.RegisterDot(self.span(dot.node), planner.part, left, right, "", planned.turn))
            product_right = isinstance(planned.sum, ast.AugAssign) or self.resolver.is_inside(dot.node, planned.sum.right)  # type: ignore[union-attr]
            self.add(act.AddToDot(self.span(planned.sum), product_right))

    def _around(self, operand: ast.expr, by_call: bool, spill: bool) -> str:
        """What stands around an operand in ``part.dot``, with its transposes taken off (see ``RegisterDot``)."""
        planner = self.planner
        flipped = planner.is_transposed(operand) ^ by_call
        text = f"{planner.part}.spill({{}})" if spill else "{}"
        return f"{text}.transpose((1, 0))" if flipped else text

    # -- arrays that are made -------------------------------------------------------------------

    def _creations(self) -> list[tuple[ast.Call, ast.expr, str]]:
        """(call, extent, part): extents of divided dimensions in calls that make arrays.

        Where the call names the shape of something, that is the extent and the part a whole shape.
        """
        found = []
        for node, value in self.model.values.items():
            if not (isinstance(node, ast.Call) and isinstance(value, Array)):
                continue
            name = self.resolver.qualified(node.func) or ""
            short = name.rpartition(".")[2]
            if not name.startswith(("jax.numpy", "jax.lax")):
                continue
            split = [self.planner.parts.get(a, "") for a in self.planner.axes.of(value)]
            if not any(split):
                continue
            shape = {**dict.fromkeys(_CREATION, 0), "broadcast_to": 1, "broadcast_in_dim": 1, "broadcasted_iota": 1, "arange": 0, "iota": 1}.get(short)
            if shape is None:
                continue
            argument = node.args[shape] if len(node.args) > shape else next(
                (k.value for k in node.keywords if k.arg in ("shape", "size", "dimension" if short == "iota" else "shape")), None)
            if argument is None or short == "arange" and len(node.args) != 1:
                raise Unplanned(node, f"{ast.unparse(node)[:60]} in a form that cannot be divided between warpgroups")
            for axis, part in enumerate(split):
                if not part:
                    continue
                if isinstance(argument, (ast.Tuple, ast.List)):
                    found.append((node, argument.elts[axis], part))
                elif len(split) == 1:
                    found.append((node, argument, part))
                else:
                    shape = self._written_out(node, value)
                    found.append((node, argument, shape))
                    break
        return found

    def _written_out(self, node: ast.AST, value: Array) -> str:
        """The shape of a warpgroup's part of an array."""
        dims = value.dims or ("",)
        if not all(dims):
            raise Unplanned(node, f"the shape of {ast.unparse(node)[:60]} is not known", "write the extents in the call")
        split = [self.planner.parts.get(a, "") for a in self.planner.axes.of(value)]
        extents = [f"{part}.size" if part else dim for part, dim in zip(split, dims)]
        return f"({', '.join(extents)}{',' if len(extents) == 1 else ''})"

    def _whole_shapes(self) -> None:
        """Extents that the kernel takes from divided arrays stay those of the whole tile."""
        created = {argument for _, argument, _ in self._creations()}
        for node, value in list(self.model.values.items()):
            base = self.model.values.get(node.value) if isinstance(node, ast.Attribute) else None
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "len" and node.args:
                base = self.model.values.get(node.args[0])
            if node in created or not isinstance(base, Array) or not any(a in self.planner.parts for a in self.planner.axes.of(base)):
                continue
            if isinstance(node, ast.Call) or node.attr == "size":
                raise Unplanned(node, f"{ast.unparse(node)}: the warpgroups divide this array", "take the extent from its shape")
            if node.attr == "shape":
                place, text = self.planner.whole_shape(node, base)
                if place not in created:
                    self.add(act.StagedText(self.span(place), text))

    def _like_refs(self) -> list[tuple[ast.Call, Array]]:
        """``jnp.zeros_like(ref)`` of a ref whose block is divided."""
        return [
            (node, value) for node, value in self.model.values.items()
            if isinstance(node, ast.Call) and isinstance(value, Array) and self._short(node).endswith("_like") and node.args
            and isinstance(self.model.values.get(node.args[0]), RefValue)
            and any(a in self.planner.parts for a in self.planner.axes.of(value))
        ]

    def _like(self, node: ast.Call, value: Array) -> str:
        """``jnp.zeros_like(ref)`` for a warpgroup's part."""
        keywords = [k for k in node.keywords if k.arg != "dtype"]
        dtype = next((ast.unparse(k.value) for k in node.keywords if k.arg == "dtype"), f"{ast.unparse(node.args[0])}.dtype")
        rest = node.args[1:]
        fill = [ast.unparse(rest.pop(0))] if self._short(node) == "full_like" and rest else []
        dtype = ast.unparse(rest[0]) if rest else dtype
        arguments = [self._written_out(node, value), *fill, *(f"{k.arg}={ast.unparse(k.value)}" for k in keywords), f"dtype={dtype}"]
        return f"{ast.unparse(node.func).removesuffix('_like')}({', '.join(arguments)})"

    def _created(self) -> None:
        counted = set(self._index_vectors())
        self._whole_shapes()
        for node, value in self._like_refs():
            self.add(act.StagedText(self.span(node), self._like(node, value)))
        for node, extent, part in self._creations():
            if node in counted:
                continue
            self.add(act.StagedText(self.span(extent), part if part.startswith("(") else f"{part}.size"))
            if self._short(node) == "broadcasted_iota" and self._counts_along(node, part):
                self.add(act.StagedOffset(self.span(node), f"{part}.start"))
        unused = self._unused(counted)
        for statement in unused:
            self.add(act.RemoveStatement(self.span(statement)))
        counted -= {n for statement in unused for n in walk(statement)}
        for node in counted:
            self.add(act.StagedText(self.span(node), self._indices(node)))
            statement = self.resolver.statement_of(node)
            if test := self._only_under(statement):
                self.add(act.StagedCondition(self.span(statement.value), test))  # type: ignore[attr-defined]

    def _unused(self, counted: set[ast.Call]) -> list[ast.stmt]:
        """Assignments of index vectors that nothing but staged loads and each other read.

        JAX finds no layout for them; the copies of the loads are addressed by numbers.
        """
        gone = {n for load in self.planner.staged.values() for n in walk(load.access.node)}
        found: list[ast.stmt] = []
        kept = dict.fromkeys(self.resolver.statement_of(n) for n in counted if n not in gone)
        while True:
            more = [s for s in kept if s not in found and self._read_only_in(s, gone)]
            if not more:
                return found
            found += more
            gone |= {n for s in more for n in walk(s)}
            names = [n for s in more for n in walk(s) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)]
            kept |= dict.fromkeys(
                self.resolver.statement_of(value) for n in names  # what the removed ones were made of
                if isinstance(value := self.resolver.value(n), ast.expr) and value is not n
                and isinstance(self.model.values.get(value), Array)
            )

    def _read_only_in(self, statement: ast.stmt, gone: set[ast.AST]) -> bool:
        """Whether all names that an assignment of index vectors binds are read nowhere but in ``gone``."""
        if not isinstance(statement, ast.Assign):
            return False
        targets = [t for target in statement.targets for t in (target.elts if isinstance(target, ast.Tuple) else [target])]
        values = statement.value.elts if isinstance(statement.value, ast.Tuple) else [statement.value]
        indices = all(isinstance(v := self.model.values.get(e), Array) and v.kind in ("int", "bool") for e in values)
        if not indices or not all(isinstance(t, ast.Name) and len(self.resolver.scope_of(t).bindings.get(t.id, ())) == 1 for t in targets):
            return False
        scope = self.resolver.scope_of(statement)
        readers = [
            n for t in targets for n in self.resolver.named(t.id)  # type: ignore[attr-defined]
            if isinstance(n.ctx, ast.Load) and (found := self.resolver.scope_of(n).find(n.id)) and found[0] is scope
        ]
        return bool(readers) and all(n in gone for n in readers)

    def _only_under(self, statement: ast.stmt) -> str:
        """The condition under which alone something reads what a statement of the kernel assigns, "" if there is none.

        JAX finds no layout for an index vector that nothing uses.
        """
        if not isinstance(statement, ast.Assign) or not self.planner.is_straight(self.resolver.parents[statement]):
            return ""
        target = statement.targets[0]
        if len(statement.targets) != 1 or not isinstance(target, ast.Name):
            return ""
        readers = [n for n in self.resolver.named(target.id) if isinstance(n.ctx, ast.Load) and self.resolver.value(n) is statement.value]
        tests = {self.planner.innermost_test(n) for n in readers}
        return tests.pop() if len(tests) == 1 else ""

    def _short(self, node: ast.Call) -> str:
        return (self.resolver.qualified(node.func) or "").rpartition(".")[2]

    def _index_vectors(self) -> list[ast.Call]:
        """``jnp.arange(n)``, ``lax.iota(dtype, n)``: JAX infers no layout for one that nothing uses."""
        staged = {n for load in self.planner.staged.values() for n in walk(load.node)}
        return [
            node for node, value in self.model.values.items()
            if isinstance(node, ast.Call) and isinstance(value, Array) and value.rank == 1 and node not in staged
            and self._short(node) in ("arange", "iota") and (self.resolver.qualified(node.func) or "").startswith("jax.")
        ]

    def _indices(self, node: ast.Call) -> str:
        value = self.model.values[node]
        short = self._short(node)
        extent = node.args[0] if short == "arange" else node.args[1]
        if short == "arange" and len(node.args) != 1:
            raise Unplanned(node, f"{ast.unparse(node)[:60]} beside matrix products", "write start + jnp.arange(size)")
        part = next((p for a in self.planner.axes.of(value) if (p := self.planner.parts.get(a))), "")
        dtype = next((k.value for k in node.keywords if k.arg == "dtype"), node.args[0] if short == "iota" else None)
        cast = f".astype({ast.unparse(dtype)})" if dtype is not None and not ast.unparse(dtype).endswith("int32") else ""
        return f"{self.planner.part}.indices({part or ast.unparse(extent)}, axis={self._axis(node)}){cast}"

    def _axis(self, node: ast.Call) -> int:
        """The axis of tiles along which an index vector runs, but for the masks that staged loads leave out."""
        dropped = {n for load in self.planner.staged.values() for n in walk(load.access.node)}
        thin = {n: getattr(self.model.values.get(n), "thin_axis", None) for n in self.model.strips}
        thin |= {n: e.axis for n, e in self.model.expands.items()}
        axes = {a for n, a in thin.items() if a is not None and n not in dropped and self._depends_on(n, node)}
        tile = self.model.values[node].tile.find()  # type: ignore[union-attr]
        if len(axes) > 1 or not axes and tile.conflict:
            raise Unplanned(node, "one index vector for rows and columns beside matrix products", "use two jnp.arange")
        return axes.pop() if axes else tile.axis if tile.parent is not None else 0  # type: ignore[return-value]

    def _depends_on(self, node: ast.AST, made: ast.AST, depth: int = 0) -> bool:
        """Whether a vector is computed from another one, elementwise: not through tiles, as reductions are."""
        if node is made:
            return True
        value = self.model.values.get(node)  # type: ignore[call-overload]
        if isinstance(value, Array) and value.rank == 2 and value.thin_axis is None or depth > 30:
            return False
        if isinstance(node, ast.Name):
            source = self.resolver.value(node)
            return source is not node and isinstance(source, ast.expr) and self._depends_on(source, made, depth + 1)
        return any(self._depends_on(child, made, depth + 1) for child in ast.iter_child_nodes(node))

    def _counts_along(self, node: ast.Call, part: str) -> bool:
        dimension = node.args[2] if len(node.args) > 2 else next((k.value for k in node.keywords if k.arg == "dimension"), None)
        if not isinstance(dimension, ast.Constant):
            raise Unplanned(node, "broadcasted_iota along a dimension that is not literal")
        split = [self.planner.parts.get(a, "") for a in self.planner.axes.of(self.model.values[node])]
        return split[dimension.value] == part
