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


@jax.tree_util.register_pytree_node_class
class _Turned:
  """An array or ref whose last two dimensions are exchanged in memory; indexed as if they were not."""

  def __init__(self, x):
    self.x = x

  def tree_flatten(self):
    return (self.x,), None

  @classmethod
  def tree_unflatten(cls, _, children):
    return cls(*children)

  @property
  def shape(self):
    *batch, n, k = self.x.shape
    return *batch, k, n

  @property
  def dtype(self):
    return self.x.dtype

  @property
  def at(self):
    return self

  def __getitem__(self, index):
    index = index if isinstance(index, tuple) else (index,)
    *batch, k, n = *index, *[slice(None)] * (len(self.x.shape) - len(index))
    return _Turned(self.x.at[*batch, n, k])


def _tf32(x):
  """`x`; float32 is rounded to TF32 (a copy in GMEM), since the tensor core would cut it off."""
  return jax.lax.reduce_precision(x, exponent_bits=8, mantissa_bits=10) if x.dtype == jnp.float32 else x


def _k_major(x):
  """`x`; transposed where wgmma reads its elements only along the contraction (a copy in GMEM)."""
  return x if x.dtype.itemsize == 2 else _Turned(_tf32(x).swapaxes(-1, -2))


class _KMajorRing(_Ring):
  """A ring that holds tiles of `_Turned` arrays transposed, and hands them out as they are meant."""

  def __init__(self, buffers, full, empty):
    self.turned = [isinstance(b, _Turned) for b in buffers]
    super().__init__([b.x if t else b for b, t in zip(buffers, self.turned)], full, empty)

  @staticmethod
  def scratch(stages, tile, swizzle, *blocks, arrays):
    """As of `_Ring`; `arrays`: the array of each block."""
    turned = [isinstance(x, _Turned) for x in arrays]
    blocks = [(shape[::-1] if t else shape, dtype) for (shape, dtype), t in zip(blocks, turned)]
    buffers, *barriers = _Ring.scratch(stages, tile, swizzle, *blocks)
    return [_Turned(b) if t else b for b, t in zip(buffers, turned)], *barriers

  def load(self, count, *sources):
    return super().load(count, *(s.x if t else s for s, t in zip(sources, self.turned)))

  def wait(self, count):
    stages = zip(super().wait(count), self.turned)
    return [s.transpose((1, 0)) if t else s for s, t in stages]


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


def update_kernel_loads(a_ref, b_ref, c_ref, out_ref, ring, count, *, block_k):
  """Memory warpgroup: copies the operand tiles of update_kernel, step by step."""

  def step(i, count):
    ks = pl.ds(i * block_k, block_k)
    return ring.load(count, a_ref.at[:, ks], b_ref.at[ks, :])

  return lax.fori_loop(0, a_ref.shape[1] // block_k, step, count)


def update_kernel(a_ref, b_ref, c_ref, out_ref, ring, count, part, *, block_k):
  def products(acc):
    def step(i, count):
      a, b = ring.wait(count)
      plgpu.wgmma(acc, a.at[part.rows, :], b.at[:, part.cols])
      plgpu.wgmma_wait(part.behind)
      ring.release(count - part.behind, i >= part.behind)
      return count + 1

    end = lax.fori_loop(0, a_ref.shape[1] // block_k, step, count)
    acc = part.value(acc[...])
    ring.release(end - 1, (part.behind > 0) & (end > count))
    return acc, end

  acc, count = pl.run_scoped(products, plgpu.ACC(part.shape, jnp.float32))
  acc += part.load(c_ref).astype(jnp.float32)
  part.store(acc.astype(out_ref.dtype), out_ref)
  return count


def run(a, b, c, *, block_m=128, block_n=128, block_k=64, num_warps=4, num_stages=3, interpret=False):
  (m, k), n = a.shape, b.shape[1]
  if m % block_m or n % block_n or k % block_k:
    raise ValueError("the blocks must divide the arrays")

  def launch_update_kernel(a, b, c):
    out_type = jax.ShapeDtypeStruct(c.shape, c.dtype)
    grid = (m // block_m, n // block_n)
    tile = _WgmmaTile(block_m, block_n, out_type)
    blocks = [((tile.staged_rows, block_k), a.dtype), ((block_k, block_n), b.dtype)]
    swizzle = tile.swizzle(
        a.dtype, block_k, tile.shape[1], a.shape[-1], b.shape[-1],
        along_k=(block_k, a.shape[-1], b.shape[-2]), tf32=True
    )
    stages = _stages(num_stages, tile, *blocks)
    a = _tf32(a)
    b = _k_major(b)

    def body(a_ref, b_ref, c_ref, out_ref, ring, scratch):
      ring = _KMajorRing(*ring)

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
        scratch_types=(_KMajorRing.scratch(stages, tile, swizzle, *blocks, arrays=[a, b]), tile.scratch()),
        interpret=interpret,
    )(a, b, c)

  return launch_update_kernel(a, b, c)
