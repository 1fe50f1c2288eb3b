"""Loops, branches and carries of ``jax.lax``."""

from __future__ import annotations

import ast
import dataclasses
import functools

from ..values import (
    UNKNOWN_FACTOR,
    Array,
    FunctionValue,
    Scalar,
    SliceValue,
    TupleValue,
    Unknown,
    Value,
)
from .events import (
    Loop,
)


class ControlFlow:
    """Loops, branches and carries of ``jax.lax``. Part of ``Interpreter``."""

    def fori_loop(self, node: ast.Call, env: dict[str, Value]) -> Value:
        args = dict(zip(("lower", "upper", "body_fun", "init_val"), node.args))
        args |= {k.arg: k.value for k in node.keywords if k.arg}
        if not {"lower", "upper", "body_fun", "init_val"} <= set(args):
            self.find("B102", node, "fori_loop without its four arguments")
            return Unknown("fori_loop")
        lower, upper = self.eval(args["lower"], env), self.eval(args["upper"], env)
        body = self.eval(args["body_fun"], env)
        init = self.eval(args["init_val"], env)
        if not isinstance(body, FunctionValue):
            self.find("B102", node, "a fori_loop whose body is not a function of this file")
            return Unknown("fori_loop")
        static = all(isinstance(v, Scalar) and v.static for v in (lower, upper))
        if not any(loop.node is node for loop in self.model.loops):
            self.model.loops.append(
                Loop(node, body.node, args["lower"], args["upper"], args["init_val"], dict(env), static)  # type: ignore[arg-type]
            )
        params = body.node.args.args  # type: ignore[attr-defined]
        step = Scalar(False, (UNKNOWN_FACTOR,), expr=params[0].arg if params else "")
        result = self.call_function(body, [step, self.carried(init)], {}, node)
        return self.carry(node, init, result)

    def carried(self, value: Value, static: bool = False) -> Value:
        """What is known of a loop carry inside the loop: a number is no longer static, unless
        Python runs the loop."""
        if isinstance(value, Scalar):
            return Scalar(static and value.static, ones=value.ones)
        if isinstance(value, TupleValue):
            return TupleValue(tuple(self.carried(v, static) for v in value.items))
        if isinstance(value, Array):
            return dataclasses.replace(value, run=None, start="", mask=None)
        if isinstance(value, SliceValue):
            return Unknown("a slice carried by a loop")
        return value

    def carry(self, node: ast.AST, init: Value, result: Value) -> Value:
        if isinstance(init, TupleValue) and isinstance(result, TupleValue):
            if len(init.items) == len(result.items):
                return TupleValue(tuple(self.carry(node, a, b) for a, b in zip(init.items, result.items)))
        if isinstance(init, Array) and isinstance(result, Array):
            if init.thin_axis is None and result.thin_axis == 1 and init.dims is not None and init.dims[0] == "1":
                self.met_tiles.append(init.tile)
            else:
                init.tile.unify(result.tile)
            return dataclasses.replace(self.carried(init), thin_axis=result.thin_axis, dims=result.dims or init.dims)  # type: ignore[type-var]
        if isinstance(init, Scalar):
            return self.carried(result) if isinstance(result, Scalar) else result
        return init

    def while_loop(self, node: ast.Call, env: dict[str, Value]) -> Value:
        args = dict(zip(("cond_fun", "body_fun", "init_val"), node.args))
        args |= {k.arg: k.value for k in node.keywords if k.arg}
        test, body = self.eval(args["cond_fun"], env), self.eval(args["body_fun"], env)
        init = self.eval(args["init_val"], env)
        if not (isinstance(test, FunctionValue) and isinstance(body, FunctionValue)):
            self.find("B102", node, "a while_loop whose functions are not in this file")
            return Unknown("while_loop")
        self.call_function(test, [self.carried(init)], {}, node)
        with self.guarded(args["cond_fun"]):
            return self.carry(node, init, self.call_function(body, [self.carried(init)], {}, node))

    def cond(self, node: ast.Call, env: dict[str, Value]) -> Value:
        values = [self.eval(a, env) for a in node.args]
        functions = [v for v in values[1:3] if isinstance(v, FunctionValue)]
        if len(functions) != 2:
            self.find("B102", node, "a cond whose branches are not functions of this file")
            return Unknown("cond")
        with self.guarded(node.args[0]):
            first, second = (self.call_function(f, values[3:], {}, node) for f in functions)
        return self.join(first, second)

    def switch(self, node: ast.Call, env: dict[str, Value]) -> Value:
        index, branches, *operands = [self.eval(a, env) for a in node.args]
        if not isinstance(branches, TupleValue) or not all(isinstance(f, FunctionValue) for f in branches.items):
            self.find("B102", node, "a switch whose branches are not functions of this file", "write them out in a list")
            return Unknown("switch")
        with self.guarded(node.args[0]):
            results = [self.call_function(f, operands, {}, node) for f in branches.items]  # type: ignore[arg-type]
        return functools.reduce(self.join, results)

    def when(self, condition: ast.expr, branch: FunctionValue, node: ast.AST, env: dict[str, Value]) -> Value:
        """``pl.when(condition)(branch)``, also as a decorator."""
        self.eval(condition, env)
        with self.guarded(condition):
            return self.call_function(branch, [], {}, node)
