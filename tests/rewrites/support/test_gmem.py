"""Support code for GMEM: layouts cover every tile, vector widths divide, windows address what numpy does."""

import dataclasses
import math
import types

import numpy as np
import pytest

jnp = pytest.importorskip("jax.numpy")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from jax.experimental import pallas as pl  # noqa: E402
from jax.experimental.pallas import mosaic_gpu as plgpu  # noqa: E402

from pallas_port.rewrites.support import gmem  # noqa: E402

POWERS = [2**i for i in range(16)]
SHAPES = [(n,) for n in POWERS[1:]] + [(m, n) for m in POWERS[:10] for n in POWERS[:13] if m * n <= 32768]


def tiled(shape, tiles):
    """Linear element numbers, arranged as the tiling arranges the array."""
    array = np.arange(math.prod(shape)).reshape(shape)
    for tile in tiles:
        k = len(tile)
        lead, dims = array.shape[:-k], array.shape[-k:]
        assert all(d % t == 0 for d, t in zip(dims, tile)), (shape, tiles)
        array = array.reshape(*lead, *(x for d, t in zip(dims, tile) for x in (d // t, t)))
        at = len(lead)
        array = array.transpose(*range(at), *range(at, array.ndim, 2), *range(at + 1, array.ndim, 2))
    return array


def parts(layout, array):
    """(sizes of the distributed dimensions, copies) of warps and of lanes."""
    found = []
    for dims in (layout.warp_dims, layout.lane_dims):
        split = [d for d in dims if isinstance(d, int)]
        copies = math.prod(d.times for d in dims if not isinstance(d, int))
        found.append((split, math.prod(array.shape[d] for d in split), copies))
    return found


@pytest.mark.parametrize("vec", [1, 2, 4, 8, 16])
def test_blocked_layout_covers_every_element_once_or_in_copies(vec):
    for shape in SHAPES:
        layout = gmem._blocked(shape, vec).to_mgpu()
        array = tiled(shape, layout.tiling.tiles)
        assert np.array_equal(np.sort(array, axis=None), np.arange(math.prod(shape)))
        (warp_dims, warps, warp_copies), (lane_dims, lanes, lane_copies) = parts(layout, array)
        assert warps * warp_copies == 4 and lanes * lane_copies == 32, shape
        dims = [d % array.ndim for d in (*warp_dims, *lane_dims, layout.vector_dim)]
        assert len(set(dims)) == len(dims), shape
        width = array.shape[layout.vector_dim]
        assert width == min(vec, shape[-1], max(1, math.prod(shape) // 128)), shape
        neighbours = np.diff(array, axis=layout.vector_dim)
        assert (neighbours == 1).all(), shape
        registers = math.prod(array.shape) // (warps * lanes * width)
        assert registers * width * 128 // (warp_copies * lane_copies) == math.prod(shape)


def test_rows_stay_in_one_warp_where_there_are_enough():
    for shape in [s for s in SHAPES if len(s) == 2]:
        layout = gmem._blocked(shape, 4).to_mgpu()
        array = tiled(shape, layout.tiling.tiles)
        (warp_dims, warps, _), (lane_dims, _, _) = parts(layout, array)
        warp = np.zeros(array.shape, int)
        for d in warp_dims:
            at = np.arange(array.shape[d]).reshape([-1 if k == d % array.ndim else 1 for k in range(array.ndim)])
            warp = warp * array.shape[d] + at
        rows = array // shape[1]
        per_row = {r: len(set(warp[rows == r])) for r in (0, shape[0] - 1)}
        if shape[0] >= 128 or shape[1] >= 128 and shape[0] >= 4:
            assert set(per_row.values()) == {1}, shape


@pytest.mark.parametrize("shape", [(3,), (0,), (4, 6), (4, 0), (2, 2, 2), (96, 128)])
def test_blocked_layout_refuses(shape):
    with pytest.raises(ValueError, match="power-of-two"):
        gmem._blocked(shape)


@dataclasses.dataclass
class View:
    """As ``ref.at[...]`` is represented."""

    indices: tuple


@dataclasses.dataclass
class Ref:
    """A ref, whole or seen through views; ``dtype`` and ``shape`` are all that matters here."""

    shape: tuple
    dtype: object = jnp.dtype("float32")
    whole: tuple | None = None
    transforms: tuple = ()

    def __post_init__(self):
        if self.transforms or self.whole:
            self.ref = Ref(self.whole, self.dtype)


F32, BF16, I8 = jnp.dtype("float32"), jnp.dtype("bfloat16"), jnp.dtype("int8")


@pytest.mark.parametrize("refs, extents, expected", [
    ([Ref((1024,))], (), 4),
    ([Ref((1024,), BF16)], (), 8),
    ([Ref((1024,), I8)], (), 16),
    ([Ref((1024,), BF16), Ref((1024,))], (), 8),
    ([Ref((1001,))], (), 1),
    ([Ref((1002,))], (), 2),
    ([Ref((8, 1004))], (), 4),
    ([Ref((1004, 3))], (), 1),
    ([Ref((1024,)), None], (), 4),
    ([Ref((1024,))], (128, 6), 2),
    ([Ref((1024,))], (128, 7), 1),
    ([Ref((1024,))], (0,), 4),
    ([Ref((64,), whole=(8, 1001))], (), 1),
    ([Ref((64,), whole=(8, 1002))], (64,), 2),
    ([Ref(())], (), 4),
])
def test_vec(refs, extents, expected):
    assert gmem._vec(refs, *extents) == expected


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=4), st.lists(st.integers(0, 5000), max_size=3), st.sampled_from([F32, BF16, I8]))
@settings(max_examples=200, deadline=None)
def test_vec_divides_all_that_it_is_told(rows, extents, dtype):
    vec = gmem._vec([Ref((4, n), dtype) for n in rows], *extents)
    assert vec >= 1 and vec * dtype.itemsize <= 16
    assert all(n % vec == 0 for n in (*rows, *extents))


# -- windows ----------------------------------------------------------------------------------------

def numpy_index(index):
    def one(i):
        if isinstance(i, pl.Slice):
            return slice(int(i.start), int(i.start) + i.size * i.stride, i.stride)
        return i if isinstance(i, (slice, int, type(...))) else np.asarray(i)

    return tuple(map(one, index)) if isinstance(index, tuple) else one(index)


def addressed(whole, views, index):
    """What ``_window`` addresses, gathered by numpy; and what numpy's own indexing gives."""
    data = np.arange(math.prod(whole)).reshape(whole)
    expected = data
    for view in views:
        expected = expected[numpy_index(view)]
    ref = Ref(expected.shape, whole=whole, transforms=tuple(View(v) for v in views)) if views else Ref(whole)
    base, starts, tiles, shape = gmem._window(ref, index)
    assert base.shape == whole and len(starts) == len(tiles) == len(whole)
    at = [np.broadcast_to(np.asarray(s) + (0 if t is None else np.asarray(t)), shape) for s, t in zip(starts, tiles)]
    return data[tuple(at)], expected[numpy_index(index)].reshape(shape), shape


I, J = jnp.arange(4), jnp.arange(8)
WINDOWS = [
    pytest.param((32,), [], pl.ds(3, 8), id="slice"),
    pytest.param((32,), [], (pl.ds(3, 8),), id="slice-in-a-tuple"),
    pytest.param((32,), [], ..., id="all"),
    pytest.param((32,), [], pl.ds(1, 8, 3), id="strided"),
    pytest.param((32,), [], I * 5, id="gather"),
    pytest.param((32,), [], (I * 5)[:, None] + J[None, :], id="gather-of-rank-2"),
    pytest.param((32,), [], slice(4, 20), id="python-slice"),
    pytest.param((32,), [], slice(4, None), id="python-slice-to-the-end"),
    pytest.param((32,), [], slice(4, 20, 3), id="python-slice-with-step"),
    pytest.param((32,), [], slice(-8, None), id="python-slice-from-the-end"),
    pytest.param((16, 32), [], (pl.ds(2, 4), pl.ds(8, 16)), id="tile"),
    pytest.param((16, 32), [], (5, pl.ds(8, 16)), id="row"),
    pytest.param((16, 32), [], (pl.ds(2, 4), 7), id="column"),
    pytest.param((16, 32), [], pl.ds(2, 4), id="rows"),
    pytest.param((16, 32), [], 3, id="one-row"),
    pytest.param((16, 32), [], (..., pl.ds(2, 4)), id="ellipsis-first"),
    pytest.param((16, 32), [], (pl.ds(2, 4), ...), id="ellipsis-last"),
    pytest.param((16, 32), [], (slice(None), pl.ds(2, 4)), id="full-slice"),
    pytest.param((16, 32), [], (I[:, None], J[None, :] * 2), id="index-vectors"),
    pytest.param((16, 32), [], (I[None, :], J[:, None]), id="index-vectors-turned"),
    pytest.param((16, 32), [], (I, I + 3), id="diagonal"),
    pytest.param((16, 32), [], (3, J), id="row-by-vector"),
    pytest.param((16, 32), [], (I, pl.ds(8, 16)), id="vector-then-slice"),
    pytest.param((4, 16, 32), [], (2, pl.ds(2, 4), pl.ds(0, 8)), id="batch"),
    pytest.param((4, 16, 32), [], (2, I[:, None], J[None, :]), id="batch-by-vectors"),
    pytest.param((16, 32), [(pl.ds(4, 8), pl.ds(16, 16))], (pl.ds(1, 2), pl.ds(8, 8)), id="view"),
    pytest.param((16, 32), [(pl.ds(4, 8), pl.ds(16, 16))], ..., id="whole-view"),
    pytest.param((16, 32), [(3, pl.ds(16, 16))], pl.ds(8, 8), id="view-of-a-row"),
    pytest.param((16, 32), [(pl.ds(4, 8), 5)], pl.ds(2, 4), id="view-of-a-column"),
    pytest.param((4, 16, 32), [(2, pl.ds(4, 8), pl.ds(16, 16))], (I[:, None], J[None, :]), id="view-of-a-batch"),
    pytest.param((4, 16, 32), [(2, pl.ds(0, 16), pl.ds(0, 32)), (pl.ds(4, 8), pl.ds(16, 16)), (1, pl.ds(2, 8))], pl.ds(2, 4), id="view-of-view-of-view"),
    pytest.param((64,), [(pl.ds(8, 32),)], J * 3 + 1, id="gather-in-a-view"),
]


@pytest.mark.parametrize("whole, views, index", WINDOWS)
def test_window(whole, views, index):
    got, expected, _ = addressed(whole, views, index)
    np.testing.assert_array_equal(got, expected)


@st.composite
def windows(draw):
    """A random chain of views and an index of slices and integers."""
    whole = tuple(draw(st.lists(st.integers(1, 12), min_size=1, max_size=3)))
    shape, views = whole, []
    for _ in range(draw(st.integers(0, 3))):
        view, left = [], []
        for n in shape:
            if draw(st.booleans()) and len(left) + (len(shape) - len(view) - 1) > 0:
                view.append(draw(st.integers(0, n - 1)))
            else:
                start = draw(st.integers(0, n - 1))
                size = draw(st.integers(1, n - start))
                view.append(pl.ds(start, size))
                left.append(size)
        views.append(tuple(view))
        shape = tuple(left)
    index = []
    for n in shape:
        start = draw(st.integers(0, n - 1))
        index.append(pl.ds(start, draw(st.integers(1, n - start))) if draw(st.booleans()) or not index else start)
    return whole, views, tuple(index)


@given(windows())
@settings(max_examples=60, deadline=None)
def test_window_composes_views_as_numpy_does(case):
    got, expected, _ = addressed(*case)
    np.testing.assert_array_equal(got, expected)


def test_window_may_pass_the_end():
    """A mask excludes what lies there; its addresses must still be those of the unclipped index."""
    _, starts, tiles, shape = gmem._window(Ref((10,)), pl.ds(8, 8))
    assert shape == (8,) and [int(starts[0] + t) for t in tiles[0]] == list(range(8, 16))


def test_index_array_behind_a_slice_is_refused():
    with pytest.raises(NotImplementedError):
        gmem._window(Ref((16, 32)), (pl.ds(0, 4), I))


@pytest.mark.parametrize("shape, dims, axis", [((4, 8), (0,), 0), ((4, 8), (1,), 1)])
def test_spread(shape, dims, axis):
    x = jnp.arange(shape[axis])
    got = np.asarray(gmem._spread(x, shape, dims))
    np.testing.assert_array_equal(got, np.broadcast_to(np.expand_dims(np.arange(shape[axis]), 1 - axis), shape))


def test_spread_keeps_masks():
    mask = jnp.arange(4) < 2
    assert gmem._spread(mask, (4, 8), (0,)).dtype == jnp.bool_
    assert gmem._spread(mask, (4,), (0,)) is mask


def test_layout_is_accepted_by_the_public_api():
    assert isinstance(gmem._blocked((16, 64), 4), type(plgpu.Layout.TILED(plgpu.Tiling(((4, 128), (4,))), warp_dims=(-3,), lane_dims=(-2,), vector_dim=-1)))


def test_slices_end_with_their_ref():
    """Rows with which a tile is padded belong to the next block."""
    block = types.SimpleNamespace(shape=(16, 8))
    (inside,) = gmem._within(block, (pl.ds(0, 64), slice(None)))
    assert np.array_equal(inside, np.broadcast_to(np.arange(64)[:, None] < 16, (64, 8)))
    (inside,) = gmem._within(block, (3, pl.ds(2, 8, 2)))
    assert np.array_equal(inside, np.arange(8) < 3)
    assert not list(gmem._within(block, (pl.ds(0, 16), pl.ds(jnp.int32(4), 8))))
