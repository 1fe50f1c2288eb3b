"""Support code: what Mosaic GPU's public API cannot express, copied into the files that need it.

Each file of this folder is an ordinary module, tested as such.  ``emit_support`` copies the
functions that a port calls, and those that they call, in the order of the file, with the local
names of the target module.  This file holds no support code.
"""

from __future__ import annotations

import ast
import functools
import pathlib
import re

from ...translator.names import walk

_FILES = (
    "launch.py", "gmem.py", "atomics.py", "math.py", "functions.py", "axes.py", "scan.py", "inline_asm.py", "ring.py",
    "k_major.py", "parts.py", "wgmma.py", "tcgen05.py", "rows.py", "rows_tcgen05.py", "pages.py", "loops.py",
)
_HEADING = "# Support code for Mosaic GPU, emitted by pallas-port."


# Where a function or class of a file starts, with its decorators.
_START = re.compile(r"^(?:@.*\n)*(?:def|class) (\w+)", re.MULTILINE)


@functools.cache
def _texts() -> tuple[str, ...]:
    """The support files, in order."""
    return tuple(pathlib.Path(__file__).with_name(file).read_text() for file in _FILES)


@functools.cache
def _functions() -> dict[str, str]:
    """{name: text from its start to that of the next} of every support function and class, in order.

    None is parsed before it is asked for: a port needs few of them.
    """
    found = {}
    for text in _texts():
        starts = list(_START.finditer(text))
        for start, end in zip(starts, [*(m.start() for m in starts[1:]), len(text)]):
            found[start[1]] = text[start.start() : end]
    return found


@functools.cache
def _function(name: str) -> tuple[str, ast.stmt]:
    """(source text, node) of a support function or class."""
    text = _functions()[name]
    node = ast.parse(text).body[0]
    return "".join(text.splitlines(keepends=True)[: node.end_lineno]).rstrip("\n"), node


@functools.cache
def _imports() -> dict[str, str]:
    """{local name in the support files: module}."""
    found = {}
    for text in _texts():
        head = text[: start.start()] if (start := _START.search(text)) else text
        for node in ast.parse(head).body:
            if isinstance(node, ast.Import):
                for a in node.names:
                    found[a.asname or a.name] = a.name
            elif isinstance(node, ast.ImportFrom) and not node.level:
                for a in node.names:
                    found[a.asname or a.name] = f"{node.module}.{a.name}"
    return found


@functools.cache
def _names(function: str) -> frozenset[str]:
    """Names that a support function uses."""
    return frozenset(n.id for n in walk(_function(function)[1]) if isinstance(n, ast.Name))


def needed_functions(wanted: tuple[str, ...]) -> list[str]:
    """``wanted`` and all that they call, in the order of the files."""
    functions, needed, queue = _functions(), set(), list(wanted)
    while queue:
        name = queue.pop()
        if name not in needed:
            needed.add(name)
            queue += [n for n in _names(name) if n in functions]
    return [n for n in functions if n in needed]


def takes(function: str, positional: int, keywords: frozenset[str]) -> bool:
    """Whether a support function can be called so."""
    node = _function(function)[1]
    assert isinstance(node, ast.FunctionDef)
    names = [a.arg for a in node.args.args]
    required = len(names) - len(node.args.defaults)
    given = {*names[:positional], *keywords}
    return positional <= len(names) and keywords <= set(names[positional:]) and given >= set(names[:required])


def is_support_code(node: ast.AST | None, modules) -> bool:
    """True for a function or class that an earlier port put into the module."""
    name = getattr(node, "name", "")
    if name not in _functions():
        return False
    known = ast.parse(_text(name, modules)).body[0]
    return ast.dump(node) == ast.dump(known)  # type: ignore[arg-type]


def needed_modules(wanted: tuple[str, ...]) -> list[str]:
    """Modules that the emitted functions use."""
    imports = _imports()
    used = {n for name in needed_functions(wanted) for n in _names(name)}
    return sorted({module for local, module in imports.items() if local in used})


def emit_support(wanted: tuple[str, ...], modules) -> str:
    """The text of the support functions ``wanted``, with the target module's local names."""
    parts = [_HEADING]
    for i, name in enumerate(wanted):
        parts.append(("" if i == 0 else "\n") + _text(name, modules) + "\n")
    return "\n".join(parts).rstrip("\n")


def _text(name: str, modules) -> str:
    """One support function, with the target module's local names of the modules that it uses."""
    renames = {local: modules.name(module) for local, module in _imports().items() if local in _names(name)}
    text = _function(name)[0]
    return re.sub(rf"(?<![\w.])({'|'.join(renames)})(?=\.)", lambda m: renames[m[1]], text) if renames else text
