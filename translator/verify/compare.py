"""What "right values" means: shapes equal, NaN and infinity in the same places, small error elsewhere.

Two measures, since each hides what the other shows. The relative norm error ``|a - b| / |b|`` over the finite
elements is the tight one. A few wrong elements in a large array vanish in it, so no element may be further off
than ``PEAK`` times the tolerance, relative to the largest magnitude of the expected array. Integers and booleans
must be equal.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

TOLERANCE: dict[str, float] = {
    "float64": 1e-12,
    "float32": 1e-5,
    "float16": 2e-3,
    "bfloat16": 1e-2,
    "float8_e4m3fn": 1e-1,
    "float8_e5m2": 2e-1,
}
PEAK = 8.0


@dataclasses.dataclass(frozen=True)
class Difference:
    """One output against its expectation. ``fault`` is empty if it is close enough."""

    max_abs: float
    rel_norm: float
    fault: str


def compare(actual: Any, expected: Any, tolerance: Mapping[str, float] = {}) -> list[Difference]:
    """One :class:`Difference` per output; the dtype of the actual output chooses the tolerance."""
    actual_leaves, expected_leaves = jax.tree.leaves(actual), jax.tree.leaves(expected)
    if len(actual_leaves) != len(expected_leaves):
        fault = f"{len(actual_leaves)} outputs instead of {len(expected_leaves)}"
        return [Difference(float("nan"), float("nan"), fault)]
    return [_compare(a, b, tolerance) for a, b in zip(actual_leaves, expected_leaves, strict=True)]


def fault(differences: list[Difference]) -> str:
    """The first fault, with the number of the output if there are several; empty if all are right."""
    for i, difference in enumerate(differences):
        if difference.fault:
            return f"output {i}: {difference.fault}" if len(differences) > 1 else difference.fault
    return ""


def _compare(actual, expected, tolerance) -> Difference:
    actual, expected = jnp.asarray(actual), jnp.asarray(expected)
    if actual.shape != expected.shape:
        return Difference(float("nan"), float("nan"), f"shape {actual.shape} instead of {expected.shape}")
    if not jnp.issubdtype(actual.dtype, jnp.floating):
        wrong = int((actual != expected).sum())
        return Difference(
            float(wrong > 0), float(wrong > 0), f"{wrong} of {actual.size} elements differ" if wrong else ""
        )
    limit = {**TOLERANCE, **tolerance}[actual.dtype.name]
    nans, infinities, max_abs, norm, expected_norm, peak = (float(x) for x in _measure(actual, expected))
    rel_norm = norm / expected_norm if expected_norm else norm
    fault = ""
    if nans:
        fault = f"{int(nans)} of {actual.size} elements are NaN in only one of the two"
    elif infinities:
        fault = f"{int(infinities)} of {actual.size} elements differ in being infinite"
    elif rel_norm > limit:
        fault = f"relative norm error {rel_norm:.2e} above {limit:.0e}"
    elif max_abs > PEAK * limit * peak:
        fault = f"largest error {max_abs:.2e} above {PEAK * limit:.0e} of the largest value {peak:.2e}"
    return Difference(max_abs, rel_norm, fault)


@jax.jit
def _measure(actual, expected):
    wide = jnp.float64 if actual.dtype == jnp.float64 else jnp.float32
    actual, expected = actual.astype(wide), expected.astype(wide)
    both = jnp.isfinite(actual) & jnp.isfinite(expected)
    error = jnp.where(both, jnp.abs(actual - expected), 0)
    size = jnp.where(both, jnp.abs(expected), 0)
    nans = jnp.sum(jnp.isnan(actual) != jnp.isnan(expected))
    infinities = jnp.sum((jnp.isinf(actual) | jnp.isinf(expected)) & (actual != expected))
    return (
        nans,
        infinities,
        jnp.max(error, initial=0),
        jnp.sqrt(jnp.sum(error * error)),
        jnp.sqrt(jnp.sum(size * size)),
        jnp.max(size, initial=0),
    )
