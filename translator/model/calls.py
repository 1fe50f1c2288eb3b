"""Calls: Pallas operations, library functions, methods, functions of the file."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Callable

from ..dtypes import dtype_name
from ..names import FOR_LOOP, PALLAS, TRITON, FunctionNode
from ..replacements import DERIVATIVES, FUNCTIONS, JIT, PLAIN_REDUCTIONS, PRIMITIVES, UNWRAPPED, Kept, obstacle, replacement
from ..values import (
    UNKNOWN_FACTOR,
    Array,
    FunctionValue,
    Index,
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
from .events import (
    Conversion,
    Dot,
    GridQuery,
    Pages,
    Reduction,
    SquareRoot,
)
from .text import tuple_text, wrap

_REDUCTIONS = {"sum", "max", "min", "mean", "prod", "amax", "amin", "any", "all", "argmax", "argmin", "var", "std", "logsumexp",
               "nansum", "ptp", "count_nonzero", "norm"}
_LAX_REDUCTIONS = {f"jax.lax.reduce_{name}" for name in ("sum", "max", "min")}
_SOFTMAX = {"jax.nn.softmax", "jax.nn.log_softmax", "jax.scipy.special.softmax", "jax.scipy.special.log_softmax"}
_CREATION = {"zeros", "ones", "full", "empty"}
_LIKE = {"zeros_like", "ones_like", "full_like", "empty_like"}
_DOTS = {
    "jax.numpy.dot",
    "jax.numpy.matmul",
    f"{TRITON}.dot",
    "jax.lax.dot",
    "jax.lax.dot_general",
    "jax.numpy.einsum",
}
_SCALAR_TYPES = {  # called as functions, they convert
    "float32", "float16", "bfloat16", "float64", "int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8", "bool_",
    "float8_e4m3fn", "float8_e5m2",
}
_STATIC_CALLS = {
    f"{PALLAS}.cdiv",
    f"{PALLAS}.next_power_of_2",
}
_OF_TUPLES: dict[str, Callable[..., tuple[Value, ...]]] = {
    "tuple": lambda items: items,
    "list": lambda items: items,
    "reversed": lambda items: items[::-1],
    "zip": lambda *tuples: tuple(map(TupleValue, zip(*tuples))),
    "enumerate": lambda items: tuple(
        TupleValue((Scalar(True, (str(i),) if i else (), str(i)), item)) for i, item in enumerate(items)
    ),
}
_STATIC_BUILTINS = {"min", "max", "len", "int", "abs", "divmod", "bool", "float", "round"}


class Calls:
    """Calls: Pallas operations, library functions, methods, functions of the file. Part of ``Interpreter``."""

    def call_name(self, node: ast.AST) -> str | None:
        return self.resolver.qualified(node.func) if isinstance(node, ast.Call) else None

    def call(self, node: ast.Call, env: dict[str, Value]) -> Value:
        name = None if self.is_local(node.func, env) else self.resolver.qualified(node.func)
        if name is not None:
            return self.library_call(node, name, env)
        if isinstance(node.func, ast.Name) and node.func.id not in env:
            if self.resolver.scope_of(node).find(node.func.id) is None:
                return self.builtin(node, node.func.id, env)
        if self.call_name(node.func) == f"{PALLAS}.when" and len(node.args) == 1:  # pl.when(condition)(function)
            branch = self.eval(node.args[0], env)
            if isinstance(branch, FunctionValue):
                return self.when(node.func.args[0], branch, node, env)  # type: ignore[attr-defined]
        if isinstance(node.func, ast.Attribute):
            base = self.eval(node.func.value, env)
            if isinstance(base, (Array, Scalar, RefValue)):
                return self.method(node, base, node.func, env)
        function = self.eval(node.func, env)
        args = [self.eval(a, env) for a in node.args]
        keywords = {k.arg: self.eval(k.value, env) for k in node.keywords if k.arg}
        if isinstance(function, FunctionValue) and isinstance(function.node, (ast.FunctionDef, ast.Lambda)):
            if (product := self.forwarded_product(function.node)) is not None and len(node.args) == 2 and not keywords:
                self.model.product_helpers.add(function.node)  # type: ignore[arg-type]
                return self.dot(node, node.args[0], node.args[1], product, env)
            return self.call_function(function, self.flat(node, args), keywords, node, node.args)
        if any(map(_touches_refs, [*args, *keywords.values()])):
            return self.handed_out(node)
        if isinstance(node.func, ast.Name) and (bound := self.resolver.binding(node.func)) is not None and bound.kind == "class":
            self.find("B110", node, f"an object of the class {node.func.id}, whose fields are not followed", "keep its values in a tuple")
            return Unknown(node.func.id)
        if isinstance(function, FunctionValue):  # of a library
            self.model.calls.append((node, self.resolver.qualified(function.node) or ""))
            return self.elementwise(node, list(zip(node.args, args)))
        if isinstance(function, Scalar) and function.static:
            # A callable passed into the kernel (an activation): assumed elementwise, said so.
            self.find("N203", node, f"{ast.unparse(node.func)} is passed into the kernel and was not followed",
                      "check that it uses only what Mosaic GPU lowers")
            return self.elementwise(node, list(zip(node.args, args)))
        return Unknown(ast.unparse(node.func))

    def forwarded_product(self, function: ast.FunctionDef | ast.Lambda) -> str | None:
        """The name of the product that a function of the kernel multiplies its two arguments with, None if it does more."""
        names = [a.arg for a in ast.walk(function.args) if isinstance(a, ast.arg)]
        if not isinstance(function, ast.FunctionDef) or function.decorator_list or function.args.defaults or len(names) != 2:
            return None
        if not self.resolver.is_inside(function, self.model.kernel):
            return None
        body = [s for s in function.body if not (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))]
        call = body[0].value if len(body) == 1 and isinstance(body[0], ast.Return) else None
        if not isinstance(call, ast.Call) or any(k.arg != "preferred_element_type" for k in call.keywords):
            return None
        name = self.resolver.qualified(call.func)
        plain = name in _DOTS and name not in ("jax.numpy.einsum", "jax.lax.dot_general")
        return name if plain and [ast.unparse(a) for a in call.args] == names else None

    def flat(self, node: ast.Call, args: list[Value]) -> list[Value]:
        """The arguments of a call, those behind a * one by one."""
        result: list[Value] = []
        for argument, value in zip(node.args, args):
            if not isinstance(argument, ast.Starred):
                result.append(value)
            elif isinstance(value, TupleValue):
                result += value.items
            else:
                self.find("B101", node, f"{ast.unparse(argument)[:40]}: what it holds is not known", "write the arguments out")
        if any(k.arg is None for k in node.keywords):
            self.find("B101", node, f"{ast.unparse(node)[:60]}: keyword arguments that are passed with **", "write the arguments out")
        return result

    def handed_out(self, node: ast.Call) -> Value:
        """The result of a call that was not followed and gets what only the kernel's own code may touch."""
        self.find("B110", node, f"{ast.unparse(node.func)} gets what may hold refs or functions of the kernel and cannot be followed",
                  "call a function of this file by its name")
        return Unknown(ast.unparse(node.func))

    def call_function(
        self, function: FunctionValue, args: list[Value], keywords: dict[str, Value],
        node: ast.AST, arg_nodes: list[ast.expr] | None = None,
    ) -> Value:
        target: FunctionNode = function.node  # type: ignore[assignment]
        self.model.functions.add(target)
        self.decorators(target, node)
        if self.depth > 12:
            self.find("B102", node, "recursion in a kernel")
            return Unknown("recursion")
        own = self.resolver.scopes[target].bindings  # hide what the enclosing function calls by the same names
        env = {name: value for name, value in function.env.items() if name not in own}
        params = [*target.args.posonlyargs, *target.args.args]
        defaults = target.args.defaults
        for p, d in zip(params[len(params) - len(defaults):], defaults):
            env[p.arg] = self.eval(d, function.env)
        for p, d in zip(target.args.kwonlyargs, target.args.kw_defaults):
            if d is not None:
                env[p.arg] = self.eval(d, function.env)
        for p, v in zip(params, args):
            env[p.arg] = v
        if target.args.vararg is not None:
            env[target.args.vararg.arg] = TupleValue(tuple(args[len(params):]))
        elif len(args) > len(params):
            return Unknown("arguments")
        env.update(function.bound)
        env.update(keywords)
        self.depth += 1
        try:
            if isinstance(target, ast.Lambda):
                return self.eval(target.body, env)
            returns: list[Value] = []
            self.block(target.body, env, returns)
        finally:
            self.depth -= 1
        if not returns:
            return TupleValue(())
        result = returns[0]
        for other in returns[1:]:
            result = self.join(result, other)
        return result

    def decorators(self, target: FunctionNode, node: ast.AST) -> None:
        """What wraps a function of the module that a kernel calls: ``jit`` lowers, derivatives do not."""
        wrappers = [self.decorator_name(d) for d in getattr(target, "decorator_list", ())]
        if self.resolver.parents.get(target) is not self.resolver.module.node or set(wrappers) <= JIT:
            return
        if set(wrappers) <= JIT | DERIVATIVES and isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            self.model.wrapped.append((node.func, len(wrappers)))
        else:
            self.find("B102", node, f"{getattr(target, 'name', 'a function')} is decorated, and what its decorators do is not known",
                      "call the undecorated function")

    def decorator_name(self, decorator: ast.expr) -> str:
        if isinstance(decorator, ast.Call):
            called = self.resolver.qualified(decorator.func) or ""
            return self.decorator_name(decorator.args[0]) if called == "functools.partial" and decorator.args else called
        return self.resolver.qualified(decorator) or ""

    def builtin(self, node: ast.Call, name: str, env: dict[str, Value]) -> Value:
        values = [self.eval(a, env) for a in node.args]
        for k in node.keywords:
            self.eval(k.value, env)
        if name in _STATIC_BUILTINS:
            if name == "divmod" and any(isinstance(v, Array) for v in values):
                return self.quotient_and_remainder(node, "builtins.divmod", list(zip(node.args, values)))
            if name in ("min", "max", "abs") and any(isinstance(v, Array) for v in values):
                return self.elementwise(node, list(zip(node.args, values)))
            return self.static_call(node, values)
        if name == "slice":
            return self.slice_value(values)
        tuples = [v.items for v in values if isinstance(v, TupleValue)]
        if name in _OF_TUPLES and not node.keywords and tuples and len(tuples) == len(values):
            return TupleValue(_OF_TUPLES[name](*tuples))
        if name in _OF_TUPLES and any(map(holds_refs, values)):
            return self.handed_out(node)
        if name in _OF_TUPLES or name in ("range", "print", "isinstance", "getattr"):
            return Unknown(name)
        self.find("B110", node, f"a call of {name}, which is not known")
        return Unknown(name)

    def quotient_and_remainder(self, node: ast.Call, name: str, operands: list[tuple[ast.expr, Value]]) -> Value:
        self.model.calls.append((node, name))
        result = self.elementwise(node, operands)
        return TupleValue((result, result))

    def static_call(self, node: ast.Call, values: list[Value]) -> Value:
        if all(isinstance(v, Scalar) for v in values):
            static = all(v.static for v in values)  # type: ignore[union-attr]
            text = ""
            if all(v.text for v in values) and not node.keywords:  # type: ignore[union-attr]
                text = f"{ast.unparse(node.func)}({', '.join(v.text for v in values)})"  # type: ignore[union-attr]
            return Scalar(static, (text,) if static and text else (UNKNOWN_FACTOR,), text if static else "")
        return Scalar(True)

    def multiple_of(self, node: ast.Call, env: dict[str, Value]) -> Value:
        value = self.eval(node.args[0], env)
        divisor = node.args[1] if len(node.args) > 1 else next((k.value for k in node.keywords if k.arg == "values"), None)
        known = self.eval(divisor, env) if divisor is not None else None
        if not (isinstance(value, Scalar) and isinstance(known, Scalar) and known.text):
            return value
        expr = f"{ast.unparse(node.func)}({value.expr}, {known.text})" if value.expr else ""
        return dataclasses.replace(value, terms=(known.text,), expr=expr)

    def slice_value(self, values: list[Value]) -> Value:
        if len(values) == 1 and isinstance(values[0], Scalar) and values[0].text == "None":
            return SliceValue(Scalar(True, (), "0"), "", full=True)
        if len(values) == 2 and all(isinstance(v, Scalar) for v in values):
            start, stop = values
            size = stop.text if start.terms == () else f"{wrap(stop.text)} - {wrap(start.text)}"  # type: ignore[union-attr]
            return SliceValue(start, size)  # type: ignore[arg-type]
        return Unknown("slice")

    def library_call(self, node: ast.Call, name: str, env: dict[str, Value]) -> Value:
        short = name.rpartition(".")[2]
        if name in (f"{PALLAS}.program_id", f"{PALLAS}.num_programs"):
            return self.grid_query(node, short == "num_programs", env)
        if name == f"{TRITON}.load":
            return self.load_call(node, env)
        if name == f"{TRITON}.store" or name == f"{PALLAS}.swap" and isinstance(self.resolver.parents[node], ast.Expr):
            return self.store_call(node, env)
        if name.startswith(f"{TRITON}.atomic_"):
            return self.atomic_call(node, short.removeprefix("atomic_"), env)
        if name == f"{PALLAS}.ds":
            return self.ds(node, env)
        if name == f"{PALLAS}.multiple_of" and node.args:
            return self.multiple_of(node, env)
        if name in UNWRAPPED and node.args:
            self.model.unwraps.append(node)
            return self.eval(node.args[0], env)
        if name in _DOTS:
            if len(node.args) < 2 or any(isinstance(a, ast.Starred) for a in node.args[:2]):
                self.find("B114", node, f"{short} whose operands are not passed by position", "write dot(a, b)")
                return Unknown(short)
            return self.dot(node, node.args[0], node.args[1], name, env)
        if name == "jax.lax.fori_loop" or name == FOR_LOOP and any(m.call is node for m in self.resolver.loops):
            return self.fori_loop(node, env)
        if name == FOR_LOOP:
            self.find("B102", node, "a for_loop whose body uses its state in another way than by ref[...]",
                      "write it as a lax.fori_loop whose body returns its carry")
            return Unknown(short)
        if name == "jax.lax.while_loop":
            return self.while_loop(node, env)
        if name == "jax.lax.cond":
            return self.cond(node, env)
        if name == "jax.lax.switch":
            return self.switch(node, env)
        if name.startswith("functools.partial"):
            inner = self.eval(node.args[0], env)
            bound = {k.arg: self.eval(k.value, env) for k in node.keywords if k.arg}
            if isinstance(inner, FunctionValue):
                positional = [self.eval(a, env) for a in node.args[1:]]
                params = [p.arg for p in inner.node.args.args]  # type: ignore[attr-defined]
                bound |= dict(zip(params, positional))
                return FunctionValue(inner.node, inner.env, inner.bound | bound)
            return Unknown("partial")
        if name in _STATIC_CALLS or name.startswith("math."):  # Python's math takes numbers of the trace only
            return self.static_call(node, [self.eval(a, env) for a in node.args])
        if name == f"{PALLAS}.debug_print" or name == "jax.debug.print":
            for a in node.args:
                self.eval(a, env)
            return TupleValue(())
        if name in FUNCTIONS:
            return self.array_call(node, name, short, env)
        if name.startswith((PALLAS, TRITON)):
            for a in node.args:
                self.eval(a, env)
            self.find("B110", node, f"{short} has no rewrite yet")
            return Unknown(short)
        if not name.startswith(("jax.numpy", "jax.lax", "jax.nn", "jax.scipy", "numpy")):
            self.find("B110", node, f"a call of {name}, whose source is not in this file",
                      "record facts with --example, or move the helper into this file")
            for a in node.args:
                self.eval(a, env)
            return Unknown(name)
        return self.array_call(node, name, short, env)

    def array_call(self, node: ast.Call, name: str, short: str, env: dict[str, Value]) -> Value:
        keywords = {k.arg: k.value for k in node.keywords if k.arg}
        if short == "arange":
            return self.arange(node, env)
        if short == "elementwise_inline_asm":
            return self.inline_asm(node, name, keywords, env)
        if short == "iota":
            size = self.eval(node.args[1], env) if len(node.args) > 1 else Unknown()
            dim = size.text if isinstance(size, Scalar) else ""
            dtype = self.dtype_text(node.args[0] if node.args else None)
            return Array((dim,), self.tile(1, tuple_text((dim,))), run=(), kind="int", start="0", dtype=dtype)
        if short == "broadcasted_iota":
            return self.broadcasted_iota(node, env)
        if short in _CREATION:
            dims = self.shape_argument(node.args[0] if node.args else keywords.get("shape"), env)
            for a in node.args[1:]:
                self.eval(a, env)
            if dims == ():
                return Scalar()
            position = 2 if short == "full" else 1
            given = node.args[position] if len(node.args) > position else keywords.get("dtype")
            dtype = self.dtype_text(given, "" if short == "full" else "float32")
            if dims is not None and len(dims) == 2 and "1" in dims:
                return self.thin_made(node, dims, node.args[0] if node.args else keywords["shape"], dtype)
            return Array(dims, self.tile(None if dims is None else len(dims), tuple_text(dims or ())), dtype=dtype)
        if short in _LIKE:
            value = self.eval(node.args[0], env)
            position = 2 if short == "full_like" else 1
            given = node.args[position] if len(node.args) > position else keywords.get("dtype")
            if isinstance(value, Array):
                return Array(value.dims, value.tile, thin_axis=value.thin_axis, axis_from_end=value.axis_from_end,
                             dtype=self.dtype_text(given, value.dtype))
            if isinstance(value, RefValue):
                return Array(value.dims, self.tile(value.dims and len(value.dims), f"{value.name}.shape"),
                             dtype=self.dtype_text(given, f"{value.name}.dtype"))
            return Scalar()
        if name in ("jax.lax.argmax", "jax.lax.argmin"):
            keywords.pop("index_dtype", None)  # the Triton backend takes int32 only
            return self.reduction(node, name, node.args[0], self.eval(node.args[0], env), node.args[1:2], keywords, env)
        if name in _LAX_REDUCTIONS and node.args:
            axes = node.args[1:] or [k.value for k in node.keywords if k.arg == "axes"]
            return self.reduction(node, name, node.args[0], self.eval(node.args[0], env), axes, {}, env)
        if name == "jax.lax.reduce":
            self.find("B112", node, f"{ast.unparse(node)[:60]}: a reduction by a function", "write jnp.sum, jnp.max or jnp.min")
            return Unknown("reduction")
        if short in _REDUCTIONS and name.startswith(("jax.numpy", "jax.nn", "jax.scipy")) and node.args:
            return self.reduction(node, name, node.args[0], self.eval(node.args[0], env), node.args[1:], keywords, env)
        if name in _SOFTMAX and node.args:
            value = self.eval(node.args[0], env)
            axis = keywords if len(node.args) > 1 or "axis" in keywords else {**keywords, "axis": ast.parse("-1", mode="eval").body}
            self.reduction(node, name, node.args[0], value, node.args[1:], axis, env)
            return dataclasses.replace(value, run=None, mask=None) if isinstance(value, Array) else value
        if short in ("broadcast_to", "broadcast_in_dim"):
            return self.broadcast(node, short, env)
        if short == "expand_dims":
            return self.expand_dims(node, env)
        if short == "astype":
            dtype = node.args[1] if len(node.args) > 1 else keywords.get("dtype")
            return self.converted(node, node.args[0], self.eval(node.args[0], env), dtype)
        named = [(k.value, self.eval(k.value, env)) for k in node.keywords]
        operands = [*((a, self.eval(a, env)) for a in node.args), *(o for o in named if isinstance(o[1], Array))]
        condition = tuple(node.args[:1]) if name == "jax.numpy.where" else ()
        args = [value for _, value in operands]
        if name == "jax.numpy.divmod":
            return self.quotient_and_remainder(node, name, operands)
        if any(isinstance(a, FunctionValue) for a in args):
            self.find("B102", node, f"{short} of a function of the kernel", "write it as a lax.fori_loop" if short in ("scan", "map") else "")
            return Unknown(short)
        if name in ("jax.lax.axis_index", "jax.lax.axis_size"):
            return Scalar()
        if short == "convert_element_type" or dtype_name(node.func, self.resolver) == short and short in _SCALAR_TYPES:
            dtype = node.func if short in _SCALAR_TYPES else node.args[1] if len(node.args) > 1 else keywords.get("new_dtype")
            return self.converted(node, node.args[0], args[0], dtype) if args else Unknown(short)
        if short in ("array", "asarray") and args and isinstance(args[0], (Array, Scalar)):
            dtype = node.args[1] if len(node.args) > 1 else keywords.get("dtype")
            return args[0] if dtype is None and isinstance(args[0], Array) else self.converted(node, node.args[0], args[0], dtype)
        if short == "finfo" or short == "iinfo" or short == "dtype":
            return Scalar(True, (UNKNOWN_FACTOR,), ast.unparse(node))
        if any(isinstance(a, Array) for a in args):
            if short == "sqrt":
                self.model.square_roots.append(SquareRoot(node, node, "plain"))
            else:
                self.model.calls.append((node, name))
        elif short == "sqrt" and args and isinstance(args[0], Scalar) and not args[0].static:
            self.model.square_roots.append(SquareRoot(node, node, "plain"))
        elif args and any(isinstance(a, Scalar) and not a.static for a in args):
            self.model.calls.append((node, name))
        elif args and all(isinstance(a, Scalar) for a in args) and (replacement(name) or obstacle(name)):
            self.find("B120", node, f"{ast.unparse(node)[:60]}: numbers go through Mosaic GPU as well, which has no rule for it",
                      "use the function of Python's math module")
        if short in ("transpose", "reshape", "concatenate", "stack", "split", "cumsum", "cumprod", "cummax",
                     "take", "sort", "flip", "roll", "squeeze", "ravel", "swapaxes", "dynamic_slice", "repeat", "tile",
                     "outer", "kron", "one_hot", "linspace", "interp", "average", "nanmean"):
            if not any(c[0] is node for c in self.model.calls):
                self.model.calls.append((node, name))
            value = args[0] if args else Unknown()
            if isinstance(value, Array):
                if short in ("cumsum", "cumprod", "cummax") and value.thin_axis is None:
                    return dataclasses.replace(value, run=None, mask=None)
                if short in ("cumsum", "cumprod", "cummax"):
                    return self.scan_of_thin(node, value, node.args[1] if len(node.args) > 1 else keywords.get("axis"), env)
                if short in ("transpose", "swapaxes"):
                    return self.transpose(node, value)
                if value.thin_axis is not None and _flattens(short, node.args[1:]) and not node.keywords:
                    return self.squeezed(node, value)
            self.model.calls = [c for c in self.model.calls if c[0] is not node]  # diagnosed once
            fate = PRIMITIVES.get({"swapaxes": "transpose", "concatenate": "stack"}.get(short, short))
            why, advice = (f": {fate.reason}", fate.advice) if isinstance(fate, Kept) else ("", "")
            self.find("B105", node, f"{short} of register arrays{why}", advice)
            return Unknown(short)
        result = self.elementwise(node, operands, condition)
        if isinstance(result, Array):
            mask = None
            if short == "logical_and":
                masks = [a.mask for a in args if isinstance(a, Array)]
                if len(masks) == 2 and None not in masks:
                    mask = masks[0] + masks[1]  # type: ignore[operator]
            truth = short in ("logical_and", "logical_or", "logical_xor", "logical_not", "isfinite", "isnan", "isinf", "isclose",
                              "less", "less_equal", "greater", "greater_equal", "equal", "not_equal", "signbit")
            result = dataclasses.replace(
                result, mask=mask, kind="bool" if truth else result.kind, dtype="bool" if truth else result.dtype
            )
        return result

    def converted(self, node: ast.Call, operand: ast.expr, value: Value, dtype: ast.expr | None) -> Value:
        """``value.astype(dtype)`` in any spelling."""
        text = self.dtype_text(dtype)
        kind = "float" if "float" in text else "bool" if "bool" in text else "int" if "int" in text else ""
        if not isinstance(value, Array):
            return value
        if dtype is not None:
            self.model.conversions.append(Conversion(node, operand, value.dtype, dtype, text))
        return dataclasses.replace(value, kind=kind or value.kind, mask=None, dtype=text)

    def inline_asm(self, node: ast.Call, name: str, keywords: dict[str, ast.expr], env: dict[str, Value]) -> Value:
        """One array for each of ``result_shape_dtypes``, which have the shape of the arguments."""
        args, results = keywords.get("args"), keywords.get("result_shape_dtypes")
        if not all(isinstance(k, (ast.List, ast.Tuple)) and k.elts for k in (args, results)):
            self.find("B120", node, f"{ast.unparse(node)[:60]}: its arguments or results are no literal list", "write args=[x, y]")
            return Unknown("assembly")
        operands = [(a, self.eval(a, env)) for a in args.elts]  # type: ignore[union-attr]
        self.model.calls.append((node, name))
        result = self.elementwise(node, operands)
        if isinstance(result, Array):
            result = dataclasses.replace(result, kind="", dtype="", run=None, mask=None)
        return TupleValue((result,) * len(results.elts))  # type: ignore[union-attr]

    def dtype_text(self, node: ast.expr | None, default: str = "") -> str:
        """``Array.dtype`` for what an expression names; ``default`` where there is none."""
        return default if node is None else dtype_name(node, self.resolver) or ast.unparse(node)

    def arange(self, node: ast.Call, env: dict[str, Value]) -> Value:
        values = [self.eval(a, env) for a in node.args]
        dtype = self.dtype_text(next((k.value for k in node.keywords if k.arg == "dtype"), None), "int32")
        if len(values) == 1 and isinstance(values[0], Scalar) and values[0].text:
            dim = values[0].text
            return Array((dim,), self.tile(1, tuple_text((dim,))), run=(), kind="int", dtype=dtype, start="0")
        if 2 <= len(values) <= 3 and all(isinstance(v, Scalar) and v.static and v.text for v in values):
            start, stop, step = (*values, Scalar(True, ("1",), "1"))[:3]
            dim = stop.text if start.terms == () else f"{wrap(stop.text)} - {wrap(start.text)}"  # type: ignore[union-attr]
            if step.text == "1":  # type: ignore[union-attr]
                return Array((dim,), self.tile(1, tuple_text((dim,))), run=start.terms, kind="int", dtype=dtype, start=start.expr)  # type: ignore[union-attr]
            dim = f"-(-({dim}) // {wrap(step.text)})"  # type: ignore[union-attr]
            return Array((dim,), self.tile(1, tuple_text((dim,))), kind="int", dtype=dtype)
        self.find("B111", node, f"{ast.unparse(node)}: its extent is not known", "use jnp.arange(size)")
        return Unknown("arange")

    def broadcasted_iota(self, node: ast.Call, env: dict[str, Value]) -> Value:
        args = {"dtype": None, "shape": None, "dimension": None} | dict(
            zip(("dtype", "shape", "dimension"), node.args)
        ) | {k.arg: k.value for k in node.keywords}
        dims = self.shape_argument(args["shape"], env)
        axis = self.eval(args["dimension"], env) if args["dimension"] is not None else Unknown()
        if dims is None or not isinstance(axis, Scalar) or not axis.text.isdigit():
            return Unknown("broadcasted_iota")
        from_end = len(dims) - 1 - int(axis.text)
        return Array(dims, self.tile(len(dims), tuple_text(dims)), run=(), kind="int", start="0",
                     axis_from_end=from_end, dtype=self.dtype_text(args["dtype"]))

    def shape_argument(self, node: ast.expr | None, env: dict[str, Value]) -> tuple[str, ...] | None:
        if node is None:
            return None
        value = self.eval(node, env)
        if isinstance(value, Scalar):
            return (value.text,) if value.text else None
        if isinstance(value, ShapeOf):
            return value.dims if value.dims is not None else None
        if isinstance(value, TupleValue):
            dims = tuple(v.text if isinstance(v, Scalar) else "" for v in value.items)
            return dims if all(dims) else None
        return None

    def reduction(
        self, node: ast.Call, function: str, operand: ast.expr, value: Value,
        positional: list[ast.expr], keywords: dict[str, ast.expr], env: dict[str, Value],
    ) -> Value:
        operation = function.rpartition(".")[2].removeprefix("reduce_")
        axis_node = positional[0] if positional else keywords.get("axis")
        keep = keywords.get("keepdims")
        keepdims = isinstance(keep, ast.Constant) and keep.value is True
        if not isinstance(value, Array):
            return value
        for k, v in keywords.items():
            if k == "where":
                self.elementwise(node, [(operand, value), (v, self.eval(v, env))], (v,))
            elif k == "initial" and not isinstance(self.eval(v, env), Array):
                pass
            elif k not in ("axis", "keepdims", "dtype", "ddof") or k == "keepdims" and not isinstance(v, ast.Constant):
                self.find("B112", node, f"a reduction with {k}={ast.unparse(v)}")
        if len(positional) > 1 or positional and operation == "norm":
            self.find("B112", node, "a reduction with several positional arguments", "name them")
        axis: int | None = None
        if axis_node is not None and not (isinstance(axis_node, ast.Constant) and axis_node.value is None):
            axis_value = self.eval(axis_node, env)
            if isinstance(axis_value, TupleValue) and len(axis_value.items) == 1:
                axis_value = axis_value.items[0]
            whole = isinstance(axis_value, TupleValue) and value.rank == len(axis_value.items) == 2
            if whole and operation in PLAIN_REDUCTIONS and function not in _LAX_REDUCTIONS and sorted(map(_axis_text, axis_value.items)) in (["0", "1"], ["-1", "-2"]):
                axis_value = None
            if axis_value is not None and not (isinstance(axis_value, Scalar) and axis_value.text.lstrip("-").isdigit()):
                self.find("B112", node, f"a reduction over axis {ast.unparse(axis_node)}", "give one literal axis")
                return Unknown("axis")
            axis = int(axis_value.text) if axis_value is not None else None
        rank = value.rank
        if rank is None and axis == 1 and (ref := self.loaded_from(operand)) is not None:  # tiles have rank 1 or 2
            self.model.ref_ranks[ref.name] = rank = 2
            value = dataclasses.replace(value, dims=(f"{ref.name}.shape[0]", f"{ref.name}.shape[1]"))
            value.tile.find().rank = 2
        if axis is not None and axis < 0:
            if rank is None:
                self.find("B112", node, "a reduction of an array whose rank is not known", "load it with an index for each dimension: ref[:, :]")
                return Unknown("axis")
            axis += rank
        ones = value.rank or 0 if keepdims else 0
        if value.thin_axis is not None:
            if axis is not None:
                ones = max(ones, 1)
            if axis not in (None, value.thin_axis):
                self.find("B112", node, "a reduction over a dimension of extent 1")
                return Unknown("thin")
            rank, axis = 1, 0
            self.thin_along(axis_node)
        for other in self.model.reductions:
            if other.node is node and (other.axis, other.rank) != (axis, rank):
                self.find("B112", node, "a reduction of arrays of different shapes in a helper", "write one helper for each shape")
        self.model.reductions.append(
            Reduction(node, operation, axis, rank, keepdims, operand, value.tile, function)
        )
        if axis is None or rank == 1:
            return Scalar(ones=ones)
        if rank is None or value.dims is None:
            self.find("B112", node, "a reduction of an array whose rank is not known", "load it with an index for each dimension: ref[:, :]")
            return Unknown("axis")
        if rank != 2:
            self.find("B112", node, f"a reduction of an array of rank {rank}")
            return Unknown("rank")
        kept = 1 - axis
        tile = self.tile(1)
        tile.vary(value.tile, kept)
        kind = "int" if operation.startswith(("arg", "count")) else "float" if operation in ("mean", "var", "std", "norm") else "bool" if operation in ("any", "all") else value.kind
        dtype = self.dtype_text(keywords.get("dtype"), {"int": "int32", "bool": "bool"}.get(kind, value.dtype))
        if keepdims:
            dims = tuple("1" if k == axis else d for k, d in enumerate(value.dims))
            return Array(dims, tile, thin_axis=kept, kind=kind, axis_from_end=1 - kept, dtype=dtype)
        return Array((value.dims[kept],), tile, kind=kind, dtype=dtype)

    def thin_along(self, axis: ast.expr | None) -> None:
        """Notes the axis argument of a call on a thin array, which is 0 in the port."""
        if axis is not None and ast.unparse(axis) not in ("0", "-1") and axis not in self.model.thin_axes:
            self.model.thin_axes.append(axis)

    def thin_made(self, node: ast.Call, dims: tuple[str, ...], shape: ast.expr, dtype: str) -> Value:
        """``jnp.zeros((1, n))``: a tile of its own, or thin; ``(1, 1)`` a number."""
        tile = self.tile(2, tuple_text(dims))
        self.rows_made.append((node, tile))
        ones = dims == ("1", "1")
        if not (ones or dims[1] == "1" or node in self.thin) or not isinstance(shape, (ast.Tuple, ast.List)):
            return Array(dims, tile, dtype=dtype)
        self.model.thin_shapes[shape] = "()" if ones else f"({ast.unparse(shape.elts[int(dims[0] == '1')])},)"
        if ones:
            return Scalar(ones=2)
        axis = int(dims[0] == "1")
        return Array(
            dims, self.tile(1, tuple_text((dims[axis],))), thin_axis=axis, axis_from_end=1 - axis, dtype=dtype
        )

    def scan_of_thin(self, node: ast.Call, value: Array, axis: ast.expr | None, env: dict[str, Value]) -> Value:
        along = self.eval(axis, env) if axis is not None else Unknown()
        if not isinstance(along, Scalar) or along.text not in (str(value.thin_axis), str(value.thin_axis - 2)):  # type: ignore[operator]
            self.find("B105", node, f"{ast.unparse(node)[:60]} does not run along the array, whose other dimension has extent 1")
            return Unknown("scan")
        self.thin_along(axis)
        return dataclasses.replace(value, run=None, mask=None)

    def broadcast(self, node: ast.Call, short: str, env: dict[str, Value]) -> Value:
        value = self.eval(node.args[0], env)
        dims = self.shape_argument(node.args[1] if len(node.args) > 1 else None, env)
        if isinstance(value, Scalar):
            return Array(dims, self.tile(dims and len(dims), tuple_text(dims or ()))) if dims else Unknown()
        if not isinstance(value, Array) or dims is None:
            return Unknown("broadcast")
        tile = self.tile(len(dims), tuple_text(dims))
        if value.thin_axis is not None:
            self.expand(node.args[0], value, tile, len(dims))
        elif value.rank == len(dims):
            tile.unify(value.tile)
        elif value.rank == 1 and len(dims) == 2:
            axis = 1
            if short == "broadcast_in_dim" and len(node.args) > 2:
                kept = self.eval(node.args[2], env)
                if isinstance(kept, TupleValue) and len(kept.items) == 1 and isinstance(kept.items[0], Scalar):
                    axis = int(kept.items[0].text) if kept.items[0].text.isdigit() else 1
            value.tile.vary(tile, axis)
        return Array(dims, tile, kind=value.kind, dtype=value.dtype)

    def expand_dims(self, node: ast.Call, env: dict[str, Value]) -> Value:
        value = self.eval(node.args[0], env)
        axis = node.args[1] if len(node.args) > 1 else next((k.value for k in node.keywords if k.arg == "axis"), None)
        text = ast.unparse(axis) if axis is not None else ""
        if isinstance(value, Array) and value.rank == 1 and text in ("0", "1", "-1"):
            return self.new_axis(node, node.args[0], value, 1 if text == "0" else 0)
        self.find("B105", node, f"{ast.unparse(node)[:60]}", "write x[:, None] or x[None, :] of an array of rank 1")
        return Unknown("expand_dims")

    def method(self, node: ast.Call, base: Value, func: ast.Attribute, env: dict[str, Value]) -> Value:
        keywords = {k.arg: k.value for k in node.keywords if k.arg}
        for a in node.args:
            if func.attr == "astype":
                self.eval(a, env)
        if func.attr == "astype":
            return self.converted(node, func.value, base, node.args[0] if node.args else keywords.get("dtype"))
        if isinstance(base, RefValue):
            self.find("B110", node, f"the ref method {func.attr}")
            return Unknown(func.attr)
        if func.attr in _REDUCTIONS:
            return self.reduction(node, f".{func.attr}", func.value, base, node.args, keywords, env)
        args = [self.eval(a, env) for a in node.args]
        if isinstance(base, Array):
            self.model.calls.append((node, f"jax.numpy.{func.attr}"))
            if func.attr in ("transpose",):
                return self.transpose(node, base)
            if base.thin_axis is not None and _flattens(func.attr, node.args):
                return self.squeezed(node, base, method=True)
            if func.attr == "reshape" and (pages := self.pages(node, func.value, env)) is not None:
                self.model.calls.pop()
                return pages
            if func.attr in ("reshape", "ravel", "squeeze", "flatten"):
                self.find("B105", node, f"{func.attr} of a register array")
                return Unknown(func.attr)
            return self.elementwise(node, [(func.value, base), *zip(node.args, args)])
        if any(map(_touches_refs, [*args, *(self.eval(k, env) for k in keywords.values())])):
            return self.handed_out(node)
        if isinstance(base, Scalar):
            text = ast.unparse(node) if base.text else ""
            return Scalar(base.static, (text,) if base.static and text else (UNKNOWN_FACTOR,), text if base.static else "", ones=base.ones)
        return Unknown(func.attr)

    def pages(self, node: ast.Call, load: ast.expr, env: dict[str, Value]) -> Value | None:
        """``ref[table].reshape(rows, columns)`` or ``ref[table].reshape(1, columns)`` of whole pages."""
        access = next((a for a in self.model.accesses if a.node is load and a.kind == "load" and a.mask is None), None)
        if access is None or not access.view or access.dims is None or not isinstance(load, ast.Subscript):
            return None
        first, *others = access.view
        vector = first.value
        if first.kind != "gather" or not isinstance(vector, Array) or vector.rank != 1 or not isinstance(load.slice, ast.Name):
            return None
        if any(ix.kind != "full" for ix in others) or len(access.ref.dims or ()) != len(access.dims):
            return None
        shape = node.args[0] if len(node.args) == 1 else ast.copy_location(ast.Tuple(list(node.args), ast.Load()), node)
        dims = self.shape_argument(shape, env)
        if dims is None or len(dims) != 2:
            return None
        if len(access.dims) == 3:
            result = Array(dims, self.tile(2, tuple_text(dims)))
        elif len(access.dims) == 2 and dims[0] == "1":
            result = Array(dims, self.tile(1, tuple_text(dims[1:])), thin_axis=1)
        else:
            return None
        if not any(p.node is node for p in self.model.pages):
            self.model.pages.append(Pages(node, load, load.slice, result))
        return result

    def grid_query(self, node: ast.Call, size: bool, env: dict[str, Value]) -> Value:
        arg = node.args[0] if node.args else next((k.value for k in node.keywords if k.arg == "axis"), None)
        axis = self.eval(arg, env) if arg is not None else Unknown()
        if not (isinstance(axis, Scalar) and axis.text.isdigit()):
            self.find("B113", node, "a grid axis that is not a literal number")
            return Scalar()
        if not any(q.node is node for q in self.model.grid_queries):
            self.model.grid_queries.append(GridQuery(node, int(axis.text), size))
        return Scalar(expr=f"{'num_programs' if size else 'program_id'}({axis.text})")

    def load_call(self, node: ast.Call, env: dict[str, Value]) -> Value:
        keywords = {k.arg: k.value for k in node.keywords if k.arg}
        base = self.eval(node.args[0], env) if node.args else Unknown()
        if len(node.args) != 1 or len(keywords) != len(node.keywords):
            self.find("B114", node, "a load whose arguments are passed with * or **", "write load(ref.at[index])")
            return Unknown("load")
        mask = keywords.get("mask")
        mask_value = self.eval(mask, env) if mask is not None else None
        other = self.eval(keywords["other"], env) if "other" in keywords else None
        for k in keywords:
            if k not in ("mask", "other", "eviction_policy", "cache_modifier", "volatile"):
                self.find("B110", node, f"load with {k}=")
        if not isinstance(base, (RefValue, ViewValue)):
            self.find("B104", node, f"a load from {ast.unparse(node.args[0]) if node.args else '?'}, which is not a kernel ref")
            return Unknown("load")
        if isinstance(mask, ast.Constant) and mask.value is None:
            mask = mask_value = None
        return self.load(node, base, (), mask, mask_value, other, "eviction_policy" in keywords, keywords.get("other"))

    def store_call(self, node: ast.Call, env: dict[str, Value]) -> Value:
        keywords = {k.arg: k.value for k in node.keywords if k.arg}
        base = self.eval(node.args[0], env) if node.args else Unknown()
        value_node = node.args[1] if len(node.args) > 1 else keywords.get("val")
        if len(node.args) > 2 or value_node is None or isinstance(value_node, ast.Starred):
            self.find("B114", node, "a store whose arguments are passed with * or **", "write store(ref.at[index], value)")
            return TupleValue(())
        value = self.eval(value_node, env)
        mask = keywords.get("mask")
        mask_value = self.eval(mask, env) if mask is not None else None
        if isinstance(mask, ast.Constant) and mask.value is None:
            mask = mask_value = None
        if not isinstance(base, (RefValue, ViewValue)):
            self.find("B104", node, f"a store to {ast.unparse(node.args[0])}, which is not a kernel ref")
            return TupleValue(())
        self.store(node, None, base, (), value, value_node, mask, mask_value)
        return TupleValue(())

    def atomic_call(self, node: ast.Call, operation: str, env: dict[str, Value]) -> Value:
        """``atomic_add(ref, index, value, mask=)`` and the like; ``atomic_cas(ref, expected, value)``."""
        swap = operation == "cas"
        names = ("ref", "cmp", "val") if swap else ("x_ref_or_view", "idx", "val")
        given = dict(zip(names, node.args)) | {k.arg: k.value for k in node.keywords if k.arg}
        stars = any(isinstance(a, ast.Starred) for a in node.args) or any(k.arg is None for k in node.keywords)
        if stars or not set(names) <= given.keys() or not given.keys() <= {*names, "mask"}:
            self.find("B110", node, f"atomic_{operation} with these arguments")
            return Unknown("atomic")
        if len(node.args) < 3:
            self.find("B110", node, f"atomic_{operation} with ref, index or value passed by keyword", "pass them by position")
        base = self.eval(given[names[0]], env)
        if not isinstance(base, (RefValue, ViewValue)):
            self.find("B104", node, f"an atomic operation on {ast.unparse(given[names[0]])}, which is not a kernel ref")
            return Unknown("atomic")
        if swap:
            self.eval(given["cmp"], env)
            index: tuple[Index, ...] = ()
        else:
            index = self.index(given["idx"], base, env)
        value = self.eval(given["val"], env)
        mask = given.get("mask")
        if isinstance(mask, ast.Constant) and mask.value is None:
            mask = None
        mask_value = self.eval(mask, env) if mask is not None else None
        return self.atomic(node, operation, base, index, value, given["val"], mask, mask_value)

    def ds(self, node: ast.Call, env: dict[str, Value]) -> Value:
        keywords = {k.arg: k.value for k in node.keywords if k.arg}
        start_node = node.args[0] if node.args else keywords["start"]
        size_node = node.args[1] if len(node.args) > 1 else keywords.get("size")
        if size_node is None:  # ``ds(None)`` is ``:``, ``ds(n)`` is ``:n``
            start_node, size_node = ast.copy_location(ast.Constant(0), node), start_node
            if isinstance(size_node, ast.Constant) and size_node.value is None:
                return SliceValue(Scalar(True, (), "0"), "", full=True)
        start = self.eval(start_node, env)
        size = self.eval(size_node, env)
        stride_node = node.args[2] if len(node.args) > 2 else keywords.get("stride")
        stride: int | None = 1
        if stride_node is not None:
            stride = stride_node.value if isinstance(stride_node, ast.Constant) else None
        if not isinstance(start, Scalar):
            self.find("B104", node, "pl.ds with a start that is not a number")
            return Unknown("ds")
        text = size.text if isinstance(size, Scalar) else ""
        if not text:
            self.find("B104", node, "pl.ds with a size that is not known")
        return SliceValue(start, text, stride=stride)

    def dot(self, node: ast.expr, left: ast.expr, right: ast.expr, name: str, env: dict[str, Value]) -> Value:
        a, b = self.eval(left, env), self.eval(right, env)
        if isinstance(node, ast.Call):
            for arg in node.args[2:]:
                self.eval(arg, env)
        dims: tuple[str, ...] | None = None
        if isinstance(a, Array) and isinstance(b, Array) and a.dims and b.dims:
            if len(a.dims) == 2 and len(b.dims) == 2:
                left_kept, right_kept = _kept_dimensions(node, name)
                dims = (a.dims[left_kept], b.dims[right_kept])
        result = Array(dims, self.tile(2, tuple_text(dims or ())), kind="float")
        for earlier in self.model.dots:
            if earlier.node is node and earlier.result.dims != dims:
                self.find("B105", node, "a product of other shapes in each call of the helper", "write one helper for each shape")
        if not any(d.node is node for d in self.model.dots):
            self.model.dots.append(Dot(node, left, right, a, b, result, name))
        return result


def _kept_dimensions(node: ast.expr, name: str) -> tuple[int, int]:
    """Which dimension of each operand a product of matrices does not contract, as far as literals say."""
    keywords = {k.arg: k.value for k in node.keywords} if isinstance(node, ast.Call) else {}
    flipped = [isinstance(f := keywords.get(k), ast.Constant) and f.value is True for k in ("trans_a", "trans_b")]
    numbers = keywords.get("dimension_numbers")
    if name == "jax.lax.dot_general" and isinstance(node, ast.Call) and len(node.args) > 2:
        numbers = node.args[2]
    try:
        (left,), (right,) = ast.literal_eval(numbers)[0] if numbers is not None else ((1,), (0,))
    except (ValueError, TypeError):
        left, right = 1, 0  # diagnosed where products are planned
    return 1 - (left % 2 ^ flipped[0]), 1 - (right % 2 ^ flipped[1])


def _touches_refs(value: Value) -> bool:
    """False only if a value is known to hold neither refs nor functions of the kernel."""
    if isinstance(value, TupleValue):
        return any(map(_touches_refs, value.items))
    if isinstance(value, Unknown):
        return value.why != "import"  # ``jnp.float32`` and the like
    return isinstance(value, (RefValue, ViewValue, FunctionValue))


def _axis_text(axis: Value) -> str:
    return axis.text if isinstance(axis, Scalar) else ""


def _flattens(name: str, args: list[ast.expr]) -> bool:
    """Whether a method of arrays leaves one dimension of an array with a dimension of extent 1."""
    return name in ("squeeze", "ravel", "flatten") and not args or name == "reshape" and [ast.unparse(a) for a in args] == ["-1"]
