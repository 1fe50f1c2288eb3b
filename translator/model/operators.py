"""Operators on scalars and arrays; broadcasting and thin arrays."""

from __future__ import annotations

import ast
import dataclasses

from ..names import walk
from ..values import (
    UNKNOWN_FACTOR,
    Array,
    MaskTerm,
    RefValue,
    Scalar,
    Tile,
    TupleValue,
    Unknown,
    Value,
    ViewValue,
)
from .events import (
    Expand,
    SquareRoot,
)
from .text import add_texts, tuple_text, wrap


_INTEGERS = {"bool", "int8", "int16", "int32", "uint8", "uint16", "uint32"}


class Operators:
    """Operators on scalars and arrays; broadcasting and thin arrays. Part of ``Interpreter``."""

    def unary(self, node: ast.expr, op: ast.unaryop, operand: ast.expr, value: Value) -> Value:
        if isinstance(value, Scalar):
            text = f"{'-' if isinstance(op, ast.USub) else ''}{value.text}"
            if isinstance(op, ast.USub):
                return Scalar(value.static, value.terms, text if value.text else "", ones=value.ones)
            return Scalar(value.static, (UNKNOWN_FACTOR,), ast.unparse(node) if value.text else "", ones=value.ones)
        if isinstance(value, Array):
            if isinstance(op, ast.Invert) and value.kind in ("bool", ""):
                self.model.calls.append((node, f"~{value.kind}"))
            return dataclasses.replace(value, run=None, mask=None)
        return value

    def binary(
        self, node: ast.AST, op: ast.operator, left: ast.expr, a: Value, right: ast.expr, b: Value
    ) -> Value:
        if isinstance(op, ast.Div):
            self.division(node, left, right)
        if isinstance(op, ast.Pow):
            self.power(node, a, b, right)
        if isinstance(op, (ast.FloorDiv, ast.Mod)):
            self.remainder(node, op, ((left, a), (right, b)))
        if isinstance(a, Scalar) and isinstance(b, Scalar):
            return self.scalar_binary(node, op, a, b)
        if isinstance(a, TupleValue) and isinstance(b, TupleValue) and isinstance(op, ast.Add):
            return TupleValue(a.items + b.items)
        if isinstance(a, (RefValue, ViewValue)) or isinstance(b, (RefValue, ViewValue)):
            return Unknown("arithmetic on a ref")
        result = self.elementwise(node, [(left, a), (right, b)])
        if not isinstance(result, Array):
            return result
        run = mask = None
        start = ""
        arrays = [v for v in (a, b) if isinstance(v, Array)]
        scalars = [v for v in (a, b) if isinstance(v, Scalar)]
        if isinstance(op, (ast.Add, ast.Sub)) and len(arrays) == 1 and scalars:
            forward = isinstance(op, ast.Add) or arrays[0] is a
            if arrays[0].run is not None and forward:
                run = arrays[0].run + scalars[0].terms
                start = add_texts(arrays[0].start, scalars[0].expr)
        if isinstance(op, ast.BitAnd) and len(arrays) == 2:
            if arrays[0].mask is not None and arrays[1].mask is not None:
                mask = arrays[0].mask + arrays[1].mask
        floats = any(isinstance(v, Scalar) and isinstance(n, ast.Constant) and isinstance(n.value, float)
                     for n, v in ((left, a), (right, b)))
        division = isinstance(op, ast.Div)
        kind = "float" if division or floats else result.kind
        dtype = "" if result.dtype in _INTEGERS and (floats or division) else result.dtype
        axis = arrays[0].axis_from_end if len(arrays) == 1 else result.axis_from_end
        return dataclasses.replace(
            result, run=run, start=start, mask=mask, kind=kind, axis_from_end=axis, dtype=dtype
        )

    def scalar_binary(self, node: ast.AST, op: ast.operator, a: Scalar, b: Scalar) -> Scalar:
        static = a.static and b.static
        symbol = {
            ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.FloorDiv: "//", ast.Mod: "%",
            ast.Div: "/", ast.Pow: "**",
        }.get(type(op))
        text = ""
        if a.text and b.text and symbol:
            text = f"{wrap(a.text)} {symbol} {wrap(b.text)}"
        terms: tuple[str, ...] = (UNKNOWN_FACTOR,)
        if isinstance(op, (ast.Add, ast.Sub)):
            terms = tuple(dict.fromkeys(a.terms + b.terms))
        elif isinstance(op, ast.Mult):
            if a.terms == () or b.terms == ():
                terms = ()
            elif static and text:
                terms = (text,)
            elif b.static and b.text:
                terms = (b.text,)
            elif a.static and a.text:
                terms = (a.text,)
        elif static and text:
            terms = (text,)
        expr = f"{wrap(a.expr)} {symbol} {wrap(b.expr)}" if a.expr and b.expr and symbol else ""
        return Scalar(static, terms, text if static else "", expr, max(a.ones, b.ones))

    def division(self, node: ast.AST, left: ast.expr, right: ast.expr) -> None:
        if not (isinstance(right, ast.Call) and isinstance(node, ast.BinOp)):
            return
        operand = self.model.values.get(right.args[0]) if right.args else None
        if isinstance(operand, Array) and operand.kind == "int":
            return  # jnp.sqrt makes a float of it, lax.rsqrt would not
        known = not (isinstance(operand, Array) and not operand.kind and operand.dtype.endswith(".dtype"))
        for i, root in enumerate(self.model.square_roots):
            if root.call is right and root.form == "plain":
                one = isinstance(left, ast.Constant) and left.value == 1
                self.model.square_roots[i] = SquareRoot(node, right, "reciprocal" if one else "quotient", known)

    def remainder(self, node: ast.AST, op: ast.operator, operands: tuple[tuple[ast.expr, Value], ...]) -> None:
        """``//`` or ``%`` of what may be floats."""
        traced = any(isinstance(v, Array) or isinstance(v, Scalar) and not v.static for _, v in operands)
        if not traced or not any(_may_be_float(n, v) for n, v in operands):
            return
        if isinstance(node, ast.BinOp):
            self.model.calls.append((node, "operator.mod" if isinstance(op, ast.Mod) else "operator.floordiv"))
        else:
            self.find("B120", node, f"{ast.unparse(node)[:60]}: Mosaic GPU has no remainder of floats",
                      "write x = x % y, which a support function replaces")

    def power(self, node: ast.AST, a: Value, b: Value, exponent: ast.expr) -> None:
        integer = isinstance(exponent, ast.Constant) and isinstance(exponent.value, int)
        if isinstance(exponent, ast.UnaryOp) and isinstance(exponent.operand, ast.Constant):
            integer = isinstance(exponent.operand.value, int)
        if any(isinstance(v, Array) or isinstance(v, Scalar) and not v.static for v in (a, b)):
            self.model.calls.append((node, "jax.lax.integer_pow" if integer else "operator.pow"))

    def compare(self, node: ast.Compare, env: dict[str, Value]) -> Value:
        values = [self.eval(v, env) for v in (node.left, *node.comparators)]
        nodes = [node.left, *node.comparators]
        if not any(isinstance(v, Array) for v in values):
            return Scalar(all(isinstance(v, Scalar) and v.static for v in values), text=_outcome(node, values))
        if len(node.ops) > 1:
            self.find("B101", node, "a chained comparison of arrays")
            return Unknown("chained comparison")
        result = self.elementwise(node, list(zip(nodes, values)))
        if not isinstance(result, Array):
            return result
        mask: tuple[MaskTerm, ...] | None = None
        arrays = [v for v in values if isinstance(v, Array)]
        scalars = [v for v in values if isinstance(v, Scalar)]
        if len(arrays) == 1 and scalars and arrays[0].run is not None:
            exact = isinstance(node.ops[0], (ast.Lt, ast.GtE) if values[0] is arrays[0] else (ast.Gt, ast.LtE))
            divisors = arrays[0].run + scalars[0].terms if exact else None
            less = isinstance(node.ops[0], ast.Lt if values[0] is arrays[0] else ast.Gt)
            bound = scalars[0].expr if less else ""
            mask = (MaskTerm(arrays[0].axis_from_end, divisors, arrays[0].start, bound),)
        elif len(arrays) == 1 and scalars and arrays[0].kind == "bool" and scalars[0].static and isinstance(
            node.ops[0], ast.Lt if values[0] is arrays[0] else ast.Gt
        ):
            mask = (MaskTerm(arrays[0].axis_from_end, None, many=scalars[0].expr),)
        elif arrays and all(a.thin_axis is not None or a.rank == 1 for a in arrays):
            axes = {a.axis_from_end for a in arrays}
            if len(axes) == 1:
                mask = (MaskTerm(axes.pop(), None),)
        return dataclasses.replace(result, kind="bool", dtype="bool", run=None, mask=mask)

    def elementwise(
        self, node: ast.AST, operands: list[tuple[ast.expr, Value]], unconverted: tuple[ast.expr, ...] = ()
    ) -> Value:
        """Broadcasts operands as numpy does and records which thin arrays need expanding.

        unconverted: operands that keep their dtype, such as a condition.
        """
        arrays = [(n, v) for n, v in operands if isinstance(v, Array)]
        if not arrays:
            static = all(isinstance(v, Scalar) and v.static for _, v in operands)
            if all(isinstance(v, Scalar) for _, v in operands):
                return Scalar(static, ones=max((v.ones for _, v in operands), default=0))  # type: ignore[union-attr]
            return Unknown("operands")
        kind = next((v.kind for _, v in arrays if v.kind == "float"), arrays[0][1].kind)
        dtype = common_dtype([v for n, v in operands if n not in unconverted])
        if any(v.dims is None for _, v in arrays):
            return self.elementwise_unranked(node, operands, kind, dtype)
        rank = max(len(v.dims) for _, v in arrays)  # type: ignore[arg-type]
        for n, v in operands:
            if isinstance(v, Scalar) and v.ones > rank:
                self.find("B105", n, f"{ast.unparse(n)[:60]} gives arrays of lower rank a dimension of extent 1", "drop keepdims")
        dims = ["1"] * rank
        for _, v in arrays:
            for offset, d in enumerate(reversed(v.dims)):  # type: ignore[arg-type]
                if dims[-1 - offset] == "1":
                    dims[-1 - offset] = d
        thin = [(n, v) for n, v in arrays if v.thin_axis is not None]
        same_thin = {v.thin_axis for _, v in thin}
        if thin and len(thin) == len(arrays) and len(same_thin) == 1:
            first = thin[0][1]
            for _, v in thin[1:]:
                first.tile.unify(v.tile)
            return Array(tuple(dims), first.tile, thin_axis=first.thin_axis, kind=kind,
                         axis_from_end=first.axis_from_end, dtype=dtype)
        full = [v for _, v in arrays if v.thin_axis is None and len(v.dims) == rank]  # type: ignore[arg-type]
        if rank == 2 and (dims[0] != "1" or any(v.thin_axis == 1 for _, v in arrays)):
            rows = [v for v in full if v.dims[0] == "1"]  # type: ignore[index]
            self.met_tiles += [v.tile for v in rows]
            full = [v for v in full if v not in rows]
        tile = full[0].tile if full else self.tile(rank)
        for v in full[1:]:
            tile.unify(v.tile)
        for n, v in arrays:
            if v.thin_axis is not None:
                if rank == 2 and dims[1 - v.thin_axis] == "1":
                    self.find("B105", node, f"{ast.unparse(node)[:60]} has a dimension of extent 1",
                              "leave that dimension out and add it where the array meets a tile: c[:, None]")
                kept = n in unconverted or v.dtype in ("float32", dtype) and v.dtype
                self.expand(n, v, tile, rank, "" if kept else self.shape_of_tile(node, arrays, dims))
            elif v.rank == 1 and rank == 2:
                v.tile.vary(tile, 1)
        return Array(tuple(dims), tile, kind=kind, dtype=dtype,
                     axis_from_end=full[0].axis_from_end if len(full) == 1 else 0)

    def shape_of_tile(self, node: ast.AST, arrays: list[tuple[ast.expr, Array]], dims: list[str]) -> str:
        """Source text, valid at ``node``, of the shape of the tile that these arrays are broadcast to; "" if unknown."""
        for n in [part for operand, _ in arrays for part in walk(operand)]:
            v = self.model.values.get(n)
            if isinstance(n, ast.Name) and isinstance(v, Array) and v.thin_axis is None and v.dims == tuple(dims):
                return f"{n.id}.shape"
        for ref in self.model.refs:
            if ref.dims is not None and dims == [f"{ref.name}.shape[{i}]" for i in range(len(ref.dims))]:
                dims = [f"{ref.name}.shape"]
        text = dims[0] if len(dims) == 1 else tuple_text(tuple(dims))
        here, there = self.resolver.scope_of(node), self.resolver.scopes[self.model.kernel]
        names = [n.id for n in walk(ast.parse(text)) if isinstance(n, ast.Name)]
        same = all((here.find(n) or (None, None))[1] is (there.find(n) or (None, None))[1] for n in names)
        return text if same else ""

    def elementwise_unranked(
        self, node: ast.AST, operands: list[tuple[ast.expr, Value]], kind: str, dtype: str
    ) -> Value:
        """Arrays of unknown rank are taken to have the rank of what they meet (or be scalars)."""
        ranked = [(n, v) for n, v in operands if not (isinstance(v, Array) and v.dims is None)]
        unranked = [v for _, v in operands if isinstance(v, Array) and v.dims is None]
        known = self.elementwise(node, ranked) if any(isinstance(v, Array) for _, v in ranked) else None
        first = known if isinstance(known, Array) else unranked[0]
        for v in unranked:
            if v is not first:
                first.tile.unify(v.tile)
        return dataclasses.replace(first, kind=kind, dtype=dtype, run=None, mask=None)

    def expand(self, node: ast.expr, value: Array, tile: Tile, rank: int, shape: str = "") -> None:
        assert value.thin_axis is not None
        value.tile.vary(tile, value.thin_axis)
        if node in self.model.strips:
            del self.model.strips[node]
        self.expansions[node] = self.expansions.get(node, 0) + 1
        old = self.model.expands.setdefault(node, Expand(node, value.thin_axis, rank, shape))
        if shape and not old.shape:  # a helper that another call gives an array of another dtype
            self.model.expands[node] = dataclasses.replace(old, shape=shape)
        if old.axis != value.thin_axis:
            self.find("B105", node, f"{ast.unparse(node)[:40]} runs along rows in one call and along columns in another",
                      "write one helper for each shape")


def _may_be_float(node: ast.expr, value: Value) -> bool:
    """False for integers: arrays that count, numbers that index, and literals."""
    if isinstance(value, Array):
        return value.kind not in ("int", "bool")
    if isinstance(value, Scalar) and value.static:
        return any(isinstance(n, ast.Constant) and isinstance(n.value, float) for n in walk(node))
    return not (isinstance(value, Scalar) and value.expr)


def common_dtype(values: list[Value]) -> str:
    """What the dtype of the arrays and numbers of an operation is promoted to, "" where that is not known."""
    names = {v.dtype for v in values if isinstance(v, Array)}
    traced = any(isinstance(v, Scalar) and not v.static and not v.expr for v in values)
    if len(names) == 1 and not traced:  # numbers of the source are weak, and indices are int32
        return names.pop()
    return "float32" if "float32" in names else ""  # the widest that ports take


def _outcome(node: ast.Compare, values: list[Value]) -> str:
    """``True`` or ``False`` for a comparison of two literal integers, else empty."""
    texts = [v.text for v in values if isinstance(v, Scalar)]
    if len(values) != 2 or len(texts) != 2 or not all(t.isdigit() for t in texts):
        return ""
    a, b = map(int, texts)
    match node.ops[0]:
        case ast.Eq():
            return str(a == b)
        case ast.NotEq():
            return str(a != b)
        case ast.Lt():
            return str(a < b)
        case ast.LtE():
            return str(a <= b)
        case ast.Gt():
            return str(a > b)
        case ast.GtE():
            return str(a >= b)
    return ""
