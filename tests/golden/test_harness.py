"""The golden harness itself, on a golden made for the test."""

import pathlib
import sys

import pytest

from pallas_port.golden import device, harness, measure, table
from pallas_port.translator.verify import jobs

DATA = pathlib.Path(__file__).parents[1] / "translator" / "verify_data"

CASE = """
import jax

SHAPES = {"small": {"n": 600}, "large": {"n": 100000}}
SMALL, TIMED = ("small",), ("large",)
INSTRUCTIONS = {"sm90": ("LDG",)}
MAX_SPILL_BYTES = 8
WRONG = {
    "zeros": ("2.0 * x + 1.0", "0.0 * x", "interpret"),
    "stale": ("no such text", "", "interpret"),
}


def inputs(n):
    return (jax.random.normal(jax.random.key(0), (n,)),)


def reference(x):
    return 2.0 * x + 1.0


def work(x):
    return {"bytes": 2 * x.nbytes}
"""


@pytest.fixture
def golden(tmp_path):
    folder = tmp_path / "scale"
    folder.mkdir()
    (folder / "source.py").write_text((DATA / "scale.py").read_text())
    for target in ("sm90", "sm100"):
        (folder / f"expected_{target}.py").write_text((DATA / "masked_port.py").read_text())
    (folder / "case.py").write_text(CASE)
    [golden] = harness.discover(root=tmp_path)
    return golden


def test_discover(golden, tmp_path):
    assert golden.name == "scale"
    assert harness.discover(["scale"], root=tmp_path) == [golden]
    with pytest.raises(ValueError, match="no golden named nothing; there are scale"):
        harness.discover(["nothing"], root=tmp_path)


def test_expected_text_needs_no_libcst(golden, monkeypatch):
    monkeypatch.setitem(sys.modules, "libcst", None)
    assert "plgpu.kernel" in golden.expected_text("sm100")


def test_right_and_wrong_ports(golden):
    text, rung = golden.wrong("zeros")
    assert (text.count("0.0 * x"), rung) == (1, "interpret")
    with pytest.raises(ValueError, match="occurs 0 times"):
        golden.wrong("stale")
    todo = [
        jobs.Job("interpret", "translator.verify.interpret", golden.subject("small", text), "sm90")
        for text in (golden.expected_text("sm90"), text)
    ]
    right, wrong = jobs.run_jobs(todo, env=jobs.CPU_ONLY)
    assert (right.status, right.data["against"]) == ("passed", "the reference")
    assert wrong.status == "failed"


def test_compile_options(golden):
    assert golden.compile_options("sm90") == {"instructions": ["LDG"], "max_spill_bytes": 8}
    assert golden.compile_options("sm100") == {"instructions": [], "max_spill_bytes": 8}


def test_update_writes_what_differs(golden, monkeypatch):
    same = golden.expected_text("sm90")
    monkeypatch.setattr(harness.Golden, "port", lambda self, target: same if target == "sm90" else "new\n")
    assert harness.update([golden]) == [golden.expected_file("sm100")]
    assert golden.expected_text("sm100") == "new\n"
    assert harness.update([golden]) == []


def test_installed_module_as_source(tmp_path):
    folder = tmp_path / "softmax"
    folder.mkdir()
    (folder / "case.py").write_text("SOURCE_MODULE = 'jax.experimental.pallas.ops.gpu.softmax'\n")
    [golden] = harness.discover(root=tmp_path)
    assert golden.source_file.name == "softmax.py"
    assert golden.expected_file("sm90") is None


def test_exported_port_where_there_is_no_libcst(tmp_path, monkeypatch):
    folder = tmp_path / "softmax"
    folder.mkdir()
    (folder / "case.py").write_text("SOURCE_MODULE = 'jax.experimental.pallas.ops.gpu.softmax'\n")
    [golden] = harness.discover(root=tmp_path)
    monkeypatch.setattr(harness, "PORTS", tmp_path / "ports")
    monkeypatch.setattr(harness.Golden, "port", lambda self, target: f"for {target}\n")
    assert len(harness.export([golden])) == 2

    def port(self, target):
        raise ModuleNotFoundError("No module named 'libcst'", name="libcst")

    monkeypatch.setattr(harness.Golden, "port", port)
    assert golden.expected_text("sm100") == "for sm100\n"
    golden.exported_file("sm100").unlink()
    with pytest.raises(FileNotFoundError, match="--export"):
        golden.expected_text("sm100")


def test_shapes_are_shared_out_among_processes(golden):
    assert device.batches(golden) == [["small", "large"]]


def test_measuring_without_a_gpu_says_so(monkeypatch, capsys):
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    with pytest.raises(SystemExit, match="no GPU on this machine"):
        device.device()


def test_a_broken_golden_is_a_failed_record(golden, capsys):
    (golden.directory / "case.py").write_text("1 / 0\n")
    [labels] = device.batches(golden)
    [record] = device.measure(golden, labels, "sm90", 3)
    assert (record["status"], record["golden"]) == ("failed", "scale")
    assert "ZeroDivisionError" in record["detail"]


def test_measure_goes_on_without_the_original(golden, monkeypatch, tmp_path):
    """On a CPU, with a port that needs no GPU: there the original does not compile."""
    monkeypatch.setattr(measure, "matching_device", lambda target: None)
    monkeypatch.setattr(measure.gpu, "median_us", lambda function, arrays, n: float(len(function(*arrays))))
    case = golden.directory / "case.py"
    case.write_text(CASE + "\n\ndef peers(x):\n    return {'plain': lambda x: reference(x), 'broken': lambda x: x @ 2}\n")
    subject = golden.subject("small", "def run(x):\n    return 2.0 * x + 1.0\n")
    options = {"timed": True, "iterations": 1, "lock": str(tmp_path / "gpu")}
    detail, data = measure.check(subject, "sm90", options)
    assert data["us"] == {"port": 600.0, "plain": 600.0}
    assert set(data["faults"]) == {"original", "broken"} and set(data["errors"]) == {"port_vs_reference"}
    assert "plain 600.0 us" in detail
    with pytest.raises(measure.Fail, match="relative norm error"):
        measure.check(golden.subject("small", "def run(x):\n    return x\n"), "sm90", options)


def test_rates():
    assert measure.rates({"bytes": 4e9, "flops": 8e9}, 1000.0) == pytest.approx({"GB/s": 4000.0, "TFLOP/s": 8.0})
    assert measure.rates({}, 1.0) == {}


def test_table():
    errors = {"port_vs_reference": {"rel_norm": 1e-7}, "original_vs_reference": {"rel_norm": 2e-7}}
    timed = {
        "golden": "row_softmax",
        "label": "f32",
        "status": "passed",
        "errors": errors,
        "us": {"original": 11.0, "port": 10.0, "xla": 12.0},
        "speedup": 1.1,
        "rates": {"port": {"GB/s": 4000.4}},
    }
    results = [
        timed,
        {"golden": "a", "label": "b", "status": "passed", "errors": errors},
        {"golden": "broken", "label": "c", "status": "failed", "detail": "x"},
        {**timed, "golden": "wrong", "status": "failed"},
    ]
    report = {"device": "NVIDIA H200", "jax": "0.0", "date": "2000-01-01", "iterations": 20, "results": results}
    lines = table.table(report).splitlines()
    assert lines[0].startswith("NVIDIA H200, JAX 0.0")
    assert lines[4] == "| row softmax | f32 | 10.0 | 11.0 | 1.10x | 4000 GB/s | 1.0e-07 / 2.0e-07 | xla 12.0 |"
    assert "**failed**" in lines[5] and "(**wrong**)" in lines[6]
    assert len(lines) == 7
