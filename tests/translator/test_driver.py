"""End to end on small sources: what is ported, what stays and why, and what must not change."""

import ast
import re
import sys
import types

import pytest

from pallas_port.translator.diagnostics import CODES
from pallas_port.translator.driver import port
from pallas_port.translator.result import Options
from pallas_port.translator.source import Source

IMPORTS = """\
import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu
"""
PARAMS = "compiler_params=plgpu.CompilerParams(num_warps=4)"
CALL = f"kernel, grid=(4,), out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), {PARAMS}"


def run(source: str, target="sm90", **options):
    return port(Source("kernel.py", source), target, Options(**options))


def module(body: str, call: str = CALL, before: str = "", operands: str = "x") -> str:
    """A module with one kernel (``body``, whole functions) and one call."""
    return f"{IMPORTS}\n\n{body.strip()}\n\n\ndef run({operands}):\n{before}    return pl.pallas_call({call})({operands})\n"


def own_code(text: str) -> str:
    """The port without imports and support code."""
    kept, skip = [], False
    for line in text.split("\n"):
        if line.startswith(("def _", "class _", "import ", "from ", "# Support code")):
            skip = True
        elif line and not line[0].isspace():
            skip = False
        if not skip:
            kept.append(line)
    return "\n".join(kept)


def status(result) -> list[str]:
    return [s.status for s in result.sites]


def assert_ported(source: str, target="sm90"):
    result = run(source, target)
    assert set(status(result)) == {"ported"}, result.diagnostics
    ast.parse(result.text)
    assert run(result.text, target).text == result.text, "porting the port changes it"
    return result


def assert_kept(source: str, code: str):
    result = run(source)
    assert result.text == source
    assert set(status(result)) == {"kept"}
    assert code in {d.code for d in result.diagnostics}, result.diagnostics
    return result


COPY = """
def kernel(x_ref, o_ref):
    here = pl.ds(pl.program_id(0) * 128, 128)
    o_ref[here] = x_ref[here] + 1
"""

# -- modules that stay as they are ------------------------------------------------------------------

NOOPS = [
    pytest.param("", id="empty"),
    pytest.param("x = 1\n", id="no-pallas"),
    pytest.param('"""pl.pallas_call(kernel)"""\n# pl.program_id(0)\n', id="only-in-text"),
    pytest.param(f"{IMPORTS}\nparams = plgpu.CompilerParams(num_warps=4)\n", id="no-call"),
    pytest.param(module(COPY).replace("triton as plgpu", "mosaic_gpu as plgpu"), id="mosaic"),
    pytest.param(module(COPY).replace("triton as plgpu", "tpu as plgpu"), id="tpu"),
    pytest.param(module(COPY).replace("from jax.experimental import pallas as pl", "import mine as pl"), id="another-pl"),
    pytest.param("def pallas_call(*a, **k): pass\n\ndef run(x):\n    return pallas_call(run, grid=(4,))(x)\n", id="own-pallas-call"),
    pytest.param("class pl:\n    pallas_call = print\n\npl.pallas_call(1)\n", id="class-named-pl"),
    pytest.param("def run(pl, x):\n    return pl.pallas_call(x)(x)\n", id="parameter-named-pl"),
]


@pytest.mark.parametrize("source", NOOPS)
def test_noop(source):
    result = run(source)
    assert result.text == source
    assert "ported" not in status(result)


# -- every diagnosis --------------------------------------------------------------------------------

def body(*lines: str) -> str:
    return "def kernel(x_ref, o_ref):\n" + "\n".join(f"    {line}" for line in lines)


LOAD = "x = x_ref[pl.ds(0, 128)]"
TILE = "x = x_ref[pl.ds(0, 16), pl.ds(0, 128)]"
STORE = "o_ref[pl.ds(0, 128)] = x"

# code, module; the text that the diagnosis points at is between « and ».
CASES = [
    pytest.param("B101", module(body(LOAD, "«while True:", "    break»", STORE)), id="B101-while"),
    pytest.param("B101", module(body("x = [x_ref[pl.ds(0, 128)] for _ in range(1)][0]", STORE).replace("[x_ref[pl.ds(0, 128)] for _ in range(1)]", "«[x_ref[pl.ds(0, 128)] for _ in range(1)]»")), id="B101-comprehension"),
    pytest.param("B102", module(body(LOAD, "x = «lax.fori_loop(0, 4, unknown, x)»", STORE)), id="B102-body-not-found"),
    pytest.param("B102", module(body("@«jax.jit»", "def f(x):", "    return x", LOAD, STORE)), id="B102-decorator"),
    pytest.param("B140", module(body("«o_ref[pl.ds(0, 128)]» += x_ref[pl.ds(0, 128)]")), id="B140"),
    pytest.param("B103", module(body("«o_ref[0] += x_ref[0]»")), id="B103"),
    pytest.param("B104", module(body("x = x_ref[«0:128:x_ref[0]»]", STORE)), id="B104-step"),
    pytest.param("B104", module(body("x = «plgpu.load(jnp.zeros(128))»", STORE)), id="B104-not-a-ref"),
    pytest.param("B105", module(body(LOAD, "x = «x.reshape(128)»", STORE)), id="B105-reshape"),
    pytest.param("B105", module(body(LOAD, "x = «x[0]»", STORE)), id="B105-index"),
    pytest.param("B106", module(body("x = x_ref[jnp.arange(64)]", "«o_ref[0]» = x")), id="B106"),
    pytest.param("B107", module(body(TILE, "o_ref[jnp.arange(16)[:, None], jnp.arange(1)[None, :]] = «x.sum(axis=1, keepdims=True)»")), id="B107"),
    pytest.param("B108", module(body("o_ref[pl.ds(0, 128)] = «0»")), id="B108"),
    pytest.param("B109", module("get = lambda ref: «ref[pl.ds(0, 128)]»\n\n\n" + body("o_ref[pl.ds(0, 128)] = get(x_ref)")), id="B109"),
    pytest.param("B110", module(body(LOAD, "x = «functools.reduce(f, x)»", STORE)), id="B110"),
    pytest.param("B111", module(body("x = x_ref[«jnp.arange(x_ref[0])»]", STORE)), id="B111"),
    pytest.param("B112", module(body(TILE, "x = «jnp.argmax(x, axis=(0, 1))»", STORE)), id="B112-two-axes"),
    pytest.param("B112", module(body(TILE, "x = «jnp.sum(x, where=x > 0)»", "o_ref[0] = x")), id="B112-where-whole-tile"),
    pytest.param("B112", module(body(TILE, "x = «jnp.max(x, initial=0.)»", "o_ref[0] = x")), id="B112-initial"),
    pytest.param("B112", module(body("flag = x_ref.shape[0] > 1", TILE, "x = x - «x.sum(axis=1, keepdims=flag)»", "o_ref[pl.ds(0, 16), pl.ds(0, 128)] = x")), id="B112-keepdims"),
    pytest.param("B113", module(body("i = «pl.program_id(axis_of(x_ref))»", LOAD, STORE).replace("axis_of(x_ref)", "len('x')")), id="B113"),
    pytest.param("B114", module(body("x = «pl.load(x_ref, *at)»", STORE)), id="B114-load"),
    pytest.param("B114", module(body(LOAD, "«pl.store(o_ref, *at, x)»")), id="B114-store"),
    pytest.param("B120", module(body(LOAD, "x = «jnp.prod(x)»", "o_ref[0] = x")), id="B120-prod"),
    pytest.param("B121", module(body("i = x_ref[jnp.arange(16)]", "x = «x_ref[i[:, None], i[None, :]]»", "o_ref[i[:, None], i[None, :]] = x")), id="B121"),
    pytest.param("B122", module(body(LOAD, STORE, "n = 16", "n = x_ref.shape[0] // 2", "m = n // 2", "x = «x_ref[pl.ds(0, m)]»", "o_ref[pl.ds(0, m)] = x")), id="B122"),
    pytest.param("B123", module(body("x = «x_ref[pl.ds(0, 4), pl.ds(0, 4), pl.ds(0, 16)]»", "o_ref[pl.ds(0, 4), pl.ds(0, 4), pl.ds(0, 16)] = x")), id="B123"),
    pytest.param("B124", module(body("index = «jnp.arange(16)»", "o_ref[pl.ds(0, 64)] = x_ref[pl.ds(0, 64)]")), id="B124"),
    pytest.param("B130", module(body("x = «jnp.dot(2 * x_ref[pl.ds(0, 64), pl.ds(0, 64)], 2 * x_ref[pl.ds(0, 64), pl.ds(0, 64)])»", "o_ref[pl.ds(0, 64), pl.ds(0, 64)] = x")), id="B130"),
    pytest.param("B132", module(body("x = «jnp.dot(x_ref[pl.ds(0, 48), pl.ds(0, 64)], x_ref[pl.ds(0, 64), pl.ds(0, 64)])»", "o_ref[pl.ds(0, 48), pl.ds(0, 64)] = x")), id="B132"),
    pytest.param("B125", module(body("o_ref[pl.ds(0, 65536)] = «x_ref[pl.ds(0, 65536)]»")), id="B125"),
    pytest.param("C201", f"{IMPORTS}\n\ndef run(kernel, x):\n    return «pl.pallas_call({CALL})»(x)\n", id="C201"),
    pytest.param("C202", module(COPY, CALL + ", in_specs=«[spec] * len(x)»"), id="C202-specs"),
    pytest.param("C202", module(COPY, CALL.replace("grid=(4,)", "grid=«make(x)»")), id="C202-grid"),
    pytest.param("C203", module(COPY, CALL + ", scratch_shapes=«[]»"), id="C203"),
    pytest.param("C205", module(body("x = helper(x_ref[pl.ds(0, 128)])", STORE), f"«pl.pallas_call({CALL})»(x) + pl.pallas_call({CALL.replace('kernel', 'other')}", "") .replace("return pl.pallas_call(«", "return «").replace("»(x) + pl", "»(x) + pl") .replace("def run", "if jax.__version__:\n    def helper(x):\n        return jnp.floor(x)\n\n\ndef other(x_ref, o_ref):\n    x = helper(x_ref[pl.ds(0, 128)])\n    o_ref[pl.ds(0, 128)] = jnp.sort(x)\n\n\ndef run"), id="C205"),
    pytest.param("C206", module(COPY, f"{CALL})(x) + «pl.pallas_call({CALL.replace('plgpu', 'mgpu')})»(x) + pl.pallas_call({CALL}").replace("from jax.experimental.pallas import triton", "from jax.experimental.pallas import mosaic_gpu as mgpu\nfrom jax.experimental.pallas import triton"), id="C206"),
    pytest.param("C207", module("«" + COPY.strip() + "»").replace("return", "kernel(x, x)\n    return"), id="C207"),
    pytest.param("C209", module(COPY, before="    if jax.devices()[0].platform == 'rocm':\n    ").replace("pl.pallas_call(", "«pl.pallas_call(").replace(")(x)\n", ")»(x)\n"), id="C209"),
    pytest.param("C210", module(COPY).replace("    return pl.pallas_call(", "    return «pl.pallas_call(").replace(")(x)\n", ")»(x)\n").replace("\n\ndef kernel", "\n\n_load = 1\n\n\ndef kernel", 1), id="C210"),
    pytest.param("C208", module(COPY.replace("pl.program_id(0)", "«pl.program_id(1)»")), id="C208"),
]


@pytest.mark.parametrize("code, marked", CASES)
def test_diagnosis(code, marked):
    start, end = marked.index("«"), marked.index("»") - 1
    source = marked.replace("«", "").replace("»", "")
    ast.parse(source)
    result = assert_kept(source, code)
    line = source.count("\n", 0, start) + 1
    column = start - (source.rfind("\n", 0, start) + 1) + 1
    assert (line, column) in {(d.line, d.column) for d in result.diagnostics if d.code == code}, (
        source[start:end], result.diagnostics)


def test_kernel_shared_with_a_call_that_stays():
    """C204 is reported at the call that could have been ported."""
    source = module(COPY, f"{CALL})(x) + pl.pallas_call({CALL}, scratch_shapes=[]")
    result = run(source)
    assert result.text == source
    first, second = result.sites
    assert {d.code for d in first.diagnostics} == {"C204"}
    assert {d.code for d in second.diagnostics} == {"C203"}
    (d,) = first.diagnostics
    assert source.split("\n")[d.line - 1][d.column - 1 :].startswith("pl.pallas_call")


NOTES = [
    pytest.param("N202", module(body(LOAD, "x = jnp.sqrt(x)", STORE)), "jnp.sqrt(x)", id="N202-plain"),
    pytest.param("N202", module(body(LOAD, "x = 1 / jnp.sqrt(x)", STORE)), "1 / jnp.sqrt(x)", id="N202-reciprocal"),
    pytest.param("N203", module("def kernel(x_ref, o_ref, *, f):\n    o_ref[pl.ds(0, 128)] = f(x_ref[pl.ds(0, 128)])", CALL.replace("kernel", "functools.partial(kernel, f=act)"), operands="x, act").replace(")(x, act)", ")(x)"), "f(x_ref", id="N203"),
    pytest.param("P302", module(body("o_ref[pl.ds(0, 32768)] = x_ref[pl.ds(0, 32768)]")), "x_ref[pl.ds(0, 32768)]", id="P302"),
    pytest.param("N206", module(body(LOAD, STORE)), "o_ref[pl.ds(0, 128)]", id="N206"),
    pytest.param("N204", module(COPY, CALL.replace(f", {PARAMS}", "")).replace("from jax.experimental.pallas import triton as plgpu\n", ""), "pl.pallas_call", id="N204"),
]


@pytest.mark.parametrize("code, source, at", NOTES)
def test_note(code, source, at):
    result = assert_ported(source)
    (d,) = [d for d in result.diagnostics if d.code == code]
    assert source.split("\n")[d.line - 1][d.column - 1 :].startswith(at)
    assert not d.blocks


COLUMN_SUMS = """
def kernel(x_ref, o_ref):
    def step(t, acc):
        x = x_ref[pl.ds(t * 16, 16), pl.ds(0, 128)]
        return acc + x.sum(axis=0)

    o_ref[pl.ds(0, 128)] = 0 * jnp.zeros(128)
    total = lax.fori_loop(0, 8, step, jnp.zeros(128))
    o_ref[pl.ds(0, 128)] = total
"""
MATMUL = """
def kernel(a_ref, b_ref, o_ref, *, bm, bn, bk):
    def step(t, acc):
        ks = pl.ds(t * bk, bk)
        return acc + jnp.dot(a_ref[:, ks], b_ref[ks, :])

    acc = lax.fori_loop(0, a_ref.shape[1] // bk, step, jnp.zeros((bm, bn), jnp.float32))
    o_ref[...] = acc.astype(o_ref.dtype)


def run(a, b, bm=128, bn=128, bk=64):
    (m, k), n = a.shape, b.shape[1]
    return pl.pallas_call(
        functools.partial(kernel, bm=bm, bn=bn, bk=bk),
        grid=(m // bm, n // bn),
        in_specs=[pl.BlockSpec((bm, k), lambda i, j: (i, 0)), pl.BlockSpec((k, bn), lambda i, j: (0, j))],
        out_specs=pl.BlockSpec((bm, bn), lambda i, j: (i, j)),
        out_shape=jax.ShapeDtypeStruct((m, n), a.dtype),
        compiler_params=plgpu.CompilerParams(num_warps=8, num_stages=3),
    )(a, b)
"""


def test_notes_of_hoisted_sums_and_products():
    hoisted = assert_ported(module(COLUMN_SUMS))
    assert {"N201", "P301"} <= {d.code for d in hoisted.diagnostics}
    assert "N205" in {d.code for d in assert_ported(f"{IMPORTS}\n{MATMUL}").diagnostics}


def test_float32_products_at_full_precision_stay_on_sm100():
    text = module(body("x = jnp.dot(x_ref[pl.ds(0, 64), pl.ds(0, 64)], x_ref[pl.ds(0, 64), pl.ds(0, 64)], precision='highest')", "o_ref[pl.ds(0, 64), pl.ds(0, 64)] = x"))
    result = run(text, "sm100")
    assert status(result) == ["kept"] and result.text == text
    assert "B133" in {d.code for d in result.diagnostics}


def test_every_code_has_a_test():
    tested = {p.values[0] for p in (*CASES, *NOTES)} | {"C204", "N201", "N205", "P301", "B133"}
    tested |= {"B131"}  # of recorded facts
    assert tested == set(CODES)


# -- forms of kernels and calls ---------------------------------------------------------------------

FORMS = [
    pytest.param(module(COPY), id="module-function"),
    pytest.param(module(COPY, CALL.replace("kernel,", "kernel=kernel,")), id="kernel-keyword"),
    pytest.param(module(COPY, CALL.replace("grid=(4,)", "grid=4")), id="grid-int"),
    pytest.param(module(COPY, CALL.replace("grid=(4,)", "grid=[4]")), id="grid-list"),
    pytest.param(module(COPY.replace("pl.program_id(0)", "0"), CALL.replace(" grid=(4,),", "")), id="no-grid"),
    pytest.param(module(COPY.replace("pl.program_id(0)", "(pl.program_id(0) * 4 + pl.program_id(1) * 2 + pl.program_id(2))"), CALL.replace("(4,)", "(1, 2, 2)")), id="grid-rank-3"),
    pytest.param(module(COPY, CALL.replace("kernel, grid", "kernel, jax.ShapeDtypeStruct(x.shape, x.dtype), grid").replace(" out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),", "")), id="out-shape-positional"),
    pytest.param(module("def kernel(x_ref, o_ref, *, n):\n    o_ref[pl.ds(0, n)] = x_ref[pl.ds(0, n)] + 1", CALL.replace("kernel,", "functools.partial(kernel, n=128),")), id="partial-keyword-only"),
    pytest.param(module("def kernel(x_ref, o_ref, *, n):\n    o_ref[pl.ds(0, n)] = x_ref[pl.ds(0, n)] + 1", CALL.replace("kernel,", "lambda *refs: kernel(*refs, n=128),")), id="forwarding-lambda"),
    pytest.param(module("def kernel(x_ref, o_ref, n):\n    o_ref[pl.ds(0, n)] = x_ref[pl.ds(0, n)] + 1", CALL.replace("kernel,", "lambda *refs: kernel(*refs, 128),")), id="forwarding-lambda-positional"),
    pytest.param(module("def kernel(x_ref, o_ref, m, *, n):\n    o_ref[pl.ds(0, m)] = x_ref[pl.ds(0, n)] + 1", CALL.replace("kernel,", "lambda x, o: kernel(x, o, 128, n=128),")), id="forwarding-lambda-named"),
    pytest.param(module("def helper(x_ref, o_ref, n):\n    o_ref[pl.ds(0, n)] = x_ref[pl.ds(0, n)] + 1\n\n\ndef kernel(x_ref, o_ref):\n    helper(x_ref, o_ref, 128)"), id="forwarding-def"),
    pytest.param(module("def kernel(n, x_ref, o_ref):\n    o_ref[pl.ds(0, n)] = x_ref[pl.ds(0, n)] + 1", CALL.replace("kernel,", "functools.partial(kernel, 128),")), id="partial-positional"),
    pytest.param(module("def make(n):\n    def kernel(x_ref, o_ref):\n        o_ref[pl.ds(0, n)] = x_ref[pl.ds(0, n)] + 1\n\n    return kernel", CALL.replace("kernel,", "make(128),")), id="factory"),
    pytest.param(module("def kernel(*refs):\n    x_ref, o_ref = refs\n    o_ref[pl.ds(0, 128)] = x_ref[pl.ds(0, 128)] + 1"), id="star-refs"),
    pytest.param(module("def helper(x):\n    return x + 1\n\n\ndef kernel(x_ref, o_ref):\n    o_ref[pl.ds(0, 128)] = helper(x_ref[pl.ds(0, 128)])"), id="helper"),
    pytest.param(module(COPY, "k, grid=(4,), out_shape=s, " + PARAMS, before="    k = kernel\n    s = jax.ShapeDtypeStruct(x.shape, x.dtype)\n"), id="variables"),
    pytest.param(module(COPY, CALL.replace(PARAMS, "compiler_params=params"), before=f"    params = {PARAMS.partition('=')[2]}\n"), id="params-in-a-variable"),
    pytest.param(module("def kernel(x_ref, o_ref, extra_ref=None):\n    if extra_ref is not None:\n        extra_ref[pl.ds(0, 128)] = x_ref[pl.ds(0, 128)]\n    o_ref[pl.ds(0, 128)] = x_ref[pl.ds(0, 128)] + 1"), id="optional-ref"),
    pytest.param(IMPORTS + COPY + f"\n\n@jax.jit\ndef run(x):\n    return jax.vmap(pl.pallas_call({CALL.replace('x.shape, x.dtype', 'x.shape[1:], x.dtype')}))(x)\n", id="jit-vmap"),
    pytest.param(IMPORTS + COPY + f"\n\n@jax.custom_vjp\ndef run(x):\n    return pl.pallas_call({CALL})(x)\n\n\ndef fwd(x):\n    return run(x), ()\n\n\ndef bwd(_, g):\n    return (g,)\n\n\nrun.defvjp(fwd, bwd)\n", id="custom-vjp"),
    pytest.param(IMPORTS + f"\n\ndef run(x):\n    def kernel(x_ref, o_ref):\n        o_ref[pl.ds(0, n)] = x_ref[pl.ds(0, n)] + 1\n\n    n = x.shape[0]\n    return pl.pallas_call({CALL})(x)\n", id="closure"),
    pytest.param(IMPORTS + COPY + f"\n\ndef run(x):\n    f = pl.pallas_call({CALL})\n    return f(x)\n", id="result-in-a-variable"),
    pytest.param(IMPORTS + f"\n\n@functools.partial(\n    pl.pallas_call,\n    grid=(4,),\n    out_shape=jax.ShapeDtypeStruct((512,), jnp.float32),\n    {PARAMS},\n)" + COPY, id="decorator"),
    pytest.param(module(COPY).replace("triton as plgpu", "triton").replace("plgpu", "triton"), id="module-alias"),
    pytest.param(module(COPY).replace("from jax.experimental.pallas import triton as plgpu", "import jax.experimental.pallas.triton as X").replace("plgpu", "X"), id="import-as"),
    pytest.param(module(COPY.replace("x_ref[here]", "ld(x_ref.at[here])")).replace("from jax.experimental.pallas import triton as plgpu", "from jax.experimental.pallas.triton import CompilerParams as P, load as ld").replace("plgpu.CompilerParams", "P"), id="from-import-as"),
    pytest.param(module(COPY.replace("x_ref[here]", "ld(x_ref.at[here])"), before="").replace("\n\ndef kernel", "\nld = plgpu.load\n\n\ndef kernel", 1), id="reassigned-load"),
    pytest.param(module(COPY).replace("pl.program_id", "pid").replace("from jax.experimental import pallas as pl\n", "from jax.experimental import pallas as pl\nfrom jax.experimental.pallas import program_id as pid\n"), id="program-id-alias"),
]


@pytest.mark.parametrize("target", ["sm90", "sm100"])
@pytest.mark.parametrize("source", FORMS)
def test_form_is_ported(source, target):
    result = assert_ported(source, target)
    own = own_code(result.text)
    assert "pallas_call" not in own and "program_id" not in own
    assert "triton" not in result.text or "\nld = " in source
    assert ".kernel" in own and "_store(" in own


# -- a call that stays beside one that moves, and modules that import --------------------------------

KEPT_BESIDE = module(COPY + "\n\ndef sums(x_ref, o_ref):\n    o_ref[pl.ds(0, 128)] = jnp.sort(x_ref[pl.ds(0, 128)])",
                     f"{CALL})(x) + pl.pallas_call({CALL.replace('kernel', 'sums')}")


def execute(text: str) -> types.ModuleType:
    made = types.ModuleType("ported")
    exec(compile(text, "ported.py", "exec"), made.__dict__)
    return made


def test_kept_call_beside_a_ported_one():
    result = run(KEPT_BESIDE)
    assert status(result) == ["ported", "kept"]
    assert "from jax.experimental.pallas import triton as plgpu" in result.text
    assert f"pl.pallas_call({CALL.replace('kernel', 'sums')})(x)" in result.text
    assert "jnp.sort(x_ref[pl.ds(0, 128)])" in result.text


@pytest.mark.parametrize("source", [
    *FORMS, pytest.param(KEPT_BESIDE, id="kept-beside"), pytest.param(f"{IMPORTS}\n{MATMUL}", id="matmul"),
    pytest.param(module(COLUMN_SUMS), id="column-sums"),
    pytest.param('"""Doc."""\nfrom __future__ import annotations\n' + module(COPY), id="future"),
])
@pytest.mark.parametrize("target", ["sm90", "sm100"])
def test_ported_module_imports(source, target):
    """All names of the emitted code are bound: nothing is missing at import or, by name, inside."""
    if "@functools.partial(\n    pl.pallas_call" in source:
        pytest.importorskip("jax")
    text = run(source, target).text
    made = execute(text)
    free = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            free.add(node.id)
    bound = set(vars(made)) | set(dir(__builtins__)) | set(__builtins__ if isinstance(__builtins__, dict) else ())
    bound |= {n.id for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)}
    bound |= {n.arg for n in ast.walk(ast.parse(text)) if isinstance(n, ast.arg)}
    bound |= {n.name for n in ast.walk(ast.parse(text)) if isinstance(n, (ast.FunctionDef, ast.ClassDef))}
    assert free <= bound, free - bound


def test_static_port_needs_no_jax():
    import subprocess

    code = (
        "import sys; from pallas_port.translator.driver import port; from pallas_port.translator.source import Source;"
        "from pallas_port.translator.result import Options; r = port(Source('k.py', sys.stdin.read()), 'sm90', Options());"
        "assert r.changed; assert 'jax' not in sys.modules and 'numpy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], input=module(COPY), text=True, check=True)


# -- formatting -------------------------------------------------------------------------------------

def test_crlf_stays_crlf():
    source = module(COPY).replace("\n", "\r\n")
    text = assert_ported(source).text
    assert not re.search(r"(?<!\r)\n", text)
    assert text.replace("\r\n", "\n") == run(module(COPY)).text


def test_tabs_stay_tabs():
    source = module(COPY).replace("    ", "\t")
    own = own_code(assert_ported(source).text)
    assert "\there = pl.ds(lax.axis_index" in own
    assert not re.search(r"^ +\S", own, re.M)


def test_two_spaces_stay():
    own = own_code(assert_ported(module(COPY).replace("    ", "  ")).text)
    assert re.search(r"^  here = ", own, re.M)


@pytest.mark.parametrize("old, new", [
    pytest.param("o_ref[here] = x_ref[here] + 1", "# naïve 日本\n    o_ref[here] = x_ref[here] + 1  # naïve", id="comments"),
    pytest.param("o_ref[here] = x_ref[here] + 1", "é = 1; o_ref[here] = x_ref[here] + é", id="non-ascii-name-on-the-line"),
    pytest.param("here = pl.ds(pl.program_id(0) * 128, 128)", "'日本語'; here = pl.ds(pl.program_id(0) * 128, 128)", id="non-ascii-text-before"),
    pytest.param("x_ref[here] + 1", "x_ref[here] \\\n        + 1", id="line-continuation"),
    pytest.param("x_ref[here] + 1", "(\n        x_ref[here]  # a\n        + 1  # b\n    )", id="comment-in-parentheses"),
    pytest.param("x_ref[here]", "plgpu.load(\n        x_ref.at[here],  # the row\n    )", id="comment-in-call"),
    pytest.param("pl.program_id(0)", "pl.program_id(\n        0,  # rows\n    )", id="call-over-lines"),
    pytest.param("here = pl.ds(pl.program_id(0) * 128, 128)\n", "here = pl.ds(pl.program_id(0) * 128, 128)\n\n    # about the store\n", id="comment-before-the-first-access"),
    pytest.param("def kernel", "# above\n@mark\ndef kernel", id="decorator"),
    pytest.param("+ 1", "+ 1;", id="semicolon"),
    pytest.param("def kernel(x_ref, o_ref):\n", 'def kernel(x_ref, o_ref):\n    """Says\n    what."""\n', id="docstring"),
])
def test_formatting_survives(old, new):
    base = module(COPY).replace("\n\ndef kernel", "\nmark = lambda f: f\n\n\ndef kernel", 1)
    assert old in base
    source = base.replace(old, new, 1)
    own = own_code(assert_ported(source).text)
    comments = re.findall(r"#.*", source)
    assert [c for c in re.findall(r"#.*", own)] == comments
    assert "日本語" not in new or "'日本語'; here" in own
    unchanged = source.split("def run")[1].split("\n")[0]
    assert unchanged in own


def test_call_keeps_its_comments_and_trailing_comma():
    source = module(COPY, f"""
        kernel,  # the kernel
        grid=(4,),  # the grid
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        {PARAMS},
        interpret=False,  # said
    """)
    own = own_code(assert_ported(source).text)
    for comment in ("# the kernel", "# the grid", "# said"):
        assert comment in own
    assert "interpret=False,  # said\n" in own


def test_rest_of_the_file_is_untouched():
    odd = "class  A :\n    x = {  1 : 2 }\n    def f( self ) : return ( 1 )\n"
    source = module(COPY).replace("\n\ndef run", f"\n{odd}\n\ndef run", 1) + "\n\n" + odd.replace("A", "B") + "   \n# end"
    text = run(source).text
    assert odd in text and text.endswith("   \n# end")


# -- names ------------------------------------------------------------------------------------------

@pytest.mark.parametrize("name", ["vec", "layout", "jnp_", "lax", "vector", "arith", "np", "math"])
def test_names_of_the_user_are_not_taken(name):
    """A variable of the kernel, of the module, and a parameter that emitted code might hide."""
    kernel = f"def kernel(x_ref, o_ref):\n    {name} = 3.\n    o_ref[pl.ds(0, 128)] = x_ref[pl.ds(0, 128)] * {name}"
    source = module(kernel).replace("from jax import lax\n", "")
    own = own_code(assert_ported(source).text)
    tree = ast.parse(own)
    (made,) = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == "kernel"]
    stores = [n for n in ast.walk(made) if isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Store)]
    assert len(stores) == 1
    assert f"* {name}" in own


@pytest.mark.parametrize("name", ["_load", "_store", "_vec", "_blocked", "_access"])
def test_functions_of_the_user_are_not_replaced(name):
    """A kernel's variable of such a name keeps the call on Triton too."""
    kernel = f"def kernel(x_ref, o_ref):\n    {name} = 3.\n    o_ref[pl.ds(0, 128)] = x_ref[pl.ds(0, 128)] * {name}"
    assert {d.code for d in run(module(kernel)).diagnostics if d.blocks} == {"C210"}
    source = module(COPY).replace("\n\ndef kernel", f"\n\ndef {name}(x):\n    return 'mine'\n\n\ndef kernel", 1)
    result = run(source)
    if result.changed:
        names = [n.name for n in ast.parse(result.text).body if isinstance(n, ast.FunctionDef)]
        assert names.count(name) == 1


def test_retired_alias_is_given_to_mosaic():
    text = run(module(COPY)).text
    assert "from jax.experimental.pallas import mosaic_gpu as plgpu" in text and "triton" not in text


def test_sites_sharing_a_kernel_with_different_specs():
    spec = "in_specs=[pl.BlockSpec(({n},), lambda r: (r,))], out_specs=pl.BlockSpec(({n},), lambda r: (r,))"
    kernel = "def kernel(x_ref, o_ref):\n    o_ref[...] = x_ref[...] + 1"
    source = module(kernel, f"{CALL}, {spec.format(n=128)})(x) + pl.pallas_call({CALL}, {spec.format(n=256)}")
    own = own_code(assert_ported(source).text)
    assert own.count("def kernel(") == 1
    assert "pl.ds(i * 128, 128)" in own and "pl.ds(i * 256, 256)" in own
    assert len(set(re.findall(r"def (kernel_blocks\w*)\(", own))) == 2


@pytest.mark.parametrize("before, kernel, reason", [
    ("def run(x, *args):", "*args", "this function's callers pass as *args"),
    ("def run(x, body):", "body", "this function's callers pass as body"),
    ("if FLAG:\n    def a(x_ref, o_ref):\n        o_ref[...] = x_ref[...]\nelse:\n    def a(x_ref, o_ref):\n        o_ref[...] = -x_ref[...]\n\n\ndef run(x):", "a", "one of 2 functions called a"),
    ("def a(x_ref, o_ref, n):\n    o_ref[...] = x_ref[...]\n\n\ndef run(x, options):", "functools.partial(a, **options)", "gets arguments by **"),
])
def test_reason_why_no_kernel_is_found(before, kernel, reason):
    result = assert_kept(f"{IMPORTS}\n\n{before}\n    return pl.pallas_call({kernel}, out_shape=x, compiler_params=plgpu.CompilerParams(num_warps=4))(x)\n", "C201")
    assert reason in next(d.reason for d in result.diagnostics if d.code == "C201")
