"""Decode attention over pages: one query per sequence, a few heads that share keys and values.

The keys of a sequence lie in pages of memory that a table names. Programs along the second grid axis
take a part of the pages each; `run` joins what they found.
"""

import math

import jax
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
import jax.numpy as jnp
from jax.experimental.mosaic.gpu import fragmented_array as mgpu_arrays
from jax.experimental.mosaic.gpu import utils as mgpu_utils
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import arith
from jaxlib.mlir.dialects import llvm
from jaxlib.mlir.dialects import vector
import numpy as np


# Support code for Mosaic GPU, emitted by pallas-port.
def _vec(refs, *extents):
  """Elements per access: up to 16 bytes, fewer where a row of a ref, the start of a tile or the
  bound of a mask (`extents`) is not a multiple of that."""
  refs = [r for r in refs if r is not None]
  rows = [n for r in refs for n in (*r.shape[-1:], *getattr(r, "ref", r).shape[-1:])]
  return math.gcd(16 // min(r.dtype.itemsize for r in refs), *rows, *extents)


def _spread(x, shape, dims):
  """`x` broadcast to `shape`, its axes at `dims` (jnp.broadcast_to has no Mosaic GPU rule)."""
  x = jnp.asarray(x, jnp.int32) if x.dtype != jnp.bool_ else x
  return x if x.shape == shape else lax.broadcast_in_dim(x, shape, dims)


def _per_dimension(ref, index):
  """(index of each dimension of `ref`, shape of its index arrays, shape of the tile)."""
  index = index if isinstance(index, tuple) else (index,)
  rest = [slice(None)] * (len(ref.shape) - sum(i is not ... for i in index))
  at = next((d for d, i in enumerate(index) if i is ...), len(index))
  index = [*index[:at], *rest, *index[at + 1 :]]
  for d, (i, n) in enumerate(zip(index, ref.shape)):
    if isinstance(i, slice):
      start, stop, step = i.indices(n)
      index[d] = pl.Slice(start, max(0, -(-(stop - start) // step)), step)
  picked = [d for d, i in enumerate(index) if not isinstance(i, pl.Slice)]
  beside = bool(picked) and picked[-1] - picked[0] == len(picked) - 1
  if beside and picked[0] and any(jnp.ndim(index[d]) for d in picked):
    raise NotImplementedError("an index array behind a slice")
  lead = jnp.broadcast_shapes(*(jnp.shape(i) for i in index if not isinstance(i, pl.Slice)))
  return index, lead, (*lead, *(i.size for i in index if isinstance(i, pl.Slice)))


def _window(ref, index):
  """(whole ref, scalar start and tile of indices of each of its dimensions, shape of the tile).

  `index` may hold `pl.ds`, `:`, integers, and integer arrays that broadcast together; it may pass
  the end of the ref, for elements that a mask excludes.
  """
  index, lead, shape = _per_dimension(ref, index)
  starts, tiles, kept = [], [], len(lead)
  for i in index:
    if isinstance(i, pl.Slice):
      starts.append(i.start)
      tiles.append(lax.broadcasted_iota(jnp.int32, shape, kept) * i.stride if shape != (1,) else None)
      kept += 1
    elif jnp.ndim(i) == 0:
      starts.append(i)
      tiles.append(None)
    else:
      starts.append(0)
      tiles.append(_spread(i, shape, tuple(range(len(lead) - i.ndim, len(lead)))))
  for view in reversed(getattr(ref, "transforms", ())):  # the launch's view: slices and integers
    inner = iter(zip(starts, tiles))
    outer = [
        (i.start + (x := next(inner))[0], x[1]) if isinstance(i, pl.Slice) else (i, None)
        for i in view.indices
    ]
    starts, tiles = [o[0] for o in outer], [o[1] for o in outer]
  return getattr(ref, "ref", ref), starts, tiles, shape


def _within(ref, index):
  """For each slice that passes the end of `ref` (of a padded tile): which elements do not."""
  index, lead, shape = _per_dimension(ref, index)
  for axis, (i, n) in enumerate((i, n) for i, n in zip(index, ref.shape) if isinstance(i, pl.Slice)):
    if isinstance(i.start, int) and i.start + (i.size - 1) * i.stride >= n:
      yield lax.broadcasted_iota(jnp.int32, shape, len(lead) + axis) < -(-(n - i.start) // i.stride)


def _memory_type(ref):
  """Type of an element in memory: a bool is a byte, and LLVM knows no floats of 8 bits."""
  element = ir.MemRefType(ref.type).element_type
  return ir.IntegerType.get_signless(8) if mgpu_utils.bitwidth(element) <= 8 else element


def _as_type(piece, element):
  """A short vector of bools or 8-bit floats as one of bytes, or of bytes as those."""
  kind = ir.VectorType.get(ir.VectorType(piece.type).shape, element)
  if piece.type == kind:
    return piece
  if mgpu_utils.bitwidth(ir.VectorType(piece.type).element_type) == mgpu_utils.bitwidth(element):
    return vector.bitcast(kind, piece)
  if mgpu_utils.bitwidth(element) == 8:
    return arith.extui(kind, piece)
  zero = vector.broadcast(piece.type, mgpu_utils.c(0, ir.VectorType(piece.type).element_type))
  return arith.cmpi(arith.CmpIPredicate.ne, piece, zero)


def _element(base, strides, starts):
  """Pointer to the element at `starts`, computed in 64 bits."""
  i64 = ir.IntegerType.get_signless(64)
  pointer = llvm.addrspacecast(llvm.PointerType.get(address_space=1), mgpu_utils.memref_ptr(base))
  offset = arith.constant(i64, 0)
  for start, stride in zip(starts, strides):
    start = arith.extsi(i64, start.registers.item())
    offset = arith.addi(offset, arith.muli(start, arith.constant(i64, stride)))
  return mgpu_utils.getelementptr(pointer, [offset], _memory_type(base))


def _offsets(whole, shape, layout, tiles, strides):
  """Offset of each element of a tile of `shape` from the access's first one; 64 bits in large arrays."""
  word = ir.IntegerType.get_signless(32 if math.prod(whole) < 2**31 else 64)
  zero = mgpu_utils.c(0, word)
  offsets = mgpu_arrays.FragmentedArray.splat(zero, shape, layout.to_mgpu(), is_signed=True)
  for d, x in tiles.items():
    offsets = offsets + x.astype(word, is_signed=True) * strides[d]
  return offsets


def _pieces(register, size):
  """Splits one register (a short vector) into pieces of `size` elements."""
  for i in range(0, ir.VectorType(register.type).shape[0], size):
    yield vector.extract_strided_slice(
        ir.VectorType.get((size,), ir.VectorType(register.type).element_type), register, [i], [size], [1]
    )


def _first(register):
  return vector.extract(register, [], [0])


def _words(piece):
  """(32-bit words of a short vector, PTX type, constraint); one narrower word below 4 bytes."""
  ty = ir.VectorType(piece.type)
  bits = ty.shape[0] * mgpu_utils.bitwidth(ty.element_type)
  word = ir.IntegerType.get_signless(min(bits, 32))
  words = vector.bitcast(ir.VectorType.get((max(1, bits // 32),), word), piece)
  words = [vector.extract(words, [], [i]) for i in range(max(1, bits // 32))]
  if bits == 8:  # PTX has no 8-bit registers
    words = [arith.extui(ir.IntegerType.get_signless(16), words[0])]
  return words, f"b{min(bits, 32)}", "r" if bits >= 32 else "h"


def _access(ref, index, layout, mask, vec, eviction_policy, *, value=None, other=0):
  """One predicated load (`value` None) or store per `vec` elements of every register."""
  base, starts, tile, shape = _window(ref, index)
  integer = jnp.issubdtype(base.dtype, jnp.integer)
  if not 8 <= (jnp.iinfo(base.dtype).bits if integer else 8 * base.dtype.itemsize) <= 32:
    raise ValueError(f"arrays of {base.dtype} cannot be loaded or stored: use 8 to 32 bits")
  if base.dtype.itemsize == 1 and jnp.issubdtype(base.dtype, jnp.floating):
    other = int(np.array(other, base.dtype).view(np.int8))  # its bits
  varying = [d for d, t in enumerate(tile) if t is not None]
  if not tile or tile[-1] is None:
    vec = 1  # the last dimension of the array is one index: neighbours are a row apart
  masks = () if mask is None else (_spread(mask, shape, range(len(shape) - mask.ndim, len(shape))),)
  for inside in _within(ref, index):
    masks = (masks[0] & inside if masks else inside,)
  values = () if value is None else (value,)
  hint = {"evict_last": ".L1::evict_last", "evict_first": ".L1::evict_first"}.get(eviction_policy, "")
  splat = plgpu.Layout.WG_SPLAT
  operands = [jnp.asarray(s, jnp.int32) for s in starts], [tile[d] for d in varying]

  @plgpu.inline_mgpu(
      arg_types=(
          plgpu.RefType(),
          *[splat] * len(starts),
          *[layout] * (len(varying) + len(masks) + len(values)),
      ),
      return_type=plgpu.ShapeDtypeStruct(shape, base.dtype, layout) if value is None else (),
  )
  def access(ctx, base_ref, *args):
    del ctx
    first, args = args[: len(starts)], list(args[len(starts) :])
    stored = args.pop() if values else None
    predicate = args.pop() if masks else None
    strides, _ = ir.MemRefType(base_ref.type).get_strides_and_offset()
    element = _memory_type(base_ref)
    pointer = _element(base_ref, strides, first)
    offsets = _offsets(base.shape, shape, layout, dict(zip(varying, args)), strides)
    size = min(vec, 16 * 8 // mgpu_utils.bitwidth(element))
    always = arith.constant(ir.IntegerType.get_signless(1), 1)
    if values and any(isinstance(d, plgpu.Replicated) for d in offsets.layout.warp_dims):
      mgpu_utils.warpgroup_barrier()  # other warps hold copies and may still load what is stored here
    results = np.empty_like(offsets.registers)
    for at, register in np.ndenumerate(offsets.registers):
      n = min(size, ir.VectorType(register.type).shape[0])
      loaded = []
      guards = _pieces(predicate.registers[at], n) if masks else None
      parts = _pieces(stored.registers[at], n) if values else None
      for piece in _pieces(register, n):
        address = mgpu_utils.getelementptr(pointer, [_first(piece)], element)
        guard = _first(next(guards)) if guards else always
        if parts:
          _store_words(address, guard, _as_type(next(parts), element), hint)
        else:
          loaded.append(_load_words(address, guard, n, element, other, hint))
      if loaded:
        whole = mgpu_utils.vector_concat(loaded) if len(loaded) > 1 else loaded[0]
        results[at] = _as_type(whole, ir.MemRefType(base_ref.type).element_type)
    if values:
      mgpu_utils.warpgroup_barrier()
      return None
    return mgpu_arrays.FragmentedArray(
        _registers=results, _layout=offsets.layout, _is_signed=mgpu_utils.is_signed(base.dtype)
    )

  return access(base, *operands[0], *operands[1], *masks, *values)


def _load_words(address, guard, n, element, other, hint):
  fill = vector.broadcast(ir.VectorType.get((n,), element), mgpu_utils.c(other, element))
  words, kind, constraint = _words(fill)
  k = len(words)
  out = [f"${i}" for i in range(k)]
  moves = " ".join(f"mov.b{max(16, int(kind[1:]))} {o}, ${k + 1 + i};" for i, o in enumerate(out))
  width, target = ("", out[0]) if k == 1 else (f".v{k}", "{" + ", ".join(out) + "}")
  code = f"{moves} @${2 * k + 1} ld.global{hint}{width}.{kind} {target}, [${k}];"
  types = [w.type for w in words]
  result = types[0] if k == 1 else ir.Type.parse(f"!llvm.struct<({', '.join(map(str, types))})>")
  constraints = ",".join([f"=&{constraint}"] * k + ["l"] + [constraint] * k + ["b"])
  got = llvm.inline_asm(result, [address, *words, guard], code, constraints, has_side_effects=True)
  got = [got] if k == 1 else [llvm.extractvalue(t, got, [i]) for i, t in enumerate(types)]
  if kind == "b8":
    got = [arith.trunci(ir.IntegerType.get_signless(8), got[0])]
  packed = vector.from_elements(ir.VectorType.get((k,), got[0].type), got)
  return vector.bitcast(ir.VectorType.get((n,), element), packed)


def _store_words(address, guard, piece, hint):
  words, kind, constraint = _words(piece)
  k = len(words)
  source = [f"${1 + i}" for i in range(k)]
  width, value = ("", source[0]) if k == 1 else (f".v{k}", "{" + ", ".join(source) + "}")
  code = f"@${k + 1} st.global{hint}{width}.{kind} [$0], {value};"
  constraints = ",".join(["l"] + [constraint] * k + ["b"])
  llvm.inline_asm(
      ir.Type.parse("!llvm.void"), [address, *words, guard], code, constraints, has_side_effects=True
  )


def _load(ref, index, *, layout=None, mask=None, other=0, vec=1, eviction_policy=None):
  """Loads `ref[index]` into registers; `other` where `mask` is false.  One element has no layout.

  `vec` neighbours are one access: the caller states that the last index is consecutive and that
  every tile start, row and mask bound is a multiple of `vec`.
  """
  if not ref.shape:
    return ref[...]
  if layout is None:
    at = _numbers(ref, index)
    return ref[at] if mask is None else lax.cond(mask, lambda: ref[at], lambda: jnp.asarray(other, ref.dtype))
  if _per_dimension(ref, index)[-1] == (1,) and hasattr(layout, "axes"):
    return _load_one(ref, index, layout, mask, other, eviction_policy)
  fill = other if isinstance(other, (int, float)) else 0
  loaded = _access(ref, index, layout, mask, vec, eviction_policy, other=fill)
  return loaded if fill is other else jnp.where(mask, loaded, other)


def _numbers(ref, index):
  """The index of one element: its number in each dimension."""
  return tuple(i.start if isinstance(i, pl.Slice) else i for i in _per_dimension(ref, index)[0])


def _load_one(ref, index, layout, mask, other, eviction_policy):
  """A column of a one-row tile (or a row of a one-column tile): JAX has no layout for one element,
  so every thread loads it and a reduction leaves one."""
  (axis,) = layout.axes
  shape = [1, 1]
  shape[axis] = layout.layout.to_mgpu().base_tile_shape[axis]
  shape = tuple(shape)
  zeros = lax.broadcasted_iota(jnp.int32, shape, 1 - axis)
  index = [zeros + i.start if isinstance(i, pl.Slice) else i for i in _per_dimension(ref, index)[0]]
  index = tuple(_spread(i, shape, (1 - axis,)) if jnp.shape(i) == (1,) else i for i in index)
  mask = None if mask is None else _spread(mask, shape, (1 - axis,))
  tile = _load(ref, index, layout=layout.layout, mask=mask, other=other, eviction_policy=eviction_policy)
  return jnp.max(tile, axis=axis)


def _sync():
  """Waits until all warps of the warpgroup are here."""
  plgpu.inline_mgpu(arg_types=(), return_type=())(lambda ctx: mgpu_utils.warpgroup_barrier())()


def _store(ref, index, value, *, layout=None, mask=None, vec=1, eviction_policy=None):
  """Stores registers into `ref[index]` where `mask` is true; `layout` and `vec` as in `_load`."""
  if layout is None:
    at, value = _numbers(ref, index), jnp.asarray(value, ref.dtype)
    _sync()  # every thread stores: all must have loaded what they need of it
    pl.when(True if mask is None else mask)(lambda: ref.__setitem__(at, value))
    return
  value = plgpu.layout_cast(value.astype(ref.dtype), layout)  # constants have no layout of their own
  _access(ref, index, layout, mask, vec, eviction_policy, value=value)


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


def decode_kernel_loads(
    q_ref, k_ref, v_ref, table_ref, length_ref, out_ref, peak_ref, total_ref, *, program,
    ring, pages_per_step, scale
):
  """Memory warpgroup: copies the operand tiles of decode_kernel ahead of the products."""
  share = program[1]
  page = k_ref.shape[1]
  tokens = pages_per_step * page
  first = share * table_ref.shape[0] * page
  end = jnp.minimum(length_ref[0], first + table_ref.shape[0] * page)

  def attend():
    def body(t, _):
      pages = [table_ref.at[pl.ds(t * pages_per_step, pages_per_step)][i] for i in range(pages_per_step)]
      ring.load(t, [k_ref.at[page] for page in pages], [v_ref.at[page] for page in pages])

    lax.fori_loop(0, pl.cdiv(end - first, tokens), body, None)
    ring.drain(pl.cdiv(end - first, tokens))

  lax.cond(first < end, lambda: attend(), lambda: None)


def decode_kernel(
    q_ref, k_ref, v_ref, table_ref, length_ref, out_ref, peak_ref, total_ref, *, program, part, ring, pages_per_step, scale
):
  share = program[1]
  heads, head_dim = q_ref.shape
  rows = part.rows(heads)
  vec = _vec((q_ref, out_ref))
  layout = part.layout
  row_layout = layout.reduce(1)
  page = k_ref.shape[1]
  tokens = pages_per_step * page
  # The first token of this program, and the end of its tokens.
  first = share * table_ref.shape[0] * page
  end = jnp.minimum(length_ref[0], first + table_ref.shape[0] * page)

  def attend(acc, peak, total):
    q = _load(q_ref, (rows, slice(None)), layout=layout, vec=vec)

    def body(t, carry):
      acc, peak, total = carry
      k, v = ring.wait(t)
      s = part.dot(q, k.transpose((1, 0))) * (scale * math.log2(math.e))
      token = first + t * tokens + part.indices(tokens, axis=1)
      s = jnp.where((token < end)[None, :], s, -1e30)
      new_peak = jnp.maximum(peak, jnp.max(s, axis=1))
      fade = jnp.exp2(peak - new_peak)
      p = jnp.exp2(s - new_peak[:, None])
      total = fade * total + jnp.sum(p, axis=1)
      acc = part.dot(p.astype(v.dtype), v, fade[:, None] * acc)
      ring.release(t)
      return acc, new_peak, total

    return lax.fori_loop(0, pl.cdiv(end - first, tokens), body, (acc, peak, total))

  acc = jnp.zeros((rows.size, head_dim), jnp.float32)
  peak = jnp.full((rows.size,), -1e30, jnp.float32)
  total = jnp.zeros(rows.size, jnp.float32)
  # A program behind the end of its sequence has nothing to do.
  acc, peak, total = lax.cond(
      first < end, lambda: attend(acc, peak, total), lambda: (acc, peak, total)
  )
  _store(out_ref, (rows, slice(None)), acc, layout=layout, vec=vec)
  _store(peak_ref, rows, peak, layout=row_layout)
  _store(total_ref, rows, total, layout=row_layout)


def run(q, k, v, table, lengths, *, parts=2, pages_per_step=4, num_warps=4, num_stages=2):
  """q: (sequences, groups, heads, head_dim); k, v: (groups, pages, page, head_dim); table: (sequences, pages)."""
  sequences, groups, heads, head_dim = q.shape
  _, num_pages, page, _ = k.shape
  per_part = table.shape[1] // parts
  if table.shape[1] % parts or per_part % pages_per_step:
    raise ValueError("the pages of a sequence must divide into parts, and these into steps")

  def one(q, table, length):
    pages = pl.BlockSpec((None, num_pages, page, head_dim), lambda g, i: (g, 0, 0, 0))
    statistics = pl.BlockSpec((None, None, heads), lambda g, i: (i, g, 0))

    tile = _WgmmaRows([heads], [pages_per_step * page, head_dim], padded=True)
    ring_blocks = [((pages_per_step * page, head_dim), k.dtype), ((pages_per_step * page, head_dim), v.dtype)]
    stages = _fitting_stages(num_stages, tile, [], ring_blocks)
    scratch_types = (
        _PagedRing.scratch(stages, tile, _swizzle(k.dtype.itemsize, 64, head_dim, pages_per_step * page), *ring_blocks, pages=[pages_per_step, pages_per_step]),
        tile.scratch(),
    )

    def decode_kernel_warpgroups(*refs):
      """The last warpgroup copies operand tiles ahead, the others compute."""
      *refs, ring, scratch = refs
      program = (lax.axis_index("i"), lax.axis_size("j") - 1 - lax.axis_index("j"))
      specs = [
          pl.BlockSpec((None, heads, head_dim), lambda g, i: (g, 0, 0)),
          pages,
          pages,
          pl.BlockSpec((None, per_part), lambda g, i: (i, 0)),
          pl.BlockSpec((1,), lambda g, i: (0,)),
          pl.BlockSpec((None, None, heads, head_dim), lambda g, i: (i, g, 0, 0)),
          statistics,
          statistics,
      ]
      refs = _block_views(refs, specs, program)
      keywords = dict(
          program=program, ring=_PagedRing(*ring), pages_per_step=pages_per_step,
          scale=head_dim ** (-0.5)
      )
      _specialize(
          tile.warpgroups,
          lambda: decode_kernel_loads(*refs, **keywords),
          lambda: decode_kernel(*refs, part=tile.part(scratch), **keywords),
      )

    return plgpu.kernel(
        decode_kernel_warpgroups,
        grid=(parts, groups),
        grid_names=("j", "i"),
        out_type=(
            jax.ShapeDtypeStruct((parts, groups, heads, head_dim), jnp.float32),
            jax.ShapeDtypeStruct((parts, groups, heads), jnp.float32),
            jax.ShapeDtypeStruct((parts, groups, heads), jnp.float32),
        ),
        compiler_params=plgpu.CompilerParams(reduction_scratch_bytes=0),
        kernel_name="decode",
        num_threads=tile.warpgroups + 1,
        thread_name="wg",
        scratch_types=scratch_types,
    )(q, k, v, table, length)

  out, peak, total = jax.vmap(one)(q, table.reshape(sequences, parts, per_part), lengths[:, None])
  weight = jnp.exp2(peak - jnp.max(peak, axis=1, keepdims=True))
  out = jnp.sum(out * weight[..., None], axis=1) / jnp.sum(total * weight, axis=1)[..., None]
  return out.astype(q.dtype)
