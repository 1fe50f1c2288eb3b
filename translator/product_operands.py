"""What the operands of products are: loads, also where a helper function of the kernel gets them.

Kernels with several loops often share their softmax step: ``step(s, v, *carry)`` multiplies with a
``v`` that each loop has loaded.  An operand that is a parameter of such a helper stands for what
every call passes in its place.
"""

from __future__ import annotations

import ast

from .names import Resolver
from .tile_axes import operand_root


def sources(operand: ast.expr, resolver: Resolver, depth: int = 0) -> list[ast.AST]:
    """The expressions that an operand may stand for, through names and the calls of helpers."""
    root = operand_root(operand, resolver)
    value = resolver.value(root) if isinstance(root, ast.Name) else root
    if not isinstance(value, ast.Name) or depth > 4:
        return [value]
    passed = _passed(value, resolver)
    return [s for a in passed for s in sources(a, resolver, depth + 1)] if passed else [value]


def readers(name: str, load: ast.AST, operands: set[ast.expr], resolver: Resolver) -> list[ast.Name]:
    """Where the value of an assignment to ``name`` is read, in helpers instead of where it is passed to them.

    operands: those of products; a product may be the call of a helper that does nothing else.
    """
    found: list[ast.Name] = []
    for n in resolver.named(name):
        if isinstance(n.ctx, ast.Load) and resolver.value(n) is load:
            found += _in_helper(n, operands, resolver, 0)
    return found


def _in_helper(name: ast.Name, operands: set[ast.expr], resolver: Resolver, depth: int) -> list[ast.Name]:
    call = resolver.parents[name]
    helper = resolver.value(call.func) if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) else None
    if name in operands or not isinstance(helper, ast.FunctionDef) or name not in call.args or depth > 4:  # type: ignore[union-attr]
        return [name]
    at = call.args.index(name)  # type: ignore[union-attr]
    if any(isinstance(a, ast.Starred) for a in call.args[:at]) or at >= len(helper.args.args):  # type: ignore[union-attr]
        return [name]
    parameter = helper.args.args[at]
    found: list[ast.Name] = []
    for n in resolver.named(parameter.arg):
        binding = resolver.binding(n) if isinstance(n.ctx, ast.Load) else None
        if binding is not None and binding.node is parameter:
            found += _in_helper(n, operands, resolver, depth + 1)
    return found


def _passed(name: ast.Name, resolver: Resolver) -> list[ast.expr]:
    """What each call of a helper passes for the parameter that a name stands for; [] where that is not known."""
    binding = resolver.binding(name)
    if binding is None or binding.kind != "parameter":
        return []
    helper = next((f for f in resolver.scopes if isinstance(f, ast.FunctionDef) and binding.node in f.args.args), None)
    if helper is None:
        return []
    at, found = helper.args.args.index(binding.node), []  # type: ignore[arg-type]
    for use in resolver.named(helper.name):
        if not isinstance(use.ctx, ast.Load) or resolver.value(use) is not helper:
            continue
        call = resolver.parents[use]
        if not isinstance(call, ast.Call) or call.func is not use or at >= len(call.args):
            return []  # handed on, as a loop's body is
        if any(isinstance(a, ast.Starred) for a in call.args[: at + 1]):
            return []
        found.append(call.args[at])
    return found
