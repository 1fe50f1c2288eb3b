"""Runs thousands of generated kernels on a GPU, original against port.

::

    python -m pallas_port.tests.fuzz.on_gpu make --kernels 2400 --to sm90 --out kernels.json.gz
    python tests/fuzz/on_gpu.py run kernels.json.gz --processes 14 --seconds 420 --out fuzz.json

``make`` needs pallas-port, ``run`` only JAX and a GPU of that target.  Each process compiles and runs its share;
one whose CUDA context dies is started again behind the kernel that killed it.  A kernel disagrees if its port fails
where the original runs, or if NaNs, infinities or values differ; memory is poisoned with NaN first.
Disagreements are printed and written with their sources, to be reduced to tests.
"""

from __future__ import annotations

import argparse
import collections
import gzip
import json
import os
import pathlib
import subprocess
import sys
import time

_DIED = 9  # exit code of a process that must be started again


def make(arguments: argparse.Namespace) -> None:
    """Writes kernels and their ports; kernels that stay on Triton are counted, not written."""
    import random

    from pallas_port.tests.fuzz.kernels import kernel
    from pallas_port.translator.driver import port
    from pallas_port.translator.result import Options
    from pallas_port.translator.source import Source

    made: list[dict] = []
    kept: collections.Counter[str] = collections.Counter()
    seed = arguments.first
    while len(made) < arguments.kernels:
        one = kernel(random.Random(seed).choice)
        result = port(Source("kernel.py", one.source), arguments.to, Options())
        if all(site.status == "ported" for site in result.sites):
            made.append({"seed": seed, "source": one.source, "port": result.text, "tolerance": one.tolerance})
        else:
            kept.update(d.code for d in result.diagnostics if d.blocks)
        seed += 1
    with gzip.open(arguments.out, "wt") as file:
        json.dump({"target": arguments.to, "kept": dict(kept), "kernels": made}, file)
    print(f"{len(made)} kernels of {seed - arguments.first}, stay on Triton: {dict(kept)}")


def run(arguments: argparse.Namespace) -> None:
    """Shares the kernels out to processes until all have run or the time is over."""
    with gzip.open(arguments.file, "rt") as file:
        data = json.load(file)
    folder = pathlib.Path(arguments.out).with_suffix(".parts")
    folder.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false", "PYTHONWARNINGS": "ignore"}
    environment.pop("JAX_PLATFORMS", None)
    end = time.monotonic() + arguments.seconds

    def start(number: int) -> subprocess.Popen:
        command = [sys.executable, __file__, "work", arguments.file, "--number", str(number), "--of", str(arguments.processes)]
        with open(folder / f"{number}.err", "a") as errors:
            return subprocess.Popen([*command, "--out", str(folder / f"{number}.jsonl")], env=environment, stderr=errors)

    workers = {number: start(number) for number in range(arguments.processes)}
    while workers and time.monotonic() < end:
        for number, worker in list(workers.items()):
            code = worker.poll()
            if code is not None:
                done = len(_lines(folder / f"{number}.jsonl")) >= len(data["kernels"][number :: arguments.processes])
                workers.pop(number)
                if code and not done:
                    if code != _DIED:  # it could not write what it ran into
                        _record(folder / f"{number}.jsonl", {"status": "disagrees", "reason": f"the process ended with {code}"})
                    workers[number] = start(number)
        time.sleep(0.5)
    for worker in workers.values():
        worker.kill()
    _summarize(data, arguments, folder)


def _summarize(data: dict, arguments: argparse.Namespace, folder: pathlib.Path) -> None:
    counts: collections.Counter[str] = collections.Counter()
    faults, reasons, device = [], collections.Counter(), {}
    for number in range(arguments.processes):
        for made, result in zip(data["kernels"][number :: arguments.processes], _lines(folder / f"{number}.jsonl")):
            counts[result["status"]] += 1
            device = result.get("device") or device
            if result["status"] == "disagrees":
                faults.append({"seed": made["seed"], "reason": result["reason"], "source": made["source"]})
                print(f"--- kernel {made['seed']}: {result['reason']}\n{made['source']}")
            elif result["status"] == "original fails":
                reasons[result["reason"][:120]] += 1
    summary = {**device, "target": data["target"], "stay on Triton": data["kept"], **counts, "original fails with": dict(reasons), "disagreements": faults}
    pathlib.Path(arguments.out).write_text(json.dumps(summary, indent=1) + "\n")
    print(json.dumps({k: v for k, v in summary.items() if k != "disagreements"}, indent=1))


def work(arguments: argparse.Namespace) -> None:
    """One process: its share, from where an earlier one stopped."""
    import jax

    with gzip.open(arguments.file, "rt") as file:
        share = json.load(file)["kernels"][arguments.number :: arguments.of]
    out = pathlib.Path(arguments.out)
    device = {"device": jax.devices()[0].device_kind, "jax": jax.__version__}
    for made in share[len(_lines(out)) :]:
        status, reason = _compare(made)
        _record(out, {"status": status, "reason": reason, "device": device})
        if "CUDA_ERROR" in reason:
            sys.exit(_DIED)


def _compare(made: dict) -> tuple[str, str]:
    import jax
    import jax.numpy as jnp
    import numpy as np

    original, port = {}, {}
    exec(compile(made["source"], "original.py", "exec"), original)
    arrays = original["example_inputs"]()
    try:
        expected = np.asarray(jax.jit(original["run"])(*arrays).astype(jnp.float32))
    except Exception as error:
        return "original fails", f"{type(error).__name__}: {error}"[:600]
    try:
        exec(compile(made["port"], "port.py", "exec"), port)
        function = jax.jit(port["run"]).lower(*arrays).compile()
        jax.block_until_ready([jnp.full(max(expected.size, 1), jnp.nan, d) for d in (jnp.float32, jnp.float16)])
        actual = np.asarray(function(*arrays).astype(jnp.float32))
    except Exception as error:
        return "disagrees", f"{type(error).__name__}: {error}"[:600]
    return _difference(actual, expected, made["tolerance"])


def _difference(actual, expected, tolerance: float) -> tuple[str, str]:
    import numpy as np

    if actual.shape != expected.shape:
        return "disagrees", f"shape {actual.shape} instead of {expected.shape}"
    finite = np.isfinite(expected)
    if (np.isnan(actual) != np.isnan(expected)).any() or (actual[~finite] != expected[~finite])[~np.isnan(expected[~finite])].any():
        return "disagrees", f"{int((np.isfinite(actual) != finite).sum())} elements are not finite in only one of the two"
    error = np.where(finite, np.abs(np.where(finite, actual, 0) - np.where(finite, expected, 0)), 0)
    scale = np.where(finite, expected, 0)
    norm = float(np.linalg.norm(error) / (np.linalg.norm(scale) or 1))
    largest = float(error.max(initial=0) / (np.abs(scale).max(initial=0) or 1))
    if norm > tolerance or largest > 8 * tolerance:
        return "disagrees", f"relative norm error {norm:.2e}, largest error {largest:.2e} of the largest value; tolerance {tolerance:.0e}"
    return "agrees", ""


def _lines(file: pathlib.Path) -> list[dict]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def _record(file: pathlib.Path, result: dict) -> None:
    with open(file, "a") as lines:
        lines.write(json.dumps(result) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("make")
    one.add_argument("--kernels", type=int, default=2400)
    one.add_argument("--first", type=int, default=0, help="seed of the first kernel")
    one.add_argument("--to", choices=("sm90", "sm100"), default="sm90")
    one.set_defaults(job=make)
    two = commands.add_parser("run")
    two.add_argument("--processes", type=int, default=14)
    two.add_argument("--seconds", type=float, default=420)
    two.set_defaults(job=run)
    three = commands.add_parser("work")
    three.add_argument("--number", type=int, required=True)
    three.add_argument("--of", type=int, required=True)
    three.set_defaults(job=work)
    for command in (two, three):
        command.add_argument("file")
    for command in (one, two, three):
        command.add_argument("--out", required=True)
    arguments = parser.parse_args()
    arguments.job(arguments)


if __name__ == "__main__":
    main()
