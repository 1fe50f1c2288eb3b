"""Every way to call ``pallas_call`` is found and taken apart."""

import ast

import pytest

from pallas_port.translator.names import Resolver
from pallas_port.translator.sites import find_sites

HEAD = """
import functools
import jax
import jax.numpy as jnp
from functools import partial
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

def kernel(x_ref, o_ref, *, n=1): pass
"""


def sites(source: str):
    return find_sites(Resolver(ast.parse(HEAD + source)))


def site(source: str):
    (only,) = sites(source)
    return only


def text(node) -> str:
    return "None" if node is None else ast.unparse(node)


KERNELS = [
    pytest.param("pl.pallas_call(kernel, s)(x)", "kernel", {}, 0, id="function"),
    pytest.param("pl.pallas_call(kernel=kernel, out_shape=s)(x)", "kernel", {}, 0, id="keyword"),
    pytest.param("pl.pallas_call(functools.partial(kernel, n=3), s)(x)", "kernel", {"n": "3"}, 0, id="partial"),
    pytest.param("pl.pallas_call(partial(kernel, n=3), s)(x)", "kernel", {"n": "3"}, 0, id="partial-from"),
    pytest.param("pl.pallas_call(partial(partial(kernel, n=3), n=4), s)(x)", "kernel", {"n": "4"}, 0, id="partial-twice"),
    pytest.param("pl.pallas_call(partial(kernel, y), s)(x)", "kernel", {"x_ref": "y"}, 1, id="partial-positional"),
    pytest.param("k = partial(kernel, n=3)\npl.pallas_call(k, s)(x)", "kernel", {"n": "3"}, 0, id="variable"),
    pytest.param("k = kernel\nk2 = k\npl.pallas_call(k2, s)(x)", "kernel", {}, 0, id="variables"),
    pytest.param("pl.pallas_call(lambda *refs: kernel(*refs, n=3), s)(x)", "kernel", {"n": "3"}, 0, id="forwarding-lambda"),
    pytest.param("pl.pallas_call(lambda x, o: kernel(x, o, n=3), s)(x)", "kernel", {"n": "3"}, 0, id="forwarding-lambda-names"),
    pytest.param("def make(n):\n  def inner(x_ref, o_ref): pass\n  return inner\npl.pallas_call(make(3), s)(x)", "inner", {}, 0, id="factory"),
    pytest.param("def f(x):\n  def inner(x_ref, o_ref): pass\n  return pl.pallas_call(inner, s)(x)", "inner", {}, 0, id="closure"),
    pytest.param("call = pl.pallas_call\ncall(kernel, s)(x)", "kernel", {}, 0, id="call-in-a-variable"),
    pytest.param("f = pl.pallas_call(kernel, s)\nf(x)", "kernel", {}, 0, id="result-in-a-variable"),
    pytest.param("jax.jit(pl.pallas_call(kernel, s))(x)", "kernel", {}, 0, id="jit"),
    pytest.param("jax.vmap(pl.pallas_call(kernel, s))(x)", "kernel", {}, 0, id="vmap"),
    pytest.param("@jax.custom_vjp\ndef f(x):\n  return pl.pallas_call(kernel, s)(x)", "kernel", {}, 0, id="custom-vjp"),
    pytest.param("@partial(pl.pallas_call, out_shape=s)\ndef dec(x_ref, o_ref): pass", "dec", {}, 0, id="decorator"),
    pytest.param("pl.pallas_call(partial(kernel, **options), s)(x)", None, {}, 0, id="partial-star-star"),
    pytest.param("from other import foreign\npl.pallas_call(foreign, s)(x)", None, {}, 0, id="imported"),
    pytest.param("def f(k, x):\n  return pl.pallas_call(k, s)(x)", None, {}, 0, id="parameter"),
    pytest.param("k = kernel if flag else kernel\npl.pallas_call(k, s)(x)", None, {}, 0, id="chosen"),
    pytest.param("def make(n):\n  def a(x_ref, o_ref): pass\n  def b(x_ref, o_ref): pass\n  if n: return a\n  return b\npl.pallas_call(make(3), s)(x)", None, {}, 0, id="factory-of-two"),
]


@pytest.mark.parametrize("source, name, bound, positional", KERNELS)
def test_kernel(source, name, bound, positional):
    found = site(source)
    assert (found.kernel.name if found.kernel is not None else None) == name
    if name is not None:
        assert {k: text(v) for k, v in found.bound.items()} == bound
        assert found.bound_positional == positional


def test_lambda_kernel():
    assert isinstance(site("pl.pallas_call(lambda x, o: o.set(x[...]), s)(x)").kernel, ast.Lambda)


@pytest.mark.parametrize("source", [
    pytest.param("def pallas_call(k, s): pass\npallas_call(kernel, s)", id="own-function"),
    pytest.param("def f(pl):\n  pl.pallas_call(kernel, s)", id="shadowed-module"),
    pytest.param("'pl.pallas_call(kernel, s)'  # pl.pallas_call(kernel)", id="text"),
    pytest.param("x.pallas_call(kernel, s)", id="method"),
    pytest.param("pl.pallas_call", id="not-called"),
])
def test_no_site(source):
    assert sites(source) == []


def test_sites_are_in_source_order():
    found = sites("def b(x):\n  return pl.pallas_call(kernel, s)(x), pl.pallas_call(kernel, s)(x)\npl.pallas_call(kernel, s)(x)")
    places = [(s.call.lineno, s.call.col_offset) for s in found]
    assert len(places) == 3 and places == sorted(places)


@pytest.mark.parametrize("grid, expected", [
    pytest.param("", (), id="none"),
    pytest.param(", grid=()", (), id="empty"),
    pytest.param(", grid=None", (), id="None"),
    pytest.param(", grid=4", ("4",), id="int"),
    pytest.param(", grid=m // 4", ("m // 4",), id="quotient"),
    pytest.param(", grid=pl.cdiv(m, 4)", ("pl.cdiv(m, 4)",), id="cdiv"),
    pytest.param(", grid=(4,)", ("4",), id="rank-1"),
    pytest.param(", grid=(4, m)", ("4", "m"), id="rank-2"),
    pytest.param(", grid=[4, m, 2]", ("4", "m", "2"), id="rank-3-list"),
    pytest.param(", grid=(4, *rest)", None, id="starred"),
    pytest.param(", grid=make()", None, id="call"),
    pytest.param(", grid=g", None, id="unknown-name"),
])
def test_grid(grid, expected):
    found = site(f"pl.pallas_call(kernel, s{grid})(x)").grid
    assert (None if found is None else tuple(map(text, found))) == expected


def test_grid_in_a_variable():
    assert tuple(map(text, site("g = (4, m)\npl.pallas_call(kernel, s, grid=g)(x)").grid)) == ("4", "m")


SPECS = [
    pytest.param("[pl.BlockSpec((8, n), lambda i: (i, 0))]", [("8", "n")], id="list"),
    pytest.param("(pl.BlockSpec((8, n), lambda i: (i, 0)),)", [("8", "n")], id="tuple"),
    pytest.param("pl.BlockSpec((8,), lambda i: (i,))", [("8",)], id="single"),
    pytest.param("[pl.BlockSpec(block_shape=(8,), index_map=lambda i: (i,))]", [("8",)], id="keywords"),
    pytest.param("[pl.BlockSpec(lambda i: (i,), (8,))]", [("8",)], id="old-order"),
    pytest.param("[pl.BlockSpec((None, 8), lambda i: (i, 0))]", [("None", "8")], id="None-dim"),
    pytest.param("[pl.BlockSpec((pl.squeezed, 8), lambda i: (i, 0))]", [("None", "8")], id="squeezed"),
    pytest.param("[pl.BlockSpec((8,), lambda i: (i,))] * 2", [("8",), ("8",)], id="times"),
    pytest.param("2 * [pl.BlockSpec((8,), lambda i: (i,))]", [("8",), ("8",)], id="times-left"),
    pytest.param("[pl.BlockSpec((8,), f)] + [pl.BlockSpec((4,), f)]", [("8",), ("4",)], id="plus"),
    pytest.param("[None, pl.BlockSpec((4,), f)]", [None, ("4",)], id="None"),
    pytest.param("[pl.no_block_spec]", [None], id="no-block-spec"),
    pytest.param("[pl.BlockSpec()]", [None], id="empty"),
    pytest.param("[pl.BlockSpec(None)]", [None], id="block-None"),
    pytest.param("[pl.BlockSpec(x.shape, lambda i: (0, 0))]", [None], id="whole-shape"),
    pytest.param("[pl.BlockSpec(memory_space=pl.ANY)]", [None], id="memory-space"),
    pytest.param("[*[pl.BlockSpec((8,), f)], None]", [("8",), None], id="starred"),
    pytest.param("list((pl.BlockSpec((8,), f),))", [("8",)], id="list-of-a-tuple"),
    pytest.param("[pl.BlockSpec((pl.Squeezed(), pl.Blocked(8)), f)]", [("None", "8")], id="kinds"),
    pytest.param("[pl.BlockSpec((pl.Element(8),), lambda i: (i * 8,))]", [("8",)], id="element"),
    pytest.param("[pl.BlockSpec((8,), lambda i: (i * 8,), indexing_mode=pl.Unblocked())]", [("8",)], id="unblocked"),
    pytest.param("[pl.BlockSpec(x.shape, lambda *_: (0,) * x.ndim)]", [None], id="whole-shape-any-rank"),
    pytest.param("[None if flag else pl.BlockSpec((8,), f)]", [("8",)], id="optional"),
    pytest.param("[pl.BlockSpec((), lambda i: ())]", [()], id="rank-0"),
]


@pytest.mark.parametrize("specs, shapes", SPECS)
def test_specs(specs, shapes):
    found = site(f"pl.pallas_call(kernel, s, in_specs={specs})(x)")
    assert not found.unresolved
    got = [None if s.block_shape is None else tuple(map(text, s.block_shape)) for s in found.in_specs]
    assert got == shapes


@pytest.mark.parametrize("specs", [
    pytest.param("[spec if flag else None]", id="unknown"),
    pytest.param("[pl.BlockSpec((8,), f) if flag else pl.BlockSpec((4,), f)]", id="either"),
    pytest.param("[pl.BlockSpec((8,), f)] * n", id="times-a-variable"),
    pytest.param("[*specs]", id="starred"),
    pytest.param("make()", id="call"),
    pytest.param("[pl.BlockSpec((8,), f) for _ in range(2)]", id="comprehension"),
    pytest.param("[pl.BlockSpec((8,), lambda i: (i * 8,), indexing_mode=pl.Unblocked(((0, 8),)))]", id="padding"),
    pytest.param("[pl.BlockSpec((8,), lambda i: (i,), pipeline_mode=pl.Buffered(2))]", id="pipeline-mode"),
    pytest.param("[pl.BlockSpec((pl.Element(8, (0, 4)),), lambda i: (i * 8,))]", id="element-padding"),
    pytest.param("[pl.BlockSpec((pl.BoundedSlice(8),), lambda i: (pl.ds(i, 8),))]", id="bounded-slice"),
    pytest.param("[pl.BlockSpec((8, *rest), f)]", id="starred-shape"),
    pytest.param("[pl.BlockSpec(**options)]", id="star-star"),
    pytest.param("[pl.BlockSpec(x.shape, lambda i: (i, 0))]", id="whole-shape-moved"),
])
def test_unreadable_specs(specs):
    found = site(f"pl.pallas_call(kernel, s, in_specs={specs})(x)")
    ((what, _),) = found.unresolved
    assert what.startswith("in_specs: ")


CHANGES = [
    pytest.param("specs.append(None)", [("8",), None], id="append"),
    pytest.param("specs += [None]", [("8",), None], id="plus"),
    pytest.param("specs.insert(0, None)", [None, ("8",)], id="insert"),
    pytest.param("specs.extend([None, None])", [("8",), None, None], id="extend"),
    pytest.param("if flag:\n  specs.append(None)\nelse:\n  specs.append(pl.BlockSpec((4,), f))", [("8",), ("4",)], id="both-branches"),
    pytest.param("more = specs.copy()\nmore.append(None)\nspecs = more", [("8",), None], id="copy"),
    pytest.param("specs[0] = y", None, id="element"),
    pytest.param("del specs[0]", None, id="deleted"),
    pytest.param("if flag:\n  specs.append(None)", [("8",), None], id="condition"),
    pytest.param("if flag:\n  specs.append(None)\nspecs.append(None)", None, id="behind-a-condition"),
    pytest.param("if flag:\n  specs.insert(0, None)", None, id="inserted-under-a-condition"),
    pytest.param("for _ in r:\n  specs.append(None)", None, id="loop"),
    pytest.param("def g():\n  specs.append(None)\ng()", None, id="function"),
    pytest.param("specs.append(y)", None, id="unknown"),
    pytest.param("specs.sort()", None, id="method"),
]


@pytest.mark.parametrize("change, shapes", CHANGES)
def test_list_of_specs_that_is_changed(change, shapes):
    found = site(f"specs = [pl.BlockSpec((8,), f)]\n{change}\npl.pallas_call(kernel, s, in_specs=specs)(x)")
    assert bool(found.unresolved) == (shapes is None)
    if shapes is not None:
        got = [None if s.block_shape is None else tuple(map(text, s.block_shape)) for s in found.in_specs]
        assert got == shapes
        assert any(s.extra for s in found.in_specs) == (change == "if flag:\n  specs.append(None)")


@pytest.mark.parametrize("made, unless", [
    ("spec = None if b is None else pl.BlockSpec((8,), f)", "b is None"),
    ("spec = pl.BlockSpec((8,), f) if b is not None else None", "b is None"),
    ("spec = pl.BlockSpec((8,), f) if flag else None", "not flag"),
    ("spec = None\nif b is not None:\n  spec = pl.BlockSpec((8,), f)", "b is None"),
    ("if flag:\n  spec = None\nelse:\n  spec = pl.BlockSpec((8,), f)", "flag"),
])
def test_condition_of_an_optional_spec(made, unless):
    (spec,) = site(f"{made}\npl.pallas_call(kernel, s, in_specs=[spec])(x)").in_specs
    assert text(spec.unless) == unless
    assert text(spec.block_shape[0]) == "8"


@pytest.mark.parametrize("grid, rank, shown", [
    ("4", 1, "(4,)"), ("n // 4", 1, "(n // 4,)"), ("pl.cdiv(n, 4)", 1, "(pl.cdiv(n, 4),)"), ("[4, n]", 2, "(4, n)"),
    ("(4, n)", 2, "(4, n)"), ("()", 0, ""), ("None", 0, ""), ("g", None, ""),
])
def test_text_of_the_grid(grid, rank, shown):
    found = site(f"pl.pallas_call(kernel, s, grid={grid})(x)")
    assert (None if found.grid is None else len(found.grid)) == rank
    assert found.grid_text == shown


@pytest.mark.parametrize("made", [
    "g = None\nif g is None:\n  g = (4, n)", "if n > 4:\n  g = (4, n)\nelse:\n  g = (n, 4)", "g = (4, n) if n > 4 else (n, 4)",
    "g = tuple(n // b for b in blocks)",
])
def test_grid_made_under_conditions(made):
    """Its rank is that of the index maps, or of the tuples that it may be."""
    specs = "in_specs=[pl.BlockSpec((8, 8), lambda i, j: (i, j))]"
    found = site(f"{made}\npl.pallas_call(kernel, s, grid=g, {specs})(x)")
    assert tuple(map(text, found.grid)) == ("g[0]", "g[1]") and found.grid_text == "g"


@pytest.mark.parametrize("spec", ["pl.GridSpec(grid=(4,), in_specs=[pl.BlockSpec((8,), f)], out_specs=None)", "pl.GridSpec((4,), [pl.BlockSpec((8,), f)])"])
def test_grid_spec(spec):
    found = site(f"pl.pallas_call(kernel, s, grid_spec={spec})(x)")
    assert not found.unresolved and found.grid_text == "(4,)" and len(found.in_specs) == 1 and found.out_specs is None


BACKENDS = [
    pytest.param("compiler_params=plgpu.CompilerParams(num_warps=4)", "triton", id="triton"),
    pytest.param("compiler_params=plgpu.TritonCompilerParams(num_warps=4)", "triton", id="old-name"),
    pytest.param("compiler_params=dict(triton=dict(num_warps=4))", "triton", id="dict"),
    pytest.param("compiler_params={'triton': {'num_warps': 4}}", "triton", id="dict-display"),
    pytest.param("backend='triton'", "triton", id="backend-triton"),
    pytest.param("backend='mosaic_gpu'", "mosaic", id="backend-mosaic"),
    pytest.param("backend='mosaic_tpu'", "tpu", id="backend-tpu"),
    pytest.param("compiler_params=mgpu.CompilerParams()", "mosaic", id="mosaic"),
    pytest.param("compiler_params=pltpu.CompilerParams()", "tpu", id="tpu"),
    pytest.param("interpret=False", "triton", id="only-imported"),
]


@pytest.mark.parametrize("keyword, backend", BACKENDS)
def test_backend(keyword, backend):
    more = "from jax.experimental.pallas import mosaic_gpu as mgpu\nfrom jax.experimental.pallas import tpu as pltpu\n"
    assert site(f"{more}pl.pallas_call(kernel, s, {keyword})(x)").backend == backend


def test_implicit_backend():
    source = "from jax.experimental import pallas as pl\ndef k(x, o): pass\npl.pallas_call(k, s)(x)\n"
    (found,) = find_sites(Resolver(ast.parse(source)))
    assert found.backend == "implicit"


def test_keyword_arguments_by_star_star_are_unresolved():
    assert site("pl.pallas_call(kernel, **options)(x)").unresolved


def test_grid_spec_is_unresolved():
    assert site("pl.pallas_call(kernel, s, grid_spec=g)(x)").unresolved


@pytest.mark.parametrize("source, has", [("pl.pallas_call(kernel, s)(x)", True), ("f = pl.pallas_call(kernel, s)", False)])
def test_invocation(source, has):
    assert (site(source).invocation is not None) == has


FORWARDERS = [
    pytest.param("lambda *r: k(*r, 8)", {"n"}, id="star"),
    pytest.param("lambda a, b: k(a, b, 8)", {"n"}, id="names"),
    pytest.param("lambda *r: k(*r, n=8)", {"n"}, id="keyword"),
    pytest.param("functools.partial(lambda *r: k(*r), n=8)", {"n"}, id="partial-of-a-lambda"),
    pytest.param("lambda a, b: k(b, a, 8)", None, id="swapped"),
    pytest.param("lambda a, b: k(a, b, a.shape[0])", None, id="own-parameter"),
    pytest.param("lambda a, b: k(a, b, *rest)", None, id="starred"),
    pytest.param("lambda a, b=0: k(a, b, 8)", None, id="default"),
]


@pytest.mark.parametrize("kernel, bound", FORWARDERS)
def test_wrappers_that_only_pass_refs_on(kernel, bound):
    found = site(f"import functools\ndef k(x_ref, o_ref, n): pass\npl.pallas_call({kernel}, s)(x)")
    assert (set(found.bound) if isinstance(found.kernel, ast.FunctionDef) else None) == bound


def test_functions_of_other_modules_are_no_kernels():
    found = site("def k(o_ref):\n  plgpu.store(o_ref, 1.0)\npl.pallas_call(k, s)(x)")
    assert isinstance(found.kernel, ast.FunctionDef) and found.kernel.name == "k" and not found.bound


@pytest.mark.parametrize("parameters", ["x_ref, o_ref, n=8", "*refs"])
def test_unclear_which_parameter_a_wrapper_binds(parameters):
    assert site(f"def k({parameters}): pass\npl.pallas_call(lambda *r: k(*r, 8), s)(x)").kernel is None


WRAPPED = '''
from jax.experimental.pallas import triton as plgpu
from mylib import block

def kernel(x_ref, o_ref):
    o_ref[...] = x_ref[...]

def run(x):
    return block.pallas_call(kernel, out_shape=x, grid=(1,))(x)
'''


def test_a_wrapper_of_another_module_is_a_call_that_stays():
    from pallas_port.translator.driver import port
    from pallas_port.translator.result import Options
    from pallas_port.translator.source import Source

    result = port(Source("kernel.py", WRAPPED), "sm90", Options())
    (site,) = result.sites
    assert site.status == "kept" and not result.changed
    assert [d.code for d in site.diagnostics if d.blocks] == ["C202"]
    assert "mylib.block.pallas_call stands between" in site.diagnostics[0].reason


def test_a_wrapper_in_a_file_for_another_backend_is_none():
    assert not find_sites(Resolver(ast.parse(WRAPPED.replace("pallas import triton", "pallas import tpu"))))
