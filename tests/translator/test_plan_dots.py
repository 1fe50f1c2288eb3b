"""The plan of kernels with matrix products, without touching the source."""

import ast

import pytest

from pallas_port.translator import actions as act
from pallas_port.translator.names import Resolver
from pallas_port.translator.plan import plan_module
from pallas_port.translator.result import Options
from pallas_port.translator.source import Source

HEAD = """
import functools
import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu
"""
SPECS = """in_specs=[pl.BlockSpec((bm, kk), lambda i, j: (i, 0)), pl.BlockSpec((kk, bn), lambda i, j: (0, j))],
        out_specs=pl.BlockSpec((bm, bn), lambda i, j: (i, j)),"""


def source(body: str, specs=True, signature="*, bm, bn, bk", bound="bm=bm, bn=bn, bk=bk", params="a, b, bm=128, bn=128, bk=64", grid="(m // bm, n // bn)"):
    lines = "\n".join(f"    {line}" for line in body.strip("\n").split("\n"))
    return f"""{HEAD}

def kernel(a_ref, b_ref, o_ref, {signature}):
{lines}


def run({params}):
    (m, kk), n = a.shape, b.shape[1]
    return pl.pallas_call(
        functools.partial(kernel, {bound}),
        grid={grid},
        {SPECS if specs else ''}
        out_shape=jax.ShapeDtypeStruct((m, n), a.dtype),
        compiler_params=plgpu.CompilerParams(num_warps=8, num_stages=3),
    )(a, b)
"""


def plan(text: str, target="sm90"):
    return plan_module(Resolver(ast.parse(text)), Source("kernel.py", text), target, Options())


def dot_plan(text: str, target="sm90"):
    """(plan of the kernel, data of the launch)."""
    found = plan(text, target)
    assert [s.status for s in found.sites] == ["ported"], found.sites[0].diagnostics
    (pipeline,) = [a for a in found.actions if isinstance(a, (act.PipelineSm90, act.PipelineSm100))]
    (launch,) = [a for a in found.actions if isinstance(a, (act.LaunchSm90, act.LaunchSm100))]
    return pipeline.plan, launch.data


def reason(text: str, target="sm90") -> str:
    (site,) = plan(text, target).sites
    assert site.status == "kept" and {d.code for d in site.diagnostics} == {"B130"}, site.diagnostics
    assert not plan(text, target).actions
    return site.diagnostics[0].reason


def loop(product="jnp.dot(a_ref[:, ks], b_ref[ks, :])", before="", result=None, lower="0", init="jnp.zeros((bm, bn), jnp.float32)", after=""):
    before = "".join(f"    {line}\n" for line in before.split("\n") if line)
    return f"""def step(t, acc):
    ks = pl.ds(t * bk, bk)
{before}    return {result or f'acc + {product}'}
acc = lax.fori_loop({lower}, a_ref.shape[1] // bk, step, {init})
{after}o_ref[...] = acc.astype(o_ref.dtype)"""


@pytest.mark.parametrize("target", ["sm90", "sm100"])
def test_plan_of_a_matmul(target):
    found, data = dot_plan(source(loop()), target)
    assert [(o.ref, o.index, o.block) for o in found.operands] == [
        ("a_ref", (":", "ks"), ("a_ref.shape[0]", "bk")), ("b_ref", ("ks", ":"), ("bk", "b_ref.shape[1]"))]
    assert (found.lower, found.upper, found.step) == ("0", "a_ref.shape[1] // bk", "t")
    assert not found.masked
    assert data.tile == ("bm", "bn") and data.grid == ("m // bm", "n // bn") and data.num_stages == "3"
    assert data.views[0] == ".at[pl.ds(i * bm, bm), :]"


INT = ", preferred_element_type=jnp.int32)"
SUMS = [
    pytest.param("a_ref[:, ks] @ b_ref[ks, :]", "jnp.zeros((bm, bn), jnp.float32)", "float32", False, id="float32"),
    pytest.param("jnp.dot(a_ref[:, ks], b_ref[ks, :]" + INT, "jnp.zeros((bm, bn), jnp.int32)", "int32", False, id="int32"),
    pytest.param("jnp.dot(a_ref[:, ks], b_ref[ks, :]" + INT, "jnp.zeros((bm, bn), dtype='int32')", "int32", False, id="by-name"),
    pytest.param("jnp.dot(a_ref[:, ks], b_ref[ks, :]" + INT, "jnp.full((bm, bn), 0)", "int32", False, id="full-of-an-integer"),
    pytest.param("plgpu.dot(a_ref[:, ks], b_ref[ks, :])", "jnp.zeros((bm, bn), jnp.int32)", "int32", False, id="triton.dot"),
    pytest.param("jnp.dot(a_ref[:, ks], b_ref[ks, :]" + INT, "jnp.zeros((bm, bn), jnp.float32)", "int32", True, id="converted"),
]


@pytest.mark.parametrize("product, init, dtype, converted", SUMS)
def test_dtype_of_the_sums(product, init, dtype, converted):
    found, _ = dot_plan(source(loop(product, init=init)))
    assert (found.accumulate, found.converted, found.tf32) == (dtype, converted, dtype == "float32")


def test_int8_products_that_wrap_are_not_summed_in_int32():
    """Without preferred_element_type a product of int8 is int8."""
    assert "not all are int32" in reason(source(loop("jnp.dot(a_ref[:, ks], b_ref[ks, :])", init="jnp.zeros((bm, bn), jnp.int32)")))


STARTS = [
    pytest.param("", "o_ref[...]", id="result"),
    pytest.param("", "jnp.ones((bm, bn), jnp.float32)", id="ones"),
    pytest.param("", "a_ref[...] * 2", id="computed"),
    pytest.param("start = a_ref[...]\n", "start + start", id="sum"),
]


@pytest.mark.parametrize("before, init, text", [
    pytest.param("", "a_ref[...]", "load(a_ref)", id="whole"),
    pytest.param("start = a_ref[...].astype(jnp.float32)\n", "start", "load(a_ref).astype(jnp.float32)", id="named-and-cast"),
    pytest.param("i = pl.program_id(0)\n", "a_ref[pl.ds(i * bm, bm), pl.ds(0, bn)]", "load(a_ref.at[pl.ds(i * bm, bm), pl.ds(0, bn)])", id="slices"),
])
def test_sums_that_start_as_a_tile(before, init, text):
    found, _ = dot_plan(source(before + loop(init=init)))
    assert found.starts == (("acc", text),)


@pytest.mark.parametrize("before, init", STARTS)
def test_other_starts_of_sums(before, init):
    assert among_register_work(source(before + loop(init=init)))


def test_start_that_is_read_elsewhere():
    assert among_register_work(source("start = a_ref[...]\n" + loop(init="start", after="acc += start\n")))


@pytest.mark.parametrize("product, turned", [
    ("a_ref[:, ks] @ b_ref[ks, :]", {1}), ("a_ref[:, ks] @ b_ref[:, ks].T", set()),
    ("a_ref[ks, :].T @ b_ref[ks, :]", {0, 1}), ("pl.dot(a_ref[ks, :], b_ref[:, ks], trans_a=True, trans_b=True)", {0}),
])
def test_operands_that_lie_the_other_way(product, turned):
    assert dot_plan(source(loop(product)))[0].turned == turned
    assert not dot_plan(source(loop(product)), "sm100")[0].turned  # tcgen05 reads both ways


@pytest.mark.parametrize("product", ["jnp.dot(a_ref[:, ks], b_ref[ks, :], precision='highest')", "pl.dot(a_ref[:, ks], b_ref[ks, :], allow_tf32=False)"])
def test_exact_float32_is_split_into_parts(product):
    found, _ = dot_plan(source(loop(product)))
    assert found.parts and not found.tf32 and not found.turned  # 16 bits are read both ways


@pytest.mark.parametrize("target, tile, fits", [
    ("sm90", (16, 32, 1), True), ("sm90", (32, 256, 1), True), ("sm90", (64, 512, 1), True), ("sm90", (16, 40, 1), False),
    ("sm90", (8, 64, 1), False), ("sm90", (48, 64, 1), False), ("sm90", (16, 256, 4), False),
    ("sm100", (16, 32, 1), True), ("sm100", (32, 256, 2), True), ("sm100", (16, 48, 1), False), ("sm100", (8, 64, 1), False),
])
def test_tiles_of_few_rows(target, tile, fits):
    """What the plan says of a tile is what the emitted code says."""
    from pallas_port.translator.tile_limits import tile_problem

    assert (not tile_problem(target, *tile)) is fits
    jax = pytest.importorskip("jax")
    from pallas_port.rewrites.support.tcgen05 import _Tcgen05Tile
    from pallas_port.rewrites.support.wgmma import _WgmmaTile

    rows, cols, accumulators = tile
    make = lambda: {"sm90": _WgmmaTile, "sm100": _Tcgen05Tile}[target](rows, cols, jax.ShapeDtypeStruct((rows, cols), "bfloat16"), accumulators)  # noqa: E731
    if fits:
        assert make().shape[1] in (cols, cols // 2)
    else:
        with pytest.raises(ValueError, match="tile"):
            make()


TRANSPOSED = [
    pytest.param("jnp.dot(a_ref[:, ks], b_ref[ks, :])", False, False, id="dot"),
    pytest.param("a_ref[:, ks] @ b_ref[ks, :]", False, False, id="operator"),
    pytest.param("jnp.matmul(a_ref[:, ks], b_ref[ks, :])", False, False, id="matmul"),
    pytest.param("pl.dot(a_ref[:, ks], b_ref[ks, :])", False, False, id="pl.dot"),
    pytest.param("plgpu.dot(a_ref[:, ks], b_ref[ks, :])", False, False, id="triton.dot"),
    pytest.param("a_ref[:, ks] @ b_ref[:, ks].T", False, True, id="right-T"),
    pytest.param("a_ref[ks, :].T @ b_ref[ks, :]", True, False, id="left-T"),
    pytest.param("jnp.transpose(a_ref[ks, :]) @ b_ref[:, ks].T.T.T", True, True, id="transpose-and-three"),
    pytest.param("pl.dot(a_ref[ks, :], b_ref[ks, :], trans_a=True)", True, False, id="trans_a"),
    pytest.param("pl.dot(a_ref[:, ks], b_ref[:, ks], trans_b=True)", False, True, id="trans_b"),
    pytest.param("pl.dot(a_ref[:, ks], b_ref[:, ks], trans_a=False, trans_b=True)", False, True, id="trans-both-said"),
    pytest.param("pl.dot(a_ref[ks, :].T, b_ref[ks, :], trans_a=False)", True, False, id="T-and-flag"),
    *[
        pytest.param(f"lax.dot_general(a_ref[{'ks, :' if left in (0, -2) else ':, ks'}], b_ref[{':, ks' if right in (1, -1) else 'ks, :'}], ((({left},), ({right},)), ((), ())))",
                     left in (0, -2), right in (1, -1), id=f"dot_general-{left}-{right}")
        for left in (0, 1, -1, -2) for right in (0, 1, -1, -2)
    ],
]


@pytest.mark.parametrize("product, left, right", TRANSPOSED)
def test_transposed_operands(product, left, right):
    found, _ = dot_plan(source(loop(product)))
    (p,) = found.products
    assert (p.left_transposed, p.right_transposed) == (left, right)


NOT_PLANNED = [
    pytest.param(loop("pl.dot(a_ref[:, ks], b_ref[ks, :], True)"), id="flag-by-position"),
    pytest.param(loop("pl.dot(a_ref[:, ks], b_ref[ks, :], trans_a=bm > 3)"), id="flag-computed"),
    pytest.param(loop("jnp.dot(x, b_ref[ks, :])", "x = a_ref[:, ks]\nks = pl.ds(t * bk + bk, bk)"), id="index-rebound"),
    pytest.param(loop("jnp.einsum('ij,jk->ik', a_ref[:, ks], b_ref[ks, :])"), id="einsum"),
]

# Not as accumulators alone, but as products among register work (test_staged_forms.py shows that those are right).
AMONG_REGISTER_WORK = [
    pytest.param("@pl.when(pl.program_id(0) == 0)\ndef _():\n" + "\n".join(f"    {x}" for x in loop().split("\n")), id="inside-when"),
    pytest.param(loop("d", "d = jnp.dot(a_ref[:, ks], b_ref[ks, :])\nd = jnp.where(t > 3, d, 0.0)"), id="product-changed"),
    pytest.param(loop("d", "d = jnp.dot(a_ref[:, ks], b_ref[ks, :])\nd *= 2"), id="product-changed-in-place"),
    pytest.param(loop(before="acc = acc * 0.5"), id="carry-scaled"),
    pytest.param(loop(before="acc *= 0.5"), id="carry-scaled-in-place"),
    pytest.param(loop(before="acc = jnp.maximum(acc, 0)"), id="carry-clamped"),
    pytest.param(loop(before="if bm > 3:\n    acc = acc * 2"), id="carry-scaled-in-a-branch"),
    pytest.param(loop(result="acc - jnp.dot(a_ref[:, ks], b_ref[ks, :])"), id="difference"),
    pytest.param(loop(result="acc + 2 * jnp.dot(a_ref[:, ks], b_ref[ks, :])"), id="scaled-product"),
    pytest.param(loop(result="jnp.dot(a_ref[:, ks], b_ref[ks, :])"), id="not-added"),
    pytest.param(loop(init="jnp.ones((bm, bn), jnp.float32)"), id="starts-at-one"),
    pytest.param(loop(init="jnp.zeros((bm, bn), jnp.bfloat16)"), id="narrow-accumulator"),
    pytest.param(loop(after="acc = acc / jnp.sum(acc, axis=1)[:, None]\n"), id="reduction-after"),
    pytest.param(loop(after="o_ref[...] = acc.astype(o_ref.dtype)\n"), id="two-stores"),
    pytest.param(loop(before="o_ref[...] = acc"), id="store-in-the-loop"),
    pytest.param(loop("jnp.dot(a_ref[:, ks], b_ref[ks, :])") + " + jnp.arange(128)[None, :]", id="iota-in-the-epilogue"),
]


@pytest.mark.parametrize("target", ["sm90", "sm100"])
@pytest.mark.parametrize("body", NOT_PLANNED)
def test_not_planned(body, target):
    assert reason(source(body), target)


def among_register_work(text: str, target="sm90") -> bool:
    """Whether a kernel is ported, but not as a pipeline that only adds products up."""
    found = plan(text, target)
    assert [s.status for s in found.sites] == ["ported"], found.sites[0].diagnostics
    kinds = {type(a) for a in found.actions}
    return act.RegisterDot in kinds and not kinds & {act.PipelineSm90, act.PipelineSm100}


@pytest.mark.parametrize("target", ["sm90", "sm100"])
@pytest.mark.parametrize("body", AMONG_REGISTER_WORK)
def test_products_among_register_work(body, target):
    assert among_register_work(source(body), target)


@pytest.mark.parametrize("body", [
    pytest.param("def step(t, acc):\n    ks = pl.ds(t * bk, bk)\n    acc += jnp.dot(a_ref[:, ks], b_ref[ks, :])\n    return acc", id="added-in-place"),
    pytest.param("def step(t, acc):\n    ks = pl.ds(t * bk, bk)\n    acc = acc + jnp.dot(a_ref[:, ks], b_ref[ks, :])\n    return acc", id="assigned"),
    pytest.param("def step(t, acc):\n    ks = pl.ds(t * bk, bk)\n    new = jnp.dot(a_ref[:, ks], b_ref[ks, :]) + acc\n    return new", id="new-name"),
    pytest.param("def step(t, acc):\n    ks = pl.ds(t * bk, bk)\n    x, y = a_ref[:, ks], b_ref[ks, :]\n    return acc + x @ y", id="operands-in-variables"),
    pytest.param("step = lambda t, acc: acc + a_ref[:, pl.ds(t * bk, bk)] @ b_ref[pl.ds(t * bk, bk), :]", id="lambda"),
])
def test_ways_to_add(body):
    text = loop()
    found, _ = dot_plan(source(body + text[text.index("\nacc = "):]))
    assert [p.accumulator for p in found.products] == ["acc"]


def test_loop_that_starts_later():
    found, _ = dot_plan(source(loop(lower="1")))
    assert found.lower == "1"


def test_no_loop_is_made_into_one():
    found, _ = dot_plan(source("o_ref[...] = jnp.dot(a_ref[...], b_ref[...]).astype(o_ref.dtype)"))
    assert found.step == "" and found.masked and found.upper == "a_ref.shape[1]"


TWO = """def step(t, carry):
    x, y = carry
    ks = pl.ds(t * bk, bk)
    return {}
x, y = lax.fori_loop(0, a_ref.shape[1] // bk, step, (jnp.zeros((bm, bn)), jnp.zeros((bm, bn))))
o_ref[...] = (x * y).astype(o_ref.dtype)"""
A, B = "a_ref[:, ks] @ b_ref[ks, :]", "a_ref[:, ks] @ b_ref[ks, :]"


def test_two_accumulators():
    found, _ = dot_plan(source(TWO.format(f"x + {A}, y + {B}")))
    assert [p.accumulator for p in found.products] == ["x", "y"]


@pytest.mark.parametrize("result", [f"y + {A}, x + {B}", f"x + {A}, x + {B}", f"x + {A}, y", f"x + y + {A}, y + {B}"])
def test_two_accumulators_that_mix(result):
    assert among_register_work(source(TWO.format(result)))


# -- masks ------------------------------------------------------------------------------------------

MASKED = """i, j = pl.program_id(0), pl.program_id(1)
rows, cols = i * bm + jnp.arange(bm), j * bn + jnp.arange(bn)
(mm, kk), nn = a_ref.shape, b_ref.shape[1]

def step(t, acc):
    ks = t * bk + jnp.arange(bk)
    x = plgpu.load(a_ref.at[rows[:, None], ks[None, :]], mask=XMASK, other=0.)
    y = plgpu.load(b_ref.at[ks[:, None], cols[None, :]], mask=YMASK, other=0.)
    return acc + jnp.dot(x, y)

acc = lax.fori_loop(0, pl.cdiv(kk, bk), step, jnp.zeros((bm, bn), jnp.float32))
plgpu.store(o_ref.at[rows[:, None], cols[None, :]], acc.astype(o_ref.dtype), mask=OMASK)
"""
X, Y, O = "(rows[:, None] < mm) & (ks[None, :] < kk)", "(ks[:, None] < kk) & (cols[None, :] < nn)", "(rows[:, None] < mm) & (cols[None, :] < nn)"


def masked(x=X, y=Y, o=O):
    return source(MASKED.replace("XMASK", x).replace("YMASK", y).replace("OMASK", o), specs=False)


def test_bounds_masks():
    found, _ = dot_plan(masked())
    assert found.masked
    assert [o.index for o in found.operands] == [("pl.ds(i * bm, bm)", "pl.ds(t * bk, bk)"), ("pl.ds(t * bk, bk)", "pl.ds(j * bn, bn)")]


@pytest.mark.parametrize("text", [
    pytest.param(masked(x="(rows[:, None] < mm) & (ks[None, :] < kk - 3)"), id="bound-inside"),
    pytest.param(masked(x="(rows[:, None] <= mm) & (ks[None, :] < kk)"), id="at-most"),
    pytest.param(masked(x="(rows[:, None] < mm) & (ks[None, :] >= 0)"), id="lower-end"),
    pytest.param(masked(x="(rows[:, None] < mm) | (ks[None, :] < kk)"), id="or"),
    pytest.param(masked(x="(rows[:, None] + 1 < mm) & (ks[None, :] < kk)"), id="shifted"),
    pytest.param(masked(x="(rows[:, None] >= ks[None, :])"), id="triangle"),
    pytest.param(masked(x="(cols[:, None] < mm) & (ks[None, :] < kk)").replace("bn", "bm"), id="another-index"),
    pytest.param(masked().replace("other=0.", "other=1.", 1), id="other"),
    pytest.param(masked().replace("other=0.", "other=-jnp.inf", 1), id="other-inf"),
    pytest.param(masked(o="(rows[:, None] < mm - 1) & (cols[None, :] < nn)"), id="store-bound-inside"),
    pytest.param(masked(o="(rows[:, None] > mm) & (cols[None, :] < nn)"), id="store-greater"),
])
def test_masks_that_are_no_bounds(text):
    assert reason(text)


def test_bounds_of_other_arrays_are_checked_by_the_launch():
    """rows < kk is a bounds test only where kk is the number of rows."""
    _, data = dot_plan(masked(x="(rows[:, None] < kk) & (ks[None, :] < mm)"))
    flat = {tuple(sorted(c)) for c in data.checks}
    assert ("a.shape[0]", "a.shape[1]") in flat


# -- names ------------------------------------------------------------------------------------------

RUNS = """i, j = pl.program_id(0), pl.program_id(1)
CHANGE
rows = i * bm + jnp.arange(bm)
BRANCH
def step(t, acc):
    ks = t * bk + jnp.arange(bk)
    return acc + jnp.dot(a_ref[rows[:, None], ks[None, :]], b_ref[pl.ds(t * bk, bk), pl.ds(j * bn, bn)])
acc = lax.fori_loop(0, a_ref.shape[1] // bk, step, jnp.zeros((bm, bn), jnp.float32))
o_ref[pl.ds(i * bm, bm), pl.ds(j * bn, bn)] = acc.astype(o_ref.dtype)"""


def test_rows_by_index_vector():
    found, _ = dot_plan(source(RUNS.replace("CHANGE\n", "").replace("BRANCH\n", ""), specs=False))
    assert found.operands[0].index == ("pl.ds(i * bm, bm)", "pl.ds(t * bk, bk)")


@pytest.mark.parametrize("change", [
    pytest.param("i = i // 2", id="axis-rebound"),
    pytest.param("i += 1", id="axis-rebound-in-place"),
    pytest.param("r = pl.program_id(0)", id="two-names-of-an-axis"),
])
def test_axes_with_other_names(change):
    assert among_register_work(source(RUNS.replace("CHANGE", change).replace("BRANCH\n", ""), specs=False))


def test_rows_that_change_in_a_branch():
    branch = "if bk > 3:\n    rows = j * bm + jnp.arange(bm)"
    assert reason(source(RUNS.replace("CHANGE\n", "").replace("BRANCH", branch), specs=False))


@pytest.mark.parametrize("name", ["ring", "products", "end", "step_index", "count", "part"])
def test_names_of_the_kernel(name):
    """A parameter of the kernel that the emitted functions would hide: kept, or other names chosen."""
    text = source(loop(after=f"acc = acc * {name}\n"), signature=f"*, bm, bn, bk, {name}", bound=f"bm=bm, bn=bn, bk=bk, {name}=2")
    (site,) = plan(text).sites
    if site.status == "ported":
        found, _ = dot_plan(text)
        assert name not in (found.part, found.count, "ring", "products", "end", "step_index")


@pytest.mark.parametrize("name", ["tile", "grid", "blocks", "swizzle", "stages", "out_type", "body", "ring", "scratch", "loads", "compute", "count", "result", "i", "j"])
def test_names_of_the_caller(name):
    text = source(loop(), bound=f"bm={name}, bn=bn, bk=bk", params=f"a, b, {name}=128, bn=128, bk=64", grid=f"(m // {name}, n // bn)").replace("(bm, ", f"({name}, ", 1).replace("BlockSpec((bm", f"BlockSpec(({name}").replace(f"jnp.zeros(({name}", "jnp.zeros((bm")
    (site,) = plan(text).sites
    if site.status == "ported":
        _, data = dot_plan(text)
        assert name not in data.axes and name in ("i", "j")
        assert f"* {name}, {name})" in data.views[0]
