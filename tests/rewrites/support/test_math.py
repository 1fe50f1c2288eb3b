"""Support functions for elementwise mathematics in NumPy's float32, which keeps subnormal numbers, against float64.

JAX on a CPU flushes subnormal numbers to zero; so the functions run on NumPy here, with correctly rounded exp, log,
sin, cos and sqrt. What Mosaic GPU's own functions and contractions add, ``golden/accuracy.py`` measures on a GPU.
"""

import functools
import pathlib
import types

import numpy as np
import pytest

pytest.importorskip("jax")

from pallas_port.golden import accuracy  # noqa: E402
from pallas_port.rewrites import support  # noqa: E402

FOLDER = pathlib.Path(support.__file__).parent


def rounded(function):
    return lambda x: function(np.asarray(x, np.float64)).astype(np.float32)


def narrow(x):
    """Python numbers are weak in JAX; ``np.where`` of two of them is not."""
    return x.astype({"float64": "float32", "int64": "int32"}.get(x.dtype.name, x.dtype))


def numpy_module():
    """``math.py`` and ``functions.py`` with NumPy in the place of jnp and lax."""
    names = "clip broadcast_shapes shape minimum maximum result_type issubdtype floating float32 int32 inf nan power tanh"
    jnp = types.SimpleNamespace(**{n: getattr(np, n) for n in names.split()})
    for n in ("exp", "exp2", "log", "log2", "sin", "cos", "sqrt"):
        setattr(jnp, n, rounded(getattr(np, n)))
    jnp.where = lambda c, a, b: narrow(np.where(c, a, b))
    jnp.asarray = lambda x, dtype=None: np.asarray(x, dtype)
    lax = types.SimpleNamespace(
        RoundingMethod=types.SimpleNamespace(TO_NEAREST_EVEN=None), round=lambda x, _: np.rint(x),
        bitcast_convert_type=lambda x, dtype: np.asarray(x).view(dtype), optimization_barrier=lambda x: x,
        broadcast_in_dim=lambda x, shape, _: np.broadcast_to(x, shape), rsqrt=lambda x: (1 / np.sqrt(x)).astype(np.float32),
        shift_right_logical=lambda x, n: (x.view(np.uint32) >> np.uint32(n)).view(np.int32),
    )
    lax.fori_loop = lambda low, high, step, state: functools.reduce(lambda s, i: step(i, s), range(low, high), state)
    module = types.ModuleType("support")
    for file in ("math.py", "functions.py"):
        lines = (FOLDER / file).read_text().splitlines(keepends=True)
        text = "".join("\n" if line.startswith(("import ", "from ")) else line for line in lines)
        module.__dict__.update(jnp=jnp, lax=lax)
        exec(compile(text, str(FOLDER / file), "exec"), module.__dict__)
    return module


MATH = numpy_module()
# Largest error in units in the last place that these functions have here.
BOUNDS = {
    "floor": 0, "ceil": 0, "trunc": 0, "nextafter": 0, "log1p": 1.5, "expm1": 1.5, "tan": 2, "sinh": 2.2, "cosh": 2,
    "asin": 1.5, "acos": 1.2, "atan": 1.4, "asinh": 1.8, "acosh": 2.5, "atanh": 2.2, "cbrt": 1, "sqrt": 2.5, "erf_inv": 4,
    "pow": 1.7, "square_root_power": 1.2, "atan2": 1.8, "fmod": 0, "remainder": 0.5, "floor_divide": 1, "softplus": 2, "elu": 1.5,
}


@pytest.mark.parametrize("name", accuracy.FUNCTIONS)
def test_errors(name, monkeypatch):
    if name == "erf_inv":
        pytest.importorskip("scipy")
    monkeypatch.setattr(accuracy, "VALUES", 2**17)
    function = accuracy.FUNCTIONS[name]
    values = accuracy.arguments(function)
    with np.errstate(all="ignore"):
        if name == "square_root_power":
            actual = MATH._pow(values[0], np.float32(0.5))
        else:
            actual = getattr(MATH, f"_{name}")(*values)
        exact = function.exact(*(v.astype(np.float64) for v in values))
    found = accuracy.difference(actual, exact, values)
    assert found["max_ulp"] <= BOUNDS[name], found
    allowed = 1 if name == "erf_inv" else 0  # SciPy gives 0.0 for -0.0
    assert found["wrong_nan"] == found["wrong_inf"] == 0 and found["wrong_zero_sign"] <= allowed, found


@pytest.mark.parametrize("dtype", ["int32", "uint32", "int16", "uint16", "int8", "uint8"])
def test_population_count(dtype):
    limits = np.iinfo(dtype)
    x = np.random.default_rng(0).integers(limits.min, limits.max, 4096, np.dtype(dtype), endpoint=True)
    bits = np.bitwise_count(x.view(f"uint{limits.bits}"))
    actual = MATH._population_count(x)
    assert actual.dtype == x.dtype and np.array_equal(actual, bits)


def test_finite():
    x = np.array([0, -1, np.inf, -np.inf, np.nan, 3e38, 1e-45], np.float32)
    assert np.array_equal(MATH._isfinite(x), np.isfinite(x)) and MATH._isfinite(np.arange(3)).all()
