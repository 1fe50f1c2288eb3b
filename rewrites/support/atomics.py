"""Support code: atomic operations on GMEM, on tiles with any index and mask, and on single elements.

Mosaic GPU's own atomics take no index vectors, masks or replicated layouts, return nothing, and
compare int32 as unsigned.  Here each element is one predicated PTX `red` or `atom`; where several
threads hold the same element, one of them acts.
"""

import math

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.mosaic.gpu import fragmented_array as mgpu_arrays
from jax.experimental.mosaic.gpu import utils as mgpu_utils
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import arith, llvm, vector

from .gmem import _blocked, _element, _first, _offsets, _pieces, _spread, _window


def _atom(op, dtype, pointer, values, guard, fetch, order):
  """One atomic operation of one thread where `guard` holds; the value before it if `fetch`.

  Floating-point max and min are those of integers, as in Triton: NaN is not treated apart.
  """
  name = jnp.dtype(dtype).name
  if name not in ("float32", "int32", "uint32") and (op, name[-7:]) not in (("add", "float16"), ("add", "bfloat16")):
    raise ValueError(f"no atomic {op} of {name}: use int32, uint32 or float32")
  word = ir.IntegerType.get_signless(mgpu_utils.bitwidth(values[0].type))
  values = [arith.bitcast(word, v) if v.type != word else v for v in values]
  signed = "s32" if name == "int32" else "u32"
  kind = {"float32": "f32", "float16": "noftz.f16", "bfloat16": "noftz.bf16"}.get(name, "u32")
  form = {"add": f"add.{kind}", "max": f"max.{signed}", "min": f"min.{signed}", "xchg": "exch.b32"}
  guards = [(guard, form.get(op, f"{op}.b32"))]
  if name == "float32" and op in ("max", "min"):  # negative numbers are ordered the other way
    positive = arith.cmpi(arith.CmpIPredicate.sge, values[0], mgpu_utils.c(0, word))
    other = {"max": "min", "min": "max"}[op]
    negative = arith.xori(positive, arith.constant(positive.type, 1))
    guards = [(arith.andi(guard, positive), f"{op}.s32"), (arith.andi(guard, negative), f"{other}.u32")]
  r = "r" if word.width == 32 else "h"
  n = len(values)
  if fetch or op in ("xchg", "cas"):  # which `red` has not
    operands = ", ".join(f"${i + 2}" for i in range(n))
    steps = " ".join(
        f"@${n + 2 + i} atom.{order}.gpu.global.{form} $0, [$1], {operands};" for i, (_, form) in enumerate(guards)
    )
    constraints = ",".join([f"=&{r}", "l", *[r] * n, *["b"] * len(guards)])
    code, result = f"mov.b{word.width} $0, 0; {steps}", word
  else:
    steps = [f"@${2 + i} red.{order}.gpu.global.{form} [$0], $1;" for i, (_, form) in enumerate(guards)]
    constraints = ",".join(["l", r, *["b"] * len(guards)])
    code, result = " ".join(steps), ir.Type.parse("!llvm.void")
  return llvm.inline_asm(
      result, [pointer, *values, *[g for g, _ in guards]], code, constraints, has_side_effects=True
  )


def _one_of_copies(layout):
  """True in one of the threads that hold the same element of a tiled layout."""
  i32 = ir.IntegerType.get_signless(32)
  thread = arith.remui(mgpu_utils.thread_idx(), mgpu_utils.c(128, i32))
  acts = arith.constant(ir.IntegerType.get_signless(1), 1)
  stride = 1
  for d in (*reversed(layout.lane_dims), *reversed(layout.warp_dims)):
    size = d.times if isinstance(d, plgpu.Replicated) else layout.tiled_tiling_shape[d]
    if isinstance(d, plgpu.Replicated):
      copy = arith.remui(arith.divui(thread, mgpu_utils.c(stride, i32)), mgpu_utils.c(size, i32))
      acts = arith.andi(acts, arith.cmpi(arith.CmpIPredicate.eq, copy, mgpu_utils.c(0, i32)))
    stride *= size
  return acts


def _atomic(op, ref, index, value, *, layout, mask=None, fetch=False, order="relaxed"):
  """Atomically combines `value` into `ref[index]` where `mask` is true; the values before that if `fetch`.

  op: "add", "max", "min", "and", "or", "xor" or "xchg".  order: "relaxed", or "acq_rel" where the
  kernel waits for what other programs wrote.
  """
  if hasattr(layout, "axes") and not fetch:
    return _atomic_relaid(op, ref, index, value, layout, mask, order)
  base, starts, tile, shape = _window(ref, index)
  value = plgpu.layout_cast(value.astype(base.dtype), layout)
  varying = [d for d, t in enumerate(tile) if t is not None]
  masks = () if mask is None else (_spread(mask, shape, range(len(shape) - mask.ndim, len(shape))),)
  rank = range(len(shape))
  places = sum(lax.broadcasted_iota(jnp.int32, shape, d) * math.prod(shape[d + 1 :]) for d in rank) if fetch else None
  splat = plgpu.Layout.WG_SPLAT

  def act(scratch=None):
    kept = (scratch,) if fetch else ()

    @plgpu.inline_mgpu(
        arg_types=(
            plgpu.RefType(),
            *[plgpu.RefType() for _ in kept],
            *[splat] * len(starts),
            *[layout] * (len(varying) + len(masks) + 1 + len(kept)),
        ),
        return_type=plgpu.ShapeDtypeStruct(shape, base.dtype, layout) if fetch else (),
    )
    def atomic(ctx, base_ref, *args):
      del ctx
      args = list(args)
      old = args.pop(0) if fetch else None
      at = args.pop() if fetch else None
      first, args = args[: len(starts)], args[len(starts) :]
      values = args.pop()
      predicate = args.pop() if masks else None
      strides, _ = ir.MemRefType(base_ref.type).get_strides_and_offset()
      element = ir.MemRefType(base_ref.type).element_type
      pointer = _element(base_ref, strides, first)
      offsets = _offsets(base.shape, shape, layout, dict(zip(varying, args)), strides)
      acts = _one_of_copies(offsets.layout)
      if order != "relaxed":
        mgpu_utils.warpgroup_barrier()
      for k, register in np.ndenumerate(offsets.registers):
        for i, offset in enumerate(_pieces(register, 1)):
          guard = acts
          if masks:
            guard = arith.andi(guard, vector.extract(predicate.registers[k], [], [i]))
          address = mgpu_utils.getelementptr(pointer, [_first(offset)], element)
          new = vector.extract(values.registers[k], [], [i])
          got = _atom(op, base.dtype, address, [new], guard, fetch, order)
          if fetch:
            place = vector.extract(at.registers[k], [], [i])
            _share(mgpu_utils.getelementptr(mgpu_utils.memref_ptr(old), [place], element), got, guard)
      mgpu_utils.warpgroup_barrier()
      return _gather_shared(old, at, values.layout, element, mgpu_utils.is_signed(base.dtype)) if fetch else None

    firsts, moving = [jnp.asarray(s, jnp.int32) for s in starts], [tile[d] for d in varying]
    return atomic(base, *kept, *firsts, *moving, *masks, value, *([places] if fetch else []))

  return pl.run_scoped(act, plgpu.SMEM((math.prod(shape),), base.dtype)) if fetch else act()


def _share(place, value, guard):
  """Stores a register to SMEM where `guard` holds."""
  bits = mgpu_utils.bitwidth(value.type)
  llvm.inline_asm(
      ir.Type.parse("!llvm.void"), [place, value, guard], f"@$2 st.shared.b{bits} [$0], $1;",
      f"r,{'r' if bits == 32 else 'h'},b", has_side_effects=True,
  )


def _gather_shared(scratch, places, layout, element, signed):
  """The elements of a flat SMEM array at `places`, read by every thread that holds one."""
  results = np.empty_like(places.registers)
  for k, register in np.ndenumerate(places.registers):
    addresses = [
        mgpu_utils.getelementptr(mgpu_utils.memref_ptr(scratch), [_first(place)], element)
        for place in _pieces(register, 1)
    ]
    shared = [llvm.load(element, address) for address in addresses]
    results[k] = vector.from_elements(ir.VectorType.get((len(shared),), element), shared)
  mgpu_utils.warpgroup_barrier()
  return mgpu_arrays.FragmentedArray(_registers=results, _layout=layout, _is_signed=signed)


def _atomic_relaid(op, ref, index, value, held, mask, order):
  """An atomic on a row or column of a tile, in layout `held`, where several threads hold an element:
  through SMEM, so that each thread gets elements of its own and neighbours stay neighbours."""
  parts = index if isinstance(index, tuple) else (index,)
  moved = [i for i in parts if not isinstance(i, (slice, pl.Slice)) and i is not ... and jnp.ndim(i)]
  moved = [value.astype(ref.dtype), *moved, *([] if mask is None else [jnp.where(mask, jnp.ones_like(mask, jnp.int32), 0)])]
  layout = _blocked(value.shape)

  def act(*scratch):
    for shared, x in zip(scratch, moved):
      shared[...] = plgpu.layout_cast(x, held)  # index vectors have no layout of their own
    vectors = iter([plgpu.load(shared, layout=layout) for shared in scratch])
    relaid = next(vectors)
    where = tuple(next(vectors) if not isinstance(i, (slice, pl.Slice)) and i is not ... and jnp.ndim(i) else i for i in parts)
    _atomic(op, ref, where, relaid, layout=layout, mask=None if mask is None else next(vectors) != 0, order=order)

  pl.run_scoped(act, *[plgpu.SMEM(x.shape, x.dtype) for x in moved])


def _atomic_element(op, ref, index, *values, mask=True, fetch=False, order="relaxed"):
  """Atomically combines a number into the element `ref[index]`, once per program; its value before that if `fetch`.

  op: as in `_atomic`, or "cas" of an expected and a new value.
  """
  base, starts, _, _ = _window(ref, index)
  splat = plgpu.Layout.WG_SPLAT

  def act(scratch=None):
    kept = (scratch,) if fetch else ()

    @plgpu.inline_mgpu(
        arg_types=(plgpu.RefType(), *[plgpu.RefType() for _ in kept], *[splat] * (len(starts) + len(values) + 1)),
        return_type=plgpu.ShapeDtypeStruct((), base.dtype, splat) if fetch else (),
    )
    def atomic(ctx, base_ref, *args):
      del ctx
      args = list(args)
      old = args.pop(0) if fetch else None
      strides, _ = ir.MemRefType(base_ref.type).get_strides_and_offset()
      pointer = _element(base_ref, strides, args[: len(starts)])
      *new, guard = [x.registers.item() for x in args[len(starts) :]]
      guard = arith.andi(guard, mgpu_utils.single_thread_predicate(mgpu_utils.ThreadSubset.WARPGROUP))
      mgpu_utils.warpgroup_barrier()
      got = _atom(op, base.dtype, pointer, new, guard, fetch, order)
      if not fetch:
        return None
      place = mgpu_utils.memref_ptr(old)
      _share(place, got, guard)
      mgpu_utils.warpgroup_barrier()
      element = ir.MemRefType(base_ref.type).element_type
      shared = llvm.load(element, place)
      mgpu_utils.warpgroup_barrier()
      return mgpu_arrays.FragmentedArray.splat(shared, (), is_signed=mgpu_utils.is_signed(base.dtype))

    numbers = [jnp.asarray(v, base.dtype) for v in values]
    return atomic(base, *kept, *[jnp.asarray(s, jnp.int32) for s in starts], *numbers, jnp.asarray(mask, bool))

  return pl.run_scoped(act, plgpu.SMEM((1,), base.dtype)) if fetch else act()
