"""Running on a real GPU: memory poisoned before the run, and times of the kernels alone."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.mosaic.gpu import profiler

_POISON_COPIES = 3


def poison(outputs: Any) -> None:
    """Fills memory that fits ``outputs`` (arrays or shapes) with NaN and frees it.

    The allocator hands freed blocks out again, so an output that a kernel leaves unwritten very likely holds NaN
    instead of an earlier right result. Integers get a large value.
    """
    blocks = []
    for leaf in jax.tree.leaves(outputs):
        floating = jnp.issubdtype(leaf.dtype, jnp.floating)
        value = jnp.nan if floating else jnp.array(0x5A5A5A5A).astype(leaf.dtype)
        blocks += [jnp.full(leaf.shape, value, leaf.dtype) for _ in range(_POISON_COPIES)]
    jax.block_until_ready(blocks)
    for block in blocks:
        block.delete()


def run_poisoned(function: Callable[..., Any], arrays: Sequence[Any]) -> Any:
    """The outputs of ``function(*arrays)``, run in poisoned memory."""
    poison(jax.eval_shape(function, *arrays))
    return jax.block_until_ready(function(*arrays))


def median_us(function: Callable[..., Any], arrays: Sequence[Any], iterations: int) -> float:
    """Median over ``iterations`` of the summed time of all kernels of one call, in microseconds, by CUPTI.

    Raises:
      RuntimeError: if no kernel was seen.
    """
    _, times = profiler.measure(function, iterations=iterations)(*arrays)
    if times is None:
        raise RuntimeError("the profiler saw no kernel")
    return 1e3 * statistics.median(times if isinstance(times, list) else [times])
