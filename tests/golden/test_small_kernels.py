"""Small kernels of the kinds that trip a port, end to end: whole arrays without a grid, both tails masked, statistics
kept as columns, blocks wider than shared memory.
"""

import pathlib

import pytest

from pallas_port.translator import driver, source
from pallas_port.translator.result import TARGETS, Options
from pallas_port.translator.verify import jobs
from pallas_port.translator.verify.example import Subject

KERNELS = sorted((pathlib.Path(__file__).parent / "kernels").glob("*.py"))
RUNGS = ("lower", "compile", "interpret")


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda path: path.stem)
@pytest.mark.parametrize("target", TARGETS)
def test_ports_and_is_right(kernel: pathlib.Path, target: str):
    port = driver.port(source.read(str(kernel)), target, Options(), None)
    assert [site.status for site in port.sites] == ["ported"], port.diagnostics
    subject = Subject(str(kernel), port.text, str(kernel), "example_inputs")
    options = {"compile": {"max_spill_bytes": 0}}
    todo = [jobs.Job(rung, f"translator.verify.{rung}", subject, target, options.get(rung, {})) for rung in RUNGS]
    failed = [result for result in jobs.run_jobs(todo, env=jobs.CPU_ONLY) if result.status == "failed"]
    assert not failed
