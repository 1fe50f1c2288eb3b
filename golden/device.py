"""Runs every golden on the GPU present and writes ``golden/results/DEVICE.json``.

    python golden/device.py [NAME...] [--output FILE] [--iterations N] [--processes N]

Needs JAX and a GPU, not libcst; without it, goldens without a committed port need ``harness.py --export`` before.
Several processes compile side by side, each some shapes of one golden; only one at a time is timed. A shape that fails
is recorded, and a new process goes on with the next.

The file: ``{"device", "jax", "date", "results": [{"golden", "shape", "label", "status", "detail", ...}]}``, with
what ``measure.py`` returns in every result. Times are microseconds of the GPU's kernels, medians of N calls, best of
two rounds.
"""

from __future__ import annotations

import os
import pathlib
import sys
import tempfile

if not __package__:
    # Run as a script from a clone that is not installed: make the clone importable by its package name, for this
    # process and for its children, and start over.
    with tempfile.TemporaryDirectory() as directory:
        (pathlib.Path(directory) / "pallas_port").symlink_to(pathlib.Path(__file__).resolve().parents[1])
        os.environ["PYTHONPATH"] = os.pathsep.join([directory, *filter(None, [os.environ.get("PYTHONPATH")])])
        import subprocess

        sys.exit(subprocess.call([sys.executable, "-m", "pallas_port.golden.device", *sys.argv[1:]]))

import argparse
import datetime
import json
import time
from collections.abc import Sequence
from concurrent import futures
from typing import Any

from ..translator.verify import jobs
from ..translator.verify.rung import RungResult
from .harness import ROOT, Golden, discover

_DESCRIBE, _MEASURE = "golden.describe", "golden.measure"
_SECONDS_PER_SHAPE = 240.0  # waiting for the GPU included
_SHAPES_PER_PROCESS = 6
_SHARE_GPU = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}


def device() -> dict[str, str]:
    """``kind``, ``target`` and ``jax`` of the GPU present. Exits with a message if there is none."""
    [result] = jobs.run_jobs([jobs.Job("device", _DESCRIBE, None, "")])
    if result.status != "passed":
        sys.exit(f"cannot measure: {result.detail}")
    return result.data


def batches(golden: Golden) -> list[Sequence[str]]:
    """Labels to measure, one list per process. A golden whose case fails gets a list, so that ``measure`` says so."""
    try:
        labels = list(golden.case.SHAPES)
    except Exception:
        return [()]
    return [labels[i : i + _SHAPES_PER_PROCESS] for i in range(0, len(labels), _SHAPES_PER_PROCESS)]


def measure(
    golden: Golden, labels: Sequence[str], target: str, iterations: int, lock: str | None = None
) -> list[dict[str, Any]]:
    """One record per label."""
    try:
        text = golden.expected_text(target)
        todo = [
            jobs.Job(
                label,
                _MEASURE,
                golden.subject(label, text),
                target,
                {"timed": label in golden.case.TIMED, "iterations": iterations, "lock": lock},
            )
            for label in labels
        ]
    except Exception as error:  # a broken golden must not cost the others their results
        print(f"{golden.name:<24} {'':<24} failed   {error}", flush=True)
        return [{"golden": golden.name, "label": "", "status": "failed", "detail": f"{type(error).__name__}: {error}"}]

    def show(job: jobs.Job, result: RungResult) -> None:
        print(f"{golden.name:<24} {job.name:<24} {result.status:<8} {result.detail}", flush=True)

    results = jobs.run_jobs(
        todo, env=_SHARE_GPU, timeout=_SECONDS_PER_SHAPE, stop_on_failure=True, progress=show
    )
    return [
        {
            "golden": golden.name,
            "label": result.name,
            "shape": golden.case.SHAPES[result.name],
            "status": result.status,
            "detail": result.detail,
            **result.data,
        }
        for result in results
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description="Run all goldens on the GPU present.")
    parser.add_argument("names", nargs="*", help="goldens; all by default")
    parser.add_argument("--output", type=pathlib.Path, help="default: golden/results/DEVICE.json")
    parser.add_argument("--iterations", type=int, default=20, help="calls per measurement (default 20)")
    processes = min(8, max(1, (os.cpu_count() or 1) // 2))
    parser.add_argument("--processes", type=int, default=processes, help=f"at once (default {processes})")
    arguments = parser.parse_args()
    start = time.monotonic()
    found = device()
    print(f"{found['kind']}, JAX {found['jax']}, target {found['target']}", flush=True)
    output = arguments.output or ROOT / "results" / f"{found['kind'].lower().replace(' ', '-')}.json"
    output.parent.mkdir(parents=True, exist_ok=True)
    report: dict[str, Any] = {
        "device": found["kind"],
        "target": found["target"],
        "jax": found["jax"],
        "date": datetime.date.today().isoformat(),
        "iterations": arguments.iterations,
        "results": [],
    }
    with tempfile.TemporaryDirectory() as directory, futures.ThreadPoolExecutor(arguments.processes) as pool:
        running = [
            pool.submit(measure, golden, labels, found["target"], arguments.iterations, f"{directory}/gpu")
            for golden in discover(arguments.names)
            for labels in batches(golden)
        ]
        for records in running:
            report["results"] += records.result()
            output.write_text(json.dumps(report, indent=1) + "\n")  # after each: a cut run keeps what it has
    bad = [record for record in report["results"] if record["status"] != "passed"]
    seconds = time.monotonic() - start
    print(f"{len(report['results'])} shapes, {len(bad)} not passed, {seconds:.0f} s: {output}", flush=True)
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
