"""Operations on arrays of different dtypes and shapes: each port lowers for both targets and computes what jnp does."""

import pytest

pytest.importorskip("jax")

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax import lax  # noqa: E402

from pallas_port.translator.driver import port  # noqa: E402
from pallas_port.translator.record import record_example  # noqa: E402
from pallas_port.translator.result import Options  # noqa: E402
from pallas_port.translator.source import Source  # noqa: E402

from .evidence import codes, computes, lowers, ported  # noqa: E402

HEAD = """
import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu


"""


def module(expression: str, *arrays: np.ndarray, out: str, before: str = "", shape: tuple[int, ...] | None = None) -> str:
    """A kernel of one program that stores ``expression`` of its arguments x, y, z."""
    names = "xyz"[: len(arrays)]

    def spec(extents):
        return f"pl.BlockSpec({extents}, lambda i: ({', '.join('0' * len(extents))},))"

    shape = arrays[0].shape if shape is None else shape
    lines = [*(f"{n} = {n}_ref[...]" for n in names), *before.splitlines(), f"o_ref[...] = {expression}"]
    return HEAD + "\n".join([
        f"def kernel({', '.join(f'{n}_ref' for n in names)}, o_ref):",
        *(f"    {line}" for line in lines),
        "",
        "",
        f"def run({', '.join(names)}):",
        "    return pl.pallas_call(",
        f"        kernel, grid=(1,), in_specs=[{', '.join(spec(a.shape) for a in arrays)}], out_specs={spec(shape)},",
        f"        out_shape=jax.ShapeDtypeStruct({shape}, jnp.{out}),",
        "        compiler_params=plgpu.CompilerParams(num_warps=4),",
        f"    )({', '.join(names)})",
        "",
    ])


def values(dtype: str, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    made = np.random.default_rng(seed).integers(-100, 100, shape)
    floats = jnp.issubdtype(jnp.dtype(dtype), jnp.floating)
    return (made / 8 if floats else made % 2 if dtype == "bool" else made).astype(jnp.dtype(dtype))


def expected(expression: str, *arrays: np.ndarray) -> np.ndarray:
    return eval(expression, {"jnp": jnp, "lax": lax}, dict(zip("xyz", map(jnp.asarray, arrays))))


MIXED = [
    ("float32", "bfloat16"), ("bfloat16", "float32"), ("float32", "int32"), ("bfloat16", "int32"), ("float32", "bool"),
    ("int32", "int16"),
]


@pytest.mark.parametrize("dtypes", MIXED, ids="-".join)
def test_vectors_of_other_dtypes_meet_tiles(dtypes):
    expression = "jnp.maximum(x * y[:, None], z[None, :])"
    x, y, z = values(dtypes[0], (8, 64)), values(dtypes[1], (8,), 1), values(dtypes[1], (64,), 2)
    wanted = expected(expression, x, y, z)
    actual = computes(module(expression, x, y, z, out=str(wanted.dtype)), x, y, z)
    assert actual.dtype == wanted.dtype and np.array_equal(actual, wanted)


def test_weak_numbers_stay_weak():
    # int32 * 0.5 is a weak float32, which bfloat16 outranks: no dtype may be named on the way
    x, y = values("int32", (8, 64)), values("bfloat16", (8,), 1)
    wanted = expected("x * 0.5 + y[:, None]", x, y)
    actual = computes(module("x * 0.5 + y[:, None]", x, y, out="bfloat16"), x, y)
    assert wanted.dtype == jnp.bfloat16 and np.array_equal(actual, wanted)


def test_vectors_of_the_same_dtype_keep_their_new_axis():
    x = values("float32", (8, 64))
    text = ported(module("x - jnp.max(x, axis=1, keepdims=True)", x, out="float32"))
    assert "x - jnp.max(x, axis=1)[:, None]" in text
    y = values("bfloat16", (64,))
    assert "x + lax.broadcast_in_dim(y, x.shape, [1])" in ported(module("x + y[None, :]", x, y, out="float32"))


def test_conditions_keep_their_new_axis():
    x, y = values("float32", (8, 64)), values("int32", (8,), 1)
    source = module("jnp.where(y[:, None] > 0, x, 0)", x, y, out="float32")
    assert np.array_equal(computes(source, x, y), np.where(y[:, None] > 0, x, 0))


FLOATS = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1, -1, 0.75, -2.5, 3, -7, 1e-30, 3e30, -12345.678, 1e6, 2**-20])


@pytest.mark.parametrize("expression,dtype", [("x % y", "float32"), ("jnp.fmod(x, y)", "bfloat16"), ("x % y", "int32")])
def test_remainders(expression, dtype):
    x, y = (v.ravel() for v in np.meshgrid(FLOATS, FLOATS))
    if dtype == "int32":
        x, y = (values("int32", (256,), seed) for seed in range(2))
    x, y = x.astype(jnp.dtype(dtype)), y.astype(jnp.dtype(dtype))
    source = module(expression, x, y, out=dtype)
    actual, wanted = (np.asarray(v, np.float64) for v in (computes(source, x, y), expected(expression, x, y)))
    np.testing.assert_array_equal(actual, wanted)
    numbers = wanted == wanted
    np.testing.assert_array_equal(np.signbit(actual[numbers]), np.signbit(wanted[numbers]))


def test_quotients():
    x, y = (v.ravel().astype(np.float32) for v in np.meshgrid(FLOATS, FLOATS))
    for before, expression in (("", "x // y"), ("q, r = divmod(x, y)", "q")):
        np.testing.assert_array_equal(computes(module(expression, x, y, out="float32", before=before), x, y), np.asarray(jnp.asarray(x) // y))


def test_remainders_of_what_counts_stay():
    x = values("float32", (8, 64))
    text = ported(module("jnp.where((jnp.arange(64) % 2 == 0)[None, :], x, (pl.program_id(0) % 3) * x)", x, out="float32"))
    assert "jnp.arange(64) % 2" in text and "_remainder" not in text


def test_integers_are_not_taken_for_floats():
    x = np.array([3, 4, -5, 2**31 - 1] * 64, np.int32)
    assert np.array_equal(computes(module("lax.rem(x, x) + x % 4 + x // 3", x, out="int32"), x), x % 4 + x // 3)


ALONG_ROWS = [
    "jnp.sum(x, axis=1, where=x > 0)", "jnp.max(x, axis=1, where=x < 1, initial=-jnp.inf)", "jnp.mean(x, axis=1, where=x < 1)",
    "jnp.nansum(x, axis=1)", "jnp.linalg.norm(x, axis=1)", "jnp.count_nonzero(x, axis=1)", "jnp.sum(x, axis=(1,))",
    "jnp.max(x, axis=1, initial=0.5)", "lax.reduce_max(x, (1,))", "lax.reduce_sum(x, axes=[1])",
]
ALONG_COLUMNS = ["jnp.ptp(x, axis=0)", "jnp.sum(x, axis=0, initial=2.0)", "jnp.min(x, axis=0, where=x > 0, initial=9.0)"]


@pytest.mark.parametrize("expressions", [ALONG_ROWS, ALONG_COLUMNS], ids=["rows", "columns"])
def test_reductions(expressions):
    x = values("float32", (8, 64))
    terms = " + ".join(f"{3 ** i} * {e}" for i, e in enumerate(expressions))
    wanted = expected(terms, x)
    np.testing.assert_allclose(computes(module(terms, x, out="float32", shape=wanted.shape), x), wanted, rtol=1e-5)


def test_sums_without_nan():
    x = values("float32", (8, 64))
    x[1, 3] = np.nan
    source = module("jnp.nansum(x, axis=1)", x, out="float32", shape=(8,))
    np.testing.assert_allclose(computes(source, x), np.nansum(x, axis=1), rtol=1e-5)


@pytest.mark.parametrize("dtype", ["uint32", "int8"])
def test_largest_of_integers(dtype):
    limits = np.iinfo(dtype)
    x = np.random.default_rng(0).integers(limits.min, limits.max, (8, 64), np.dtype(dtype), endpoint=True)
    source = module("jnp.argmax(x, axis=1) - 100 * jnp.argmin(x, axis=1)", x, out="int32", shape=(8,))
    assert np.array_equal(computes(source, x), x.argmax(axis=1) - 100 * x.argmin(axis=1))


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_arithmetic_of_8_bits(dtype):
    x, y = values("int32", (256,)), values("int32", (256,), 1)
    before = f"x, y = x.astype(jnp.{dtype}), y.astype(jnp.{dtype})"
    terms = ["jnp.maximum(x + y, x - y) * y", "x % y", "x // (y | 1)", "-x + abs(y) ** 2", "x >> 2", "x << 3", "jnp.where(x < y, x, y)"]
    terms = " + ".join(f"{7 ** i} * ({t}).astype(jnp.int32)" for i, t in enumerate(terms))
    wanted = expected(terms, x.astype(dtype), y.astype(dtype))
    assert np.array_equal(computes(module(terms, x, y, out="int32", before=before), x, y), wanted)


def test_narrow_reductions():
    x = values("int32", (8, 64))
    before = "x = x.astype(jnp.int8)"
    source = module("(jnp.max(x, axis=1, keepdims=True) + x).astype(jnp.int32)", x, out="int32", before=before)
    narrow = jnp.asarray(x.astype(np.int8))
    assert np.array_equal(computes(source, x), (jnp.max(narrow, axis=1, keepdims=True) + narrow).astype(jnp.int32))


def test_recorded_dtypes_show_arithmetic_of_8_bits(tmp_path):
    x = values("int8", (256,))
    source = module("x + 100", x, out="int8")
    assert "_in_int32" not in ported(source)
    file = tmp_path / "kernel.py"
    file.write_text(source + "\n\ndef example():\n    run(jnp.ones(256, jnp.int8))\n")
    facts = record_example(f"{file}:example", str(file))
    assert "_in_int32(jnp.add)(x, 100)" in port(Source(str(file), file.read_text()), "sm90", Options(), facts).text


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_bools_are_made_by_comparison(dtype):
    x = values(dtype, (256,)) * (values("int32", (256,), 1) % 2).astype(dtype)
    for expression in ("jnp.bool_(x)", "lax.convert_element_type(x, jnp.bool_)"):
        assert "_convert(x, " in ported(module(f"jnp.where({expression}, 1, 0)", x, out="int32"))
    source = module("jnp.where(x.astype(bool), 1, 0)", x, out="int32")
    assert np.array_equal(computes(source, x), x.astype(bool).astype(np.int32))


def test_narrow_floats_are_converted_by_way_of_float32():
    x = values("bfloat16", (256,)) / 4
    source = module("x.astype(jnp.float8_e4m3fn).astype(jnp.float32)", x, out="float32")
    assert np.array_equal(computes(source, x), x.astype(jnp.float8_e4m3fn).astype(np.float32))


def test_sign_bits():
    x = np.resize(np.array([0.0, -0.0, 1, -1, np.inf, -np.inf], np.float32), 256)
    assert np.array_equal(computes(module("jnp.where(jnp.signbit(x), 1, 0)", x, out="int32"), x), np.signbit(x))


def test_numbers_made_into_arrays():
    x = values("float32", (256,))
    assert np.array_equal(computes(module("jnp.array(2.5) * x + jnp.asarray(3)", x, out="float32"), x), 2.5 * x + 3)


def assembly(code: str, args: str, constraints: str, pack: int, results: int = 1) -> str:
    made = ", ".join(["jax.ShapeDtypeStruct(x.shape, x.dtype)"] * results)
    targets = "[made]" if results == 1 else "made, _"
    return (f"{targets} = plgpu.elementwise_inline_asm({code!r}, args={args}, constraints={constraints!r}, pack={pack}, "
            f"result_shape_dtypes=[{made}])")


@pytest.mark.parametrize("dtype,before", [
    ("float32", assembly("tanh.approx.f32 $0, $1;", "[x]", "=f,f", 1)),
    ("bfloat16", assembly("add.rn.bf16x2 $0, $1, $2;", "[x, x]", "=r,r,r", 2)),
    ("float16", assembly("neg.f16 $0, $1;", "[x]", "=h,h", 1)),
    ("int32", assembly("not.b32 $0, $2; mov.b32 $1, $2;", "[x]", "=r,=r,r", 1, 2)),
    ("int8", assembly("not.b32 $0, $1;", "[x]", "=r,r", 4)),
], ids=["f32", "bf16x2", "f16", "two results", "8 bits"])
def test_inline_assembly(dtype, before):
    x = values(dtype, (8, 64))
    source = module("made", x, out=dtype, before=before)
    text = lowers(source, jax.ShapeDtypeStruct(x.shape, x.dtype))
    assert "_inline_asm(" in text and "layout=layout" in text


def test_assembly_of_unknown_arguments_stays():
    x = values("float32", (256,))
    assert codes(module("made", x, out="float32", before=assembly("neg.f32 $0, $1;", "several", "=f,f", 1))) == {"B120"}


def test_square_roots_of_integers():
    x = abs(values("int32", (256,))) + 1
    source = module("1 / jnp.sqrt(x) + x / jnp.sqrt(x + 3)", x, out="float32")
    np.testing.assert_allclose(computes(source, x), 1 / np.sqrt(x) + x / np.sqrt(x + 3), rtol=1e-6)
    assert "lax.rsqrt(x + 1e-6)" in ported(module("1 / jnp.sqrt(x + 1e-6)", x, out="float32"))
