"""The ladder on handwritten ports of one kernel: right ones pass, wrong ones fail at the rung that must see it."""

import pathlib
import re

import pytest

from pallas_port.translator.verify import RUNGS, example, jobs, verify_text

DATA = pathlib.Path(__file__).parent / "verify_data"
ORIGINAL = str(DATA / "scale.py")
MASKED = (DATA / "masked_port.py").read_text()
COPIED = (DATA / "copied_port.py").read_text()


def mutate(text: str, find: str, replace: str) -> str:
    assert text.count(find) == 1, find
    return text.replace(find, replace)


# name -> (port, example function, what the detail must contain)
WRONG = {
    "dropped load mask": (
        mutate(MASKED, "layout=None, mask=keep, other=0.0)", "layout=None)"),
        "ragged",
        "(?i)out.of.bounds",
    ),
    "dropped store mask": (
        mutate(MASKED, "1.0, layout=None, mask=keep)", "1.0, layout=None)"),
        "ragged",
        "(?i)out.of.bounds",
    ),
    "zero output": (mutate(MASKED, "2.0 * x + 1.0", "0.0 * x"), "ragged", "norm error"),
    "one wrong element": (
        mutate(MASKED, "2.0 * x + 1.0", "2.0 * x + 1.0 + (at == 77).astype(x.dtype)"),
        "ragged",
        "error",
    ),
    "unwritten tail": (mutate(MASKED, "grid=(pl.cdiv(x.shape[0], N),)", "grid=(x.shape[0] // N,)"), "ragged", "NaN"),
    "missing wait": (mutate(COPIED, "    plgpu.barrier_wait(barrier)\n", ""), "whole", "."),
    "missing commit": (mutate(COPIED, "    plgpu.commit_smem()\n", ""), "whole", "."),
    "vectors cut by the mask": (
        mutate(MASKED, "layout=None, mask=keep, other=0.0)", "layout=None, mask=at < 599, other=0.0, vec=4)"),
        "ragged",
        "the mask cuts a group of 4",
    ),
    "unknown name": (mutate(MASKED, "lax.iota(jnp.int32, N)", "tl.arange(0, N)"), "ragged", "line 21 of the port"),
    # Last: it costs its process.
    "arrival never comes": (
        mutate(COPIED, "    plgpu.copy_gmem_to_smem(x_ref.at[at], x_smem, barrier)\n", ""),
        "whole",
        "hang",
    ),
}


def interpret_job(text: str, function: str, target: str = "sm90") -> jobs.Job:
    subject = example.Subject(ORIGINAL, text, ORIGINAL, function)
    return jobs.Job("interpret", "translator.verify.interpret", subject, target)


@pytest.fixture(scope="module")
def wrong_results():
    todo = [interpret_job(text, function) for text, function, _ in WRONG.values()]
    return dict(zip(WRONG, jobs.run_jobs(todo, env=jobs.CPU_ONLY, timeout=20), strict=True))


@pytest.mark.parametrize("name", WRONG)
def test_interpret_rejects_a_wrong_port(wrong_results, name):
    result = wrong_results[name]
    assert result.status == "failed"
    assert re.search(WRONG[name][2], result.detail), result.detail


@pytest.mark.parametrize("target", ["sm90", "sm100"])
@pytest.mark.parametrize("function", ["ragged", "whole", "by_function", "by_name"])
def test_interpret_accepts_the_right_port(right_results, target, function):
    result = right_results[target, function]
    assert result.status == "passed", result.detail
    assert result.data["replaced"] == ["_load", "_store"]
    assert result.data["against"] == "the original, interpreted"


@pytest.fixture(scope="module")
def right_results():
    keys = [(t, f) for t in ("sm90", "sm100") for f in ("ragged", "whole", "by_function", "by_name")]
    results = jobs.run_jobs([interpret_job(MASKED, f, t) for t, f in keys], env=jobs.CPU_ONLY)
    return dict(zip(keys, results, strict=True))


@pytest.mark.parametrize("target", ["sm90", "sm100"])
def test_right_port_climbs_to_the_device_rungs(target):
    results = verify_text(ORIGINAL, COPIED, target, ":whole", port_text=lambda text: text)
    assert [r.name for r in results] == list(RUNGS)
    states = {r.name: r.status for r in results}
    assert states | {"compile": "", "run": "", "time": ""} == {
        "text": "passed",
        "lower": "passed",
        "compile": "",
        "interpret": "passed",
        "run": "",
        "time": "",
    }
    by_name = {r.name: r for r in results}
    compiled = by_name["compile"]
    if compiled.status == "skipped":
        pytest.skip(compiled.detail)
    assert compiled.status == "passed"
    [kernel] = compiled.data["kernels"]
    assert kernel["arch"] == {"sm90": "sm_90a", "sm100": "sm_100a"}[target]
    assert kernel["registers"] > 0 and kernel["shared_bytes"] >= 1024
    for name in ("run", "time"):
        assert by_name[name].status in ("passed", "skipped")
        assert by_name[name].status == "passed" or by_name[name].detail


def test_lower_rejects_the_unported_original():
    text = pathlib.Path(ORIGINAL).read_text()
    results = {r.name: r for r in verify_text(ORIGINAL, text, "sm90", ":ragged", rungs=("lower", "compile", "time"))}
    assert results["lower"].status == "failed"
    assert results["lower"].data == {"mosaic_kernels": 0, "triton_kernels": 1}
    assert (results["compile"].status, results["compile"].detail) == ("skipped", "lower failed")
    assert (results["time"].status, results["time"].detail) == ("skipped", "lower failed")


def test_compile_names_missing_instructions():
    options = {"compile": {"instructions": ["UTMALDG", "HGMMA"]}}
    [result] = verify_text(ORIGINAL, COPIED, "sm90", ":whole", rungs=("compile",), check_options=options)
    if result.status == "skipped":
        pytest.skip(result.detail)
    assert (result.status, result.detail) == ("failed", "not in the machine code: HGMMA")


def test_without_an_example_only_the_text_is_checked():
    results = verify_text(ORIGINAL, COPIED, "sm90", None)
    assert [r.status for r in results] == ["passed"] + ["skipped"] * 5
    assert "--example" in results[1].detail


def test_a_port_that_does_not_parse_stops_there():
    results = verify_text(ORIGINAL, "def f(:\n", "sm90", ":ragged")
    assert [r.status for r in results] == ["failed"] + ["skipped"] * 5
    assert "line 1" in results[0].detail


def test_an_example_of_another_form_fails_with_the_protocol():
    [result] = verify_text(ORIGINAL, MASKED, "sm90", ":wrong_protocol", rungs=("lower",))
    assert result.status == "failed"
    assert "must return a tuple" in result.detail
