"""Plans the launch of a kernel with matrix products, in the terms of the code around the call.

The kernel's tile sizes are known to it under its own names: parameters that a partial binds, shapes
of its blocks.  The launch needs them where the call stands, so each is translated: a bound keyword
to the expression that was bound, ``a_ref.shape[1]`` to the block's extent or the array's.
"""

from __future__ import annotations

import ast

from .dot_plan import DotPlan, LaunchData, NameTaken, Unplanned, contracted_dimension
from .kernel_shapes import names_in, shape_of
from .names import Resolver, walk
from .plan_calls import alone
from .sites import CallSite, compiler_parameter
from .values import Scalar, TupleValue

# Names of the emitted launch, which may hide nothing of the caller's.
_LAUNCH_NAMES = {
    "out_type", "grid", "tile", "blocks", "swizzle", "stages", "fitted", "body", "ring", "scratch", "loads",
    "compute", "count", "result",
}


def plan_launch(group, site: CallSite, call, plan: DotPlan, names) -> LaunchData:
    """The launch of one site, in the caller's terms."""
    refs = [r.name for r in group.model.refs]
    inputs = group.inputs
    outs = site.keywords.get("out_shape")
    value = group.resolver.value(outs) if outs is not None else None
    listed = isinstance(value, (ast.List, ast.Tuple))
    if inputs is None or outs is None or inputs + 1 != len(refs) or listed and len(value.elts) != 1:  # type: ignore[union-attr]
        raise Unplanned(site.call, "a kernel with products that has not exactly one result")
    if call.grid_rank == 0:
        raise Unplanned(site.call, "a matrix product without a grid")
    if call.aliases:
        raise Unplanned(site.call, "a matrix product that aliases an operand")
    if any(call.unless) or call.maps:
        what = "an optional block spec" if any(call.unless) else "an index map of several statements"
        raise Unplanned(site.call, f"{what} beside a matrix product", "write one call for each case" if any(call.unless) else "write it as a lambda")
    translate = Translator(group, site, refs, inputs)
    views = list(call.views) if call.views is not None else [None] * len(refs)
    blocks = tuple((tuple(translate(d, site.call) for d in o.block), translate.array(o.ref)) for o in plan.operands)
    num_stages = num_stages_of(site, group.resolver)
    extra = []
    for k, new in (("interpret", "interpret"), ("debug", "debug"), ("name", "kernel_name")):
        if k in site.keywords:
            extra.append((new, ast.unparse(site.keywords[k])))
    grid = tuple(ast.unparse(g) for g in site.grid or ())
    texts = [*grid, *translate.arrays, *(d for b, _ in blocks for d in b), *map(ast.unparse, site.bound.values()), *(t for _, t in extra),
             ast.unparse(outs), *(translate(t, site.call) for t in plan.tile), *(f"ref{v}" for v in views if v)]
    if taken := {n for t in texts for n in names_in(t)} & _LAUNCH_NAMES:
        raise NameTaken(site.call, min(taken))
    return LaunchData(
        name=names.pick(f"launch_{plan.name.lstrip('_')}", f"launch_{plan.name.lstrip('_')}_"),
        parameters=tuple(translate.arrays),
        refs=tuple(refs),
        views=tuple(v or "" for v in views),
        grid=grid,
        axes=call.letters,
        tile=(translate(plan.tile[0], site.call), translate(plan.tile[1], site.call)),
        blocks=blocks,
        bound=tuple((k, ast.unparse(v)) for k, v in site.bound.items()),
        num_stages=num_stages,
        out_type=ast.unparse(value.elts[0] if listed else outs),  # type: ignore[union-attr]
        listed=listed,
        plan=plan,
        extra=tuple(extra),
        checks=translate.checks(plan),
        many=tuple(dict.fromkeys(translate(text, site.call) for text in plan.many)),
    )


def num_stages_of(site: CallSite, resolver: Resolver) -> str:
    """The number of stages that the call asks for, as source text."""
    stages = compiler_parameter(site.keywords, "num_stages", resolver)
    return ast.unparse(stages) if stages is not None else "3"  # Triton's default


def known_tiles(group, site: CallSite, data: LaunchData) -> set[tuple[int, int]]:
    """Output tiles of a call that are known: by constants of the source, or by recordings."""
    tiles = set()
    rows, cols = (_constant(text, group, site) for text in data.tile)
    if rows is not None and cols is not None:
        tiles.add((rows, cols))
    dot = group.model.dots[0].node
    for facts in group.found[id(site)]:
        for equation in facts.equations_at(dot.lineno, dot.col_offset, dot.end_lineno or 0, dot.end_col_offset or 0):
            if equation.primitive == "dot_general" and len(equation.out_avals[0].shape) == 2:
                tiles.add(equation.out_avals[0].shape)
    return tiles


def _constant(text: str, group, site: CallSite) -> int | None:
    """The value of a literal or of a module constant."""
    node = ast.parse(text, mode="eval").body
    if isinstance(node, ast.Name):
        bindings = group.resolver.module.bindings.get(node.id, [])
        found = group.resolver.scope_of(site.call).find(node.id)
        if len(bindings) == 1 and found is not None and found[1] is bindings and bindings[0].kind == "value":
            node = bindings[0].node
        elif len(bindings) == 1 and found is not None and found[1] is bindings and bindings[0].kind == "unpack":
            values = bindings[0].node
            node = values.elts[bindings[0].index] if isinstance(values, ast.Tuple) else node
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, int) else None


class Translator:
    """Turns source text of the kernel into source text of the caller."""

    def __init__(self, group, site: CallSite, refs: list[str], inputs: int) -> None:
        self.group, self.site, self.refs, self.inputs = group, site, refs, inputs
        args = site.invocation.args if site.invocation is not None else []
        caller = site.caller
        used = {n.id for n in walk(caller) if isinstance(n, ast.Name)} if caller is not None else set()
        self.arrays: list[str] = []
        for i, ref in enumerate(refs[:inputs]):
            if i < len(args) and isinstance(args[i], ast.Name) and args[i].id not in self.arrays:
                self.arrays.append(args[i].id)  # the same array under its own name
            else:
                name = ref.removesuffix("_ref")
                while name in used or name in self.arrays:
                    name += "_array"
                self.arrays.append(name)

    def array(self, ref: str) -> str:
        return self.arrays[self.refs.index(ref)]

    def checks(self, plan: DotPlan) -> tuple[tuple[str, str], ...]:
        """Extents that must be those of the arrays: bounds of masks, and contractions in chunks."""
        pairs = []
        for ref, dim, bound in plan.bounds:
            pairs.append((self(bound, self.site.call), self.array_extent(ref, dim)))
        if not plan.step:
            for at, operand in enumerate(plan.operands):
                dim = contracted_dimension(at, plan)
                kept = [d for d, i in enumerate(operand.index) if i == ":" or "ds(" in i]
                pairs.append((self(operand.block[dim], self.site.call), self.array_extent(operand.ref, kept[dim])))
        return tuple(p for p in dict.fromkeys(pairs) if p[0] != p[1])

    def array_extent(self, ref: str, dim: int) -> str:
        """The extent of a ref's dimension in the whole array."""
        at = self.refs.index(ref)
        specs = [*(self.site.in_specs or ()), *(self.site.out_specs or ())]
        if at < len(specs) and specs[at].block_shape is not None:
            kept = [d for d, b in enumerate(specs[at].block_shape) if b is not None]
            dim = kept[dim]
        return f"{self.arrays[at]}.shape[{dim}]" if at < self.inputs else self.result_extent(at, str(dim))

    def result_extent(self, at: int, dim: str) -> str:
        """The extent of a result."""
        return f"out_type.shape[{dim}]"

    def __call__(self, text: str, node: ast.AST) -> str:
        tree = ast.parse(text, mode="eval")
        result = _ToCaller(self).visit(tree.body)
        return ast.unparse(result)


class _ToCaller(ast.NodeTransformer):
    def __init__(self, translator: Translator) -> None:
        self.t = translator

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        """``a_ref.shape[1]``: the block's extent, or the array's."""
        base = node.value
        if isinstance(base, ast.Attribute) and base.attr == "shape" and isinstance(base.value, ast.Name) and base.value.id in self.t.refs:
            at = self.t.refs.index(base.value.id)
            site = self.t.site
            specs = [*(site.in_specs or ()), *(site.out_specs or ())]
            dim = ast.unparse(node.slice)
            if at < len(specs) and specs[at].block_shape is not None and dim.removeprefix("-").isdigit():
                kept = [b for b in specs[at].block_shape if b is not None]
                return kept[int(dim)]
            if at < self.t.inputs:
                return ast.parse(f"{self.t.arrays[at]}.shape[{ast.unparse(node.slice)}]", mode="eval").body
            return ast.parse(self.t.result_extent(at, ast.unparse(node.slice)), mode="eval").body
        if isinstance(base, ast.Attribute) and base.attr == "shape" and isinstance(node.slice, ast.Constant):
            extent = self._array_extent(base, node.slice.value)
            if extent and extent != ast.unparse(node):
                return self.visit(ast.parse(extent, mode="eval").body)
        return self.generic_visit(node)

    def _array_extent(self, shape: ast.Attribute, dimension: int) -> str:
        """One extent of an array that the kernel holds in registers, in the kernel's names; "" if not known."""
        text, values = ast.unparse(shape), self.t.group.model.values
        known = {v for n, v in values.items() if isinstance(n, ast.Attribute) and ast.unparse(n) == text}
        value = known.pop() if len(known) == 1 else None
        item = value.items[dimension] if isinstance(value, TupleValue) and dimension < len(value.items) else None
        return item.text if isinstance(item, Scalar) else ""

    def visit_Name(self, node: ast.Name) -> ast.expr:
        group, site = self.t.group, self.t.site
        if node.id in site.bound:
            return site.bound[node.id]
        scope = group.resolver.scopes[group.model.kernel]
        bindings = scope.bindings.get(node.id)
        if bindings is not None:
            if any(b.kind == "parameter" for b in bindings):
                default = _default_of(group.model.kernel, node.id)
                if default is not None:
                    return default
                raise Unplanned(site.call, f"{node.id} of the kernel is not known beside the call")
            shape = shape_of(node.id, group.model.kernel)
            if shape != node.id:
                return self.visit(ast.parse(shape, mode="eval").body)
            raise Unplanned(site.call, f"{node.id} of the kernel is not known beside the call")
        found = group.resolver.scope_of(group.model.kernel).find(node.id)
        here = group.resolver.scope_of(site.call).find(node.id)
        if found is not None and (here is None or here[0] is not found[0]):
            raise Unplanned(site.call, f"{node.id} of the kernel's scope is not visible beside the call")
        return node


def _default_of(kernel: ast.FunctionDef, name: str) -> ast.expr | None:
    args = kernel.args
    for a, d in zip(args.kwonlyargs, args.kw_defaults):
        if a.arg == name:
            return d
    return None


def unused_partial(site: CallSite, resolver: Resolver) -> list[ast.stmt]:
    """``kernel = functools.partial(...)`` that only this call read."""
    expr = site.kernel_expr
    if not isinstance(expr, ast.Name):
        return []
    binding = resolver.binding(expr)
    if binding is None or binding.kind != "value" or not isinstance(binding.node, ast.Call):
        return []
    scope = resolver.scope_of(expr)
    uses = [n for n in resolver.named(expr.id) if isinstance(n.ctx, ast.Load) and resolver.scope_of(n) is scope]
    statement = resolver.statement_of(binding.node)
    simple = isinstance(statement, ast.Assign) and alone(statement, resolver)
    return [statement] if len(uses) == 1 and simple else []
