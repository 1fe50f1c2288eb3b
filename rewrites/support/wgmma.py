"""Support code for sm90: how compute warpgroups share an output tile held in registers."""

import math

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from .ring import _check_multiplied, _columns


class _WgmmaTile:
  """An output tile of `rows` x `cols` with `accumulators` accumulators of dtype `accumulate`.

  One compute warpgroup holds up to 128 x 128 accumulator elements, two share larger tiles along
  rows if those divide by 128, else along columns. Tiles of 16 or 32 rows are multiplied as 64: the
  left operand's stage has more rows than are copied, and what comes out for those is dropped.
  """

  def __init__(self, rows, cols, out_type, accumulators=1, accumulate=jnp.float32):
    self.few = rows in (16, 32)
    if (rows % 64 or cols % 8) and (not self.few or cols % 32):
      raise ValueError(
          "wgmma needs a multiple of 64 rows and of 8 columns, or 16 or 32 rows and a multiple of 32"
          f" columns, not a {rows} x {cols} tile"
      )
    self.staged_rows = max(rows, 64)
    self.warpgroups = 1 if self.staged_rows * cols * accumulators <= 128 * 128 else 2
    self.by_rows = rows % (64 * self.warpgroups) == 0
    if self.by_rows:
      rows //= self.warpgroups
    else:
      cols //= self.warpgroups
    if cols > 256 or cols % (32 if self.few else 8) or max(rows, 64) * cols * accumulators > 128 * 192:
      raise ValueError(f"{accumulators} accumulators of {rows} x {cols} do not fit one warpgroup: use a smaller tile")
    mma = plgpu.Layout.MMA_ACC(jnp.float32, m_warps=rows // 16) if self.few else None
    self.layout = mma or plgpu.Layout.WGMMA
    self.shape, self.dtype, self.accumulate = (rows, cols), out_type.dtype, accumulate
    # JAX drops the column index of an array as wide as one chunk, so that chunks past its edge
    # would be written over column 0: such an array gets chunks of the tile's whole width.
    width = math.gcd(cols, 128 // self.dtype.itemsize)
    self.width = cols if out_type.shape[-1] <= width else width

  def empty_barrier(self, stages):
    return plgpu.Barrier(num_arrivals=self.warpgroups, num_barriers=stages)

  def swizzle(self, dtype, *minor, along_k=(), tf32=False):
    """Columns of one swizzled SMEM tile.

    minor: last extents of the operands. along_k: their contracted ones, the last ones for 8-bit and
    float32 operands, which are transposed if need be. tf32: float32 may be rounded to TF32.
    """
    _check_multiplied(dtype, self.accumulate)
    if dtype == jnp.float32 and (
        not tf32 or jax.config.jax_default_matmul_precision not in (None, "default", "high", "tensorfloat32")
    ):
      raise ValueError("wgmma multiplies float32 only as TF32, so only below precision HIGHEST")
    minor = minor if dtype.itemsize == 2 else along_k or minor
    return _columns(dtype.itemsize, 128 // dtype.itemsize, *minor)

  def _out_shape(self):
    height = min(self.shape[0], 64)
    chunks = self.shape[0] // height * (self.shape[1] // self.width)
    return self.warpgroups, 2 - chunks % 2, height, self.width  # two chunks take turns

  def _sums_shape(self):
    return self.warpgroups, 64 if self.few else 0, self.shape[1]

  def scratch_bytes(self):
    return math.prod(self._out_shape()) * self.dtype.itemsize + math.prod(self._sums_shape()) * 4

  def scratch(self):
    out = plgpu.SMEM(self._out_shape(), self.dtype)
    return [out, plgpu.SMEM(self._sums_shape(), self.accumulate)] if self.few else [out]

  def part(self, scratch):
    """The part of the tile that the calling warpgroup computes; `scratch` as from `scratch`."""
    return _WgmmaPart(self, lax.axis_index("wg"), *scratch)


class _WgmmaPart:
  """One warpgroup's part of the output tile.

  shape: of its accumulators. rows, cols: what it reads of the operands. window: its part of blocks.
  """

  def __init__(self, tile, wg, out, sums=None):
    (rows, cols), two = tile.shape, tile.warpgroups > 1
    self.layout, self.out = tile.layout, out.at[wg]
    self.sums = None if sums is None else sums.at[wg]
    # Products that may still run when a step ends: alone, a warpgroup must keep the tensor core
    # busy over its waits (measured 15 % at 128 x 128); two do that for each other.
    self.behind = 0 if two else 1
    self.shape = max(rows, 64), cols
    start = wg * rows if two and tile.by_rows else 0
    self.rows = pl.ds(start, self.shape[0])
    self.cols = pl.ds(wg * cols if two and not tile.by_rows else 0, cols)
    self.window = pl.ds(start, rows), self.cols

  def value(self, acc):
    """What an accumulator holds, without the rows that are dropped."""
    if self.sums is None:
      return acc
    self.sums[...] = acc
    return plgpu.load(self.sums.at[self.window[0]], layout=self.layout, optimized=False)

  def load(self, ref):
    """This part of a block in GMEM, laid out as the sums."""
    return plgpu.load(ref.at[self.window], layout=self.layout, optimized=False)

  def load_rows(self, ref):
    return plgpu.load(ref.at[self.window[0]], layout=self.layout.reduce(1), optimized=False)

  def load_cols(self, ref):
    return plgpu.load(ref.at[self.window[1]], layout=self.layout.reduce(0), optimized=False)

  def store(self, value, ref):
    """Registers -> SMEM -> GMEM in chunks that take turns; TMA clips at the edges of the array."""
    slots, height, width = self.out.shape
    value = plgpu.layout_cast(value, self.layout)  # an accumulator of no products has none yet
    value, target = value.astype(ref.dtype), ref.at[self.window]
    rows, cols = value.shape
    chunks = [(r, c) for r in range(0, rows, height) for c in range(0, cols, width)]
    for i, (r, c) in enumerate(chunks):
      buffer = self.out.at[i % slots]
      plgpu.wait_smem_to_gmem(slots - 1, wait_read_only=True)
      buffer[...] = value[r : r + height, c : c + width]
      plgpu.commit_smem()
      plgpu.copy_smem_to_gmem(buffer, target.at[pl.ds(r, height), pl.ds(c, width)])
