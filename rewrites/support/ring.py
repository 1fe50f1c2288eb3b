"""Support code: the ring of shared-memory stages between a memory warpgroup and its consumers."""

import math

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu


class _Ring:
  """SMEM stages that the memory warpgroup fills and the compute warpgroups empty.

  `count` numbers the steps through all loops and programs; both sides keep their own.
  """

  def __init__(self, buffers, full, empty):
    self.buffers, self.full, self.empty = buffers, full, empty
    self.stages = buffers[0].shape[0]

  @staticmethod
  def scratch(stages, tile, swizzle, *blocks, reads=()):
    """Scratch of a ring; `swizzle` is the number of columns of one swizzled tile. `reads`: blocks
    that no product takes as they are; None for one that this call does not read."""
    if len({jnp.dtype(dtype).itemsize for _, dtype in blocks}) > 1:
      dtypes = dict.fromkeys(jnp.dtype(dtype).name for _, dtype in blocks)
      raise ValueError(f"products of {' and '.join(dtypes)}: give both operands one dtype")
    if any(read is not None and read[1] == jnp.bool_ for read in reads):
      raise ValueError("the copy engine takes no bool arrays: pass them as int8")
    buffers = [
        plgpu.SMEM(
            (stages, *shape),
            dtype,
            transforms=(
                plgpu.TilingTransform((8, swizzle)),
                plgpu.SwizzleTransform(swizzle * jnp.dtype(dtype).itemsize),
            ),
        )
        for shape, dtype in blocks
    ]
    buffers += [None if block is None else plgpu.SMEM((stages, *block[0]), block[1]) for block in reads]
    full = plgpu.Barrier(num_arrivals=sum(b is not None for b in buffers), num_barriers=stages)
    return buffers, full, tile.empty_barrier(stages)

  def slot(self, count):
    return lax.rem(count, jnp.int32(self.stages))

  def load(self, count, *sources):
    """Copies the tiles of step `count`, once their stage is free."""
    slot = self.slot(count)

    @pl.when(count >= self.stages)
    def _():
      plgpu.barrier_wait(self.empty.at[slot])

    for source, buffer in zip(sources, self.buffers, strict=True):
      if source is not None:
        stage = buffer.at[(slot, *(pl.ds(0, n) for n in source.shape))]  # which may have more rows
        plgpu.copy_gmem_to_smem(source, stage, self.full.at[slot])
    return count + 1

  def drain(self, count):
    """Waits until the last stages are free again."""

    @pl.loop(lax.max(count - self.stages, 0), count)
    def _(step):
      plgpu.barrier_wait(self.empty.at[self.slot(step)])

  def wait(self, count):
    """The tiles of step `count`, once they are there."""
    slot = self.slot(count)
    plgpu.barrier_wait(self.full.at[slot])
    return [None if buffer is None else buffer.at[slot] for buffer in self.buffers]

  def release(self, count, when=True):
    """Gives the stage of step `count` back, if `when`."""

    @pl.when(when)
    def _():
      plgpu.barrier_arrive(self.empty.at[self.slot(count)])

  def freed(self, count):
    """The barrier on which an MMA gives the stage of step `count` back."""
    return self.empty.at[self.slot(count)]


def _stages(num_stages, tile, *blocks):
  """As many stages as fit the shared memory of one block (227 KB), up to twice Triton's number."""
  free = 226 * 1024 - tile.scratch_bytes()
  step = sum(math.prod(shape) * jnp.dtype(dtype).itemsize for shape, dtype in blocks)
  if free < 2 * step:
    raise ValueError(f"two stages of {step} bytes do not fit {free} bytes of shared memory: use smaller blocks")
  return max(2, min(2 * num_stages, free // step))


def _persistent(grid, warpgroups, loads, compute, drain):
  """Runs the programs of `grid` on the blocks along "sm": one warpgroup copies ahead of the others,
  into the next program too. Neighbouring programs share operands in L2."""
  *batch, rows, cols = grid if len(grid) > 1 else (1, *grid)
  wg = lax.axis_index("wg")

  def programs(run):
    @plgpu.nd_loop((*batch, rows * cols), collective_axes="sm", init_carry=jnp.int32(0))
    def count(program, carry):
      *outer, inner = program.index
      index = (*outer, *plgpu.planar_snake(inner, (rows, cols), 0, 8))
      return run(*index[-len(grid) :], carry)

    return count

  @pl.when(wg == warpgroups)
  def _():
    plgpu.set_max_registers(40, action="decrease")
    drain(programs(loads))

  @pl.when(wg < warpgroups)
  def _():
    plgpu.set_max_registers({1: 248, 2: 232}[warpgroups], action="increase")
    programs(compute)
    plgpu.wait_smem_to_gmem(0)


def _num_sms():
  """Streaming multiprocessors of the device; any number gives right results."""
  device = jax.sharding.get_abstract_mesh().abstract_device or jax.devices()[0]
  return getattr(device, "num_cores", None) or getattr(device, "core_count", 132)


def _swizzle(itemsize, widest, *minor):
  """Columns of one swizzled SMEM tile of 16-bit elements, up to `widest`."""
  if itemsize != 2:
    raise ValueError("the matrix product takes float16 and bfloat16 operands only")
  return _columns(itemsize, widest, *minor)


def _columns(itemsize, widest, *minor):
  """Columns of one swizzled SMEM tile: `widest`, or what divides the rows of blocks and arrays."""
  columns = math.gcd(widest, *minor)
  if columns * itemsize < 32:
    raise ValueError(
        f"rows of {minor} elements, of blocks and arrays, are not multiples of {32 // itemsize}: pad the arrays"
    )
  return columns


def _check_multiplied(dtype, accumulate):
  """Raises ValueError where the matrix unit cannot multiply `dtype` into `accumulate`."""
  if (dtype == jnp.int8) != (accumulate == jnp.int32):
    raise ValueError(
        f"a product of {dtype} in {jnp.dtype(accumulate)}: int8 operands, and only those, need"
        " preferred_element_type=jnp.int32 and accumulators that start at jnp.zeros(..., jnp.int32)"
    )
  if dtype not in (jnp.int8, jnp.float16, jnp.bfloat16, jnp.float8_e4m3fn, jnp.float8_e5m2, jnp.float32):
    raise ValueError(f"a product of {dtype}: use int8, float8_e4m3fn, float8_e5m2, float16 or bfloat16")


def _tma_shape(shape, columns, itemsize):
  """`shape`, enlarged to what TMA copies in tiles of 8 rows and `columns` columns."""
  *batch, m, n = shape
  m += -m % 8 if m > 8 else 0
  n += -n % (columns if n > columns else 16 // itemsize)
  return *batch, m, n


def _whole(ref, shape):
  """A view of the first `shape` elements of a padded ref."""
  return ref.at[tuple(pl.ds(0, n) for n in shape)]


def _tma_fit(x, columns):
  """`x`, padded with zeros where TMA cannot read it as it is (a copy in GMEM)."""
  shape = _tma_shape(x.shape, columns, x.dtype.itemsize)
  return x if shape == x.shape else jnp.pad(x, [(0, m - n) for n, m in zip(x.shape, shape)])
