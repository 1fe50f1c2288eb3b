"""Block views, aliases, removed names: the plan of a call, without touching the source."""

import ast

import pytest

from pallas_port.translator.kernel_model import build_model
from pallas_port.translator.names import Resolver
from pallas_port.translator.plan_calls import plan_call
from pallas_port.translator.ref_shapes import ref_dims
from pallas_port.translator.sites import find_sites

HEAD = """
import functools
import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

def kernel(x_ref, o_ref, *, n=1):
    o_ref[0] = x_ref[0]
"""
OUT = "out_shape=jax.ShapeDtypeStruct((m, n), x.dtype)"


def plan(function: str, head: str = HEAD):
    source = head + function
    resolver = Resolver(ast.parse(source))
    (site,) = find_sites(resolver)
    dims, inputs = ref_dims([site], resolver, {})
    model = build_model([site], resolver, dims)
    return plan_call(site, resolver, source.split("\n"), model, inputs)


def run(spec: str, grid="(4, 4)", before="", out="pl.BlockSpec((8, n), lambda i, j: (i, 0))", kernel="kernel", params="x, m, n"):
    return f"def run({params}):\n{before}    return pl.pallas_call({kernel}, grid={grid}, in_specs=[{spec}], out_specs={out}, {OUT})(x)\n"


VIEWS = [
    pytest.param("pl.BlockSpec((8, 128), lambda i, j: (i, j))", ".at[pl.ds(i * 8, 8), pl.ds(j * 128, 128)]", id="plain"),
    pytest.param("pl.BlockSpec((8, 128), lambda i, j: (j, i))", ".at[pl.ds(j * 8, 8), pl.ds(i * 128, 128)]", id="swapped"),
    pytest.param("pl.BlockSpec((8, 128), lambda j, i: (j, i))", ".at[pl.ds(i * 8, 8), pl.ds(j * 128, 128)]", id="parameters-named-the-other-way"),
    pytest.param("pl.BlockSpec((8, 128), lambda a, b: (a + 1, b // 2))", ".at[pl.ds((i + 1) * 8, 8), pl.ds(j // 2 * 128, 128)]", id="arithmetic"),
    pytest.param("pl.BlockSpec((None, 128), lambda a, b: (a, b))", ".at[i, pl.ds(j * 128, 128)]", id="squeezed"),
    pytest.param("pl.BlockSpec((None, None), lambda a, b: (a - 1, b))", ".at[i - 1, j]", id="all-squeezed"),
    pytest.param("pl.BlockSpec((1, 128), lambda a, b: (a, b))", ".at[pl.ds(i, 1), pl.ds(j * 128, 128)]", id="one"),
    pytest.param("pl.BlockSpec((8, x.shape[1]), lambda a, b: (a, 0))", ".at[pl.ds(i * 8, 8), :]", id="full"),
    pytest.param("pl.BlockSpec((8, 64), lambda a, b: (a, 0))", ".at[pl.ds(i * 8, 8), pl.ds(0, 64)]", id="first-block"),
    pytest.param("pl.BlockSpec((8, x.shape[0]), lambda a, b: (a, 0))", ".at[pl.ds(i * 8, 8), pl.ds(0, x.shape[0])]", id="extent-of-another-dimension"),
    pytest.param("pl.BlockSpec((8, x.shape[1]), lambda a, b: (a, b))", ".at[pl.ds(i * 8, 8), pl.ds(j * x.shape[1], x.shape[1])]", id="full-but-moved"),
    pytest.param("pl.BlockSpec((n + 1, 2 * n), lambda a, b: (a, b))", ".at[pl.ds(i * (n + 1), n + 1), pl.ds(j * (2 * n), 2 * n)]", id="extents-with-arithmetic"),
    pytest.param("pl.BlockSpec((8,), lambda a, b: b)", ".at[pl.ds(j * 8, 8)]", id="no-tuple"),
    pytest.param("pl.BlockSpec((8, 8))", ".at[pl.ds(0, 8), pl.ds(0, 8)]", id="no-index-map"),
    pytest.param("pl.BlockSpec((8, 8), lambda a, b, s=2: (a, b))", None, id="default-parameter"),
    pytest.param("None", None, id="whole"),
]


@pytest.mark.parametrize("spec, view", VIEWS)
def test_view(spec, view):
    found, problems = plan(run(spec))
    if view is None and spec != "None":
        assert {p[0] for p in problems} == {"C202"}
        return
    assert not problems
    assert found.views[0] == view


@pytest.mark.parametrize("spec", [
    pytest.param("pl.BlockSpec((8, 8), lambda *a: (a[0], a[1]))", id="star"),
    pytest.param("pl.BlockSpec((8, 8), lambda a: (a, 0))", id="wrong-rank"),
    pytest.param("pl.BlockSpec((8, 8), lambda a, b: (a,))", id="too-few-indices"),
    pytest.param("pl.BlockSpec((8, 8), lambda a, b: make(a, b))", id="indices-from-a-call"),
    pytest.param("pl.BlockSpec((8, 8), index_of)", id="unknown-function"),
    pytest.param("pl.BlockSpec((8, 8), lambda a, b: (sum(a for a in range(3)), b))", id="comprehension"),
])
def test_index_map_that_cannot_be_read(spec):
    assert {p[0] for p in plan(run(spec))[1]} == {"C202"}


def test_index_map_as_a_function():
    head = HEAD + "def rows(a, b):\n    '''Rows.'''\n    return a, b + 1\n"
    found, problems = plan(run("pl.BlockSpec((8, 8), rows)"), head)
    assert not problems and found.views[0] == ".at[pl.ds(i * 8, 8), pl.ds((j + 1) * 8, 8)]"


@pytest.mark.parametrize("grid, rank", [("4", 1), ("(4,)", 1), ("(4, 4, 4)", 3), ("m // 4", 1)])
def test_grid(grid, rank):
    axes = ", ".join("abc"[:rank])
    spec = f"pl.BlockSpec((8, 8), lambda {axes}: ({'abc'[rank - 1]}, 0))"
    found, problems = plan(run(spec, grid, out=spec))
    assert not problems and found.grid_rank == rank
    assert found.views[0] == f".at[pl.ds({'ijk'[rank - 1]} * 8, 8), pl.ds(0, 8)]"


# -- names that the views must not capture ------------------------------------------------------------

def test_variable_of_the_caller_named_as_a_grid_axis():
    found, problems = plan(run("pl.BlockSpec((8, 8), lambda a, b: (a + i, b))", params="x, m, n, i"))
    assert not problems
    assert found.letters == ("axis_i", "j")
    assert found.views[0] == ".at[pl.ds((axis_i + i) * 8, 8), pl.ds(j * 8, 8)]"


@pytest.mark.parametrize("spec, kernel", [
    pytest.param("pl.BlockSpec((j, 8), lambda a, b: (a, b))", "kernel", id="extent"),
    pytest.param("pl.BlockSpec((8, 8), lambda a, b: (a, b))", "functools.partial(kernel, n=j)", id="bound-argument"),
    pytest.param("pl.BlockSpec((8, 8), lambda a, b: (a, b))", "lambda *r: kernel(*r, n=j)", id="forwarding-lambda"),
])
def test_axis_variable_hides_nothing(spec, kernel):
    found, problems = plan(run(spec, kernel=kernel, params="x, m, n, j"))
    assert not problems and found.letters == ("i", "axis_j")


def test_axis_variable_does_not_hide_the_kernel():
    head = HEAD.replace("def kernel", "def i")
    found, _ = plan(run("pl.BlockSpec((8, 8), lambda a, b: (a, b))", kernel="i"), head)
    assert found.letters[0] == "axis_i"


CHANGED = [
    pytest.param("    b = 8\n    spec = pl.BlockSpec((b, b), lambda i, j: (i, j))\n    b = 16\n", "spec", id="between-spec-and-call"),
    pytest.param("    b = 8\n    spec = pl.BlockSpec((b, b), lambda i, j: (i, j))\n    b += 8\n", "spec", id="augmented"),
    pytest.param("    b = 8\n    spec = pl.BlockSpec((b, b), lambda i, j: (i, j))\n    for b in (16, 32):\n        pass\n", "spec", id="loop-variable"),
    pytest.param("    shape = (n, n)\n    n = 16\n", "pl.BlockSpec(shape, lambda i, j: (i, j))", id="shape-in-a-variable"),
]


@pytest.mark.parametrize("before, spec", CHANGED)
def test_name_that_changes_before_the_call(before, spec):
    assert {p[0] for p in plan(run(spec, before=before))[1]} == {"C202"}


def test_name_that_changed_before_the_spec():
    found, problems = plan(run("pl.BlockSpec((n, n), lambda i, j: (i, j))", before="    n = n or 8\n"))
    assert not problems and found.views[0] == ".at[pl.ds(i * n, n), pl.ds(j * n, n)]"


def test_index_map_of_another_scope():
    head = HEAD + "n = 2\ndef rows(a, b):\n    return a + n, b\n"
    assert {p[0] for p in plan(run("pl.BlockSpec((8, 8), rows)"), head)[1]} == {"C202"}


def test_parameter_of_the_kernel_that_hides_a_variable():
    head = HEAD.replace("x_ref, o_ref", "x, m").replace("o_ref[0] = x_ref[0]", "m[0] = x[0]")
    call, problems = plan(run("pl.BlockSpec((m, 8), lambda i, j: (i, j))"), head)
    assert problems == [] and call.argument_names == ["x", "m_ref"]


FULL = [
    pytest.param("    m, n = x.shape\n", ":", id="unpacked"),
    pytest.param("    n = x.shape[1]\n", ":", id="subscript"),
    pytest.param("    (m, n), k = x.shape, 3\n", ":", id="nested"),
    pytest.param("    x = x.T\n    m, n = x.shape\n", ":", id="operand-changed-before"),
    pytest.param("    n, m = x.shape\n", "pl.ds(0, n)", id="other-dimension"),
    pytest.param("    m, n = y.shape\n", "pl.ds(0, n)", id="other-array"),
    pytest.param("    m, n = x.shape\n    x = jnp.concatenate([x, x], 1)\n", "pl.ds(0, n)", id="operand-changed-after"),
    pytest.param("    m, n = x.shape\n    n = n // 2\n", "pl.ds(0, n)", id="extent-changed"),
    pytest.param("    m, n = x.shape\n    n //= 2\n", "pl.ds(0, n)", id="extent-changed-in-place"),
    pytest.param("    (m, n), k = x.shape, 3\n    n = n // 2\n", "pl.ds(0, n)", id="nested-changed"),
    pytest.param("    m, n = x.shape\n    if m > 3:\n        n = 8\n", "pl.ds(0, n)", id="extent-changed-in-a-branch"),
]


@pytest.mark.parametrize("before, last", FULL)
def test_whole_dimension(before, last):
    """``:`` only where the extent is the operand's own."""
    found, problems = plan(run("pl.BlockSpec((8, n), lambda i, j: (i, 0))", before=before, params="x, y"))
    assert not problems and found.views[0] == f".at[pl.ds(i * 8, 8), {last}]"


def elsewhere(call: str, kernel=HEAD):
    """Problems of a call with blocks of extent ``b`` at CALL."""
    spec = "pl.BlockSpec((b,), lambda i: (i,))"
    return {p[0] for p in plan(call.replace("CALL", f"pl.pallas_call(kernel, grid=(4,), in_specs=[{spec}], out_specs={spec}, out_shape=s)"), kernel)[1]}


@pytest.mark.parametrize("source", [
    pytest.param("def run(x):\n    fs = []\n    for b in (8, 16):\n        fs.append(CALL)\n", id="kept-for-later-in-a-loop"),
    pytest.param("def run(x):\n    while x:\n        b = x.pop()\n        fs.append(CALL)\n", id="kept-for-later-in-a-while"),
    pytest.param("fs = [CALL for b in (8, 16)]\n", id="comprehension"),
    pytest.param("run = lambda x, b: CALL(x)\n", id="lambda"),
    pytest.param("class A:\n    b = 8\n    f = CALL\n", id="class-body"),
    pytest.param("def run(x, b):\n    if b: return CALL(x)\n", id="one-line-branch"),
    pytest.param("def run(x, b):\n    if b:\n        pass\n    elif CALL(x):\n        pass\n", id="elif"),
    pytest.param("def run(x):\n    return (b := 8) and CALL(x)\n", id="walrus"),
])
def test_views_have_no_place_or_another_meaning(source):
    assert elsewhere(source) == {"C202"}


@pytest.mark.parametrize("source", [
    pytest.param("def run(x):\n    for b in (8, 16):\n        y = CALL(x)\n", id="called-at-once-in-a-loop"),
    pytest.param("def run(x, b):\n    if CALL(x):\n        return 1\n", id="test-of-an-if"),
    pytest.param("def run(x, b):\n    if b:\n        pass\n    else:\n        if CALL(x):\n            pass\n", id="if-in-an-else"),
    pytest.param("def run(x, b):\n    with CALL(x) as y:\n        pass\n", id="with"),
    pytest.param("b = 8\nclass A:\n    f = CALL\n", id="class-body-reads-the-module"),
    pytest.param("def run(x, b):\n    f = CALL\n    return f(x)\n", id="kept-for-later"),
])
def test_views_have_a_place(source):
    assert elsewhere(source) == set()


# -- aliases, removed statements, arguments ---------------------------------------------------------

def test_aliases():
    source = f"def run(x, m, n):\n    return pl.pallas_call(kernel, {OUT}, input_output_aliases={{0: 0}})(x)\n"
    assert plan(source)[0].aliases == {0: 0}
    assert {p[0] for p in plan(source.replace("{0: 0}", "{m: 0}"))[1]} == {"C203"}
    assert {p[0] for p in plan(source.replace("{0: 0}", "dict(x)"))[1]} == {"C203"}


def test_aliased_operands_that_hide_the_callers_names():
    """The function that holds the ref has the kernel's names, but for those that it reads: a and b are exchanged here."""
    head = HEAD.replace("x_ref, o_ref", "a_ref, b_ref, o_ref").replace("x_ref[0]", "a_ref[0] + b_ref[0]")
    source = "def run(a, b):\n    return pl.pallas_call(kernel, grid=(a.shape[0],), out_shape=s, input_output_aliases={0: 0})({})\n"
    for operands, names in (("(b, a)", ["a_in", "b"]), ("(a, b)", ["a", "b"])):
        call, problems = plan(source.replace("({})", operands), head)
        assert problems == [] and call.operand_names == names


@pytest.mark.parametrize("keyword, code", [
    ("metadata={}", None), ("scratch_shapes=[]", "C203"), ("grid_spec=g", "C202"), ("cost_estimate=c", None), ("name='k'", None),
])
def test_keyword(keyword, code):
    problems = plan(f"def run(x, m, n):\n    return pl.pallas_call(kernel, {OUT}, {keyword})(x)\n")[1]
    assert {p[0] for p in problems} == ({code} if code else set())


def test_axis_outside_the_grid():
    head = HEAD.replace("o_ref[0] = x_ref[0]", "o_ref[pl.program_id(1)] = x_ref[0]")
    assert {p[0] for p in plan(f"def run(x, m, n):\n    return pl.pallas_call(kernel, grid=(4,), {OUT})(x)\n", head)[1]} == {"C208"}


REMOVED = [
    pytest.param("    params = P\n", ["params = P"], id="only-here"),
    pytest.param("    warps = 4\n    params = plgpu.CompilerParams(num_warps=warps)\n", ["params = plgpu.CompilerParams(num_warps=warps)"], id="what-parameters-are-made-of-stays"),
    pytest.param("    params = P\n    print(params)\n", [], id="read-elsewhere"),
    pytest.param("    params = P\n    def f():\n        return params\n", [], id="read-in-a-closure"),
    pytest.param("    params = P\n    params = P\n", [], id="bound-twice"),
    pytest.param("    params = P; y = 1\n", [], id="shares-its-line"),
    pytest.param("    y = 1; params = P\n", [], id="shares-its-line-second"),
    pytest.param("    params = other = P\n", [], id="two-targets"),
    pytest.param("    params, other = P, 1\n", [], id="unpacked"),
    pytest.param("    if x: params = P\n", [], id="shares-the-line-of-a-branch"),
    pytest.param("    params = P\n    del params\n", [], id="deleted"),
]


@pytest.mark.parametrize("before, removed", REMOVED)
def test_statements_without_a_reader(before, removed):
    call = f"    return pl.pallas_call(kernel, {OUT}, compiler_params=params)(x)\n"
    found, _ = plan(f"def run(x, m, n):\n{before}{call}".replace("= P", "= plgpu.CompilerParams()"))
    assert sorted(map(ast.unparse, found.unused)) == [r.replace("= P", "= plgpu.CompilerParams()") for r in removed]


@pytest.mark.parametrize("name, removed", [("_params", 1), ("params", 0)])
def test_public_names_of_the_module_stay(name, removed):
    head = f"{HEAD}{name} = plgpu.CompilerParams()\n"
    call = f"def run(x, m, n):\n    return pl.pallas_call(kernel, {OUT}, compiler_params={name})(x)\n"
    assert len(plan(call, head)[0].unused) == removed


@pytest.mark.parametrize("grid, ordered", [
    ("(4, 4)", False), ("(65535, m)", False), ("(65536, 4)", True), ("(m, 4)", True), ("(2, 4, m)", False),
    ("(256, 256, m)", True), ("(m,)", False),
])
def test_axes_that_may_be_too_long_for_their_place(grid, ordered):
    letters = "i, j, l"[: 3 * grid.count(",") + 1] if grid != "(m,)" else "i"
    call, problems = plan(run(f"pl.BlockSpec((8, 128), lambda {letters}: (i, 0))", grid=grid, out=f"pl.BlockSpec((8, n), lambda {letters}: (i, 0))"))
    assert not problems and call.may_be_long is ordered
