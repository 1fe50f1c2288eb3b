"""Says which GPU and which JAX a child process sees: ``device.py`` itself does not import JAX."""

from __future__ import annotations

from typing import Any

import jax

from ..translator.verify.rung import Skip
from ..translator.verify.target import GPUS


def check(subject: None, target: str, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """``data``: ``kind``, ``target`` and ``jax``. Skips where there is no GPU that a target stands for."""
    try:
        device = jax.devices("gpu")[0]
    except RuntimeError:
        raise Skip("no GPU on this machine") from None
    target_of = {gpu.capability: name for name, gpu in GPUS.items()}
    if device.compute_capability not in target_of:
        raise Skip(f"{device.device_kind} is none of {', '.join(GPUS)}")
    return device.device_kind, {
        "kind": device.device_kind,
        "target": target_of[device.compute_capability],
        "jax": jax.__version__,
    }
