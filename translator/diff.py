"""Unified diffs that ``patch`` and ``git apply`` take, whatever the encoding and line ends.

They work on bytes, and lines end at LF only, as those tools see them: a CR before it belongs to
the line, and form feeds and Unicode line separators inside a line do not split it.
"""

from __future__ import annotations

import difflib
import os

_NO_NEWLINE = b"\\ No newline at end of file\n"
_COLOURS = {b"+": b"\x1b[32m", b"-": b"\x1b[31m", b"@": b"\x1b[36m"}
_RESET = b"\x1b[0m"


def unified(filename: str, before: bytes, after: bytes) -> bytes:
    """The diff between two contents of one file, with ``a/`` and ``b/`` names; empty if equal."""
    name = _name(filename)
    names = b"a/" + name, b"b/" + name
    lines = difflib.diff_bytes(difflib.unified_diff, _lines(before), _lines(after), *names)
    return b"".join(line if line.endswith(b"\n") else line + b"\n" + _NO_NEWLINE for line in lines)


def colour(diff: bytes) -> bytes:
    """The same diff for a terminal: added lines green, removed lines red, hunk heads cyan."""
    return b"".join(_paint(line) for line in _lines(diff))


def _lines(data: bytes) -> list[bytes]:
    """The lines with their ends; the last may have none."""
    *ended, rest = data.split(b"\n")
    return [line + b"\n" for line in ended] + ([rest] if rest else [])


def _name(filename: str) -> bytes:
    """The name relative to the current folder if it lies below it, with forward slashes."""
    absolute, here = os.path.abspath(filename), os.getcwd()
    below = os.path.commonpath([absolute, here]) == here
    name = os.path.relpath(absolute, here) if below else absolute.lstrip(os.sep)
    # A tab ends a name that holds blanks: patch would take its second word for a date.
    return os.fsencode(name.replace(os.sep, "/") + ("\t" if " " in name else ""))


def _paint(line: bytes) -> bytes:
    paint = _COLOURS.get(line[:1])
    return paint + line.rstrip(b"\n") + _RESET + b"\n" if paint else line
