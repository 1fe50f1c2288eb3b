"""Rung ``run``: on a GPU of the target's kind, the port against the original and against the reference.

The port runs several times, each time in freshly poisoned memory: a race shows as a result that is right only
sometimes.
"""

from __future__ import annotations

from typing import Any

import jax

from . import compare, gpu
from .example import Subject, make_call
from .rung import Fail, Skip
from .target import matching_device

REPEATS = 3


def check(subject: Subject, target: str, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """``data``: relative norm errors ``port_vs_original``, ``port_vs_reference``, ``original_vs_reference``."""
    matching_device(target)
    call = make_call(subject)
    port, original = jax.jit(call.port), jax.jit(call.original)
    data: dict[str, Any] = {}
    expected: dict[str, Any] = {}
    if call.reference is not None:
        expected["reference"] = call.reference()
    try:
        expected["original"] = gpu.run_poisoned(original, call.arrays)
    except Exception as error:
        data["original_error"] = f"{type(error).__name__}: {error}"[:500]
    if not expected:
        raise Skip(f"nothing to compare with: no reference, and the original fails: {data['original_error']}")
    faults = []
    for _ in range(REPEATS):
        actual = gpu.run_poisoned(port, call.arrays)
        for name, value in expected.items():
            differences = compare.compare(actual, value, subject.tolerance)
            data[f"port_vs_{name}"] = max(
                [d.rel_norm for d in differences] + [data.get(f"port_vs_{name}", 0.0)]
            )
            if fault := compare.fault(differences):
                faults.append(f"{fault} (against the {name})")
    if len(expected) == 2:
        differences = compare.compare(expected["original"], expected["reference"], subject.tolerance)
        data["original_vs_reference"] = max(d.rel_norm for d in differences)
    if faults:
        raise Fail(faults[0], data)
    errors = ", ".join(f"{data[f'port_vs_{name}']:.1e} against the {name}" for name in expected)
    return f"relative norm error {errors}; {REPEATS} runs from poisoned memory", data
