"""Names in source texts, and what a kernel binds to extents of its refs: ``m, k = a_ref.shape``."""

from __future__ import annotations

import ast


def shape_of(text: str, kernel: ast.FunctionDef) -> str:
    """``m`` as ``a_ref.shape[0]`` where the kernel binds it so."""
    name = ast.parse(text, mode="eval").body
    if not isinstance(name, ast.Name):
        return text
    for s in kernel.body:
        if not isinstance(s, ast.Assign):
            continue
        for t in s.targets:
            if isinstance(t, ast.Name) and t.id == name.id:
                return ast.unparse(s.value)
            if isinstance(t, ast.Tuple):
                pairs = zip(t.elts, s.value.elts) if isinstance(s.value, ast.Tuple) else (
                    (e, ast.Subscript(s.value, ast.Constant(i), ast.Load())) for i, e in enumerate(t.elts)
                )
                for e, v in pairs:
                    if isinstance(e, ast.Name) and e.id == name.id:
                        return ast.unparse(v)
    return text


def names_in(text: str) -> set[str]:
    """The names that an index or expression reads."""
    if text in ("", ":"):
        return set()
    return {n.id for n in ast.walk(ast.parse(text, mode="eval")) if isinstance(n, ast.Name)}
