"""Every golden kernel, as far as a machine without a GPU can tell.

Compiling a kernel takes a second, starting a process three: one process per target lowers and compiles all goldens,
and the tests read its results. Under pytest-xdist the first worker that needs them makes them for all.
"""

import dataclasses
import fcntl
import json

import pytest

jax = pytest.importorskip("jax")

from pallas_port.golden.harness import Golden, discover
from pallas_port.translator.result import TARGETS
from pallas_port.translator.verify import jobs
from pallas_port.translator.verify.rung import RungResult

GOLDENS = discover()
SECONDS_PER_INTERPRETED_SHAPE = 120.0

each_golden = pytest.mark.parametrize("golden", GOLDENS, ids=lambda golden: golden.name)
each_target = pytest.mark.parametrize("target", TARGETS)


@each_golden
@each_target
def test_expected_text_is_what_the_port_is(golden: Golden, target: str):
    file = golden.expected_file(target)
    if file is None:
        pytest.skip("ported on the fly: no committed text")
    assert golden.port(target) == file.read_text(encoding="utf-8"), (
        f"review the difference, then: python -m pallas_port.golden.harness --update {golden.name}"
    )


@each_golden
@each_target
def test_porting_the_port_changes_nothing(golden: Golden, target: str):
    text = golden.expected_text(target)
    assert golden.port(target, text) == text


@each_golden
def test_shapes_are_declared(golden: Golden):
    case = golden.case
    assert set(case.SMALL) <= set(case.SHAPES) and case.SMALL
    assert set(case.TIMED) <= set(case.SHAPES)


@pytest.fixture(scope="session")
def built(request, tmp_path_factory):
    """``built(target)``: results of the lower and compile rungs by (golden, label, rung), for the selected goldens."""
    parameters = [item.callspec.params for item in request.session.items if hasattr(item, "callspec")]
    selected = {p["golden"].name for p in parameters if isinstance(p.get("golden"), Golden)}
    goldens = [golden for golden in GOLDENS if golden.name in selected]
    shared = tmp_path_factory.getbasetemp()
    if shared.name.startswith("popen-"):  # below pytest-xdist: the directory that all workers share
        shared = shared.parent

    def results(target: str) -> dict[tuple[str, str, str], RungResult]:
        store = shared / f"built-{target}.json"
        with open(shared / f"built-{target}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not store.exists():
                store.write_text(json.dumps(_build(goldens, target)))
        return {tuple(key): RungResult(**result) for key, result in json.loads(store.read_text())}

    return results


def _build(goldens: list[Golden], target: str) -> list:
    keys, todo = [], []
    for golden in goldens:
        if target not in golden.targets:
            continue
        try:
            text, options = golden.expected_text(target), golden.compile_options(target)
        except FileNotFoundError:
            continue  # test_expected_text_is_what_the_port_is says so; the others are built all the same
        for label in golden.case.SMALL:
            subject = golden.subject(label, text)
            todo.append(jobs.Job("lower", "translator.verify.lower", subject, target))
            todo.append(jobs.Job("compile", "translator.verify.compile", subject, target, options))
            keys += [(golden.name, label, "lower"), (golden.name, label, "compile")]
    results = jobs.run_jobs(todo, env=jobs.CPU_ONLY)
    return [(key, dataclasses.asdict(result)) for key, result in zip(keys, results, strict=True)]


def _ported_to(golden: Golden, target: str) -> None:
    """Skips a target on which a golden stays on Triton, whose text must then be the source's."""
    if target not in golden.targets:
        assert golden.expected_text(target) == golden.source_file.read_text(encoding="utf-8")
        pytest.skip(f"not ported to {target}")


@each_golden
@each_target
@pytest.mark.timeout(900)
def test_lowers(built, golden: Golden, target: str):
    _ported_to(golden, target)
    results = built(target)
    for label in golden.case.SMALL:
        result = results[golden.name, label, "lower"]
        assert result.status == "passed", f"{label}: {result.detail}"


@each_golden
@each_target
@pytest.mark.timeout(900)
def test_compiles_to_the_instructions_it_must_have(built, golden: Golden, target: str):
    _ported_to(golden, target)
    results = built(target)
    for label in golden.case.SMALL:
        result = results[golden.name, label, "compile"]
        if result.status == "skipped":
            pytest.skip(result.detail)
        assert result.status == "passed", f"{label}: {result.detail}"


@each_golden
@pytest.mark.timeout(900)
def test_interprets_right_and_without_races(golden: Golden):
    if not getattr(golden.case, "INTERPRETED", True):
        pytest.skip("interpret mode does not support this kernel; see its case.py")
    keys = [(target, label) for target in golden.targets for label in golden.case.SMALL]
    todo = [
        jobs.Job("interpret", "translator.verify.interpret", golden.subject(label, golden.expected_text(target)), target)
        for target, label in keys
    ]
    results = jobs.run_jobs(todo, env=jobs.CPU_ONLY, timeout=SECONDS_PER_INTERPRETED_SHAPE)
    wrong = [(*key, r.detail) for key, r in zip(keys, results, strict=True) if r.status != "passed"]
    assert not wrong


@each_golden
@pytest.mark.timeout(900)
@pytest.mark.skipif(jax.__version_info__ < (0, 12), reason="tests the checks, not JAX: on the newest JAX only")
def test_wrong_ports_are_rejected(golden: Golden):
    labels = list(getattr(golden.case, "WRONG", {}))
    if not labels:
        assert golden.expected_file("sm90") is None, "a golden with committed text declares wrong ports"
        pytest.skip("ported on the fly: there is no committed text to mutate")
    shape = golden.case.SMALL[0]
    todo = []
    for label in labels:
        text, rung = golden.wrong(label)
        options = golden.compile_options("sm90") if rung == "compile" else {}
        todo.append(jobs.Job(rung, f"translator.verify.{rung}", golden.subject(shape, text), "sm90", options))
    results = jobs.run_jobs(todo, env=jobs.CPU_ONLY, timeout=SECONDS_PER_INTERPRETED_SHAPE / 2)
    accepted = [
        (label, result.status, result.detail)
        for label, result in zip(labels, results, strict=True)
        if result.status != "failed" and not (result.status == "skipped" and result.name == "compile")
    ]
    assert not accepted
