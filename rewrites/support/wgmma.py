"""Support code for sm90: how compute warpgroups share an output tile held in registers."""

import math

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from .ring import _swizzle


class _WgmmaTile:
  """An output tile of `rows` x `cols` with `accumulators` float32 accumulators.

  One compute warpgroup holds up to 128 x 128 accumulator elements, two share larger tiles along
  rows if those divide by 128, else along columns.
  """

  layout = plgpu.Layout.WGMMA

  def __init__(self, rows, cols, out_type, accumulators=1):
    if rows % 64 or cols % 8:
      raise ValueError(f"wgmma needs a multiple of 64 rows and of 8 columns, not a {rows} x {cols} tile")
    self.warpgroups = 1 if rows * cols * accumulators <= 128 * 128 else 2
    self.by_rows = rows % (64 * self.warpgroups) == 0
    if self.by_rows:
      rows //= self.warpgroups
    else:
      cols //= self.warpgroups
    if cols > 256 or cols % 8 or rows * cols * accumulators > 128 * 192:
      raise ValueError(f"{accumulators} accumulators of {rows} x {cols} do not fit one warpgroup: use a smaller tile")
    self.shape, self.dtype = (rows, cols), out_type.dtype
    # JAX drops the column index of an array as wide as one chunk, so that chunks past its edge
    # would be written over column 0: such an array gets chunks of the tile's whole width.
    width = math.gcd(cols, 128 // self.dtype.itemsize)
    self.width = cols if out_type.shape[-1] <= width else width

  def empty_barrier(self, stages):
    return plgpu.Barrier(num_arrivals=self.warpgroups, num_barriers=stages)

  def swizzle(self, dtype, *minor, tf32=False):
    """Columns of one swizzled SMEM tile; `tf32`: float32 operands may be rounded to TF32."""
    if dtype != jnp.float32:
      return _swizzle(dtype.itemsize, 64, *minor)
    if not tf32 or jax.config.jax_default_matmul_precision not in (None, "default", "high", "tensorfloat32"):
      raise ValueError(
          "wgmma multiplies float32 only as TF32, so below precision HIGHEST, and only tiles that are"
          " contracted along their last dimension, as in a @ b.T: transpose the array before the call"
      )
    if (columns := math.gcd(32, *minor)) < 8:
      raise ValueError(f"rows of {minor} elements, of blocks and arrays, are not multiples of 8: pad the arrays")
    return columns

  def _out_shape(self):
    chunks = self.shape[0] // 64 * (self.shape[1] // self.width)
    return self.warpgroups, 2 - chunks % 2, 64, self.width  # two chunks take turns

  def scratch_bytes(self):
    return math.prod(self._out_shape()) * self.dtype.itemsize

  def scratch(self):
    return plgpu.SMEM(self._out_shape(), self.dtype)

  def part(self, out):
    """The part of the tile that the calling warpgroup computes; `out` is its `scratch`."""
    return _WgmmaPart(self, lax.axis_index("wg"), out)


class _WgmmaPart:
  """One warpgroup's rows and columns of the output tile."""

  def __init__(self, tile, wg, out):
    (rows, cols), two = tile.shape, tile.warpgroups > 1
    self.shape, self.layout, self.out = tile.shape, tile.layout, out.at[wg]
    # Products that may still run when a step ends: alone, a warpgroup must keep the tensor core
    # busy over its waits (measured 15 % at 128 x 128); two do that for each other.
    self.behind = 0 if two else 1
    self.rows = pl.ds(wg * rows if two and tile.by_rows else 0, rows)
    self.cols = pl.ds(wg * cols if two and not tile.by_rows else 0, cols)

  def load(self, ref):
    """This part of a block in GMEM, laid out as the accumulator."""
    return plgpu.load(ref.at[self.rows, self.cols], layout=self.layout, optimized=False)

  def load_rows(self, ref):
    return plgpu.load(ref.at[self.rows], layout=self.layout.reduce(1), optimized=False)

  def load_cols(self, ref):
    return plgpu.load(ref.at[self.cols], layout=self.layout.reduce(0), optimized=False)

  def store(self, value, ref):
    """Registers -> SMEM -> GMEM in chunks that take turns; TMA clips at the edges of the array."""
    slots, height, width = self.out.shape
    value = plgpu.layout_cast(value, self.layout)  # an accumulator of no products has none yet
    value, target = value.astype(ref.dtype), ref.at[self.rows, self.cols]
    rows, cols = self.shape
    chunks = [(r, c) for r in range(0, rows, height) for c in range(0, cols, width)]
    for i, (r, c) in enumerate(chunks):
      buffer = self.out.at[i % slots]
      plgpu.wait_smem_to_gmem(slots - 1, wait_read_only=True)
      buffer[...] = value[r : r + height, c : c + width]
      plgpu.commit_smem()
      plgpu.copy_smem_to_gmem(buffer, target.at[pl.ds(r, height), pl.ds(c, width)])
