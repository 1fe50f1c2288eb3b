"""Says what a port did: as text, as a table for a terminal, as JSON.

The JSON document is for other programs; ``JSON_VERSION`` rises when a field is renamed, removed or
changes its meaning (not when one is added)::

    {"version": 1,
     "target": "sm100",
     "files": [
       {"file": str,
        "outcome": "ported" | "kept" | "nothing-to-port" | "no-call",
        "changed": bool,                        the text differs from the input
        "sites": [
          {"kernel": str, "line": int, "column": int,
           "status": "ported" | "kept" | "not-triton",
           "rules": [code], "plan": [str],
           "diagnostics": [
             {"code": str, "kind": "body" | "call" | "numerics" | "performance",
              "keeps_on_triton": bool, "line": int, "column": int,
              "reason": str, "advice": str}]}]}],
     "errors": [str]}                           files that could not be read or ported
"""

from __future__ import annotations

import dataclasses
import json
import typing
from typing import Literal, Sequence

from .diagnostics import Diagnostic
from .result import PortResult, SiteReport, Target

if typing.TYPE_CHECKING:
    from rich.table import Table

JSON_VERSION = 1
KINDS = {"B": "body", "C": "call", "N": "numerics", "P": "performance"}

Outcome = Literal["ported", "kept", "nothing-to-port", "no-call"]


def outcome(result: PortResult) -> Outcome:
    """What became of a file as a whole.

    ``kept`` if some call stays on Triton, else ``ported`` if some call was ported, else
    ``nothing-to-port`` if its calls run on another backend already, else ``no-call``.
    """
    statuses = {site.status for site in result.sites}
    if "kept" in statuses:
        return "kept"
    if "ported" in statuses:
        return "ported"
    return "nothing-to-port" if statuses else "no-call"


def summary(result: PortResult) -> str:
    """One line: ``kernel.py: 2 calls ported to sm100, 1 stays on Triton``."""
    ported, kept, other = (_count(result, status) for status in ("ported", "kept", "not-triton"))
    parts = []
    if ported:
        parts.append(f"{_calls(ported)} ported to {result.target}")
    if kept:
        parts.append(f"{_calls(kept)} on Triton still")
    if other:
        parts.append(f"{_calls(other)} on another backend already")
    return f"{result.filename}: {', '.join(parts) or 'no pallas_call'}"


def as_text(result: PortResult) -> str:
    """The report of one file in plain lines, each call site with its rules, plan and diagnoses."""
    lines = [summary(result)]
    for site in result.sites:
        lines.append(f"  {result.filename}:{site.line}:{site.column}: {site.kernel}: {site.status}")
        if site.rules:
            lines.append(f"    rules: {' '.join(site.rules)}")
        lines += [f"    plan: {decision}" for decision in site.plan]
        lines += [f"    {finding.render(result.filename)}" for finding in sorted(site.diagnostics)]
    return "\n".join(lines) + "\n"


def as_table(result: PortResult) -> Table:
    """The same report as a table for a terminal."""
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(summary(result)), title_justify="left", show_lines=True)
    table.add_column("call", max_width=28, overflow="fold")
    table.add_column("rules, plan, diagnoses", ratio=1, overflow="fold")
    styles = {"ported": "green", "kept": "red", "not-triton": "dim"}
    for site in result.sites:
        call = Text(f"{site.kernel}\nline {site.line}\n")
        rules = [" ".join(site.rules)] if site.rules else []
        findings = [finding.render(result.filename) for finding in sorted(site.diagnostics)]
        what = Text("\n".join([*rules, *site.plan, *findings]))
        table.add_row(call.append(site.status, styles[site.status]), what)
    return table


def as_json(target: Target, results: Sequence[PortResult], errors: Sequence[str] = ()) -> str:
    """The JSON document of the module docstring, for all files of one run."""
    document = {
        "version": JSON_VERSION,
        "target": target,
        "files": [_file(result) for result in results],
        "errors": list(errors),
    }
    return json.dumps(document, indent=2) + "\n"


def _file(result: PortResult) -> dict[str, object]:
    return {
        "file": result.filename,
        "outcome": outcome(result),
        "changed": result.changed,
        "sites": [_site(site) for site in result.sites],
    }


def _site(site: SiteReport) -> dict[str, object]:
    findings = [_finding(finding) for finding in sorted(site.diagnostics)]
    return dataclasses.asdict(site) | {"diagnostics": findings}


def _finding(finding: Diagnostic) -> dict[str, object]:
    kind = {"kind": KINDS[finding.code[0]], "keeps_on_triton": finding.blocks}
    return dataclasses.asdict(finding) | kind


def _count(result: PortResult, status: str) -> int:
    return sum(site.status == status for site in result.sites)


def _calls(number: int) -> str:
    return "1 call" if number == 1 else f"{number} calls"
