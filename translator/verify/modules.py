"""Loads a kernel file and its port side by side, without writing anything.

Both become modules under fresh names, so neither hides the other nor an installed module of the same name. They
keep the package and the directory of the original file: relative imports and sibling imports work in both.
Tracebacks show the port's own lines, through ``linecache``.
"""

from __future__ import annotations

import itertools
import linecache
import pathlib
import sys
import types

_serial = itertools.count()


def load(filename: str, text: str | None = None, *, role: str = "original") -> types.ModuleType:
    """Executes ``text`` (by default the file's own) as a new module.

    Args:
      filename: the original file; it gives the module its package and its directory.
      text: source to execute instead, such as the port.
      role: one word for the module's name and the tracebacks: ``original``, ``port``.

    Raises:
      OSError: the file cannot be read.
      Exception: whatever the module raises while it is executed.
    """
    path = pathlib.Path(filename).resolve()
    shown = str(path)
    if text is None:
        text = path.read_text(encoding="utf-8")
    else:
        shown = f"<{role} of {path}>"
        # No modification time: linecache then never looks for a file of that name.
        linecache.cache[shown] = (len(text), None, text.splitlines(keepends=True), shown)
    root, package = _package(path)
    if str(root) not in sys.path:
        sys.path.append(str(root))
    stem = f"{path.stem}__{role}_{next(_serial)}".replace("-", "_")
    module = types.ModuleType(f"{package}.{stem}" if package else stem)
    module.__file__ = str(path)
    module.__package__ = package
    sys.modules[module.__name__] = module  # dataclasses and pickling look themselves up there
    try:
        exec(compile(text, shown, "exec"), module.__dict__)
    except BaseException:
        del sys.modules[module.__name__]
        raise
    return module


def _package(path: pathlib.Path) -> tuple[pathlib.Path, str]:
    """The directory to import from, and the dotted package that holds ``path`` (empty if none)."""
    directory, parts = path.parent, []
    while (directory / "__init__.py").exists():
        parts.insert(0, directory.name)
        directory = directory.parent
    return directory, ".".join(parts)
