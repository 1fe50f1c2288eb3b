"""Functions in a kernel that run at most once in a program, and where they are called.

A kernel may put its loops of products into a function of its own, which a branch calls
(``lax.cond(empty, lambda: start, lambda: compute(start))``), or below ``pl.when``.  Both sides of a
staged kernel then take the same branch, since its condition is a number that both compute.  The
steps of a ring are numbered from 0, so such a function must not run twice: it is called by its
name alone, in no loop, and two calls of it stand in different branches of one ``if`` or ``cond``.
"""

from __future__ import annotations

import ast

from .names import PALLAS, Resolver

COND = "jax.lax.cond"


def once_functions(kernel: ast.FunctionDef, resolver: Resolver) -> dict[ast.FunctionDef, list[ast.Call]]:
    """The functions of a kernel's body that run at most once, with their calls (none below ``pl.when``)."""
    found: dict[ast.FunctionDef, list[ast.Call]] = {}
    nested = [n for n in ast.walk(kernel) if isinstance(n, ast.FunctionDef) and n is not kernel]
    changed = True
    while changed:  # a function may be called by one that runs once
        changed = False
        for function in nested:
            if function in found or resolver.parents[function] is not kernel and resolver.parents[function] not in found:
                continue
            calls = _calls(function, kernel, found, resolver)
            if calls is not None:
                found[function] = calls
                changed = True
    return found


def _calls(
    function: ast.FunctionDef, kernel: ast.FunctionDef, known: dict[ast.FunctionDef, list[ast.Call]], resolver: Resolver,
) -> list[ast.Call] | None:
    """The calls of a function that runs at most once; None for other functions."""
    if function.decorator_list:
        return [] if below_when(function, resolver) else None
    calls = []
    for name in resolver.named(function.name):
        if resolver.value(name) is not function:
            continue
        call = resolver.parents[name]
        if not (isinstance(call, ast.Call) and call.func is name and _runs_once(call, kernel, known, resolver)):
            return None
        calls.append(call)
    exclusive = all(_exclude(a, b, resolver) for i, a in enumerate(calls) for b in calls[:i])
    return calls if calls and exclusive else None


def below_when(function: ast.FunctionDef, resolver: Resolver) -> bool:
    """Whether a function is the body of a ``pl.when``."""
    decorators = function.decorator_list
    return (
        len(decorators) == 1 and isinstance(decorators[0], ast.Call) and len(decorators[0].args) == 1
        and resolver.qualified(decorators[0].func) == f"{PALLAS}.when"
    )


def is_branch(node: ast.Lambda, resolver: Resolver) -> bool:
    """Whether a lambda is a branch of ``lax.cond``."""
    call = resolver.parents[node]
    return isinstance(call, ast.Call) and node in call.args[1:3] and resolver.qualified(call.func) == COND and not node.args.args


def _runs_once(
    call: ast.Call, kernel: ast.FunctionDef, known: dict[ast.FunctionDef, list[ast.Call]], resolver: Resolver,
) -> bool:
    """Whether a call stands in no loop, directly in the kernel or in a function that runs once."""
    node: ast.AST = call
    while node is not kernel and node not in known:
        if isinstance(node, ast.Lambda) and not is_branch(node, resolver):
            return False
        if isinstance(node, (ast.FunctionDef, ast.For, ast.While, ast.comprehension)):
            return False
        node = resolver.parents[node]
    return True


def _exclude(a: ast.AST, b: ast.AST, resolver: Resolver) -> bool:
    """Whether two nodes stand in different branches of an ``if`` or a ``cond``."""
    above = [a]
    while above[-1] in resolver.parents:
        above.append(resolver.parents[above[-1]])
    below = b
    while resolver.parents[below] not in above:
        below = resolver.parents[below]
    shared = resolver.parents[below]
    other = above[above.index(shared) - 1]
    if isinstance(shared, ast.If):
        return (other in shared.body) != (below in shared.body) and shared.test not in (other, below)
    if isinstance(shared, ast.IfExp):
        return {other, below} == {shared.body, shared.orelse}
    return all(isinstance(n, ast.Lambda) and is_branch(n, resolver) for n in (other, below)) and other is not below
