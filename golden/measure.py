"""Measures one golden at one shape on the GPU present: errors, and times side by side in one process.

A check as ``translator/verify/jobs.py`` runs them, so that a crash costs one shape and not the whole run.
Faults of the original do not end the measurement, since they are not the port's.

Several of these may run at once, since most of it is compilation. The file ``lock`` then keeps what else runs on the
GPU away from what is being timed.

Options: ``timed`` (bool), ``iterations``, ``lock`` (a path without a file; None if nothing else uses the GPU).
"""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Callable, Iterator
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
    lock = options.get("lock")
    with holding_gpu(lock, alone=False):
        call = make_call(subject)
    data: dict[str, Any] = {"poisoned_runs": REPEATS, "errors": {}}
    functions = _compiled(call, data)
    with holding_gpu(lock, alone=False):
        _errors(call, functions, subject, data)
    faults = [entry["fault"] for pair, entry in data["errors"].items() if pair.startswith("port") and entry["fault"]]
    if options["timed"]:
        with holding_gpu(lock, alone=True):
            _times(call, functions | _peers(call), data, options["iterations"])
    if faults:
        raise Fail(faults[0], data)
    return _summary(data), data


@contextlib.contextmanager
def holding_gpu(lock: str | None, alone: bool) -> Iterator[None]:
    """Inside, nobody else uses the GPU (``alone``), or nobody is timed on it."""
    if lock is None:
        yield
        return
    kind = fcntl.LOCK_EX if alone else fcntl.LOCK_SH
    with open(lock, "w") as held:
        with open(f"{lock}.next", "w") as turn:  # who waits to be alone lets no others in before
            fcntl.flock(turn, kind)
            fcntl.flock(held, kind)
        yield


def _compiled(call: Call, data: dict[str, Any]) -> dict[str, Callable[..., Any]]:
    """The original, unless it does not compile, and the port."""
    compiled = {}
    for name, function in {"original": call.original, "port": call.port}.items():
        try:
            compiled[name] = jax.jit(function).lower(*call.arrays).compile()
        except Exception as error:
            if name == "port":
                raise
            _note_fault(data, name, error)
    return compiled


def _peers(call: Call) -> dict[str, Callable[..., Any]]:
    """Not yet compiled: XLA tunes library calls on the GPU when it compiles them."""
    if (peers := getattr(call.example_module, "peers", None)) is None:
        return {}
    return {name: jax.jit(_over_arrays(call, function)) for name, function in peers(*call.args).items()}


def _note_fault(data: dict[str, Any], name: str, error: Exception) -> None:
    data.setdefault("faults", {})[name] = f"{type(error).__name__}: {error}"[:500]


def _errors(call: Call, functions: dict[str, Callable[..., Any]], subject: Subject, data: dict[str, Any]) -> None:
    """Fills ``data["errors"]``; an original that fails goes to ``data["faults"]`` and is not timed."""
    outputs = jax.eval_shape(call.port, *call.arrays)

    def run(name: str) -> Any:
        gpu.poison(outputs)
        return jax.block_until_ready(functions[name](*call.arrays))

    expected: dict[str, Any] = {}
    if call.reference is not None:
        expected["reference"] = jax.block_until_ready(call.reference())
    if "original" in functions:
        try:
            expected["original"] = run("original")
        except Exception as error:
            _note_fault(data, "original", error)
            del functions["original"]
    for _ in range(REPEATS):
        actual = run("port")
        for name, value in expected.items():
            _record(data, f"port_vs_{name}", actual, value, subject)
        del actual
    if len(expected) == 2:
        _record(data, "original_vs_reference", expected["original"], expected["reference"], subject)


def _record(data, pair: str, actual, expected, subject: Subject) -> None:
    """Keeps the worst over the repeats and the outputs."""
    differences = compare.compare(actual, expected, subject.tolerance)
    previous = data["errors"].get(pair, {"max_abs": 0.0, "rel_norm": 0.0, "fault": ""})
    data["errors"][pair] = {
        "max_abs": max([previous["max_abs"]] + [d.max_abs for d in differences]),
        "rel_norm": max([previous["rel_norm"]] + [d.rel_norm for d in differences]),
        "fault": previous["fault"] or compare.fault(differences),
    }


def _times(
    call: Call, functions: dict[str, Callable[..., Any]], data: dict[str, Any], iterations: int
) -> None:
    us: dict[str, float] = {}
    for _ in range(ROUNDS):  # alternating, so that a drift of the clock meets all of them
        for name, function in functions.items():
            try:
                measured = gpu.median_us(function, call.arrays, iterations)
            except Exception as error:
                if name == "port":
                    raise
                _note_fault(data, name, error)
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
