"""The slice of a kernel that the memory warpgroup runs: bounds, addresses, copies.

Walks the kernel's statements backwards and keeps those that define what a kept one reads.  A loop
with staged loads is kept with the slice of its body and without its carry; a staged load becomes a
copy into its ring.  A function that runs once (``once_functions.py``) and holds such a loop is kept
with the slice of its body and the parameters that this reads, and so are the branches that call it.  What works on tiles never gets into the slice: an address or a bound that
depends on a tile, or on what a loop carries, is not covered.
"""

from __future__ import annotations

import ast

from .dot_plan import Unplanned
from .model.text import call_lines
from .names import walk
from .once_functions import COND
from .staged_plan import Ring, handed_over


def loads_lines(planner, name: str, parameters: list[str]) -> tuple[str, ...]:
    """The function of the memory warpgroup, as source lines."""
    kernel: ast.FunctionDef = planner.kernel
    refuse_early_returns(kernel, planner.resolver)
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
    wrapped = (w for line in lines[1:] for w in _wrapped(line))
    return (*call_lines(f"def {name}", ast.unparse(signature).split(", "), ":"), *wrapped)


def _wrapped(line: str) -> list[str]:
    """A line, or the lines of a call that is too long for one."""
    if len(line) <= 100:
        return [line]
    call = ast.parse(line.strip()).body[0] if line.endswith(")") else None
    if not isinstance(call, ast.Expr) or not isinstance(call.value, ast.Call):
        return [line]
    indent = line[: len(line) - len(line.lstrip())]
    return list(call_lines(f"{indent}{ast.unparse(call.value.func)}", [ast.unparse(a) for a in (*call.value.args, *call.value.keywords)]))


def _spaced(lines: list[str]) -> list[str]:
    """The lines in units of two blanks, with an empty one before and after each inner function."""
    result: list[str] = []
    open_at: list[int] = []  # indents of the inner functions that a line stands in
    for line in filter(str.strip, lines):
        text = line.lstrip()
        indent = len(line) - len(text)
        ended = [i for i in open_at if indent <= i]
        open_at = [i for i in open_at if indent > i]
        decorated = bool(result) and result[-1].lstrip().startswith("@")
        starts = indent and text.startswith(("def ", "@"))
        if not decorated and (ended or starts) and result and not result[-1].endswith(":"):
            result.append("")
        if indent and text.startswith("def "):
            open_at.append(indent)
        result.append(" " * (indent // 2) + text)
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
            if self._calls_kept(s):
                self._refuse_results(s, needed)
                kept.insert(0, self._branching(s, needed))
                continue
            if isinstance(s, ast.FunctionDef) and self._is_kept(s):
                kept.insert(0, self._once_function(s, needed))
                continue
            loop = next((r for r in self.planner.rings if r.loop is not None and self._holds(s, r.loop.node)), None)
            if loop is not None:
                self._refuse_results(s, needed)
                kept[:0] = self._loop(loop, needed)
                continue
            here = [r for r in self.planner.rings if any(load.place is s for load in r.loads)]
            for r in here:
                if s is r.loads[-1].place:
                    self._check_order(r, statements)
                    kept.insert(0, self._copies(r, needed))
            if loads := [load for r in here for load in r.loads if load.statement is s]:
                beside, views = self._beside(s, loads, needed), self._views(s, loads, needed)
                made = {n for part in (*views, *([beside] if beside else [])) for n in names_stored(part)}
                if names_stored(s) & needed - made:
                    raise Unplanned(s, "an address that depends on a tile")
                if beside is not None:
                    self._check(beside)
                    needed |= names_loaded(beside)
                    kept.insert(0, self.planner.rebuilt(beside))
                for view in views:
                    needed |= names_loaded(view)
                    kept.insert(0, view)
                continue
            if isinstance(s, ast.FunctionDef) and (owner := next((r for r in self.planner.rings if r.loop and r.loop.body is s), None)):
                kept.insert(0, self._body(s, owner, needed))
            elif isinstance(s, ast.If) and names_stored(s) & needed:
                kept.insert(0, self._branch(s, needed))
            elif names_stored(s) & needed and (table := self._table(s)) is not None:
                needed |= names_loaded(table)
                kept.insert(0, table)
            elif names_stored(s) & needed:
                s = self._beside(s, [], needed) or s
                self._check(s)
                needed |= names_loaded(s)
                kept.insert(0, self.planner.rebuilt(s))  # type: ignore[arg-type]
        return kept, needed

    def _beside(self, s: ast.stmt, loads, needed: set[str]) -> ast.Assign | None:
        """The needed part of ``a, b = load, other``, None if there is none or it is no assignment."""
        loaded = {load.access.node for load in loads}
        pairs = [
            (t, v) for t, v in _pairs(s)
            if names_stored(t) & needed and not any(n in loaded for n in walk(v))
        ]
        if not pairs:
            return None
        targets, values = ([p[i] for p in pairs] for i in (0, 1))
        if len(pairs) == 1:
            return ast.Assign(targets, values[0])
        return ast.Assign([ast.Tuple(targets, ast.Store())], ast.Tuple(values, ast.Load()))

    def _views(self, s: ast.stmt, loads, needed: set[str]) -> list[ast.stmt]:
        """``q = q_ref.at[...]`` for tiles whose shape or dtype the slice reads: of operands it can read nothing else."""
        found = []
        for load in loads:
            target = target_of(load.access.node, s)
            if isinstance(target, ast.Name) and target.id in needed and not load.read and not load.test:
                found += ast.parse(f"{target.id} = {load.window}").body
        return found

    def _holds(self, statement: ast.stmt, node: ast.AST) -> bool:
        return not isinstance(statement, ast.FunctionDef) and any(n is node for n in walk(statement))

    def _table(self, s: ast.stmt) -> ast.stmt | None:
        """The numbers of pages, one by one; None if the statement loads no table."""
        for access, statement in self.planner.tables.items():
            if statement is s:
                place = self.planner.rebuilt(access.node)
                view = place.value if not access.view else ast.Subscript(ast.Attribute(place.value, "at", ast.Load()), place.slice, ast.Load())
                count = access.dims[0] if access.dims else ""
                if not count:
                    raise Unplanned(s, "a table of pages of unknown length")
                return ast.parse(f"{s.targets[0].id} = [{ast.unparse(view)}[i] for i in range({count})]").body[0]
        return None

    def _refuse_results(self, statement: ast.stmt, needed: set[str]) -> None:
        """What loops of products carry exists only where they are computed."""
        if not isinstance(statement, ast.If) and (read := names_stored(statement) & needed):
            raise Unplanned(statement, f"an address or a loop bound that depends on {min(read)}, which a loop of products computes")

    # -- functions that run once ----------------------------------------------------------------

    def _is_kept(self, function: ast.FunctionDef) -> bool:
        """Whether a function that runs once holds copies, or calls one that does."""
        if function not in self.planner.once:
            return False
        inside = self.planner.resolver.is_inside
        places = [r.loop.node if r.loop is not None else r.loads[0].statement for r in self.planner.rings]
        return any(inside(p, function) for p in places) or any(
            inside(call, function) and self._is_kept(callee)
            for callee, calls in self.planner.once.items() if callee is not function for call in calls
        )

    def _calls_kept(self, statement: ast.stmt) -> bool:
        """Whether a statement, which is no function, calls a function that is kept."""
        if isinstance(statement, ast.FunctionDef):
            return False
        return any(
            self.planner.resolver.is_inside(call, statement) and self._is_kept(function)
            for function, calls in self.planner.once.items() for call in calls
        )

    def _branching(self, s: ast.stmt, needed: set[str]) -> ast.stmt:
        """The slice of a statement that calls functions which are kept."""
        if isinstance(s, ast.If):
            return self._branch(s, needed)
        if not isinstance(s, (ast.Assign, ast.Expr, ast.Return)) or s.value is None:
            raise Unplanned(s, "a loop of products in a function that is called in such a statement", "assign its results to names")
        return ast.Expr(self._call(s.value, needed))

    def _call(self, node: ast.expr, needed: set[str]) -> ast.expr:
        """The slice of a call of a function that is kept, or of the ``lax.cond`` around it."""
        callee = next((f for f, calls in self.planner.once.items() if node in calls), None)
        if isinstance(node, ast.Call) and callee is not None and self._is_kept(callee):
            parameters = self._parameters(callee)
            given = dict(zip([a.arg for a in callee.args.args], node.args)) | {k.arg: k.value for k in node.keywords}
            if not set(parameters) <= given.keys() or any(isinstance(a, ast.Starred) for a in node.args):
                raise Unplanned(node, f"a call of {callee.name} that does not pass each argument")
            for name in parameters:
                self._check(given[name])
                needed |= names_loaded(given[name])
            self._once_function(callee, needed)  # its closure is read here, where it runs
            return ast.Call(ast.Name(callee.name, ast.Load()), [self.planner.rebuilt(given[p]) for p in parameters], [])
        is_cond = isinstance(node, ast.Call) and self.planner.resolver.qualified(node.func) == COND and len(node.args) == 3
        inner = [a.body for a in node.args[1:] if isinstance(a, ast.Lambda)] if is_cond else []  # type: ignore[attr-defined]
        if isinstance(node, ast.Call) and len(inner) == 2:
            self._check(node.args[0])
            needed |= names_loaded(node.args[0]) | names_loaded(node.func)
            branches = [_lambda(self._call(body, needed)) for body in inner]
            return ast.Call(node.func, [self.planner.rebuilt(node.args[0]), *branches], [])
        if any(n in calls for n in walk(node) for f, calls in self.planner.once.items() if self._is_kept(f)):
            raise Unplanned(node, "a loop of products in a function that is called within an expression", "assign its results to names")
        return ast.Constant(None)

    def _parameters(self, function: ast.FunctionDef) -> list[str]:
        """The parameters that the slice of a function's body reads, by position."""
        _, inner = self.block(function.body, set())
        return [a.arg for a in function.args.args if a.arg in inner]

    def _once_function(self, function: ast.FunctionDef, needed: set[str]) -> ast.stmt:
        refuse_early_returns(function, self.planner.resolver)
        if function.args.vararg or function.args.kwarg or function.args.kwonlyargs:
            raise Unplanned(function, f"{function.name} takes more than plain parameters")
        body, inner = self.block(function.body, set())
        parameters = self._parameters(function)
        needed |= inner - set(parameters) - {n for s in body for n in names_stored(s)}
        for decorator in function.decorator_list:
            self._check(decorator)
            needed |= names_loaded(decorator)
        decorators = [self.planner.rebuilt(d) for d in function.decorator_list]
        args = ast.arguments([], [ast.arg(p) for p in parameters], None, [], [], None, [])
        return ast.FunctionDef(function.name, args, body, decorators, type_params=[])  # type: ignore[arg-type]

    # -- loops ------------------------------------------------------------------------------------

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
        text += "".join(f"\n{r.name}.drain(1)" for r in handed_over(self.planner.phases, ring))
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


def _lambda(body: ast.expr) -> ast.Lambda:
    return ast.Lambda(ast.arguments([], [], None, [], [], None, []), body)


def refuse_early_returns(function: ast.FunctionDef, resolver) -> None:
    """A slice leaves out returns: only one at the end changes nothing."""
    for n in walk(function):
        if isinstance(n, ast.Return) and resolver.scope_of(n).node is function and n is not function.body[-1]:
            raise Unplanned(n, "a return before the end of a function with loops of products")


def _pairs(s: ast.stmt) -> list[tuple[ast.expr, ast.expr]]:
    """(target, value) of an assignment to one target, or of each part of ``a, b = x, y``."""
    if not isinstance(s, ast.Assign) or len(s.targets) != 1:
        return []
    target, value = s.targets[0], s.value
    if isinstance(target, (ast.Tuple, ast.List)) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        if not any(isinstance(n, ast.Starred) for n in (*target.elts, *value.elts)):
            return list(zip(target.elts, value.elts))
    return [(target, value)]


def target_of(value: ast.AST, s: ast.stmt) -> ast.expr | None:
    """What a statement assigns a value to, ``a, b = x, y`` included."""
    return next((t for t, v in _pairs(s) if v is value), None)


def names_stored(s: ast.AST) -> set[str]:
    if isinstance(s, ast.FunctionDef):
        return {s.name}
    return {n.id for n in walk(s) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}


def names_loaded(node: ast.AST) -> set[str]:
    inner = {n.id for c in walk(node) if isinstance(c, ast.comprehension) for n in walk(c.target) if isinstance(n, ast.Name)}
    return {n.id for n in walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)} - inner
