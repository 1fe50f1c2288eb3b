"""Measures the errors of ported functions on the GPU present: ``golden/results/accuracy-DEVICE.json``.

    python golden/accuracy.py [NAME...] [--output FILE] [--processes N]
    python -m pallas_port.golden.accuracy --export

Per function there is a Triton kernel that does nothing else (``source``); its port, jnp on the same GPU and the
Triton kernel itself are compared with NumPy in float64, on about 2**22 normal float32 values and on special ones. An
error is a distance in units in the last place of the exact result (of the smallest normal number, where the result is
subnormal); where the exact result is nan, infinite or zero the same is asked for.

Needs JAX and a GPU, and SciPy for ``erf_inv``. Without libcst it needs the ports that ``--export`` has written to
``golden/ports/``.

The file: ``{"device", "target", "jax", "date", "values", "results": [{"function", "expression", "status", "detail",
"port", "jnp", "triton"}]}``; each of the last three is ``{"max_ulp", "at", "wrong_nan", "wrong_inf",
"wrong_zero_sign", "us"}``, with ``at`` the arguments of the largest error and ``us`` the time of one call.
"""

from __future__ import annotations

import os
import pathlib
import sys
import tempfile

if not __package__:
    # As device.py: make the clone importable by its package name, for this process and for its children.
    with tempfile.TemporaryDirectory() as directory:
        (pathlib.Path(directory) / "pallas_port").symlink_to(pathlib.Path(__file__).resolve().parents[1])
        os.environ["PYTHONPATH"] = os.pathsep.join([directory, *filter(None, [os.environ.get("PYTHONPATH")])])
        import subprocess

        sys.exit(subprocess.call([sys.executable, "-m", "pallas_port.golden.accuracy", *sys.argv[1:]]))

import argparse
import dataclasses
import datetime
import importlib.metadata
import json
import re
import time
from collections.abc import Callable
from concurrent import futures
from typing import Any

import numpy as np

from ..translator.result import TARGETS
from ..translator.verify import jobs
from ..translator.verify.rung import Fail, RungResult, Skip
from .harness import PORTS, ROOT

VALUES = 2**22
_BLOCK = 1024
_TIMED_CALLS = 10
_SECONDS_PER_FUNCTION = 120.0
SPECIAL = np.array(
    [0.0, -0.0, np.inf, -np.inf, np.nan, 1, -1, 0.5, -0.5, 2, -2, 1.5, -1.5, 2.5, 3, -3, 1e-45, -1e-45, 1e-40, 1e-38,
     1e-8, -1e-8, 0.99999994, 1.0000001, -0.49999997, 0.49999997, 8388607.5, -8388607.5, 16777216.0, 88.7, 89.4,
     -103.9, 3.4e38, -3.4e38], np.float32)

Samples = Callable[[np.random.Generator, int], list[np.ndarray]]


def around(low: float, high: float) -> Samples:
    """Half of the values uniform between the bounds, half of all magnitudes from 1e-35 to 1e35 (within the bounds of
    a function that has some: those outside give nan, which counts)."""

    def sample(random: np.random.Generator, count: int) -> list[np.ndarray]:
        magnitudes = np.exp(random.uniform(-80, 80, count // 2)) * random.choice([-1, 1], count // 2)
        return [np.concatenate([random.uniform(low, high, count - count // 2), magnitudes])]

    return sample


def between(low: float, high: float) -> Samples:
    """Half of the values uniform, half of all magnitudes down to 1e-35."""

    def sample(random: np.random.Generator, count: int) -> list[np.ndarray]:
        small = np.exp(random.uniform(-80, 0, count // 2)) * random.choice([low, high], count // 2)
        return [np.concatenate([random.uniform(low, high, count - count // 2), small])]

    return sample


def pairs(samples: Samples) -> Samples:
    return lambda random, count: [*samples(random, count), *(random.permutation(x) for x in samples(random, count))]


def powers(random: np.random.Generator, count: int) -> list[np.ndarray]:
    """A third each: any base and moderate exponents, bases near 1 and large exponents, negative bases and integers."""
    third = count // 3
    x = [np.exp(random.uniform(-80, 80, count - 2 * third)), 1 + random.uniform(-1e-3, 1e-3, third),
         -np.exp(random.uniform(-3, 3, third))]
    y = [random.uniform(-3, 3, count - 2 * third), random.uniform(-8e4, 8e4, third),
         np.round(random.uniform(-40, 40, third))]
    return [np.concatenate(x), np.concatenate(y)]


def quotients(random: np.random.Generator, count: int) -> list[np.ndarray]:
    """Any divisors, and dividends up to 2**20 times as large: exact quotients beyond are no integers of float32."""
    y = np.exp(random.uniform(-60, 60, count)) * random.choice([-1, 1], count)
    return [y * random.uniform(-1, 1, count) * np.exp2(random.integers(-2, 20, count)), y]


@dataclasses.dataclass(frozen=True)
class Function:
    """``expression`` of x (and y); ``exact``: the same in float64; ``samples``: its arguments."""

    expression: str
    exact: Callable[..., np.ndarray]
    samples: Samples

    @property
    def arguments(self) -> tuple[str, ...]:
        return ("x", "y") if re.search(r"\by\b", self.expression) else ("x",)


def _erfinv(x: np.ndarray) -> np.ndarray:
    from scipy import special

    return special.erfinv(x)


def _float32_nextafter(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.nextafter(x.astype(np.float32), y.astype(np.float32)).astype(np.float64)


def _remainder(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """As NumPy's, but a zero has the sign of x, as jnp has it."""
    r = np.fmod(x, y)
    return np.where((r != 0) & ((r < 0) != (y < 0)), r + y, r)


def _floor_divide(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """As NumPy's, but a zero has the sign of y, as jnp has it."""
    q = np.floor_divide(x, y)
    return np.where(q == 0, np.copysign(0, y), q)


FUNCTIONS: dict[str, Function] = {
    "floor": Function("jnp.floor(x)", np.floor, around(-100, 100)),
    "ceil": Function("jnp.ceil(x)", np.ceil, around(-100, 100)),
    "trunc": Function("jnp.trunc(x)", np.trunc, around(-100, 100)),
    "log1p": Function("jnp.log1p(x)", np.log1p, around(-1, 1)),
    "expm1": Function("jnp.expm1(x)", np.expm1, around(-20, 20)),
    "tan": Function("jnp.tan(x)", np.tan, around(-100, 100)),
    "sinh": Function("jnp.sinh(x)", np.sinh, around(-20, 20)),
    "cosh": Function("jnp.cosh(x)", np.cosh, around(-20, 20)),
    "asin": Function("jnp.asin(x)", np.arcsin, between(-1, 1)),
    "acos": Function("jnp.acos(x)", np.arccos, between(-1, 1)),
    "atan": Function("jnp.atan(x)", np.arctan, around(-10, 10)),
    "asinh": Function("jnp.asinh(x)", np.arcsinh, around(-10, 10)),
    "acosh": Function("jnp.acosh(x)", np.arccosh, around(1, 10)),
    "atanh": Function("jnp.atanh(x)", np.arctanh, between(-1, 1)),
    "cbrt": Function("jnp.cbrt(x)", np.cbrt, around(-10, 10)),
    "sqrt": Function("jnp.sqrt(x)", np.sqrt, around(0, 10)),
    "erf_inv": Function("jax.lax.erf_inv(x)", _erfinv, between(-1, 1)),
    "pow": Function("x ** y", np.power, powers),
    "square_root_power": Function("x ** 0.5", lambda x: np.power(x, np.full_like(x, 0.5)), around(0, 10)),
    "atan2": Function("jnp.atan2(x, y)", np.arctan2, pairs(around(-4, 4))),
    "fmod": Function("jnp.fmod(x, y)", np.fmod, pairs(around(-4, 4))),
    "remainder": Function("x % y", _remainder, pairs(around(-4, 4))),
    "floor_divide": Function("x // y", _floor_divide, quotients),
    "nextafter": Function("jnp.nextafter(x, y)", _float32_nextafter, pairs(around(-4, 4))),
    "softplus": Function("jax.nn.softplus(x)", lambda x: np.logaddexp(x, 0), around(-20, 20)),
    "elu": Function("jax.nn.elu(x)", lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))), around(-20, 20)),
}

_HEAD = """import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu
"""
_KERNEL = """

def {name}_kernel({refs}, o_ref):
    {values} = {loads}
    o_ref[...] = {expression}


def {name}({values}):
    block = pl.BlockSpec(({block},), lambda i: (i,))
    return pl.pallas_call(
        {name}_kernel, grid=(x.shape[0] // {block},), in_specs=[{specs}], out_specs=block,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), compiler_params=plgpu.CompilerParams(num_warps=4),
    )({values})
"""


def source() -> str:
    """A module with one Triton kernel per function, each launched by a function of its name."""
    kernels = [
        _KERNEL.format(
            name=name, expression=f.expression, block=_BLOCK, values=", ".join(f.arguments),
            refs=", ".join(f"{a}_ref" for a in f.arguments), loads=", ".join(f"{a}_ref[...]" for a in f.arguments),
            specs=", ".join(["block"] * len(f.arguments)),
        )
        for name, f in FUNCTIONS.items()
    ]
    return _HEAD + "".join(kernels)


def ported(target: str) -> str:
    """The port of ``source()``; without libcst, the exported one.

    Raises:
      RuntimeError: a kernel was not ported.
      FileNotFoundError: libcst is missing, and there is no exported port for the installed JAX.
    """
    from ..translator.result import Options
    from ..translator.source import Source

    try:
        from ..translator.driver import port

        result = port(Source("accuracy_kernels.py", source()), target, Options(), None)
    except ModuleNotFoundError as error:
        if error.name != "libcst":
            raise
        return _exported_file(target).read_text(encoding="utf-8")
    if kept := [s.kernel for s in result.sites if s.status != "ported"]:
        raise RuntimeError(f"not ported: {', '.join(kept)}")
    return result.text


def _exported_file(target: str) -> pathlib.Path:
    return PORTS / importlib.metadata.version("jax") / f"accuracy_{target}.py"


# -- one function, in a child process ----------------------------------------------------------


def check(subject: None, target: str, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Options: ``function``, ``lock`` (as in ``measure.py``)."""
    import jax
    import jax.numpy as jnp

    from ..translator.verify import gpu, modules
    from ..translator.verify.target import matching_device
    from .measure import holding_gpu

    matching_device(target)
    name, function = options["function"], FUNCTIONS[options["function"]]
    here = str(ROOT / "accuracy_kernels.py")
    scope = {"jax": jax, "jnp": jnp}
    implementations = {
        "port": getattr(modules.load(here, ported(target), role="port"), name),
        "jnp": eval(f"lambda {', '.join(function.arguments)}: {function.expression}", scope),
        "triton": getattr(modules.load(here, source(), role="original"), name),
    }
    values = arguments(function)
    try:
        with np.errstate(all="ignore"):
            exact = function.exact(*(v.astype(np.float64) for v in values))
    except ModuleNotFoundError as error:
        raise Skip(f"needs {error.name}") from error
    arrays = [jnp.asarray(v) for v in values]
    data: dict[str, Any] = {}
    for kind, implementation in implementations.items():
        try:
            with holding_gpu(options["lock"], alone=False):
                compiled = jax.jit(implementation).lower(*arrays).compile()
                errors = difference(np.asarray(compiled(*arrays)), exact, values)
            with holding_gpu(options["lock"], alone=True):
                errors["us"] = gpu.median_us(compiled, arrays, _TIMED_CALLS)
            data[kind] = errors
        except Exception as error:
            if kind == "port":
                raise
            data[kind] = {"fault": f"{type(error).__name__}: {error}"[:300]}
    worst = data["port"]
    wrong = {k: n for k, n in worst.items() if k.startswith("wrong") and n > data["jnp"].get(k, 0)}
    if wrong or worst["max_ulp"] > data["jnp"].get("max_ulp", np.inf) + 1:
        raise Fail(f"{_summary(data)}; {wrong or 'more than 1 ulp worse than jnp'}", data)
    return _summary(data), data


def _summary(data: dict[str, Any]) -> str:
    return ", ".join(
        f"{kind} {d['max_ulp']:.2f} ulp {d['us']:.1f} us" if "max_ulp" in d else f"{kind} fails" for kind, d in data.items()
    )


def arguments(function: Function) -> list[np.ndarray]:
    """float32 arrays of ``VALUES`` elements: special values first, all pairs of them where there are two arguments."""
    random = np.random.default_rng(0)
    with np.errstate(over="ignore"):
        values = [v.astype(np.float32) for v in function.samples(random, VALUES)]
    special = [SPECIAL] if len(values) == 1 else [g.ravel() for g in np.meshgrid(SPECIAL, SPECIAL)]
    for v, s in zip(values, special):
        v[: s.size] = s
    return values


def difference(actual: np.ndarray, exact: np.ndarray, values: list[np.ndarray]) -> dict[str, Any]:
    """Errors of float32 ``actual`` against float64 ``exact``."""
    actual = actual.astype(np.float64)
    with np.errstate(over="ignore"):
        rounded = exact.astype(np.float32).astype(np.float64)
    infinite = ~np.isnan(exact) & ~np.isnan(actual) & (np.isinf(rounded) | np.isinf(actual))
    both_zero = (exact == 0) & (actual == 0)
    smallest = np.finfo(np.float32).smallest_normal
    finite = np.isfinite(rounded) & np.isfinite(actual)
    unit = np.spacing(np.maximum(np.abs(rounded[finite]), smallest).astype(np.float32)).astype(np.float64)
    ulp = np.zeros(exact.shape)
    ulp[finite] = np.abs(actual[finite] - exact[finite]) / unit
    worst = int(np.argmax(ulp))
    return {
        "max_ulp": round(float(ulp[worst]), 3),
        "at": [float(v[worst]) for v in values],
        "wrong_nan": int((np.isnan(actual) != np.isnan(exact)).sum()),
        "wrong_inf": int((infinite & (actual != rounded)).sum()),
        "wrong_zero_sign": int((both_zero & (np.signbit(actual) != np.signbit(exact))).sum()),
    }


# -- all functions -----------------------------------------------------------------------------


def main() -> None:
    from .device import device

    parser = argparse.ArgumentParser(description="Measure the errors of ported functions on the GPU present.")
    parser.add_argument("names", nargs="*", help="functions; all by default")
    parser.add_argument("--output", type=pathlib.Path, help="default: golden/results/accuracy-DEVICE.json")
    processes = min(6, max(1, (os.cpu_count() or 1) // 2))
    parser.add_argument("--processes", type=int, default=processes, help=f"at once (default {processes})")
    parser.add_argument("--export", action="store_true", help="only write the ports to golden/ports/")
    options = parser.parse_args()
    if options.export:
        for target in TARGETS:
            file = _exported_file(target)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(ported(target), encoding="utf-8")
            print(f"wrote {file}")
        return
    if unknown := [n for n in options.names if n not in FUNCTIONS]:
        parser.error(f"no function named {', '.join(unknown)}; there are {', '.join(FUNCTIONS)}")
    start, found = time.monotonic(), device()
    names = options.names or list(FUNCTIONS)

    def show(job: jobs.Job, result: RungResult) -> None:
        print(f"{job.name:<18} {result.status:<8} {result.detail}", flush=True)

    with tempfile.TemporaryDirectory() as directory, futures.ThreadPoolExecutor(options.processes) as pool:
        todo = [
            jobs.Job(n, "golden.accuracy", None, found["target"], {"function": n, "lock": f"{directory}/gpu"}) for n in names
        ]
        running = [
            pool.submit(
                jobs.run_jobs, todo[i :: options.processes], env={"XLA_PYTHON_CLIENT_PREALLOCATE": "false"},
                timeout=_SECONDS_PER_FUNCTION, progress=show,
            )
            for i in range(options.processes)
        ]
        results = {r.name: r for batch in running for r in batch.result()}
    report = {
        "device": found["kind"], "target": found["target"], "jax": found["jax"],
        "date": datetime.date.today().isoformat(), "values": VALUES,
        "results": [
            {"function": n, "expression": FUNCTIONS[n].expression, "status": results[n].status,
             "detail": results[n].detail, **results[n].data}
            for n in names
        ],
    }
    output = options.output or ROOT / "results" / f"accuracy-{found['kind'].lower().replace(' ', '-')}.json"
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(report, indent=1) + "\n")
    bad = [n for n in names if results[n].status != "passed"]
    print(f"{len(names)} functions, {len(bad)} not passed, {time.monotonic() - start:.0f} s: {output}", flush=True)
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
