"""Which operand each aliased result replaces: ``input_output_aliases`` as positions of kernel parameters.

JAX counts the operands that are there: an operand that is None has no position.  So ``{8 if flag else 7: 4}``
may name one and the same parameter for an operand that ``flag`` makes optional.  The dictionary is read
for every combination of optional operands, and must name the same parameters in all of them.
"""

from __future__ import annotations

import ast
import itertools

from .names import Resolver
from .specs import Spec, negated

_MOST_OPTIONAL = 4


def alias_positions(node: ast.expr, specs: tuple[Spec, ...] | None, resolver: Resolver) -> dict[int, int] | None:
    """{parameter: result}; None if the dictionary cannot be read or names different ones.

    specs: of the inputs, None if the call has none.
    """
    value = resolver.value(node)
    if not isinstance(value, ast.Dict) or None in value.keys:
        return None
    unless = [s.unless for s in specs or () if s.unless is not None]
    names = [n for test in unless for n in ast.walk(test) if isinstance(n, ast.Name)]
    if any(len(resolver.visible(n)) > 1 for n in names):
        return None  # the test may have another outcome where the dictionary is made
    absent = {i: ast.unparse(s.unless) for i, s in enumerate(specs or ()) if s.unless is not None}
    conditions = sorted(set(absent.values()))
    if len(conditions) > _MOST_OPTIONAL:
        return None
    found: list[dict[int, int]] = []
    for truths in itertools.product((True, False), repeat=len(conditions)):
        state = dict(zip(conditions, truths))
        keys = [_number(k, state, resolver) for k in value.keys]  # type: ignore[arg-type]
        results = [_number(v, state, resolver) for v in value.values]
        if None in keys or None in results:
            return None
        there = [i for i in range(len(specs or ())) if i not in absent or not state[absent[i]]]
        if specs is not None and any(k >= len(there) for k in keys):  # type: ignore[operator]
            return None
        pairs = {there[k] if specs is not None else k: r for k, r in zip(keys, results)}  # type: ignore[index]
        found.append(pairs)  # type: ignore[arg-type]
    return found[0] if all(f == found[0] for f in found) else None


def _number(node: ast.expr, state: dict[str, bool], resolver: Resolver) -> int | None:
    """The integer that an expression stands for while the conditions of ``state`` are so."""
    value = resolver.value(node)
    match value:
        case ast.Constant(int(number)):
            return number
        case ast.BinOp(left, ast.Add() | ast.Sub() as op, right):
            a, b = _number(left, state, resolver), _number(right, state, resolver)
            return None if a is None or b is None else a + b if isinstance(op, ast.Add) else a - b
        case ast.IfExp(test, body, orelse):
            condition = resolver.value(test)
            if isinstance(condition, ast.expr):
                if (truth := state.get(ast.unparse(condition))) is not None:
                    return _number(body if truth else orelse, state, resolver)
                if (truth := state.get(ast.unparse(negated(condition)))) is not None:
                    return _number(orelse if truth else body, state, resolver)
    return None
