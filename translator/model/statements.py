"""Statements of a kernel: assignments, branches, Python loops, nested functions."""

from __future__ import annotations

import ast
import dataclasses
import functools
from collections.abc import Sequence

from ..names import PALLAS, FunctionNode
from ..values import (
    UNKNOWN_FACTOR,
    Array,
    FunctionValue,
    RefValue,
    Scalar,
    ShapeOf,
    SliceValue,
    TupleValue,
    Unknown,
    Value,
    ViewValue,
    holds_refs,
)
from .text import tuple_text


class Statements:
    """Statements of a kernel: assignments, branches, Python loops, nested functions. Part of ``Interpreter``."""

    def run_kernel(
        self, kernel: FunctionNode, env: dict[str, Value], ref_dims: dict[int, tuple[str, ...]]
    ) -> None:
        self.ref_dims = ref_dims
        if isinstance(kernel, ast.Lambda):
            self.eval(kernel.body, env)
        else:
            self.block(kernel.body, env, [])
        for node, expand in self.model.expands.items():
            if self.expansions[node] < self.evaluations.get(node, 0):  # a helper called twice
                self.find("B105", node, f"{ast.unparse(node)[:40]} has a dimension of extent 1 in some calls only",
                          "write one helper for each shape")

    def block(self, body: list[ast.stmt], env: dict[str, Value], returns: list[Value]) -> None:
        for statement in body:
            self.statement(statement, env, returns)

    def statement(self, node: ast.stmt, env: dict[str, Value], returns: list[Value]) -> None:
        match node:
            case ast.Expr(value):
                self.eval(value, env)
            case ast.Assign(targets, value):
                if len(targets) > 1 and any(isinstance(t, ast.Subscript) for t in targets):
                    self.find("B101", node, "a store in a chained assignment", "store in a statement of its own")
                result = self.eval(value, env)
                for target in targets:
                    self.assign(target, result, node, value, env)
            case ast.AnnAssign(target, _, value) if value is not None:
                self.assign(target, self.eval(value, env), node, value, env)
            case ast.AugAssign():
                self.aug_assign(node, env)
            case ast.Return(value):
                returns.append(self.eval(value, env) if value is not None else TupleValue(()))
            case ast.FunctionDef():
                self.function_def(node, env)
            case ast.If(test, body, orelse):
                known = self.truth(self.eval(test, env))
                if known is not None:
                    self.block(body if known else orelse, env, returns)
                    return
                other = dict(env)
                self.block(body, env, returns)
                self.block(orelse, other, returns)
                self.merge(env, other)
            case ast.For():
                self.for_loop(node, env, returns)
            case ast.With(_, body):
                self.block(body, env, returns)
            case ast.Assert() | ast.Raise() | ast.Pass() | ast.Import() | ast.ImportFrom():
                pass
            case ast.Delete() | ast.Global() | ast.Nonlocal():
                pass
            case _:
                self.find("B101", node, f"a {type(node).__name__.lower()} statement in a kernel")

    def truth(self, value: Value) -> bool | None:
        """What a condition is, where that follows from the ranks of arrays; else None."""
        return value.text == "True" if isinstance(value, Scalar) and value.text in ("True", "False") else None

    def merge(self, env: dict[str, Value], other: dict[str, Value]) -> None:
        for name, value in other.items():
            mine = env.get(name)
            if mine is None:
                env[name] = value
            elif mine is not value:
                env[name] = self.join(mine, value)

    def join(self, a: Value, b: Value) -> Value:
        """A value that stands for either of two; ``Unknown("either ...")`` where one text cannot."""
        if isinstance(a, Unknown) and a.why.startswith("either"):
            return a
        for one, other in ((a, b), (b, a)):
            if isinstance(one, Scalar) and one.text == "None":  # an optional value: used where it is not None
                return other
        if isinstance(a, Array) and isinstance(b, Array):
            if a.dims is not None and b.dims is not None and (a.rank, a.thin_axis) != (b.rank, b.thin_axis):
                return Unknown("either of two shapes")
            a.tile.unify(b.tile)
            return dataclasses.replace(
                a,
                run=a.run if a.run == b.run else None,
                start=a.start if a.start == b.start else "",
                mask=a.mask if a.mask == b.mask else None,
                kind=a.kind or b.kind,
                dtype=a.dtype if a.dtype == b.dtype else "",
            )
        if isinstance(a, SliceValue) and isinstance(b, SliceValue) and a != b:
            start = self.join(a.start, b.start)
            same = a.size == b.size and a.stride == b.stride and not (a.full or b.full)
            return SliceValue(start, a.size, stride=a.stride) if same else Unknown("slices")  # type: ignore[arg-type]
        if isinstance(a, TupleValue) and isinstance(b, TupleValue) and len(a.items) == len(b.items):
            return TupleValue(tuple(map(self.join, a.items, b.items)))
        if isinstance(a, Scalar) and isinstance(b, Scalar):
            if a == b:
                return a
            terms = tuple(dict.fromkeys(a.terms + b.terms))
            return Scalar(a.static and b.static, terms, ones=max(a.ones, b.ones))
        if isinstance(a, Scalar) and isinstance(b, Array):
            a, b = b, a
        if isinstance(a, Array) and isinstance(b, Scalar):
            return a if a.thin_axis is None else Unknown("either of two shapes")
        if isinstance(a, Unknown):
            return b
        if isinstance(a, (RefValue, ViewValue)) and isinstance(b, (RefValue, ViewValue)) and a != b:
            return Unknown("either of two refs")
        if isinstance(a, FunctionValue) and isinstance(b, FunctionValue) and a.node is not b.node:
            return Unknown("either of two functions")
        return a

    def either(self, node: ast.expr, value: Value) -> Value:
        """``value``, with a finding if it stands for two that need different rewrites."""
        if isinstance(value, Unknown) and value.why.startswith("either"):
            code = {"refs": "B104", "functions": "B102"}.get(value.why.split()[-1], "B105")
            self.find(code, node, f"{ast.unparse(node)[:40]} is {value.why}", "write the statements that use it once for each")
        return value

    def for_loop(self, node: ast.For, env: dict[str, Value], returns: list[Value]) -> None:
        iterated = self.eval(node.iter, env)
        step: Value = Unknown("loop variable")
        match node.iter:
            case ast.Call(ast.Name("range"), args):
                values = [self.eval(a, env) for a in args]
                start = values[0] if len(values) > 1 else Scalar(True, (), "0")
                stride = values[2] if len(values) > 2 else Scalar(True, ("1",), "1")
                if all(isinstance(v, Scalar) for v in (start, stride)):
                    step = Scalar(True, (*start.terms, *stride.terms))  # type: ignore[union-attr]
        steps = [step]
        if isinstance(iterated, TupleValue) and iterated.items:
            # a ref is one at a time, as in a helper that is called for each
            apart = holds_refs(iterated)
            steps = list(iterated.items) if apart else [functools.reduce(self.join, iterated.items)]
        before = dict(env)
        for step in steps:
            self.bind_pattern(node.target, step, env)
            for name in _assigned(node.body) & env.keys() - _assigned([node.target]):  # of an earlier iteration
                env[name] = self.carried(env[name], static=True)
            self.block(node.body, env, returns)
        self.merge(env, before)
        self.block(node.orelse, env, returns)

    def function_def(self, node: ast.FunctionDef, env: dict[str, Value]) -> None:
        function = FunctionValue(node, env)
        env[node.name] = function
        for decorator in reversed(node.decorator_list):
            name = self.call_name(decorator)
            if name == f"{PALLAS}.when":
                self.when(decorator.args[0], function, node, env)  # type: ignore[attr-defined]
            elif name == f"{PALLAS}.loop":
                self.pallas_loop(decorator, function, env)  # type: ignore[arg-type]
            else:
                self.find("B102", decorator, f"decorator {ast.unparse(decorator)} inside a kernel")

    def pallas_loop(self, node: ast.Call, body: FunctionValue, env: dict[str, Value]) -> None:
        values = [self.eval(a, env) for a in node.args]
        keywords = {k.arg: self.eval(k.value, env) for k in node.keywords if k.arg}
        if "init_carry" in keywords:
            self.find("B102", node, "pl.loop with a carry")
        low = values[0] if len(values) > 1 else keywords.get("lower", Scalar(True, (), "0"))
        step = keywords.get("step", Scalar(True, ("1",), "1"))
        terms: tuple[str, ...] = (UNKNOWN_FACTOR,)
        if isinstance(low, Scalar) and isinstance(step, Scalar):
            terms = (*low.terms, *step.terms)
        self.call_function(body, [Scalar(False, terms)], {}, node)

    def aug_assign(self, node: ast.AugAssign, env: dict[str, Value]) -> None:
        if isinstance(node.target, ast.Subscript):
            base = self.eval(node.target.value, env)
            if isinstance(base, (RefValue, ViewValue)):
                self.accumulate(node, node.target, base, env)
                return
        current = self.eval_target(node.target, env)
        operand = self.eval(node.value, env)
        result = self.binary(node, node.op, node.target, current, node.value, operand)
        self.assign(node.target, result, node, node.value, env)

    def accumulate(self, node: ast.AugAssign, target: ast.Subscript, base: RefValue | ViewValue, env: dict[str, Value]) -> None:
        """``ref[...] += value``: a load, an operation and a store."""
        index = self.index(target.slice, base, env)
        ref = base if isinstance(base, RefValue) else base.ref
        dims, tile, _ = self.access_shape(ref, index if isinstance(base, RefValue) else base.index + index)
        if tile is None:
            self.find("B103", node, f"{ast.unparse(target)} is one element that every thread reads, changes and writes",
                      "keep it in a variable until the end of the kernel, or use an atomic operation")
            return
        thin = self.thin_axis(ref, dims)
        if thin is not None:
            tile = self.tile(1, tuple_text((dims[thin],)))  # type: ignore[index]
        old = Array(dims, tile, thin_axis=thin, axis_from_end=1 - thin if thin is not None else 0, dtype=f"{ref.name}.dtype")
        result = self.binary(node, node.op, target, old, node.value, self.eval(node.value, env))
        self.store(target, node, base, index, result, node.value, None, accumulates=True)

    def eval_target(self, target: ast.expr, env: dict[str, Value]) -> Value:
        if isinstance(target, ast.Name):
            return env.get(target.id, Unknown(target.id))
        return Unknown("target")

    def assign(
        self, target: ast.expr, value: Value, statement: ast.stmt, node: ast.expr, env: dict[str, Value]
    ) -> None:
        if isinstance(target, ast.Name):
            env[target.id] = self.named(target.id, value)
        elif isinstance(target, ast.Subscript):
            base = self.eval(target.value, env)
            if isinstance(base, (RefValue, ViewValue)):
                self.store(target, statement, base, self.index(target.slice, base, env), value, node, None)
            elif isinstance(base, TupleValue):
                self.find("B101", statement, "assignment to an element of a list")
            else:
                self.find("B101", statement, f"store to {ast.unparse(target)}, which is not a ref")
        elif isinstance(target, (ast.Tuple, ast.List)):
            self.bind_pattern(target, value, env)
        else:
            self.find("B101", statement, f"assignment to {ast.unparse(target)}")

    def named(self, name: str, value: Value) -> Value:
        """A static scalar assigned at the kernel's top level is known by its name from there on."""
        if isinstance(value, Scalar) and value.static and self.depth == 0 and value.text:
            bindings = self.resolver.scopes[self.model.kernel].bindings.get(name, ())
            if not value.text.isdigit() and len(bindings) == 1:
                terms = value.terms if value.terms == () else (name,)
                return Scalar(True, terms, name)
        return value

    def bind_pattern(self, target: ast.expr, value: Value, env: dict[str, Value]) -> None:
        if isinstance(target, ast.Name):
            env[target.id] = self.named(target.id, value)
            return
        if isinstance(target, ast.Starred):
            self.bind_pattern(target.value, Unknown("starred"), env)
            return
        if not isinstance(target, (ast.Tuple, ast.List)):
            if isinstance(target, ast.Subscript):
                self.find("B101", target, f"{ast.unparse(target)} is stored to among other targets", "store in a statement of its own")
            return
        elements = target.elts
        starred = any(isinstance(e, ast.Starred) for e in elements)
        if isinstance(value, TupleValue) and len(value.items) == len(elements) and not starred:
            items = list(value.items)
        elif isinstance(value, ShapeOf) and not starred:
            self.model.ref_ranks[value.base] = len(elements)
            items = [
                Scalar(True, (f"{value.base}.shape[{i}]",), f"{value.base}.shape[{i}]")
                for i in range(len(elements))
            ]
        elif isinstance(value, Unknown) and value.why == "refs" and not starred:
            items = [
                self.further_ref(i, e.id if isinstance(e, ast.Name) else f"refs[{i}]") for i, e in enumerate(elements)
            ]
        else:
            items = [Unknown("unpacked") for _ in elements]
        for e, item in zip(elements, items):
            self.bind_pattern(e, item, env)


def _assigned(body: Sequence[ast.AST]) -> set[str]:
    """Names that statements or targets assign, those of nested functions left out."""
    found: set[str] = set()
    queue: list[ast.AST] = list(body)
    while queue:
        node = queue.pop()
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        if not isinstance(node, (ast.FunctionDef, ast.Lambda)):
            queue += ast.iter_child_nodes(node)
    return found
