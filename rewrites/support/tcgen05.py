"""Support code for sm100: how compute warpgroups share an output tile held in tensor memory."""

import math

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from .ring import _check_multiplied, _columns


class _Tcgen05Tile:
  """An output tile of `rows` x `cols` with `accumulators` accumulators of dtype `accumulate` in TMEM.

  Each compute warpgroup has 128 rows (64 if the tile has no more). Tiles of 16 or 32 rows are
  multiplied as 128: the left operand's stage has more rows than are copied, and what comes out for
  those is dropped.
  """

  def __init__(self, rows, cols, out_type, accumulators=1, accumulate=jnp.float32):
    step = 32 if rows <= 64 else 16
    if rows not in (16, 32, 64, 128, 256) or cols % step or cols > 256:
      raise ValueError(
          f"tcgen05 needs 16, 32, 64, 128 or 256 rows and a multiple of {step} columns up to 256, not a"
          f" {rows} x {cols} tile"
      )
    self.few = rows in (16, 32)
    self.warpgroups = max(rows // 128, 1)
    self.rows, self.cols, self.accumulators = 64 if rows == 64 else 128, cols, accumulators
    self.staged_rows = max(rows, self.rows)
    self.shape = min(rows, 128), cols
    if self.warpgroups * cols * accumulators > 512:
      raise ValueError(f"{accumulators} accumulators of {rows} x {cols} do not fit the 512 columns of TMEM")
    self.dtype, self.accumulate = out_type.dtype, accumulate
    # An accumulator of 64 rows lies in both halves of its columns: it is read as a whole.
    # An array as wide as one chunk gets whole chunks: JAX drops its column index (see _WgmmaTile).
    narrow = out_type.shape[-1] <= 128 // self.dtype.itemsize
    self.width = cols if rows == 64 or narrow else math.gcd(cols, 64)
    self.layout = plgpu.Layout.WGMMA if rows == 64 else plgpu.Layout.TCGEN05
    if self.few:
      self.layout = plgpu.Layout.MMA_ACC(jnp.float32, m_warps=rows // 16)

  def empty_barrier(self, stages):
    return plgpu.Barrier(
        num_arrivals=self.warpgroups, num_barriers=stages, orders_tensor_core=True
    )

  def swizzle(self, dtype, *minor):
    """Columns of one swizzled SMEM tile; `minor`: last extents of the operands."""
    _check_multiplied(dtype, self.accumulate)
    if dtype == jnp.float32:
      raise ValueError("JAX's tcgen05_mma takes neither float32 nor TF32: use bfloat16")
    widest = 128 // dtype.itemsize
    return _columns(dtype.itemsize, widest if self.rows == 128 else min(widest, self.cols // 2), *minor)

  def _out_shape(self):
    slots = 2 - self.cols // self.width % 2  # two chunks take turns
    return self.warpgroups, slots, self.shape[0], self.width

  def scratch_bytes(self):
    sums = self.rows * self.width * 4 if self.few else 0
    return math.prod(self._out_shape()) * self.dtype.itemsize + sums

  def scratch(self):
    columns = self.warpgroups * self.cols
    return (
        plgpu.SMEM(self._out_shape(), self.dtype),
        [plgpu.TMEM((self.rows, columns), self.accumulate) for _ in range(self.accumulators)],
        plgpu.Barrier(num_barriers=self.warpgroups, orders_tensor_core=True),
        *([plgpu.SMEM((self.rows, self.width), self.accumulate)] if self.few else []),
    )

  def part(self, scratch):
    """The part of the tile that the calling warpgroup computes; `scratch` as from `scratch`."""
    return _Tcgen05Part(self, lax.axis_index("wg"), *scratch)


class _Tcgen05Part:
  """One warpgroup's rows of the output tile, its accumulators, and their barrier."""

  def __init__(self, tile, wg, out, accumulators, done, sums=None):
    two = tile.warpgroups > 1
    self.tile, self.out, self.done, self.sums = tile, out.at[wg], done.at[wg], sums
    self.rows = pl.ds(wg * tile.rows if two else 0, tile.rows)
    self.cols = pl.ds(0, tile.cols)
    columns = pl.ds(wg * tile.cols, tile.cols)
    self.accumulators = [a.at[:, columns] if two else a for a in accumulators]

  def finish(self, any_steps):
    """Waits until the products issued so far are done; `any_steps`: whether there were any."""
    self.any_steps = any_steps
    plgpu.tcgen05_commit_arrive(self.done)
    plgpu.barrier_wait(self.done)

  def chunks(self):
    """The columns of the tile in chunks that are read and stored one by one."""
    for i, start in enumerate(range(0, self.tile.cols, self.tile.width)):
      yield _Tcgen05Chunk(self, i, start)

  def free(self):
    """Lets the accumulators be written again, once all of the warpgroup has read them."""
    plgpu.wait_load_tmem()
    plgpu.barrier_arrive(self.done)
    plgpu.barrier_wait(self.done)


class _Tcgen05Chunk:
  """Some columns of one warpgroup's part."""

  def __init__(self, part, number, start):
    self.part, self.number, self.layout = part, number, part.tile.layout
    self.rows, self.cols = pl.ds(part.rows.start, part.tile.shape[0]), pl.ds(start, part.tile.width)

  def accumulator(self, i):
    """The values of accumulator `i`, from TMEM; zeros if nothing was accumulated."""
    if not self.part.any_steps:
      zeros = jnp.zeros((self.rows.size, self.cols.size), self.part.tile.accumulate)
      return plgpu.layout_cast(zeros, self.layout)
    values = plgpu.async_load_tmem(self.part.accumulators[i].at[:, self.cols])
    if self.part.sums is None:
      return values
    self.part.sums[...] = values
    return plgpu.load(self.part.sums.at[self.rows], layout=self.layout, optimized=False)

  def load(self, ref):
    """This part of a block in GMEM, laid out as the accumulator."""
    return plgpu.load(ref.at[self.rows, self.cols], layout=self.layout, optimized=False)

  def load_rows(self, ref):
    return plgpu.load(ref.at[self.rows], layout=self.layout.reduce(1), optimized=False)

  def load_cols(self, ref):
    return plgpu.load(ref.at[self.cols], layout=self.layout.reduce(0), optimized=False)

  def store(self, value, ref):
    """Registers -> SMEM -> GMEM; TMA clips at the edges of the array."""
    slots = self.part.out.shape[0]
    buffer = self.part.out.at[self.number % slots]
    plgpu.wait_smem_to_gmem(slots - 1, wait_read_only=True)
    buffer[...] = value.astype(ref.dtype)
    plgpu.commit_smem()
    plgpu.copy_smem_to_gmem(buffer, ref.at[self.rows, self.cols])
