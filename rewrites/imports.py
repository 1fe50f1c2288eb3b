"""Keeps the imports of a ported module in order.

Imports that the emitted code needs are added; imports that nothing uses any more because of the
port are removed.  A module import that replaces another under the same name takes its place.
"""

from __future__ import annotations

import ast
import sys


def update(before: str, after: str, needed: dict[str, str], newline: str) -> str:
    """``after`` with ``needed`` ({module: local name}) imported and newly unused imports gone."""
    tree = ast.parse(after)
    unused = _imported(ast.parse(before)) & _used(ast.parse(before)) - _used(tree, needed.values())
    unused |= set(needed.values()) & _imported(tree)  # an old import whose name is taken over
    lines = after.split("\n")
    edits: list[tuple[int, int, list[str]]] = []
    placed: set[str] = set()
    last_import = 0
    for node in tree.body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            last_import = node.end_lineno or node.lineno
            gone = [a for a in node.names if _local(a) in unused]
            alone = all(s is node or s.lineno > last_import or (s.end_lineno or 0) < node.lineno for s in tree.body)
            if not gone or not alone:
                continue
            kept = [a for a in node.names if a not in gone]
            new = []
            if kept:
                new.append(ast.unparse(type(node)(**{**_fields(node), "names": kept})))
            for module, name in needed.items():
                if name in {_local(a) for a in gone}:
                    new.append(_statement(module, name))
                    placed.add(module)
            edits.append((node.lineno, node.end_lineno or node.lineno, new))
        elif last_import and not _is_prelude(node):
            break
    rest = [(m, _statement(m, n)) for m, n in needed.items() if m not in placed]
    standard = sorted(s for m, s in rest if m.partition(".")[0] in sys.stdlib_module_names)
    others = sorted(s for m, s in rest if m.partition(".")[0] not in sys.stdlib_module_names)
    if not last_import:
        last_import = _after_docstring(tree)
    first = _standard_place(tree) or last_import + 1
    if standard and first > last_import:
        others, standard = [*standard, *others], []
    if others:
        edits.append((last_import + 1, last_import, others))
    if standard:
        edits.append((first, first - 1, standard))
    for start, end, new in sorted(edits, reverse=True):
        lines[start - 1 : end] = [line + ("\r" if newline == "\r\n" else "") for line in new]
    return "\n".join(lines)


def _imported(tree: ast.Module) -> set[str]:
    return {
        _local(a) for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))
        if not (isinstance(node, ast.ImportFrom) and node.module == "__future__")
        for a in node.names
    }


def _used(tree: ast.Module, also: object = ()) -> set[str]:
    """Names that the module reads, names in ``__all__`` included."""
    names = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}
    exported = [
        n.value for n in tree.body
        if isinstance(n, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in n.targets)
    ]
    names |= {c.value for e in exported for c in ast.walk(e) if isinstance(c, ast.Constant) and isinstance(c.value, str)}
    return names | set(also)  # type: ignore[arg-type]


def _local(alias: ast.alias) -> str:
    return alias.asname or alias.name.partition(".")[0]


def _fields(node: ast.AST) -> dict[str, object]:
    return {name: value for name, value in ast.iter_fields(node)}


def _statement(module: str, name: str) -> str:
    """``from jax.experimental.pallas import mosaic_gpu as plgpu``, in the usual spelling."""
    parent, _, leaf = module.rpartition(".")
    if module == "jax.numpy" or not parent:
        return f"import {module}" if module == name else f"import {module} as {name}"
    return f"from {parent} import {leaf}" if leaf == name else f"from {parent} import {leaf} as {name}"


def _standard_place(tree: ast.Module) -> int:
    """Line after the last import of the standard library in the first block, or of the first import."""
    place = 0
    for node in tree.body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            module = node.names[0].name if isinstance(node, ast.Import) else node.module or ""
            if module == "__future__":
                continue
            if module.partition(".")[0] in sys.stdlib_module_names:
                place = (node.end_lineno or node.lineno) + 1
            elif not place:
                return node.lineno
    return place


def _is_prelude(node: ast.stmt) -> bool:
    """Statements that may stand between imports without ending them."""
    return isinstance(node, (ast.Expr, ast.If, ast.Try))


def _after_docstring(tree: ast.Module) -> int:
    first = tree.body[0] if tree.body else None
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
        return first.end_lineno or 0
    return 0
