"""float32 products: TF32 where the source's precision allows it and wgmma can read the tiles, never elsewhere."""

import ast
import re

import pytest

from pallas_port.translator.driver import port
from pallas_port.translator.kernel_model import build_model
from pallas_port.translator.names import Resolver
from pallas_port.translator.precision import need_of
from pallas_port.translator.result import Options
from pallas_port.translator.sites import find_sites
from pallas_port.translator.source import Source

KERNEL = '''
import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

PRECISION = lax.Precision.HIGHEST


def kernel(a_ref, b_ref, o_ref, *, bk, precision=None):
    def step(t, acc):
        ks = pl.ds(t * bk, bk)
        a, b = a_ref[:, ks], B_TILE
        return acc + PRODUCT

    acc = lax.fori_loop(0, a_ref.shape[1] // bk, step, jnp.zeros((a_ref.shape[0], o_ref.shape[1]), jnp.float32))
    o_ref[...] = acc.astype(o_ref.dtype)


def run(a, b, block=64, bk=32):
    (m, k), n = a.shape, b.shape[B_DIM]
    return pl.pallas_call(
        functools.partial(kernel, bk=bk),
        grid=(m // block, n // block),
        in_specs=[pl.BlockSpec((block, k), lambda i, j: (i, 0)), B_SPEC],
        out_specs=pl.BlockSpec((block, block), lambda i, j: (i, j)),
        out_shape=jax.ShapeDtypeStruct((m, n), jnp.float32),
        compiler_params=plgpu.CompilerParams(num_warps=4, num_stages=2),
    )(a, b)


def example_inputs():
    a, b = jax.random.split(jax.random.key(0))
    return jax.random.normal(a, (128, 128)), jax.random.normal(b, (64, 128))
'''
ROWS = {"B_TILE": "b_ref[:, ks].T", "B_SPEC": "pl.BlockSpec((block, k), lambda i, j: (j, 0))", "B_DIM": "0"}
COLUMNS = {"B_TILE": "b_ref[ks, :]", "B_SPEC": "pl.BlockSpec((k, block), lambda i, j: (0, j))", "B_DIM": "1"}


def source(product: str, tile=ROWS) -> str:
    text = KERNEL.replace("PRODUCT", product)
    for name, value in tile.items():
        text = text.replace(name, value)
    return text


def ported(text: str, target: str = "sm90"):
    return port(Source("kernel.py", text), target, Options())


@pytest.mark.parametrize("product, need", [
    ("a @ b", "tf32"),
    ("jnp.dot(a, b)", "tf32"),
    ("plgpu.dot(a, b)", "tf32"),
    ("jnp.dot(a, b, precision=None)", "tf32"),
    ("jnp.dot(a, b, precision='high')", "tf32"),
    ("jnp.dot(a, b, precision='tensorfloat32')", "tf32"),
    ("jnp.dot(a, b, precision=lax.Precision.DEFAULT)", "tf32"),
    ("jnp.dot(a, b, precision=lax.DotAlgorithmPreset.TF32_TF32_F32)", "tf32"),
    ("jnp.dot(a, b, precision=(lax.Precision.HIGHEST, lax.Precision.HIGH))", "tf32"),
    ("lax.dot(a, b, lax.Precision.HIGH)", "tf32"),
    ("plgpu.dot(a, b, allow_tf32=True)", "tf32"),
    ("plgpu.dot(a, b, allow_tf32=False)", "ieee"),
    ("jnp.dot(a, b, precision='highest')", "ieee"),
    ("jnp.dot(a, b, precision=jax.lax.Precision.HIGHEST)", "ieee"),
    ("jnp.dot(a, b, precision=PRECISION)", "ieee"),
    ("jnp.dot(a, b, precision=lax.DotAlgorithmPreset.F32_F32_F32)", "ieee"),
    ("jnp.dot(a, b, precision=lax.DotAlgorithmPreset.TF32_TF32_F32_X3)", "ieee"),
    ("jnp.dot(a, b, precision=('highest', 'highest'))", "ieee"),
    ("lax.dot(a, b, lax.Precision.HIGHEST)", "ieee"),
    ("jnp.dot(a, b, precision=lax.DotAlgorithmPreset.BF16_BF16_F32)", "other"),
    ("jnp.dot(a, b, precision=precision)", "other"),
    ("jnp.dot(a, b, **{})", "other"),
    ("plgpu.dot(a, b, False, False, False)", "other"),
])
def test_what_a_product_needs(product, need):
    resolver = Resolver(ast.parse(source(product)))
    (dot,) = build_model(find_sites(resolver), resolver, {}).dots
    assert need_of(dot, resolver) == need


@pytest.mark.parametrize("how, turned", [(ROWS, False), (COLUMNS, True)], ids=["contraction-last", "contraction-first"])
def test_products_may_be_tf32_on_hopper(how, turned):
    """wgmma reads float32 only along the contraction: arrays that lie the other way are transposed ahead."""
    result = ported(source("plgpu.dot(a, b)", how))
    assert "tf32=True" in result.text and ("b = _k_major(b)" in result.text) is turned
    assert any(d.code == "N205" and "TF32" in d.reason for d in result.diagnostics)


@pytest.mark.parametrize("text, target", [
    pytest.param(source("plgpu.dot(a, b)"), "sm100", id="blackwell"),
    pytest.param(source("jnp.dot(a, b, precision=precision)"), "sm90", id="precision-not-known"),
])
def test_elsewhere_the_port_refuses_float32_when_it_is_traced(text, target):
    result = ported(text, target)
    assert {s.status for s in result.sites} == {"ported"} and "tf32=True" not in result.text
    assert not any("TF32" in d.reason for d in result.diagnostics)


IEEE = pytest.mark.parametrize("product", ["jnp.dot(a, b, precision='highest')", "plgpu.dot(a, b, allow_tf32=False)"])


@IEEE
def test_ieee_float32_is_split_on_hopper(product):
    result = ported(source(product))
    assert "_parts_product(part, " in re.sub(r"\s+", " ", result.text) and not any(d.blocks for d in result.diagnostics)
    assert any(d.code == "N205" and "bfloat16 parts" in d.reason for d in result.diagnostics)


@IEEE
def test_ieee_float32_stays_on_triton_on_blackwell(product):
    result = ported(source(product), "sm100")
    assert [d.code for d in result.diagnostics if d.blocks] == ["B133"] and not result.changed


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Rungs of the port for Hopper; of one whose tiles wgmma cannot read as they lie; and under a default precision of HIGHEST."""
    pytest.importorskip("jax")
    from pallas_port.translator.verify import jobs
    from pallas_port.translator.verify.example import Subject

    directory = tmp_path_factory.mktemp("tf32")
    todo = []
    for name, text in (
        ("rows", source("plgpu.dot(a, b)")),
        ("columns", source("plgpu.dot(a, b)", COLUMNS).replace("(64, 128)", "(128, 64)")),
        # last: jobs share a process
        ("highest", "import jax\njax.config.update('jax_default_matmul_precision', 'highest')\n" + source("plgpu.dot(a, b)")),
    ):
        file = directory / f"{name}.py"
        file.write_text(text)
        subject = Subject(str(file), ported(text).text, str(file), "example_inputs")
        todo.append(jobs.Job(f"{name} lower", "translator.verify.lower", subject, "sm90"))
        if name != "highest":
            todo.append(jobs.Job(f"{name} compile", "translator.verify.compile", subject, "sm90"))
            todo.append(jobs.Job(f"{name} interpret", "translator.verify.interpret", subject, "sm90"))
    return {r.name: r for r in jobs.run_jobs(todo, env=jobs.CPU_ONLY, timeout=120)}


@pytest.mark.parametrize("name", ["rows", "columns"])
def test_tf32_product_compiles_to_tf32_instructions(built, name):
    assert built[f"{name} lower"].status == "passed", built[f"{name} lower"].detail
    compiled = built[f"{name} compile"]
    if compiled.status == "skipped":
        pytest.skip(compiled.detail)
    (kernel,) = compiled.data["kernels"]
    products = [op for op in kernel["sass"] if op.startswith("HGMMA")]
    assert products and all(op.endswith("TF32") for op in products), products
    assert built[f"{name} interpret"].status == "passed", built[f"{name} interpret"].detail


def test_float32_that_must_not_be_tf32_is_refused_in_words(built):
    result = built["highest lower"]
    assert result.status == "failed" and "wgmma multiplies float32 only as TF32" in result.detail
