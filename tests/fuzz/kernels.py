"""Generates small Triton-backend kernels as source text, with inputs.

``kernel(pick)`` builds a module from choices: ``pick(options)`` takes one of a list, so that hypothesis
can draw and shrink them and a seeded ``random.Random`` can make thousands.  A kernel has

* a tile: 1-D, or 2-D by rows, or 2-D in both directions;
* inputs of several dtypes, read through block specs, ``pl.ds`` or index vectors, with masks against the
  ends of the array, inside it, or none, and ``other=`` of several values; a row factor or a column factor;
* a body of elementwise operations, row and column reductions, and their results broadcast back;
* optionally a loop over column blocks with one or two accumulators, then a second pass over the row.

Programs never write the same element, and no element is read outside of its array: what the original
computes is defined.  Values stay of magnitude 1, so that errors compare.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

Pick = Callable[[Sequence[Any]], Any]

HEAD = """\
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu
"""
FLOATS = ("float32", "float32", "float16", "bfloat16")
FUNCTIONS = (
    "jnp.exp(-jnp.abs({x}))", "jnp.abs({x})", "-{x}", "jnp.sqrt(jnp.abs({x}))", "1 / jnp.sqrt(jnp.abs({x}) + 1)",
    "jnp.log(jnp.abs({x}) + 1)", "jnp.tanh({x})", "jax.nn.sigmoid({x})", "jnp.sin({x})", "jnp.cos({x})", "jnp.square({x})",
    "{x} * 0.5 + 0.25", "jnp.minimum({x}, 0.75)", "jnp.where({x} > 0, {x}, 0.125)", "jnp.floor({x})", "lax.rsqrt({x} * {x} + 1)",
    "jnp.where(({x} > -1) & ({x} < 1), {x}, -{x})", "jnp.clip({x}, -1, 1)", "jnp.exp2({x})", "jax.nn.silu({x})", "jax.nn.relu({x})",
)
PAIRS = (
    "{x} + {y}", "{x} - {y}", "{x} * {y}", "{x} / (jnp.abs({y}) + 1)", "jnp.maximum({x}, {y})", "jnp.minimum({x}, {y})",
    "jnp.where({x} > {y}, {x}, {y} * 0.5)", "jnp.where({x} <= {y}, {y}, 0.0)",
)
INTEGER_FUNCTIONS = (
    "{x} + 3", "{x} * 5", "-{x}", "jnp.abs({x})", "{x} & 7", "{x} ^ 5", "{x} >> 1", "{x} << 2", "jnp.where({x} % 2 == 0, {x}, -{x})",
    "{x} // 3", "jnp.maximum({x}, 0)",
)
INTEGER_PAIRS = ("{x} + {y}", "{x} - {y}", "{x} * {y}", "{x} | {y}", "jnp.minimum({x}, {y})", "jnp.where({x} < {y}, {x}, {y})")


@dataclasses.dataclass(frozen=True)
class Kernel:
    """``source``: the module, with ``run(*arrays)`` and ``example_inputs()``. ``tolerance``: relative norm error."""

    source: str
    tolerance: float


def kernel(pick: Pick) -> Kernel:
    """One kernel, made of the choices that ``pick`` takes."""
    return pick((_vector, _rows, _rows, _tiles, _loop))(pick)


def _body(pick: Pick, names: list[str], count: int, integers: bool = False, reduced: Callable | None = None) -> list[str]:
    """``count`` statements over the tile variables in ``names``, which grows by what they assign."""
    functions, pairs = (INTEGER_FUNCTIONS, INTEGER_PAIRS) if integers else (FUNCTIONS, PAIRS)
    lines = []
    for number in range(count):
        kind = pick(("function", "pair", "pair", "reduction") if reduced is not None else ("function", "pair"))
        x, y = pick(names), pick(names)
        if kind == "function":
            text = pick(functions).format(x=x, y=y)
        elif kind == "pair":
            text = pick(pairs).format(x=x, y=y)
        else:
            text = reduced(x, y)
        name = f"t{number}"
        lines.append(f"{name} = {text}")
        names.append(name)
    return lines


def _inputs(shapes_and_dtypes: Sequence[tuple[str, str]]) -> str:
    """``example_inputs``: normal numbers, or integers from -50 to 49."""
    lines = ["", "", "def example_inputs():", "    random = np.random.default_rng(7)"]
    made = []
    for shape, dtype in shapes_and_dtypes:
        if dtype == "int32":
            made.append(f"jnp.asarray(random.integers(-50, 50, {shape}), jnp.int32)")
        else:
            made.append(f"jnp.asarray(random.standard_normal({shape}), jnp.{dtype})")
    return "\n".join([*lines, "    return (", *(f"        {m}," for m in made), "    )", ""])


def _tolerance(*dtypes: str) -> float:
    return max({"float32": 2e-5, "int32": 0.0, "float16": 4e-3, "bfloat16": 3e-2}[d] for d in dtypes)


def _module(kernel_lines: list[str], run_lines: list[str], inputs: str) -> str:
    return "\n".join([HEAD, "", *kernel_lines, "", "", *run_lines]) + "\n" + inputs


def _upcast(pick: Pick, text: str, dtype: str) -> str:
    """A load; 16-bit values are mostly computed with in float32, as kernels do."""
    if dtype in ("float16", "bfloat16") and pick((True, True, False)):
        return f"{text}.astype(jnp.float32)"
    return text


def _vector(pick: Pick) -> Kernel:
    """A vector in blocks, the last of which may pass its end."""
    integers = pick((False, False, False, True))
    dtype = "int32" if integers else pick(FLOATS)
    out_dtype = "int32" if integers else pick(FLOATS)
    block = pick((32, 64, 128, 256, 512, 1024))
    ragged = pick((True, True, False))
    size = pick((1, 7, 100, 513, 1000, 1537)) if ragged else block * pick((1, 2, 3))
    count = pick((1, 2))
    names = ["x", "y"][:count]
    lines = [f"def kernel({', '.join(f'{n}_ref' for n in names)}, o_ref):", "    i = pl.program_id(0)"]
    if ragged:
        lines += [f"    index = i * {block} + jnp.arange({block})", f"    inside = index < {size}" if pick((True, False)) else "    inside = index < x_ref.shape[0]"]
    for n in names:
        if ragged:
            other = pick(("", ", other=0" if integers else ", other=0.5", ", other=1"))
            load = f"plgpu.load({n}_ref.at[index], mask=inside{other})"
        else:
            load = f"{n}_ref[pl.ds(i * {block}, {block})]"
        lines.append(f"    {n} = {_upcast(pick, load, dtype)}")
    values = list(names)
    lines += [f"    {line}" for line in _body(pick, values, pick((1, 2, 3, 5)), integers)]
    value = f"{values[-1]}.astype(o_ref.dtype)"
    if ragged:
        second = pick((False, False, True)) and size > 8
        mask = "inside & (index >= 3)" if second else "inside"
        lines.append(f"    plgpu.store(o_ref.at[index], {value}, mask={mask})")
        if second:  # what the mask leaves out must be defined
            lines.append(f"    plgpu.store(o_ref.at[index], {value}, mask=index < 3)")
    else:
        lines.append(f"    o_ref[pl.ds(i * {block}, {block})] = {value}")
    run = _run(names, f"(pl.cdiv({size}, {block}),)", f"({size},)", out_dtype, pick)
    return Kernel(_module(lines, run, _inputs([(f"({size},)", dtype)] * count)), _tolerance(dtype, out_dtype))


def _run(names: Sequence[str], grid: str, shape: str, dtype: str, pick: Pick, specs: str = "") -> list[str]:
    arguments = ", ".join(names)
    return [
        f"def run({arguments}):",
        "    return pl.pallas_call(",
        f"        kernel, grid={grid}, out_shape=jax.ShapeDtypeStruct({shape}, jnp.{dtype}),",
        *([f"        {specs}"] if specs else []),
        f"        compiler_params=plgpu.CompilerParams(num_warps={pick((1, 2, 4, 8))}),",
        f"    )({arguments})",
    ]


def _row_reductions(pick: Pick, mask: str) -> Callable[[str, str], str]:
    """Makes of two tiles a third through a reduction along rows, masked where the tile passes the end."""

    def reduced(x: str, y: str) -> str:
        operation, fill = pick((("max", "-jnp.inf"), ("min", "jnp.inf"), ("sum", "0.0"), ("mean", "0.0")))
        inner = f"jnp.where({mask}, {x}, {fill})" if mask else x
        spelled = pick((f"jnp.{operation}({inner}, axis=1, keepdims=True)", f"jnp.{operation}({inner}, axis=1)[:, None]", f"({inner}).{operation}(axis=-1)[:, None]"))
        return pick(("{y} - {r}", "{y} * {r}", "{y} + {r}", "jnp.maximum({y}, {r})")).format(y=y, r=spelled)

    return reduced


def _rows(pick: Pick) -> Kernel:
    """Some rows per program, each as a whole; the tile may be longer than the row."""
    dtype, out_dtype = pick(FLOATS), pick(FLOATS)
    block_m, block_n = pick(((1, 128), (1, 1024), (2, 256), (4, 64), (8, 32), (8, 256), (16, 64), (32, 128)))
    width = pick((block_n, block_n, block_n - 3, block_n // 2 + 1))
    rows = block_m * pick((1, 2, 3))
    masked = width != block_n
    factor = pick(("", "", "row", "column"))
    names = ["x"] + (["w"] if factor else [])
    lines = [f"def kernel({', '.join(f'{n}_ref' for n in names)}, o_ref):"]
    if masked:
        lines += [f"    columns = jnp.arange({block_n})", f"    inside = (columns < {width})[None, :]" if pick((True, False)) else "    inside = columns[None, :] < x_ref.shape[1]"]
        other = pick((", other=0.0", ", other=0.0", ", other=-1.5"))
        mask = f"inside & (jnp.arange({block_m}) < {block_m})[:, None]" if block_m > 1 and pick((False, False, True)) else f"jnp.broadcast_to(inside, ({block_m}, {block_n}))"
        lines.append(f"    mask = {mask}")
        load = f"plgpu.load(x_ref.at[:, pl.ds(0, {block_n})], mask=mask{other})"
    else:
        load = "x_ref[...]" if pick((True, False)) else "x_ref[:, :]"
    lines.append(f"    x = {_upcast(pick, load, dtype)}")
    shapes = [(f"({rows}, {width})", dtype)]
    specs = [f"pl.BlockSpec(({block_m}, {width}), lambda i: (i, 0))"]
    values = ["x"]
    if factor == "row":
        lines.append("    w = w_ref[...][:, None]")
        shapes.append((f"({rows},)", "float32"))
        specs.append(f"pl.BlockSpec(({block_m},), lambda i: (i,))")
        values.append("(x * w)")
    elif factor == "column":
        wanted = f"plgpu.load(w_ref.at[pl.ds(0, {block_n})], mask=columns < {width}, other=1.0)" if masked else "w_ref[...]"
        lines.append(f"    w = {wanted}[None, :]")
        shapes.append((f"({width},)", "float32"))
        specs.append(f"pl.BlockSpec(({width},), lambda i: (0,))")
        values.append("(x + w)")
    lines += [f"    {line}" for line in _body(pick, values, pick((1, 2, 3, 4)), False, _row_reductions(pick, "mask" if masked else ""))]
    value = f"{values[-1]}.astype(o_ref.dtype)"
    lines.append(f"    plgpu.store(o_ref.at[:, pl.ds(0, {block_n})], {value}, mask=mask)" if masked else f"    o_ref[...] = {value}")
    text = f"in_specs=[{', '.join(specs)}], out_specs=pl.BlockSpec(({block_m}, {width}), lambda i: (i, 0)),"
    run = _run(names, f"({rows // block_m},)", f"({rows}, {width})", out_dtype, pick, text)
    return Kernel(_module(lines, run, _inputs(shapes)), _tolerance(dtype, out_dtype))


def _tiles(pick: Pick) -> Kernel:
    """Tiles of a matrix in both directions, ragged or not; elementwise, or a column sum per tile row."""
    dtype, out_dtype = pick(FLOATS), pick(FLOATS)
    block_m, block_n = pick(((8, 32), (16, 16), (16, 64), (32, 32), (4, 128)))
    ragged = pick((True, False))
    rows, columns = (pick((5, 33, 40)), pick((17, 64, 100))) if ragged else (block_m * pick((1, 2)), block_n * pick((1, 2)))
    sums = pick((False, False, True))
    lines = [
        "def kernel(x_ref, o_ref):",
        "    i, j = pl.program_id(0), pl.program_id(1)",
    ]
    if ragged or sums:
        lines.append(f"    columns = j * {block_n} + jnp.arange({block_n})")
    if ragged:
        lines.append(f"    rows = i * {block_m} + jnp.arange({block_m})")
        lines.append(f"    inside = (rows < {rows})[:, None] & (columns < {columns})[None, :]")
        load = "plgpu.load(x_ref.at[rows[:, None], columns[None, :]], mask=inside, other=0.0)"
    else:
        load = f"x_ref[pl.ds(i * {block_m}, {block_m}), pl.ds(j * {block_n}, {block_n})]"
    lines.append(f"    x = {_upcast(pick, load, dtype)}")
    values = ["x"]
    lines += [f"    {line}" for line in _body(pick, values, pick((1, 2, 3)))]
    grid = f"({-(-rows // block_m)}, {-(-columns // block_n)})"
    if sums:
        last = f"jnp.where(inside, {values[-1]}, 0)" if ragged else values[-1]
        lines.append(f"    total = jnp.sum({last}.astype(jnp.float32), axis=0).astype(o_ref.dtype)")
        lines.append(f"    plgpu.store(o_ref.at[i, columns], total, mask=columns < {columns})")
        shape = f"({-(-rows // block_m)}, {columns})"
    else:
        value = f"{values[-1]}.astype(o_ref.dtype)"
        store = "plgpu.store(o_ref.at[rows[:, None], columns[None, :]], {}, mask=inside)" if ragged else (
            f"o_ref[pl.ds(i * {block_m}, {block_m}), pl.ds(j * {block_n}, {block_n})] = {{}}")
        lines.append("    " + store.format(value))
        shape = f"({rows}, {columns})"
    run = _run(["x"], grid, shape, out_dtype, pick)
    return Kernel(_module(lines, run, _inputs([(f"({rows}, {columns})", dtype)])), _tolerance(dtype, out_dtype))


def _loop(pick: Pick) -> Kernel:
    """Rows in column blocks: one or two accumulators over a loop, then a pass that uses them, or only their values."""
    dtype, out_dtype = pick(FLOATS), pick(FLOATS)
    block = pick((32, 64, 128, 256))
    ragged = pick((True, False))
    width = block * pick((1, 2, 3)) + (pick((1, 5, 17)) if ragged else 0)
    rows = pick((1, 3, 4))
    steps = pick(("static", "cdiv"))
    two, second = pick((False, True)), pick((False, True))
    bound = f"pl.cdiv(x_ref.shape[1], {block})" if steps == "cdiv" else f"{-(-width // block)}"
    mask = f", mask=columns < {width}, other=0.0" if ragged else ""
    tile = _upcast(pick, f"plgpu.load(x_ref.at[row, columns]{mask})" if ragged else f"x_ref[row, pl.ds(t * {block}, {block})]", dtype)
    index = [f"columns = t * {block} + jnp.arange({block})"] if ragged else []
    values = ["x"]
    inner = _body(pick, values, pick((0, 1, 2)))
    term = values[-1] if not ragged else f"jnp.where(columns < {width}, {values[-1]}, 0.0)"
    lines = ["def kernel(x_ref, o_ref):", "    row = pl.program_id(0)", ""]
    lines.append(f"    def step(t, {'carry' if two else 'total'}):")
    if two:
        lines.append("        total, largest = carry")
    lines += [f"        {line}" for line in (*index, f"x = {tile}", *inner)]
    updated = f"total + {term}"
    if two:
        lines.append(f"        return {updated}, jnp.maximum(largest, jnp.abs({term}))")
    else:
        lines.append(f"        return {updated}")
    zeros = f"jnp.zeros(({block},), jnp.float32)"
    lines += ["", f"    {'total, largest' if two else 'total'} = lax.fori_loop(0, {bound}, step, {f'({zeros}, {zeros})' if two else zeros})"]
    lines.append(f"    mean = jnp.sum(total) / {width}")
    scale = "1 / (jnp.max(largest) + 1)" if two else "1 / (jnp.abs(mean) + 1)"
    lines.append(f"    scale = {scale}")
    if second:
        store = f"plgpu.store(o_ref.at[row, columns], y, mask=columns < {width})" if ragged else f"o_ref[row, pl.ds(t * {block}, {block})] = y"
        lines += ["", "    def write(t, _):"]
        lines += [f"        {line}" for line in (*index, f"x = {tile}", "y = ((x - mean) * scale).astype(o_ref.dtype)", store, "return _")]
        lines += ["", f"    lax.fori_loop(0, {bound}, write, None)"]
        shape = f"({rows}, {width})"
    else:
        lines.append("    o_ref[row] = (mean * scale).astype(o_ref.dtype)")
        shape = f"({rows},)"
    run = _run(["x"], f"({rows},)", shape, out_dtype, pick)
    return Kernel(_module(lines, run, _inputs([(f"({rows}, {width})", dtype)])), _tolerance(dtype, out_dtype))
