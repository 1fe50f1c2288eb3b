"""Support code for kernels that mix products with register work, and its form for sm90."""

import math

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from .ring import _Ring, _swizzle


def _block_views(refs, specs, program):
  """The block of each ref that one program works on, as its BlockSpec says."""
  views = []
  for ref, spec in zip(refs, specs, strict=True):
    if ref is None or spec is None or spec.block_shape is None:
      views.append(ref)
      continue
    index = spec.index_map(*program) if spec.index_map is not None else [0] * len(spec.block_shape)
    starts = index if isinstance(index, (tuple, list)) else (index,)
    # a start that is traced may leave the array: what lies outside is masked
    views.append(
        ref.at[
            tuple(
                i if n is None else pl.ds(jnp.int32(i) * n, n)
                for n, i in zip(spec.block_shape, starts, strict=True)
            )
        ]
    )
  return views


def _fitting_stages(num_stages, tile, once, stages):
  """How many stages of a ring fit the shared memory of a block (227 KB), up to `num_stages`."""
  size = lambda blocks: sum(math.prod(shape) * jnp.dtype(dtype).itemsize for shape, dtype in filter(None, blocks))
  free = 226 * 1024 - tile.scratch_bytes() - size(once)
  if free < size(stages):
    raise ValueError(f"one stage of {size(stages)} bytes does not fit {free} bytes of shared memory: use smaller blocks")
  return min(num_stages, free // size(stages))


def _in_turn(*phases):
  """Scratch of rings of which those of one phase are in use at a time: their buffers share memory."""
  barriers = [[ring[1:] for ring in rings] for rings in phases]
  return plgpu.RefUnion(*([ring[0] for ring in rings] for rings in phases)), barriers


def _rings_in_turn(shared, barriers):
  """The rings of each phase, of the scratch of `_in_turn`."""
  phases = zip(shared, barriers, strict=True)
  return [[_Ring(b, *waits) for b, waits in zip(*phase, strict=True)] for phase in phases]


def _specialize(warpgroups, loads, compute):
  """The last warpgroup runs `loads`, the others `compute`, with registers to match."""
  wg = lax.axis_index("wg")

  @pl.when(wg == warpgroups)
  def _():
    plgpu.set_max_registers(40, action="decrease")
    loads()

  @pl.when(wg < warpgroups)
  def _():
    plgpu.set_max_registers({1: 248, 2: 232}[warpgroups], action="increase")
    compute()


class _Rows:
  """Compute warpgroups that divide dimensions of a block, and their computed operands in shared memory."""

  def divide(self, spills):
    """Notes one warpgroup's part of each computed operand: (shape, axis that is divided or None, dtype)."""
    shares = lambda shape, axis: tuple(self.share(n) if d == axis else n for d, n in enumerate(shape))
    self.spills = [(shares(shape, axis), dtype) for shape, axis, dtype in spills]

  def pad(self, rows, padded):
    """Extents of divided dimensions, of which fewer rows than the matrix unit takes are padded."""
    return [n + -n % self.unit if padded else n for n in rows]

  def share(self, extent):
    """One warpgroup's part of a divided dimension."""
    return (extent + -extent % self.unit) // self.warpgroups

  def empty_barrier(self, stages):
    return plgpu.Barrier(num_arrivals=self.warpgroups, num_barriers=stages)

  def scratch_bytes(self):
    return sum(math.prod(shape) * dtype.itemsize for shape, dtype in self.spills) * self.warpgroups

  def spill_scratch(self):
    return [plgpu.SMEM((self.warpgroups, *shape), dtype) for shape, dtype in self.spills]


class _RowsPart:
  """One warpgroup's part of the divided dimensions."""

  def __init__(self, tile, wg, spills):
    self.tile, self.wg, self.layout = tile, wg, tile.layout
    self.spills = [s.at[wg] for s in spills]

  def rows(self, extent):
    """This warpgroup's part of a dimension; it passes the end of one that is padded."""
    size = self.tile.share(extent)
    return pl.ds(self.wg * size if self.tile.warpgroups > 1 else 0, size)

  def indices(self, part, axis):
    """The indices of a dimension (an extent), or of a part of it, which tiles have along `axis`."""
    part = part if isinstance(part, pl.Slice) else pl.ds(0, part)
    layout = self.layout.reduce(1 - axis)
    return part.start + plgpu.broadcasted_iota(jnp.int32, (part.size,), 0, layout=layout)

  def cast(self, stage, dtype):
    """A stage of `dtype`: what products read cannot be cast on the way."""
    if stage.dtype != dtype:
      raise ValueError(f"a product of {stage.dtype}, cast to {jnp.dtype(dtype)}: cast the array before the call")
    return stage

  def spill(self, x):
    """A computed operand, in shared memory."""
    buffer = next(s for s in self.spills if s.shape == x.shape)
    if buffer.dtype != x.dtype:
      raise ValueError(f"a product of {x.dtype} and {buffer.dtype}: give both operands one dtype")
    plgpu.commit_smem()  # all warps are done with the product that read the buffer before
    buffer[...] = x
    plgpu.commit_smem()
    return buffer

  def check(self, a, b, acc):
    """Raises ValueError for dtypes that a product cannot have."""
    if a.dtype != b.dtype:
      raise ValueError(f"a product of {a.dtype} and {b.dtype}: give both operands one dtype")
    if acc is not None and acc.dtype != jnp.float32:
      raise ValueError(f"an accumulator of {acc.dtype}: products accumulate in float32")


class _WgmmaRows(_Rows):
  """Compute warpgroups that divide dimensions of the extents `rows`; two if all divide by 128.

  columns: extents of the products' columns. turns: whether two warpgroups take turns at the tensor
  core. spills: (shape, axis that is divided or None, dtype) of computed operands that pass through shared memory.
  padded: whether fewer rows than a multiple of 64 are padded.
  """

  layout, unit = plgpu.Layout.WGMMA, 64

  def __init__(self, rows, columns, turns=False, spills=(), padded=False):
    rows = self.pad(rows, padded)
    if any(n % 64 for n in rows) or any(n % 8 or n > 256 for n in columns):
      raise ValueError(
          f"wgmma needs multiples of 64 rows and of 8 up to 256 columns, not {rows} x {columns};"
          f" the next larger blocks have {self.pad(rows, True)} rows"
      )
    self.warpgroups = 2 if rows and not any(n % 128 for n in rows) else 1
    if any(n // self.warpgroups > 128 for n in rows):
      raise ValueError(f"{rows} rows do not fit the registers of {self.warpgroups} warpgroups: use smaller blocks")
    self.turns = turns and self.warpgroups == 2
    self.divide(spills)

  def scratch(self):
    """The barrier of the turns, computed operands."""
    return plgpu.Barrier(num_arrivals=self.warpgroups), self.spill_scratch()

  def part(self, scratch):
    """What the calling warpgroup computes."""
    return _WgmmaRowsPart(self, lax.axis_index("wg"), *scratch)


class _WgmmaRowsPart(_RowsPart):
  """One warpgroup's part of the divided dimensions."""

  def __init__(self, tile, wg, turn, spills):
    super().__init__(tile, wg, spills)
    self.turn = turn

  def dot(self, a, b, acc=None, turn=False):
    """`a @ b` (+ `acc`) in float32 registers; `b` in shared memory, `a` there or in registers.

    turn: the warpgroups take turns: one hands over once a product without `acc` is issued, and
    waits for the other before a product with it.
    """
    if isinstance(a, jax.Array) and a.dtype == jnp.float32 and b.dtype != jnp.float32:  # in two parts, together of 16 bits
      high = a.astype(b.dtype)
      return self.dot((a - high.astype(a.dtype)).astype(b.dtype), b, self.dot(high, b, acc, turn))
    self.check(a, b, acc)

    def issue(ref):
      if turn and acc is not None:
        self._swap()
      plgpu.wgmma(ref, a, b)
      if turn and acc is None:
        self._swap()

    def product(ref):
      issue(ref)
      return ref[...]

    if acc is not None:
      result = pl.run_state(issue)(plgpu.ACC.init(plgpu.layout_cast(acc, self.layout)))
    else:
      result = pl.run_scoped(product, plgpu.ACC((a.shape[0], b.shape[1]), jnp.float32))
    return plgpu.layout_cast(result, self.layout)

  def start_turns(self):
    pl.when(self.wg == 1)(self._swap)

  def end_turns(self):
    pl.when(self.wg == 0)(self._swap)

  def _swap(self):
    if self.tile.turns:
      plgpu.barrier_arrive(self.turn)
      plgpu.barrier_wait(self.turn)
