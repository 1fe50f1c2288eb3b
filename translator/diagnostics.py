"""Coded findings: what stays on Triton and why, which numerics changed, what would run faster.

Every finding carries a code, a place in the source, the reason and what the user can do.
The first letter of a code says what the finding is about, and whether it keeps a call on Triton:

====  ======================================================================  ==============
``B``  the kernel *body*: an expression that Mosaic GPU cannot take             keeps on Triton
``C``  the *call*: grid, specs, scalar prefetch, backend                        keeps on Triton
``N``  numerics: the port computes the same thing with another rounding         note
``P``  performance advice that needs a change of the user's own code            note
====  ======================================================================  ==============

The texts live in ``CODES``, so that ``pallas-port explain CODE`` and the pages can show them.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Code:
    """One kind of finding. ``title`` is a short phrase, ``explanation`` a paragraph."""

    code: str
    title: str
    explanation: str

    @property
    def blocks(self) -> bool:
        """True if a finding of this kind keeps its call on the Triton backend."""
        return self.code[0] in "BC"


@dataclasses.dataclass(frozen=True, order=True)
class Diagnostic:
    """One finding at one place. ``line`` counts from 1, ``column`` from 1 (as editors do)."""

    line: int
    column: int
    code: str
    reason: str
    advice: str = ""

    @property
    def blocks(self) -> bool:
        return CODES[self.code].blocks

    def render(self, filename: str) -> str:
        """``file:line:column: CODE reason (advice)``, one line, as compilers print it."""
        advice = f" ({self.advice})" if self.advice else ""
        return f"{filename}:{self.line}:{self.column}: {self.code} {self.reason}{advice}"


class InputError(Exception):
    """The user's input cannot be read or used: one line for stderr, exit code 2."""


_ALL: tuple[Code, ...] = ()
CODES: dict[str, Code] = {c.code: c for c in _ALL}
