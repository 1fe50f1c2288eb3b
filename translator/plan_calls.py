"""Plans the call itself: grid, block views, results, aliases, parameters.

A BlockSpec on the Triton backend is an address window.  The port keeps every operand in GMEM and
writes the window out: a small function beside the call passes the kernel ``x_ref.at[...]`` views
built from the index maps.  Calls without specs launch the kernel itself.
"""

from __future__ import annotations

import ast
import copy
import dataclasses
import itertools
import math

from . import actions as act
from .alias_positions import alias_positions
from .actions import span_of
from .model.events import KernelModel
from .names import GONE_MODULES, MOSAIC, PALLAS, Resolver, walk
from .sites import NO_SCRATCH, TRITON_KEYWORDS, CallSite, forwarded_call
from .specs import Spec, zeros

Problem = tuple[str, ast.AST, str, str]

_AXIS_LETTERS = "ijklmn"
# Keywords of pallas_call that the launch takes over or that need nothing.
_KNOWN = {
    "out_shape", "grid", "in_specs", "out_specs", "compiler_params", "interpret", "debug", "name",
    "input_output_aliases", "cost_estimate", "backend", "kernel", "grid_spec", "metadata", *TRITON_KEYWORDS,
}


@dataclasses.dataclass(frozen=True)
class Sequence:
    """A grid axis that the launch loops over, see ``plan_races.py``.

    steps: its extent, source text. step, count: parameters of the kernel that stand for its
    ``program_id`` and ``num_programs``, "" where the kernel asks for neither.
    """

    axis: int
    steps: str
    step: str
    count: str

    def emit(self, group, add) -> None:
        """Changes the kernel: queries of the axis become parameters."""
        for query in group.model.grid_queries:
            if query.axis == self.axis:
                add(act.StepOfLoop(span_of(query.node, group.lines), self.count if query.size else self.step))
        names = tuple(n for n in (self.step, self.count) if n)
        if names:
            add(act.AddParameters(span_of(group.model.kernel, group.lines), names))


@dataclasses.dataclass
class CallPlan:
    """``views``: the view that each kernel argument gets, None for the whole ref.

    argument_names: what the emitted functions call the kernel's arguments. operand_names: and the operands
    of a call whose results replace some of them.

    unless: the condition under which an argument is whole (or None) in spite of its view, or "".
    maps: lines that call index maps which are functions of the file.
    unused: assignments that only this call reads, and that the port makes superfluous.
    letters: the variable that holds the position along each grid axis in the views.
    """

    views: list[str | None] | None
    argument_names: list[str]
    operand_names: list[str]
    grid: str
    grid_rank: int
    aliases: dict[int, int]
    unused: list[ast.stmt]
    letters: tuple[str, ...] = ()
    unless: list[str] = dataclasses.field(default_factory=list)
    maps: tuple[str, ...] = ()
    sequence: Sequence | None = None

    @property
    def may_be_long(self) -> bool:
        """Whether an axis but the last may have more than the 65,535 programs that CUDA takes there."""
        if self.grid_rank - (self.sequence is not None) < 2:
            return False
        node = ast.parse(self.grid, mode="eval").body
        if not isinstance(node, ast.Tuple):
            return True
        extents = [e.value if isinstance(e, ast.Constant) else None for e in node.elts[:-1]]
        return not all(isinstance(n, int) for n in extents) or math.prod(extents) > 65535  # type: ignore[arg-type]

    def arguments(self, names: list[str]) -> list[str]:
        """What the kernel is called with, for refs called ``names``."""
        found = []
        for name, view, unless in itertools.zip_longest(names, self.views or (), self.unless):
            text = f"{name}{view or ''}"
            found.append(f"{name} if {unless} else {text}" if unless and view else text)
        return found

    def positions(self, modules, axes: tuple[str, ...]) -> list[str]:
        """Lines that give the variables which the views use: places in the grid, blocks of index maps."""
        texts = [*(f"ref{v}" for v in self.views or () if v), *self.maps]
        used = {n.id for t in texts for n in walk(ast.parse(t)) if isinstance(n, ast.Name)}
        letters = [v for i, v in enumerate(self.letters) if self.sequence is None or i != self.sequence.axis]
        pairs = [(v, a) for v, a in zip(letters, axes) if v in used]
        lax = modules.name("jax.lax") if pairs else ""
        maps = () if self.sequence is not None else self.maps
        return [*(f'{v} = {lax}.axis_index("{a}")' for v, a in pairs), *maps]

    def kernel_call(self, call: list[str], names, modules) -> list[str]:
        """Lines that call the kernel, once or step by step."""
        if self.sequence is None:
            return call
        step, letter = names.pick("step"), self.letters[self.sequence.axis]
        lax = modules.name("jax.lax")
        body = [*self.maps, *call]
        return ["", f"def {step}({letter}, _):", *(f"  {line}" for line in body), "",
                f"{lax}.fori_loop(0, {self.sequence.steps}, {step}, None)"]

    def emit(self, group, site: CallSite, names, modules, add, parameters: tuple[tuple[str, str], ...]) -> None:
        """Adds the launch and, where blocks are views, the function that builds them."""
        plgpu = modules.name(MOSAIC)
        for statement in self.unused:
            add(act.RemoveStatement(span_of(statement, group.lines)))
        skipped = self.sequence.axis if self.sequence is not None else None
        axes = tuple(group.axis_name(i) for i in range(self.grid_rank) if i != skipped)
        span = span_of(site.call, group.lines)
        body = ""
        lines: list[str] = []
        if self.views is not None or self.sequence is not None:
            body = names.pick(f"{_plain_name(site)}_blocks")
            lines += self._view_lines(group, site, names, modules, body, axes)
        extra = []
        if parameters:
            fields = ", ".join(f"{k}={v}" for k, v in parameters)
            extra.append(("compiler_params", f"{plgpu}.CompilerParams({fields})"))
        if "name" in site.keywords:
            extra.append(("kernel_name", ast.unparse(site.keywords["name"])))
        if self.aliases:
            self._emit_aliased(group, site, names, modules, add, body, axes, extra)
            return
        if lines:
            statement = group.resolver.statement_of(site.call)
            add(act.BlockViews(span_of_statement(statement, group.lines), tuple(lines)))
        add(act.Launch(span, body, self.grid, axes, tuple(extra), may_be_long=self.may_be_long, listed=listed(site, group.resolver)))

    def _view_lines(self, group, site, names, modules, body: str, axes: tuple[str, ...]) -> list[str]:
        lines = [f"def {body}({', '.join(self.argument_names)}):", '  """Views of the blocks that one program works on."""']
        lines += [f"  {line}" for line in self.positions(modules, axes)]
        arguments = self.arguments(self.argument_names)
        kernel, bound = self._kernel(site)
        call = _call_lines(kernel, [*arguments, *bound])
        lines += [f"  {line}" if line else "" for line in self.kernel_call(call, names, modules)]
        return lines

    def _kernel(self, site: CallSite) -> tuple[str, list[str]]:
        """(callee, keyword arguments) of the kernel, with the step of a loop around it."""
        kernel, bound = _kernel_call(site)
        if self.sequence is not None:
            pairs = ((self.sequence.step, self.letters[self.sequence.axis]), (self.sequence.count, self.sequence.steps))
            bound = [*bound, *(f"{name}={value}" for name, value in pairs if name)]
        return kernel, bound

    def _emit_aliased(self, group, site, names, modules, add, body, axes, extra) -> None:
        """Results that alias an operand: the operand becomes a ref that the kernel updates."""
        jax = modules.name("jax")
        plgpu = modules.name(MOSAIC)
        launch = names.pick(f"{_plain_name(site)}_in_place")
        kernel, bound = self._kernel(site)
        inputs = self.argument_names[: group.inputs]
        outputs = self.argument_names[group.inputs :]
        source = {outputs[o]: inputs[i] for i, o in self.aliases.items()}
        operands = self.operand_names
        aliased = {o: operands[i] for i, o in self.aliases.items()}
        fresh = [o for o in outputs if o not in source]
        if not body:
            body = names.pick(f"{_plain_name(site)}_refs")
        head = [f"def {launch}({', '.join(operands)}):", '  """Runs the kernel on a copy of the operand that its result replaces."""']
        passed = []
        for i, (ref, operand) in enumerate(zip(inputs, operands)):
            if i in self.aliases:
                head.append(f"  {operand} = {jax}.new_ref({operand})")
            passed.append(operand)
        inner = ["", *(f"  {line}" for line in _call_lines(f"def {body}", [*inputs, *fresh], ":"))]
        inner += [f"    {line}" for line in self.positions(modules, axes)]
        arguments = self.arguments([source.get(n, n) for n in self.argument_names])
        call = self.kernel_call(_call_lines(kernel, [*arguments, *bound]), names, modules)
        inner += [*(f"    {line}" if line else "" for line in call), ""]
        out_type = self._fresh_out_type(site, outputs, fresh, jax)
        keywords = [f"out_type={out_type}"]
        if self.grid:
            quoted = ", ".join(f'"{a}"' for a in axes) + ("," if len(axes) == 1 else "")
            ordered = f"**_grid({self.grid}, ({quoted}))"
            keywords += [ordered] if self.may_be_long else [f"grid={self.grid}", f"grid_names=({quoted})"]
        keywords += [f"{k}={v}" for k, v in extra]
        for k in ("interpret", "debug"):
            if k in site.keywords:
                keywords.append(f"{k}={ast.unparse(site.keywords[k])}")
        lines = _call_lines(f"{'fresh = ' if fresh else ''}{plgpu}.kernel", [body, *keywords], f"({', '.join(passed)})")
        results = []
        for k, o in enumerate(outputs):
            results.append(f"{aliased[k]}[...]" if k in aliased else f"fresh[{fresh.index(o)}]")
        tail = [f"  {line}" for line in lines]
        tail.append(f"  return {self._results(site, results, group.resolver, jax)}")
        statement = group.resolver.statement_of(site.call)
        add(act.BlockViews(span_of_statement(statement, group.lines), (*head, *inner, *tail)))
        add(act.ReplaceCall(span_of(site.call, group.lines), launch))

    def _results(self, site: CallSite, results: list[str], resolver: Resolver, jax: str) -> str:
        """The results in the structure of ``out_shape``, as ``pallas_call`` returns them."""
        shapes = site.keywords["out_shape"]
        value = resolver.value(shapes)
        if isinstance(value, (ast.List, ast.Tuple)):
            return f"({', '.join(results)}{',' if len(results) == 1 else ''})"
        if isinstance(value, ast.Call) and resolver.qualified(value.func) == "jax.ShapeDtypeStruct":
            return results[0]
        return f"{jax}.tree.unflatten({jax}.tree.structure({ast.unparse(shapes)}), [{', '.join(results)}])"

    def _fresh_out_type(self, site: CallSite, outputs: list[str], fresh: list[str], jax: str) -> str:
        if not fresh:
            return "()"
        shapes = site.keywords["out_shape"]
        if isinstance(shapes, (ast.List, ast.Tuple)):
            texts = [ast.unparse(e) for e in shapes.elts]
        else:
            texts = [f"{jax}.tree.leaves({ast.unparse(shapes)})[{i}]" for i in range(len(outputs))]
        kept = [text for o, text in zip(outputs, texts) if o in fresh]
        return f"[{', '.join(kept)}]"


def listed(site: CallSite, resolver: Resolver) -> bool:
    """Whether the call lists its results: ``out_shape=[...]``."""
    return isinstance(resolver.value(site.keywords["out_shape"]), ast.List) if "out_shape" in site.keywords else False


def _call_lines(function: str, arguments: list[str], end: str = "") -> list[str]:
    """A call and what follows it, on one line or with a line for each argument."""
    one_line = f"{function}({', '.join(arguments)}){end}"
    if len(one_line) <= 86:
        return [one_line]
    return [f"{function}(", *(f"    {a}," for a in arguments), f"){end}"]


def span_of_statement(statement: ast.stmt, lines: list[str]) -> act.Span:
    return span_of(statement, lines)


def _plain_name(site: CallSite) -> str:
    return site.kernel.name if isinstance(site.kernel, ast.FunctionDef) else "kernel"


def _kernel_call(site: CallSite) -> tuple[str, list[str]]:
    """(callee, keyword arguments) that call the kernel as the site's first argument would."""
    expr = site.kernel_expr
    if isinstance(expr, ast.Call) and len(expr.args) == 1 and all(k.arg for k in expr.keywords):
        inner = expr.args[0]
        if isinstance(inner, ast.Name) and site.bound.keys() == {k.arg for k in expr.keywords}:
            return inner.id, [f"{k.arg}={ast.unparse(k.value)}" for k in expr.keywords]
    if isinstance(expr, ast.Lambda) and (call := forwarded_call(expr)) is not None:
        arguments = {k: v for k, v in site.bound.items() if v in call.args or v in [w.value for w in call.keywords]}
        if isinstance(call.func, ast.Name) and call.func.id == _plain_name(site) and arguments == site.bound:
            return call.func.id, [f"{k}={ast.unparse(v)}" for k, v in site.bound.items()]
    if expr is None:
        return _plain_name(site), []
    text = ast.unparse(expr)
    return (f"({text})" if isinstance(expr, ast.Lambda) else text), []


def plan_call(
    site: CallSite, resolver: Resolver, lines: list[str], model: KernelModel, inputs: int | None
) -> tuple[CallPlan, list[Problem]]:
    """The plan of one call and what keeps it on Triton."""
    problems: list[Problem] = []
    for what, node in site.unresolved:
        number = what.startswith("the number of grid axes")
        problems.append(("C202", node, what, "write the grid as a tuple" if number else "write grid and specs out beside the call"))
    for name in site.keywords:
        if name not in _KNOWN:
            what = NO_SCRATCH if name == "scratch_shapes" else f"the argument {name}= has no counterpart"
            problems.append(("C203", site.keywords[name], what, ""))
    grid = site.grid or ()
    for q in model.grid_queries:
        if site.grid is not None and q.axis >= len(grid):
            problems.append(("C208", q.node, f"program_id({q.axis}) of a grid of rank {len(grid)}", ""))
    aliases = _read_aliases(site, resolver, problems)
    if aliases and inputs is None:
        problems.append(("C203", site.keywords["input_output_aliases"], "aliases of a call whose number of inputs is not known", ""))

    names = _argument_names(site, model)
    letters = _letters(len(grid), {n.id for n in _copied_names(site, [], bool(model.dots))})
    views: list[str | None] | None = None
    unless: list[str] = []
    map_lines: tuple[str, ...] = ()
    specs: list[Spec] | None = None
    if site.in_specs is not None or site.out_specs is not None:
        specs = all_specs(site, inputs, resolver)
        if specs is None and site.unresolved:
            pass  # said above
        elif model.dots and any(s.extra for s in specs or ()):
            specs = None  # plan_staged.py builds the views when the call is traced
        elif specs is None or not _needed(model, names) <= len(specs) <= len(names) or any(s.extra for s in specs):
            problems.append(("C202", site.call, "in_specs and out_specs do not match the kernel's parameters",
                             "give a spec for every operand"))
        else:
            names = names[: len(specs)]
            operands = _operand_texts(site, resolver)
            copied = _copied_names(site, specs, bool(model.dots))
            if not model.dots:  # plan_dot_launch.py calls the arguments as the kernel does
                names = _apart(names, {n.id for n in copied})
            letters = _letters(len(grid), {n.id for n in copied} | set(names))
            maps = _Maps({*letters, *names, *(n.id for n in copied)}, site.call, resolver)
            found = [
                _view(spec, letters, resolver, operands.get(i), maps, problems) for i, spec in enumerate(specs)
            ]
            views = found if any(v is not None for v in found) else None
            if views is not None:
                problems += _changed_names(site, copied, set(names), resolver)
                unless = [ast.unparse(s.unless) if s.unless is not None and v else "" for s, v in zip(specs, views)]
                map_lines = tuple(maps.lines.values())
    operand_names: list[str] = []
    if aliases:
        args = [ast.unparse(a) for a in site.invocation.args] if site.invocation is not None else []
        kept = [site.keywords[k] for k in ("out_shape", "grid", "name", "interpret", "debug") if k in site.keywords]
        copied = [*_copied_names(site, specs or [], bool(model.dots)), *(n for k in kept for n in walk(k) if isinstance(n, ast.Name))]
        operand_names = [n.removesuffix("_ref") for n in names[:inputs]]
        taken = {n.id for n in copied} - {o for o, a in zip(operand_names, args) if o == a}
        operand_names = _apart(operand_names, taken | set(names), "_in")
        problems += _changed_names(site, copied, set(), resolver)
    if model.dots and views is None:
        problems += _changed_names(site, _copied_names(site, specs or [], True), set(names), resolver)
    if views is not None or aliases or model.dots:
        problems += _crowded(site, resolver)
    elif model.kernel.args.vararg is not None and aliases:
        problems.append(("C203", site.call, "aliases of a kernel with *refs", ""))
    if "grid_spec" in site.keywords:
        problems += _changed_names(site, [n for g in grid for n in walk(g) if isinstance(n, ast.Name)], set(), resolver)
    if site.decorates and views is not None:
        problems.append(("C202", site.call, "block specs on a decorated kernel", "call pallas_call as a function"))
    return CallPlan(views, names, operand_names, site.grid_text, len(grid), aliases, unused_statements(site, resolver), letters, unless, map_lines), problems


def _apart(names: list[str], taken: set[str], ending: str = "_ref") -> list[str]:
    """The names, with those that are taken renamed."""
    found: list[str] = []
    for name in names:
        while name in taken or name in found:
            name += ending
        found.append(name)
    return found


def _letters(rank: int, taken: set[str]) -> tuple[str, ...]:
    """A variable for each grid axis that hides nothing which the views read."""
    return tuple(a if a not in taken else f"axis_{a}" for a in _AXIS_LETTERS[:rank])


def _copied_names(site: CallSite, specs: list[Spec], values: bool) -> list[ast.Name]:
    """The names in all that the views and the call of the kernel copy from the source.

    values: what is bound to parameters of the kernel is copied too.
    """
    roots: list[ast.AST] = [b for s in specs for b in s.block_shape or () if b is not None]
    roots += [s.unless for s in specs if s.unless is not None]
    roots += [site.kernel_expr] if site.kernel_expr is not None else []
    roots += site.bound.values() if values else ()
    found = [n for root in roots for n in walk(root) if isinstance(n, ast.Name)]
    inner = {a.arg for root in roots for a in walk(root) if isinstance(a, ast.arg)}  # of lambdas
    found = [n for n in found if n.id not in inner]
    for spec in specs:
        result = _map_result(spec.index_map)
        if result is not None and not zeros(result):
            params = {a.arg for a in walk(spec.index_map) if isinstance(a, ast.arg)}  # type: ignore[arg-type]
            found += [n for n in walk(result) if isinstance(n, ast.Name) and n.id not in params]
    return found


def _changed_names(site: CallSite, copied: list[ast.Name], hidden: set[str], resolver: Resolver) -> list[Problem]:
    """Names that mean something else in the function beside the call than where they stand."""
    problems: list[Problem] = []
    statement = resolver.statement_of(site.call)
    within = set(walk(statement)) if not isinstance(statement, ast.FunctionDef) else set()
    for name in copied:
        here, there = resolver.scope_of(statement).find(name.id), resolver.scope_of(name).find(name.id)
        places = [b.place or b.node for b in there[1]] if there else []
        if any(p in within for p in places) or there is not None and isinstance(there[0].node, ast.ClassDef):
            problems.append(("C202", name, f"{name.id} is bound inside this expression", "call pallas_call in a statement of its own"))
        elif (here and here[0]) is not (there and there[0]):
            problems.append(("C202", name, f"{name.id} means something else beside the call", "write the spec beside the call"))
        elif name.id in hidden:
            problems.append(("C202", name, f"{name.id} is a parameter of the kernel too", "rename one of them"))
        elif len(seen := resolver.visible(name)) > 1 and (there[0].node is not resolver.tree or resolver.scope_of(name).node is resolver.tree):  # type: ignore[index]
            later = [resolver.statement_of(b.place or b.node) for b in seen if b.kind != "parameter"]  # type: ignore[arg-type]
            if any(p.lineno > resolver.statement_of(name).lineno for p in later):
                problems.append(("C202", name, f"{name.id} is assigned again after this", "use another name"))
        elif site.invocation is None and any(p is not None and _in_loop(p, site.call, resolver) for p in places):
            problems.append(("C202", name, f"{name.id} changes before the result of pallas_call is called", "call it at once: pallas_call(...)(x)"))
    return problems


def _in_loop(place: ast.AST, call: ast.AST, resolver: Resolver) -> bool:
    """Whether some loop around ``call`` binds the name at ``place``."""
    node: ast.AST | None = call
    while node is not None and not isinstance(node, (ast.FunctionDef, ast.Lambda)):
        if isinstance(node, (ast.For, ast.While)) and any(n is place for n in walk(node)):
            return True
        node = resolver.parents.get(node)
    return False


def _crowded(site: CallSite, resolver: Resolver) -> list[Problem]:
    """A call before whose statement no function can be put."""
    statement = resolver.statement_of(site.call)
    parent = resolver.parents[statement]
    one_line = isinstance(parent, ast.stmt) and not isinstance(parent, ast.FunctionDef) and parent.lineno == statement.lineno
    chained = isinstance(parent, ast.If) and isinstance(statement, ast.If) and statement.col_offset == parent.col_offset
    if one_line or chained:
        return [("C202", site.call, "no function can be put before this call", "call pallas_call in a statement of its own")]
    return []


def unused_statements(site: CallSite, resolver: Resolver, keep_specs: bool = False) -> list[ast.stmt]:
    """Plain assignments of specs and parameters that nothing but the dropped keywords reads.

    Only these: extents and functions that a spec names are written out in the views.
    """
    unread = ("compiler_params",) if keep_specs else ("compiler_params", "in_specs", "out_specs", "grid_spec")
    dropped = [site.keywords[k] for k in unread if k in site.keywords]
    inside = {n for d in dropped for n in walk(d)}
    found: list[ast.stmt] = []
    queue = [n for n in inside if isinstance(n, ast.Name)]
    while queue:
        name = queue.pop()
        binding = resolver.binding(name)
        if binding is None or binding.kind != "value" or binding.node is None:
            continue
        statement = resolver.statement_of(binding.node)
        if not isinstance(statement, ast.Assign) or len(statement.targets) != 1 or statement in found:
            continue
        if not _is_launch_data(statement.value, resolver):
            continue
        scope = resolver.scope_of(name).find(name.id)
        uses = [
            n for n in resolver.named(name.id)
            if not isinstance(n.ctx, ast.Store)
            and (f := resolver.scope_of(n).find(name.id)) is not None and f[0] is scope[0]  # type: ignore[index]
        ]
        if scope[0] is resolver.module and not name.id.startswith("_"):  # type: ignore[index]
            continue  # another module may import it
        added = [] if all(n in inside for n in uses) else _additions(uses, inside, statement, resolver)
        if added and len(scope[1]) == 1 and all(alone(s, resolver) for s in (statement, *added)):  # type: ignore[index]
            found += added
            inside |= {n for s in added for n in walk(s)}
        if len(scope[1]) == 1 and all(n in inside for n in uses) and alone(statement, resolver):  # type: ignore[index]
            found.append(statement)
            inside |= set(walk(statement))
            queue += [n for n in walk(statement.value) if isinstance(n, ast.Name)]
    return found


def _additions(uses: list[ast.Name], inside: set[ast.AST], made: ast.stmt, resolver: Resolver) -> list[ast.stmt]:
    """The statements that add to a list of specs, if all other uses of it are these; else none."""
    found = []
    for name in uses:
        if name in inside:
            continue
        statement, parent = resolver.statement_of(name), resolver.parents[name]
        adds = isinstance(parent, ast.Attribute) and parent.attr in ("append", "insert", "extend")
        if not adds or not isinstance(statement, ast.Expr) or resolver.parents[statement] is not resolver.parents[made]:
            return []
        found.append(statement)
    return found


def _is_launch_data(node: ast.expr, resolver: Resolver) -> bool:
    """Whether an expression makes only block specs or compiler parameters."""
    if isinstance(node, (ast.List, ast.Tuple)):
        return all(_is_launch_data(e, resolver) for e in node.elts)
    if isinstance(node, ast.BinOp):
        return _is_launch_data(node.left, resolver) or _is_launch_data(node.right, resolver)
    if isinstance(node, ast.Name):
        value = resolver.value(node)
        return value is not node and isinstance(value, ast.expr) and _is_launch_data(value, resolver)
    if isinstance(node, ast.Call):
        name = resolver.qualified(node.func) or ""
        return name.startswith(PALLAS) and name.rpartition(".")[2] in ("BlockSpec", "CompilerParams", "GridSpec")
    return False


def alone(statement: ast.stmt, resolver: Resolver) -> bool:
    """Whether no other statement shares the lines of a statement."""
    return not any(
        n is not statement and statement.lineno <= n.lineno <= (statement.end_lineno or 0)
        or n is not statement and n.lineno < statement.lineno == n.end_lineno
        and resolver.parents[n] is resolver.parents[statement]
        for n in resolver.statements
    )


def _read_aliases(site: CallSite, resolver: Resolver, problems: list[Problem]) -> dict[int, int]:
    node = site.keywords.get("input_output_aliases")
    if node is None:
        return {}
    found = alias_positions(node, site.in_specs, resolver)
    if found is None:
        problems.append(("C203", node, "input_output_aliases that cannot be read, or whose positions shift with an operand that may be None",
                         "write a dictionary of numbers, or one call for each case"))
    return found or {}


def _argument_names(site: CallSite, model: KernelModel) -> list[str]:
    args = model.kernel.args
    positional = [a.arg for a in (*args.posonlyargs, *args.args)]
    names = [a for i, a in enumerate(positional) if i >= site.bound_positional and a not in site.bound]
    if args.vararg is not None:
        names += [r.name for r in model.refs if r.name not in names and r.name.isidentifier()]
    return names


def _needed(model: KernelModel, names: list[str]) -> int:
    """How many of the kernel's arguments every call must pass: those without a default."""
    args = model.kernel.args
    positional = [*args.posonlyargs, *args.args]
    optional = {a.arg for a in positional[len(positional) - len(args.defaults):]}
    return sum(n in {a.arg for a in positional} - optional for n in names)


def all_specs(site: CallSite, inputs: int | None, resolver: Resolver) -> list[Spec] | None:
    """A spec for every ref, inputs first; None if they are not known."""
    if site.unresolved:
        return None
    whole = Spec(site.call)
    if site.in_specs is not None:
        ins = list(site.in_specs)
    elif inputs is not None:
        ins = [whole] * inputs
    else:
        return None
    if site.out_specs is not None:
        return ins + list(site.out_specs)
    shapes = site.keywords.get("out_shape")
    value = resolver.value(shapes) if shapes is not None else None
    count = len(value.elts) if isinstance(value, (ast.List, ast.Tuple)) else 1
    return ins + [whole] * count


def _operand_texts(site: CallSite, resolver: Resolver) -> dict[int, str]:
    """Source text of the operand or result shape at each position, to recognise full dimensions."""
    texts: dict[int, str] = {}
    if site.invocation is not None:
        for i, a in enumerate(site.invocation.args):
            texts[i] = ast.unparse(a)
    count = len(site.in_specs or ())
    out = site.keywords.get("out_shape")
    if out is not None:
        value = resolver.value(out)
        shapes = value.elts if isinstance(value, (ast.List, ast.Tuple)) else [out]
        for i, s in enumerate(shapes):
            texts[count + i] = ast.unparse(resolver.value(s)) if not isinstance(resolver.value(s), (ast.FunctionDef, ast.Lambda)) else ""
    return texts


def _view(
    spec: Spec, letters: tuple[str, ...], resolver: Resolver, operand: str | None, maps: _Maps, problems: list[Problem]
) -> str | None:
    """``.at[pl.ds(i * 64, 64), :]`` for a block spec; None for the whole array."""
    if not spec.block_shape:
        return None
    pl = _pallas_name(resolver)
    if pl is None:
        problems.append(("C202", spec.node, "the pallas module has no name here", "import it as pl"))
        return None
    indices = _block_indices(spec, letters, maps)
    if indices is None or len(indices) != len(spec.block_shape):
        problems.append(("C202", spec.node, "an index map that cannot be read", "write it as a lambda that returns a tuple"))
        return None
    parts = []
    for d, (block, index) in enumerate(zip(spec.block_shape, indices)):
        zero = isinstance(index, ast.Constant) and index.value == 0
        if block is None:
            parts.append(ast.unparse(index))
        elif zero and _is_full(block, operand, d, resolver):
            parts.append(":")
        elif zero:
            parts.append(f"{pl}.ds(0, {ast.unparse(block)})")
        else:
            start = ast.BinOp(index, ast.Mult(), copy.deepcopy(block))
            if d in spec.elements or isinstance(block, ast.Constant) and block.value == 1:
                start = index
            parts.append(f"{pl}.ds({ast.unparse(start)}, {ast.unparse(block)})")
    if all(p == ":" for p in parts):
        return None
    return f".at[{', '.join(parts)}]"


class _Maps:
    """Calls of index maps that are functions of several statements, one for each function."""

    def __init__(self, taken: set[str], call: ast.Call, resolver: Resolver) -> None:
        self._taken = taken
        self._scope, self._resolver = resolver.scope_of(resolver.statement_of(call)), resolver
        self._results: dict[ast.FunctionDef, list[str]] = {}
        self.lines: dict[ast.FunctionDef, str] = {}

    def visible(self, index_map: ast.FunctionDef) -> bool:
        """Whether the function can be called beside the call by its own name."""
        found = self._scope.find(index_map.name)
        return found is not None and [b.node for b in found[1]] == [index_map] and index_map.name not in self._taken

    def results(self, index_map: ast.FunctionDef, letters: tuple[str, ...], rank: int) -> list[str]:
        """The variables that hold the block indices."""
        if index_map not in self._results:
            stem = "block" if not self._results else f"block{len(self._results) + 1}"
            names = [f"{stem}_{d}" for d in range(rank)]
            while self._taken & set(names):
                names = [f"{n}_" for n in names]
            self._results[index_map] = names
            target = ", ".join(names) + ("," if rank == 1 else "")
            self.lines[index_map] = f"{target} = {index_map.name}({', '.join(letters)})"
        return self._results[index_map]


def _map_result(index_map: ast.AST | None) -> ast.expr | None:
    """What a lambda or a function of one return statement returns."""
    if isinstance(index_map, ast.Lambda):
        return index_map.body
    if not isinstance(index_map, ast.FunctionDef):
        return None
    body = [s for s in index_map.body if not (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))]
    return body[0].value if len(body) == 1 and isinstance(body[0], ast.Return) else None


def _block_indices(spec: Spec, letters: tuple[str, ...], maps: _Maps) -> list[ast.expr] | None:
    """The block index of each dimension in terms of the grid axes' variables."""
    rank = len(spec.block_shape or ())
    index_map = spec.index_map
    if index_map is None:
        return [ast.Constant(0) for _ in range(rank)]
    result = _map_result(index_map)
    if result is None and isinstance(index_map, ast.FunctionDef):
        returns = [n for n in walk(index_map) if isinstance(n, ast.Return)]
        tuples = all(isinstance(r.value, ast.Tuple) and len(r.value.elts) == rank for r in returns)
        fits = len(index_map.args.args) == len(letters) and not index_map.args.vararg
        if not returns or not tuples or not fits or not maps.visible(index_map):
            return None
        return [ast.Name(n, ast.Load()) for n in maps.results(index_map, letters, rank)]
    if result is None:
        return None
    if zeros(result):
        return [ast.Constant(0) for _ in range(rank)]
    args = index_map.args  # type: ignore[union-attr]
    params = [a.arg for a in args.args]
    if args.vararg is not None and not any(isinstance(n, ast.Name) and n.id == args.vararg.arg for n in walk(result)):
        params += ["_"] * (len(letters) - len(params))
    elif args.vararg is not None:
        return None
    if len(params) != len(letters) or args.kwonlyargs or args.defaults:
        return None
    if any(isinstance(n, (ast.Lambda, ast.comprehension, ast.NamedExpr)) for n in walk(result)):
        return None
    replaced = _substitute(result, dict(zip(params, letters)))
    return list(replaced.elts) if isinstance(replaced, ast.Tuple) else [replaced]


class _Renamer(ast.NodeTransformer):
    def __init__(self, names: dict[str, str]) -> None:
        self.names = names

    def visit_Name(self, node: ast.Name) -> ast.Name:
        return ast.Name(self.names.get(node.id, node.id), node.ctx)


def _substitute(node: ast.expr, names: dict[str, str]) -> ast.expr:
    return _Renamer(names).visit(copy.deepcopy(node))


def _pallas_name(resolver: Resolver) -> str | None:
    return next((name for _, name, target in resolver.imports() if GONE_MODULES.get(target, target) == PALLAS), None)


def _is_full(block: ast.expr, operand: str | None, dim: int, resolver: Resolver) -> bool:
    """Whether a block extent is the operand's own extent of that dimension."""
    if not operand or not _same_values(block, operand, resolver):
        return False
    text = ast.unparse(block)
    if text == f"{operand}.shape[{dim}]":
        return True
    shape = _literal_shape(operand)
    if shape is not None and dim < len(shape) and shape[dim] == text:
        return True
    if isinstance(block, ast.Name):
        return _unpacked_from(block, resolver) == (operand, dim) or _same_dim(block, operand, dim, resolver)
    return False


def _same_values(block: ast.expr, operand: str, resolver: Resolver) -> bool:
    """Whether nothing in the texts of an extent and an operand changes after the extent is read."""

    def lines(tree: ast.AST, several: bool = False) -> list[int]:
        names = {n.id for n in walk(tree) if isinstance(n, ast.Name)}
        found = [(resolver.scope_of(block).find(name) or (None, []))[1] for name in names]
        bindings = [b for f in found for b in f if not several or len(f) > 1]
        return [resolver.statement_of(b.place or b.node).lineno for b in bindings if b.kind != "parameter"]  # type: ignore[arg-type]

    read = min([block.lineno, *lines(block)])
    return all(line <= read for line in (*lines(block, True), *lines(ast.parse(operand), True)))


def _literal_shape(operand: str) -> list[str] | None:
    """The dimensions of ``jax.ShapeDtypeStruct((m, n), dtype)`` as text."""
    tree = ast.parse(operand, mode="eval").body
    if isinstance(tree, ast.Call) and "ShapeDtypeStruct" in ast.unparse(tree.func):
        shape = tree.args[0] if tree.args else next((k.value for k in tree.keywords if k.arg == "shape"), None)
        if isinstance(shape, ast.Tuple):
            return [ast.unparse(e) for e in shape.elts]
        if isinstance(shape, ast.Attribute) and shape.attr == "shape":
            base = ast.unparse(shape)
            return [f"{base}[{d}]" for d in range(8)]
    return None


def _unpacked_from(name: ast.Name, resolver: Resolver) -> tuple[str, int] | None:
    """(array, dimension) for a name bound by ``m, k = a.shape`` or ``k = a.shape[1]``."""
    binding = resolver.binding(name)
    if binding is None or binding.node is None:
        return None
    node, index = binding.node, binding.index
    if binding.kind == "value" and isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        node, index = node.value, node.slice.value
    elif binding.kind != "unpack":
        return None
    if isinstance(node, ast.Attribute) and node.attr == "shape":
        return ast.unparse(node.value), index
    return None


def _same_dim(name: ast.Name, operand: str, dim: int, resolver: Resolver) -> bool:
    """``(m, k), n = a.shape, b.shape[1]``: a nested pattern."""
    scope = resolver.scope_of(name)
    for node in resolver.statements:
        if isinstance(node, ast.Assign) and resolver.scope_of(node) is scope:
            for target in node.targets:
                if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                    for t, v in zip(target.elts, node.value.elts):
                        names = [e.id if isinstance(e, ast.Name) else "" for e in t.elts] if isinstance(t, ast.Tuple) else []
                        if name.id in names and ast.unparse(v) == f"{operand}.shape" and names.index(name.id) == dim:
                            return True
                        if isinstance(t, ast.Name) and t.id == name.id and ast.unparse(v) == f"{operand}.shape[{dim}]":
                            return True
    return False


