"""Climbs the ladder: which rungs, in which order, in which process; see the package's docstring.

A rung whose premise has failed is skipped and says so: what does not lower is not compiled, what does not compile
is not run, what runs wrong is not timed. Interpret mode has no premise but the text.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping
from typing import Any

from ..diagnostics import InputError
from . import jobs
from .example import Subject, parse
from .rung import RungResult
from .text import check_text

RUNGS: tuple[str, ...] = ("text", "lower", "compile", "interpret", "run", "time")

_CHECKS = {
    "lower": "translator.verify.lower",
    "compile": "translator.verify.compile",
    "interpret": "translator.verify.interpret",
    "run": "translator.verify.run",
    "time": "translator.verify.timing",
}
_PREMISES = {"compile": ("lower",), "run": ("lower", "compile"), "time": ("lower", "compile", "run")}
_PROCESSES = (
    (("lower", "interpret"), jobs.CPU_ONLY),
    (("compile",), jobs.CPU_ONLY),
    (("run",), {}),
    (("time",), {}),
)


def verify_file(
    filename: str,
    target: str,
    example: str | None,
    *,
    options: Any = None,
    facts: Any = None,
    rungs: Collection[str] = RUNGS,
    timeout: float = 300.0,
) -> list[RungResult]:
    """Ports ``filename`` and verifies the result.

    Args:
      filename: the kernel file.
      target: ``sm90`` or ``sm100``.
      example: ``FILE:FUNCTION`` (see ``example.py``); None skips every rung that needs a call.
      options, facts: passed to the port.
      rungs: which rungs to climb; the others are left out of the result.
      timeout: seconds for one rung.

    Returns:
      One result per rung asked for, in the order of ``RUNGS``.

    Raises:
      InputError: the file cannot be read or ported.
      ExampleError: ``example`` is malformed.
    """
    from ..driver import port  # needs libcst, which verifying a given text does not
    from ..result import Options
    from ..source import STDIN, read

    if filename == STDIN:
        raise InputError("pallas-port verify: needs a file, since the original is run from its place")
    source = read(filename)

    def port_text(text: str) -> str:
        return port(dataclasses.replace(source, text=text), target, options or Options(), facts).text

    ported = port_text(source.text)
    return verify_text(filename, ported, target, example, port_text=port_text, rungs=rungs, timeout=timeout)


def verify_text(
    original_filename: str,
    ported_text: str,
    target: str,
    example: str | None,
    *,
    port_text: Callable[[str], str] | None = None,
    rungs: Collection[str] = RUNGS,
    kwargs: Mapping[str, Any] = {},
    tolerance: Mapping[str, float] = {},
    check_options: Mapping[str, Mapping[str, Any]] = {},
    timeout: float = 300.0,
) -> list[RungResult]:
    """Verifies ``ported_text`` as the port of ``original_filename``; arguments as in :func:`verify_file`.

    Args:
      port_text: ports a text, for the idempotence check; None leaves that out.
      kwargs: passed to the example function.
      tolerance: relative norm error per dtype name.
      check_options: options per rung, such as ``{"compile": {"instructions": ["HGMMA"]}}``.
    """
    results: dict[str, RungResult] = {}
    if "text" in rungs:
        results["text"] = check_text(ported_text, port_text)
    asked = [name for name in RUNGS if name in rungs and name != "text"]
    if results and results["text"].status == "failed" and "does not parse" in results["text"].detail:
        reason = "the port does not parse"
    elif example is None:
        reason = "no example: which function to call, and with what (--example FILE:FUNCTION)"
    else:
        reason = ""
    if reason:
        results |= {name: RungResult(name, "skipped", reason) for name in asked}
        return [results[name] for name in RUNGS if name in results]
    file, function = parse(example, original_filename)
    subject = Subject(original_filename, ported_text, file, function, dict(kwargs), tolerance=dict(tolerance))
    for names, env in _PROCESSES:
        todo = []
        for name in names:
            if name not in asked:
                continue
            broken = [p for p in _PREMISES.get(name, ()) if p in results and results[p].status == "failed"]
            unproven = name == "time" and "run" in results and results["run"].status == "skipped"
            if broken or unproven:
                why = f"{broken[0]} failed" if broken else results["run"].detail
                results[name] = RungResult(name, "skipped", why)
            else:
                todo.append(jobs.Job(name, _CHECKS[name], subject, target, dict(check_options.get(name, {}))))
        for job, result in zip(todo, jobs.run_jobs(todo, env=env, timeout=timeout), strict=True):
            results[job.name] = result
    return [results[name] for name in RUNGS if name in results]
