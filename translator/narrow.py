"""Operations on values of 8 bits, which Mosaic GPU only loads, stores and converts.

A port computes on 8-bit integers in int32 (``_in_int32``), and converts bools and 8-bit floats by the ways
that the hardware has (``_convert``). Which values are narrow the source says where it names their dtype, or a
recording does for a ref; elsewhere JAX refuses the port when it is traced.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from .facts import SiteFacts
from .model.events import Conversion, KernelModel
from .names import Resolver
from .values import Array

_INTEGERS = frozenset({"int8", "uint8"})
_FLOATS = frozenset({"float8_e4m3fn", "float8_e5m2"})
_WIDE_FLOATS = frozenset({"float32", "float16"})
_OPERATORS: dict[type, str] = {
    ast.Add: "add", ast.Sub: "subtract", ast.Mult: "multiply", ast.Pow: "power", ast.LShift: "left_shift",
    ast.FloorDiv: "floor_divide", ast.Mod: "remainder", ast.RShift: "right_shift", ast.USub: "negative", ast.Lt: "less", ast.LtE: "less_equal", ast.Gt: "greater",
    ast.GtE: "greater_equal",
}
_FUNCTIONS = frozenset(f"jax.numpy.{name}" for name in (
    "add", "subtract", "multiply", "power", "left_shift", "right_shift", "negative", "less", "less_equal", "greater",
    "greater_equal", "maximum", "minimum", "where", "abs", "sign", "square", "clip", "max", "min",
)) | {"jax.nn.relu", "jax.lax.max", "jax.lax.min"}


class Narrow:
    """What is narrow in the kernel of some sites: by literal dtypes and by what recordings show of its refs."""

    def __init__(self, model: KernelModel, resolver: Resolver, found: dict[int, tuple[SiteFacts, ...]]) -> None:
        self._model, self._resolver = model, resolver
        self._recorded: dict[str, set[str]] = {}
        for facts in (f for recordings in found.values() for f in recordings):
            for ref, operand in zip(model.refs, (*facts.inputs, *facts.outputs)):
                self._recorded.setdefault(f"{ref.name}.dtype", set()).add(operand.array.dtype)

    def _among(self, dtype: str, wanted: frozenset[str]) -> bool:
        return dtype in wanted or not wanted.isdisjoint(self._recorded.get(dtype, ()))

    def operations(self) -> Iterator[tuple[ast.expr, str]]:
        """Operations on 8-bit integers: (node, name of the operator's function in jax.numpy, "" for a call)."""
        for node in self._model.values:
            operands, function = self._operands(node)
            values = (self._model.values.get(o) for o in operands)
            if any(isinstance(v, Array) and self._among(v.dtype, _INTEGERS) for v in values):
                yield node, function  # type: ignore[misc]

    def _operands(self, node: ast.AST) -> tuple[list[ast.expr], str]:
        match node:
            case ast.BinOp(left, op, right) if type(op) in _OPERATORS:
                return [left, right], _OPERATORS[type(op)]
            case ast.Compare(left, [op], [right]) if type(op) in _OPERATORS:
                return [left, right], _OPERATORS[type(op)]
            case ast.UnaryOp(op, operand) if type(op) in _OPERATORS:
                return [operand], _OPERATORS[type(op)]
            case ast.Call(func, args) if self._resolver.qualified(func) in _FUNCTIONS:
                return args, ""
            case ast.Call(ast.Name("abs"), args) if self._resolver.qualified(node.func) is None:  # type: ignore[attr-defined]
                return args, ""
        return [], ""

    def converts(self, conversion: Conversion) -> bool:
        """Whether Mosaic GPU may not convert so by itself."""
        if conversion.after in ("bool", "bool_"):
            return conversion.before != "bool"
        after, before = (self._among(d, _FLOATS) for d in (conversion.after, conversion.before))
        return after and conversion.before not in _WIDE_FLOATS or before and conversion.after not in _WIDE_FLOATS
