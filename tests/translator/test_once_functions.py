"""Loops of products in functions that run once, pages that a table names, and padded rows: what ports, what stays."""

import ast
import importlib.util
import pathlib

import pytest

from pallas_port.golden import harness
from pallas_port.translator.driver import port
from pallas_port.translator.names import Resolver
from pallas_port.translator.plan import plan_module
from pallas_port.translator.result import TARGETS, Options
from pallas_port.translator.source import Source, read
from pallas_port.translator.verify import jobs
from pallas_port.translator.verify.example import Subject

TEXT = (pathlib.Path(harness.__file__).parent / "decode" / "source.py").read_text()

COND = """  acc, peak, total = lax.cond(
      first < end, lambda: attend(acc, peak, total), lambda: (acc, peak, total)
  )
"""
LOOP = "    return lax.fori_loop(0, pl.cdiv(end - first, tokens), body, (acc, peak, total))\n"
STORE = "  out_ref[...] = acc\n"


def changed(old: str, new: str) -> str:
    assert TEXT.count(old) == 1
    return TEXT.replace(old, new)


def kept(text: str) -> list[tuple[str, str]]:
    """(code, reason) of what keeps the call on Triton."""
    (site,) = plan_module(Resolver(ast.parse(text)), Source("kernel.py", text), "sm90", Options()).sites
    assert site.status == "kept", site
    return [(d.code, d.reason) for d in site.diagnostics if d.blocks]


@pytest.mark.parametrize("old, new, reason", [
    pytest.param(COND, COND + COND, "in a branch", id="called-twice"),
    pytest.param(COND, "  for _ in range(2):\n    acc, peak, total = attend(acc, peak, total)\n", "in a branch", id="called-in-a-loop"),
    pytest.param(COND, COND.replace("(acc, peak, total)\n", "attend(acc, peak, total)\n") + COND, "in a branch", id="called-in-both-and-after"),
    pytest.param(COND, "  acc, peak, total = attend(acc, peak, total) if scale > 0 else attend(acc, peak, total)\n", "within an expression", id="called-in-an-expression"),
    pytest.param(LOOP, "    if scale == 0:\n      return acc, peak, total\n" + LOOP, "a return before the end", id="early-return"),
    pytest.param(LOOP, "    return lax.cond(first < end, lambda: (acc, peak, total), lambda: " + LOOP.strip().removeprefix("return ") + ")\n",
                 "in a branch of an expression", id="loop-in-a-lambda"),
    pytest.param("(token < end)", "((token < end) & (jnp.sum(pages) >= 0))", "pages named by something else", id="table-read-otherwise"),
    pytest.param("k_ref[pages].reshape(tokens, head_dim)", "k_ref[pages * 1].reshape(tokens, head_dim)", "", id="computed-table"),
])
def test_what_stays(old, new, reason):
    found = kept(changed(old, new))
    assert any(reason in text for _, text in found), found


def test_a_bound_that_a_loop_of_products_computes_stays():
    second = "  acc, peak, total = attend(acc, peak, total)\n"
    text = changed(COND, "  end = jnp.int32(first)\n  acc, peak, end = attend(acc, peak, total)\n" + second.replace("attend", "attend", 1))
    assert kept(text)


def test_pages_without_products_stay():
    text = changed("multiply(q, k.T) * (scale * math.log2(math.e))", "jnp.sum(k) + jnp.zeros((heads, tokens))").replace(
        "fade[:, None] * acc + multiply(p.astype(v.dtype), v)", "fade[:, None] * acc")
    assert ("B105", "reshape of a register array") in kept(text)


def test_branches_exclude_each_other():
    """Two calls of the function in different branches of one ``if`` and one ``cond``."""
    text = changed(COND, "  if scale == 0:\n    acc, peak, total = attend(acc, peak, total)\n  else:\n" + COND.replace("  acc", "    acc", 1))
    result = port(Source("kernel.py", text), "sm90", Options())
    assert [s.status for s in result.sites] == ["ported"]
    loads = result.text[result.text.index("def decode_kernel_loads("):result.text.index("def decode_kernel(")]
    assert "  if scale == 0:\n    attend()\n  else:\n    lax.cond(first < end, lambda: attend(), lambda: None)\n" in loads


def test_function_below_when():
    """``pl.when`` stands around the copies too."""
    start = TEXT[TEXT.index("  acc = jnp.zeros("):TEXT.index("  # A program behind")]
    end = TEXT[TEXT.index("  # A program behind"):TEXT.index("\n\ndef run(")]
    stores = "    out_ref[...] = acc\n    peak_ref[...] = peak\n    total_ref[...] = total\n"
    text = TEXT.replace(end, "").replace(start, "").replace(
        "  def attend(acc, peak, total):\n", start + "  start = acc, peak, total\n\n  @pl.when(first < end)\n  def attend():\n"
    ).replace(LOOP, LOOP.replace("return", "acc, peak, total =").replace("(acc, peak, total))", "start)") + stores)
    result = port(Source("kernel.py", text), "sm90", Options())
    assert [s.status for s in result.sites] == ["ported"], result.sites
    loads = result.text[result.text.index("def decode_kernel_loads("):result.text.index("def decode_kernel(")]
    assert "  @pl.when(first < end)\n  def attend():\n    def body(t, _):\n" in loads


@pytest.mark.parametrize("target", TARGETS)
def test_rows_are_padded_only_where_all_accesses_are_slices(target):
    assert "padded=True" in port(Source("kernel.py", TEXT), target, Options()).text
    by_index = changed(STORE, "  out_ref[jnp.arange(heads)[:, None], jnp.arange(head_dim)[None, :]] = acc\n")
    result = port(Source("kernel.py", by_index), target, Options())
    assert [s.status for s in result.sites] == ["ported"], result.sites
    assert "padded=True" not in result.text


def test_a_helper_that_multiplies_goes_with_its_calls():
    result = port(Source("kernel.py", TEXT), "sm90", Options())
    assert "multiply" not in result.text.replace("multiplies", "")
    used = changed(LOOP, "    kept = multiply\n" + LOOP)
    assert any(code == "B130" for code, _ in kept(used))


def test_pages_of_bytes_are_refused():
    """Cast in shared memory they met a misaligned address on an H200; where it comes from is not known."""
    source = read(importlib.util.find_spec("jax.experimental.pallas.ops.gpu.paged_attention").origin)
    example = str(pathlib.Path(__file__).parent / "verify_data" / "pages_of_bytes.py")
    todo = []
    for target in TARGETS:
        text = port(source, target, Options()).text
        subject = Subject(source.filename, text, example, "inputs", entry="paged_attention")
        todo.append(jobs.Job(target, "translator.verify.lower", subject, target))
    for result in jobs.run_jobs(todo, env=jobs.CPU_ONLY, timeout=120):
        assert result.status == "failed" and "ValueError" in result.detail and "float16 and bfloat16" in result.detail, result
