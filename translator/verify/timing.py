"""Rung ``time``: port and original, same inputs, same process, alternating; medians of kernel times.

Options: ``iterations`` per measurement, default 20.
"""

from __future__ import annotations

from typing import Any

import jax

from . import gpu
from .example import Subject, make_call
from .target import matching_device

_ROUNDS = 2


def check(subject: Subject, target: str, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """``data``: ``port_us``, ``original_us`` and ``speedup`` (above 1: the port is faster)."""
    matching_device(target)
    call = make_call(subject)
    functions = {"original": jax.jit(call.original), "port": jax.jit(call.port)}
    iterations = options.get("iterations", 20)
    best: dict[str, float] = {}
    for _ in range(_ROUNDS):
        for name, function in functions.items():
            us = gpu.median_us(function, call.arrays, iterations)
            best[name] = min(us, best.get(name, us))
    speedup = best["original"] / best["port"]
    data = {"port_us": best["port"], "original_us": best["original"], "speedup": speedup}
    return f"port {best['port']:.1f} us, original {best['original']:.1f} us: {speedup:.2f}x", data
