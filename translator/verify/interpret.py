"""Rung ``interpret``: Mosaic GPU interpret mode on the host, with race detection, against the expected values.

Outputs start as NaN, so an element that the port leaves unwritten shows. A missing wait shows as a race, a wrong
count of arrivals as a hang (the job's timeout), an access outside an array as an error. Not seen here: layouts,
and memory overwritten below a wgmma in flight.

The expected values are the example's ``reference``, or else the original in Pallas' plain interpret mode.
"""

from __future__ import annotations

import contextlib
import functools
import io
from typing import Any

import jax
import numpy as np
from jax._src.pallas.mosaic_gpu.interpret import gpu_callbacks, interpret_pallas_call
from jax.experimental.pallas import mosaic_gpu as plgpu

from . import compare, reference_support
from .example import Call, Subject, make_call
from .rung import Fail, Skip
from .target import pretend

_RACE = "RACE DETECTED"
# A kernel that shares its programs out among the multiprocessors meets several per block only on few of them: then
# what one program leaves behind (filled stages, accumulators, phases of barriers) meets the next, as on large arrays.
_CORES = 2
_UNSUPPORTED = (
    "NotImplementedError",
    "does not support `inline_mgpu`",
    "not found for platform cpu",
    "Cannot lower jaxpr with effects",  # ``pl.run_state`` with an accumulator
)


def check(subject: Subject, target: str, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """``data``: the differences per output, and which support functions were replaced by their reference."""
    call = make_call(subject)
    replaced = reference_support.substitute(call.port_module)
    actual = _interpret(call, target)
    expected, source = _expected(call)
    differences = compare.compare(actual, expected, subject.tolerance)
    data = {
        "against": source,
        "replaced": list(replaced),
        "outputs": [{"max_abs": d.max_abs, "rel_norm": d.rel_norm} for d in differences],
    }
    if fault := compare.fault(differences):
        raise Fail(f"{fault} (against {source})", data)
    worst = max((d.rel_norm for d in differences), default=0.0)
    return f"no race; relative norm error {worst:.1e} against {source}", data


def _interpret(call: Call, target: str) -> Any:
    printed = io.StringIO()
    params = plgpu.InterpretGPUParams(detect_races=True)
    try:
        with (
            _predicated_copies(),
            reference_support.interpreted(),
            pretend(target, _CORES),
            plgpu.force_gpu_interpret_mode(params),
            contextlib.redirect_stdout(printed),
        ):
            result = jax.block_until_ready(call.port(*call.arrays))
        found = interpret_pallas_call.get_races() if _RACE not in printed.getvalue() else None
        if found is None or found.races_found:
            raise Fail(_race_report(printed.getvalue()), {"race": True})
        return result
    except Fail:
        raise
    except Exception as error:
        if _RACE in str(error):  # newer JAX raises on a race, older only prints
            raise Fail(_race_report(str(error)), {"race": True}) from error
        if _RACE in printed.getvalue():
            raise Fail(_race_report(printed.getvalue()), {"race": True}) from error
        if isinstance(error, NotImplementedError) or any(mark in str(error) for mark in _UNSUPPORTED):
            raise Skip(f"interpret mode does not support this kernel: {_last_line(error)}") from error
        raise
    finally:
        # After an error the interpreter refuses further kernels in this process until it is reset.
        interpret_pallas_call.reset_gpu_interpret_mode_state()


def _expected(call: Call) -> tuple[Any, str]:
    if call.reference is not None:
        return call.reference(), "the reference"
    try:
        with plgpu.force_gpu_interpret_mode(True):  # ``interpret=True`` for every pallas_call
            return jax.block_until_ready(call.original(*call.arrays)), "the original, interpreted"
    except Exception as error:
        raise Skip(
            f"ran without a race, but there is nothing to compare with: no reference, and the original fails in "
            f"interpret mode ({_last_line(error)})"
        ) from error


def _race_report(printed: str) -> str:
    lines = printed[printed.find(_RACE) :].splitlines() if _RACE in printed else []
    accesses = [line.strip() for line in lines[1:5] if "clock:" not in line]
    return "\n  ".join(["a data race", *accesses])


def _last_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    marked = [line for line in lines if any(mark in line for mark in _UNSUPPORTED)]
    return (marked or lines or [type(error).__name__])[0][:300]


@contextlib.contextmanager
def _predicated_copies():
    """Teaches the interpreter ``copy_smem_to_gmem(predicate=...)``, which pipelines with outputs use.

    Without it they are refused as "predicate not supported".
    """
    original = gpu_callbacks.copy_smem_to_gmem

    @functools.wraps(original)
    def copy_smem_to_gmem(*, predicate=None, **arguments):
        if predicate is not None and not bool(np.asarray(predicate)):
            return arguments["token"]
        return original(predicate=None, **arguments)

    gpu_callbacks.copy_smem_to_gmem = copy_smem_to_gmem
    try:
        yield
    finally:
        gpu_callbacks.copy_smem_to_gmem = original
