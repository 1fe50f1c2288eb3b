"""Support code for sm90: float32 products that must not be rounded, as products of bfloat16 parts."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from .ring import _Ring


@jax.tree_util.register_pytree_node_class
class _Parts:
  """An array or ref that is the sum of `parts`, each of 16 bits."""

  def __init__(self, parts):
    self.parts = tuple(parts)

  def tree_flatten(self):
    return self.parts, None

  @classmethod
  def tree_unflatten(cls, _, parts):
    return cls(parts)

  @property
  def shape(self):
    return self.parts[0].shape

  @property
  def dtype(self):
    return self.parts[0].dtype

  @property
  def at(self):
    return self

  def __getitem__(self, index):
    return self.each(lambda x: x.at[index])

  def transpose(self, permutation):
    return self.each(lambda x: x.transpose(permutation))

  def each(self, function):
    return _Parts(function(x) for x in self.parts)

  def blocks(self, shape):
    """(shape, dtype) of a block of each part."""
    return [(shape, self.dtype)] * len(self.parts)


def _parts(x):
  """`x` as a sum of 16-bit parts: float32 has 24 bits, bfloat16 8, so that three parts hold all."""
  if x.dtype.itemsize == 2:
    return _Parts([x])
  parts, rest = [], x.astype(jnp.float32)
  for _ in range(3 if x.dtype == jnp.float32 else 1):
    # XLA may take a rounding to bfloat16 and back for nothing, but not this one.
    high = jax.lax.reduce_precision(rest, exponent_bits=8, mantissa_bits=7)
    parts.append(high.astype(jnp.bfloat16))
    rest -= high
  return _Parts(parts)


class _PartsRing(_Ring):
  """A ring whose stages hold the parts of operands; `arrays`: the `_Parts` of each operand."""

  def __init__(self, buffers, full, empty, arrays):
    super().__init__(buffers, full, empty)
    self.counts = [len(x.parts) for x in arrays]

  def load(self, count, *sources):
    return super().load(count, *(x for s in sources for x in s.parts))

  def wait(self, count):
    stages = iter(super().wait(count))
    return [_Parts(next(stages) for _ in range(n)) for n in self.counts]


def _parts_product(part, a, b):
  """`a @ b` in float32 registers, without the products of parts that float32 does not hold.

  The tensor core adds up with fewer bits than float32 has, so that its sums are kept short: the
  caller adds them up.
  """

  def products(acc):
    pairs = [(i, j) for i in range(len(a.parts)) for j in range(len(b.parts)) if i + j < 3]
    for i, j in sorted(pairs, key=sum, reverse=True):  # small ones first
      plgpu.wgmma(acc, a.parts[i], b.parts[j])
    plgpu.wgmma_wait(0)
    return acc[...]

  return pl.run_scoped(products, plgpu.ACC(part.shape, jnp.float32))
