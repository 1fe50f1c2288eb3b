"""Every kind of grid, spec and call argument: ports lower for both targets and compute the right values."""

import ast

import jax
import numpy as np
import pytest

from .evidence import codes, computes, lowers, ported

HEAD = """\
import functools
import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

CP = plgpu.CompilerParams(num_warps=4)


def double(x_ref, o_ref):
    o_ref[...] = x_ref[...] * 2


def like(x):
    return jax.ShapeDtypeStruct(x.shape, x.dtype)

"""
X = np.linspace(-2, 3, 4 * 8 * 64, dtype=np.float32).reshape(4, 8, 64)


def call(arguments: str, operands: str = "x", before: str = "") -> str:
    lines = "".join(f"    {line}\n" for line in before.splitlines())
    return f"{HEAD}\ndef run({operands}):\n{lines}    return pl.pallas_call(double, {arguments}, out_shape=like(x), compiler_params=CP)({operands})\n"


# -- grids ------------------------------------------------------------------------------------------

ROW = "pl.BlockSpec((None, None, 64), lambda i, j: (i, j, 0))"
ROWS = f"in_specs=[{ROW}], out_specs={ROW}"
GRIDS = {
    "none": call("grid=()", before="x = x.reshape(32, 64)"),
    "missing": call("name='k'", before="x = x.reshape(32, 64)"),
    "number": call("grid=x.shape[0] * 1, in_specs=[S], out_specs=S", before="S = pl.BlockSpec((None, 8, 64), lambda i: (i, 0, 0))"),
    "list": call(f"grid=[4, 8], {ROWS}"),
    "variable": call(f"grid=grid, {ROWS}", before="grid = x.shape[:2]"),
    "under a condition": call(f"grid=grid, {ROWS}", before="grid = None\nif grid is None:\n    grid = (4, 8)"),
    "rank 3": call("grid=(4, 8, 2), in_specs=[S], out_specs=S", before="S = pl.BlockSpec((None, None, 32), lambda i, j, k: (i, j, k))"),
    "rank 4": call(
        "grid=(2, 2, 8, 2), in_specs=[S], out_specs=S",
        before="S = pl.BlockSpec((None, None, 32), lambda i, j, k, l: (2 * i + j, k, l))",
    ),
    "rank 5": call(
        "grid=(2, 2, 2, 4, 2), in_specs=[S], out_specs=S",
        before="S = pl.BlockSpec((None, None, 32), lambda a, b, c, d, e: (2 * a + b, 4 * c + d, e))",
    ),
    "grid spec": call(f"grid_spec=spec", before=f"spec = pl.GridSpec(grid=(4, 8), {ROWS})"),
}


@pytest.mark.parametrize("source", GRIDS.values(), ids=list(GRIDS))
def test_grids(source):
    assert np.array_equal(np.reshape(computes(source, X), X.shape), X * 2)
    assert "Spec(" not in ported(source)


def test_number_of_programs_that_a_parameter_holds_is_unclear():
    source = call("grid=n, in_specs=[S], out_specs=S", before="S = pl.BlockSpec((1, 8, 64), lambda i: (i, 0, 0))").replace("def run(x)", "def run(x, n)")
    assert codes(source) == {"C202"}


# -- specs ------------------------------------------------------------------------------------------

SPECS = {
    "kinds of dimensions": "pl.BlockSpec((pl.Squeezed(), pl.Blocked(8), pl.Blocked(64)), lambda i: (i, 0, 0))",
    "squeezed": "pl.BlockSpec((pl.squeezed, 8, 64), lambda i: (i, 0, 0))",
    "elements": "pl.BlockSpec((None, pl.Element(4), pl.Element(64)), lambda i, j: (i, 4 * j, 0))",
    "default index": "pl.BlockSpec((None, 8, 64), index_map=lambda i: (i, 0, 0), memory_space=pl.ANY)",
    "function": "pl.BlockSpec((None, 8, 64), rows)",
    "function of several statements": "pl.BlockSpec((None, 8, 64), rows_of_pairs)",
    "condition in the map": "pl.BlockSpec((None, 8, 64), lambda i: (i if x.shape[0] > 1 else 0, 0, 0))",
    "any position": "pl.BlockSpec((4, 64), lambda *_: (0,) * x.ndim)",
    "whole array, any rank": "pl.BlockSpec(x.shape, lambda *_: (0,) * x.ndim)",
}
MAPS = """\
def rows(i):
    return i, 0, 0
def rows_of_pairs(i):
    pair, half = i // 2, i % 2
    return 2 * pair + half, 0, 0
"""


@pytest.mark.parametrize("spec", SPECS.values(), ids=list(SPECS))
def test_specs(spec):
    grid = "(4, 2)" if "i, j" in spec else "(1,)" if "*_" in spec else "(4,)"
    flat = "\nx = x.reshape(-1, 64)[:4]" if "*_" in spec else ""
    source = call(f"grid={grid}, in_specs=[{spec}], out_specs={spec}", before=MAPS + flat)
    expected = X.reshape(-1, 64)[:4] if flat else X
    assert np.array_equal(computes(source, X), expected * 2)
    assert "BlockSpec" not in ported(source)


def test_index_map_of_several_statements_is_called_once():
    spec = "pl.BlockSpec((None, 8, 64), rows_of_pairs)"
    text = ported(call(f"grid=(4,), in_specs=[{spec}], out_specs={spec}", before=MAPS))
    assert text.count("block_0, block_1, block_2 = rows_of_pairs(i)") == 1
    assert "x_ref.at[block_0, pl.ds(block_1 * 8, 8), pl.ds(block_2 * 64, 64)]" in text


@pytest.mark.parametrize("start", [0, 3])
def test_elements_that_no_vector_may_start_at(start):
    """A window may begin at any element: accesses go element by element."""
    source = call(
        "grid=(4,), in_specs=[pl.BlockSpec((None, 8, pl.Element(32)), lambda i: (i, 0, START))], out_specs=S",
        before="S = pl.BlockSpec((None, 8, 32), lambda i: (i, 0, 0))",
    ).replace("START", str(start)).replace("out_shape=like(x)", "out_shape=jax.ShapeDtypeStruct((4, 8, 32), x.dtype)")
    assert np.array_equal(computes(source, X), X[:, :, start : start + 32] * 2)
    assert "_load(x_ref, ..., layout=layout)" in ported(source)


OPTIONAL = HEAD + """
def add(x_ref, bias_ref, o_ref):
    x = x_ref[...]
    if bias_ref is not None:
        x = x + bias_ref[...]
    o_ref[...] = x


def run(x{parameter}):
    {bias}
    tile = pl.BlockSpec((None, 8, 64), lambda i: (i, 0, 0))
    {made}
    return pl.pallas_call(
        add, grid=(4,), in_specs=in_specs, out_specs=tile, out_shape=like(x), compiler_params=CP)(x, bias)
"""
LISTS = {
    "in the list": "in_specs = [tile, None if bias is None else pl.BlockSpec((None, 8, 64), lambda i: (0, 0, 0))]",
    "the other way": "in_specs = [tile, pl.BlockSpec((None, 8, 64), lambda i: (0, 0, 0)) if bias is not None else None]",
    "inserted": """if bias is None:
        in_specs = [tile, None]
    else:
        in_specs = [tile]
        in_specs.append(pl.BlockSpec((None, 8, 64), lambda i: (0, 0, 0)))""",
    "appended": """in_specs = [tile]
    if bias is None:
        in_specs.append(None)
    else:
        in_specs.append(pl.BlockSpec((None, 8, 64), lambda i: (0, 0, 0)))""",
    "variable": """spec = None
    if bias is not None:
        spec = pl.BlockSpec((None, 8, 64), lambda i: (0, 0, 0))
    in_specs = [tile, spec]""",
}


@pytest.mark.parametrize("made", [LISTS[k] for k in LISTS if k != "inserted"], ids=[k for k in LISTS if k != "inserted"])
def test_optional_operand(made):
    source = OPTIONAL.format(parameter=", bias", bias="pass", made=made)
    bias = X[:1] + 1
    assert np.array_equal(computes(source, X, bias), X + bias[0])
    assert "bias_ref if bias is None else bias_ref.at[0, " in ported(source)
    without = OPTIONAL.format(parameter="", bias="bias = None", made=made)
    assert np.array_equal(computes(without, X), X)


def test_list_that_differs_between_branches_is_diagnosed():
    source = OPTIONAL.format(parameter=", bias", bias="pass", made=LISTS["inserted"])
    assert codes(source) == {"C202"}


def test_list_of_specs_that_is_put_together_goes():
    before = "specs = []\nspecs.append(pl.BlockSpec((None, 8, 64), lambda i: (i, 0, 0)))"
    text = ported(call("grid=(4,), in_specs=specs, out_specs=specs[0]".replace("specs[0]", "pl.BlockSpec((None, 8, 64), lambda i: (i, 0, 0))"), before=before))
    assert "specs" not in text
    ast.parse(text)


@pytest.mark.parametrize("grid_spec, reason", [
    ("pltpu.PrefetchScalarGridSpec(num_scalar_prefetch=1, grid=(4,), in_specs=[], out_specs=[])", "scalar prefetch"),
    ("make()", "not a pl.GridSpec"),
    ("pl.GridSpec(grid=(4,), scratch_shapes=[pl.ANY])", "scratch"),
])
def test_grid_specs_that_stay(grid_spec, reason):
    from .evidence import plan

    source = call(f"grid_spec={grid_spec}").replace("import functools\n", "import functools\nfrom jax.experimental.pallas import tpu as pltpu\n")
    found = [d for d in plan(source).diagnostics if d.blocks]
    assert {d.code for d in found} == {"C202"} and any(reason in d.reason for d in found)


# -- arguments of the call, transformations ------------------------------------------------------------


def test_arguments_without_a_counterpart_go():
    source = call("grid=(4,), in_specs=[S], out_specs=S, cost_estimate=pl.CostEstimate(flops=1, transcendentals=0, bytes_accessed=1), "
                  "metadata={'a': 'b'}, name='twice', debug=False, interpret=False", before="S = pl.BlockSpec((None, 8, 64), lambda i: (i, 0, 0))")
    assert np.array_equal(computes(source, X), X * 2)
    text = ported(source)
    assert "cost_estimate" not in text and "metadata" not in text and "kernel_name='twice'" in text


VMAPPED = HEAD + """
def rows(x_ref, o_ref):
    o_ref[...] = x_ref[...] * 2 + pl.program_id(0)


def run(x):
    row = pl.BlockSpec((None, 64), lambda i: (i, 0))
    call = pl.pallas_call(rows, grid=(8,), in_specs=[row], out_specs=row, out_shape=jax.ShapeDtypeStruct((8, 64), x.dtype), compiler_params=CP)
    return jax.vmap(call)(x)
"""
IN_PLACE = HEAD + """
def add(x_ref, old_ref, new_ref):
    i = pl.program_id(0)
    new_ref[i, :] = old_ref[i, :] + x_ref[i, :]


def run(x, total):
    def one(x, total):
        return pl.pallas_call(
            add, grid=(8,), out_shape=jax.ShapeDtypeStruct((8, 64), x.dtype), input_output_aliases={1: 0}, compiler_params=CP)(x, total)
    return RUN
"""


def test_vmap_over_the_call():
    assert np.array_equal(computes(VMAPPED, X), X * 2 + np.arange(8, dtype=np.float32)[None, :, None])


def test_vmap_over_a_call_that_aliases():
    assert np.array_equal(computes(IN_PLACE.replace("RUN", "jax.vmap(one)(x, total)"), X, X + 1), (X + 1) + X)


def test_call_that_aliases():
    assert np.array_equal(computes(IN_PLACE.replace("RUN", "one(x[0], total[0])"), X, X + 1), (X[0] + 1) + X[0])


OPTIONAL_OPERAND = HEAD + """
def update(x_ref, scale_ref, total_ref, count_ref, o_ref, new_ref):
    o_ref[...] = x_ref[...] + 1
    new = total_ref[...] + x_ref[...]
    if scale_ref is not None:
        new = new * scale_ref[...]
    new_ref[...] = new


def run(x, total, SCALE):
    n = x.shape[1]
    block = pl.BlockSpec((None, n), lambda i: (i, 0))
    scale_spec = None if scale is None else block
    scaled = scale is not None
    first = POSITION
    shapes = [like(x), like(total)]
    return pl.pallas_call(
        update, grid=(8,), in_specs=[block, scale_spec, block, block], out_specs=[block, block], out_shape=shapes,
        input_output_aliases={first: 1}, compiler_params=CP)(x, scale, total, x)
"""


@pytest.mark.parametrize("scaled", [False, True])
def test_position_of_an_aliased_operand_behind_one_that_may_be_none(scaled):
    source = OPTIONAL_OPERAND.replace("POSITION", "2 if scaled else 1")
    source = source.replace("SCALE", "scale" if scaled else "scale=None")
    x, total = X[0], X[1] + 1
    one, new = computes(source, x, total, *[x * 2] * scaled)
    assert np.array_equal(one, x + 1)
    assert np.array_equal(new, (total + x) * x * 2 if scaled else total + x)
    assert "out_type=[jax.tree.leaves(shapes)[0]]" in ported(source)


@pytest.mark.parametrize("shape, many", [
    ("jax.ShapeDtypeStruct(x.shape, x.dtype)", False), ("shapes", True), ("x", False), ("[x]", True), ("shaped(x)", True),
])
def test_aliased_results_have_the_structure_of_out_shape(shape, many):
    source = HEAD + f"""
def add(x_ref, old_ref, new_ref):
    new_ref[pl.program_id(0), :] = old_ref[pl.program_id(0), :] + x_ref[pl.program_id(0), :]


def shaped(x):
    return (x,)


def run(x, total):
    shapes = [like(x)]
    return pl.pallas_call(add, grid=(8,), out_shape={shape}, input_output_aliases={{1: 0}}, compiler_params=CP)(x, total)
"""
    result = computes(source, X[0], X[1])
    assert isinstance(result, tuple) == many
    assert np.array_equal(result[0] if many else result, X[0] + X[1])


@pytest.mark.parametrize("position", ["2", "1 if scaled else 2", "2 if scaled else 0", "len(x)", "2 if x.shape[0] else 1"])
def test_position_that_names_another_operand_where_one_is_none_is_diagnosed(position):
    assert codes(OPTIONAL_OPERAND.replace("POSITION", position).replace("SCALE", "scale=None")) == {"C203"}


def test_names_that_the_kernel_and_its_specs_share():
    source = HEAD + """
def add(i, n, n_ref):
    n_ref[...] = i[...] + n[...]


def run(x, total):
    n, i = x.shape[1], 8
    block = pl.BlockSpec((i, n // 2), lambda j: (0, j))
    return pl.pallas_call(
        add, grid=(2,), in_specs=[block, block], out_specs=block, out_shape=jax.ShapeDtypeStruct((i, n), x.dtype),
        compiler_params=CP, ALIASES)(x, total)
"""
    for aliases in ("", "input_output_aliases={1: 0}"):
        assert np.array_equal(computes(source.replace("ALIASES", aliases), X[0], X[1]), X[0] + X[1])


@pytest.mark.parametrize("shapes, before", [
    ("(like(x), like(x))", ""), ("[like(x), like(x)]", ""), ("shapes", "shapes = [like(x), like(x)]\n    "),
])
def test_several_results(shapes, before):
    source = HEAD + """
def both(x_ref, o_ref, p_ref):
    o_ref[...] = x_ref[...] * 2
    p_ref[...] = x_ref[...] + 1


def run(x):
    tile = pl.BlockSpec((None, 8, 64), lambda i: (i, 0, 0))
    BEFOREreturn pl.pallas_call(both, grid=(4,), in_specs=[tile], out_specs=(tile, tile), out_shape=SHAPES, compiler_params=CP)(x)
""".replace("BEFORE", before).replace("SHAPES", shapes)
    results = computes(source, X)
    assert isinstance(results, tuple)  # as pallas_call returns them
    one, two = results
    assert np.array_equal(one, X * 2) and np.array_equal(two, X + 1)


def test_fewer_specs_than_results_are_diagnosed():
    source = HEAD + """
def both(x_ref, o_ref, p_ref):
    o_ref[...] = x_ref[...]
    p_ref[...] = x_ref[...]


def run(x):
    row = pl.BlockSpec((1, 64), lambda i: (i, 0))
    return pl.pallas_call(both, grid=(8,), in_specs=[row], out_specs=[row], out_shape=[like(x), like(x)], compiler_params=CP)(x)
"""
    assert codes(source) == {"C202"}


# -- kernels that a branch chooses --------------------------------------------------------------------

OF_ONE_NAME = HEAD + """
def launcher(shape, by_rows):
    if by_rows:
        tile = shape[1]

        def kernel(x_ref, o_ref):
            i = pl.program_id(0)
            o_ref[i, pl.ds(0, tile)] = jnp.cumsum(x_ref[i, pl.ds(0, tile)])

        def launch(x):
            return pl.pallas_call(kernel, grid=(shape[0],), out_shape=like(x), compiler_params=CP)(x)
    else:
        tile = shape[0]

        def kernel(x_ref, o_ref):
            j = pl.program_id(0)
            o_ref[pl.ds(0, tile), j] = x_ref[pl.ds(0, tile), j] * 2

        def launch(x):
            return pl.pallas_call(kernel, grid=(shape[1],), out_shape=like(x), compiler_params=CP)(x)
    return launch


def run(x):
    return launcher(x.shape, True)(x) + launcher(x.shape, False)(x)
"""


def test_kernels_of_one_name_in_two_branches():
    """Each call sees the kernel of its own branch."""
    x = X.reshape(32, 64)
    assert np.allclose(computes(OF_ONE_NAME, x), np.cumsum(x, 1) + 2 * x, atol=1e-4)
