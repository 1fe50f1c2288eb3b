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
