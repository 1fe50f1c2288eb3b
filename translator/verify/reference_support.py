"""Reference meanings, in plain JAX, of the support functions that a ported file carries.

A ported file moves masked, ragged and gathered accesses through small support functions built on
``plgpu.inline_mgpu``. Interpret mode cannot evaluate ``inline_mgpu``, so the interpret rung replaces the
module's ``_load`` and ``_store`` with the functions of this file (:func:`substitute`).

What makes them a reference and not just another implementation:

* **Exactly the addressed elements are touched.** An element whose mask is false is neither read nor
  written, so the interpreter's race detector sees the accesses that the GPU would make, and no others.
* **Nothing is clipped.** An element with a true mask outside the array becomes an out-of-bounds access,
  which the interpreter reports as an error. Negative coordinates, which NumPy would wrap, are moved past the
  end of the array for that reason.
* **Addresses are those of the base array.** Views are composed down to it, because on the GPU a window that
  leaves its view reads the neighbour and is only wrong at the end of the array.

Interpret mode offers a kernel windows with fixed sizes only. Masked elements one by one would be possible, but
each access costs milliseconds and the race detector compares it with all earlier ones, so a tile would take minutes.
Therefore a whole masked access is one call into the interpreter (:func:`interpreted` teaches it how), where the
enabled elements are known: they are cut into few rectangles, and each is an ordinary access of the interpreter, with
its checks.
"""

from __future__ import annotations

import contextlib
import functools
import math
import threading
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax._src import source_info_util
from jax._src.pallas.mosaic_gpu.interpret import gpu_callbacks
from jax._src.pallas.mosaic_gpu.interpret.jaxpr_interpret import JaxprInterpreter
from jax._src.state import indexing
from jax._src.state import types as state_types
from jax.experimental import io_callback
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

_ACCESS_BYTES = 16  # the widest access of one thread
_ANY_LAYOUT = plgpu.Layout.WG_SPLAT  # interpret mode ignores layouts, but ``inline_mgpu`` wants one

# Errors and races are to be reported at the line of the kernel that called ``_load`` or ``_store``.
source_info_util.register_exclusion(__file__)


def load(ref, index, *, layout=None, mask=None, other=0, vec=1, eviction_policy=None):
    """``ref[index]`` where ``mask`` is true, ``other`` elsewhere.

    Args:
      ref: a GMEM ref, or nested ``.at[...]`` views of one.
      index: per axis ``pl.ds``, ``:``, an integer, or an integer array; arrays broadcast together, and their axes
        come first in the result. Of a slice with a fixed start, what passes the end of ``ref`` is disabled.
      mask: boolean, broadcast to the result; None enables every element.
      other: value of the disabled elements, broadcast and cast.
      vec: elements per access. It has no meaning for the values, but it is a promise: groups of ``vec`` neighbours
        along the last axis are consecutive in memory, aligned, and enabled together. A broken promise is an error.
      layout, eviction_policy: how the GPU moves the data; without a meaning here.

    Raises:
      ValueError: ``index`` is of a form that the support functions do not take.
    """
    del layout, eviction_policy
    if not ref.shape:
        return ref[...]
    base, coordinates, shape = _addresses(ref, index)
    other = jnp.broadcast_to(jnp.asarray(other).astype(ref.dtype), shape)
    access = plgpu.inline_mgpu(
        arg_types=(plgpu.RefType(), _ANY_LAYOUT, _ANY_LAYOUT, _ANY_LAYOUT, _ANY_LAYOUT),
        return_type=plgpu.ShapeDtypeStruct(shape, ref.dtype, layout=_ANY_LAYOUT),
    )
    enabled = _enabled(mask, shape) & _within_ref(ref, index)
    return access(_masked_load)(base, coordinates, enabled, jnp.int32(vec), other)


def store(ref, index, value, *, layout=None, mask=None, vec=1, eviction_policy=None):
    """``ref[index] = value`` where ``mask`` is true, cast to the dtype of ``ref``; arguments as in :func:`load`.

    Raises:
      ValueError: as :func:`load`, or ``value`` has not the shape of ``ref[index]``.
    """
    del layout, eviction_policy
    base, coordinates, shape = _addresses(ref, index)
    if value.shape != shape:
        raise ValueError(f"a value of shape {value.shape} is stored where the index has shape {shape}")
    access = plgpu.inline_mgpu(arg_types=(plgpu.RefType(), _ANY_LAYOUT, _ANY_LAYOUT, _ANY_LAYOUT, _ANY_LAYOUT))
    enabled = _enabled(mask, shape) & _within_ref(ref, index)
    access(_masked_store)(base, coordinates, enabled, jnp.int32(vec), value.astype(ref.dtype))


def atomic(op, ref, index, value, *, layout=None, mask=None, fetch=False, order="relaxed"):
    """``ref[index]`` combined with ``value`` where ``mask`` is true; what it was before if ``fetch``.

    Args:
      op: "add", "max", "min", "and", "or", "xor" or "xchg".
      ref, index, mask: as for :func:`load`. Where several elements of the index are the same, all of them act.
      layout, order: how the GPU does it; without a meaning here.

    Raises:
      ValueError: as :func:`load`, or ``value`` has not the shape of ``ref[index]``.
    """
    del layout, order
    base, coordinates, shape = _addresses(ref, index)
    if jnp.shape(value) != shape:
        raise ValueError(f"a value of shape {jnp.shape(value)} is combined where the index has shape {shape}")
    value = jnp.asarray(value).astype(ref.dtype)
    return _atomic_access(op, base, coordinates, _enabled(mask, shape), value, value, fetch)


def atomic_element(op, ref, index, *values, mask=True, fetch=False, order="relaxed"):
    """As :func:`atomic` on one element; ``op`` may be "cas" of an expected and a new value."""
    del order
    base, coordinates, shape = _addresses(ref, index)
    if math.prod(shape) != 1:
        raise ValueError(f"a number is combined where the index has shape {shape}")
    expected, value = (jnp.asarray(v).astype(ref.dtype) for v in (values[0], values[-1]))
    return _atomic_access(op, base, coordinates, _enabled(mask, shape), expected, value, fetch)


def _atomic_access(op, base, coordinates, enabled, expected, value, fetch):
    access = plgpu.inline_mgpu(
        arg_types=(plgpu.RefType(), *[_ANY_LAYOUT] * 4),
        return_type=plgpu.ShapeDtypeStruct(value.shape, value.dtype, layout=_ANY_LAYOUT),
    )
    old = access(_ATOMICS[op])(base, coordinates, enabled, expected, value)
    return old if fetch else None


def cumsum(x, axis=None, *, layout):
    """Inclusive sums along ``axis``, in float32 or int32 and cast back. ``layout`` has no meaning here."""
    del layout
    dtype = jnp.float32 if jnp.issubdtype(x.dtype, jnp.floating) else jnp.int32
    return jnp.cumsum(x.astype(dtype), axis=0 if axis is None else axis).astype(dtype if x.dtype == jnp.bool_ else x.dtype)


def register_dot(part, a, b, acc=None, turn=False):
    """``a @ b`` (+ ``acc``) in float32, for the wgmma that takes operands or accumulators from registers.

    Args:
      part: the warpgroup's part, whose turns are taken as on the GPU.
      a: (rows, depth) array or SMEM ref. b: (depth, columns) SMEM ref. acc: float32 (rows, columns) array.
    """
    if turn and acc is not None:
        part._swap()
    a, b = (x[...] if isinstance(x, state_types.TransformedRef) else x for x in (a, b))
    plgpu.commit_smem()  # the tensor core reads through the async proxy, as the copies write
    result = jnp.dot(a, b, preferred_element_type=jnp.float32)
    if turn and acc is None:
        part._swap()
    return result if acc is None else acc + result


def tf32(x):
    """Not rounded: interpret mode multiplies float32 exactly, in the original too."""
    return x


# Methods of support classes that interpret mode cannot run: {class: {method: meaning}}.
METHODS: dict[str, dict[str, Callable[..., Any]]] = {"_WgmmaRowsPart": {"dot": register_dot}}

REFERENCE: dict[str, Callable[..., Any]] = {
    "_load": load, "_store": store, "_cumsum": cumsum, "_atomic": atomic, "_atomic_element": atomic_element,
    "_tf32": tf32,
}


def substitute(module: types.ModuleType) -> tuple[str, ...]:
    """Replaces the support functions that ``module`` defines or imports; returns the replaced names, sorted.

    A support module that ``module`` imports as a whole (``import kernel_support as ks``) is patched as well.
    Kernels look the names up when they are traced, so it is enough to do this before the first call.
    """
    replaced = set()
    for holder in (module, *_support_modules(module)):
        for name, function in REFERENCE.items():
            if callable(getattr(holder, name, None)):
                setattr(holder, name, function)
                replaced.add(name)
        for name, methods in METHODS.items():
            for method, function in methods.items() if hasattr(holder, name) else ():
                setattr(getattr(holder, name), method, function)
                replaced.add(f"{name}.{method}")
    return tuple(sorted(replaced))


def _support_modules(module: types.ModuleType) -> list[types.ModuleType]:
    return [
        value
        for value in vars(module).values()
        if isinstance(value, types.ModuleType) and all(hasattr(value, name) for name in ("_load", "_store"))
    ]


def _enabled(mask, shape: tuple[int, ...]) -> jax.Array:
    return jnp.broadcast_to(jnp.asarray(True if mask is None else mask, dtype=bool), shape).reshape(-1)


def _within_ref(ref, index) -> jax.Array:
    """For every element of ``ref[index]``, flat: whether slices that start at a fixed place leave it inside ``ref``.

    Slices of padded tiles pass the end of their block, whose further elements do not take part.
    """
    coordinates, shape = _indexed(index, ref.shape)
    index = index if isinstance(index, tuple) else (index,)
    inside = jnp.ones(math.prod(shape), dtype=bool)
    for i, coordinate, extent in zip(index, coordinates, ref.shape):
        if isinstance(i, indexing.Slice) and isinstance(i.start, int) and i.start + (i.size - 1) * i.stride >= extent:
            inside &= coordinate < extent
    return inside


def _addresses(ref, index) -> tuple[Any, jax.Array, tuple[int, ...]]:
    """The base ref, the coordinates of every element in it (int32, base axes x elements), and the tile's shape."""
    coordinates, shape = _indexed(index, ref.shape)
    if isinstance(ref, state_types.TransformedRef):
        for transform in reversed(ref.transforms):
            if not isinstance(transform, indexing.NDIndexer):
                raise NotImplementedError(f"reference access through {type(transform).__name__}")
            coordinates = _through_indexer(transform, coordinates, math.prod(shape))
        ref = ref.ref
    stacked = jnp.stack(coordinates) if coordinates else jnp.zeros((0, math.prod(shape)), jnp.int32)
    return ref, stacked, shape


def _indexed(index, extents: Sequence[int]) -> tuple[list[jax.Array], tuple[int, ...]]:
    """Per axis the coordinate of every element of ``array[index]`` (flat int32), and the result's shape."""
    index = index if isinstance(index, tuple) else (index,)
    if index and index[-1] is ...:
        index = index[:-1]
    index = (*index, *[slice(None)] * (len(extents) - len(index)))
    if any(i is ... for i in index):
        raise ValueError(f"index {index} holds an ellipsis that is not last")
    ranges = [range(n)[i] if isinstance(i, slice) else None for i, n in zip(index, extents, strict=True)]
    index = tuple(i if r is None else pl.ds(r.start, len(r), r.step) for i, r in zip(index, ranges))
    is_slice = [isinstance(i, indexing.Slice) for i in index]
    arrays = [axis for axis, i in enumerate(index) if not is_slice[axis] and jnp.ndim(i)]
    integers = [axis for axis, flag in enumerate(is_slice) if not flag]
    if arrays and integers[0] > 0 and integers == list(range(integers[0], integers[-1] + 1)):
        # Indexing puts the axes of the arrays in their place here, the support functions put them first.
        raise ValueError(f"index {index} has its arrays behind a slice")
    lead = jnp.broadcast_shapes(*(jnp.shape(index[axis]) for axis in integers))
    shape = (*lead, *(i.size for i, flag in zip(index, is_slice, strict=True) if flag))
    coordinates, axis = [], len(lead)
    for i, flag in zip(index, is_slice, strict=True):
        if flag:  # computed, not constant: kernels may not capture arrays
            tile = jnp.asarray(i.start, jnp.int32) + i.stride * lax.broadcasted_iota(jnp.int32, shape, axis)
            axis += 1
        else:
            i = jnp.broadcast_to(jnp.asarray(i).astype(jnp.int32), lead)
            tile = lax.broadcast_in_dim(i, shape, tuple(range(len(lead))))
        coordinates.append(tile.reshape(-1))
    return coordinates, shape


def _through_indexer(indexer: indexing.NDIndexer, coordinates: list[jax.Array], size: int) -> list[jax.Array]:
    """Maps coordinates in the view that ``indexer`` makes to coordinates in what it indexes."""
    is_array = [not isinstance(index, indexing.Slice) for index in indexer.indices]
    rank = len(indexer.int_indexer_shape)
    where = [axis for axis, flag in enumerate(is_array) if flag]
    contiguous = where == list(range(where[0], where[-1] + 1)) if where else True
    first = where[0] if where and contiguous else 0  # NumPy's rule for the place of the indexed axes
    selectors = coordinates[first : first + rank]
    slices = iter(coordinates[:first] + coordinates[first + rank :])
    result = []
    for index in indexer.indices:
        if isinstance(index, indexing.Slice):
            result.append(jnp.asarray(index.start, jnp.int32) + index.stride * next(slices))
        else:
            index = jnp.asarray(index).astype(jnp.int32)
            picked = index[tuple(selectors)] if index.ndim else index
            result.append(jnp.broadcast_to(picked, (size,)))
    return result


def _masked_load(ctx, ref, coordinates, enabled, vec, other):
    """Stands for a masked load in the kernel's jaxpr; only :func:`interpreted` gives it a meaning."""
    raise NotImplementedError("a reference access outside interpret mode")


def _masked_store(ctx, ref, coordinates, enabled, vec, value):
    """Stands for a masked store, as :func:`_masked_load` does for a load."""
    raise NotImplementedError("a reference access outside interpret mode")


def _atomic_marker(op: str) -> Callable[..., Any]:
    def stand_in(ctx, ref, coordinates, enabled, expected, value):
        """Stands for an atomic operation, as :func:`_masked_load` does for a load."""
        raise NotImplementedError("a reference access outside interpret mode")

    return stand_in


_COMBINE: dict[str, Callable[[Any, Any, Any], Any]] = {
    "add": lambda old, expected, new: old + new,
    "max": lambda old, expected, new: np.maximum(old, new),
    "min": lambda old, expected, new: np.minimum(old, new),
    "and": lambda old, expected, new: old & new,
    "or": lambda old, expected, new: old | new,
    "xor": lambda old, expected, new: old ^ new,
    "xchg": lambda old, expected, new: new,
    "cas": lambda old, expected, new: new if old == expected else old,
}
_ATOMICS = {op: _atomic_marker(op) for op in _COMBINE}
_ATOMIC_LOCK = threading.Lock()


@contextlib.contextmanager
def interpreted() -> Iterator[None]:
    """Inside, GPU interpret mode knows the accesses above; every other ``inline_mgpu`` is refused as before."""
    original = JaxprInterpreter._interpret_inline_mgpu_p

    @functools.wraps(original)
    def interpret(self, eqn, token, get_invals):
        runs = {_masked_load: _run_load, _masked_store: _run_store}
        runs |= {stand_in: functools.partial(_run_atomic, op) for op, stand_in in _ATOMICS.items()}
        run = runs.get(eqn.params["mgpu_fn"])
        if run is None:
            return original(self, eqn, token, get_invals)
        results = (gpu_callbacks.TOKEN_SHAPE_DTYPE, *(variable.aval for variable in eqn.outvars))
        extents = tuple(eqn.invars[0].aval.shape)
        callback = functools.partial(run, extents=extents, source_info=eqn.source_info)
        token, *outputs = io_callback(callback, results, token, self.mesh_location, self.thread, *get_invals())
        return token, outputs

    JaxprInterpreter._interpret_inline_mgpu_p = interpret
    try:
        yield
    finally:
        JaxprInterpreter._interpret_inline_mgpu_p = original


@gpu_callbacks.fail_on_exception
def _run_load(token, mesh_location, thread, key, coordinates, enabled, vec, other, *, extents, source_info):
    """On the host: reads the enabled elements, rectangle by rectangle."""
    coordinates, enabled, result = np.asarray(coordinates), np.asarray(enabled), np.array(other)
    check_vectors(coordinates, enabled, int(vec), result, extents)
    points, place = _points(coordinates, enabled)
    values = np.empty(len(points), result.dtype)
    for start, extent in rectangles(points):
        inside, offsets = _inside(points, start, extent)
        _, block = gpu_callbacks._get(
            token, mesh_location, thread, key, _window(start, extent), source_info=source_info
        )
        values[inside] = np.asarray(block)[offsets]
    result.reshape(-1)[enabled] = values[place]
    return token, result


@gpu_callbacks.fail_on_exception
def _run_store(token, mesh_location, thread, key, coordinates, enabled, vec, value, *, extents, source_info):
    """On the host: writes the enabled elements, rectangle by rectangle. Of two values for one element the last stays."""
    coordinates, enabled, value = np.asarray(coordinates), np.asarray(enabled), np.asarray(value)
    check_vectors(coordinates, enabled, int(vec), value, extents)
    points, place = _points(coordinates, enabled)
    values = np.empty(len(points), value.dtype)
    values[place] = value.reshape(-1)[enabled]
    for start, extent in rectangles(points):
        inside, offsets = _inside(points, start, extent)
        block = np.empty(extent, value.dtype)
        block[offsets] = values[inside]
        gpu_callbacks._swap(
            token, mesh_location, thread, key, _window(start, extent), block, None, source_info=source_info
        )
    return (token,)


def _run_atomic(
    op, token, mesh_location, thread, key, coordinates, enabled, expected, value, *, extents, source_info
):
    """On the host: combines the enabled elements one by one. Atomics never race with each other, and a race of one with
    a plain access is not seen: the buffer is read and written below the race detector."""

    @gpu_callbacks.fail_on_exception
    def run(token):
        points = np.asarray(coordinates).T[np.asarray(enabled).reshape(-1)].astype(np.int64)
        new = np.asarray(value).reshape(-1)[np.asarray(enabled).reshape(-1)]
        result = np.zeros(np.shape(value), np.asarray(value).dtype)
        if np.any(points < 0) or np.any(points >= np.asarray(extents)):
            raise IndexError(f"an atomic {op} outside of an array of shape {extents}")
        memory = gpu_callbacks._get_shared_memory()
        name = gpu_callbacks.HostAllocationKey.from_array(key)
        whole = memory.access(name, _window((0,) * len(extents), tuple(extents)))
        with _ATOMIC_LOCK:
            content, *_ = memory.get_buffer_content(name, whole, thread, increment_clock=False)
            content, old = np.array(content), []
            for point, one in zip(map(tuple, points), new):
                old.append(content[point])
                content[point] = _COMBINE[op](content[point], np.asarray(expected).reshape(-1)[0], one)
            for point in set(map(tuple, points)):  # with a mask the interpreter drops writes to rows past the row length
                place = memory.access(name, _window(point, (1,) * len(point)))
                block = content[tuple(slice(k, k + 1) for k in point)]
                memory.swap_buffer_content(name, place, block, None, thread, increment_clock=False)
        if old:
            result.reshape(-1)[np.asarray(enabled).reshape(-1)] = old
        return token, result

    return run(token)


def check_vectors(
    coordinates: np.ndarray, enabled: np.ndarray, vec: int, tile: np.ndarray, extents: Sequence[int]
) -> None:
    """Raises ValueError if an access of ``vec`` neighbours would be cut by the mask, torn, or misaligned.

    Args:
      coordinates, enabled: per element of the flat ``tile``.
      extents: shape of the base array, whose rows are contiguous and start aligned.
    """
    width = min(vec, _ACCESS_BYTES // tile.dtype.itemsize, *tile.shape[-1:])
    if width <= 1 or not tile.size:
        return
    if tile.shape[-1] % width:
        raise ValueError(f"vec={vec} does not divide the tile's last extent, {tile.shape[-1]}")
    enabled = enabled.reshape(-1, width)
    if np.any(enabled != enabled[:, :1]):
        raise ValueError(f"vec={vec}, but the mask cuts a group of {width} neighbours")
    strides = np.cumprod([1, *extents[:0:-1]], dtype=np.int64)[::-1]
    address = (coordinates.T.astype(np.int64) @ strides).reshape(-1, width)[enabled[:, 0]]
    if np.any(address != address[:, :1] + np.arange(width)):
        raise ValueError(f"vec={vec}, but groups of {width} neighbours are not consecutive in memory")
    if np.any(address[:, 0] % width):
        raise ValueError(f"vec={vec}, but a group of {width} neighbours starts at an address that is not a multiple")


def _points(coordinates: np.ndarray, enabled: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The distinct enabled points, sorted (points x axes), and for each enabled element the index of its point."""
    if not coordinates.shape[0]:  # an array without axes has one point
        count = int(enabled.any())
        return np.zeros((count, 0), np.int64), np.zeros(int(enabled.sum()), np.int64)
    points, place = np.unique(coordinates[:, enabled].T.astype(np.int64), axis=0, return_inverse=True)
    return np.where(points < 0, np.iinfo(np.int32).max, points), place.reshape(-1)


def rectangles(points: np.ndarray) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Cuts distinct sorted points into disjoint rectangles that hold just them: ``(start, extent)`` each.

    Rows of consecutive points are joined with equal rows above them, axis by axis; so a tile with cut edges is one
    rectangle, and a tile of every second column is one per column.
    """
    if not len(points):
        return []
    low, extent = points.min(axis=0), np.ptp(points, axis=0) + 1
    if math.prod(extent.tolist()) == len(points):  # the common case, and much the fastest
        return [(tuple(low.tolist()), tuple(extent.tolist()))]
    boxes = [(tuple(point), (1,) * points.shape[1]) for point in points.tolist()]
    for axis in reversed(range(points.shape[1])):
        boxes.sort(key=lambda box: (box[0][:axis] + box[0][axis + 1 :], box[1], box[0][axis]))
        joined = boxes[:1]
        for start, extent in boxes[1:]:
            last_start, last_extent = joined[-1]
            end = last_start[axis] + last_extent[axis]
            if start == (*last_start[:axis], end, *last_start[axis + 1 :]) and (
                extent == (*last_extent[:axis], extent[axis], *last_extent[axis + 1 :])
            ):
                grown = (*last_extent[:axis], last_extent[axis] + extent[axis], *last_extent[axis + 1 :])
                joined[-1] = (last_start, grown)
            else:
                joined.append((start, extent))
        boxes = joined
    return boxes


def _inside(points, start, extent) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
    """Which points lie in a rectangle, and their places in it."""
    offsets = points - np.asarray(start, np.int64)
    inside = np.all((offsets >= 0) & (offsets < np.asarray(extent, np.int64)), axis=1)
    return inside, tuple(offsets[inside].T)


def _window(start: tuple[int, ...], extent: tuple[int, ...]) -> tuple[indexing.NDIndexer, ...]:
    """The rectangle as the interpreter's own callbacks take it; the shape is not looked at there."""
    if not start:
        return ()
    slices = tuple(indexing.Slice(int(begin), int(size)) for begin, size in zip(start, extent, strict=True))
    return (indexing.NDIndexer(slices, extent, ()),)
