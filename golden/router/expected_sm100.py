"""Routes each token to its best expert: the index of the largest logit, and the softmax there."""

import math
import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jax import lax
from jax.experimental.mosaic.gpu import fragmented_array as mgpu_arrays
from jax.experimental.mosaic.gpu import utils as mgpu_utils
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import arith
from jaxlib.mlir.dialects import llvm
from jaxlib.mlir.dialects import vector
import numpy as np


# Support code for Mosaic GPU, emitted by pallas-port.
def _blocked(shape, vec=1):
  """Register layout of a tile for one warpgroup: `vec` neighbours per thread, lanes along columns,
  warps along rows first, so that a row reduction needs as few warps as possible."""
  if len(shape) > 2 or any(n & (n - 1) or not n for n in shape):
    raise ValueError(f"a tile of shape {shape} needs rank 1 or 2 and power-of-two extents")
  if math.prod(shape) > 32768:
    raise ValueError(f"a tile of shape {shape} does not fit the registers of one warpgroup: 16384 elements do")
  if shape == (1,):
    return None  # a number, which every thread holds
  *rows, cols = shape
  rows = math.prod(rows)
  vec = min(vec, cols, max(1, rows * cols // 128))
  lane_cols = min(32, cols // vec)
  lane_rows = min(32 // lane_cols, rows)
  warp_rows = min(4, rows // lane_rows)
  warp_cols = min(4 // warp_rows, cols // (lane_cols * vec))
  tiles = [(warp_rows * lane_rows, warp_cols * lane_cols * vec), (lane_rows, lane_cols * vec), (vec,)]
  warp_dims, lane_dims = [-5, -4], [-3, -2]
  if len(shape) == 1:
    tiles = [t[-1:] for t in tiles]
    warp_dims, lane_dims = [-3], [-2]
  if (copies := 4 // (warp_rows * warp_cols)) > 1:
    warp_dims.append(plgpu.Replicated(copies))
  if (copies := 32 // (lane_rows * lane_cols)) > 1:
    lane_dims.append(plgpu.Replicated(copies))
  tiled = mgpu_arrays.TiledLayout(
      plgpu.Tiling(tuple(tiles)), tuple(warp_dims), tuple(lane_dims), -1, _check_canonical=False
  ).canonicalize()
  return plgpu.Layout.TILED(
      tiled.tiling, warp_dims=tiled.warp_dims, lane_dims=tiled.lane_dims, vector_dim=tiled.vector_dim
  )


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


def _expanded(y, x, axis):
  """`y`, a reduction of `x` over `axis`, broadcast to the shape of `x`."""
  return lax.broadcast_in_dim(y, x.shape, [d for d in range(x.ndim) if d != axis % x.ndim])


def _first_index(best, x, axis):
  """Index along `axis` of the first nan, or else of the first element that equals `best`."""
  axis = 0 if axis is None else axis % x.ndim
  n = x.shape[axis]
  index = lax.broadcasted_iota(jnp.int32, x.shape, axis)
  found = jnp.where(x != x, index - n, jnp.where(x == _expanded(best, x, axis), index, n)).min(axis=axis)
  return jnp.where(found < 0, found + n, found)


def _at_32_bits(x):
  """`x` in a dtype of 32 bits, in the same order."""
  dtype = jnp.float32 if jnp.issubdtype(x.dtype, jnp.floating) else jnp.int32
  return x if x.dtype == jnp.uint32 else x.astype(dtype)


def _argmax(x, axis=None, index_dtype=jnp.int32):
  """Index of the largest element: the first of several, the first nan if there is one."""
  x = _at_32_bits(x)
  return _first_index(x.max(axis=axis), x, axis).astype(index_dtype)


def route(logits_ref, expert_ref, gate_ref):
    vec = _vec((logits_ref,))
    layout = _blocked(logits_ref.shape, vec)
    row_layout = layout.reduce(1)
    logits = _load(logits_ref, ..., layout=layout, vec=vec)
    _store(
        expert_ref, ..., _argmax(logits, axis=1).astype(jnp.int32),
        layout=row_layout
    )
    best = jnp.max(logits, axis=1)
    _store(
        gate_ref, ..., 1.0 / jnp.sum(jnp.exp(logits - best[:, None]), axis=1),
        layout=row_layout
    )


def run(logits, *, tokens=64):
    n, experts = logits.shape

    def route_blocks(logits_ref, expert_ref, gate_ref):
        """Views of the blocks that one program works on."""
        i = lax.axis_index("i")
        route(
            logits_ref.at[pl.ds(i * tokens, tokens), :],
            expert_ref.at[pl.ds(i * tokens, tokens)],
            gate_ref.at[pl.ds(i * tokens, tokens)],
        )

    return plgpu.kernel(
        route_blocks,
        grid=(n // tokens,),
        grid_names=("i",),
        out_type=(jax.ShapeDtypeStruct((n,), jnp.int32), jax.ShapeDtypeStruct((n,), jnp.float32)),
    )(logits)
