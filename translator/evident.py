"""The primitives of a kernel that its source alone shows, by line.

Where no recording exists, ``pallas-port check`` falls back on this: calls and methods are looked up
in the measured table of ``primitives.py`` by the object that they resolve to, and operators count
where an operand is traced. What is traced spreads from its sources (reads of refs, calls that
produce primitives, parameters of nested functions such as loop bodies) through assignments.

Not seen, and left out rather than guessed: helpers of other modules, operators whose operands come
only from such helpers, indexing of arrays other than with None. Integers and floats differ in few
primitives; ``//`` and ``%`` are taken as integer arithmetic, everything else as float.
"""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterator

from .names import PALLAS, TRITON, FunctionNode, Resolver, walk
from .primitives import Kind, primitives_of, wrappers_of

_OPERATORS: dict[type[ast.AST], str] = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "truediv", ast.FloorDiv: "floordiv",
    ast.Mod: "mod", ast.Pow: "pow", ast.MatMult: "matmul", ast.BitAnd: "and_", ast.BitOr: "or_",
    ast.BitXor: "xor", ast.LShift: "lshift", ast.RShift: "rshift", ast.USub: "neg",
    ast.Invert: "invert", ast.Eq: "eq", ast.NotEq: "ne", ast.Lt: "lt", ast.LtE: "le",
    ast.Gt: "gt", ast.GtE: "ge",
}
# Properties that are known while tracing: what is computed from them is not traced.
_STATIC_ATTRIBUTES = {"shape", "dtype", "ndim", "size", "at"}


@dataclasses.dataclass(frozen=True, order=True)
class Evident:
    """A primitive at the place of the expression that produces it (``ast`` counting)."""

    line: int
    column: int
    primitive: str


def evident_primitives(kernel: FunctionNode, resolver: Resolver,
                       static_names: frozenset[str] = frozenset()) -> tuple[Evident, ...]:
    """The primitives that the source of ``kernel`` shows, in source order.

    static_names: parameters that are not refs, because a ``functools.partial`` binds them;
    keyword-only parameters are taken as static anyway.
    """
    return tuple(sorted(set(_Reader(kernel, resolver, static_names).read())))


def helpers_of(kernel: FunctionNode, resolver: Resolver) -> tuple[FunctionNode, ...]:
    """The functions of the same file that a kernel calls or passes on, directly or through others,
    without those that lie inside it, by line."""
    found: list[FunctionNode] = []
    queue: list[ast.AST] = [kernel]
    while queue:
        inside = set(walk(queue.pop()))
        for node in inside:
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                target = resolver.value(node)
                if (isinstance(target, ast.FunctionDef) and target not in inside
                        and target is not kernel and target not in found
                        and target not in set(walk(kernel))):
                    found.append(target)
                    queue.append(target)
    return tuple(sorted(found, key=lambda f: f.lineno))


class _Reader:
    def __init__(self, kernel: FunctionNode, resolver: Resolver, static: frozenset[str]) -> None:
        self._kernel = kernel
        self._resolver = resolver
        args = kernel.args
        self._refs = {a.arg for a in (*args.posonlyargs, *args.args)} - static
        if args.vararg:
            self._refs.add(args.vararg.arg)
        self._traced: set[str] = set()
        self._spread()

    def read(self) -> Iterator[Evident]:
        for node in self._body():
            for primitive in self._of(node):
                yield Evident(*_place(node), primitive)

    def _body(self) -> Iterator[ast.AST]:
        body = self._kernel.body if isinstance(self._kernel.body, list) else [self._kernel.body]
        for statement in body:
            yield from walk(statement)

    # -- what a node produces

    def _of(self, node: ast.AST) -> frozenset[str]:
        match node:
            case ast.Call():
                return self._of_call(node)
            case ast.Attribute(ctx=ast.Load()) if self._is_traced(node.value):
                return frozenset() if self._is_called(node) else self._look_up(f".{node.attr}")
            case ast.BinOp() if self._is_traced(node.left) or self._is_traced(node.right):
                return self._of_operator(node.op, node.right)
            case ast.AugAssign() if self._is_traced(node.target) or self._is_traced(node.value):
                both = {"get", "swap"} if self._is_ref(node.target) else set()
                return self._of_operator(node.op, node.value) | both
            case ast.UnaryOp() if self._is_traced(node.operand):
                return self._of_operator(node.op, None)
            case ast.Compare() if any(map(self._is_traced, (node.left, *node.comparators))):
                return frozenset().union(*(self._of_operator(op, None) for op in node.ops))
            case ast.Subscript() if self._is_ref(node):
                if isinstance(self._resolver.parents.get(node), ast.AugAssign):
                    return frozenset()
                return frozenset({"swap" if isinstance(node.ctx, ast.Store) else "get"})
            case ast.Subscript(ctx=ast.Load()) if self._is_traced(node.value) and _adds_axis(node):
                return self._look_up("operator.getitem")
        return frozenset()

    def _of_call(self, node: ast.Call) -> frozenset[str]:
        name = self._resolver.qualified(node.func)
        if name == "jax.lax.fori_loop" and any(map(self._is_traced, node.args[:2])):
            return frozenset({"while", "lt", "add"})  # a bound that only the kernel knows
        if name is not None:
            return self._look_up(name)
        if isinstance(node.func, ast.Attribute) and self._is_traced(node.func.value):
            return self._look_up(f".{node.func.attr}")
        return frozenset()

    def _of_operator(self, op: ast.AST, right: ast.expr | None) -> frozenset[str]:
        if isinstance(op, ast.Pow) and isinstance(right, ast.Constant):
            if right.value == 2:
                return frozenset({"square"})
            if isinstance(right.value, int):
                return frozenset({"integer_pow"})
        name = _OPERATORS.get(type(op))
        kind: Kind = "int" if isinstance(op, (ast.FloorDiv, ast.Mod)) else "float"
        return self._look_up(f"operator.{name}", kind) if name else frozenset()

    def _look_up(self, name: str, kind: Kind = "float") -> frozenset[str]:
        found = primitives_of(name, kind)
        if found is None and name.startswith(f"{PALLAS}."):
            # Before JAX 0.9 what now belongs to the Triton module lived in pallas itself.
            name = f"{TRITON}.{name.rpartition('.')[2]}"
            found = primitives_of(name, kind)
        return (found or frozenset()) | wrappers_of(name)

    # -- what is traced

    def _is_called(self, node: ast.AST) -> bool:
        parent = self._resolver.parents.get(node)
        return isinstance(parent, ast.Call) and parent.func is node

    def _is_ref(self, node: ast.AST) -> bool:
        return (isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name)
                and node.value.id in self._refs)

    def _is_traced(self, node: ast.AST) -> bool:
        match node:
            case ast.Name():
                return node.id in self._traced
            case ast.Attribute():
                return node.attr not in _STATIC_ATTRIBUTES and self._is_traced(node.value)
            case ast.Subscript():
                return self._is_ref(node) or self._is_traced(node.value)
            case ast.Call():
                return bool(self._of_call(node)) or any(
                    self._is_traced(a) for a in (*node.args, *(k.value for k in node.keywords)))
            case ast.Lambda() | ast.FunctionDef():
                return False
        return any(self._is_traced(child) for child in ast.iter_child_nodes(node)
                   if isinstance(child, ast.expr))

    def _spread(self) -> None:
        """Names that hold traced values, until nothing is added."""
        for node in self._body():
            if isinstance(node, (ast.FunctionDef, ast.Lambda)):
                self._traced |= {a.arg for a in (*node.args.posonlyargs, *node.args.args)}
        before = -1
        while before != len(self._traced):
            before = len(self._traced)
            for node in self._body():
                if isinstance(node, ast.Assign):
                    for target in node.targets:
                        self._assign(target, node.value)
                elif isinstance(node, (ast.AugAssign, ast.AnnAssign, ast.NamedExpr)):
                    if node.value is not None and self._is_traced(node.value):
                        self._mark(node.target)

    def _assign(self, target: ast.expr, value: ast.expr) -> None:
        """Element by element where both sides are displays of one length."""
        if (isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple)
                and len(target.elts) == len(value.elts)):
            for one, its_value in zip(target.elts, value.elts):
                self._assign(one, its_value)
        elif self._is_traced(value):
            self._mark(target)

    def _mark(self, target: ast.AST) -> None:
        if isinstance(target, ast.Name):
            self._traced.add(target.id)
        elif isinstance(target, (ast.Tuple, ast.List, ast.Starred)):
            for child in ast.iter_child_nodes(target):
                self._mark(child)


def _place(node: ast.AST) -> tuple[int, int]:
    """Where Python, and so a recording, sees a call: a method call that is spread over lines is
    at the method's name."""
    function = node.func if isinstance(node, ast.Call) else None
    if isinstance(function, ast.Attribute) and function.end_lineno != function.value.lineno:
        return function.end_lineno, function.end_col_offset - len(function.attr)
    return node.lineno, node.col_offset


def _adds_axis(node: ast.Subscript) -> bool:
    index = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    return any(isinstance(e, ast.Constant) and e.value is None for e in index)
