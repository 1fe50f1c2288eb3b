"""Matrix product in full float32 precision, `x @ w`, for sizes that no block need divide."""

import math

import jax
from jax import lax
import jax.numpy as jnp
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


@jax.tree_util.register_pytree_node_class
class _Parts:
  """An array or ref that is the sum of `parts`, each of 16 bits."""

  def __init__(self, parts):
    self.parts = tuple(parts)

  def tree_flatten(self):
    return self.parts, None

  @classmethod
  def tree_unflatten(cls, _, parts):
    return cls(parts)

  @property
  def shape(self):
    return self.parts[0].shape

  @property
  def dtype(self):
    return self.parts[0].dtype

  @property
  def at(self):
    return self

  def __getitem__(self, index):
    return self.each(lambda x: x.at[index])

  def transpose(self, permutation):
    return self.each(lambda x: x.transpose(permutation))

  def each(self, function):
    return _Parts(function(x) for x in self.parts)

  def blocks(self, shape):
    """(shape, dtype) of a block of each part."""
    return [(shape, self.dtype)] * len(self.parts)


def _parts(x):
  """`x` as a sum of 16-bit parts: float32 has 24 bits, bfloat16 8, so that three parts hold all."""
  if x.dtype.itemsize == 2:
    return _Parts([x])
  parts, rest = [], x.astype(jnp.float32)
  for _ in range(3 if x.dtype == jnp.float32 else 1):
    # XLA may take a rounding to bfloat16 and back for nothing, but not this one.
    high = jax.lax.reduce_precision(rest, exponent_bits=8, mantissa_bits=7)
    parts.append(high.astype(jnp.bfloat16))
    rest -= high
  return _Parts(parts)


class _PartsRing(_Ring):
  """A ring whose stages hold the parts of operands; `arrays`: the `_Parts` of each operand."""

  def __init__(self, buffers, full, empty, arrays):
    super().__init__(buffers, full, empty)
    self.counts = [len(x.parts) for x in arrays]

  def load(self, count, *sources):
    return super().load(count, *(x for s in sources for x in s.parts))

  def wait(self, count):
    stages = iter(super().wait(count))
    return [_Parts(next(stages) for _ in range(n)) for n in self.counts]


def _parts_product(part, a, b):
  """`a @ b` in float32 registers, without the products of parts that float32 does not hold.

  The tensor core adds up with fewer bits than float32 has, so that its sums are kept short: the
  caller adds them up.
  """

  def products(acc):
    pairs = [(i, j) for i in range(len(a.parts)) for j in range(len(b.parts)) if i + j < 3]
    for i, j in sorted(pairs, key=sum, reverse=True):  # small ones first
      plgpu.wgmma(acc, a.parts[i], b.parts[j])
    plgpu.wgmma_wait(0)
    return acc[...]

  return pl.run_scoped(products, plgpu.ACC(part.shape, jnp.float32))


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


def _exact_kernel_loads(x_ref, w_ref, y_ref, ring, count, i, j, *, bm, bn, bk):
  """Memory warpgroup: copies the operand tiles of _exact_kernel, step by step."""
  (m, k), n = x_ref.shape, w_ref.shape[1]

  def body(t, count):
    # past the ends of the arrays the copies read zeros, as the masks did
    return ring.load(
        count, x_ref.at[pl.ds(i * bm, bm), pl.ds(t * bk, bk)],
        w_ref.at[pl.ds(t * bk, bk), pl.ds(j * bn, bn)]
    )

  return lax.fori_loop(0, pl.cdiv(k, bk), body, count)


def _exact_kernel(x_ref, w_ref, y_ref, ring, count, part, i, j, *, bm, bn, bk):
  (m, k), n = x_ref.shape, w_ref.shape[1]

  def body(t, carry):
    acc, count = carry
    # TF32 would keep 10 of the 23 bits.
    x, w = ring.wait(count)
    acc += _parts_product(part, x.at[part.rows, :], w.at[:, part.cols])
    ring.release(count)
    return acc, count + 1

  zeros = plgpu.layout_cast(jnp.zeros(part.shape, jnp.float32), plgpu.Layout.WGMMA)
  acc, count = lax.fori_loop(0, pl.cdiv(k, bk), body, (zeros, count))
  acc = part.value(acc)
  part.store(acc, y_ref.at[pl.ds(i * bm, bm), pl.ds(j * bn, bn)])
  return count


def run(x, w, *, bm=128, bn=128, bk=32, num_warps=8, num_stages=2, interpret=False):
  m, n = x.shape[0], w.shape[1]

  def launch_exact_kernel(x, w):
    out_type = jax.ShapeDtypeStruct((m, n), jnp.float32)
    if x.shape[1] != w.shape[0]:
      raise ValueError(f"x.shape[1] is {x.shape[1]}, but the array ends at {w.shape[0]}")
    if x.shape[0] != out_type.shape[0]:
      raise ValueError(f"x.shape[0] is {x.shape[0]}, but the array ends at {out_type.shape[0]}")
    if w.shape[1] != out_type.shape[1]:
      raise ValueError(f"w.shape[1] is {w.shape[1]}, but the array ends at {out_type.shape[1]}")
    grid = (pl.cdiv(m, bm), pl.cdiv(n, bn))
    tile = _WgmmaTile(bm, bn, out_type, accumulators=2)
    x = _parts(x)
    w = _parts(w)
    blocks = [*x.blocks((tile.staged_rows, bk)), *w.blocks((bk, bn))]
    swizzle = tile.swizzle(x.dtype, bk, tile.shape[1])
    stages = _stages(num_stages, tile, *blocks)
    x_shape, x = x.shape, x.each(lambda part: _tma_fit(part, swizzle))
    w_shape, w = w.shape, w.each(lambda part: _tma_fit(part, swizzle))
    fitted = _tma_shape(out_type.shape, 128 // out_type.dtype.itemsize, out_type.dtype.itemsize)

    def body(x_ref, w_ref, y_ref, ring, scratch):
      ring = _PartsRing(*ring, arrays=[x, w])
      x_ref = _whole(x_ref, x_shape)
      w_ref = _whole(w_ref, w_shape)
      y_ref = _whole(y_ref, out_type.shape)

      def loads(i, j, count):
        return _exact_kernel_loads(
            x_ref, w_ref, y_ref, ring, count, i, j, bm=bm, bn=bn, bk=bk
        )

      def compute(i, j, count):
        return _exact_kernel(
            x_ref, w_ref, y_ref, ring, count, tile.part(scratch), i, j, bm=bm, bn=bn,
            bk=bk
        )

      _persistent(grid, tile.warpgroups, loads, compute, ring.drain)

    return plgpu.kernel(
        body,
        out_type=jax.ShapeDtypeStruct(fitted, out_type.dtype),
        grid=(min(_num_sms(), math.prod(grid)),),
        grid_names=("sm",),
        num_threads=tile.warpgroups + 1,
        thread_name="wg",
        scratch_types=(_Ring.scratch(stages, tile, swizzle, *blocks), tile.scratch()),
        interpret=interpret,
    )(x, w)[tuple(map(slice, out_type.shape))]

  return launch_exact_kernel(x, w)
