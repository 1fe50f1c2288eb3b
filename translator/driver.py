"""Runs read, plan and rewrite on one module.

Needs neither JAX nor a GPU, and touches no file: text in, ``PortResult`` out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .eras import read_module
from .plan import plan_module
from .result import Options, PortResult, Target
from .source import Source

if TYPE_CHECKING:
    from .facts import Facts


def port(source: Source, target: Target, options: Options, facts: Facts | None = None) -> PortResult:
    """Ports every ``pallas_call`` of a module that can be shown to keep its meaning.

    facts: what recording the user's code showed; None for a static port.
    Raises InputError for a module that does not parse.
    """
    resolver = read_module(source.tree())
    plan = plan_module(resolver, source, target, options, facts)
    text = source.text
    if plan.actions:
        from ..rewrites import apply  # imports libcst: only when there is something to rewrite

        text = apply(source.text, plan)
    return PortResult(source.filename, source.text, text, target, plan.sites)
