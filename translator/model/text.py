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
