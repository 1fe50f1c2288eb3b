"""Reads the block specs of a call: what they say of each operand, as syntax.

Lists of specs may be displays, sums and repetitions of displays, or lists that straight-line code
changes before the call (``append``, ``insert``, ``extend``, ``+=``, in both branches of an ``if``
alike).  An optional operand has a spec under a condition: ``None if bias is None else
pl.BlockSpec(...)``; ``Spec.unless`` keeps the condition.

What cannot be read raises ``Unreadable`` with the place and the reason.
"""

from __future__ import annotations

import ast
import dataclasses

from .names import PALLAS, FunctionNode, Resolver

_SPECS = (f"{PALLAS}.BlockSpec", f"{PALLAS}.no_block_spec")
_ELEMENTS = f"{PALLAS}.Element"


class Unreadable(Exception):
    """A spec that cannot be read; ``node`` is the place."""

    def __init__(self, node: ast.AST, reason: str) -> None:
        super().__init__(reason)
        self.node, self.reason = node, reason


@dataclasses.dataclass(frozen=True)
class Spec:
    """A BlockSpec.

    block_shape: None for the whole array; an element None is a squeezed dimension.
    elements: dimensions whose index counts elements, not blocks (``pl.Element``).
    rank: of a whole array, where its index map tells.
    unless: a condition under which there is no spec, and the operand is whole (or None).
    extra: whether this operand exists under a condition only, behind all others.
    """

    node: ast.expr
    block_shape: tuple[ast.expr | None, ...] | None = None
    index_map: ast.expr | FunctionNode | None = None
    rank: int | None = None
    elements: frozenset[int] = frozenset()
    unless: ast.expr | None = None
    extra: bool = False


def read_specs(node: ast.expr | None, call: ast.Call, resolver: Resolver) -> tuple[Spec, ...] | None:
    """One Spec per operand; None where there are no specs. Raises Unreadable."""
    if node is None or isinstance(node, ast.Constant) and node.value is None:
        return None
    return tuple(
        dataclasses.replace(_read_spec(e.value, resolver), extra=True) if isinstance(e, ast.Starred) else _read_spec(e, resolver)
        for e in elements_of(node, call, resolver)
    )


# -- lists ----------------------------------------------------------------------------------------


def elements_of(node: ast.expr, call: ast.AST, resolver: Resolver) -> list[ast.expr]:
    """The elements of a list as it is when ``call`` runs; a single spec is one element.

    Elements that are appended under a condition are starred.
    """
    if isinstance(node, ast.Name):
        made = _made(node, resolver)
        if made is not None:
            found = elements_of(made, call, resolver)
            return _changed(found, node, made, call, resolver) if found != [made] else [node]
    value = resolver.value(node)
    if isinstance(value, (ast.List, ast.Tuple)):
        found = []
        for e in value.elts:
            found += elements_of(e.value, call, resolver) if isinstance(e, ast.Starred) else [e]
        return found
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Mult):
        for items, times in ((value.left, value.right), (value.right, value.left)):
            count = resolver.value(times)
            if isinstance(items, (ast.List, ast.Tuple)) and isinstance(count, ast.Constant) and isinstance(count.value, int):
                return elements_of(items, call, resolver) * count.value
        raise Unreadable(value, "a repetition of a list whose count is not a number")
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add):
        return elements_of(value.left, call, resolver) + elements_of(value.right, call, resolver)
    if isinstance(value, ast.Call):
        function = value.func
        copied = isinstance(function, ast.Attribute) and function.attr == "copy" and not value.args
        if copied:
            return elements_of(function.value, call, resolver)  # type: ignore[union-attr]
        if isinstance(function, ast.Name) and function.id in ("list", "tuple") and len(value.args) == 1:
            return elements_of(value.args[0], call, resolver)
    if isinstance(value, (ast.ListComp, ast.GeneratorExp, ast.Subscript)):
        raise Unreadable(node, f"{ast.unparse(value)[:40]} is not a list that can be read")
    return [node]


def _made(name: ast.Name, resolver: Resolver) -> ast.expr | None:
    """The expression that a name is bound to, whatever is added to it later."""
    bindings = (resolver.scope_of(name).find(name.id) or (None, []))[1]
    added = [b for b in bindings if b.kind == "other" and isinstance(resolver.parents.get(b.place), ast.AugAssign)]  # type: ignore[arg-type]
    binding = resolver.binding(name) if not added else None
    if len(bindings) == len(added) + 1:
        binding = next(b for b in bindings if b not in added)
    return binding.node if binding is not None and binding.kind == "value" else None  # type: ignore[return-value]


def _changed(found: list[ast.expr], name: ast.Name, made: ast.AST, call: ast.AST, resolver: Resolver) -> list[ast.expr]:
    """``found`` after what is done to the list between where it is made and ``call``."""
    scope = resolver.scope_of(name)
    first, last = resolver.statement_of(made), resolver.statement_of(call)
    changes: dict[ast.stmt, None] = {}
    for other in resolver.named(name.id):
        if resolver.scope_of(other).find(name.id) != scope.find(name.id) or not _changes(other, resolver):
            continue
        statement = resolver.statement_of(other)
        if resolver.scope_of(other) is not scope and not resolver.parents[other] is made:
            raise Unreadable(other, f"{name.id} is changed in another function")
        if statement.lineno < last.lineno and statement is not first and statement.lineno >= first.lineno:
            changes[statement] = None
    block = resolver.parents[first]
    done: set[ast.stmt] = set()
    for statement in sorted(changes, key=lambda s: (s.lineno, s.col_offset)):
        if statement in done:
            continue
        parent = resolver.parents[statement]
        if parent is block and found and isinstance(found[-1], ast.Starred):
            raise Unreadable(statement, f"{name.id} gets more elements behind one under a condition")
        if parent is block:
            found = _apply(statement, name.id, found, call, resolver)
        elif isinstance(parent, ast.If) and resolver.parents[parent] is block:
            inside = [[s for s in changes if s in part] for part in (parent.body, parent.orelse)]
            if not parent.orelse and (more := _appended(statement)) is not None:
                found = [*found, *(ast.Starred(e, ast.Load()) for e in more)]
                continue
            if found and isinstance(found[-1], ast.Starred) or any(len(part) > 1 for part in inside) or not all(inside):
                raise Unreadable(statement, f"{name.id} has other elements under a condition")
            done |= {s for part in inside for s in part}
            one, other = (_apply(part[0], name.id, found, call, resolver) for part in inside)
            if len(one) != len(other):
                raise Unreadable(statement, f"{name.id} has other elements under a condition")
            found = [a if a is b else _either(parent.test, a, b) for a, b in zip(one, other)]
        else:
            raise Unreadable(statement, f"{name.id} is changed in a loop or under a condition")
    return found


def _appended(statement: ast.stmt) -> list[ast.expr] | None:
    """What a statement puts at the end of a list; None if it does anything else."""
    match statement:
        case ast.AugAssign(op=ast.Add(), value=ast.List(items)):
            return items
        case ast.Expr(ast.Call(ast.Attribute(ast.Name(), "append"), [one], [])):
            return [one]
    return None


def _changes(name: ast.Name, resolver: Resolver) -> bool:
    """Whether this use of a list may change it."""
    parent = resolver.parents[name]
    if isinstance(parent, ast.Attribute):
        return parent.attr != "copy"
    if isinstance(parent, ast.Subscript) and parent.value is name:
        return not isinstance(parent.ctx, ast.Load)
    return isinstance(parent, ast.AugAssign) and parent.target is name


def _apply(statement: ast.stmt, name: str, found: list[ast.expr], call: ast.AST, resolver: Resolver) -> list[ast.expr]:
    match statement:
        case ast.AugAssign(op=ast.Add(), value=more):
            return found + elements_of(more, call, resolver)
        case ast.Expr(ast.Call(ast.Attribute(ast.Name(), "append"), [one], [])):
            return [*found, one]
        case ast.Expr(ast.Call(ast.Attribute(ast.Name(), "extend"), [more], [])):
            return found + elements_of(more, call, resolver)
        case ast.Expr(ast.Call(ast.Attribute(ast.Name(), "insert"), [ast.Constant(int(at)), one], [])):
            return [*found[:at], one, *found[at:]]
    raise Unreadable(statement, f"{name} is changed by {ast.unparse(statement)[:40]}")


def _either(test: ast.expr, a: ast.expr, b: ast.expr) -> ast.expr:
    return ast.copy_location(ast.IfExp(test, a, b), a)


# -- one spec -------------------------------------------------------------------------------------


def _read_spec(node: ast.expr, resolver: Resolver) -> Spec:
    value = _value(node, resolver)
    if isinstance(value, ast.IfExp):
        return _optional_spec(node, value, resolver)
    if _is_none(value):
        return Spec(node)
    if isinstance(value, (ast.Name, ast.Attribute)) and resolver.qualified(value) in _SPECS:
        return Spec(node)
    if not isinstance(value, ast.Call):
        raise Unreadable(node, f"{ast.unparse(node)[:40]} is not known to be a BlockSpec")
    name = resolver.qualified(value.func)
    if name != _SPECS[0]:
        if (name or "").startswith(f"{PALLAS}.tpu"):
            raise Unreadable(node, "a spec of the TPU backend")
        raise Unreadable(node, f"{ast.unparse(value.func)} makes this spec")
    keywords = {k.arg: k.value for k in value.keywords}
    if wrong := keywords.keys() - {"block_shape", "index_map", "memory_space", "indexing_mode"}:
        raise Unreadable(node, f"a BlockSpec with {min(map(str, wrong))}=")
    args = list(value.args)
    if len(args) > 2:
        raise Unreadable(node, "a BlockSpec with three positional arguments")
    if args and isinstance(resolver.value(args[0]), (ast.Lambda, ast.FunctionDef)):
        args = args[1::-1] + args[2:]  # until JAX 0.4.31 the index map came first
    shape = args[0] if args else keywords.get("block_shape")
    index_map = args[1] if len(args) > 1 else keywords.get("index_map")
    if shape is not None:
        shape = resolver.value(shape)  # type: ignore[assignment]
    if shape is None or _is_none(shape):
        return Spec(node)
    if not isinstance(shape, (ast.Tuple, ast.List)):
        return _whole_operand(node, shape, index_map, resolver)
    dims: list[ast.expr | None] = []
    elements = set(range(len(shape.elts))) if _counts_elements(keywords.get("indexing_mode"), resolver) else set()
    for at, e in enumerate(shape.elts):
        if isinstance(e, ast.Starred):
            raise Unreadable(e, "a block shape with a starred part")
        dim, counts_elements = _dimension(e, resolver)
        dims.append(dim)
        if counts_elements:
            elements.add(at)
    if index_map is not None:
        target = resolver.value(index_map)
        index_map = target if isinstance(target, (ast.Lambda, ast.FunctionDef)) else index_map
    return Spec(node, tuple(dims), index_map, elements=frozenset(elements))


def _counts_elements(mode: ast.expr | None, resolver: Resolver) -> bool:
    """Whether the index map counts elements in every dimension: ``pl.Unblocked()``, until JAX 0.6."""
    if mode is None:
        return False
    value = resolver.value(mode)
    arguments = isinstance(value, ast.Call) and (value.args or value.keywords)
    name = resolver.qualified(value.func if isinstance(value, ast.Call) else value) or ""
    if arguments or name.rpartition(".")[2] not in ("Unblocked", "unblocked", "Blocked", "blocked"):
        raise Unreadable(mode, f"the indexing mode {ast.unparse(mode)}")
    return name.rpartition(".")[2] in ("Unblocked", "unblocked")


def _value(node: ast.expr, resolver: Resolver) -> ast.AST:
    """What a name holds; for one that is set again under a condition, the two as an IfExp."""
    if not isinstance(node, ast.Name) or resolver.binding(node) is not None:
        return resolver.value(node)
    found = resolver.scope_of(node).find(node.id)
    bindings = found[1] if found is not None else []
    if len(bindings) != 2 or any(b.kind != "value" for b in bindings):
        return node
    first, second = (resolver.statement_of(b.place) for b in bindings)  # type: ignore[arg-type]
    parent = resolver.parents[second]
    if isinstance(parent, ast.If) and resolver.parents[parent] is resolver.parents[first]:
        if second in parent.body and first.lineno < parent.lineno:
            return _either(parent.test, bindings[1].node, bindings[0].node)  # type: ignore[arg-type]
    if isinstance(parent, ast.If) and first in parent.body and second in parent.orelse:
        return _either(parent.test, bindings[0].node, bindings[1].node)  # type: ignore[arg-type]
    return node


def _optional_spec(node: ast.expr, value: ast.IfExp, resolver: Resolver) -> Spec:
    """A spec in one branch, None in the other."""
    body, orelse = _read_spec(value.body, resolver), _read_spec(value.orelse, resolver)
    if body.block_shape is None and orelse.block_shape is None:
        return Spec(node)
    if body.block_shape is None and orelse.unless is None:
        return dataclasses.replace(orelse, node=node, unless=value.test)
    if orelse.block_shape is None and body.unless is None:
        return dataclasses.replace(body, node=node, unless=negated(value.test))
    raise Unreadable(node, "either of two block specs")


def negated(test: ast.expr) -> ast.expr:
    """``not test``, with ``is`` and ``is not`` exchanged."""
    if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], (ast.Is, ast.IsNot)):
        op = ast.IsNot() if isinstance(test.ops[0], ast.Is) else ast.Is()
        return ast.copy_location(ast.Compare(test.left, [op], test.comparators), test)
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return test.operand
    return ast.copy_location(ast.UnaryOp(ast.Not(), test), test)


def _dimension(node: ast.expr, resolver: Resolver) -> tuple[ast.expr | None, bool]:
    """(extent, None if squeezed; whether its index counts elements)."""
    value = resolver.value(node)
    if _is_none(value) or resolver.qualified(node) == f"{PALLAS}.squeezed":
        return None, False
    if isinstance(value, ast.Call):
        name = resolver.qualified(value.func) or ""
        extent = value.args[0] if value.args else next((k.value for k in value.keywords), None)
        if name == f"{PALLAS}.Squeezed":
            return None, False
        if name == f"{PALLAS}.Blocked" and extent is not None:
            return extent, False
        if name == _ELEMENTS and extent is not None:
            if len(value.args) + len(value.keywords) > 1:
                raise Unreadable(node, "a pl.Element dimension with padding")
            return extent, True
        if name == f"{PALLAS}.BoundedSlice":
            raise Unreadable(node, "a pl.BoundedSlice dimension")
    return node, False


def _is_none(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _whole_operand(node: ast.expr, shape: ast.AST, index_map: ast.expr | None, resolver: Resolver) -> Spec:
    """``BlockSpec(x.shape, lambda i: (0, 0))``: the whole array, if every index is 0."""
    if isinstance(shape, ast.Attribute) and shape.attr == "shape":
        if index_map is None:
            return Spec(node)
        target = resolver.value(index_map)
        body = target.body if isinstance(target, ast.Lambda) else None
        if body is not None and zeros(body):
            return Spec(node, rank=len(body.elts) if isinstance(body, ast.Tuple) else None)
    raise Unreadable(node, "a block shape that is not written as a tuple")


def zeros(index: ast.expr) -> bool:
    """Whether an index map returns zeros only: ``(0, 0)``, ``(0,) * n``."""
    if isinstance(index, ast.BinOp) and isinstance(index.op, ast.Mult):
        return zeros(index.left) if isinstance(index.left, ast.Tuple) else isinstance(index.right, ast.Tuple) and zeros(index.right)
    parts = index.elts if isinstance(index, ast.Tuple) else [index]
    return all(isinstance(p, ast.Constant) and p.value == 0 for p in parts)
