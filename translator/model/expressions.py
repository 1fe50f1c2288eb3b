"""Expressions of a kernel: names, attributes, subscripts of arrays, shapes and tuples."""

from __future__ import annotations

import ast
import dataclasses

from ..names import walk
from ..values import (
    UNKNOWN_FACTOR,
    Array,
    FunctionValue,
    MaskTerm,
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
    Strip,
)
from .text import tuple_text


_IN_DICTIONARY = "refs in a dictionary"


class Expressions:
    """Expressions of a kernel: names, attributes, subscripts of arrays, shapes and tuples. Part of ``Interpreter``."""

    def eval(self, node: ast.expr, env: dict[str, Value]) -> Value:
        value = self._eval(node, env)
        self.model.values[node] = value
        self.evaluations[node] = self.evaluations.get(node, 0) + 1
        return value

    def _eval(self, node: ast.expr, env: dict[str, Value]) -> Value:
        match node:
            case ast.Constant(bool()):
                return Scalar(True, (UNKNOWN_FACTOR,), repr(node.value))
            case ast.Constant(int()):
                terms = () if node.value == 0 else (str(node.value),)
                return Scalar(True, terms, str(node.value))
            case ast.Constant():
                return Scalar(True, (UNKNOWN_FACTOR,), repr(node.value))
            case ast.Name():
                return self.name(node, env)
            case ast.Tuple(elts) | ast.List(elts):
                return TupleValue(tuple(self.eval(e, env) for e in elts))
            case ast.Attribute():
                return self.attribute(node, env)
            case ast.Subscript():
                return self.subscript(node, env)
            case ast.BinOp(left, op, right):
                if isinstance(op, ast.MatMult):
                    return self.dot(node, left, right, "@", env)
                return self.binary(
                    node, op, left, self.eval(left, env), right, self.eval(right, env)
                )
            case ast.UnaryOp(op, operand):
                return self.unary(node, op, operand, self.eval(operand, env))
            case ast.Compare():
                return self.compare(node, env)
            case ast.BoolOp(_, values):
                for v in values:
                    self.eval(v, env)
                return Scalar(all(isinstance(self.model.values[v], Scalar) for v in values))
            case ast.IfExp(test, body, orelse):
                known = self.truth(self.eval(test, env))
                if known is not None:
                    return self.eval(body if known else orelse, env)
                return self.either(node, self.join(self.eval(body, env), self.eval(orelse, env)))
            case ast.Call():
                return self.call(node, env)
            case ast.Lambda():
                return FunctionValue(node, env)
            case ast.NamedExpr(target, value):
                result = self.eval(value, env)
                env[target.id] = self.named(target.id, result)
                return result
            case ast.Starred(value):
                return self.eval(value, env)
            case ast.Dict(_, values) | ast.Set(values):
                if any(holds_refs(self.eval(v, env)) for v in values):
                    self.find("B104", node, "refs in a dictionary or set", "keep them in variables or a tuple")
                return Unknown("literal")
            case ast.JoinedStr() | ast.FormattedValue():
                for child in ast.iter_child_nodes(node):
                    if isinstance(child, ast.expr):
                        self.eval(child, env)
                return Unknown("literal")
            case ast.ListComp() | ast.GeneratorExp() | ast.DictComp() | ast.SetComp():
                self.find("B101", node, "a comprehension in a kernel", "write it as a loop")
                return Unknown("comprehension")
            case _:
                return Unknown(type(node).__name__)

    def name(self, node: ast.Name, env: dict[str, Value]) -> Value:
        if node.id in env:
            return self.either(node, env[node.id])
        target = self.resolver.value(node)
        if isinstance(target, (ast.FunctionDef, ast.Lambda)):
            return FunctionValue(target, {})
        if self.resolver.qualified(node):
            return Unknown("import")
        if isinstance(target, ast.Call) and _makes_array(self.resolver.qualified(target.func) or ""):
            self.find("B110", node, f"{node.id} is a JAX array made outside of the kernel, which Mosaic GPU cannot capture",
                      "make it a number of Python or NumPy, or pass it as an operand")
        if isinstance(target, ast.Constant) and isinstance(target.value, int):
            return Scalar(True, () if target.value == 0 else (node.id,), node.id)
        return Scalar(True, (node.id,), node.id)

    def attribute(self, node: ast.Attribute, env: dict[str, Value]) -> Value:
        if self.resolver.qualified(node) and not self.is_local(node, env):
            return Unknown("import")
        base = self.eval(node.value, env)
        if isinstance(base, (RefValue, ViewValue)):
            ref = base if isinstance(base, RefValue) else base.ref
            match node.attr:
                case "shape":
                    if isinstance(base, ViewValue):
                        return ShapeOf(ast.unparse(node.value), None)
                    return ShapeOf(ref.name, ref.dims)
                case "at":
                    return base
                case "ndim":
                    return Scalar(True, (UNKNOWN_FACTOR,), f"{ref.name}.ndim")
            return Scalar(True, (UNKNOWN_FACTOR,), f"{ref.name}.{node.attr}")
        if isinstance(base, Array):
            match node.attr:
                case "shape":
                    return TupleValue(
                        tuple(Scalar(True, (d,), d) for d in base.dims)
                    ) if base.dims is not None else ShapeOf(ast.unparse(node.value), None)
                case "T":
                    return self.transpose(node, base)
                case "ndim" if base.dims is not None:
                    return Scalar(True, (UNKNOWN_FACTOR,), str(len(base.dims)))
                case "dtype" | "ndim":
                    return Scalar(True, (UNKNOWN_FACTOR,), "")
            return Unknown(node.attr)
        if isinstance(base, Scalar) and base.static:
            text = f"{base.text}.{node.attr}" if base.text else ""
            return Scalar(True, (text or UNKNOWN_FACTOR,), text)
        return Unknown(node.attr)

    def is_local(self, node: ast.expr, env: dict[str, Value]) -> bool:
        while isinstance(node, ast.Attribute):
            node = node.value
        return isinstance(node, ast.Name) and node.id in env

    def transpose(self, node: ast.expr, base: Array) -> Value:
        """A transposed array: the plan allows it as an operand of a product only."""
        self.model.calls.append((node, ".T"))
        dims = None if base.dims is None else base.dims[::-1]
        return Array(dims, self.tile(base.rank), kind=base.kind, dtype=base.dtype)

    def subscript(self, node: ast.Subscript, env: dict[str, Value]) -> Value:
        base = self.eval(node.value, env)
        if isinstance(base, (RefValue, ViewValue)):
            if isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str):
                self.find("B104", node, f"{ast.unparse(node)[:60]}: refs in a dictionary", "pass each array as an argument of its own")
                return Unknown(_IN_DICTIONARY)
            index = self.index(node.slice, base, env)
            if isinstance(node.value, ast.Attribute) and node.value.attr == "at":
                ref = base if isinstance(base, RefValue) else base.ref
                if isinstance(base, ViewValue):
                    self.find("B104", node, "a view of a view (.at[...].at[...])", "index once")
                return ViewValue(ref, index)
            return self.load(node, base, index, None, None, None)
        if isinstance(base, ShapeOf):
            item = self.eval(node.slice, env)
            if isinstance(item, Scalar) and item.static and item.text:
                text = item.text
                if base.dims is not None and text.lstrip("-").isdigit() and abs(int(text)) <= len(base.dims):
                    text = str(int(text) % len(base.dims)) if base.dims else text
                text = f"{base.base}.shape[{text}]"
                return Scalar(True, (text,), text)
            if isinstance(node.slice, ast.UnaryOp):
                text = f"{base.base}.shape[{ast.unparse(node.slice)}]"
                return Scalar(True, (text,), text)
            return Scalar(True)
        if isinstance(base, TupleValue):
            item = self.eval(node.slice, env)
            if isinstance(item, Scalar) and item.text.lstrip("-").isdigit():
                position = int(item.text)
                if -len(base.items) <= position < len(base.items):
                    return base.items[position]
            return Unknown("element")
        if isinstance(base, Array):
            return self.array_subscript(node, base, env)
        if isinstance(base, Scalar) and base.static:
            self.eval(node.slice, env)
            return Scalar(True, (UNKNOWN_FACTOR,), ast.unparse(node) if base.text else "")
        if isinstance(base, Scalar):
            self.find("B105", node, f"{ast.unparse(node)[:60]} indexes what is one number in the port")
        if isinstance(base, Unknown) and base.why == "refs":
            item = self.eval(node.slice, env)
            if isinstance(item, Scalar) and item.text.isdigit():
                return self.further_ref(int(item.text), ast.unparse(node))
        elif isinstance(base, Unknown) and not isinstance(node.value, ast.Call) and not base.why.startswith("either") and base.why != _IN_DICTIONARY and self.indexes_ref(node.slice, env):
            self.find("B104", node, f"{ast.unparse(node.value)[:60]} may be a ref or an array, and where it comes from was not followed",
                      "keep refs and arrays in variables or tuples")
        return Unknown("subscript")

    def indexes_ref(self, node: ast.expr, env: dict[str, Value]) -> bool:
        """Whether an index makes sense for refs and arrays alone: ``...``, ``None``, ``pl.ds``, what is not static."""
        if isinstance(node, ast.Slice):
            return False
        parts = node.elts if isinstance(node, ast.Tuple) else [node]
        values = [self.eval(p, env) for p in parts if not isinstance(p, ast.Slice)]
        moving = any(isinstance(v, (SliceValue, Array)) or isinstance(v, Scalar) and not v.static for v in values)
        return moving or any(isinstance(p, ast.Constant) and p.value in (None, ...) for p in parts)

    def array_subscript(self, node: ast.Subscript, base: Array, env: dict[str, Value]) -> Value:
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        is_none = [isinstance(p, ast.Constant) and p.value is None for p in parts]
        is_full = [
            isinstance(p, ast.Slice) and p.lower is None and p.upper is None and p.step is None
            for p in parts
        ]
        is_dots = [isinstance(p, ast.Constant) and p.value is Ellipsis for p in parts]
        unit = 1 - base.thin_axis if base.thin_axis is not None else None
        if unit is not None and len(parts) > unit and _is_zero(parts[unit]) and sum(is_full) == len(parts) - 1:
            return self.squeezed(node, base)
        if not all(n or f or d for n, f, d in zip(is_none, is_full, is_dots)) or sum(is_dots) > 1:
            self.find("B105", node, f"indexing of a register array: {ast.unparse(node)}",
                      "index the ref instead, in the load")
            return Unknown("register index")
        if base.thin_axis is not None:
            self.find("B105", node, "a second new axis on a thin array")
            return Unknown("new axis")
        if base.dims is None:  # one index beside one new axis: the array has rank 1
            ref = self.loaded_from(node.value)
            if len(parts) != 2 or sum(is_none) != 1 or ref is None:
                self.find("B105", node, f"a new axis on {ast.unparse(node.value)}, whose rank is not known")
                return Unknown("new axis")
            self.model.ref_ranks[ref.name] = 1
            base = dataclasses.replace(base, dims=(f"{ref.name}.shape[0]",))
            base.tile.find().rank = 1
        dims: list[str] = []
        rest = list(base.dims)
        for none, dots in zip(is_none, is_dots):
            if none:
                dims.append("1")
            elif dots:
                keep = len(rest) - sum(is_full)
                dims += [rest.pop(0) for _ in range(keep)]
            else:
                dims.append(rest.pop(0))
        dims += rest
        if not any(is_none):
            return base
        if len(base.dims) != 1 or len(dims) != 2:
            self.find("B105", node, f"a new axis that makes an array of rank {len(dims)}")
            return Unknown("new axis")
        axis = 0 if dims[1] == "1" and not is_none[0] else 1
        return self.new_axis(node, node.value, base, axis)

    def new_axis(self, node: ast.expr, operand: ast.expr, base: Array, axis: int) -> Array:
        """``operand[:, None]`` (axis 0) or ``operand[None, :]``: the vector varies along ``axis``."""
        assert base.dims is not None
        self.model.strips.setdefault(node, Strip(node))
        text = self.repeated(operand, base, axis)
        if text:
            self.model.repeats[operand] = text
            base = dataclasses.replace(base, tile=self.tile(1, tuple_text(base.dims)))
        dims = (base.dims[0], "1") if axis == 0 else ("1", base.dims[0])
        return dataclasses.replace(
            base, dims=dims, thin_axis=axis, axis_from_end=1 - axis, mask=self.shift(base.mask, 1 - axis)
        )

    def squeezed(self, node: ast.expr, base: Array, method: bool = False) -> Array:
        """A thin array without its dimension of extent 1."""
        assert base.dims is not None and base.thin_axis is not None
        self.model.strips.setdefault(node, Strip(node, method))
        return dataclasses.replace(
            base, dims=(base.dims[base.thin_axis],), thin_axis=None, axis_from_end=0,
            mask=self.shift(base.mask, -base.axis_from_end),
        )

    def repeated(self, node: ast.expr, base: Array, axis: int) -> str:
        """The text of an index vector that already runs along the other axis of a tile, "" if it does not
        or was not computed from numbers alone: a register array has one layout, so it is computed again."""
        made = self.resolver.value(node)
        if not isinstance(node, ast.Name) or self.axes.setdefault(made, axis) == axis:
            return ""
        again = self.index_tree(made)
        names = [n.id for n in walk(again) if isinstance(n, ast.Name)] if again is not None else []
        here, there = self.resolver.scope_of(node), self.resolver.scope_of(made)
        bound = [(here.find(n) or (None, []))[1] for n in names]
        same = all(len(b) == 1 and (there.find(n) or (None, None))[1] is b for n, b in zip(names, bound))
        return ast.unparse(again) if again is not None and same else ""

    def index_tree(self, node: ast.expr) -> ast.expr | None:
        """``node`` with the arrays in it written out, if it is made of index vectors and numbers alone."""
        value = self.model.values.get(node)
        if isinstance(value, Scalar):
            known = [n for n in walk(node) if isinstance(n, ast.Name) and self.resolver.binding(n) is not None]
            names = [n for n in walk(node) if isinstance(n, ast.Name)]
            calls = any(isinstance(n, ast.Call) for n in walk(node))
            return None if calls or len(known) < len(names) else node
        if not isinstance(value, Array):
            return None
        match node:
            case ast.Name():
                made = self.resolver.value(node)
                return self.index_tree(made) if made is not node else None
            case ast.Call(func, args):
                vector = (self.resolver.qualified(func) or "").endswith((".arange", ".iota"))
                return node if vector and not any(isinstance(n, ast.Call) for a in args for n in walk(a)) else None
            case ast.BinOp(left, op, right):
                parts = self.index_tree(left), self.index_tree(right)
                return ast.BinOp(parts[0], op, parts[1]) if None not in parts else None
            case ast.Compare(left, [op], [right]):
                parts = self.index_tree(left), self.index_tree(right)
                return ast.Compare(parts[0], [op], [parts[1]]) if None not in parts else None
        return None

    def loaded_from(self, node: ast.expr) -> RefValue | None:
        """The ref that ``node`` loads, if it is a load or a name for one."""
        nodes = (node, self.resolver.value(node))
        return next((a.ref for a in self.model.accesses if a.node in nodes and a.kind == "load" and a.view == ()), None)

    def shift(self, mask: tuple[MaskTerm, ...] | None, by: int) -> tuple[MaskTerm, ...] | None:
        if mask is None:
            return None
        return tuple(dataclasses.replace(t, axis_from_end=t.axis_from_end + by) for t in mask)


def _is_zero(part: ast.expr) -> bool:
    return isinstance(part, ast.Constant) and part.value == 0 and not isinstance(part.value, bool)


def _makes_array(function: str) -> bool:
    """Whether a function of JAX returns an array."""
    module, _, name = function.rpartition(".")
    return module == "jax.numpy" and name not in (
        "dtype", "finfo", "iinfo", "issubdtype", "ndim", "promote_types", "result_type", "shape", "size",
    )
