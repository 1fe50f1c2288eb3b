"""Support code for sm90: operands that wgmma reads only along the contraction (8-bit, float32) but
that lie in memory the other way.  They are transposed once, ahead of the kernel."""

import jax
import jax.numpy as jnp

from .ring import _Ring, _tma_fit


@jax.tree_util.register_pytree_node_class
class _Turned:
  """An array or ref whose last two dimensions are exchanged in memory; indexed as if they were not."""

  def __init__(self, x):
    self.x = x

  def tree_flatten(self):
    return (self.x,), None

  @classmethod
  def tree_unflatten(cls, _, children):
    return cls(*children)

  @property
  def shape(self):
    *batch, n, k = self.x.shape
    return *batch, k, n

  @property
  def dtype(self):
    return self.x.dtype

  @property
  def at(self):
    return self

  def __getitem__(self, index):
    index = index if isinstance(index, tuple) else (index,)
    *batch, k, n = *index, *[slice(None)] * (len(self.x.shape) - len(index))
    return _Turned(self.x.at[*batch, n, k])


def _tf32(x):
  """`x`; float32 is rounded to TF32 (a copy in GMEM), since the tensor core would cut it off."""
  return jax.lax.reduce_precision(x, exponent_bits=8, mantissa_bits=10) if x.dtype == jnp.float32 else x


def _k_major(x):
  """`x`; transposed where wgmma reads its elements only along the contraction (a copy in GMEM)."""
  return x if x.dtype.itemsize == 2 else _Turned(_tf32(x).swapaxes(-1, -2))


def _k_major_fit(x, columns):
  """`_k_major`, padded as `_tma_fit` does."""
  x = _k_major(x)
  return _Turned(_tma_fit(x.x, columns)) if isinstance(x, _Turned) else _tma_fit(x, columns)


class _KMajorRing(_Ring):
  """A ring that holds tiles of `_Turned` arrays transposed, and hands them out as they are meant."""

  def __init__(self, buffers, full, empty):
    self.turned = [isinstance(b, _Turned) for b in buffers]
    super().__init__([b.x if t else b for b, t in zip(buffers, self.turned)], full, empty)

  @staticmethod
  def scratch(stages, tile, swizzle, *blocks, arrays):
    """As of `_Ring`; `arrays`: the array of each block."""
    turned = [isinstance(x, _Turned) for x in arrays]
    blocks = [(shape[::-1] if t else shape, dtype) for (shape, dtype), t in zip(blocks, turned)]
    buffers, *barriers = _Ring.scratch(stages, tile, swizzle, *blocks)
    return [_Turned(b) if t else b for b, t in zip(buffers, turned)], *barriers

  def load(self, count, *sources):
    return super().load(count, *(s.x if t else s for s, t in zip(sources, self.turned)))

  def wait(self, count):
    stages = zip(super().wait(count), self.turned)
    return [s.transpose((1, 0)) if t else s for s, t in stages]
