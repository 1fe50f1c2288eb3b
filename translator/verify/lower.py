"""Rung ``lower``: JAX lowers the port for the target, so every primitive has a rule and every value a layout.

Lowering does not notice a wrong architecture: a wgmma kernel "lowers" for sm100. The compile rung does.
"""

from __future__ import annotations

from typing import Any

import jax

from .example import Subject, make_call
from .rung import Fail
from .target import pretend


def check(subject: Subject, target: str, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """``data``: numbers of Mosaic GPU and of Triton kernels in the lowered module."""
    call = make_call(subject)
    with pretend(target):
        lowered = jax.jit(call.port).trace(*call.arrays).lower(lowering_platforms=("cuda",))
    text = lowered.as_text()
    data = {"mosaic_kernels": text.count("@mosaic_gpu"), "triton_kernels": text.count("gpu$xla.gpu.triton")}
    if not data["mosaic_kernels"]:
        raise Fail("the lowered module has no Mosaic GPU kernel", data)
    rest = f"; {data['triton_kernels']} stay on Triton" if data["triton_kernels"] else ""
    return f"{data['mosaic_kernels']} Mosaic GPU kernel(s){rest}", data
