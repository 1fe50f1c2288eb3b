"""Resolves names to what they are bound to; the text of a name never decides anything.

A ``Resolver`` walks the syntax tree once and records, for each scope, what binds each name: an
import, a function, an assignment, a parameter.  ``qualified`` then turns ``plgpu.load`` into
``jax.experimental.pallas.triton.load`` whatever the module was imported as, follows aliases made
by plain assignment (``load = plgpu.load``), and answers None for names bound to anything else.

``canonical`` folds the many public homes of one object (``jax.experimental.pallas.gpu.load``,
``jax._src...``) into one, so that the rest of the tool knows each operation by a single name.
Only ``ast`` is used here: a static port must start fast, and the positions are exact.
"""

from __future__ import annotations

import ast
import dataclasses
from typing import TYPE_CHECKING, Iterator

if TYPE_CHECKING:
    from .eras import MutableLoop

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda

PALLAS = "jax.experimental.pallas"
TRITON = f"{PALLAS}.triton"
MOSAIC = f"{PALLAS}.mosaic_gpu"
FOR_LOOP = "jax.lax.for_loop"  # the loop over mutable state, gone in JAX 0.7
# Modules that are gone, by what took their place under every name that is left.
GONE_MODULES = {"jax_triton.pallas": PALLAS}

# Where the same object has lived, by prefix; the first match wins.
_HOMES: tuple[tuple[str, str], ...] = (
    ("jax._src.pallas.triton.primitives.", f"{TRITON}."),
    ("jax._src.pallas.triton.core.", f"{TRITON}."),
    ("jax._src.pallas.triton.", f"{TRITON}."),
    ("jax._src.pallas.mosaic_gpu.core.", f"{MOSAIC}."),
    ("jax._src.pallas.mosaic_gpu.", f"{MOSAIC}."),
    ("jax._src.pallas.primitives.", f"{PALLAS}."),
    ("jax._src.pallas.pallas_call.", f"{PALLAS}."),
    ("jax._src.pallas.core.", f"{PALLAS}."),
    ("jax._src.pallas.utils.", f"{PALLAS}."),
    (f"{PALLAS}.gpu.", f"{TRITON}."),  # the Triton module's name until JAX 0.6.1
    ("jax_triton.pallas.", f"{PALLAS}."),  # before Pallas was part of JAX
    ("jax._src.lax.control_flow.for_loop.", "jax.lax."),
    ("jax._src.lax.lax.", "jax.lax."),
    ("jax._src.lax.control_flow.", "jax.lax."),
    ("jax._src.nn.functions.", "jax.nn."),
)
# Operations that moved from one Pallas module to another between releases.
_MOVED = {
    f"{PALLAS}.{name}": f"{TRITON}.{name}"
    for name in (
        "load", "store", "dot", "max_contiguous", "atomic_add", "atomic_and", "atomic_cas", "atomic_max",
        "atomic_min", "atomic_or", "atomic_xchg", "atomic_xor",
    )
} | {
    f"{TRITON}.TritonCompilerParams": f"{TRITON}.CompilerParams",
    "jax_triton.cdiv": f"{PALLAS}.cdiv",
    "jax_triton.next_power_of_2": f"{PALLAS}.next_power_of_2",
    f"{PALLAS}.dslice": f"{PALLAS}.ds",
    f"{PALLAS}.dynamic_slice": f"{PALLAS}.ds",
}


def children(node: ast.AST) -> list[ast.AST]:
    """The nodes right below a node, in the order of the source, without contexts such as ``ast.Load``.

    Most of a static port's own time goes into walks: this is twice as fast as ``ast.iter_child_nodes``.
    """
    found: list[ast.AST] = []
    for field in node._fields:
        value = getattr(node, field, None)
        if value.__class__ is list:
            found += [item for item in value if isinstance(item, ast.AST)]
        elif field != "ctx" and isinstance(value, ast.AST):
            found.append(value)
    return found


def walk(node: ast.AST) -> list[ast.AST]:
    """A node and all below it, level by level."""
    found = [node]
    for item in found:  # grows
        found += children(item)
    return found


def canonical(qualified_name: str) -> str:
    """The one name under which the tool knows the object."""
    for old, new in _HOMES:
        if qualified_name.startswith(old):
            qualified_name = new + qualified_name[len(old):]
            break
    return _MOVED.get(qualified_name, qualified_name)


@dataclasses.dataclass(eq=False)
class Binding:
    """One binding of a name.

    kind: ``import``, ``function``, ``class``, ``value`` (plain ``name = expr``), ``unpack``
        (element ``index`` of a tuple assignment), ``parameter`` or ``other``.
    target: the imported dotted name, for imports.
    node: the function, the assigned expression or the parameter.
    place: the bound name, where there is no such node (``x += 1``, loop variables).
    """

    kind: str
    node: ast.AST | None = None
    target: str = ""
    index: int = 0
    place: ast.AST | None = None


@dataclasses.dataclass(eq=False)
class Scope:
    """One lexical scope: the module, a class body, a function or a lambda."""

    node: ast.AST
    parent: Scope | None
    bindings: dict[str, list[Binding]] = dataclasses.field(default_factory=dict)

    def bind(self, name: str, binding: Binding) -> None:
        self.bindings.setdefault(name, []).append(binding)

    def find(self, name: str) -> tuple[Scope, list[Binding]] | None:
        """The scope that binds ``name`` seen from here; class bodies are skipped as Python does."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.bindings and (
                scope is self or not isinstance(scope.node, ast.ClassDef)
            ):
                return scope, scope.bindings[name]
            scope = scope.parent
        return None


class Resolver:
    """Scopes and parents of a parsed module."""

    def __init__(self, tree: ast.Module, package: str = "") -> None:
        self.tree = tree
        self.parents: dict[ast.AST, ast.AST] = {}
        self.scopes: dict[ast.AST, Scope] = {}
        self._package = package
        self.loops: list[MutableLoop] = []  # see eras.py
        self.module = Scope(tree, None)
        self.scopes[tree] = self.module
        self.statements: list[ast.stmt] = []
        self._names: dict[str, list[ast.Name]] = {}
        for child in tree.body:
            self._visit(child, tree, self.module)

    # -- building ---------------------------------------------------------------------------

    def _visit(self, node: ast.AST, parent: ast.AST, scope: Scope) -> None:
        self.parents[node] = parent
        if isinstance(node, ast.Name):
            self._names.setdefault(node.id, []).append(node)
            return
        if isinstance(node, ast.stmt):
            self.statements.append(node)
        match node:
            case ast.Import():
                for alias in node.names:
                    top = alias.name.partition(".")[0]
                    scope.bind(
                        alias.asname or top,
                        Binding("import", node, alias.name if alias.asname else top),
                    )
            case ast.ImportFrom():
                base = "." * node.level + (node.module or "")
                for alias in node.names:
                    scope.bind(
                        alias.asname or alias.name,
                        Binding("import", node, f"{base}.{alias.name}"),
                    )
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                scope.bind(node.name, Binding("function", node))
                self._visit_function(node, scope)
                return
            case ast.Lambda():
                self._visit_function(node, scope)
                return
            case ast.ClassDef():
                scope.bind(node.name, Binding("class", node))
                inner = self.scopes[node] = Scope(node, scope)
                for child in children(node):
                    in_body = isinstance(child, ast.stmt)
                    self._visit(child, node, inner if in_body else scope)
                return
            case ast.Assign():
                for target in node.targets:
                    self._bind_target(target, node.value, scope)
            case ast.AnnAssign() | ast.NamedExpr() if node.value is not None:
                self._bind_target(node.target, node.value, scope)
            case ast.AugAssign() | ast.For() | ast.AsyncFor() | ast.comprehension():
                self._bind_target(node.target, None, scope)
            case ast.withitem() if node.optional_vars is not None:
                self._bind_target(node.optional_vars, None, scope)
            case ast.ExceptHandler() if node.name:
                scope.bind(node.name, Binding("other", node))
        for child in children(node):
            self._visit(child, node, scope)

    def _visit_function(self, node: FunctionNode, scope: Scope) -> None:
        inner = self.scopes[node] = Scope(node, scope)
        args = node.args
        for arg in (*args.posonlyargs, *args.args, *args.kwonlyargs, args.vararg, args.kwarg):
            if arg is not None:
                inner.bind(arg.arg, Binding("parameter", arg))
        body = node.body if isinstance(node.body, list) else [node.body]
        outside: list[ast.AST] = [*args.defaults, *(d for d in args.kw_defaults if d)]
        if not isinstance(node, ast.Lambda):
            outside += node.decorator_list
            outside += [node.returns] if node.returns else []
        self.parents[args] = node
        for child in outside:
            self._visit(child, node, scope)
        for child in body:
            self._visit(child, node, inner)

    def _bind_target(self, target: ast.AST, value: ast.expr | None, scope: Scope) -> None:
        if isinstance(target, ast.Name):
            kind = "value" if value is not None else "other"
            scope.bind(target.id, Binding(kind, value, place=target))
        elif isinstance(target, (ast.Tuple, ast.List)):
            for index, element in enumerate(target.elts):
                name = element.value if isinstance(element, ast.Starred) else element
                if isinstance(name, ast.Name):
                    starred = isinstance(element, ast.Starred)
                    kind = "unpack" if value is not None and not starred else "other"
                    scope.bind(name.id, Binding(kind, value, index=index, place=name))
                else:
                    self._bind_target(element, None, scope)

    # -- asking -----------------------------------------------------------------------------

    def scope_of(self, node: ast.AST) -> Scope:
        """The scope in which ``node`` is evaluated."""
        child, current = node, self.parents.get(node)
        while current is not None:
            if current in self.scopes:
                inside = True
                if isinstance(current, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
                    body = current.body if isinstance(current.body, list) else [current.body]
                    inside = child in body
                if inside:
                    return self.scopes[current]
            child, current = current, self.parents.get(current)
        return self.module

    def named(self, name: str) -> list[ast.Name]:
        """The places where a name stands, in whatever scope."""
        return self._names.get(name, [])

    def names_used(self) -> set[str]:
        """Every name that stands somewhere."""
        return set(self._names)

    def binding(self, name: ast.Name) -> Binding | None:
        """The binding that a use of a name sees, or None if it has none or may see several."""
        scope = self.scope_of(name)
        found = scope.find(name.id)
        if found is None:
            return None
        if len(found[1]) == 1:
            return found[1][0]
        if found[0] is scope:
            return self._reaching(name, found[1])
        seen = self.visible(name)
        return seen[0] if len(seen) == 1 else None

    def visible(self, name: ast.Name) -> list[Binding]:
        """The bindings of a name that the run of its scope which comes to ``name`` can make.

        What stands in one branch of an ``if``, functions that are defined there too, sees nothing that
        the other branch binds, whenever it is called, unless a loop runs through both.
        """
        found = self.scope_of(name).find(name.id)
        if found is None or len(found[1]) == 1:
            return found[1] if found else []
        scope, bindings = found
        taken: dict[ast.AST, str] = {}
        child, parent = name, self.parents.get(name)
        while parent is not None and child is not scope.node:
            if isinstance(parent, ast.If) and child is not parent.test:
                taken[parent] = "body" if child in parent.body else "orelse"
            elif isinstance(parent, (ast.For, ast.AsyncFor, ast.While)) and self.scope_of(parent) is scope:
                taken = {}
            child, parent = parent, self.parents.get(parent)
        return [b for b in bindings if not self._in_other_branch(b.place or b.node, taken)]

    def _in_other_branch(self, node: ast.AST | None, taken: dict[ast.AST, str]) -> bool:
        child = node
        while child is not None:
            parent = self.parents.get(child)
            if parent in taken and child in getattr(parent, "orelse" if taken[parent] == "body" else "body"):
                return True
            child = parent
        return False

    def _reaching(self, use: ast.AST, bindings: list[Binding]) -> Binding | None:
        """The last binding before ``use``, if it is made on every path to it."""
        blocks = self._enclosing(use)
        placed = []
        for b in bindings:
            if b.kind == "parameter":
                placed.append((0, 0, b))
                continue
            statement = self.statement_of(b.place or b.node)  # type: ignore[arg-type]
            place = (statement.lineno, statement.col_offset)
            placed.append((*place, b if self._block_of(statement) in blocks else None))
        here = self.statement_of(use)
        before = [p for p in placed if p[:2] < (here.lineno, here.col_offset)]
        after_in_loop = any(
            isinstance(loop, (ast.For, ast.While)) and loop.lineno <= line <= (loop.end_lineno or 0)
            for loop, _ in blocks
            for line, _, _ in placed
        )
        return max(before, key=lambda p: p[:2])[2] if before and not after_in_loop else None

    def _enclosing(self, node: ast.AST) -> set[tuple[ast.AST, str]]:
        """The blocks that hold ``node``: (statement, field), so that if and else differ."""
        found = set()
        current: ast.AST = self.statement_of(node)
        while current in self.parents:
            found.add(self._block_of(current))
            current = self.parents[current]
        return found

    def _block_of(self, statement: ast.AST) -> tuple[ast.AST, str]:
        parent = self.parents[statement]
        for field, value in ast.iter_fields(parent):
            if isinstance(value, list) and statement in value:
                return parent, field
        return parent, ""

    def is_inside(self, node: ast.AST | None, ancestor: ast.AST) -> bool:
        """Whether ``node`` is ``ancestor`` or stands in it."""
        while node is not None and node is not ancestor:
            node = self.parents.get(node)
        return node is ancestor

    def statement_of(self, node: ast.AST) -> ast.stmt:
        """The innermost statement that holds ``node`` (``node`` itself for a statement)."""
        current = node
        while not isinstance(current, ast.stmt):
            current = self.parents[current]
        return current

    def qualified(self, node: ast.AST) -> str | None:
        """The canonical dotted name of an expression that ends at an import, else None."""
        dotted = self._dotted(node, 0)
        return canonical(dotted) if dotted else None

    def _dotted(self, node: ast.AST | None, depth: int) -> str | None:
        if depth > 8:  # an alias cycle such as ``a = b; b = a``
            return None
        if isinstance(node, ast.Attribute):
            base = self._dotted(node.value, depth)
            return f"{base}.{node.attr}" if base else None
        if not isinstance(node, ast.Name):
            return None
        bindings = self.visible(node)
        if any(b.kind == "import" for b in bindings):  # None in place of a module that is not there has no use
            bindings = [b for b in bindings if not (isinstance(b.node, ast.Constant) and b.node.value is None)]
        targets = {b.target for b in bindings if b.kind == "import"}
        if len(targets) == 1 and all(b.kind == "import" for b in bindings):
            return targets.pop()
        if len(bindings) == 1 and bindings[0].kind == "value":
            return self._dotted(bindings[0].node, depth + 1)
        return None

    def value(self, node: ast.expr, depth: int = 0) -> ast.expr | FunctionNode:
        """Follows names to the expression or function that they are bound to, as far as known."""
        if isinstance(node, ast.Name) and depth < 8:
            binding = self.binding(node)
            if binding is None:
                return node
            if binding.kind == "function":
                return binding.node  # type: ignore[return-value]
            if binding.kind == "value":
                return self.value(binding.node, depth + 1)  # type: ignore[arg-type]
            if binding.kind == "unpack" and isinstance(binding.node, (ast.Tuple, ast.List)):
                elements = binding.node.elts
                if not any(isinstance(e, ast.Starred) for e in elements):
                    return self.value(elements[binding.index], depth + 1)
        return node

    def imports(self) -> Iterator[tuple[ast.Import | ast.ImportFrom, str, str]]:
        """(statement, local name, imported dotted name) for each import of the module scope."""
        for name, bindings in self.module.bindings.items():
            for b in bindings:
                if b.kind == "import":
                    yield b.node, name, b.target  # type: ignore[misc]

    def names_bound_anywhere(self) -> set[str]:
        """Every name that some scope binds: what new names must not collide with."""
        return {name for scope in self.scopes.values() for name in scope.bindings}
