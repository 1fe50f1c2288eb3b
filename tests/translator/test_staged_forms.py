"""Products among register work, each form ported, lowered for both targets and interpreted.

``verify_data/staged_forms.py`` holds the kernels; one function each, so that a form is one name.
"""

import ast
import pathlib
import re

import pytest

jax = pytest.importorskip("jax")

from pallas_port.translator.driver import port
from pallas_port.translator.names import Resolver
from pallas_port.translator.plan import plan_module
from pallas_port.translator.result import TARGETS, Options
from pallas_port.translator.source import Source
from pallas_port.translator.verify import jobs
from pallas_port.translator.verify.example import Subject

# One process makes the results of all forms, ahead of the first test.
pytestmark = [pytest.mark.xdist_group("staged_forms"), pytest.mark.timeout(900)]

# Interpretation takes most of the time; what it shows of a port is the same on both JAX versions.
INTERPRETED = jax.__version_info__ >= (0, 12)

FILE = pathlib.Path(__file__).parent / "verify_data" / "staged_forms.py"
TEXT = FILE.read_text()
FORMS = re.findall(r"^def example_(\w+)\(", TEXT, re.MULTILINE)


def only(form: str) -> str:
    """The file with the one kernel: others must not decide whether it ports."""
    head, *parts = re.split(r"^# -- (\w+)\n", TEXT, flags=re.MULTILINE)
    return head + dict(zip(parts[::2], parts[1::2]))[form]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    directory = tmp_path_factory.mktemp("forms")
    todo = []
    for form in FORMS:
        file = directory / f"{form}.py"
        file.write_text(only(form))
        for target in TARGETS:
            result = port(Source(str(file), only(form)), target, Options())
            assert all(s.status == "ported" for s in result.sites), (form, result.sites)
            subject = Subject(str(file), result.text, str(file), f"example_{form}")
            todo.append(jobs.Job(f"{form} lower {target}", "translator.verify.lower", subject, target))
            if INTERPRETED:
                todo.append(jobs.Job(f"{form} interpret {target}", "translator.verify.interpret", subject, target))
    return {r.name: r for r in jobs.run_jobs(todo, env=jobs.CPU_ONLY, timeout=120)}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("form", FORMS)
def test_form_lowers(results, form, target):
    result = results[f"{form} lower {target}"]
    assert result.status == "passed", result.detail


@pytest.mark.skipif(not INTERPRETED, reason="interpreted on the newest JAX only")
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("form", FORMS)
def test_form_interprets(results, form, target):
    result = results[f"{form} interpret {target}"]
    assert result.status == "passed", result.detail


def diagnosis(form: str, old: str, new: str) -> str:
    """Why a form with a text replaced stays on Triton."""
    text = only(form)
    assert text.count(old) == 1
    (site,) = plan_module(Resolver(ast.parse(changed := text.replace(old, new))), Source("kernel.py", changed), "sm90", Options()).sites
    assert site.status == "kept" and {d.code for d in site.diagnostics if d.blocks} == {"B130"}, site.diagnostics
    return next(d.reason for d in site.diagnostics if d.blocks)


FULL = """k = k_ref[pl.ds(t * bk, bk), :]
        v = v_ref[pl.ds(t * bk, bk), :]
        p = jnp.exp2("""


@pytest.mark.parametrize("form, old, new, reason", [
    pytest.param("two_loops", FULL, FULL.replace("pl.ds(t * bk, bk), :]\n        v", "ks, :]\n        ks = pl.ds(0, bk)\n        v").replace("k = k_ref", "ks = pl.ds(t * bk, bk)\n        k = k_ref"), "ks is assigned again", id="index-rebound"),
    pytest.param("two_loops", FULL, f"t = t * 1\n        {FULL}", "t counts the loop's steps", id="step-rebound"),
    pytest.param("two_loops", "o_ref[...] = (acc", "o_ref[0, 0] = l[0]\n    o_ref[...] = (acc".replace("l[0]", "1.0"), "a store of one element", id="element-stored"),
    pytest.param("two_loops", "bq=128, bk=64", "bq=128, bk=scratch", "the port needs the name scratch", id="name-of-the-launch"),
    pytest.param("two_loops", "def kernel(", "def kernel_loads():\n    pass\n\n\ndef kernel(", "the port needs the name kernel_loads", id="name-of-the-loads"),
    pytest.param("two_loops", "whole = (i * bq) // bk", "whole = (i * bq) // bk + pl.num_programs(0)", "num_programs", id="num-programs"),
    pytest.param("bias_and_weights", "scale = jnp.exp2(m - m_new)", "scale = jnp.exp2(m - m_new) + jnp.argmax(s, axis=1)", "argmax beside", id="argmax"),
    pytest.param("transposed_product", "jnp.dot(p.astype(do.dtype).T, do)", "jnp.dot(p.astype(do.dtype).T, do * 2)", "two computed operands", id="both-computed"),
    pytest.param("two_loops", "lax.fori_loop(whole, pl.cdiv((i + 1) * bq, bk), masked", "lax.fori_loop(whole, pl.cdiv((i + 1) * bq, bk), full", "two loops", id="one-body-twice"),
    pytest.param("bias_and_weights", "m_new = jnp.maximum(m, jnp.max(s, axis=1))", "m_new = jnp.maximum(m, jnp.max(s, axis=1)) + jnp.max(jnp.sum(s, axis=0))", "across the warps", id="reduction-across-warps"),
    pytest.param("transposed_product", "def step(t, dv):\n", "def step(t, dv):\n        if bq > 3:\n            pass\n        rows = pl.ds(0, bk)\n        rows = pl.ds(jnp.sum(dv), bk)\n", "", id="address-from-the-carry"),
    pytest.param("two_loops", "p = jnp.where(above, jnp.exp2(jnp.dot(q, k.T) * 0.125), 0.0)", "p = jax.nn.softmax(jnp.where(above, jnp.dot(q, k.T), -1e9), axis=1)", "softmax beside", id="softmax"),
    pytest.param("two_loops", "return acc + jnp.dot(p.astype(v.dtype), v), l + jnp.sum(p, axis=1)\n\n    whole", "return acc + jnp.dot(p.astype(v.dtype), v), l + jnp.sum(p, axis=1) + jnp.max(jnp.sum(p, axis=0))\n\n    whole", "across the warps", id="reduction-along-divided-rows"),
    pytest.param("two_loops", "def kernel(q_ref, k_ref, v_ref, o_ref, *, bq, bk):\n    i = pl.program_id(0)", "def block():\n    return pl.program_id(0)\n\n\ndef kernel(q_ref, k_ref, v_ref, o_ref, *, bq, bk):\n    i = block()", "program_id in a helper", id="program-id-in-a-helper"),
])
def test_forms_that_stay(form, old, new, reason):
    assert reason in diagnosis(form, old, new) or not reason


def test_address_that_is_set_between_body_and_loop():
    """The slice keeps what the loop's body reads, also where that is assigned behind the body."""
    text = only("transposed_product").replace("pl.ds(t * bk, bk)", "pl.ds(t * bk + offset, bk)").replace(
        "    dv = lax.fori_loop(", "    offset = pl.program_id(0) * 0\n    dv = lax.fori_loop(")
    result = port(Source("kernel.py", text), "sm90", Options())
    loads = result.text[result.text.index("def kernel_loads("):result.text.index("def kernel(")]
    assert "offset = program[0] * 0" in loads


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("form", FORMS)
def test_stage_is_given_back_after_its_last_reader(form, target):
    """Interpret mode sees a copy into a stage in use only where the two happen to overlap."""
    text = port(Source("kernel.py", only(form)), target, Options()).text
    returned = re.findall(r"\.release\(.*\)\n *return (.*)\n", text)
    assert returned or ".release(" not in text
    for value in returned:
        assert not re.search(r"\bpart\.|\bplgpu\.|_tile\b", value), value


def split(old: str = "", new: str = "") -> str:
    """The port of the sliding window for sm90, with a text of the source replaced."""
    text = only("sliding_window")
    assert not old or text.count(old) == 1
    return port(Source("kernel.py", text.replace(old, new) if old else text), "sm90", Options()).text


def test_steps_inside_of_a_window_run_without_its_mask():
    text = split()
    assert "whole_start = lax.div(program[0] * bq + bq - (window) + bk - 1, bk)" in text
    assert "whole_end = lax.div(program[0] * bq + 1, bk)" in text
    assert "_split_loop(0, k_ref.shape[0] // bk, step, " in text and "start=whole_start, end=whole_end)" in text


@pytest.mark.parametrize("old, new", [
    pytest.param("cols = t * bk + jnp.arange(bk)", "cols = t * bk * 2 + jnp.arange(bk)", id="other-stride"),
    pytest.param("cols = t * bk + jnp.arange(bk)", "cols = t * bk + 2 * jnp.arange(bk)", id="no-run"),
    pytest.param("lax.fori_loop(0,", "lax.fori_loop(pl.program_id(0),", id="split-already"),
    pytest.param("near & (rows[:, None] >= cols[None, :])", "near | (rows[:, None] == cols[None, :])", id="equality-alone"),
])
def test_masks_that_are_not_known_to_hold_stay(old, new):
    text = split(old, new)
    assert "whole_end" not in text


def test_indices_that_only_a_mask_reads_and_that_get_a_new_axis():
    """Two rewrites of one expression: it loses its new axis, and stands under the mask's condition."""
    from pallas_port.rewrites.whole_steps import CAUSAL

    text = CAUSAL.replace("        s = jnp.where(rows[:, None] >= (t * bk + jnp.arange(bk))[None, :]",
                          "        columns = (t * bk + jnp.arange(bk))[None, :]\n        s = jnp.where(rows[:, None] >= columns")
    assert text != CAUSAL
    for target in TARGETS:
        result = port(Source("kernel.py", text), target, Options())
        assert [s.status for s in result.sites] == ["ported"]
        assert re.search(r"columns = \(?t \* bk .*\)? if not whole else None\n.*whole else .*>= columns\[None, :\]", result.text)


def test_a_load_under_a_test_of_its_ref_is_staged():
    text = port(Source("kernel.py", only("optional_ref")), "sm90", Options()).text
    assert "ids_ref.at[keys] if ids_ref is not None else None" in text
    assert "((64,), ids.dtype) if ids is not None else None]" in text
    assert "k, v, ids_tile, ids_tile2 = ring.wait(t)" in text


@pytest.mark.parametrize("old, new", [
    pytest.param("            mask = None\n            if ids_ref is not None:", "            mask = None\n            if s.shape[0] and ids_ref is not None:", id="test-of-a-value"),
    pytest.param("mask = ids_ref[pl.ds(i * bq, bq)][:, None] == ids_ref[keys]", "held = pl.ds(t * bk, bk)\n                mask = ids_ref[pl.ds(i * bq, bq)][:, None] == ids_ref[held]", id="address-set-under-the-test"),
])
def test_loads_under_other_tests_are_not_staged(old, new):
    text = only("optional_ref")
    assert text.count(old) == 1
    text = port(Source("kernel.py", text.replace(old, new)), "sm90", Options()).text
    assert "_load(ids_ref, keys" in text or "_load(ids_ref, held" in text


def test_loops_in_sequence_use_the_same_memory_in_turn():
    text = port(Source("kernel.py", only("two_phases")), "sm90", Options()).text
    assert "(once, ring), (copied_once, stages) = _rings_in_turn(shared, barriers)" in text
    loads, kernel = text.split("def kernel_loads(")[1].split("def kernel(")
    order = [loads.index(s) for s in ("once.load(0", "ring.drain(", "once.drain(1)", "copied_once.load(0")]
    assert order == sorted(order)
    assert kernel.index("fori_loop(i,") < kernel.index("once.release(0)") < kernel.index("copied_once.wait(0)")


def test_a_tile_that_both_loops_read_keeps_its_memory():
    text = port(Source("kernel.py", only("two_loops")), "sm90", Options()).text
    assert "(ring,), (stages,) = _rings_in_turn(shared, barriers)" in text
    assert "once=_Ring(*once)" in text and "once.release" not in text


def test_the_slice_keeps_what_is_assigned_beside_a_load():
    text = port(Source("kernel.py", only("parallel_assignments")), "sm90", Options()).text
    loads = text.split("def kernel_loads(")[1].split("def kernel(")[0]
    assert "  i = program[0]\n" in loads and "q_ref.shape" not in loads
    assert "k, v = ring.wait(t)\n" in text and "i, q, d = program[0], q_tile, q_ref.shape[1]\n" in text


def test_an_address_beside_a_load_must_not_depend_on_it():
    old = "i, q, d = pl.program_id(0), q_ref[...], q_ref.shape[1]\n"
    new = "q = q_ref[...]\n    i, d = jnp.max(q.astype(F32)).astype(jnp.int32), q_ref.shape[1]\n"
    assert diagnosis("parallel_assignments", old, new)
