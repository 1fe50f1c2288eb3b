"""Finds what a product is added to: ``acc + dot``, ``acc += dot``, or through a name.

A matrix unit adds a product to its accumulator at no cost; a separate sum would need a second set
of registers.
"""

from __future__ import annotations

import ast

from .model.events import Dot
from .names import walk
from .values import Array


def find_sum(dot: Dot, planner) -> tuple[str, ast.AST | None, str]:
    """(the other summand as source text, the node that adds, the name that gets the sum).

    The name is "" where the sum is written around the product itself; ("", None, "") if there is
    none that can become the accumulator.
    """
    resolver, model = planner.resolver, planner.model
    node: ast.AST = dot.node
    parent = resolver.parents[node]
    if isinstance(parent, ast.Attribute) and parent.attr == "astype":
        call = resolver.parents[parent]
        if isinstance(call, ast.Call) and call.func is parent:
            around = resolver.parents[call]
            summand = around.left if isinstance(around, ast.BinOp) and around.right is call else getattr(around, "right", getattr(around, "target", None))
            if _keeps_dtype(call, summand):
                node, parent = call, around
    if isinstance(parent, ast.BinOp) and isinstance(parent.op, ast.Add):
        other = parent.right if parent.left is node else parent.left
        return (ast.unparse(other), parent, "") if _is_tile(other, model) else ("", None, "")
    if isinstance(parent, ast.AugAssign) and isinstance(parent.op, ast.Add) and isinstance(parent.target, ast.Name):
        return parent.target.id, parent, ""
    if isinstance(parent, ast.Assign) and len(parent.targets) == 1 and isinstance(parent.targets[0], ast.Name):
        return _later_sum(parent, parent.targets[0], node, planner)
    return "", None, ""


def _later_sum(product: ast.Assign, target: ast.Name, node: ast.AST, planner) -> tuple[str, ast.AST | None, str]:
    """``c = dot(...)`` with ``n = a + c`` or ``n += c`` later in the same block."""
    resolver, model = planner.resolver, planner.model
    none = ("", None, "")
    if len(resolver.scope_of(target).bindings.get(target.id, ())) != 1:
        return none
    readers = [
        n for n in resolver.parents
        if isinstance(n, ast.Name) and n.id == target.id and isinstance(n.ctx, ast.Load) and resolver.value(n) is node
    ]
    if len(readers) != 1:
        return none
    total = resolver.parents[readers[0]]
    statement = resolver.statement_of(readers[0])
    if resolver.parents[statement] is not resolver.parents[product]:
        return none
    if isinstance(total, ast.AugAssign) and isinstance(total.op, ast.Add) and isinstance(total.target, ast.Name):
        other: ast.expr = total.target
        name = total.target.id
    elif (
        isinstance(total, ast.BinOp) and isinstance(total.op, ast.Add) and isinstance(statement, ast.Assign)
        and statement.value is total and len(statement.targets) == 1 and isinstance(statement.targets[0], ast.Name)
    ):
        other = total.right if total.left is readers[0] else total.left
        name = statement.targets[0].id
        if not _is_tile(other, model):
            return none
    else:
        return none
    block = [s for s in walk(resolver.parents[product]) if isinstance(s, ast.stmt) and product.lineno < s.lineno < statement.lineno]
    changed = {n.id for s in block for n in walk(s) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    read = {n.id for s in block for n in walk(s) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    needed = {n.id for n in walk(other) if isinstance(n, ast.Name)}
    if needed & changed or name in read | changed:
        return none
    return ast.unparse(other), statement, name


def _is_tile(node: ast.expr, model) -> bool:
    value = model.values.get(node)
    return isinstance(value, Array) and value.rank == 2 and value.thin_axis is None


def _keeps_dtype(call: ast.Call, summand: ast.AST | None) -> bool:
    """``.astype(jnp.float32)``, or the dtype of the other summand."""
    text = ast.unparse(call.args[0]) if len(call.args) == 1 else ""
    return text.endswith("float32") or isinstance(summand, ast.Name) and text == f"{summand.id}.dtype"
