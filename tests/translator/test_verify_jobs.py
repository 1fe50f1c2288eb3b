"""Child processes: hangs, deaths and faults cost one job and no more. No JAX is needed for these checks."""

import sys

import pytest

from pallas_port.translator.verify import jobs
from pallas_port.translator.verify.text import check_text

# A stand-in for a rung.
PROBE = """
import os, time
from pallas_port.translator.verify.rung import Fail, Skip

def check(subject, target, options):
    what = options["what"]
    if what == "hang":
        time.sleep(60)
    if what == "die":
        print("last words", flush=True)
        os.abort()
    if what == "exit":
        os._exit(3)
    if what == "skip":
        raise Skip("not here")
    if what == "fail":
        raise Fail("wrong", {"why": 1})
    if what == "raise":
        raise ValueError("boom")
    return what, {"pid": os.getpid(), "env": os.environ.get("PROBE", "")}
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs probe checks by making ``pallas_port.probe_for_test`` importable in the children."""
    hook = tmp_path / "sitecustomize.py"
    (tmp_path / "probe_for_test.py").write_text(PROBE)
    hook.write_text(
        "import sys, importlib.abc, importlib.util\n"
        "class Finder(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        if name == 'pallas_port.probe_for_test':\n"
        f"            return importlib.util.spec_from_file_location(name, {str(tmp_path / 'probe_for_test.py')!r})\n"
        "sys.meta_path.append(Finder())\n"
    )
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])

    def run(*whats, **parameters):
        todo = [jobs.Job(what, "probe_for_test", None, "sm90", {"what": what}) for what in whats]
        return jobs.run_jobs(todo, **parameters)

    return run


def test_one_process_for_many_jobs(run):
    results = run("a", "b", "c", env={"PROBE": "set"})
    assert [r.status for r in results] == ["passed"] * 3
    assert len({r.data["pid"] for r in results}) == 1
    assert results[0].data["env"] == "set"


def test_outcomes(run):
    skip, fail, error = run("skip", "fail", "raise")
    assert (skip.status, skip.detail) == ("skipped", "not here")
    assert (fail.status, fail.detail, fail.data) == ("failed", "wrong", {"why": 1})
    assert (error.status, error.detail) == ("failed", "ValueError: boom")


@pytest.mark.parametrize(
    "what, message",
    [("die", "died (signal 6)"), ("exit", "died (exit code 3)"), ("hang", "no result after 1 s")],
)
def test_a_bad_job_does_not_cost_the_next(run, what, message):
    before, bad, after = run("a", what, "b", timeout=1)
    assert (before.status, bad.status, after.status) == ("passed", "failed", "passed")
    assert message in bad.detail
    assert before.data["pid"] != after.data["pid"]


def test_death_shows_the_last_words(run):
    [result] = run("die")
    assert "last words" in result.detail


def test_stop_on_failure_goes_on_in_a_new_process(run):
    before, _, after = run("a", "fail", "b", stop_on_failure=True)
    assert before.data["pid"] != after.data["pid"]


def test_progress(run):
    seen = []
    run("a", "fail", progress=lambda job, result: seen.append((job.name, result.status)))
    assert seen == [("a", "passed"), ("fail", "failed")]


def test_text_rung():
    assert check_text("x = 1\n", lambda text: text).status == "passed"
    assert "not tried" in check_text("x = 1\n", None).detail
    assert check_text("x = (\n", None).status == "failed"
    changed = check_text("x = 1\n", lambda text: "x = 2\n")
    assert changed.status == "failed" and "+x = 2" in changed.detail
