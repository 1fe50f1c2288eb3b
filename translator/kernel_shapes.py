"""Names in source texts, and what a kernel binds to extents of its refs: ``m, k = a_ref.shape``."""

from __future__ import annotations

import ast

from .names import walk


def shape_of(text: str, kernel: ast.FunctionDef) -> str:
    """``m`` as ``a_ref.shape[0]`` where the kernel binds it so."""
    name = ast.parse(text, mode="eval").body
    if not isinstance(name, ast.Name):
        return text
    pairs = [(t, s.value) for s in kernel.body if isinstance(s, ast.Assign) for t in s.targets]
    for target, value in pairs:  # grows by the parts of patterns
        if isinstance(target, ast.Name) and target.id == name.id:
            return ast.unparse(value)
        if isinstance(target, ast.Tuple):
            values = value.elts if isinstance(value, ast.Tuple) else [
                ast.Subscript(value, ast.Constant(i), ast.Load()) for i in range(len(target.elts))
            ]
            pairs += zip(target.elts, values)
    return text


def names_in(text: str) -> set[str]:
    """The names that an index or expression reads."""
    if text in ("", ":"):
        return set()
    return {n.id for n in walk(ast.parse(text, mode="eval")) if isinstance(n, ast.Name)}
