"""What a port run returns: the text, and for every call site what was done and why."""

from __future__ import annotations

import dataclasses
from typing import Literal

from .diagnostics import Diagnostic

Target = Literal["sm90", "sm100"]
TARGETS: tuple[Target, ...] = ("sm90", "sm100")


@dataclasses.dataclass(frozen=True)
class Options:
    """Choices that belong to the user.

    keep_native: keep ``sqrt`` where the installed JAX has a native Mosaic GPU rule.
    """

    keep_native: bool = False


@dataclasses.dataclass(frozen=True)
class SiteReport:
    """One ``pallas_call``: ``line``/``column`` count from 1.

    status: ``ported``, ``kept`` (stays on Triton; ``diagnostics`` says why) or
        ``not-triton`` (the call already runs on another backend).
    rules: codes of the rewrites that fired, sorted.
    plan: the plan in words, one decision per line.
    """

    kernel: str
    line: int
    column: int
    status: Literal["ported", "kept", "not-triton"]
    rules: tuple[str, ...] = ()
    plan: tuple[str, ...] = ()
    diagnostics: tuple[Diagnostic, ...] = ()


@dataclasses.dataclass(frozen=True)
class PortResult:
    """``text`` equals ``original`` if nothing was ported."""

    filename: str
    original: str
    text: str
    target: Target
    sites: tuple[SiteReport, ...]

    @property
    def diagnostics(self) -> tuple[Diagnostic, ...]:
        return tuple(sorted({d for site in self.sites for d in site.diagnostics}))

    @property
    def changed(self) -> bool:
        return self.text != self.original
