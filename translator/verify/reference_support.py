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

Accesses go one element at a time in the worst case. A run of elements that is consecutive in memory and wholly
enabled goes in one access, first tried on rows, then on pieces of ``_PIECE`` elements; every access
costs a host callback, so this is the difference between milliseconds and seconds for a tile.
"""

from __future__ import annotations

import math
import types
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax._src import source_info_util
from jax._src.state import indexing
from jax._src.state import types as state_types
from jax.experimental import pallas as pl

_PIECE = 32

# Errors and races are to be reported at the line of the kernel that called ``_load`` or ``_store``.
source_info_util.register_exclusion(__file__)


def load(ref, *, layout=None, mask=None, other=0, vec=1, eviction_policy=None):
    """Reads ``ref`` where ``mask`` is true and gives ``other`` elsewhere.

    Args:
      ref: a GMEM ref, or nested ``.at[...]`` views of one; the indexers may hold slices, integers, and integer
        arrays that broadcast together.
      mask: boolean, broadcast to the shape of ``ref``; None enables every element.
      other: value of the disabled elements, broadcast and cast.
      layout, vec, eviction_policy: how the GPU moves the data; without a meaning here.

    Returns:
      An array with the shape and dtype of ``ref``.
    """
    del layout, vec, eviction_policy
    base, coordinates, shape = _addresses(ref)
    enabled = _enabled(mask, shape)
    init = jnp.broadcast_to(jnp.asarray(other).astype(ref.dtype), shape).reshape(-1)

    def access(index, offset, size, values):
        piece = base[index].reshape(size)
        return lax.dynamic_update_slice(values, piece, (offset,))

    return _walk(access, init, coordinates, enabled, base.shape, shape).reshape(shape)


def store(ref, value, *, layout=None, mask=None, vec=1):
    """Writes ``value`` to ``ref`` where ``mask`` is true; arguments as in :func:`load`.

    Raises:
      TypeError: if ``value`` has another dtype than ``ref``: the GPU stores do not convert.
    """
    del layout, vec
    base, coordinates, shape = _addresses(ref)
    value = jnp.asarray(value)
    if value.dtype != ref.dtype:
        raise TypeError(f"stored value is {value.dtype}, the array is {ref.dtype}")
    value = jnp.broadcast_to(value, shape).reshape(-1)
    enabled = _enabled(mask, shape)

    def access(index, offset, size, carry):
        piece = lax.dynamic_slice(value, (offset,), (size,))
        base[index] = piece.reshape(jax.eval_shape(lambda: base[index]).shape) if size == 1 else piece
        return carry

    _walk(access, jnp.int32(0), coordinates, enabled, base.shape, shape)


REFERENCE: dict[str, Callable[..., Any]] = {"_load": load, "_store": store}


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
    return tuple(sorted(replaced))


def _support_modules(module: types.ModuleType) -> list[types.ModuleType]:
    return [
        value
        for value in vars(module).values()
        if isinstance(value, types.ModuleType) and all(hasattr(value, name) for name in REFERENCE)
    ]


def _enabled(mask, shape: tuple[int, ...]) -> jax.Array:
    return jnp.broadcast_to(jnp.asarray(True if mask is None else mask, dtype=bool), shape).reshape(-1)


def _addresses(ref) -> tuple[Any, list[jax.Array], tuple[int, ...]]:
    """The base ref, for each of its axes the coordinate of every element (flat int32), and the view's shape."""
    shape = tuple(ref.shape)
    # Computed, not constant: kernels may not capture arrays.
    coordinates = [lax.broadcasted_iota(jnp.int32, shape, axis).reshape(-1) for axis in range(len(shape))]
    if not isinstance(ref, state_types.TransformedRef):
        return ref, coordinates, shape
    for transform in reversed(ref.transforms):
        if not isinstance(transform, indexing.NDIndexer):
            raise NotImplementedError(f"reference access through {type(transform).__name__}")
        coordinates = _through_indexer(transform, coordinates, math.prod(shape))
    return ref.ref, coordinates, shape


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


def _walk(access, carry, coordinates, enabled, base_shape, shape):
    """Calls ``access(index, offset, size, carry)`` for every enabled element, in runs where it can.

    ``index`` addresses ``size`` elements of the base array; they are those at ``offset`` of the flat tile.
    """
    size = math.prod(shape)
    if size == 0:
        return carry
    # Past the end is out of bounds for the interpreter; below zero would wrap.
    coordinates = [jnp.where(c < 0, extent, c) for c, extent in zip(coordinates, base_shape, strict=True)]
    row = shape[-1] if shape and coordinates else 1
    sizes = sorted({row, math.gcd(row, _PIECE), 1}, reverse=True)

    def visit(offset, level, carry):
        run = sizes[level]
        at = lambda c: lax.dynamic_slice(c, (offset,), (run,))  # noqa: E731
        mask, places = at(enabled), [at(c) for c in coordinates]
        if run == 1:
            index = tuple(place[0] for place in places)
            return lax.cond(mask[0], lambda v: access(index, offset, 1, v), lambda v: v, carry)
        together = jnp.all(mask)
        for place in places[:-1]:
            together &= jnp.all(place == place[0])
        together &= jnp.all(places[-1] == places[-1][0] + lax.iota(jnp.int32, run))
        index = (*(place[0] for place in places[:-1]), pl.ds(places[-1][0], run))
        step = sizes[level + 1]

        def split(carry):
            return lax.fori_loop(
                0, run // step, lambda i, v: visit(offset + jnp.int32(i) * step, level + 1, v), carry
            )

        def apart(carry):
            return lax.cond(jnp.any(mask), split, lambda v: v, carry)

        if run > base_shape[-1]:  # cannot be inside the array; a static slice of that size is refused
            return apart(carry)
        return lax.cond(together, lambda v: access(index, offset, run, v), apart, carry)

    return lax.fori_loop(0, size // row, lambda i, v: visit(jnp.int32(i) * row, 0, v), carry)
