"""Support code: inline assembly on the elements of a tile, as the Triton backend applies it."""

import jax.numpy as jnp
import numpy as np
from jax.experimental.mosaic.gpu import fragmented_array as mgpu_arrays
from jax.experimental.mosaic.gpu import utils as mgpu_utils
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import llvm, vector


def _asm_words(element, pack):
  """(type, number of elements) of each word that `pack` elements of a type take in the assembly."""
  bits = mgpu_utils.bitwidth(element)
  if bits < 16 and bits * pack % 32 or bits > 32:
    raise ValueError(f"{pack} elements of {element} do not fill registers of the assembly")
  each = max(1, min(pack, 32 // bits))
  word = element if bits == 32 else ir.IntegerType.get_signless(bits * each)
  return [(word, each)] * (pack // each)


def _inline_asm(asm, args, constraints, pack, result_shape_dtypes, layout=None):
  """elementwise_inline_asm on tiles in `layout`: one instance of `asm` for `pack` elements of a thread,
  which are packed into words of 32 bits (one element narrower than that: of its own size)."""
  results = [plgpu.ShapeDtypeStruct(r.shape, r.dtype, layout) for r in result_shape_dtypes]

  @plgpu.inline_mgpu(arg_types=(layout,) * len(args), return_type=results)
  def instances(ctx, *tiles):
    del ctx
    elements = [
        [vector.extract(r, [], [i]) for r in t.registers.flat for i in range(ir.VectorType(r.type).shape[0])]
        for t in tiles
    ]
    kinds = [mgpu_utils.dtype_to_ir_type(r.dtype) for r in results]
    words = [w for kind in kinds for w in _asm_words(kind, pack)]
    types = [word for word, _ in words]
    count = len(elements[0])
    found = [[] for _ in kinds]
    for start in range(0, count, pack):
      operands = []
      for x in elements:
        at = start
        for word, n in _asm_words(x[0].type, pack):
          piece = [x[min(i, count - 1)] for i in range(at, at + n)]
          piece = vector.from_elements(ir.VectorType.get((n,), x[0].type), piece)
          operands.append(vector.extract(vector.bitcast(ir.VectorType.get((1,), word), piece), [], [0]))
          at += n
      one = len(types) == 1
      result = types[0] if one else ir.Type.parse(f"!llvm.struct<({', '.join(map(str, types))})>")
      out = llvm.inline_asm(result, operands, asm, constraints, has_side_effects=False)
      out = [out] if one else [llvm.extractvalue(t, out, [i]) for i, t in enumerate(types)]
      for kind, to in zip(kinds, found):
        for word, n in _asm_words(kind, pack):
          piece = vector.from_elements(ir.VectorType.get((1,), word), [out.pop(0)])
          piece = vector.bitcast(ir.VectorType.get((n,), kind), piece)
          to += [vector.extract(piece, [], [i]) for i in range(n)]
    made = []
    for r, kind, values in zip(results, kinds, found):
      registers = np.empty_like(tiles[0].registers)
      for k, register in np.ndenumerate(tiles[0].registers):
        n = ir.VectorType(register.type).shape[0]
        registers[k] = vector.from_elements(ir.VectorType.get((n,), kind), values[:n])
        values = values[n:]
      made.append(mgpu_arrays.FragmentedArray(
          _registers=registers, _layout=tiles[0].layout, _is_signed=mgpu_utils.is_signed(r.dtype)
      ))
    return made

  return instances(*(jnp.asarray(x) for x in args))
