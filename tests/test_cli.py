"""The command line: what goes to stdout, stderr and files, and the exit code of each case.

A stub stands for the driver: it "ports" by replacing words, so that every outcome can be had from
a few bytes of input, and these tests fail only for faults of the command line itself.
"""

import io
import json
import os
import subprocess
import sys
import types

import pytest

from pallas_port import cli
from pallas_port.translator import source as source_files
from pallas_port.translator.diagnostics import CODES, Code, Diagnostic, InputError
from pallas_port.translator.result import Options, PortResult, SiteReport

BLOCKED = Diagnostic(2, 3, "C990", "a reason", "some advice")
TRITON, MOSAIC, STUCK = "triton()\n", "mosaic()\n", "stuck()\n"
CALLS: list[tuple] = []


def stub_port(source, target, options, facts=None):
    """``triton()`` becomes ``mosaic()``, ``stuck()`` stays on Triton, ``boom`` is an internal fault."""
    CALLS.append((source, target, options, facts))
    if "boom" in source.text:
        raise RuntimeError("boom\nin two lines")
    if "broken(" in source.text:
        raise InputError(f"{source.filename}:1:1: never closed")
    sites = [SiteReport("k", 1, 1, "ported", ("R100",))] * source.text.count("triton()")
    sites += [SiteReport("s", 2, 3, "kept", diagnostics=(BLOCKED,))] * source.text.count("stuck()")
    sites += [SiteReport("m", 1, 1, "not-triton")] * source.text.count("mosaic()")
    text = source.text.replace("triton()", "mosaic()")
    return PortResult(source.filename, source.text, text, target, tuple(sites))


@pytest.fixture(autouse=True)
def stub(monkeypatch, tmp_path):
    CALLS.clear()
    monkeypatch.setitem(sys.modules, "pallas_port.translator.driver", types.SimpleNamespace(port=stub_port))
    monkeypatch.setitem(CODES, "C990", Code("C990", "A title", "An explanation."))
    monkeypatch.delenv(cli.TRACEBACK_VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def run(capsysbinary):
    """Runs the command line; returns exit code, stdout as bytes, stderr as text."""

    def call(*arguments):
        with pytest.raises(SystemExit) as exit:
            cli.main(arguments)
        captured = capsysbinary.readouterr()
        return exit.value.code, captured.out, captured.err.decode()

    return call


def put(name, text):
    data = text if isinstance(text, bytes) else text.encode()
    with open(name, "wb") as file:
        file.write(data)


def get(name):
    with open(name, "rb") as file:
        return file.read()


# -- the module on stdout -----------------------------------------------------------------------


def test_ported_module_goes_to_stdout(run):
    put("k.py", TRITON)
    assert run("k.py", "--to", "sm100") == (0, b"mosaic()\n", "")
    assert get("k.py") == b"triton()\n"


def test_target_and_options_reach_the_driver(run):
    put("k.py", TRITON)
    run("k.py", "--to", "sm90", "--keep-native")
    run("k.py", "--to", "sm100")
    assert [call[1:] for call in CALLS] == [
        ("sm90", Options(keep_native=True), None),
        ("sm100", Options(keep_native=False), None),
    ]


def test_what_stays_is_told_on_stderr(run):
    put("k.py", TRITON + STUCK)
    assert run("k.py", "--to", "sm100") == (
        1,
        b"mosaic()\nstuck()\n",
        "k.py:2:3: C990 a reason (some advice)\n",
    )


@pytest.mark.parametrize(
    "data",
    [
        b"triton()\r\n# \xc3\xa9\r\n",
        b"triton()\n# mixed\r\n",
        b"triton()",
        b"\xef\xbb\xbftriton()\r\n",
        b"# coding: latin-1\ntriton() # \xe9\n",
        b"\x0ctriton()\n\n   ",
    ],
    ids=["crlf", "mixed", "no_final_newline", "bom", "latin_1", "rim"],
)
@pytest.mark.parametrize("way", ["stdout", "stdin", "output", "in_place"])
def test_bytes_that_are_not_ported_stay(run, monkeypatch, data, way):
    put("k.py", data)
    if way == "stdin":
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    more = {"stdout": [], "stdin": [], "output": ["-o", "out.py"], "in_place": ["--in-place"]}[way]
    code, out, err = run("-" if way == "stdin" else "k.py", "--to", "sm100", *more)
    port = {"output": lambda: get("out.py"), "in_place": lambda: get("k.py")}.get(way, lambda: out)()
    assert (code, err, port) == (0, "", data.replace(b"triton", b"mosaic"))


def test_stdin_is_named_in_diagnoses(run, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(STUCK.encode())))
    assert run("-", "--to", "sm90") == (1, b"stuck()\n", "<stdin>:2:3: C990 a reason (some advice)\n")


# -- nothing to port ----------------------------------------------------------------------------


def test_ported_file_is_given_back_unchanged(run):
    put("k.py", MOSAIC)
    assert run("k.py", "--to", "sm100") == (0, b"mosaic()\n", "k.py: nothing to port\n")


def test_file_with_only_mosaic_kernels_is_given_back_unchanged(run):
    text = "from jax.experimental.pallas import mosaic_gpu as mg\nlaunch = mg.kernel\n"
    put("k.py", text)
    assert run("k.py", "--to", "sm100") == (0, text.encode(), "k.py: nothing to port\n")


def test_file_without_any_call_is_bad_input(run):
    put("k.py", "x = 1\n")
    assert run("k.py", "--to", "sm100") == (2, b"", "k.py: no pallas_call found\n")


def test_file_without_any_call_among_others_is_not(run):
    put("a.py", "x = 1\n")
    put("b.py", TRITON)
    assert run("a.py", "b.py", "--to", "sm100", "--in-place") == (0, b"", "a.py: no pallas_call found\n")
    assert (get("a.py"), get("b.py")) == (b"x = 1\n", b"mosaic()\n")


# -- writing ------------------------------------------------------------------------------------


def test_output_file(run):
    put("k.py", TRITON)
    assert run("k.py", "--to", "sm100", "-o", "out.py") == (0, b"", "")
    assert (get("k.py"), get("out.py")) == (b"triton()\n", b"mosaic()\n")


def test_output_dash_is_stdout(run):
    put("k.py", TRITON)
    assert run("k.py", "--to", "sm100", "-o", "-") == (0, b"mosaic()\n", "")
    assert os.listdir() == ["k.py"]


def test_in_place_several_files(run):
    for name, text in {"a.py": TRITON, "b.py": TRITON + STUCK, "c.py": MOSAIC}.items():
        put(name, text)
    code, out, err = run("a.py", "b.py", "c.py", "--to", "sm100", "--in-place")
    assert (code, out) == (1, b"")
    assert err == "b.py:2:3: C990 a reason (some advice)\nc.py: nothing to port\n"
    assert [get(n) for n in ("a.py", "b.py", "c.py")] == [b"mosaic()\n", b"mosaic()\nstuck()\n", b"mosaic()\n"]


def test_in_place_does_not_touch_an_unchanged_file(run, monkeypatch):
    put("k.py", STUCK)
    monkeypatch.setattr(source_files, "write", lambda *_: pytest.fail("written"))
    assert run("k.py", "--to", "sm100", "--in-place")[0] == 1


def test_in_place_follows_a_link(run):
    put("real.py", TRITON)
    os.symlink("real.py", "link.py")
    assert run("link.py", "--to", "sm100", "--in-place")[0] == 0
    assert os.path.islink("link.py") and get("real.py") == b"mosaic()\n"


def test_in_place_survives_a_full_disk(run, monkeypatch):
    put("k.py", TRITON)

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(source_files.os, "replace", fail)
    assert run("k.py", "--to", "sm100", "--in-place") == (
        2,
        b"",
        "k.py: cannot be written: No space left on device\n",
    )
    assert get("k.py") == b"triton()\n" and os.listdir() == ["k.py"]


# -- diff, check, report ------------------------------------------------------------------------


def test_diff_lists_the_diagnoses_after_it(run):
    put("k.py", TRITON + STUCK)
    assert run("k.py", "--to", "sm100", "--diff") == (
        1,
        b"--- a/k.py\n+++ b/k.py\n@@ -1,2 +1,2 @@\n-triton()\n+mosaic()\n stuck()\n"
        b"# k.py:2:3: C990 a reason (some advice)\n",
        "",
    )


def test_diff_of_several_files_applies_with_git(run):
    contents = {"a.py": b"\xef\xbb\xbftriton()\r\nx", "b.py": b"# coding: latin-1\n# \xe9\ntriton()\nstuck()\n"}
    for name, data in contents.items():
        put(name, data)
    code, out, _ = run("a.py", "b.py", "--to", "sm100", "--diff")
    assert code == 1
    subprocess.run(["git", "apply", "-"], input=out, check=True, env={**os.environ, "GIT_CEILING_DIRECTORIES": ".."})
    for name, data in contents.items():
        assert get(name) == data.replace(b"triton", b"mosaic")


def test_diff_is_painted_on_a_terminal_only(run, monkeypatch):
    put("k.py", TRITON)
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert b"\x1b[" not in run("k.py", "--to", "sm100", "--diff")[1]
    monkeypatch.setattr(type(sys.stdout), "isatty", lambda self: True)
    assert b"\x1b[32m+mosaic()\x1b[0m\n" in run("k.py", "--to", "sm100", "--diff")[1]
    monkeypatch.setenv("NO_COLOR", "1")
    assert b"\x1b[" not in run("k.py", "--to", "sm100", "--diff")[1]


@pytest.mark.parametrize(
    ("text", "code"), [(TRITON, 1), (STUCK, 1), (TRITON + STUCK, 1), (MOSAIC, 0), ("x = 1\n", 2)]
)
def test_check_writes_nothing_and_tells_by_its_exit_code(run, text, code):
    put("k.py", text)
    got, out, _ = run("k.py", "--to", "sm100", "--check")
    assert (got, out, get("k.py")) == (code, b"", text.encode())


def test_check_with_diff_shows_what_is_left(run):
    put("k.py", TRITON)
    code, out, _ = run("k.py", "--to", "sm100", "--check", "--diff")
    assert code == 1 and b"+mosaic()" in out


def test_text_report_replaces_the_module(run):
    put("k.py", TRITON + STUCK)
    code, out, err = run("k.py", "--to", "sm100", "--report", "text")
    assert (code, err) == (1, "")
    assert out.decode().splitlines()[:3] == [
        "k.py: 1 call ported to sm100, 1 call on Triton still",
        "  k.py:1:1: k: ported",
        "    rules: R100",
    ]
    assert b"C990 a reason (some advice)" in out


def test_json_report_of_several_files_is_one_document(run):
    put("a.py", TRITON)
    put("b.py", "boom\n")
    code, out, err = run("a.py", "b.py", "none.py", "--to", "sm90", "--report", "json")
    document = json.loads(out)
    assert code == 3
    assert [file["file"] for file in document["files"]] == ["a.py"]
    assert (document["version"], document["target"]) == (1, "sm90")
    assert [error.split(":")[0] for error in document["errors"]] == ["b.py", "none.py"]
    assert err.splitlines() == document["errors"]


def test_report_with_output_writes_the_module(run):
    put("k.py", TRITON)
    code, out, _ = run("k.py", "--to", "sm100", "--report", "json", "-o", "out.py")
    assert code == 0 and get("out.py") == b"mosaic()\n" and json.loads(out)["files"][0]["changed"]


# -- errors -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Missing argument"),
        (["k.py"], "Missing option '--to'"),
        (["k.py", "--to", "sm80"], "'sm80' is not one of 'sm90', 'sm100'"),
        (["k.py", "--to", "sm90", "--report", "xml"], "'xml' is not one of 'text', 'json'"),
        (["k.py", "--to", "sm90", "--frobnicate"], "--frobnicate"),
        (["k.py", "k.py", "--to", "sm90"], "several FILEs need --in-place, --diff, --check or --report"),
        (["k.py", "k.py", "--to", "sm90", "-o", "x"], "-o takes one FILE"),
        (["k.py", "--to", "sm90", "-o", "x", "--in-place"], "-o and --in-place exclude each other"),
        (["k.py", "--to", "sm90", "-o", "x", "--diff"], "-o and --diff exclude each other"),
        (["k.py", "--to", "sm90", "--in-place", "--check"], "--in-place and --check exclude each other"),
        (["k.py", "--to", "sm90", "--diff", "--report", "text"], "--diff and --report both print"),
        (["-", "--to", "sm90", "--in-place"], "--in-place needs files"),
        (["-", "-", "--to", "sm90", "--diff"], "stdin (-) can be read only once"),
        (["k.py", "--to", "sm90", "--record"], "no command after --"),
        (
            ["k.py", "--to", "sm90", "--example", "k.py:f", "--record", "--", "true"],
            "--example and --record exclude each other",
        ),
        (["k.py", "--to", "sm90", "--example", "k.py"], "expected FILE:FUNCTION"),
        (["none.py", "--to", "sm90"], "none.py: No such file or directory"),
        ([".", "--to", "sm90"], ".: Is a directory"),
        (["broken.py", "--to", "sm90"], "broken.py:1:1: never closed"),
    ],
)
def test_bad_input_and_usage(run, arguments, message):
    put("k.py", TRITON)
    put("broken.py", "broken(\n")
    code, out, err = run(*arguments)
    assert (code, out) == (2, b"")
    assert message in err
    assert sorted(os.listdir()) == ["broken.py", "k.py"] and get("k.py") == b"triton()\n"


def test_fault_is_one_line_that_asks_for_a_report(run):
    put("k.py", "boom\n")
    code, out, err = run("k.py", "--to", "sm100")
    assert (code, out) == (3, b"")
    assert err == (
        "k.py: internal fault: RuntimeError: boom in two lines; please report it "
        "(PALLAS_PORT_TRACEBACK=1 shows where it happened)\n"
    )


def test_traceback_where_asked_for(run, monkeypatch):
    monkeypatch.setenv(cli.TRACEBACK_VARIABLE, "1")
    put("k.py", "boom\n")
    code, _, err = run("k.py", "--to", "sm100")
    assert code == 3 and err.startswith("Traceback") and "in stub_port" in err


def test_one_bad_file_does_not_stop_the_others(run):
    put("a.py", "boom\n")
    put("b.py", TRITON)
    code, _, err = run("none.py", "a.py", "b.py", "--to", "sm100", "--in-place")
    assert code == 3 and get("b.py") == b"mosaic()\n"
    assert [line.split(":")[0] for line in err.splitlines()] == ["none.py", "a.py"]


def test_reader_that_leaves_early_is_no_error():
    script = (
        "import os, sys\n"
        "from pallas_port import cli\n"
        "r, w = os.pipe(); os.dup2(w, 1); os.close(w); os.close(r)\n"  # nobody reads stdout now
        "cli._print(b'x' * 100000)\n"
        "sys.exit(7)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True)
    assert (done.returncode, done.stderr) == (7, b"")


# -- facts --------------------------------------------------------------------------------------


def test_example_inputs_is_mentioned_and_not_run(run):
    put("k.py", TRITON + "def example_inputs():\n    raise SystemExit('was run')\n")
    code, _, err = run("k.py", "--to", "sm100")
    assert code == 0
    assert err == (
        "k.py: note: it has example_inputs(); to record facts from it, add --example k.py:example_inputs\n"
    )


def test_facts_of_an_example_reach_the_driver(run, monkeypatch):
    from pallas_port.translator import facts, record

    asked = []
    monkeypatch.setattr(record, "record_example", lambda *call: asked.append(call) or facts.Facts())
    put("k.py", TRITON + "def example_inputs():\n    pass\n")
    assert run("k.py", "--to", "sm100", "--example", "e.py:f")[::2] == (0, "")
    assert asked == [("e.py:f", "k.py")] and CALLS[0][3] == facts.Facts()


def test_recorded_command_is_all_that_follows_the_dashes(run, monkeypatch):
    from pallas_port.translator import record

    asked = []
    monkeypatch.setattr(record, "record_command", lambda command: asked.append(command) or "facts")
    put("k.py", TRITON)
    code, _, _ = run("k.py", "--to", "sm100", "--record", "--", "pytest", "--to", "x", "--", "y")
    assert code == 0 and asked == [["pytest", "--to", "x", "--", "y"]] and CALLS[0][3] == "facts"


def test_dashes_without_record_end_the_options(run):
    put("--diff", TRITON)
    assert run("--to", "sm100", "--", "--diff")[:2] == (0, b"mosaic()\n")


# -- subcommands --------------------------------------------------------------------------------


@pytest.fixture
def rules(monkeypatch):
    file = types.SimpleNamespace(__doc__="Moves the call.\n")
    rule = type("Launch", (), {"__module__": "launch_rule", "code": "R100", "name": "launch", "title": "Launch"})
    monkeypatch.setitem(sys.modules, "launch_rule", file)
    monkeypatch.setitem(sys.modules, "pallas_port.rewrites", types.SimpleNamespace(RULES=(rule,)))


def test_rules_lists_them(run, rules):
    assert run("rules") == (0, b"R100  launch: Launch\n", "")


@pytest.mark.parametrize(
    ("code", "text"),
    [("R100", b"R100: Launch\n\nMoves the call.\n"), ("c990", b"C990: A title\n\nAn explanation.\n")],
)
def test_explain(run, rules, code, text):
    assert run("explain", code) == (0, text, "")


def test_explain_unknown_code_names_the_known(run, rules):
    code, out, err = run("explain", "X1")
    assert (code, out) == (2, b"")
    assert err.startswith("pallas-port: no rule or diagnosis X1; there are ") and " R100" in err


def test_every_rule_and_diagnosis_is_explained(run, monkeypatch):
    from pallas_port.rewrites import RULES

    listed = run("rules")[1].decode()
    for rule in RULES:
        assert f"{rule.code}  {rule.name}: {rule.title}\n" in listed
        code, out, err = run("explain", rule.code)
        assert (code, err) == (0, "") and rule.title in out.decode() and "Why:" in out.decode()
    for kind in CODES.values():
        assert run("explain", kind.code)[1].decode() == f"{kind.code}: {kind.title}\n\n{kind.explanation}\n"


@pytest.mark.parametrize(("statuses", "expected"), [(["passed", "skipped"], 0), (["passed", "failed"], 1)])
def test_verify_prints_the_rungs(run, monkeypatch, statuses, expected):
    from pallas_port.translator.verify.rung import RungResult

    def verify_file(filename, target, example):
        assert (filename, target, example) == ("k.py", "sm90", "k.py:f")
        return [RungResult(f"rung{i}", status, "why") for i, status in enumerate(statuses)]

    fake = types.SimpleNamespace(verify_file=verify_file)
    monkeypatch.setitem(sys.modules, "pallas_port.translator.verify", fake)
    code, out, err = run("verify", "k.py", "--to", "sm90", "--example", "k.py:f")
    assert (code, err) == (expected, "")
    assert [line.split() for line in out.decode().splitlines()] == [
        [f"rung{i}", status, "why"] for i, status in enumerate(statuses)
    ]


def test_file_named_like_a_subcommand(run):
    put("check", TRITON)
    assert run("./check", "--to", "sm100") == (0, b"mosaic()\n", "")


def test_version_and_help(run):
    code, out, _ = run("--version")
    assert code == 0 and out.startswith(b"pallas-port 0.")
    code, out, _ = run("--help")
    assert code == 0
    for part in ("--in-place", "pallas-port verify FILE", "Exit codes:", "3  internal fault"):
        assert part.encode() in out


# -- start-up -----------------------------------------------------------------------------------


def test_command_line_starts_without_jax_rich_and_libcst():
    script = (
        "import sys\n"
        "from pallas_port import cli\n"
        "try: cli.main(['none.py', '--to', 'sm100'])\n"
        "except SystemExit: pass\n"
        "print([name for name in ('jax', 'rich', 'libcst', 'numpy') if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_full_disk_is_no_internal_fault():
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full")
    put("k.py", "x = 1\n")
    command = [sys.executable, "-m", "pallas_port.cli", "rules"]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (2, b"pallas-port: stdout cannot be written: No space left on device\n")
