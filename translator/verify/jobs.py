"""Runs checks in child processes, several to a process, and survives what a kernel can do to its process.

A check that hangs (a barrier nobody completes) is killed after its timeout, one that takes its process down (a
sticky CUDA error, a compiler crash) is reported with the end of what the process printed; in both cases a new
process goes on with the checks that are left. Starting Python and JAX takes seconds, a check often less than one:
hence many checks per process.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .example import Subject
from .rung import RungResult

_ROOT = __package__.rsplit(".", 2)[0]  # the import package that holds translator/ and golden/
_POLL_SECONDS = 0.05
_START_SECONDS = 180.0

CPU_ONLY: dict[str, str] = {"JAX_PLATFORMS": "cpu", "JAX_ENABLE_COMPILATION_CACHE": "false"}


@dataclasses.dataclass(frozen=True)
class Job:
    """One check of one subject.

    check: module below the import package with a function ``check(subject, target, options)`` that returns
        ``(detail, data)`` or raises ``Skip`` or ``Fail``; ``translator.verify.lower``, say.
    name: the rung's name in the result.
    """

    name: str
    check: str
    subject: Subject | None
    target: str
    options: dict[str, Any] = dataclasses.field(default_factory=dict)


def run_jobs(
    jobs: Sequence[Job],
    *,
    env: Mapping[str, str] = {},
    timeout: float = 120.0,
    stop_on_failure: bool = False,
    progress: Callable[[Job, RungResult], None] | None = None,
) -> list[RungResult]:
    """The results of ``jobs``, in order.

    Args:
      env: environment variables to add.
      timeout: seconds for one job, from when it starts; starting the process has its own limit.
      stop_on_failure: go on in a new process after a failed job, since the fault may have spoilt the process.
      progress: called with every result as it arrives.
    """
    results: list[RungResult] = []
    with tempfile.TemporaryDirectory(prefix="pallas-port-") as directory:
        while len(results) < len(jobs):
            rest = jobs[len(results) :]
            for result in _run_process(rest, env, timeout, stop_on_failure, pathlib.Path(directory)):
                results.append(result)
                if progress:
                    progress(jobs[len(results) - 1], result)
    return results


def _run_process(jobs, env, timeout, stop_on_failure, directory: pathlib.Path):
    """Yields results, at least one, until the process has ended."""
    inbox, outbox, log = (directory / name for name in ("jobs.json", "results.jsonl", "log.txt"))
    inbox.write_text(json.dumps([dataclasses.asdict(job) for job in jobs]))
    outbox.write_text("")
    paths = [path or os.getcwd() for path in sys.path]
    command = [sys.executable, "-m", f"{_ROOT}.translator.verify.worker", str(inbox), str(outbox)]
    with open(log, "w") as output:
        process = subprocess.Popen(
            command + (["--stop-on-failure"] if stop_on_failure else []),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), **env},
        )
    try:
        seen, deadline = 0, time.monotonic() + _START_SECONDS
        while True:
            ended = process.poll() is not None  # asked before reading: what is written by then is all there is
            lines = outbox.read_text().splitlines(keepends=True)
            events = [json.loads(line) for line in lines if line.endswith("\n")]
            for event in events[seen:]:
                if "status" in event:
                    yield RungResult(**event)
            if len(events) > seen:  # a job has started or ended: the clock starts anew
                seen, deadline = len(events), time.monotonic() + timeout
            done, running = divmod(seen, 2)  # every job writes one line when it starts and one when it ends
            if ended:
                if done < len(jobs) and (running or not done):
                    yield RungResult(jobs[done].name, "failed", _death(process.returncode, log))
                return
            if time.monotonic() > deadline:
                yield RungResult(
                    jobs[done].name,
                    "failed",
                    f"no result after {timeout:.0f} s: a hang, such as a wait that nothing completes",
                    {"timeout": True},
                )
                return
            time.sleep(_POLL_SECONDS)
    finally:
        process.kill()
        process.wait()


def _death(code: int, log: pathlib.Path) -> str:
    how = f"signal {-code}" if code < 0 else f"exit code {code}"
    tail = "\n".join(log.read_text(errors="replace").strip().splitlines()[-12:])
    return f"the process died ({how})\n{tail}".rstrip()
