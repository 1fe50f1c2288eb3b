"""Support code: stages that are put together of pages, whose numbers stand in memory."""

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from .ring import _Ring


class _PagedRing(_Ring):
  """A ring whose sources may be lists of pages, which a stage holds one below the other."""

  @staticmethod
  def scratch(stages, tile, swizzle, *blocks, reads=(), pages):
    """Scratch of a ring; `pages`: of how many pages each of `blocks` and `reads` is put together."""
    buffers, _, empty = _Ring.scratch(stages, tile, swizzle, *blocks, reads=reads)
    for at, (shape, dtype) in enumerate(blocks):
      if dtype.itemsize == 1:  # is cast before a product takes it
        buffers[at] = plgpu.SMEM((stages, *shape), dtype)
    copies = sum(n for n, buffer in zip(pages, buffers, strict=True) if buffer is not None)
    return buffers, plgpu.Barrier(num_arrivals=copies, num_barriers=stages), empty

  def load(self, count, *sources):
    """Copies the tiles of step `count`, page by page, once their stage is free."""
    slot = self.slot(count)

    @pl.when(count >= self.stages)
    def _():
      plgpu.barrier_wait(self.empty.at[slot])

    for source, buffer in zip(sources, self.buffers, strict=True):
      pages = source if isinstance(source, list) else [] if source is None else [source]
      for i, page in enumerate(pages):
        rows = page.shape[0]
        if rows * len(pages) != buffer.shape[1] or len(pages) > 1 and page.ndim > 1 and rows % 8:
          raise ValueError(f"{len(pages)} pages of {rows} rows do not make {buffer.shape[1]} rows in tiles of 8")
        plgpu.copy_gmem_to_smem(page, buffer.at[slot, pl.ds(i * rows, rows)], self.full.at[slot])
    return count + 1
