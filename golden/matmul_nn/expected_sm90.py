"""Matrix product a @ b for shapes that the blocks divide."""

import math

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu


# Support code for Mosaic GPU, emitted by pallas-port.
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
        plgpu.copy_gmem_to_smem(source, buffer.at[slot], self.full.at[slot])
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
  """Columns of one swizzled SMEM tile: 128 bytes, or what divides the rows of blocks and arrays."""
  columns = math.gcd(widest, *minor)
  if itemsize != 2:
    raise ValueError("the matrix product takes float16 and bfloat16 operands only")
  if columns < 16:
    raise ValueError(f"rows of {minor} elements, of blocks and arrays, are not multiples of 16: pad the arrays")
  return columns


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


def matmul_kernel_loads(a_ref, b_ref, c_ref, ring, count, *, block_k):
    """Memory warpgroup: copies the operand tiles of matmul_kernel, step by step."""

    def step(i, count):
        ks = pl.ds(i * block_k, block_k)
        return ring.load(count, a_ref.at[:, ks], b_ref.at[ks, :])

    return lax.fori_loop(0, a_ref.shape[1] // block_k, step, count)


def matmul_kernel(a_ref, b_ref, c_ref, ring, count, part, *, block_k):
    """One block of `c`. `a_ref` holds all of K for its rows, `b_ref` for its columns."""

    def products(acc):
        def step(i, count):
            a, b = ring.wait(count)
            plgpu.wgmma(acc, a.at[part.rows, :], b.at[:, part.cols])
            plgpu.wgmma_wait(part.behind)
            ring.release(count - part.behind, i >= part.behind)
            return count + 1

        end = lax.fori_loop(0, a_ref.shape[1] // block_k, step, count)
        acc = acc[...]
        ring.release(end - 1, (part.behind > 0) & (end > count))
        return acc, end

    acc, count = pl.run_scoped(products, plgpu.ACC(part.shape, jnp.float32))
    part.store(acc.astype(c_ref.dtype), c_ref)
    return count


def run(a, b, *, block_m=128, block_n=256, block_k=64, num_warps=8, num_stages=3, interpret=False):
    (m, k), n = a.shape, b.shape[1]
    if m % block_m or n % block_n or k % block_k:
        raise ValueError(f"{m}x{n}x{k} is not a multiple of the blocks {block_m}x{block_n}x{block_k}")

    def launch_matmul_kernel(a, b):
        out_type = jax.ShapeDtypeStruct((m, n), a.dtype)
        grid = (m // block_m, n // block_n)
        tile = _WgmmaTile(block_m, block_n, out_type)
        blocks = [((block_m, block_k), a.dtype), ((block_k, block_n), b.dtype)]
        swizzle = tile.swizzle(a.dtype, block_k, tile.shape[1], a.shape[-1], b.shape[-1])
        stages = _stages(num_stages, tile, *blocks)

        def body(a_ref, b_ref, c_ref, ring, scratch):
            ring = _Ring(*ring)

            def loads(i, j, count):
                return matmul_kernel_loads(
                    a_ref.at[pl.ds(i * block_m, block_m), :],
                    b_ref.at[pl.ds(0, k), pl.ds(j * block_n, block_n)],
                    c_ref.at[pl.ds(i * block_m, block_m), pl.ds(j * block_n, block_n)], ring,
                    count, block_k=block_k
                )

            def compute(i, j, count):
                return matmul_kernel(
                    a_ref.at[pl.ds(i * block_m, block_m), :],
                    b_ref.at[pl.ds(0, k), pl.ds(j * block_n, block_n)],
                    c_ref.at[pl.ds(i * block_m, block_m), pl.ds(j * block_n, block_n)], ring,
                    count, tile.part(scratch), block_k=block_k
                )

            _persistent(grid, tile.warpgroups, loads, compute, ring.drain)

        return plgpu.kernel(
            body,
            out_type=out_type,
            grid=(min(_num_sms(), math.prod(grid)),),
            grid_names=("sm",),
            num_threads=tile.warpgroups + 1,
            thread_name="wg",
            scratch_types=(_Ring.scratch(stages, tile, swizzle, *blocks), tile.scratch()),
            interpret=interpret,
        )(a, b)

    return launch_matmul_kernel(a, b)
