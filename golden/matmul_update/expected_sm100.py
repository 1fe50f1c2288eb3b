"""`c + a @ b`: the sums start as a tile of `c`."""

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


def update_kernel_loads(a_ref, b_ref, c_ref, out_ref, ring, count, *, block_k):
  """Memory warpgroup: copies the operand tiles of update_kernel, step by step."""

  def step(i, count):
    ks = pl.ds(i * block_k, block_k)
    return ring.load(count, a_ref.at[:, ks], b_ref.at[ks, :])

  return lax.fori_loop(0, a_ref.shape[1] // block_k, step, count)


def update_kernel(a_ref, b_ref, c_ref, out_ref, ring, count, tile, *, block_k):
  def step(i, count):
    a, b = ring.wait(count)
    plgpu.tcgen05_mma(
        tile.accumulators[0], a.at[tile.rows, :], b, ring.freed(count), accumulate=i > 0
    )
    return count + 1

  count = lax.fori_loop(0, a_ref.shape[1] // block_k, step, count)
  tile.finish(a_ref.shape[1] // block_k > 0)
  for part in tile.chunks():
    acc = part.accumulator(0)
    acc += part.load(c_ref).astype(jnp.float32)
    part.store(acc.astype(out_ref.dtype), out_ref)
  tile.free()
  return count


def run(a, b, c, *, block_m=128, block_n=128, block_k=64, num_warps=4, num_stages=3, interpret=False):
  (m, k), n = a.shape, b.shape[1]
  if m % block_m or n % block_n or k % block_k:
    raise ValueError("the blocks must divide the arrays")

  def launch_update_kernel(a, b, c):
    out_type = jax.ShapeDtypeStruct(c.shape, c.dtype)
    grid = (m // block_m, n // block_n)
    tile = _Tcgen05Tile(block_m, block_n, out_type)
    blocks = [((tile.staged_rows, block_k), a.dtype), ((block_k, block_n), b.dtype)]
    swizzle = tile.swizzle(a.dtype, block_k, tile.shape[1], a.shape[-1], b.shape[-1])
    stages = _stages(num_stages, tile, *blocks)

    def body(a_ref, b_ref, c_ref, out_ref, ring, scratch):
      ring = _Ring(*ring)

      def loads(i, j, count):
        return update_kernel_loads(
            a_ref.at[pl.ds(i * block_m, block_m), :],
            b_ref.at[pl.ds(0, k), pl.ds(j * block_n, block_n)],
            c_ref.at[pl.ds(i * block_m, block_m), pl.ds(j * block_n, block_n)],
            out_ref.at[pl.ds(i * block_m, block_m), pl.ds(j * block_n, block_n)], ring,
            count, block_k=block_k
        )

      def compute(i, j, count):
        return update_kernel(
            a_ref.at[pl.ds(i * block_m, block_m), :],
            b_ref.at[pl.ds(0, k), pl.ds(j * block_n, block_n)],
            c_ref.at[pl.ds(i * block_m, block_m), pl.ds(j * block_n, block_n)],
            out_ref.at[pl.ds(i * block_m, block_m), pl.ds(j * block_n, block_n)], ring,
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
    )(a, b, c)

  return launch_update_kernel(a, b, c)
