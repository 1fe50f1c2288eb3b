"""Helpers that code outside of the ported kernels uses too get a version for those kernels.

What a port changes in a helper holds in its kernels only: there, arrays that have a dimension of extent
1 in the source are of rank 1, and loads take a layout.  Where other code uses such a helper, kernels that
stay on Triton among it, the helper stays as it is under its name, and the ported kernels and their
helpers call a version of another name.  Helpers that nothing else in the file uses are changed in place.
"""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Callable, Iterable

from . import actions as act
from .actions import Action, Span, span_of
from .names import FunctionNode, Resolver, walk
from .sites import CallSite


@dataclasses.dataclass(frozen=True)
class Versions:
    """names: of the helpers' versions. actions: what makes and uses them. blocked: (helper, use) of helpers
    that cannot have one."""

    names: dict[FunctionNode, str] = dataclasses.field(default_factory=dict)
    actions: tuple[Action, ...] = ()
    blocked: tuple[tuple[ast.FunctionDef, ast.AST], ...] = ()


def versionable(function: FunctionNode, resolver: Resolver) -> bool:
    """Whether a second version can stand beside a function: a plain one at the top of the file."""
    return (
        isinstance(function, ast.FunctionDef) and not function.decorator_list
        and resolver.parents.get(function) is resolver.tree
        and len(resolver.module.bindings.get(function.name, ())) == 1
    )


def plan_versions(
    kernels: Iterable[FunctionNode], functions: Iterable[FunctionNode], sites: Iterable[CallSite],
    changes: Iterable[Action], resolver: Resolver, lines: list[str], pick: Callable[..., str],
) -> Versions:
    """The versions that the helpers among ``functions`` need.

    kernels: those that are ported, with ``sites``; functions: all that they run; changes: all rewrites.
    """
    roots = set(kernels)
    helpers = [f for f in functions if f not in roots and versionable(f, resolver)]
    spans = [a.span for a in changes]
    changed = {f for f in helpers if any(_within(s, span_of(f, lines)) for s in spans)}
    grows = True
    while grows:
        callers = {f for f in helpers if f not in changed and any(_uses(g, f, resolver) for g in changed)}
        changed |= callers
        grows = bool(callers)
    passed = {resolver.value(v) for s in sites for v in s.bound.values()}
    inside = {n for f in (*roots, *changed) for n in walk(f)}
    names: dict[FunctionNode, str] = {}
    actions: list[Action] = []
    blocked: list[tuple[ast.FunctionDef, ast.AST]] = []
    for f in sorted(changed, key=lambda f: f.lineno):
        uses = [n for n in resolver.named(f.name) if resolver.value(n) is f]  # type: ignore[attr-defined]
        others = [n for n in uses if n not in inside]
        calls = [n for n in others if isinstance(call := resolver.parents[n], ast.Call) and call.func is n]
        if f in passed:  # by way of the call: which uses are the kernel's is not known
            blocked += [(f, n) for n in calls[:1]]  # type: ignore[misc]
        elif others:
            name = names[f] = pick(f"{f.name}_mosaic")  # type: ignore[attr-defined]
            actions.append(act.OwnVersion(span_of(f, lines), name))
            actions += [act.UseVersion(span_of(n, lines), name) for n in uses if n in inside]
    return Versions(names, tuple(actions), tuple(blocked))


def _within(span: Span, outer: Span) -> bool:
    first, last = (outer.line, outer.column), (outer.end_line, outer.end_column)
    return first <= (span.line, span.column) and (span.end_line, span.end_column) <= last


def _uses(function: FunctionNode, by: FunctionNode, resolver: Resolver) -> bool:
    name = function.name  # type: ignore[union-attr]
    return any(resolver.value(n) is function and resolver.is_inside(n, by) for n in resolver.named(name))
