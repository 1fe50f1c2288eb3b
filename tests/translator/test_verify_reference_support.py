"""The reference meanings of ``_load`` and ``_store`` in GPU interpret mode, against NumPy."""

import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax._src.pallas.mosaic_gpu.interpret import interpret_pallas_call
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_port.translator.verify import reference_support
from pallas_port.translator.verify.reference_support import load, store


@pytest.fixture(autouse=True)
def interpreter():
    params = plgpu.InterpretGPUParams(detect_races=True)
    with reference_support.interpreted(), plgpu.force_gpu_interpret_mode(params):
        yield
    interpret_pallas_call.reset_gpu_interpret_mode_state()


def kernel(body, shape, dtype=jnp.float32, **parameters):
    return plgpu.kernel(body, out_type=jax.ShapeDtypeStruct(shape, dtype), **parameters)


def iota(shape, dtype=np.float32):
    return np.arange(np.prod(shape), dtype=np.int64).reshape(shape).astype(dtype)


def rng(n):
    return lax.iota(jnp.int32, n)


# shape, view of the ref, index (made inside the kernel), what NumPy reads
ACCESSES = {
    "whole array": ((64,), None, lambda: ..., lambda a: a),
    "colon": ((4, 16), None, lambda: (slice(None), slice(None)), lambda a: a),
    "slice": ((64,), None, lambda: pl.ds(5, 32), lambda a: a[5:37]),
    "python slice": ((64,), None, lambda: slice(5, 37), lambda a: a[5:37]),
    "slice to the end": ((8, 64), None, lambda: (3, slice(32, None)), lambda a: a[3, 32:]),
    "strided slice": ((64,), None, lambda: pl.ds(5, 16, 3), lambda a: a[5:53:3]),
    "index vector": ((64,), None, lambda: rng(16) * 3, lambda a: a[np.arange(16) * 3]),
    "descending": ((64,), None, lambda: 63 - rng(64), lambda a: a[::-1]),
    "integer and slice": ((8, 64), None, lambda: (3, pl.ds(7, 32)), lambda a: a[3, 7:39]),
    "slice and integer": ((8, 64), None, lambda: (pl.ds(2, 4), 9), lambda a: a[2:6, 9]),
    "leading index": ((8, 64), None, lambda: 3, lambda a: a[3]),
    "element": ((8, 64), None, lambda: (3, 9), lambda a: a[3, 9]),
    "outer index vectors": (
        (40, 50),
        None,
        lambda: ((rng(8) + 2)[:, None], (rng(32) + 5)[None, :]),
        lambda a: a[2:10, 5:37],
    ),
    "gathered rows": ((40, 64), None, lambda: ((rng(8) * 5)[:, None], rng(64)[None, :]), lambda a: a[::5]),
    "rows and slice": ((40, 64), None, lambda: (rng(8) * 5, pl.ds(8, 16)), lambda a: a[::5, 8:24]),
    "split index vectors": (
        (5, 6, 7),
        None,
        lambda: (rng(4), pl.ds(1, 3), rng(4) + 2),
        lambda a: a[np.arange(4), 1:4, np.arange(4) + 2],
    ),
    "integer and index vector": ((4, 64), None, lambda: (2, rng(32)), lambda a: a[2, :32]),
    "view of a view": (
        (16, 128),
        lambda r: r.at[pl.ds(4, 8), pl.ds(32, 64)].at[3],
        lambda: pl.ds(10, 32),
        lambda a: a[7, 42:74],
    ),
    "index vectors in a view": (
        (3, 16, 128),
        lambda r: r.at[1].at[pl.ds(4, 8)],
        lambda: ((rng(4) * 2)[:, None], rng(64)[None, :]),
        lambda a: a[1, 4:12:2, :64],
    ),
    "view by index vectors": (
        (16, 128),
        lambda r: r.at[pl.ds(4, 8), rng(16) * 8],
        lambda: (pl.ds(1, 4), pl.ds(2, 8)),
        lambda a: a[4:12, ::8][1:5, 2:10],
    ),
}
each_access = pytest.mark.parametrize("shape, view, index, expected", ACCESSES.values(), ids=ACCESSES)


@each_access
def test_load_reads_what_numpy_reads(shape, view, index, expected):
    array = iota(shape)
    want = expected(array)

    def body(x_ref, o_ref):
        o_ref[...] = load(view(x_ref) if view else x_ref, index())

    np.testing.assert_array_equal(kernel(body, want.shape)(array), want)


@each_access
def test_store_writes_what_numpy_writes(shape, view, index, expected):
    want = np.full(shape, -1.0, np.float32)
    places = expected(iota(shape, np.int64)).astype(np.int64)
    want.reshape(-1)[places] = np.arange(places.size, dtype=np.float32).reshape(places.shape) + 1
    values = want.reshape(-1)[places]

    def body(v_ref, o_ref):
        o_ref[...] = jnp.full(shape, -1.0, jnp.float32)
        store(view(o_ref) if view else o_ref, index(), v_ref[...])

    np.testing.assert_array_equal(kernel(body, shape)(values), want)


@pytest.mark.parametrize(
    "index",
    [(..., 3), (slice(None), np.arange(4)), (slice(None), 3, np.arange(4))],
    ids=["leading ellipsis", "array behind a slice", "integer and array behind a slice"],
)
def test_what_the_support_functions_do_not_take_is_refused(index):
    index = tuple(jnp.asarray(i) if isinstance(i, np.ndarray) else i for i in index)
    with pytest.raises(ValueError, match="index"):
        reference_support._indexed(index, (8,) * max(2, len(index)))


@pytest.mark.parametrize("other", [0, -1.5, -jnp.inf])
@pytest.mark.parametrize("start", [0, 64, 96])
def test_mask_covers_a_slice_past_the_end(start, other):
    array = iota((100,))

    def body(x_ref, o_ref):
        at = lax.axis_index("i") * 0 + start  # dynamic, as in a grid: a constant past the end is refused
        mask = at + lax.iota(jnp.int32, 64) < x_ref.shape[0]
        o_ref[...] = load(x_ref, pl.ds(at, 64), mask=mask, other=other)

    want = np.full(64, other, np.float32)
    want[: min(64, 100 - start)] = array[start : start + 64]
    np.testing.assert_array_equal(kernel(body, (64,), grid=(1,), grid_names=("i",))(array), want)


def test_two_dimensional_tails_in_a_grid():
    array = iota((37, 200))

    def body(x_ref, o_ref):
        rows = lax.axis_index("i") * 8 + lax.iota(jnp.int32, 8)
        cols = lax.iota(jnp.int32, 256)
        mask = (rows < 37)[:, None] & (cols < 200)[None, :]
        tile = load(x_ref, (rows[:, None], cols[None, :]), mask=mask, other=-jnp.inf)
        best = jnp.max(tile, axis=1)
        store(o_ref, (rows[:, None], cols[None, :]), tile + best[:, None], mask=mask)

    got = kernel(body, (37, 200), grid=(5,), grid_names=("i",))(array)
    np.testing.assert_array_equal(got, array + array.max(axis=1, keepdims=True))


def test_scatter_under_an_irregular_mask():
    array, mask = iota((64,)), np.arange(64) % 3 == 1
    places = np.random.default_rng(0).permutation(64).astype(np.int32)

    def body(x_ref, at_ref, mask_ref, o_ref):
        o_ref[...] = jnp.full((64,), -1.0, jnp.float32)
        store(o_ref, at_ref[...], x_ref[...], mask=mask_ref[...])

    want = np.full(64, -1.0, np.float32)
    want[places[mask]] = array[mask]
    np.testing.assert_array_equal(kernel(body, (64,))(array, places, mask), want)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.int32, jnp.int8, jnp.uint8, jnp.bool_])
def test_dtypes(dtype):
    array = jnp.asarray(iota((100,)) % 2).astype(dtype)

    def body(x_ref, o_ref):
        at = lax.iota(jnp.int32, 128)
        value = load(x_ref, at, mask=at < 100)
        store(o_ref, at, value, mask=at < 100)

    np.testing.assert_array_equal(kernel(body, (100,), dtype)(array), array)


@pytest.mark.parametrize("batch", [(3,), (2, 3)])
def test_under_vmap(batch):
    array = iota((*batch, 100))

    def body(x_ref, o_ref):
        at = lax.iota(jnp.int32, 128)
        row = load(x_ref, at, mask=at < 100, other=0.0)
        store(o_ref, at, row - jnp.sum(row), mask=at < 100)

    function = kernel(body, (100,))
    for _ in batch:
        function = jax.vmap(function)
    np.testing.assert_allclose(function(array), array - array.sum(axis=-1, keepdims=True), rtol=1e-6)


@pytest.mark.parametrize("at", [100, -1])
@pytest.mark.parametrize("access", ["load", "store"])
def test_enabled_access_outside_the_array_is_an_error(access, at):
    def body(x_ref, at_ref, o_ref):
        place = at_ref[...] + lax.iota(jnp.int32, 1)
        if access == "load":
            o_ref[pl.ds(0, 1)] = load(x_ref, place)
        else:
            store(o_ref, place, x_ref[pl.ds(0, 1)])

    with pytest.raises(Exception, match="(?i)out.of.bounds"):
        jax.block_until_ready(kernel(body, (100,))(iota((100,)), jnp.int32(at)))


def test_unwritten_elements_stay_uninitialised():
    def body(x_ref, o_ref):
        at = lax.iota(jnp.int32, 128)
        store(o_ref, at, load(x_ref, ...), mask=at < 100)

    got = np.asarray(kernel(body, (128,))(iota((128,))))
    np.testing.assert_array_equal(np.isnan(got), np.arange(128) >= 100)


def test_threads_on_disjoint_rows_do_not_race(capsys):
    def body(x_ref, o_ref):
        thread = lax.axis_index("t")
        o_row = o_ref.at[thread]
        at = lax.iota(jnp.int32, 128)
        store(o_row, at, load(x_ref.at[thread], at, mask=at < 100), mask=at < 100)
        store(o_row, at, load(o_row, at, mask=at < 100) + 1, mask=at < 100)

    array = iota((2, 100))
    got = kernel(body, (2, 100), num_threads=2, thread_name="t")(array)
    np.testing.assert_array_equal(got, array + 1)
    assert "RACE" not in capsys.readouterr().out


def test_threads_on_the_same_row_race(capfd):
    def body(x_ref, o_ref):
        at = lax.iota(jnp.int32, 128)
        store(o_ref, at, load(x_ref, at, mask=at < 100), mask=at < 100)

    function = kernel(body, (100,), num_threads=2, thread_name="t")
    report = ""
    try:
        jax.block_until_ready(function(iota((100,))))
    except Exception as error:  # newer JAX raises, older only prints
        report = str(error)
    report += capfd.readouterr().out
    assert "RACE DETECTED" in report
    assert "reference_support.py:" not in report.partition("RACE DETECTED")[2].replace("test_verify_reference", "")


def test_store_converts_but_does_not_broadcast():
    def convert(x_ref, o_ref):
        store(o_ref, ..., x_ref[...])

    array = iota((128,))
    np.testing.assert_array_equal(kernel(convert, (128,), jnp.bfloat16)(array), jnp.asarray(array).astype(jnp.bfloat16))

    def broadcast(x_ref, o_ref):
        store(o_ref, ..., x_ref[0])

    with pytest.raises(ValueError, match=r"shape \(\) is stored where the index has shape \(128,\)"):
        kernel(broadcast, (128,))(array)


def test_rank_zero():
    def body(x_ref, o_ref):
        o_ref[...] = load(x_ref, ...) + jnp.zeros(128)

    np.testing.assert_array_equal(kernel(body, (128,))(jnp.float32(3)), np.full(128, 3, np.float32))


@pytest.mark.parametrize(
    "vec, start, bound, step, message",
    [
        (4, 0, 96, 1, None),
        (1, 1, 99, 2, None),
        (4, 0, 98, 1, "the mask cuts a group of 4"),
        (8, 4, 96, 1, "the mask cuts a group of 4"),  # 16 bytes are 4 elements
        (4, 2, 98, 1, "not a multiple"),
        (4, 0, 96, 2, "not consecutive"),
    ],
)
@pytest.mark.parametrize("access", ["load", "store"])
def test_vec_is_a_promise(access, vec, start, bound, step, message):
    def body(x_ref, o_ref):
        lane = rng(32)
        at = start + lane * step
        mask = at < (bound if step == 1 else 64)
        if message and "cuts" in message:
            mask = lane < 30
        if access == "load":
            o_ref[pl.ds(0, 32)] = load(x_ref, at, mask=mask, vec=vec)
        else:
            store(o_ref, at, x_ref[pl.ds(0, 32)], mask=mask, vec=vec)

    run = lambda: jax.block_until_ready(kernel(body, (128,))(iota((128,))))  # noqa: E731
    if message is None:
        run()
    else:
        with pytest.raises(Exception, match=message):
            run()


@pytest.mark.parametrize(
    "mask, count",
    [
        (np.ones((8, 8), bool), 1),
        (np.zeros((8, 8), bool), 0),
        (np.tri(8, dtype=bool), 8),
        (np.broadcast_to(np.arange(8) % 2 == 0, (8, 8)), 4),
        (np.broadcast_to((np.arange(8) % 3 == 0)[:, None], (8, 8)), 3),
        (np.add.outer(np.arange(8), np.arange(8)) % 2 == 0, 32),
        (np.random.default_rng(0).random((3, 5, 7)) < 0.5, None),
    ],
    ids=["all", "none", "triangle", "columns", "rows", "chessboard", "random"],
)
def test_rectangles_hold_just_the_points(mask, count):
    boxes = reference_support.rectangles(np.argwhere(mask))
    seen = np.zeros(mask.shape, int)
    for start, extent in boxes:
        seen[tuple(slice(s, s + e) for s, e in zip(start, extent, strict=True))] += 1
    np.testing.assert_array_equal(seen, mask)
    assert count is None or len(boxes) == count


def test_substitute_in_a_module_that_defines_the_functions():
    module = types.ModuleType("port")
    exec("def _load(ref): return ref\ndef _store(ref, value): pass\ndef use(): return _load", module.__dict__)
    assert reference_support.substitute(module) == ("_load", "_store")
    assert module.use() is load


def test_substitute_in_a_module_that_imports_a_support_module():
    support = types.ModuleType("kernel_support")
    support._load = support._store = lambda *a: None
    sys.modules["kernel_support"] = support
    try:
        by_name, whole = types.ModuleType("by_name"), types.ModuleType("whole")
        exec("from kernel_support import _load", by_name.__dict__)
        exec("import kernel_support as ks\ndef use(): return ks._store", whole.__dict__)
        assert reference_support.substitute(by_name) == ("_load",)
        assert by_name._load is load
        reference_support.substitute(whole)
        assert whole.use() is store
    finally:
        del sys.modules["kernel_support"]


def test_substitute_finds_nothing_in_an_unrelated_module():
    assert reference_support.substitute(types.ModuleType("empty")) == ()
