"""Evidence for ports of kernels in tests: they import, lower for both targets, and compute the right values.

Kernels here are module texts with a function ``run``; shapes are small.
"""

from __future__ import annotations

import types

import jax
import numpy as np

from pallas_port.translator.driver import port
from pallas_port.translator.result import Options, PortResult
from pallas_port.translator.source import Source
from pallas_port.translator.verify import interpret, modules, reference_support
from pallas_port.translator.verify.target import pretend

TARGETS = ("sm90", "sm100")


def plan(source: str, target: str = "sm90") -> PortResult:
    """What the tool makes of a module."""
    return port(Source("kernel.py", source), target, Options())


def codes(source: str, target: str = "sm90") -> set[str]:
    """The codes of all that keeps a call of the module on Triton."""
    return {d.code for d in plan(source, target).diagnostics if d.blocks}


def ported(source: str, target: str = "sm90") -> str:
    """The text of the port; every call of the module must be ported."""
    result = plan(source, target)
    assert result.sites and {s.status for s in result.sites} == {"ported"}, result.diagnostics
    return result.text


def lowers(source: str, *args: jax.ShapeDtypeStruct) -> str:
    """Lowers the port of ``run(*args)`` for both targets; the text of the port for sm90."""
    texts = {target: ported(source, target) for target in TARGETS}
    for target, text in texts.items():
        run = modules.load("kernel.py", text, role="port").run
        with pretend(target):
            lowered = jax.jit(run).trace(*args).lower(lowering_platforms=("cuda",)).as_text()
        assert "@mosaic_gpu" in lowered and "gpu$xla.gpu.triton" not in lowered
    return texts["sm90"]


def computes(source: str, *args: np.ndarray) -> object:
    """What the port of ``run(*args)`` computes in interpret mode, after it has lowered for both targets."""
    text = lowers(source, *(jax.ShapeDtypeStruct(a.shape, a.dtype) for a in args))
    module = modules.load("kernel.py", text, role="port")
    reference_support.substitute(module)
    return interpret._interpret(types.SimpleNamespace(port=module.run, arrays=args), "sm90")
