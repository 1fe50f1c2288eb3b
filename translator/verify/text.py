"""Rung ``text``: the port is Python, and porting it again changes nothing."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Callable

from .rung import RungResult


def check_text(text: str, port_text: Callable[[str], str] | None) -> RungResult:
    """``port_text`` ports a text; None leaves idempotence unchecked, and the result says so."""
    try:
        ast.parse(text)
    except SyntaxError as error:
        return RungResult("text", "failed", f"the port does not parse: line {error.lineno}: {error.msg}")
    if port_text is None:
        return RungResult("text", "passed", "parses (porting it again was not tried)")
    again = port_text(text)
    if again == text:
        return RungResult("text", "passed", "parses, and porting it again changes nothing")
    lines = difflib.unified_diff(text.splitlines(), again.splitlines(), "port", "ported again", lineterm="", n=0)
    return RungResult("text", "failed", "porting the port changes it:\n" + "\n".join(list(lines)[:20]))
