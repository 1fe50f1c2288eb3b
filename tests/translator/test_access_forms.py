"""Forms of loads and stores, each ported, lowered for both targets and interpreted against plain JAX.

``verify_data/access_forms.py`` holds the kernels; one function each, so that a form is one name.
"""

import pathlib
import re

import pytest

jax = pytest.importorskip("jax")

from pallas_port.translator.driver import port
from pallas_port.translator.result import TARGETS, Options
from pallas_port.translator.source import Source
from pallas_port.translator.verify import jobs
from pallas_port.translator.verify.example import Subject

# One process makes the results of all forms, ahead of the first test.
pytestmark = [pytest.mark.xdist_group("access_forms"), pytest.mark.timeout(900)]

# Interpretation takes most of the time; what it shows of a port is the same on both JAX versions.
INTERPRETED = jax.__version_info__ >= (0, 12)

FILE = pathlib.Path(__file__).parent / "verify_data" / "access_forms.py"
TEXT = FILE.read_text()
FORMS = re.findall(r"^def example_(\w+)\(", TEXT, re.MULTILINE)
# The race detector does not know that a lock orders what it protects.
NOT_INTERPRETED = frozenset({"atomic_lock"})
# One of each kind of support code that no golden has.
COMPILED = ("tile_float8", "scalar_masked_load", "atomic_max_i32", "atomic_scalar", "atomic_fetch_vector", "atomic_lock")


def only(form: str) -> str:
    """The file with the one kernel: others must not decide whether it ports."""
    head, *parts = re.split(r"^# -- (\w+)\n", TEXT, flags=re.MULTILINE)
    return head + dict(zip(parts[::2], parts[1::2]))[form]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    directory = tmp_path_factory.mktemp("forms")
    todo, compiled = [], {target: [] for target in TARGETS}
    for form in FORMS:
        file = directory / f"{form}.py"
        file.write_text(only(form))
        for target in TARGETS:
            result = port(Source(str(file), only(form)), target, Options())
            if all(s.status == "ported" for s in result.sites):
                subject = Subject(str(file), result.text, str(file), f"example_{form}")
                todo.append(jobs.Job(f"{form} lower {target}", "translator.verify.lower", subject, target))
                if form in COMPILED:
                    compiled[target].append(jobs.Job(f"{form} compile {target}", "translator.verify.compile", subject, target))
                if INTERPRETED and target == "sm90":
                    todo.append(jobs.Job(f"{form} interpret", "translator.verify.interpret", subject, target))
    batches = [todo, *compiled.values()]  # a process compiles for one target only
    return {r.name: r for batch in batches for r in jobs.run_jobs(batch, env=jobs.CPU_ONLY, timeout=120)}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("form", FORMS)
def test_form_lowers(results, form, target):
    result = results[f"{form} lower {target}"]
    assert result.status == "passed", result.detail


@pytest.mark.skipif(not INTERPRETED, reason="interpreted on the newest JAX only")
@pytest.mark.parametrize("form", [f for f in FORMS if f not in NOT_INTERPRETED])
def test_form_interprets(results, form):
    result = results[f"{form} interpret"]
    assert result.status == "passed", result.detail


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("form", COMPILED)
def test_form_compiles(results, form, target):
    result = results[f"{form} compile {target}"]
    if result.status == "skipped":
        pytest.skip(result.detail)
    assert result.status == "passed", result.detail
