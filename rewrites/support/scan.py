"""Support code: running sums of a register tile, by shuffles within warps and SMEM between them."""

import jax.numpy as jnp
import numpy as np
from jax.experimental.mosaic.gpu import fragmented_array as mgpu_arrays
from jax.experimental.mosaic.gpu import utils as mgpu_utils
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import arith, llvm, vector


def _i32(n):
  return mgpu_utils.c(n, ir.IntegerType.get_signless(32))


def _threads_along(dims, layout, along):
  """(number, stride) of the lanes or warps (`dims`, major first) that are spread along an axis."""
  stride, found = 1, (1, 1)
  for d in reversed(dims):
    copies = isinstance(d, plgpu.Replicated)
    size = d.times if copies else layout.tiled_tiling_shape[d]
    if not copies and along[d] and size > 1:
      found = size, stride
    stride *= size
  return found


def _from_lane(x, lane):
  """The 32-bit `x` of another lane of the warp."""
  kind = "f" if isinstance(x.type, ir.F32Type) else "r"
  code = "shfl.sync.idx.b32 $0, $1, $2, 31, 0xffffffff;"
  return llvm.inline_asm(x.type, [x, lane], code, f"={kind},{kind},r", has_side_effects=True)


def _scan_threads(x, me, thread, count, stride, fetch, add, zero):
  """(sum of `x` over the threads before this one, sum over all `count` of them) along an axis."""
  if count == 1:
    return zero, x
  total, distance = x, 1
  while distance < count:
    other = fetch(total, arith.subi(thread, _i32(distance * stride)))
    first = arith.cmpi(arith.CmpIPredicate.ult, me, _i32(distance))
    total, distance = arith.select(first, total, add(other, total)), 2 * distance
  before = fetch(total, arith.subi(thread, _i32(stride)))
  before = arith.select(arith.cmpi(arith.CmpIPredicate.eq, me, _i32(0)), zero, before)
  last = arith.addi(thread, arith.muli(arith.subi(_i32(count - 1), me), _i32(stride)))
  return before, fetch(total, last)


def _scan_warps(totals, me, warp, lane, count, stride, scratch, step, add, zero):
  """As _scan_threads for one number per lane and element of `totals`, over warps through `scratch`."""
  def place(i, w):
    at = arith.addi(arith.muli(arith.addi(w, _i32(4 * (step % 2 * len(totals) + i))), _i32(32)), lane)
    return mgpu_utils.getelementptr(mgpu_utils.memref_ptr(scratch), [at], zero.type)

  for i, x in enumerate(totals):
    llvm.store(x, place(i, warp))
  mgpu_utils.warpgroup_barrier()
  found = []
  for i in range(len(totals)):
    before = total = zero
    for k in range(count):
      other = llvm.load(zero.type, place(i, arith.addi(warp, arith.muli(arith.subi(_i32(k), me), _i32(stride)))))
      before = arith.select(arith.cmpi(arith.CmpIPredicate.ult, _i32(k), me), add(before, other), before)
      total = add(total, other)
    found.append((before, total))
  return found


def _cumsum(x, axis=None, *, layout):
  """Inclusive sums of `x`, a tile in `layout`, along `axis`; in float32 or int32, and cast back.

  A thread adds up its own neighbours; the sums before them come from the lanes and warps before it
  along the axis, and from its registers before this one.
  """
  axis = 0 if axis is None else axis % x.ndim
  dtype = jnp.float32 if jnp.issubdtype(x.dtype, jnp.floating) else jnp.int32
  tiled = layout.to_mgpu()
  along = tiled.tiling.tile_dimension(axis)
  lanes, lane_stride = _threads_along(tiled.lane_dims, tiled, along)
  warps, warp_stride = _threads_along(tiled.warp_dims, tiled, along)
  lines = 1 if along[tiled.vector_dim] else tiled.vector_length  # that one register holds elements of

  def scan(*scratch):
    @plgpu.inline_mgpu(
        arg_types=(*[plgpu.RefType()] * len(scratch), layout),
        return_type=plgpu.ShapeDtypeStruct(x.shape, dtype, layout),
    )
    def scanned(ctx, *args):
      del ctx
      *shared, tile = args
      add = arith.addf if dtype == jnp.float32 else arith.addi
      zero = mgpu_utils.c(0, tile.mlir_dtype)
      thread = mgpu_utils.thread_idx()
      lane = arith.remui(thread, _i32(32))
      warp = arith.remui(arith.divui(thread, _i32(32)), _i32(4))
      lane_at = arith.remui(arith.divui(lane, _i32(lane_stride)), _i32(lanes))
      warp_at = arith.remui(arith.divui(warp, _i32(warp_stride)), _i32(warps))
      results = np.empty_like(tile.registers)
      extents = tile.registers.shape
      step = 0
      for line in np.ndindex(*[1 if a else n for a, n in zip(along, extents)]):
        carried = [zero] * lines
        for at in np.ndindex(*[n if a else 1 for a, n in zip(along, extents)]):
          k = tuple(i + j for i, j in zip(line, at))
          length = tiled.vector_length
          elements = [vector.extract(tile.registers[k], [], [i]) for i in range(length)]
          if lines == 1:
            for i in range(1, length):
              elements[i] = add(elements[i - 1], elements[i])
          sums = elements[-lines:]
          found = [_scan_threads(s, lane_at, lane, lanes, lane_stride, _from_lane, add, zero) for s in sums]
          before, totals = [list(part) for part in zip(*found)]
          if warps > 1:
            found = _scan_warps(totals, warp_at, warp, lane, warps, warp_stride, *shared, step, add, zero)
            before = [add(b, w) for b, (w, _) in zip(before, found)]
            totals = [t for _, t in found]
          before = [add(c, b) for c, b in zip(carried, before)]
          carried = [add(c, t) for c, t in zip(carried, totals)]
          elements = [add(before[i % lines], e) for i, e in enumerate(elements)]
          results[k] = vector.from_elements(tile.registers[k].type, elements)
          step += 1
      if warps > 1:
        mgpu_utils.warpgroup_barrier()  # the scratch may get another use
      return mgpu_arrays.FragmentedArray(_registers=results, _layout=tile.layout, _is_signed=tile.is_signed)

    return scanned(*scratch, x.astype(dtype))

  sums = pl.run_scoped(scan, plgpu.SMEM((2 * 4 * 32 * lines,), dtype)) if warps > 1 else scan()
  return sums.astype(x.dtype if x.dtype != jnp.bool_ else dtype)
