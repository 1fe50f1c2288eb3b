"""Every Triton-only primitive has a fate; every replaced function ports, lowers, computes what jnp's does, compiles."""

import importlib
import operator

import pytest

jnp = pytest.importorskip("jax.numpy")

import jax  # noqa: E402
import numpy as np  # noqa: E402

from pallas_port.rewrites.support import _functions, takes  # noqa: E402
from pallas_port.translator import primitives, replacements  # noqa: E402
from pallas_port.translator.replacements import Support, obstacle, replacement  # noqa: E402
from pallas_port.translator.result import TARGETS  # noqa: E402
from pallas_port.translator.rule_tables import load_tables, snapshot_versions  # noqa: E402
from pallas_port.translator.verify import jobs  # noqa: E402
from pallas_port.translator.verify.example import Subject  # noqa: E402

from .evidence import codes, computes, lowers, ported  # noqa: E402

HEAD = """
import jax
import jax.numpy as jnp
import jax.scipy.special
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu


"""
RUN = """

def run(*args):
    tile = pl.BlockSpec(SHAPE, lambda i: INDEX)
    return pl.pallas_call(
        kernel, grid=(args[0].shape[0] // SHAPE[0],), in_specs=[tile] * len(args), out_specs=tile,
        out_shape=jax.ShapeDtypeStruct(args[0].shape, OUT),
        compiler_params=plgpu.CompilerParams(num_warps=4),
    )(*args)
"""


def module(body: str, refs: str = "x_ref", shape: tuple[int, ...] = (128,), out: str = "args[0].dtype") -> str:
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    index = "(i,)" if len(shape) == 1 else "(i, 0)"
    run = RUN.replace("INDEX", index).replace("OUT", out).replace("*args", refs.replace("_ref", "")).replace("args[0]", "x").replace("* len(args)", f"* {len(refs.split(','))}")
    return f"{HEAD}SHAPE = {shape}\n\n\ndef kernel({refs}, o_ref):\n{lines}{run}"


@pytest.mark.parametrize("version", [*snapshot_versions(), None])
def test_every_triton_only_primitive_has_a_fate(version):
    tables = load_tables(version) if version else load_tables(live=True)
    assert not tables.triton_only - set(replacements.PRIMITIVES)


def test_support_functions_exist():
    named = {f.function for f in replacements.PRIMITIVES.values() if isinstance(f, Support)}
    assert named | set(replacements.FUNCTIONS.values()) <= set(_functions())


REPLACED = sorted(
    name for name in {*primitives._snapshot(primitives._snapshot_version()), *replacements.FUNCTIONS}
    if not name.startswith(("operator.", "builtins.", ".")) and (obstacle(name) or name in replacements.FUNCTIONS) and replacement(name)
)
OVER_AXES = {"_argmax", "_argmin", "_cumsum", "_softmax", "_log_softmax", "_logsumexp", "_var", "_std",
             "_nansum", "_ptp", "_count_nonzero", "_norm"}
INTEGERS = {"_population_count", "_invert"}
# Functions over an axis have tests of their own.
ELEMENTWISE = [n for n in REPLACED if replacement(n) not in OVER_AXES | {"_divmod", "_inline_asm"}]
VALUES = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1, -1, 0.5, -0.5, 2, -2, 1e-8, -1e-8, 1e-4, 1.5, -1.5, 2.5, 3,
                   8388607.5, 16777216.0, 0.99999994, 1.0000001, -0.49999997, 88.7, -103.9, 3e38, -3e38], np.float32)


def arguments(name: str, count: int) -> list[np.ndarray]:
    if replacement(name) in INTEGERS:
        return [np.random.default_rng(0).integers(-2**31, 2**31, 1024, np.int32)] * count
    x = np.resize(VALUES, 1024)
    x[768:] = np.random.default_rng(0).uniform(-1, 1, 256)
    return [x, np.random.default_rng(1).permutation(x)][:count]


def call_of(name: str, count: int) -> str:
    for module_name, short in (("jax.numpy", "jnp"), ("jax.lax", "lax"), ("jax.experimental.pallas.triton", "plgpu")):
        if name.startswith(module_name + "."):
            name = short + name.removeprefix(module_name)
    return f"{name}({', '.join(['x', 'y'][:count])})"


def arity(name: str) -> int:
    return 1 if takes(replacement(name), 1, frozenset()) else 2


def kernel_of(name: str) -> str:
    count, out = arity(name), "jnp.float32" if replacement(name) not in INTEGERS else "x.dtype"
    loads = "\n".join(f"{v} = {v}_ref[...]" for v in "xy"[:count])
    value = f"{call_of(name, count)}.astype(o_ref.dtype)"
    return module(f"{loads}\no_ref[...] = {value}", ", ".join(f"{v}_ref" for v in "xy"[:count]), out=out)


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_replaced(name):
    assert f"{replacement(name)}(x" in ported(kernel_of(name))


@pytest.mark.parametrize("name", sorted({replacement(n): n for n in ELEMENTWISE}.values()))
def test_computes_what_jnp_computes(name):
    args = arguments(name, arity(name))
    text = kernel_of(name)
    actual = np.asarray(computes(text, *args))
    owner, _, attribute = name.rpartition(".")
    if "pallas" in owner:
        owner, attribute = "jax.numpy", "tanh"
    expected = getattr(importlib.import_module(owner), attribute)(*args).astype(actual.dtype)
    cancels = replacement(name) in ("_logaddexp", "_logaddexp2")
    np.testing.assert_allclose(actual, expected, rtol=2e-6, atol=1e-7 if cancels else 1e-37)
    zeros = (actual == 0) & (np.asarray(expected) == 0)
    if replacement(name) not in ("_relu", "_relu6", "_float_pow"):  # max(-0.0, 0) is either
        assert (np.signbit(actual) == np.signbit(expected))[zeros].all()


def test_pow_of_all_kinds():
    x = np.resize(VALUES, 1024)
    y = np.repeat(np.array([0, 1, -1, 2, 3, -3, 0.5, -0.5, 0.1, 31, -30, np.inf, -np.inf, np.nan, 1e9, -0.0], np.float32), 64)
    for expression, function in {
        "x ** y": operator.pow, "2.0 ** y": lambda x, y: 2.0**y, "x ** 0.5": lambda x, y: x**0.5,
        "x ** -1.5": lambda x, y: x**-1.5, "jnp.power(x, y)": operator.pow, "x ** 3": lambda x, y: x**3,
    }.items():
        source = module(f"x, y = x_ref[...], y_ref[...]\no_ref[...] = {expression}", "x_ref, y_ref")
        actual = np.asarray(computes(source, x, y))
        np.testing.assert_allclose(actual, function(jnp.asarray(x), jnp.asarray(y)), rtol=2e-6, atol=1e-37, err_msg=expression)


def test_pow_of_integers_stays_exact():
    source = module("x = x_ref[...]\nn = jnp.where(x > 0, x, -x) % 5\no_ref[...] = x ** n", out="jnp.int32")
    x = np.arange(-512, 512, dtype=np.int32)
    np.testing.assert_array_equal(computes(source, x), x ** (abs(x) % 5))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_narrow_floats_are_computed_in_float32(dtype):
    source = module("x = x_ref[...]\no_ref[...] = jnp.log1p(jnp.floor(x)) + jax.nn.softplus(x) ** x")
    x = np.linspace(0, 8, 1024).astype(jnp.dtype(dtype))
    wide = x.astype(np.float32)
    expected = (jnp.log1p(jnp.floor(wide)).astype(dtype) + (jax.nn.softplus(wide).astype(dtype).astype(np.float32) ** wide).astype(dtype))
    np.testing.assert_array_equal(np.asarray(computes(source, x), np.float32), np.asarray(expected, np.float32))


def test_numbers_and_rows():
    source = module(
        "x = x_ref[...]\nm = jnp.max(x, axis=1)\no_ref[...] = x + jnp.log1p(jnp.expm1(m))[:, None] + jnp.atan(jnp.max(m, axis=0))",
        shape=(32, 64))
    x = np.random.default_rng(0).uniform(0, 2, (64, 64)).astype(np.float32)
    tiles = x.reshape(2, 32, 64)
    expected = tiles + tiles.max(2, keepdims=True) + np.arctan(tiles.max((1, 2), keepdims=True))
    np.testing.assert_allclose(computes(source, x), expected.reshape(64, 64), rtol=1e-6)


def test_methods_wrappers_and_keywords():
    source = module(
        "x = x_ref[...]\nf = jax.checkpoint(lambda v: v + 1)\n"
        "o_ref[...] = jax.nn.elu(lax.stop_gradient(x), alpha=0.5) + f(x) + inner(x) + half(x)")
    source = source.replace("def kernel", "@jax.checkpoint\ndef inner(x):\n    return jnp.sinh(x)\n\n\n"
                            "@jax.custom_jvp\ndef half(x):\n    return 0.5 * x\n\n\ndef kernel", 1)
    x = np.linspace(-2, 2, 1024).astype(np.float32)
    expected = np.asarray(jax.nn.elu(x, alpha=0.5)) + x + 1 + np.sinh(x) + 0.5 * x
    np.testing.assert_allclose(computes(source, x), expected, rtol=1e-6, atol=1e-6)


ROWS = np.random.default_rng(0).integers(-4, 5, (64, 128)).astype(np.float32)  # many ties
ROWS[3, 70], ROWS[3, 90], ROWS[5, 0], ROWS[7] = np.nan, np.nan, np.nan, -np.inf


@pytest.mark.parametrize("expression, out", [
    ("jnp.argmax(x, axis=1)", "int32"), ("jnp.argmin(x, axis=1)", "int32"), ("jnp.argmax(x, -1)", "int32"),
    ("x.argmin(axis=1).astype(jnp.int32)", "int32"), ("lax.argmax(x, 1, jnp.int32)", "int32"),
    ("lax.argmin(x, axis=1, index_dtype=jnp.int32)", "int32"), ("jnp.argmax(x.astype(jnp.bfloat16), axis=1)", "int32"),
    ("jnp.argmax(jnp.where(x > 0, 3, 1), axis=1)", "int32"), ("jnp.argmax(x, axis=1, keepdims=True)[:, 0]", "int32"),
    ("jax.nn.logsumexp(x, axis=1)", "float32"), ("jnp.var(x, axis=1)", "float32"), ("x.std(axis=1)", "float32"),
    ("jnp.var(x, axis=1, ddof=1)", "float32"),
])
def test_along_rows(expression, out):
    source = module(f"x = x_ref[...]\no_ref[...] = {expression}", shape=(32, 128))
    if out is None:
        assert codes(source)
        return
    source = source.replace("out_specs=tile", "out_specs=pl.BlockSpec((32,), lambda i: (i,))")
    source = source.replace("ShapeDtypeStruct(x.shape, x.dtype)", f"ShapeDtypeStruct(x.shape[:1], jnp.{out})")
    expected = eval(expression, {"jnp": jnp, "jax": jax, "lax": jax.lax, "x": jnp.asarray(ROWS)})
    np.testing.assert_allclose(computes(source, ROWS), expected, rtol=1e-6)


@pytest.mark.parametrize("expression", [
    "x + jnp.argmax(x, axis=1, keepdims=True).astype(jnp.float32)", "x + jnp.argmax(x, axis=0).astype(jnp.float32)[None, :]", "jax.nn.softmax(x)",
    "jax.nn.log_softmax(x, axis=1)", "jax.nn.softmax(x, axis=0)", "x - jax.nn.logsumexp(x, axis=1, keepdims=True)",
])
def test_along_an_axis_of_a_tile(expression):
    x = ROWS[:32].copy()
    x[~np.isfinite(x)] = 1.5
    expected = eval(expression, {"jnp": jnp, "jax": jax, "x": jnp.asarray(x)})
    source = module(f"x = x_ref[...]\no_ref[...] = {expression}", shape=(32, 128))
    np.testing.assert_allclose(computes(source, x), expected, rtol=2e-6)


def test_along_a_vector():
    source = module("x = x_ref[...]\no_ref[...] = x * jnp.argmax(x).astype(jnp.float32) + jax.nn.softmax(x) * jnp.var(x)", shape=(256,))
    x = np.random.default_rng(0).normal(size=256).astype(np.float32)
    np.testing.assert_allclose(computes(source, x), x * x.argmax() + jax.nn.softmax(x) * x.var(), rtol=1e-5)


@pytest.mark.parametrize("expression", ["jnp.argmax(x)", "jnp.any(x > 0, axis=1)", "jnp.prod(x, axis=1)", "jnp.var(x)"])
def test_reductions_that_stay(expression):
    source = module(f"x = x_ref[...]\no_ref[...] = x + {expression}", shape=(32, 128))
    assert codes(source) & {"B112", "B120"}


@pytest.mark.parametrize("expression, dtype, shape", [
    ("jnp.cumsum(x, axis=1)", "float32", (32, 128)), ("jnp.cumsum(x, axis=0)", "int32", (32, 128)),
    ("x.cumsum(-1)", "int32", (8, 256)), ("lax.cumsum(x, axis=1)", "float32", (2, 64)), ("jnp.cumsum(x)", "float32", (512,)),
    ("jnp.cumsum(x + 1, axis=1) * 2", "bfloat16", (16, 64)), ("jnp.cumulative_sum(x, axis=0)", "float32", (1, 256)),
])
def test_running_sums(expression, dtype, shape):
    source = module(f"x = x_ref[...]\no_ref[...] = {expression}", shape=shape)
    assert "_cumsum(x" in (text := ported(source)) and "layout=layout)" in text
    x = np.random.default_rng(0).integers(-3, 4, shape).astype(jnp.dtype(dtype))
    expected = eval(expression, {"jnp": jnp, "lax": jax.lax, "x": jnp.asarray(x)})
    np.testing.assert_array_equal(np.asarray(computes(source, x), np.float32), np.asarray(expected, np.float32))


@pytest.mark.parametrize("body, code", [
    ("o_ref[...] = total(x_ref[...])", "B109"), ("o_ref[...] = lax.cumsum(x_ref[...], axis=1, reverse=True)", "B120"),
    ("x = x_ref[...]\no_ref[...] = x + jnp.cumsum(x)", "B112"), ("o_ref[...] = jnp.cumprod(x_ref[...], axis=1)", "B120"),
    ("c = jnp.cumsum(jnp.ones((32, 128)), axis=1)\no_ref[...] = x_ref[...] + c", "B120"),
])
def test_running_sums_that_stay(body, code):
    source = module(body, shape=(32, 128)).replace("def kernel", "def total(x):\n    return jnp.cumsum(x, axis=1)\n\n\ndef kernel", 1)
    assert code in codes(source)


def test_running_sums_compile(tmp_path):
    body = "x = x_ref[...]\no_ref[...] = jnp.cumsum(x, axis=1) + jnp.cumsum(jnp.cumsum(x.astype(jnp.int32), axis=0), 1)"
    compiles(module(body, shape=(64, 64)), tmp_path, "jnp.ones((128, 64))")


def compiles(source: str, tmp_path, arguments: str) -> None:
    file = tmp_path / "kernel.py"
    file.write_text(f"{source}\n\ndef example_inputs():\n    return ({arguments},)\n")
    for target in TARGETS:  # one process per target
        subject = Subject(str(file), ported(file.read_text(), target), str(file), "example_inputs")
        [result] = jobs.run_jobs([jobs.Job("compile", "translator.verify.compile", subject, target)], env=jobs.CPU_ONLY, timeout=240)
        assert result.status in ("passed", "skipped"), result.detail


@pytest.mark.parametrize("expression", [
    "jnp.where(pl.program_id(0) > 3, x, -x)", "jnp.where(jnp.max(x, axis=0) > 0, x, 0.0)",
    "jnp.where(jnp.logical_not(x > 0), 1.0, x)", "jnp.where(x > 0, 0.0, x)",
])
def test_conditions(expression):
    source = module(f"x = x_ref[...]\no_ref[...] = {expression}")
    x = np.random.default_rng(0).normal(size=1024).astype(np.float32)
    blocks = [
        eval(expression.replace("pl.program_id(0)", str(i)), {"jnp": jnp, "x": jnp.asarray(b)}) for i, b in enumerate(x.reshape(8, 128))
    ]
    np.testing.assert_array_equal(computes(source, x), np.concatenate(blocks))


def test_unknown_decorator_is_diagnosed():
    source = module("o_ref[...] = inner(x_ref[...])").replace(
        "def kernel", "def twice(f):\n    return lambda x: f(f(x))\n\n\n@twice\ndef inner(x):\n    return x + 1\n\n\ndef kernel", 1)
    assert codes(source) == {"B102"}


@pytest.mark.parametrize("expression", [
    "jnp.floor(2.5) * x", "x + jnp.log1p(0.5)", "jnp.logaddexp(x1=x, x2=x)", "x.T + 1", "jnp.stack([x, x])",
    "jnp.split(x, 2)[0]",
])
def test_diagnosed(expression):
    assert codes(module(f"x = x_ref[...].astype(jnp.float32)\no_ref[...] = {expression}")) & {"B120", "B105"}


def test_all_together_compile(tmp_path):
    names = sorted({replacement(n): n for n in ELEMENTWISE if arity(n) == 1 and replacement(n) not in INTEGERS}.values())
    pairs = sorted({replacement(n): n for n in ELEMENTWISE if arity(n) == 2}.values())
    terms = [*(f"{call_of(n, 1)}.astype(jnp.float32)" for n in names), *(call_of(n, 2) for n in pairs)]
    bits = "lax.population_count(lax.bitcast_convert_type(x, jnp.int32)).astype(jnp.float32)"
    body = "\n".join(["x, y = x_ref[...], y_ref[...]", f"z = {bits}", *(f"z = z + {t}" for t in terms), "o_ref[...] = z"])
    compiles(module(body, "x_ref, y_ref"), tmp_path, "jnp.ones((256,)), jnp.ones((256,))")


def test_lowers_for_sm100_as_for_sm90():
    assert "_tan(" in lowers(module("o_ref[...] = jnp.tan(x_ref[...])"), jax.ShapeDtypeStruct((256,), jnp.float32))
