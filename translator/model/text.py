"""Source texts of extents and numbers: putting parentheses, adding, making tuples."""

from __future__ import annotations

import ast


def wrap(text: str) -> str:
    """Parentheses around an expression that is not atomic."""
    try:
        tree = ast.parse(text, mode="eval").body
    except SyntaxError:
        return text
    return f"({text})" if isinstance(tree, (ast.BinOp, ast.UnaryOp, ast.IfExp)) else text


def add_texts(a: str, b: str) -> str:
    """``a + b`` as ``Scalar.expr``; zeros vanish."""
    if not a or not b:
        return ""
    return b if a == "0" else a if b == "0" else f"{wrap(a)} + {wrap(b)}"


def tuple_text(dims: tuple[str, ...]) -> str:
    if not dims or not all(dims):
        return ""
    return f"({dims[0]},)" if len(dims) == 1 else f"({', '.join(dims)})"


def difference(a: str, b: str) -> str:
    """``a - b``, simplified where both are polynomials: ``(i + 1) * n`` less ``i * n`` is ``n``."""
    terms: dict[tuple[str, ...], int] | None = None
    try:
        left, right = (_polynomial(ast.parse(text, mode="eval").body) for text in (a, b))
        terms = _sum(left, right, -1)
    except (SyntaxError, ValueError):
        pass
    if terms is None or len(terms) > 1 or any(n < 0 for n in terms.values()):
        return f"{wrap(a)} - {wrap(b)}"
    for names, n in terms.items():
        return " * ".join([str(n)] * (n != 1 or not names) + list(names))
    return "0"


def _polynomial(node: ast.expr) -> dict[tuple[str, ...], int]:
    """{factors: coefficient} of sums and products. Raises ValueError for all else."""
    match node:
        case ast.Constant(int() as value):
            return {(): value} if value else {}
        case ast.Name() | ast.Attribute() | ast.Subscript():
            return {(ast.unparse(node),): 1}
        case ast.UnaryOp(ast.USub(), operand):
            return _sum({}, _polynomial(operand), -1)
        case ast.BinOp(left, ast.Add() | ast.Sub() as op, right):
            return _sum(_polynomial(left), _polynomial(right), 1 if isinstance(op, ast.Add) else -1)
        case ast.BinOp(left, ast.Mult(), right):
            total: dict[tuple[str, ...], int] = {}
            for a, m in _polynomial(left).items():
                total = _sum(total, {tuple(sorted(a + b)): m * n for b, n in _polynomial(right).items()}, 1)
            return total
    raise ValueError(ast.unparse(node))


def _sum(a: dict[tuple[str, ...], int], b: dict[tuple[str, ...], int], sign: int) -> dict[tuple[str, ...], int]:
    total = {names: a.get(names, 0) + sign * b.get(names, 0) for names in (*a, *b)}
    return {names: n for names, n in total.items() if n}


_WIDTH = 88


def call_lines(head: str, arguments: list[str], end: str = "") -> list[str]:
    """``head(arguments)`` on one line, or with the arguments filled into lines of their own."""
    one_line = f"{head}({', '.join(arguments)}){end}"
    if len(one_line) < _WIDTH:
        return [one_line]
    indent = " " * (len(head) - len(head.lstrip()))
    lines, line = [f"{head}("], f"{indent}    "
    for argument in arguments:
        if line.strip() and len(line) + len(argument) > _WIDTH:
            lines.append(line.rstrip())
            line = f"{indent}    "
        line += f"{argument}, "
    return [*lines, line.rstrip().removesuffix(","), f"{indent}){end}"]
