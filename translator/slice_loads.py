"""The slice of a kernel that the memory warpgroup runs: bounds, addresses, copies.

Walks the kernel's statements backwards and keeps those that define what a kept one reads.  A loop
with staged loads is kept with the slice of its body and without its carry; a staged load becomes a
copy into its ring.  What works on tiles never gets into the slice: an address or a bound that
depends on a tile, or on what a loop carries, is not covered.
"""

from __future__ import annotations

import ast

from .dot_plan import Unplanned
from .model.text import call_lines
from .names import walk
from .staged_plan import Ring


def loads_lines(planner, name: str, parameters: list[str]) -> tuple[str, ...]:
    """The function of the memory warpgroup, as source lines."""
    kernel: ast.FunctionDef = planner.kernel
    body, _ = _Slice(planner).block(kernel.body, set())
    signature = ast.parse(f"def f({ast.unparse(kernel.args)}): pass").body[0].args  # type: ignore[attr-defined]
    signature.kwonlyargs[:0] = [ast.arg(p) for p in parameters]
    signature.kw_defaults[:0] = [None] * len(parameters)
    for arg in walk(signature):
        if isinstance(arg, ast.arg):
            arg.annotation = None
    doc = ast.Expr(ast.Constant(f"Memory warpgroup: copies the operand tiles of {kernel.name} ahead of the products."))
    function = ast.FunctionDef(name, signature, [doc, *body], [], type_params=[])
    lines = _spaced(ast.unparse(ast.fix_missing_locations(function)).split("\n"))
    return (*call_lines(f"def {name}", ast.unparse(signature).split(", "), ":"), *lines[1:])


def _spaced(lines: list[str]) -> list[str]:
    """The lines in units of two blanks, with an empty one after each inner function."""
    result: list[str] = []
    inner = False
    for line in lines:
        indent = len(line) - len(line.lstrip())
        if inner and indent <= 4:
            result.append("")
        inner = line.startswith("    def ") or inner and indent > 4
        result.append(" " * (indent // 2) + line.lstrip())
    return result


class _Slice:
    def __init__(self, planner) -> None:
        self.planner = planner
        self.tile_work = {a.node for a in planner.model.accesses if a.tile is not None}
        self.tile_work |= {d.node for d in planner.model.dots}
        self.tile_work |= {r.node for r in planner.model.reductions}

    def block(self, statements: list[ast.stmt], needed: set[str]) -> tuple[list[ast.stmt], set[str]]:
        """(the kept statements, the names that they need from outside and before)."""
        kept: list[ast.stmt] = []
        for s in reversed(statements):
            loop = next((r for r in self.planner.rings if r.loop is not None and self._holds(s, r.loop.node)), None)
            if loop is not None:
                kept[:0] = self._loop(loop, needed)
                continue
            here = [r for r in self.planner.rings if any(load.place is s for load in r.loads)]
            for r in here:
                if s is r.loads[-1].place:
                    self._check_order(r, statements)
                    kept.insert(0, self._copies(r, needed))
            if any(load.statement is s for r in here for load in r.loads):
                if {n for n in names_stored(s) if n in needed} - {load.name for load in here[0].loads}:
                    raise Unplanned(s, "an address that depends on a tile")
                continue
            if isinstance(s, ast.FunctionDef) and (owner := next((r for r in self.planner.rings if r.loop and r.loop.body is s), None)):
                kept.insert(0, self._body(s, owner, needed))
            elif isinstance(s, ast.If) and names_stored(s) & needed:
                kept.insert(0, self._branch(s, needed))
            elif names_stored(s) & needed:
                self._check(s)
                needed |= names_loaded(s)
                kept.insert(0, self.planner.rebuilt(s))  # type: ignore[arg-type]
        return kept, needed

    def _holds(self, statement: ast.stmt, node: ast.AST) -> bool:
        return not isinstance(statement, ast.FunctionDef) and any(n is node for n in walk(statement))

    def _loop(self, ring: Ring, needed: set[str]) -> list[ast.stmt]:
        assert ring.loop is not None
        loop = ring.loop
        for bound in (loop.lower, loop.upper):
            needed |= names_loaded(bound)
        body = loop.body.name  # type: ignore[union-attr]
        self._body(loop.body, ring, needed)  # type: ignore[arg-type]  # its closure is read here, where it runs
        lower, upper = self.planner.text(loop.lower), self.planner.text(loop.upper)
        function = ast.unparse(loop.node.func)
        text = f"{function}({lower}, {upper}, {body}, None)\n{ring.name}.drain({ring.steps})"
        return ast.parse(text).body

    def _check_order(self, ring: Ring, statements: list[ast.stmt]) -> None:
        """The copies are issued together, at the last load: what the earlier ones read must not change until there."""
        last = statements.index(ring.loads[-1].place)
        for load in ring.loads:
            between = statements[statements.index(load.place) : last]
            changed = {n for s in between for n in names_stored(s)} & names_loaded(ast.parse(load.window, mode="eval"))
            if changed:
                raise Unplanned(load.access.node, f"{min(changed)} is assigned again before the last load of this step", "use two names")

    def _copies(self, ring: Ring, needed: set[str]) -> ast.stmt:
        windows = [load.window for load in (*ring.operands, *ring.reads)]
        for text in windows:
            needed |= names_loaded(ast.parse(text, mode="eval"))
        return ast.parse(f"{ring.name}.load({ring.step}, {', '.join(windows)})").body[0]

    def _body(self, function: ast.FunctionDef, ring: Ring, needed: set[str]) -> ast.stmt:
        variable, carry = function.args.args[0].arg, function.args.args[1].arg
        body, inner = self.block(function.body, set())
        if carry in inner:
            raise Unplanned(function, "addresses that depend on what the loop carries", "compute them from the loop's index")
        needed |= inner - {variable} - {n for s in body for n in names_stored(s)}
        args = ast.arguments([], [ast.arg(variable), ast.arg("_")], None, [], [], None, [])
        return ast.FunctionDef(function.name, args, body, [], type_params=[])

    def _branch(self, s: ast.If, needed: set[str]) -> ast.stmt:
        body, first = self.block(s.body, set(needed))
        orelse, second = self.block(s.orelse, set(needed))
        needed |= first | second | names_loaded(s.test)
        self._check(s.test)
        return ast.If(self.planner.rebuilt(s.test), body or [ast.Pass()], orelse)  # type: ignore[arg-type]

    def _check(self, node: ast.AST) -> None:
        for n in walk(node):
            if n in self.tile_work:
                raise Unplanned(node, "an address or a loop bound that depends on a tile")


def names_stored(s: ast.stmt) -> set[str]:
    if isinstance(s, ast.FunctionDef):
        return {s.name}
    return {n.id for n in walk(s) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}


def names_loaded(node: ast.AST) -> set[str]:
    return {n.id for n in walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
