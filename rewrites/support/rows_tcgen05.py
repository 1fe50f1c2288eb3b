"""Support code for kernels that mix products with register work, in its form for sm100."""

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from .rows import _Rows, _RowsPart


class _Tcgen05Rows(_Rows):
  """Compute warpgroups that divide dimensions of the extents `rows`; two if all divide by 256.

  columns: extents of the products' columns. spills: (shape, axis that is divided or None, dtype) of computed operands,
  which pass through shared memory. padded: whether fewer rows than a multiple of 128 are padded.
  """

  layout, unit = plgpu.Layout.TCGEN05, 128

  def __init__(self, rows, columns, spills=(), padded=False):
    rows = self.pad(rows, padded)
    if any(n % 128 for n in rows) or any(n % 16 or n > 256 for n in columns):
      raise ValueError(
          f"tcgen05 needs multiples of 128 rows and of 16 up to 256 columns, not {rows} x {columns};"
          f" the next larger blocks have {self.pad(rows, True)} rows"
      )
    self.warpgroups = 2 if rows and not any(n % 256 for n in rows) else 1
    if any(n // self.warpgroups > 128 for n in rows):
      raise ValueError(f"{rows} rows do not fit {self.warpgroups} warpgroups: use smaller blocks")
    self.columns = max(columns)
    self.divide(spills)

  def scratch(self):
    """The accumulator of each warpgroup (products are read before the next one starts), computed operands."""
    wgs = self.warpgroups
    return (
        plgpu.TMEM((128, wgs * self.columns), jnp.float32),
        plgpu.Barrier(num_barriers=wgs, orders_tensor_core=True),
        self.spill_scratch(),
    )

  def part(self, scratch):
    """What the calling warpgroup computes."""
    return _Tcgen05RowsPart(self, lax.axis_index("wg"), *scratch)


class _Tcgen05RowsPart(_RowsPart):
  """One warpgroup's part of the divided dimensions."""

  def __init__(self, tile, wg, accumulator, done, spills):
    super().__init__(tile, wg, spills)
    self.accumulator, self.done = accumulator, done.at[wg]

  def dot(self, a, b, acc=None):
    """`a @ b` (+ `acc`) in float32 registers; both operands in shared memory."""
    if a.dtype == jnp.float32:
      raise ValueError("tcgen05 multiplies no float32: cast the operand to float16 or bfloat16")
    self.check(a, b, acc)
    columns = pl.ds(self.wg * self.tile.columns if self.tile.warpgroups > 1 else 0, b.shape[1])
    product = self.accumulator.at[:, columns]
    plgpu.tcgen05_mma(product, a, b, accumulate=False)
    plgpu.tcgen05_commit_arrive(self.done)
    plgpu.barrier_wait(self.done)
    result = plgpu.async_load_tmem(product, layout=self.layout)
    plgpu.wait_load_tmem()
    return result if acc is None else acc + result
