"""Kernels that once were ported wrongly or broke the port, kept as they were found, minimised."""

import ast

import pytest

from pallas_port.translator.driver import port
from pallas_port.translator.result import Options
from pallas_port.translator.source import Source

HEAD = """\
import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plt

CP = plt.CompilerParams(num_warps=4)

"""
PRODUCT_CALL = """

def run(a, b):
    (m, kk), n = a.shape, b.shape[1]
    return pl.pallas_call(
        k, grid=(m // 64, n // 64),
        in_specs=[pl.BlockSpec((64, kk), lambda i, j: (i, 0)), pl.BlockSpec((kk, 64), lambda i, j: (0, j))],
        out_specs=pl.BlockSpec((64, 64), lambda i, j: (i, j)),
        out_shape=jax.ShapeDtypeStruct((m, n), jnp.float32), compiler_params=CP)(a, b)
"""
STEP = """\
    def step(t, acc):
        return acc + jnp.dot(a_ref[:, pl.ds(t * 64, 64)], b_ref[pl.ds(t * 64, 64), :])
"""
ZEROS = "jnp.zeros((64, 64), jnp.float32)"


def product(before: str, after: str) -> str:
    return f"{HEAD}\ndef k(a_ref, b_ref, o_ref):\n{before}{STEP}{after}{PRODUCT_CALL}"


def run(source: str, target: str = "sm90"):
    return port(Source("kernel.py", source), target, Options())


SHARED_LINES = [
    pytest.param("    z = 1; y = 2\n", f"    acc = lax.fori_loop(0, 2, step, {ZEROS})\n    o_ref[...] = acc\n", id="dead"),
    pytest.param("    M, K = a_ref.shape; N = b_ref.shape[1]\n", f"    acc = lax.fori_loop(0, K // 64, step, {ZEROS})\n    o_ref[...] = acc\n", id="shapes"),
    pytest.param("", f"    nk = 2; acc = lax.fori_loop(0, nk, step, {ZEROS})\n    o_ref[...] = acc\n", id="loop"),
    pytest.param("", f"    acc = lax.fori_loop(0, 2, step, {ZEROS}); o_ref[...] = acc\n", id="store"),
]


@pytest.mark.parametrize("before, after", SHARED_LINES)
@pytest.mark.parametrize("target", ["sm90", "sm100"])
def test_products_whose_statements_share_a_line_keep_their_store(before, after, target):
    result = run(product(before, after), target)
    assert [s.status for s in result.sites] == ["ported"], result.diagnostics
    assert result.text.count("part.store(acc, o_ref)") == 1
    assert "jnp.dot" not in result.text
    ast.parse(result.text)


def test_loop_inside_an_expression_is_its_accumulator():
    result = run(product("", f"    o_ref[...] = lax.fori_loop(0, 2, step, {ZEROS}) * 2\n"))
    assert "part.store(total * 2, o_ref)" in result.text


@pytest.mark.parametrize("made", ["bs = 16", "bs = x.shape[0] // 2"])
def test_extents_that_only_specs_read_stay(made):
    source = f"""{HEAD}
def k(x_ref, o_ref):
    o_ref[...] = x_ref[...] + 1


def run(x):
    {made}
    return pl.pallas_call(k, grid=(2,), in_specs=[pl.BlockSpec((bs,), lambda i: (i,))],
        out_specs=pl.BlockSpec((bs,), lambda i: (i,)), out_shape=x, compiler_params=CP)(x)
"""
    text = run(source).text
    assert f"    {made}\n" in text and "pl.ds(i * bs, bs)" in text


def test_product_in_a_python_loop_is_diagnosed():
    body = f"""\
    acc = {ZEROS}
    for t in range(2):
        acc += jnp.dot(a_ref[:, pl.ds(t * 64, 64)], b_ref[pl.ds(t * 64, 64), :])
    o_ref[...] = acc
"""
    result = run(f"{HEAD}\ndef k(a_ref, b_ref, o_ref):\n{body}{PRODUCT_CALL}")
    assert {d.code for d in result.diagnostics if d.blocks} == {"B130"}
    assert result.text == result.original


@pytest.mark.parametrize("name", ["part", "count", "tile", "ring"])
def test_names_that_a_pipeline_needs_are_diagnosed(name):
    result = run(product(f"    {name} = 2.0\n", f"    acc = lax.fori_loop(0, 2, step, {ZEROS})\n    o_ref[...] = acc * {name}\n"))
    assert {d.code for d in result.diagnostics if d.blocks} == {"B130"}


@pytest.mark.parametrize("name", ["ring", "loads", "body"])
def test_kernels_named_as_parts_of_a_pipeline_are_diagnosed(name):
    source = product("", f"    o_ref[...] = lax.fori_loop(0, 2, step, {ZEROS})\n")
    source = source.replace("def k(", f"def {name}(").replace("        k, grid", f"        {name}, grid")
    assert {d.code for d in run(source).diagnostics if d.blocks} == {"B130"}


@pytest.mark.parametrize(
    "quotient",
    [
        "x / jnp.sqrt(jnp.sum(x * x, axis=-1, keepdims=True))",
        "x / jnp.sqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-5)",
        "x / jnp.sqrt(jnp.sum(x * x, axis=1)[:, None])",
        "(x - x.mean(-1, keepdims=True)) / jnp.sqrt(jnp.maximum(x.sum(1, keepdims=True), 1))",
    ],
)
def test_quotients_by_roots_of_columns(quotient):
    source = f"""{HEAD}
def k(x_ref, o_ref):
    x = x_ref[...]
    o_ref[...] = {quotient}


def run(x):
    tile = pl.BlockSpec((16, 64), lambda i: (i, 0))
    return pl.pallas_call(k, grid=(2,), in_specs=[tile], out_specs=tile, out_shape=x, compiler_params=CP)(x)
"""
    result = run(source)
    assert [s.status for s in result.sites] == ["ported"], result.diagnostics
    assert "lax.rsqrt(" in result.text and "keepdims" not in result.text.rpartition("def k(")[2]


def test_counting_sums_are_not_hoisted():
    source = f"""{HEAD}
def k(x_ref, o_ref):
    def body(t, count):
        x = x_ref[pl.ds(t * 8, 8), :]
        return count + jnp.sum(x > 0, axis=0)

    count = lax.fori_loop(0, 4, body, jnp.zeros(64, jnp.int32))
    o_ref[...] = count


def run(x):
    return pl.pallas_call(k, out_shape=jax.ShapeDtypeStruct((64,), jnp.int32), compiler_params=CP)(x)
"""
    assert "count + jnp.sum(x > 0, axis=0)" in run(source).text


def test_no_comment_is_lost():
    source = product("    # first\n", f"    # run it\n    acc = lax.fori_loop(0, 2, step, {ZEROS})  # loop\n    # last\n    o_ref[...] = acc  # done\n")
    source = source.replace("        return acc + jnp", "        # multiply\n        return acc + jnp").replace("grid=(m // 64, n // 64),\n", "grid=(m // 64, n // 64),  # the grid\n")
    for target in ("sm90", "sm100"):
        text = run(source, target).text
        for comment in ("# first", "# run it", "# loop", "# last", "# done", "# multiply", "# the grid"):
            assert comment in text


@pytest.mark.parametrize("target", ["sm90", "sm100"])
def test_program_ids_in_indices_of_products_are_parameters(target):
    """In the persistent form ``pl.program_id`` would be the block's number, not the program's."""
    source = f"""{HEAD}
def k(a_ref, b_ref, o_ref):
    def step(t, acc):
        a = a_ref[pl.ds(pl.program_id(0) * 64, 64), pl.ds(t * 64, 64)]
        return acc + jnp.dot(a, b_ref[pl.ds(t * 64, 64), pl.ds(pl.program_id(1) * 64, 64)])

    acc = lax.fori_loop(0, 2, step, {ZEROS})
    o_ref[pl.ds(pl.program_id(0) * 64, 64), pl.ds(pl.program_id(1) * 64, 64)] = acc


def run(a, b):
    (m, kk), n = a.shape, b.shape[1]
    return pl.pallas_call(k, grid=(m // 64, n // 64), out_shape=jax.ShapeDtypeStruct((m, n), jnp.float32), compiler_params=CP)(a, b)
"""
    result = run(source, target)
    assert [s.status for s in result.sites] == ["ported"], result.diagnostics
    assert "program_id" not in result.text
    assert "a_ref.at[pl.ds(i * 64, 64), pl.ds(t * 64, 64)]" in result.text


def test_program_id_in_the_bounds_of_a_product_loop():
    source = product("", f"    acc = lax.fori_loop(0, pl.program_id(0) + 1, step, {ZEROS})\n    o_ref[...] = acc\n")
    result = run(source)
    assert [s.status for s in result.sites] == ["ported"] and "program_id" not in result.text
    assert result.text.count("lax.fori_loop(0, i + 1, step, count)") == 2


ROW = HEAD + """
def kern(x_ref, o_ref, s):
    i = pl.program_id(0)
    o_ref[i, :] = x_ref[i, :] * s

KERNELS = {"k": kern}
"""
UNFOLLOWED = [
    pytest.param("def run(x, kernel):\n    return CALL(lambda *refs: kernel(*refs, 2.0))(x)", id="parameter"),
    pytest.param("def run(x, name):\n    return CALL(lambda *refs: KERNELS[name](*refs, 2.0))(x)", id="dictionary"),
    pytest.param("def run(self, x):\n    return CALL(lambda x_ref, o_ref: self.kern(x_ref, o_ref, 2.0))(x)", id="method"),
    pytest.param("def run(x, kernel):\n    def w(x_ref, o_ref):\n        kernel(x_ref, o_ref, s=2.0)\n    return CALL(w)(x)", id="def"),
    pytest.param("def run(x, kernel):\n    def w(x_ref, o_ref):\n        kernel(s=2.0, refs=(x_ref, o_ref))\n    return CALL(w)(x)", id="keyword"),
    pytest.param("def run(x, kernel):\n    def w(*refs):\n        kernel(*list(refs), 2.0)\n    return CALL(w)(x)", id="list"),
    pytest.param("def run(x, kernel):\n    def w(*refs):\n        kernel({'refs': refs}, 2.0)\n    return CALL(w)(x)", id="inside-a-dictionary"),
    pytest.param("def run(x, each):\n    def w(x_ref, o_ref):\n        each(lambda i: kern(x_ref, o_ref, i))\n    return CALL(w)(x)", id="function"),
]


@pytest.mark.parametrize("caller", UNFOLLOWED)
def test_refs_that_leave_what_can_be_followed(caller, request):
    also = {"list": ["B110"], "inside-a-dictionary": ["B104"]}.get(request.node.callspec.id, [])  # where they are read
    caller = caller.replace("CALL(", "pl.pallas_call(").replace(")(x)", ", grid=(8,), out_shape=x, compiler_params=CP)(x)")
    result = run(f"{ROW}\n\n{caller}\n")
    assert [d.code for d in result.diagnostics if d.blocks] == ["B110", *also]
    assert result.text == f"{ROW}\n\n{caller}\n"


BOUND = HEAD + """
S = 2.0

def mm(a_ref, b_ref, c_ref, {star}bk, s, act=None):
    def step(t, acc):
        return acc + jnp.dot(a_ref[:, pl.ds(t * bk, bk)], b_ref[pl.ds(t * bk, bk), :])
    acc = lax.fori_loop(0, a_ref.shape[1] // bk, step, jnp.zeros(c_ref.shape, jnp.float32))
    if act is not None:
        acc = act(acc)
    c_ref[...] = acc * s
{module}
def run(a, b, {parameters}):
    (m, kk), n = a.shape, b.shape[1]
{before}    return pl.pallas_call(
        {kernel}, grid=(m // 64, n // 64),
        in_specs=[pl.BlockSpec((64, kk), lambda i, j: (i, 0)), pl.BlockSpec((kk, 64), lambda i, j: (0, j))],
        out_specs=pl.BlockSpec((64, 64), lambda i, j: (i, j)),
        out_shape=jax.ShapeDtypeStruct((m, n), jnp.float32), compiler_params=CP)(a, b)
"""


def bound(kernel, star="", module="", parameters="s=2.0", before=""):
    text = BOUND.format(kernel=kernel, star=star, module=module, parameters=parameters, before=before)
    return text.replace("import jax\n", "import functools\nimport jax\n", 1)


MOVED = [
    pytest.param(bound("k", "*, ", "k = lambda *r: mm(*r, bk=64, s=S, act=None)\n", "S=5.0"), id="lambda-of-the-module"),
    pytest.param(bound("k", "*, ", "k = functools.partial(mm, bk=64, s=S, act=None)\n", "S=5.0"), id="partial-of-the-module"),
    pytest.param(bound("k", "*, ", "k = functools.partial(mm, bk=64, s=S, act=None)\nS = 3.0\n"), id="rebound-in-the-module"),
    pytest.param(bound("k", "*, ", before="    k = functools.partial(mm, bk=64, s=s, act=None)\n    s = 3.0\n"), id="rebound"),
]


@pytest.mark.parametrize("source", MOVED)
def test_values_bound_to_a_product_kernel_that_mean_something_else_in_the_launch(source):
    assert "C202" in [d.code for d in run(source).diagnostics]


STATICS = [
    pytest.param(bound("functools.partial(mm, bk=64, s=s, act=None)"), id="partial"),
    pytest.param(bound("functools.partial(mm, bk=64, s=s, act=jnp.tanh)"), id="activation"),
    pytest.param(bound("lambda *r: mm(*r, bk=64, s=s, act=None)"), id="lambda"),
    pytest.param(bound("lambda *r: mm(*r, 64, s)").replace(", act=None):", "):").replace("act", "None"), id="lambda-positional"),
    pytest.param(bound("functools.partial(mm, 64, s)").replace("mm(a_ref, b_ref, c_ref, bk, s, act=None)", "mm(bk, s, a_ref, b_ref, c_ref, *, act=None)"), id="partial-positional"),
]


@pytest.mark.parametrize("source", STATICS)
@pytest.mark.parametrize("target", ["sm90", "sm100"])
def test_statics_of_a_product_kernel_that_are_not_keyword_only(source, target):
    result = run(source, target)
    assert [s.status for s in result.sites] == ["ported"], result.diagnostics
    for name in ("mm", "mm_loads"):
        (function,) = [n for n in ast.walk(ast.parse(result.text)) if isinstance(n, ast.FunctionDef) and n.name == name]
        assert [a.arg for a in function.args.args[:3]] == ["a_ref", "b_ref", "c_ref"]
        assert {"bk", "s"} <= {a.arg for a in function.args.kwonlyargs}


def test_functions_that_differ_between_calls_are_not_followed():
    source = HEAD + """
def one(x_ref, o_ref):
    o_ref[pl.program_id(0), :] = x_ref[pl.program_id(0), :]

def two(x_ref, o_ref):
    o_ref[pl.program_id(0), :] = x_ref[pl.program_id(0), :] * 2

def kern(x_ref, o_ref, *, f):
    f(x_ref, o_ref)

def run(x):
    y = pl.pallas_call(lambda *r: kern(*r, f=one), grid=(8,), out_shape=x, compiler_params=CP)(x)
    return pl.pallas_call(lambda *r: kern(*r, f=two), grid=(8,), out_shape=x, compiler_params=CP)(y)
"""
    assert {d.code for d in run(source).diagnostics} == {"B110"}


def test_primitives_of_a_library_function_that_is_passed_in():
    source = ROW.replace("* s", "").replace("x_ref[i, :]", "s(x_ref[i, :])") + """
def run(x):
    return pl.pallas_call(lambda *r: kern(*r, jnp.floor), grid=(8,), out_shape=x, compiler_params=CP)(x)
"""
    assert [d.code for d in run(source).diagnostics] == ["B120"]


def test_comment_above_the_docstring_of_a_product_kernel_is_kept_once():
    source = product('    # why\n    """A product."""\n', f"    acc = lax.fori_loop(0, 2, step, {ZEROS})\n    o_ref[...] = acc\n")
    assert run(source).text.count("# why") == 1
