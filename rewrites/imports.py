"""Keeps the imports of a ported module in order.

Imports that the emitted code needs are added; imports that nothing uses any more because of the
port are removed.  A module import that replaces another under the same name takes its place.
"""

from __future__ import annotations

import ast
import sys

import libcst as cst

from ..translator.names import walk


def update(before: ast.Module, after: str, needed: dict[str, str], newline: str) -> str:
    """``after``, the port of ``before``, with ``needed`` ({module: local name}) imported and newly unused imports gone."""
    tree = ast.parse(after)
    unused = _imported(before) & _used(before) - _used(tree, needed.values())
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
            statement = cst.parse_module("\n".join(lines[node.lineno - 1 : last_import]) + "\n")
            names_gone = {_local(a) for a in gone}
            all_gone = len(gone) == len(node.names)
            new = [] if all_gone else _shortened(statement, names_gone).splitlines()
            comment = _trailing_comment(statement) if all_gone else ""
            taken = [(m, n) for m, n in needed.items() if n in names_gone]
            placed |= {m for m, _ in taken}
            new += [_statement(m, n) + comment for m, n in taken]
            edits.append((node.lineno, last_import, new))
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
    names = {n.id for n in walk(tree) if isinstance(n, ast.Name)}
    exported = [
        n.value for n in tree.body
        if isinstance(n, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in n.targets)
    ]
    names |= {c.value for e in exported for c in walk(e) if isinstance(c, ast.Constant) and isinstance(c.value, str)}
    return names | set(also)  # type: ignore[arg-type]


def _local(alias: ast.alias) -> str:
    return alias.asname or alias.name.partition(".")[0]


def _shortened(module: cst.Module, gone: set[str]) -> str:
    """The text of an import statement without some of its names; comments on the others stay."""
    (line,) = module.body
    (statement,) = line.body  # type: ignore[union-attr]
    names = list(statement.names)  # type: ignore[union-attr]
    kept = [a for a in names if (a.evaluated_alias or a.evaluated_name.partition(".")[0]) not in gone]
    changes: dict[str, object] = {}
    parenthesis = getattr(statement, "rpar", None)
    if kept[-1] is not names[-1]:
        comma, last = kept[-1].comma, names[-1].comma
        space = comma.whitespace_after  # type: ignore[union-attr]
        end = last.whitespace_after if isinstance(last, cst.Comma) else getattr(parenthesis, "whitespace_before", None)
        if isinstance(space, cst.ParenthesizedWhitespace) and isinstance(end, cst.ParenthesizedWhitespace):
            space = space.with_changes(last_line=end.last_line, indent=end.indent)
        elif not isinstance(space, cst.ParenthesizedWhitespace):
            space = end or space
        if isinstance(last, cst.Comma):
            kept[-1] = kept[-1].with_changes(comma=comma.with_changes(whitespace_after=space))  # type: ignore[union-attr]
        else:
            kept[-1] = kept[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
            if parenthesis is not None:
                changes["rpar"] = parenthesis.with_changes(whitespace_before=space)
    statement = statement.with_changes(names=kept, **changes)
    return module.with_changes(body=[line.with_changes(body=[statement])]).code


def _trailing_comment(module: cst.Module) -> str:
    """The comment behind a statement, with the blanks before it."""
    space = module.body[0].trailing_whitespace  # type: ignore[union-attr]
    return space.whitespace.value + space.comment.value if space.comment is not None else ""


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
