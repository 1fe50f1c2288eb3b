"""Measures one golden at one shape on the GPU present: errors, and times side by side in one process.

A check as ``translator/verify/jobs.py`` runs them, so that a crash costs one shape and not the whole run.
Faults of the original do not end the measurement, since they are not the port's.

Options: ``timed`` (bool), ``iterations``.
"""

from __future__ import annotations

from typing import Any

import jax

from ..translator.verify import compare, gpu
from ..translator.verify.example import Call, Subject, make_call
from ..translator.verify.rung import Fail
from ..translator.verify.target import matching_device

REPEATS = 2
ROUNDS = 2


def check(subject: Subject, target: str, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """``data``: ``errors`` per pair, ``poisoned_runs``, and, if timed, ``us`` and ``rates`` per implementation."""
    matching_device(target)
    call = make_call(subject)
    data: dict[str, Any] = {"poisoned_runs": REPEATS, "errors": {}}
    original_fault = _errors(call, subject, data)
    faults = [entry["fault"] for pair, entry in data["errors"].items() if pair.startswith("port") and entry["fault"]]
    if options["timed"]:
        _times(call, data, options["iterations"], skip_original=bool(original_fault))
    if faults:
        raise Fail(faults[0], data)
    return _summary(data), data


def _errors(call: Call, subject: Subject, data: dict[str, Any]) -> str:
    """Fills ``data["errors"]``; returns what is wrong with running the original, if anything."""
    port, original = jax.jit(call.port), jax.jit(call.original)
    expected: dict[str, Any] = {}
    if call.reference is not None:
        expected["reference"] = jax.block_until_ready(call.reference())
    original_fault = ""
    try:
        expected["original"] = gpu.run_poisoned(original, call.arrays)
    except Exception as error:
        original_fault = data["original_fault"] = f"{type(error).__name__}: {error}"[:500]
    for _ in range(REPEATS):
        actual = gpu.run_poisoned(port, call.arrays)
        for name, value in expected.items():
            _record(data, f"port_vs_{name}", actual, value, subject)
        del actual
    if len(expected) == 2:
        _record(data, "original_vs_reference", expected["original"], expected["reference"], subject)
    return original_fault


def _record(data, pair: str, actual, expected, subject: Subject) -> None:
    """Keeps the worst over the repeats and the outputs."""
    differences = compare.compare(actual, expected, subject.tolerance)
    previous = data["errors"].get(pair, {"max_abs": 0.0, "rel_norm": 0.0, "fault": ""})
    data["errors"][pair] = {
        "max_abs": max([previous["max_abs"]] + [d.max_abs for d in differences]),
        "rel_norm": max([previous["rel_norm"]] + [d.rel_norm for d in differences]),
        "fault": previous["fault"] or compare.fault(differences),
    }


def _times(call: Call, data: dict[str, Any], iterations: int, skip_original: bool) -> None:
    functions = {} if skip_original else {"original": call.original}
    functions["port"] = call.port
    if (peers := getattr(call.example_module, "peers", None)) is not None:
        functions |= {name: _over_arrays(call, function) for name, function in peers(*call.args).items()}
    compiled = {name: jax.jit(function) for name, function in functions.items()}
    us: dict[str, float] = {}
    for _ in range(ROUNDS):  # alternating, so that a drift of the clock meets all of them
        for name, function in compiled.items():
            try:
                measured = gpu.median_us(function, call.arrays, iterations)
            except Exception as error:
                if name == "port":
                    raise
                data.setdefault("peer_faults", {})[name] = f"{type(error).__name__}: {error}"[:300]
                continue
            us[name] = min(measured, us.get(name, measured))
    data["us"] = us
    if "original" in us:
        data["speedup"] = us["original"] / us["port"]
    if (work := getattr(call.example_module, "work", None)) is not None:
        data["work"] = work(*call.args)
        data["rates"] = {name: rates(data["work"], time) for name, time in us.items()}


def rates(work: dict[str, float], us: float) -> dict[str, float]:
    """``GB/s`` and ``TFLOP/s`` for the work that is stated."""
    units = {"bytes": ("GB/s", 1e-3), "flops": ("TFLOP/s", 1e-6)}
    return {unit: work[key] / us * scale for key, (unit, scale) in units.items() if key in work}


def _over_arrays(call: Call, function):
    """A peer takes the arguments as the entry does; bind what is not an array, as for the port."""
    return lambda *arrays: function(*call.rebuild(arrays))


def _summary(data: dict[str, Any]) -> str:
    parts = [f"{pair.replace('_', ' ')} {entry['rel_norm']:.1e}" for pair, entry in data["errors"].items()]
    parts += [f"{name} {time:.1f} us" for name, time in data.get("us", {}).items()]
    if "speedup" in data:
        parts.append(f"{data['speedup']:.2f}x")
    return ", ".join(parts)
