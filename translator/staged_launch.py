"""The launch of a kernel with staged loads: what stands beside the call.

Shared memory is described in the caller's terms (``plan_dot_launch.Translator``): the rings of
stages, tiles copied once, tiles that computed operands pass through.  The function that the
warpgroups run builds the block views, then gives the last warpgroup the copies and the others the
kernel.  Programs that run longer than others start first: where an upper bound of a loop depends on
``program_id``, that axis is walked backwards, and all axes but the fastest one are slower.
"""

from __future__ import annotations

import ast

from . import actions as act
from .dot_plan import NameTaken, Unplanned
from .model.text import call_lines, wrap
from .names import MOSAIC, walk
from .plan_calls import listed, unused_statements
from .plan_dot_launch import Translator, num_stages_of, unused_partial
from .staged_plan import Ring
from .tile_axes import operand_root
from .values import Array


def plan_launches(planner, names, modules) -> list[act.Action]:
    """The actions at every call of a kernel group."""
    group = planner.group
    found: list[act.Action] = []
    for site, call in zip(group.sites, group.calls):
        found += _Launch(planner, site, call, names, modules).actions()
    return found


class _Launch:
    def __init__(self, planner, site, call, names, modules) -> None:
        self.planner, self.site, self.call = planner, site, call
        self.group, self.modules, self.names = planner.group, modules, names
        if site.bound_positional or self.group.inputs is None or site.decorates:
            raise Unplanned(site.call, "a kernel with products whose leading parameters are bound by position, or that is decorated")
        if call.aliases:
            raise Unplanned(site.call, "a matrix product that aliases an operand")
        if call.grid_rank == 0:
            raise Unplanned(site.call, "a matrix product without a grid")
        self.args = site.invocation.args if site.invocation is not None else []
        if not self.args or not all(isinstance(a, ast.Name) for a in self.args) or site.invocation.keywords:
            raise Unplanned(site.call, "operands of a kernel with products that are not passed by name", "pallas_call(...)(q, k, v)")
        names_taken = {"refs", "scratch", "program", "specs", "keywords", *(r.name for r in planner.rings)}
        texts = [site.keywords[k] for k in ("in_specs", "out_specs") if k in site.keywords]
        copied = {n.id for t in (*texts, *site.bound.values()) for n in walk(t) if isinstance(n, ast.Name)}
        if taken := copied & names_taken:
            raise NameTaken(site.call, min(taken))
        if planner.loads_name in self.group.resolver.names_bound_anywhere():
            raise NameTaken(site.call, planner.loads_name)
        refs = {r.position: r.name for r in self.group.model.refs}
        loops = [r.loop for r in planner.rings if r.loop is not None]
        self.uneven = {a for a in range(call.grid_rank) if any(self._depends(loop.upper, a) for loop in loops)}
        self.translate = _Translator(self.group, site, [refs.get(i, "") for i in range(max(refs) + 1)], self.group.inputs)

    def actions(self) -> list[act.Action]:
        group, site = self.group, self.site
        plgpu, lax = self.modules.name(MOSAIC), self.modules.name("jax.lax")
        statement = group.resolver.statement_of(site.call)
        kernel = self.planner.kernel.name
        pick = self.names.pick
        tile = self.tile_name = pick("tile", f"{kernel}_tile")
        rings = {r.name: pick(f"{r.name}_blocks") for r in self.planner.rings}
        stages = pick("stages", f"{kernel}_stages")
        body = pick(f"{kernel.lstrip('_')}_warpgroups")
        lines = self._checks()
        lines.append(f"{tile} = {self._tile()}")
        reads = {r.name: pick(f"{r.name}_reads") for r in self.planner.rings if r.reads}
        for ring in self.planner.rings:
            lines.append(f"{rings[ring.name]} = [{', '.join(self._block(load) for load in ring.operands)}]")
            if ring.reads:
                lines.append(f"{reads[ring.name]} = [{', '.join(self._block(load) for load in ring.reads)}]")
        num_stages = num_stages_of(site, group.resolver)
        phases = self.planner.phases or [self.planner.rings]
        apart = [r for r in self.planner.rings if not any(r in phase for phase in phases)]
        fits = []
        for phase in phases:
            once = [rings[r.name] for r in (*phase, *apart) if r.loop is None]
            looped = [n for r in phase if r.loop is not None for n in (rings[r.name], reads.get(r.name)) if n]
            number, filled = (num_stages, [once, looped]) if looped else ("1", [[], once])
            fits.append(f"_fitting_stages({number}, {tile}, {', '.join(map(_joined, filled))})")
        lines.append(f"{stages} = {fits[0]}" if len(fits) == 1 else f"{stages} = min({', '.join(fits)})")
        any_loop = any(r.loop is not None for r in self.planner.rings)

        def blocks(r: Ring) -> str:
            count = "1" if r.loop is None and any_loop else stages
            also = f", reads={reads[r.name]}" if r.reads else ""
            return f"{_kind(r)}.scratch({count}, {tile}, {self._swizzle(r)}, *{rings[r.name]}{also}{self._pages(r)})"

        scratch = [f"{blocks(r)}," for r in (apart if self.planner.phases else self.planner.rings)]
        shared = []
        if self.planner.phases:
            shared = [pick("shared", f"{kernel}_shared"), pick("barriers", f"{kernel}_barriers")]
            scratch += ["*_in_turn(", *(line for phase in phases for line in ("    [", *(f"        {blocks(r)}," for r in phase), "    ],")), "),"]
        ring_names = [r.name for r in self.planner.rings]
        after = len(lines)
        lines += ["", f"def {body}(*refs):", '  """The last warpgroup copies operand tiles ahead, the others compute."""']
        alone = [r.name for r in apart] if shared else ring_names
        lines.append(f"  *refs, {', '.join([*alone, *shared])}, scratch = refs")
        if shared:
            names = ", ".join(f"({', '.join(r.name for r in phase)}{',' if len(phase) == 1 else ''})" for phase in phases)
            lines.append(f"  {names} = _rings_in_turn({', '.join(shared)})")
        axes = [self.group.axis_name(i) for i in range(self.call.grid_rank)]
        program = [self._position(i, a, lax) for i, a in enumerate(axes)]
        lines.append(f"  program = ({', '.join(program)}{',' if len(program) == 1 else ''})")
        parts = self._specs()
        specs = f"[{', '.join(parts)}]"
        if len(specs) > 90:
            lines += ["  specs = [", *(f"      {p}," for p in parts), "  ]"]
        elif len(specs) > 40:
            lines.append(f"  specs = {specs}")
        lines.append(f"  refs = _block_views(refs, {'specs' if len(specs) > 40 else specs}, program)")
        given = [f"{self.planner.program}=program"]
        given += [f"{r.name}={_kind(r)}(*{r.name})" if r.name in alone else f"{r.name}={r.name}" for r in self.planner.rings]
        lines += call_lines("  keywords = dict", [*given, *(f"{k}={ast.unparse(v)}" for k, v in site.bound.items())])
        lines += [
            "  _specialize(", f"      {tile}.warpgroups,",
            f"      lambda: {self.planner.loads_name}(*refs, **keywords),",
            f"      lambda: {kernel}(*refs, {self.planner.part}={tile}.part(scratch), **keywords),", "  )",
        ]
        types = pick("scratch_types", f"{kernel}_scratch")
        lines[after:after] = [f"{types} = (", *(f"    {s}" for s in scratch), f"    {tile}.scratch(),", ")"]
        # no reduction crosses warps (plan_staged.py), so its memory goes to the stages
        extra = [("compiler_params", f"{plgpu}.CompilerParams(reduction_scratch_bytes=0)"), ("num_threads", f"{tile}.warpgroups + 1"), ("thread_name", '"wg"'), ("scratch_types", types)]
        if "name" in site.keywords:
            extra.append(("kernel_name", ast.unparse(site.keywords["name"])))
        result: list[act.Action] = [act.RemoveStatement(group.span(u)) for u in (*unused_statements(site, group.resolver, keep_specs=True), *unused_partial(site, group.resolver))]
        result.append(act.StagedLines(group.span(statement), tuple(lines), apart=True))
        result.append(act.Launch(group.span(site.call), body, self.call.grid, tuple(axes), tuple(extra), self._order(), listed=listed(site, group.resolver)))
        return result

    def _checks(self) -> list[str]:
        lines = []
        pairs = [
            (self.translate(bound, self.site.call), self.translate.array_extent(ref, dim)) for ref, dim, bound in self.planner.bounds
        ]
        for extent, whole in dict.fromkeys(pairs):
            if extent != whole:
                lines += [f"if {extent} != {whole}:", f'  raise ValueError(f"{{{extent}=}}, but the array ends at {{{whole}=}}")']
        return lines

    def _tile(self) -> str:
        planner = self.planner
        rows = [self.translate(planner.extents[name], self.site.call) for name in planner.parts.values()]
        arguments = [f"[{', '.join(dict.fromkeys(rows))}]"]
        shapes = [self._shape(d) for d in planner.dots]
        columns = dict.fromkeys(shape[1] for shape in shapes)
        arguments.append(f"[{', '.join(columns)}]")
        if planner.turn_loops:
            first = next(d for d in planner.dots if d.turn)
            arguments.append(f"turns={self._shape(first)[1]} >= 128")
        spills = dict.fromkeys(s for d in planner.dots for s in self._spills(d))
        if spills:
            arguments.append(f"spills=[{', '.join(spills)}]")
        if planner.padded:
            arguments.append("padded=True")
        kind = "_WgmmaRows" if self.group.target == "sm90" else "_Tcgen05Rows"
        return f"{kind}({', '.join(arguments)})"

    def _shape(self, planned) -> tuple[str, str]:
        dims = planned.dot.result.dims
        if dims is None:
            raise Unplanned(planned.dot.node, "a product whose shape is not known")
        return tuple(self.translate(d, self.site.call) for d in dims)  # type: ignore[return-value]

    def _spills(self, planned) -> list[str]:
        """((rows, columns), divided axis, dtype) of each operand that passes through shared memory."""
        dot, found = planned.dot, []
        for spilled, root in ((planned.spill_left, dot.left), (planned.spill_right, dot.right)):
            if not spilled:
                continue
            value = self.group.model.values.get(operand_root(root, self.group.resolver))
            if not isinstance(value, Array) or value.dims is None:
                raise Unplanned(root, "a computed operand whose shape is not known")
            parts = [self.planner.parts.get(a, "") for a in self.planner.axes.of(value)]
            extents = [self.translate(d, self.site.call) for d in value.dims]
            axis = next((a for a, p in enumerate(parts) if p), None)
            found.append(f"(({', '.join(extents)}), {axis}, {self._dtype(root)})")
        return found

    def _dtype(self, operand: ast.expr) -> str:
        """The dtype of a computed operand in the caller's terms: what it is cast to, else that of a staged tile."""
        group, loads = self.group, self.planner.staged.values()
        value = group.resolver.value(operand_root(operand, group.resolver))
        cast = value.args[0] if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr == "astype" and value.args else None
        if isinstance(cast, ast.Attribute) and cast.attr == "dtype":
            of = group.resolver.value(cast.value)
            ref = next((r for r in group.model.refs if isinstance(of, ast.Name) and r.name == of.id), None)
            ref = next((a.ref for a in group.model.accesses if a.kind == "load" and a.node is of), ref)
            if ref is not None and ref.position < len(self.args):
                return f"{self.args[ref.position].id}.dtype"
        elif cast is not None and (name := group.resolver.qualified(cast)) and name.startswith("jax.numpy."):
            return f"{self.modules.name('jax.numpy')}.dtype({ast.unparse(cast)})"
        return f"{self._array(next(iter(loads)))}.dtype"

    def _block(self, load) -> str:
        extents = ", ".join(self.translate(d, self.site.call) for d in load.block) + ("," if len(load.block) == 1 else "")
        block = f"(({extents}), {self._array(load)}.dtype)"
        return f"{block} if {self._condition(load.test)} else None" if load.test else block

    def _pages(self, ring: Ring) -> str:
        """Of how many pages each tile of a ring is put together, as an argument."""
        if not ring.paged:
            return ""
        counts = []
        for load in (*ring.operands, *ring.reads):
            node = self.group.resolver.value(load.pages.table) if load.pages is not None else None
            dims = next((a.dims for a in self.planner.tables if a.node is node), None)
            counts.append(self.translate(dims[0], self.site.call) if dims else "1")
        return f", pages=[{', '.join(counts)}]"

    def _condition(self, test: str) -> str:
        """A test of the kernel in the caller's terms: refs are arrays there."""
        tree = ast.parse(test, mode="eval")
        for n in walk(tree):
            if isinstance(n, ast.Name):
                known = n.id in self.translate.refs
                n.id = self.args[self.translate.refs.index(n.id)].id if known else wrap(self.translate(n.id, self.site.call))  # type: ignore[attr-defined]
        return ast.unparse(tree)

    def _array(self, load) -> str:
        return self.args[load.access.ref.position].id

    def _swizzle(self, ring: Ring) -> str:
        minors = []
        if not ring.operands:
            return "64"
        for load in ring.operands:
            minor = self.translate(load.block[1], self.site.call)
            minors.append(f"{minor} // {self.tile_name}.warpgroups" if load.split[1] else minor)
            kept = [d for d, i in enumerate(load.index) if i == ":" or "ds(" in i or "slice" in i]
            minors += [self.translate.array_extent(ref, dim) for ref, dim, _ in self.planner.bounds
                       if ref == load.access.ref.name and dim == kept[-1]]
            minors += self._contracted(load)
        return f"_swizzle({self._array(ring.operands[0])}.dtype.itemsize, 64, {', '.join(dict.fromkeys(minors))})"

    def _contracted(self, load) -> list[str]:
        """The extents that products contract of a staged tile: an instruction takes whole swizzled tiles of them."""
        found = []
        for planned in self.planner.dots:
            dot = planned.dot
            for operand, value, (_, axis) in zip((dot.left, dot.right), (dot.left_value, dot.right_value),
                                                 self.planner.axes.operand_axes(dot)):
                if self.planner.stage_of(operand) is load and axis is not None:
                    found.append(self.translate(value.dims[axis[1]], self.site.call))
        return found

    def _position(self, at: int, axis: str, lax: str) -> str:
        if at in self.uneven:
            return f'{lax}.axis_size("{axis}") - 1 - {lax}.axis_index("{axis}")'  # longest first
        return f'{lax}.axis_index("{axis}")'

    def _order(self) -> tuple[int, ...]:
        """The grid's axes from the slowest to the fastest.

        As on Triton the first is the fastest, so that neighbours share operands in L2; but one whose
        programs differ in length comes after the first that do not, so that short ones fill the end.
        """
        axes = list(reversed(range(self.call.grid_rank)))
        grid = self.site.keywords.get("grid")
        if not isinstance(grid, (ast.Tuple, ast.Name)) or not self.uneven:
            return tuple(axes)
        even = [a for a in axes if a not in self.uneven]
        return (*even[:-1], *(a for a in axes if a in self.uneven), *even[-1:])

    def _depends(self, bound: ast.expr, axis: int) -> bool:
        """Whether a loop bound is computed from the position along a grid axis."""
        resolver = self.group.resolver
        queue: list[ast.AST] = [bound]
        seen: set[ast.AST] = set()
        while queue:
            node = queue.pop()
            if node in seen:
                continue
            seen.add(node)
            for n in walk(node):
                if any(q.node is n and q.axis == axis for q in self.group.model.grid_queries):
                    return True
                if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load):
                    found = resolver.scope_of(n).find(n.id)
                    queue += [b.node for b in found[1] if b.node is not None] if found and found[0].node is self.planner.kernel else []
        return False

    def _specs(self) -> list[str]:
        """All specs of the call, as the elements of one list display."""
        site = self.site
        parts: list[str] = []
        if "grid_spec" in site.keywords or any(s.elements for s in (*(site.in_specs or ()), *(site.out_specs or ()))):
            raise Unplanned(site.call, "grid_spec or pl.Element beside products", "use grid and plain block specs")
        for keyword, count in (("in_specs", self.group.inputs), ("out_specs", len(self.group.model.refs) - self.group.inputs)):
            node = site.keywords.get(keyword)
            if node is None:
                parts.append(f"*[None] * {count}")
                continue
            value = self.group.resolver.value(node)
            if isinstance(value, ast.Call) and len(getattr(site, keyword) or ()) == 1:
                parts.append(ast.unparse(node))
            else:
                parts += _elements(node)
        return parts


def _kind(ring: Ring) -> str:
    return "_PagedRing" if ring.paged else "_Ring"


def _elements(node: ast.expr) -> list[str]:
    """A list as elements of a list display: those of lists written out, and of sums of lists."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return [*_elements(node.left), *_elements(node.right)]
    if isinstance(node, (ast.List, ast.Tuple)):
        return list(map(ast.unparse, node.elts))
    text = ast.unparse(node)
    return [f"*{text}" if isinstance(node, ast.Name) else f"*({text})"]


class _Translator(Translator):
    def result_extent(self, at: int, dim: str) -> str:
        """As the call's ``out_shape`` says it: there may be several results, and no name for their types."""
        resolver, shapes = self.group.resolver, self.site.keywords.get("out_shape")
        value = resolver.value(shapes) if shapes is not None else None
        if isinstance(value, (ast.List, ast.Tuple)):
            value = resolver.value(value.elts[at - self.inputs]) if at - self.inputs < len(value.elts) else None
        shape = value.args[0] if isinstance(value, ast.Call) and value.args else None
        if isinstance(shape, (ast.List, ast.Tuple)) and dim.isdigit() and int(dim) < len(shape.elts):
            return ast.unparse(shape.elts[int(dim)])
        if shape is None:
            raise Unplanned(self.site.call, "extents of a result that are not written beside the call")
        return f"{ast.unparse(shape)}[{dim}]"


def _joined(lists: list[str]) -> str:
    return " + ".join(lists) or "[]"
