"""Layouts for loads and stores that stand in helper functions of the kernel's file.

Layouts and the vector width are named at the head of the kernel.  A helper that loads or stores gets
those it needs as keyword-only parameters, and every call of it passes them on, through helpers that
call helpers.  A helper must only be called by its name from ported kernels and their helpers; else
its other callers would lack the arguments.
"""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Callable

from .model.events import Access, KernelModel
from .names import FunctionNode, Resolver

Problem = tuple[str, ast.AST, str, str]


@dataclasses.dataclass
class Helpers:
    """``parameters``: for each helper, {name in the kernel: name of the parameter}.

    calls: the calls of helpers, each with the function that it stands in (None: the kernel).
    """

    parameters: dict[ast.FunctionDef, dict[str, str]] = dataclasses.field(default_factory=dict)
    calls: list[tuple[ast.Call, ast.FunctionDef | None, ast.FunctionDef]] = dataclasses.field(default_factory=list)

    def name(self, helper: ast.FunctionDef | None, name: str) -> str:
        """The name, inside a function, of what the kernel calls ``name``."""
        return self.parameters[helper][name] if helper is not None and name else name

    def arguments(self) -> list[tuple[ast.Call, tuple[tuple[str, str], ...]]]:
        """For each call of a helper: (parameter, what is passed)."""
        return [
            (call, tuple((parameter, self.name(owner, name)) for name, parameter in self.parameters[helper].items()))
            for call, owner, helper in self.calls if helper in self.parameters
        ]


def helper_of(node: ast.AST, model: KernelModel, resolver: Resolver) -> FunctionNode | None:
    """The function outside the kernel that a node stands in, None for the kernel; outermost of those that it runs."""
    found = None
    current: ast.AST | None = node
    while current is not None:
        if current is model.kernel:
            return None
        if current in model.functions:
            found = current
        current = resolver.parents.get(current)
    return found  # type: ignore[return-value]


def plan_helpers(
    tiled: list[Access], names_of: Callable[[Access], tuple[str, ...]], model: KernelModel, resolver: Resolver,
    pick_within: Callable[[FunctionNode], Callable[..., str]],
) -> tuple[Helpers, list[Problem]]:
    """Which parameters helpers get.

    names_of: the names at the head of the kernel that the rewritten access reads.
    """
    needs: dict[ast.FunctionDef, dict[str, None]] = {}
    for access in tiled:
        helper = helper_of(access.node, model, resolver)
        if helper is None:
            continue
        if not isinstance(helper, ast.FunctionDef):
            return Helpers(), [("B109", access.node, "a load or store in a lambda outside the kernel", "move it into the kernel")]
        needs.setdefault(helper, {}).update(dict.fromkeys(names_of(access)))
    helpers = Helpers()
    queue = list(needs)
    for helper in queue:  # grows by the helpers that call helpers
        if helper.args.kwarg is not None or helper.decorator_list:
            return helpers, [("B109", helper, f"a load or store in {helper.name}, which takes any arguments or is decorated", "call a plain function")]
        for use in resolver.named(helper.name):
            if resolver.value(use) is not helper:
                continue
            call = resolver.parents[use]
            if not isinstance(call, ast.Call) or call.func is not use:
                return helpers, [("B109", use, f"{helper.name} loads or stores, and is passed on here", "call it by its name")]
            owner = helper_of(call, model, resolver)
            if owner is None and not resolver.is_inside(call, model.kernel):
                continue  # of another kernel, or of other code: see ``foreign_calls``
            if owner is not None and not isinstance(owner, ast.FunctionDef):
                return helpers, [("B109", call, f"{helper.name} loads or stores, and is called in a lambda", "call it in the kernel")]
            helpers.calls.append((call, owner, helper))
            if owner is not None and owner not in queue:
                queue.append(owner)
                needs.setdefault(owner, {})
    for _ in queue:
        for _, owner, helper in helpers.calls:
            if owner is not None:
                needs[owner].update(needs[helper])
    for helper in queue:
        pick = pick_within(helper)
        helpers.parameters[helper] = {name: pick(name) for name in sorted(needs[helper])}
    return helpers, []


def foreign_calls(helpers: list[Helpers], resolver: Resolver) -> list[tuple[ast.FunctionDef, ast.AST]]:
    """Uses of helpers that no ported kernel's plan covers: (helper, use)."""
    covered = {call for h in helpers for call, _, _ in h.calls}
    changed = {f for h in helpers for f in h.parameters}
    return [
        (f, use) for f in changed for use in resolver.named(f.name)
        if resolver.value(use) is f and resolver.parents[use] not in covered
    ]
