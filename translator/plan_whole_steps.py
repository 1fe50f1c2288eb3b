"""Plans apart the steps of a loop in which a comparison of index vectors holds everywhere.

A causal mask compares rows with columns, ``rows[:, None] >= columns[None, :]``, one of which runs
over the blocks of a loop.  In all steps but those at the diagonal each element passes.  Where both
sides are known to count up by one from known starts, the step is computed from which on, or up to
which, that is so; the loop runs these steps with a flag set, and the comparison becomes
``ones if whole else ...``: what the kernel does with a mask that holds everywhere, the compiler folds.
Index vectors that only the comparison reads are not made either, since JAX finds no layout for a
vector that nothing uses.

Covered: comparisons of two index vectors, one of them ``variable * extent + ...`` with its own
extent, directly in the function of a ``fori_loop``.  A source whose bounds show that it has split the
loop already (a first step, or a last one, that depends on the program) is left as it is.
"""

from __future__ import annotations

import ast
import dataclasses

from . import actions as act
from .model.events import Loop
from .model.text import wrap
from .names import walk
from .slice_loads import names_loaded
from .values import Array, Scalar


@dataclasses.dataclass(frozen=True)
class WholeSteps:
    """Steps of ``loop`` without a mask: from ``start``, up to ``end`` (source texts of the kernel, "" where
    the comparison ``node`` does not say). test: the comparison is made only under it, "" if always."""

    loop: Loop
    node: ast.Compare
    start: str
    end: str
    test: str


def plan_whole_steps(planner, lax: str, jnp: str) -> list[act.Action]:
    """The actions for all loops of a kernel with products."""
    found: list[act.Action] = []
    flag = ""
    for loop in dict.fromkeys(r.loop for r in planner.rings if r.loop is not None):
        if not isinstance(loop.body, ast.FunctionDef) or not _is_plain(loop.body):
            continue
        steps = [s for node in walk(loop.body) if isinstance(node, ast.Compare) and (s := _whole(planner, loop, node, lax))]
        starts = [s for s in steps if s.start]
        ends = [s for s in steps if s.end]
        if not steps or len(starts) > 1 or len(ends) > 1:
            continue
        flag = flag or planner.fresh.pick("whole", "whole_steps")
        bounds = []
        for keyword, steps_of in (("start", starts), ("end", ends)):
            for s in steps_of:
                name = planner.fresh.pick(f"whole_{keyword}", f"whole_steps_{keyword}")
                bound = getattr(s, keyword)
                lines = (f"{name} = {bound} if {s.test} else None" if s.test else f"{name} = {bound}",)
                found.append(act.StagedLines(planner.group.span(planner.resolver.statement_of(loop.node)), lines))
                bounds.append((keyword, name))
        found.append(act.SplitLoop(planner.group.span(loop.node), tuple(bounds)))
        found.append(act.WholeParameter(planner.group.span(loop.body), flag))
        for s in steps:
            found.append(act.WholeMask(planner.group.span(s.node), flag, f"{jnp}.ones({_shape(planner, s)}, {jnp}.bool_)"))
        for value in _only_for({s.node for s in steps}, loop.body, planner.resolver):
            found.append(act.StagedCondition(planner.group.span(value), f"not {flag}"))
    return found


def _shape(planner, steps: WholeSteps) -> str:
    """The shape of the mask in a warpgroup, source text."""
    value = planner.model.values[steps.node]
    parts = [planner.parts.get(a, "") for a in planner.axes.of(value)]
    return f"({', '.join(f'{p}.size' if p else d for p, d in zip(parts, value.dims))})"


def _only_for(nodes: set[ast.AST], body: ast.FunctionDef, resolver) -> list[ast.expr]:
    """Values assigned in ``body`` that nothing reads but ``nodes``, or other such values."""
    found: list[ast.expr] = []
    assigned = {
        s.targets[0].id: s for s in walk(body)
        if isinstance(s, ast.Assign) and len(s.targets) == 1 and isinstance(s.targets[0], ast.Name)
        and resolver.scope_of(s).node is body and len(resolver.scope_of(s.targets[0]).bindings[s.targets[0].id]) == 1
    }
    grown = True
    while grown:
        grown = False
        for name, statement in assigned.items():
            readers = [n for n in resolver.named(name) if isinstance(n.ctx, ast.Load) and resolver.value(n) is statement.value]
            if statement.value not in nodes and readers and all(any(resolver.is_inside(n, x) for x in nodes) for n in readers):
                nodes = nodes | {statement.value}
                found.append(statement.value)
                grown = True
    return found


def _is_plain(body: ast.FunctionDef) -> bool:
    args = body.args
    return not (args.kwonlyargs or args.vararg or args.kwarg or args.defaults or body.decorator_list)


def _whole(planner, loop: Loop, node: ast.Compare, lax: str) -> WholeSteps | None:
    resolver, model = planner.resolver, planner.model
    if len(node.ops) != 1 or resolver.scope_of(node).node is not loop.body:
        return None
    variable = loop.body.args.args[0].arg  # type: ignore[union-attr]
    sides = (node.left, node.comparators[0])
    if isinstance(node.ops[0], (ast.GtE, ast.Gt)):
        larger, smaller = sides
    elif isinstance(node.ops[0], (ast.LtE, ast.Lt)):
        smaller, larger = sides
    else:
        return None
    above, below = (_Run.of(model.values.get(s), variable) for s in (larger, smaller))
    mask = model.values.get(node)
    if above is None or below is None or above.moves == below.moves or not isinstance(mask, Array) or mask.rank != 2:
        return None
    if not all(_known(planner, text) for text in (above.start, above.extent, below.start, below.extent)):
        return None
    strict = isinstance(node.ops[0], (ast.Gt, ast.Lt))
    test = planner.innermost_test(node)
    if below.moves:
        # above.start >= below.start + (step + 1) * extent - 1 (+ 1 if strict)
        if not _is_fixed(model.values.get(loop.lower)):
            return None
        room = _sum(planner, above.start, f"-({below.start})" if below.start != "0" else "", "" if strict else "1")
        return WholeSteps(loop, node, "", f"{lax}.div({room}, {below.extent})", test)
    # above.start + step * extent >= below.start + below.extent - 1 (+ 1 if strict)
    if not _is_fixed(model.values.get(loop.upper)):
        return None
    gap = _sum(planner, below.start, below.extent, f"-({above.start})" if above.start != "0" else "",
               wrap(above.extent), "-1" if strict else "-2")
    return WholeSteps(loop, node, f"{lax}.div({gap}, {above.extent})", "", test)


@dataclasses.dataclass(frozen=True)
class _Run:
    """An index vector ``start + arange(extent)``, plus ``step * extent`` if it ``moves``."""

    start: str
    extent: str
    moves: bool

    @staticmethod
    def of(value, variable: str) -> _Run | None:
        if not isinstance(value, Array) or value.run is None or not value.start or value.dims is None:
            return None
        if value.thin_axis is None and len(value.dims) != 1:
            return None
        extent = value.dims[value.thin_axis or 0]
        start = ast.parse(value.start, mode="eval").body
        terms = list(_terms(start))
        moving = [t for t in terms if variable in names_loaded(t)]
        if not moving:
            return _Run(value.start, extent, False)
        if len(moving) > 1 or not _is_step(moving[0], variable, extent):
            return None
        rest = " + ".join(wrap(ast.unparse(t)) for t in terms if t is not moving[0])
        return _Run(rest or "0", extent, True)


def _terms(node: ast.expr):
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        yield from _terms(node.left)
        yield from _terms(node.right)
    else:
        yield node


def _is_step(node: ast.expr, variable: str, extent: str) -> bool:
    """Whether a term is ``variable * extent``."""
    if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult)):
        return False
    texts = [ast.unparse(node.left), ast.unparse(node.right)]
    return variable in texts and ast.unparse(ast.parse(extent, mode="eval")) in texts


def _is_fixed(bound) -> bool:
    """Whether a loop's bound is the same in all programs."""
    return isinstance(bound, Scalar) and (bound.static or bool(bound.expr) and "program_id" not in bound.expr)


def _known(planner, text: str) -> bool:
    """Whether an expression reads only what the kernel knows where its loops are called."""
    scope = planner.resolver.scopes[planner.kernel]
    for n in walk(ast.parse(text, mode="eval")):
        if isinstance(n, ast.Name) and n.id not in ("program_id",):
            found = scope.find(n.id)
            if found is None or found[0].node is planner.kernel and len(found[1]) != 1:
                return False
    return True


def _sum(planner, *terms: str) -> str:
    """A sum in the kernel's terms, its number last."""
    parts = [t for t in terms if t and t != "0"]
    text = " + ".join(parts).replace("+ -", "- ") or "0"
    return planner.of_program(text)
