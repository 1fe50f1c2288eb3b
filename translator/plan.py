"""Plans the port of a module: decides everything, edits nothing.

Sites that share a kernel function are planned together, since the function is rewritten once.
For each such group the plan

1. diagnoses the *calls* (``plan_calls.py``): grid, specs, aliases, backend;
2. builds the kernel model and diagnoses the *body*: findings of the model, primitives without a
   Mosaic GPU rule;
3. chooses register layouts and proves vector widths (``plan_layouts.py``), or, for kernels with
   matrix products, a pipeline (``plan_dots.py``);
4. turns the model's events into actions.

If any part of a group cannot be ported the whole group stays on Triton.  The result is data:
actions with spans, a report per site, the names to import and the support code to emit.
"""

from __future__ import annotations

import ast
import dataclasses
from typing import TYPE_CHECKING

from . import actions as act
from .actions import Action, Span, span_of
from .diagnostics import CODES, Diagnostic
from .dtypes import refused_dtypes
from .kernel_model import build_model
from .helper_versions import Versions, plan_versions, versionable
from .model.events import KernelModel
from .names import GONE_MODULES, MOSAIC, PALLAS, TRITON, FunctionNode, Resolver, walk
from .narrow import Narrow
from .plan_calls import CallPlan, Sequence, all_specs, plan_call
from .plan_helpers import Helpers, foreign_calls, helper_of, plan_helpers
from .plan_layouts import Layouts, plan_layouts
from .plan_races import Revisit, revisited
from .recorded import recorded_problems, recordings
from .ref_shapes import evident_extents, ref_dims
from .replacements import FUNCTIONS, NEED_LAYOUT, OF_FLOATS, OF_NUMBERS, PLAIN_REDUCTIONS, obstacle, replacement
from .result import Options, SiteReport, Target
from .sites import CallSite, find_sites, forwarded_call
from .source import Source
from .unit_extents import unit_reductions
from .values import Array, Scalar

if TYPE_CHECKING:
    from .facts import Facts, SiteFacts


class FreshNames:
    """Chooses names that collide with none of those taken."""

    def __init__(self, taken: set[str]) -> None:
        self._taken = taken

    @classmethod
    def of_module(cls, resolver: Resolver) -> FreshNames:
        return cls(resolver.names_bound_anywhere() | resolver.names_used())

    @classmethod
    def within(cls, function: FunctionNode) -> FreshNames:
        """Names for locals of a function: they may hide nothing that the function uses."""
        nodes = walk(function)
        used = {n.id for n in nodes if isinstance(n, ast.Name)}
        used |= {n.arg for n in nodes if isinstance(n, ast.arg)}
        used |= {n.name for n in nodes if isinstance(n, ast.FunctionDef)}
        return cls(used)

    def pick(self, *wishes: str) -> str:
        for name in wishes:
            if name not in self._taken:
                self._taken.add(name)
                return name
        number = 2
        while f"{wishes[-1]}{number}" in self._taken:
            number += 1
        self._taken.add(f"{wishes[-1]}{number}")
        return f"{wishes[-1]}{number}"


class Modules:
    """Local names of the library modules that emitted code uses; missing ones become imports."""

    _WISHES = {
        "jax": ("jax",),
        "jax.numpy": ("jnp",),
        "jax.lax": ("lax",),
        PALLAS: ("pl",),
        MOSAIC: ("plgpu", "mgpu", "mosaic_gpu"),
        "math": ("math",),
        "functools": ("functools",),
        "numpy": ("np", "numpy"),
        "jax.experimental.mosaic.gpu.fragmented_array": ("mgpu_arrays",),
        "jax.experimental.mosaic.gpu.utils": ("mgpu_utils",),
        "jaxlib.mlir.ir": ("ir",),
        "jaxlib.mlir.dialects.arith": ("arith",),
        "jaxlib.mlir.dialects.llvm": ("llvm",),
        "jaxlib.mlir.dialects.vector": ("vector",),
    }

    def __init__(self, resolver: Resolver, names: FreshNames, free: frozenset[str]) -> None:
        self._resolver, self._names, self._free = resolver, names, free
        self._held: dict[str, str] = {}
        self.missing: dict[str, str] = {}
        for _, name, target in resolver.imports():
            bound = resolver.module.bindings[name]
            if len(bound) != 1 or self._shadowed(name):
                continue
            if target in self._WISHES:
                self._held.setdefault(target, name)
            elif target in GONE_MODULES:  # its successor takes over the name
                self._held[GONE_MODULES[target]] = self.missing[GONE_MODULES[target]] = name

    def _shadowed(self, name: str) -> bool:
        return any(name in s.bindings for s in self._resolver.scopes.values() if s is not self._resolver.module)

    def name(self, module: str) -> str:
        """The local name of a module, e.g. ``jnp`` for ``jax.numpy``."""
        if module not in self._held:
            wishes = self._WISHES[module]
            free = [w for w in wishes if w in self._free]  # names that the port gives up
            chosen = free[0] if free else self._names.pick(*wishes)
            self._held[module] = self.missing[module] = chosen
        return self._held[module]


@dataclasses.dataclass(frozen=True)
class ModulePlan:
    """What to rewrite in a module.

    support: names of the support functions to emit, with all that they call.
    modules: local names of library modules, and which of them must be imported.
    """

    actions: tuple[Action, ...]
    sites: tuple[SiteReport, ...]
    support: tuple[str, ...]
    modules: Modules


def plan_module(
    resolver: Resolver, source: Source, target: Target, options: Options, facts: Facts | None = None
) -> ModulePlan:
    """Plans every Triton ``pallas_call`` of a module."""
    lines = source.text.split("\n")
    sites = find_sites(resolver)
    by_kernel: dict[int, list[CallSite]] = {}
    for site in sites:
        by_kernel.setdefault(id(site.kernel or site.call), []).append(site)
    found = {id(s): recordings(facts, source.filename, s) for s in sites}
    groups = [_Group(resolver, lines, s, target, options, found) for s in by_kernel.values()]
    while True:
        # Emission may find a group that cannot be ported after all; names depend on all of them.
        _hold_back_shared_helpers(groups)
        names = FreshNames.of_module(resolver)
        retired = _retired_imports(resolver, groups)
        modules = Modules(resolver, names, retired)
        ported = [g for g in groups if g.portable]
        emissions = [g.emit(names, modules) for g in ported]
        support = _support(emissions, ported, resolver, modules)
        _hold_back_unlike_helpers(ported, emissions, resolver)
        versions = _versions(ported, emissions, resolver, lines, names)
        if all(g.portable for g in ported):
            break
    result = [a for e in emissions for a in e.actions] + list(versions.actions)
    reports = {k: v for g in groups for k, v in g.reports().items()}
    return ModulePlan(
        actions=tuple(dict.fromkeys(result)),
        sites=tuple(reports[id(s)] for s in sites),
        support=support,
        modules=modules,
    )


def _support(
    emissions: list[Emission], groups: list[_Group], resolver: Resolver, modules: Modules
) -> tuple[str, ...]:
    """The support functions to emit; groups whose support code the module's own names hide are blocked.

    A module that was ported in part holds the support functions already.
    """
    if not any(e.support for e in emissions):
        return ()
    from ..rewrites.support import is_support_code, needed_functions, needed_modules

    bound = resolver.names_bound_anywhere()
    for group, emission in zip(groups, emissions):
        for name in needed_functions(tuple(emission.support)):
            mine = resolver.module.bindings.get(name, [])
            if name in bound and not (len(mine) == 1 and is_support_code(mine[0].node, modules)):
                group.block("C210", group.sites[0].call, f"this module has its own {name}", "rename it")
    wanted = needed_functions(tuple({name for e in emissions for name in e.support}))
    for module in needed_modules(tuple(wanted)):
        modules.name(module)
    return tuple(n for n in wanted if n not in resolver.module.bindings)


def _retired_imports(resolver: Resolver, groups: list[_Group]) -> frozenset[str]:
    """Local names of the Triton module that only ported calls and kernels use."""
    inside: set[ast.AST] = set()
    for group in groups:
        if group.portable:
            roots: list[ast.AST] = [s.call for s in group.sites]
            roots += [statement for call in group.calls for statement in call.unused]
            roots += list(group.model.functions) if group.model else []
            inside |= {n for root in roots for n in walk(root)}
    found = set()
    for _, name, target in resolver.imports():
        if target in (TRITON, f"{PALLAS}.gpu"):
            if all(n in inside for n in resolver.named(name)):
                found.add(name)
    return frozenset(found)


def _hold_back_shared_helpers(groups: list[_Group]) -> None:
    """A helper that a kept kernel calls must not be rewritten for a ported one."""
    changed = True
    while changed:
        changed = False
        kept = {f for g in groups if not g.portable and g.model for f in g.model.functions}
        for g in groups:
            shared = g.rewritten_functions() & kept if g.portable and g.model else set()
            if shared := {f for f in shared if not versionable(f, g.resolver)}:
                helper = next(iter(shared))
                name = getattr(helper, "name", "lambda")
                g.block("C205", g.sites[0].call, f"its kernel calls {name}, which a kernel that stays on Triton also calls")
                changed = True


def _hold_back_unlike_helpers(groups: list[_Group], emissions: list[Emission], resolver: Resolver) -> None:
    """A helper that gets layouts must get the same ones from all its callers, all of them ported."""
    for helper, use in foreign_calls([g.helpers for g in groups], resolver):
        for group in groups:
            if not versionable(helper, resolver) and helper in group.helpers.parameters:
                group.block("C205", use, f"{helper.name}, which loads or stores, is also called here, outside of the ported kernels",
                            "give this caller a function of its own")
    planned: dict[tuple[type, Span], Action] = {}
    for group, emission in zip(groups, emissions):
        for action in emission.actions:
            other = planned.setdefault((type(action), action.span), action)
            if other != action and isinstance(action, (act.Load, act.Store, act.Accumulate, act.LayoutParameters)):
                group.block("C205", group.sites[0].call, "its kernel calls a helper with other layouts or vector widths than another kernel does",
                            "write one helper for each kernel")
                break


def _versions(
    groups: list[_Group], emissions: list[Emission], resolver: Resolver, lines: list[str], names: FreshNames
) -> Versions:
    """Versions of helpers that other code uses too; groups whose helpers cannot have one are blocked."""
    models = [g.model for g in groups if g.model is not None]
    functions = dict.fromkeys(f for m in models for f in sorted(m.functions, key=lambda f: (f.lineno, f.col_offset)))
    versions = plan_versions(
        [m.kernel for m in models], functions, [s for g in groups for s in g.sites],
        [a for e in emissions for a in e.actions], resolver, lines, names.pick,
    )
    for group, model in zip(groups, models):
        for helper in sorted(versions.names.keys() & model.functions, key=lambda f: f.lineno):
            group.rules.add(act.OwnVersion.rule)
            group.notes.append(f"{helper.name} has other callers, and stays: this kernel calls its port {versions.names[helper]}")  # type: ignore[union-attr]
    for helper, use in versions.blocked:
        for group in groups:
            if group.model is not None and helper in group.model.functions:
                group.block("C205", use, f"{helper.name}, which the call passes into the kernel, is also called here",
                            "pass a function of its own")
    return versions


def _untraced(site: CallSite, resolver: Resolver) -> tuple[str, str]:
    """(reason, advice) for a call whose kernel is not found."""
    expr = site.kernel_expr
    name = expr.value if isinstance(expr, ast.Starred) else expr
    binding = resolver.binding(name) if isinstance(name, ast.Name) else None
    if binding is not None and binding.kind == "parameter":
        return (f"the kernel is what this function's callers pass as {ast.unparse(expr)}",  # type: ignore[arg-type]
                "call pallas_call where the kernel is named")
    if isinstance(name, ast.Name) and len(kinds := [b.kind for b in resolver.visible(name)]) > 1 and set(kinds) == {"function"}:
        return f"the kernel is one of {len(kinds)} functions called {name.id}, depending on a branch", "call pallas_call in each branch"
    if isinstance(name, ast.Call) and any(k.arg is None for k in name.keywords):
        return f"the kernel {site.kernel_name} gets arguments by **", "write them out as keywords"
    return (f"the kernel {site.kernel_name} cannot be traced to a function of this file",
            "pass the function itself, a functools.partial of it, or a local factory")


@dataclasses.dataclass
class Emission:
    actions: list[Action]
    support: set[str]


class _Group:
    """The sites of one kernel function."""

    def __init__(
        self, resolver: Resolver, lines: list[str], sites: list[CallSite], target: Target, options: Options,
        found: dict[int, tuple[SiteFacts, ...]],
    ) -> None:
        self.resolver, self.lines, self.sites = resolver, lines, sites
        self.target, self.options, self.found = target, options, found
        self.diagnostics: dict[int, list[Diagnostic]] = {id(s): [] for s in sites}
        self.notes: list[str] = []
        self.rules: set[str] = set()
        self.model: KernelModel | None = None
        self.triton = any(s.backend in ("triton", "implicit", "rocm") for s in sites)
        self.calls: list[CallPlan] = []
        self.helpers = Helpers()
        if self.triton:
            self._diagnose()
        self.portable = self.triton and not self._blocked()

    def _blocked(self) -> bool:
        return any(d.blocks for ds in self.diagnostics.values() for d in ds)

    def block(self, code: str, node: ast.AST, reason: str, advice: str = "") -> None:
        for site in self.sites:
            self.add(site, code, node, reason, advice)
        if CODES[code].blocks:
            self.portable = False

    def add(self, site: CallSite, code: str, node: ast.AST, reason: str, advice: str = "") -> None:
        span = span_of(node, self.lines)
        found = Diagnostic(span.line, span.column + 1, code, reason, advice)
        if found not in self.diagnostics[id(site)]:
            self.diagnostics[id(site)].append(found)

    def _diagnose(self) -> None:
        for site in self.sites:
            if site.backend == "rocm":
                self.add(site, "C209", site.call, "this branch runs on ROCm, where Mosaic GPU does not exist",
                         "keep it until the Triton backend is removed")
            if site.backend in ("mosaic", "tpu"):
                self.add(site, "C206", site.call, f"this call already runs on {site.backend} and shares its kernel with Triton calls")
        kernel = self.sites[0].kernel
        if kernel is None:
            for site in self.sites:
                what, advice = _untraced(site, self.resolver)
                self.add(site, "C201", site.call, what, advice)
            return
        if not any(s.decorates for s in self.sites) and self._other_uses(kernel):
            self.block("C207", kernel, f"{getattr(kernel, 'name', 'the kernel')} is also called outside of pallas_call")
        dims, inputs = ref_dims(self.sites, self.resolver, self.found)
        self.model = build_model(self.sites, self.resolver, dims)
        self.inputs = inputs
        for finding in self.model.findings:
            self.block(finding.code, finding.node, finding.reason, finding.advice)
        self._diagnose_primitives()
        for reduction in unit_reductions(self.model, self.sites, inputs):
            self.block("B112", reduction.node, "a reduction along a dimension of extent 1",
                       "leave that dimension out of the array: None in the BlockSpec, an integer as the index")
        for site in self.sites:
            call, problems = plan_call(site, self.resolver, self.lines, self.model, inputs)
            self.calls.append(call)
            problems += recorded_problems(self.found[id(site)], site, self.model)
            problems += refused_dtypes(site, self.model, self.resolver)
            for code, node, reason, advice in problems:
                self.add(site, code, node, reason, advice)
        self._diagnose_races()

    def _diagnose_races(self) -> None:
        """Outputs that several programs write; an axis that they accumulate along becomes a loop."""
        assert self.model is not None
        accumulating = []
        for site in self.sites:
            specs = all_specs(site, self.inputs, self.resolver)
            found = revisited(site, specs, self.model, self.inputs, self.resolver) if specs is not None else []
            for revisit in found:
                if not revisit.read:
                    self.add(site, "N206", revisit.store.node, f"every program along grid axis {revisit.axis} writes this block of {revisit.ref}",
                             "write it in one of them, or give each program a block of its own")
            accumulating.append([r for r in found if r.read])
        axes = {r.axis for found in accumulating for r in found}
        alike = len(axes) == 1 and all(accumulating)
        for site, found in zip(self.sites, accumulating):
            for revisit in found:
                if problem := self._sequence_problem(site, revisit, alike):
                    self.block("B140", revisit.store.node, *problem)
        if alike and not self._blocked():
            self._run_in_sequence(axes.pop())

    def _sequence_problem(self, site: CallSite, revisit: Revisit, alike: bool) -> tuple[str, str] | None:
        """Why programs that share a block cannot run in sequence: (reason, advice)."""
        assert self.model is not None
        shared = f"programs along grid axis {revisit.axis} read and write the same block of {revisit.ref}"
        loop = "run them in a lax.fori_loop of the kernel"
        if self.model.dots:
            return f"{shared} around a matrix product", loop
        if not alike:
            return f"{shared}, and others along another axis or in another call", loop
        if not revisit.starts and not self.calls[self.sites.index(site)].aliases:
            return f"{shared}, and nothing is written to it before", "store its first value where program_id is 0"
        if site.decorates or isinstance(site.kernel_expr, ast.Lambda) or not isinstance(self.model.kernel, ast.FunctionDef):
            return f"{shared}, and the kernel is not called by its name", loop
        return None

    def _run_in_sequence(self, axis: int) -> None:
        assert self.model is not None
        pick = FreshNames.within(self.model.kernel).pick
        asked = {q.size for q in self.model.grid_queries if q.axis == axis}
        step = pick(self.axis_name(axis), "step") if False in asked else ""
        count = pick(f"num_{self.axis_name(axis)}", "num_steps") if True in asked else ""
        for site, call in zip(self.sites, self.calls):
            grid = [ast.unparse(g) for g in site.grid or ()]
            call.sequence = Sequence(axis, grid.pop(axis), step, count)
            call.grid = f"({', '.join(grid)}{',' if len(grid) == 1 else ''})" if grid else ""

    def rewritten_functions(self) -> set[FunctionNode]:
        """The functions in which the port changes anything."""
        model = self.model
        assert model is not None
        events = (*model.accesses, *model.grid_queries, *model.reductions, *model.square_roots, *model.dots, *model.loops)
        changed = {e.node for e in events} | {*model.strips, *model.expands}
        changed |= {node for node, name in model.calls if self._support_of(node, name) or not name.startswith("jax.")}
        return {f for f in model.functions if f is model.kernel or any(n in changed for n in ast.walk(f))}

    def _other_uses(self, kernel: FunctionNode) -> bool:
        """True if the kernel is called directly somewhere: its other callers need it unchanged."""
        if not isinstance(kernel, ast.FunctionDef):
            return False
        for name in self.resolver.named(kernel.name):
            node = self.resolver.parents[name]
            if isinstance(node, ast.Call) and node.func is name:
                if self.resolver.value(name) is kernel:
                    owner = self.resolver.scope_of(node).node
                    forwards = isinstance(owner, (ast.FunctionDef, ast.Lambda)) and forwarded_call(owner) is node
                    if not forwards:
                        return True
        return False

    def _diagnose_primitives(self) -> None:
        assert self.model is not None
        products = {d.node for d in self.model.dots}
        for pages in self.model.pages if not products else ():
            self.block("B105", pages.node, "reshape of a register array")
        for helper in self.model.product_helpers:  # each call becomes the product, and the function goes
            for name in self.resolver.named(helper.name):
                if self.resolver.value(name) is helper and self.resolver.parents[name] not in products:
                    self.block("B130", name, f"{helper.name}, which multiplies, is used in another way than by a call of it")
        for node, name in self.model.calls:
            if name in ("~bool", "~") or self._support_of(node, name):
                continue
            if self.model.dots and (name == ".T" or name.endswith(".transpose")):
                continue  # plan_dots.py allows it for operands
            if problem := obstacle(name, self._kind(node)):
                if replacement(name):
                    where = "this form" if isinstance(node, ast.AugAssign) else "these arguments"
                    advice = f"assign {ast.unparse(ast.BinOp(node.target, node.op, node.value))}" if isinstance(node, ast.AugAssign) else ""
                    self.block("B120", node, f"{ast.unparse(node)[:60]}: its rewrite does not take {where}", advice)
                    continue
                self.block("B120", node, f"{ast.unparse(node)[:60]}: Mosaic GPU has no rule for {problem}", problem.advice)
        for reduction in self.model.reductions:
            text = ast.unparse(reduction.node)[:60]
            if reduction.operation in PLAIN_REDUCTIONS:
                more = {k.arg for k in reduction.node.keywords} & {"where", "initial"}
                if more and reduction.axis is None and reduction.rank == 2:  # which takes two steps
                    self.block("B112", reduction.node, f"{text}: over a whole tile", "give one literal axis")
                continue
            if self._support_of(reduction.node, reduction.function) is None:
                problem = obstacle(reduction.function) or "this reduction"
                self.block("B120", reduction.node, f"{text}: Mosaic GPU has no rule for {problem}")
            elif reduction.axis is None and reduction.rank != 1:
                self.block("B112", reduction.node, f"{text}: over a whole tile", "give one literal axis")

    def _kind(self, node: ast.AST) -> str:
        """``int`` if all operands of a call, a method or an operator are known to be arrays of integers."""
        assert self.model is not None
        operands = [node.left, node.right] if isinstance(node, ast.BinOp) else list(getattr(node, "args", ()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and not self.resolver.qualified(node.func):
            operands.insert(0, node.func.value)
        kinds = {getattr(self.model.values.get(o), "kind", "") for o in operands}
        return "int" if kinds == {"int"} else ""

    def _support_of(self, node: ast.AST, name: str) -> act.CallSupport | None:
        """The call of a support function that takes the place of ``node``, if it must be replaced and can be."""
        function = replacement(name)
        if function in OF_FLOATS and self._kind(node) == "int":
            return None
        if name in OF_NUMBERS and isinstance(node, ast.Call) and node.args:
            function = OF_NUMBERS[name] if isinstance(self.model.values.get(node.args[0]), Scalar) else None
        elif name not in FUNCTIONS and not obstacle(name, self._kind(node)):
            return None
        if function is None:
            return None
        if isinstance(node, ast.BinOp):
            return act.CallSupport(self.span(node), function)
        if not isinstance(node, ast.Call) or any(isinstance(a, ast.Starred) for a in node.args):
            return None
        method = isinstance(node.func, ast.Attribute) and self.resolver.qualified(node.func) is None
        builtin = isinstance(node.func, ast.Name) and name == f"builtins.{node.func.id}"
        if not method and not builtin and self.resolver.qualified(node.func) != name:
            return None  # the function was bound to another name, maybe to several
        from ..rewrites.support import takes

        keywords = frozenset(k.arg for k in node.keywords) - {"keepdims"}  # left out of reductions
        if None in keywords or not takes(function, len(node.args) + method, keywords):  # type: ignore[arg-type]
            return None
        return act.CallSupport(self.span(node), function, method)

    # -- emission ---------------------------------------------------------------------------

    def emit(self, names: FreshNames, modules: Modules) -> Emission:
        assert self.model is not None
        emission = Emission([], set())
        self.notes, self.rules = [], set()
        if self.model.dots:
            from .plan_dots import plan_dots

            plan_dots(self, names, modules, emission)
        else:
            self._emit_rows(names, modules, emission)
        self._emit_carries(modules, emission.actions.append)
        emission.actions += [act.RemoveFunction(self.span(helper)) for helper in self.model.product_helpers]
        self.rules |= {a.rule for a in emission.actions}
        return emission

    def _emit_carries(self, modules: Modules, add) -> None:
        """Loops over mutable state, which the syntax tree already shows in today's form."""
        assert self.model is not None
        for loop in self.resolver.loops:
            if loop.body not in self.model.functions:
                continue
            modules.name("jax.lax")
            add(act.LoopOverCarry(self.span(loop.call), bool(loop.returned)))
            for node, name in loop.names:
                place = self.span(node)
                if isinstance(node, ast.arg):  # without its annotation
                    place = place._replace(end_line=place.line, end_column=place.column + len(loop.old_name))
                add(act.CarryName(place, name))
            if loop.returned:
                add(act.ReturnCarry(self.span(loop.body.body[-2]), loop.returned))  # what the source ends with

    def span(self, node: ast.AST) -> Span:
        return span_of(node, self.lines)

    def _emit_rows(self, names: FreshNames, modules: Modules, emission: Emission) -> None:
        model = self.model
        assert model is not None
        add = emission.actions.append
        layouts, problems = plan_layouts(
            model, self.resolver, FreshNames.within(model.kernel), self.strided_refs(),
            extents=evident_extents(self.sites, [r.name for r in model.refs], self.inputs, self.resolver),
        )
        tiled = [a for a in model.accesses if layouts.name_of(a) is not None]
        self.helpers, more = plan_helpers(
            tiled, layouts.names_for, model, self.resolver, lambda function: FreshNames.within(function).pick
        )
        for code, node, reason, advice in problems + more:
            self.block(code, node, reason, advice)
        if not self.portable:
            return
        for helper, names_of_parameters in self.helpers.parameters.items():
            add(act.LayoutParameters(self.span(helper), tuple(names_of_parameters.values())))
        for call, arguments in self.helpers.arguments():
            add(act.PassLayouts(self.span(call), arguments))
        if layouts.lines:
            add(act.DefineLayouts(self.span(layouts.before), layouts.lines))
            emission.support |= layouts.support
        for access in model.accesses:
            self.emit_access(access, layouts, add, emission)
        self.emit_body(modules, add, emission, layouts.hoists, layouts)
        if layouts.hoists:
            self.block("P301", layouts.hoists[0].statement, "a loop over rows with few rows per step leaves most of the memory bandwidth unused",
                       "larger row blocks measured up to 10 times faster")
            self.notes.append("column sums are taken once after the loop instead of in every step")
        self.emit_launches(names, modules, add, layouts.parameters)
        if any(call.may_be_long for call in self.calls):
            emission.support.add("_grid")
        self.notes[:0] = [*self.call_notes(), *layouts.notes]

    def strided_refs(self) -> frozenset[str]:
        """Refs whose specs leave out the array's last dimension, or place it at any element."""
        names = [r.name for r in self.model.refs] if self.model else []
        found = set()
        for site in self.sites:
            outs = self.inputs if self.inputs is not None else len(names)
            for first, specs in ((0, site.in_specs or ()), (outs, site.out_specs or ())):
                for i, spec in enumerate(specs):
                    last = len(spec.block_shape or ()) - 1
                    if last >= 0 and first + i < len(names) and (spec.block_shape[last] is None or last in spec.elements):
                        found.add(names[first + i])
        return frozenset(found)

    def call_notes(self) -> list[str]:
        """Grid and views of each call, in words."""
        notes = []
        for call in self.calls:
            axes = ", ".join(self.axis_name(i) for i in range(call.grid_rank) if call.sequence is None or i != call.sequence.axis)
            notes.append(f"grid {call.grid} with axes {axes}" if axes else "no grid: one program per call")
            if call.sequence is not None:
                notes.append(f"programs accumulate along grid axis {call.sequence.axis}: a loop of {call.sequence.steps} steps in each program")
            for name, view, text in zip(call.argument_names, call.views or (), call.arguments(call.argument_names)):
                if view is not None:
                    notes.append(f"{name} is viewed as {text}")
        return list(dict.fromkeys(notes))

    def emit_access(self, access, layouts, add, emission: Emission, part: str = "") -> None:
        """The rewrite of one load or store; ``part``: the index of a warpgroup's part of its tile."""
        if access.tile is None:
            self._emit_element(access, add, emission)
            return
        layout = layouts.name_of(access)
        if layout is None:
            return
        helper = helper_of(access.node, self.model, self.resolver)
        layout = self.helpers.name(helper, layout)
        vec = self.helpers.name(helper, layouts.vec_name) if access in layouts.vectors else ""
        if access.kind == "load":
            emission.support.add("_load")
            add(act.Load(self.span(access.node), layout, vec, unit=access.unit, part=part))
        elif access.kind == "atomic":
            emission.support.add("_atomic")
            add(act.Atomic(self.span(access.node), access.operation, layout, access.fetched, self._waits()))
        elif access.accumulates:
            emission.support |= {"_load", "_store"}
            add(act.Accumulate(self.span(access.statement), layout, vec, access.unit))
        else:
            emission.support.add("_store")
            statement = access.statement is not None
            node = access.statement if statement else access.node
            add(act.Store(self.span(node), layout, vec, statement, unit=access.unit, part=part))

    def _emit_element(self, access, add, emission: Emission) -> None:
        """One element: a plain subscript, unless a mask or an atomic needs support code."""
        span, masked = self.span(access.node), access.mask is not None
        if access.kind == "atomic":
            emission.support.add("_atomic_element")
            add(act.Atomic(span, access.operation, "", access.fetched, self._waits()))
        elif access.kind == "store" and self._in_place(access.ref.name):
            emission.support.add("_store")
            node = access.statement or access.node
            add(act.Store(self.span(node), "", "", access.statement is not None, access.statement is None, True))
        elif isinstance(access.node, ast.Call):
            if masked:
                emission.support.add(f"_{access.kind}")
            if access.kind == "load":
                add(act.Load(span, "", "", True, masked))
            else:
                add(act.Store(span, "", "", False, True, masked))

    def _in_place(self, ref: str) -> bool:
        """Whether the kernel loads from the memory of a ref that it stores to."""
        assert self.model is not None
        refs = [r.name for r in self.model.refs]
        same = {ref}
        for call in self.calls:
            for operand, result in call.aliases.items():
                if self.inputs is not None and self.inputs + result < len(refs):
                    pair = {refs[operand], refs[self.inputs + result]}
                    same |= pair if pair & same else set()
        return any(a.ref.name in same and a.kind == "load" for a in self.model.accesses)

    def _waits(self) -> bool:
        """Whether a program may wait for another: atomics whose results are read, loads of what they write."""
        assert self.model is not None
        atomics = [a for a in self.model.accesses if a.kind == "atomic"]
        targets = {a.ref.name for a in atomics}
        refs = [r.name for r in self.model.refs]
        for call in self.calls:
            for operand, result in call.aliases.items():
                if self.inputs is not None and self.inputs + result < len(refs):
                    pair = {refs[operand], refs[self.inputs + result]}
                    targets |= pair if pair & targets else set()
        read = any(a.kind == "load" and a.ref.name in targets for a in self.model.accesses)
        return read or any(a.fetched or a.operation in ("cas", "xchg") for a in atomics)

    def _layout_of(self, node: ast.AST, support: act.CallSupport, layouts: Layouts | None) -> str:
        """The name of the layout of a call's operand; "" and a diagnosis if there is none."""
        assert self.model is not None and isinstance(node, ast.Call)
        text = ast.unparse(node)[:60]
        listed = next((k.value for k in node.keywords if k.arg == "args"), None)
        operand = listed.elts[0] if listed is not None else node.func.value if support.method else node.args[0]  # type: ignore[attr-defined]
        value = self.model.values.get(operand)
        place: ast.AST | None = node
        while place is not None and place is not self.model.kernel:
            place = self.resolver.parents.get(place)
        name = layouts.names.get(value.tile.find(), "") if layouts and isinstance(value, Array) else ""
        given = len(node.args) + support.method > 1 or any(k.arg in ("axis", "args") for k in node.keywords)
        if place is None:
            self.block("B109", node, f"{text} in a helper function", "move it into the kernel")
        elif not name or node.lineno < layouts.before.lineno:  # type: ignore[union-attr]
            self.block("B120", node, f"{text}: its operand has no layout of its own",
                       "do it in a kernel without products" if self.model.dots else "load it from a ref")
        elif not given and value.rank != 1:  # type: ignore[union-attr]
            self.block("B112", node, f"{text}: over a whole tile", "give one literal axis")
        else:
            return name
        return ""

    def emit_body(
        self, modules: Modules, add, emission: Emission, hoists=(), layouts: Layouts | None = None,
        queries: bool = True, skip: frozenset[ast.AST] = frozenset(),
    ) -> None:
        """The rewrites that kernels with and without matrix products share.

        queries: whether ``program_id`` is among them. skip: nodes that do not reach the port.
        """
        model = self.model
        assert model is not None
        if not model.dots:
            self._emit_narrow(modules, add, emission)
        sequence = self.calls[0].sequence
        if sequence is not None:
            sequence.emit(self, add)
        for query in model.grid_queries if queries else ():
            if sequence is not None and query.axis == sequence.axis:
                continue
            modules.name("jax.lax")
            add(act.GridAxis(self.span(query.node), self.axis_name(query.axis), query.size))
        for strip in model.strips.values():
            if strip.node in skip:
                continue
            add(act.DropNewAxis(self.span(strip.node), strip.method))
        for shape, text in model.thin_shapes.items():
            add(act.ThinShape(self.span(shape), text))
        for axis in model.thin_axes:
            add(act.AxisOfThin(self.span(axis)))
        for node, text in model.repeats.items():
            add(act.RepeatIndices(self.span(node), text))
        dropped = {h.reduction.node for h in hoists}
        for reduction in model.reductions:
            if reduction.node in dropped:
                continue
            if reduction.keepdims:
                add(act.DropKeepdims(self.span(reduction.node)))
            if support := self._support_of(reduction.node, reduction.function):
                emission.support.add(support.function)
                add(support)
            elif reduction.axis is None and reduction.rank == 2:
                if reduction.operation in ("sum", "mean"):
                    self.block("N201", reduction.node, "the sum over the tile is taken in two steps: another order of additions")
                add(act.ReduceInTwoSteps(self.span(reduction.node), reduction.operation))
        for hoist in hoists:
            for action in hoist.actions(self.span):
                add(action)
            self.block("N201", hoist.reduction.node, "the sum over rows is taken after the loop: another order of additions")
        for expand in model.expands.values():
            if expand.shape and not model.dots and expand.node not in skip:
                function = f"{modules.name('jax.lax')}.broadcast_in_dim"
                add(act.BroadcastTo(self.span(expand.node), expand.axis, expand.shape, function))
            elif expand.node in model.values and expand.node not in skip and not self.is_new_axis(expand.node):
                add(act.AddNewAxis(self.span(expand.node), expand.axis))
        for node, name in model.calls:
            if name in ("~bool", "~"):
                emission.support |= set() if name == "~bool" else {"_invert"}
                add(act.InvertMask(self.span(node), known=name == "~bool"))
            elif support := self._support_of(node, name):
                if support.function in NEED_LAYOUT:
                    layout = self._layout_of(node, support, layouts)
                    if not layout:
                        continue
                    support = dataclasses.replace(support, layout=layout)
                emission.support.add(support.function)
                add(support)
        for node in model.unwraps:
            add(act.Unwrap(self.span(node)))
        for name, depth in model.wrapped:
            add(act.CallWrapped(self.span(name), depth))
        self.emit_square_roots(modules, add, emission)

    def _emit_narrow(self, modules: Modules, add, emission: Emission) -> None:
        """Operations and conversions of 8-bit values."""
        assert self.model is not None
        narrow = Narrow(self.model, self.resolver, self.found)
        replaced = {node for node, name in self.model.calls if self._support_of(node, name)}
        for node, name in narrow.operations():
            if node not in replaced:
                emission.support.add("_in_int32")
                add(act.ComputeInInt32(self.span(node), f"{modules.name('jax.numpy')}.{name}" if name else ""))
        for conversion in self.model.conversions:
            if narrow.converts(conversion):
                emission.support.add("_convert")
                func = conversion.node.func
                method = isinstance(func, ast.Attribute) and func.value is conversion.operand
                add(act.Convert(self.span(conversion.node), ast.unparse(conversion.dtype), method))

    def is_new_axis(self, node: ast.expr) -> bool:
        """``x[:, None]`` written out by the user stands as it is."""
        if isinstance(node, ast.Call):
            return (self.resolver.qualified(node.func) or "").endswith(".expand_dims")
        if not isinstance(node, ast.Subscript):
            return False
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        return any(isinstance(p, ast.Constant) and p.value is None for p in parts)

    def emit_square_roots(self, modules: Modules, add, emission: Emission) -> None:
        assert self.model is not None
        for root in self.model.square_roots:
            if root.form == "plain" and self.options.keep_native:
                self.notes.append(f"line {root.node.lineno}: sqrt stays native (error 0.94 ulp)")
                continue
            modules.name("jax.lax")
            add(act.Sqrt(self.span(root.node), root.form, root.floats))
            if not root.floats:
                emission.support.add("_rsqrt")
            if root.form == "plain":
                emission.support.add("_sqrt")
                self.block("N202", root.node, "sqrt(x) is x * rsqrt(x): error 2.4 ulp, the native rule has 0.94", "--keep-native keeps it")
            else:
                self.block("N202", root.node, "a division by sqrt is a product with rsqrt: one rounding less, error 2 ulp")

    def axis_name(self, axis: int) -> str:
        """Grid axes are called i, j, k, l, ...; a name that an index map uses is taken over."""
        return "ijklmn"[axis] if axis < 6 else f"axis{axis}"

    def emit_launches(self, names: FreshNames, modules: Modules, add, parameters: tuple[tuple[str, str], ...] = ()) -> None:
        for site, call in zip(self.sites, self.calls):
            call.emit(self, site, names, modules, add, parameters)

    def reports(self) -> dict[int, SiteReport]:
        result = {}
        for site in self.sites:
            span = span_of(site.call, self.lines)
            status = "not-triton" if not self.triton else "ported" if self.portable else "kept"
            found = self.diagnostics[id(site)]
            if status == "kept" and not any(d.blocks for d in found):
                other = next(s for s in self.sites if any(d.blocks for d in self.diagnostics[id(s)]))
                found = [*found, Diagnostic(span.line, span.column + 1, "C204",
                         f"shares its kernel with the call in line {other.call.lineno}, which stays on Triton")]
            if status == "ported" and site.backend == "implicit":
                found = [*found, Diagnostic(span.line, span.column + 1, "N204",
                         "no compiler params: this call ran on Triton before JAX 0.9 and on Mosaic GPU since")]
            result[id(site)] = SiteReport(
                kernel=site.kernel_name, line=span.line, column=span.column + 1, status=status,
                rules=tuple(sorted(self.rules)) if status == "ported" else (),
                plan=tuple(self.notes) if status == "ported" else (),
                diagnostics=tuple(sorted(found)),
            )
        return result
