"""What one rung of the ladder reports, and how a rung says that it cannot be climbed."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

Status = Literal["passed", "failed", "skipped"]


@dataclasses.dataclass(frozen=True)
class RungResult:
    """``detail`` is one line for people, or a few when something failed; ``data`` is JSON for machines."""

    name: str
    status: Status
    detail: str
    data: dict[str, Any] = dataclasses.field(default_factory=dict)

    def render(self) -> str:
        """``name  status  detail``, aligned for a list of rungs."""
        return f"{self.name:<10} {self.status:<8} {self.detail}"


class Skip(Exception):
    """Raised inside a rung that has nothing to say here; the message is the reason."""


class Fail(Exception):
    """Raised inside a rung that found a fault. ``data`` is kept in the result."""

    def __init__(self, detail: str, data: dict[str, Any] | None = None):
        super().__init__(detail)
        self.data = data or {}
