"""The report says for each call what was done, in text, as a table and as JSON."""

import io
import json

import pytest

from pallas_port.translator import report
from pallas_port.translator.diagnostics import CODES, Code, Diagnostic
from pallas_port.translator.result import PortResult, SiteReport

BLOCKED = Diagnostic(12, 5, "C990", "the grid depends on a traced value", "make it static")
ROUNDED = Diagnostic(4, 9, "N990", "sqrt is computed through rsqrt: 2.4 ulp")
PORTED = SiteReport("add", 10, 3, "ported", ("R100", "R200"), ("grid axes (i,)", "1 warpgroup"), (ROUNDED,))
KEPT = SiteReport("scan", 12, 5, "kept", diagnostics=(BLOCKED,))
OTHER = SiteReport("done", 20, 1, "not-triton")


@pytest.fixture(autouse=True)
def codes(monkeypatch):
    for code in ("C990", "N990"):
        monkeypatch.setitem(CODES, code, Code(code, "title", "explanation"))


def result(*sites: SiteReport, text: str = "old") -> PortResult:
    return PortResult("k.py", "old", text, "sm100", sites)


@pytest.mark.parametrize(
    ("sites", "expected"),
    [
        ((), "no-call"),
        ((OTHER,), "nothing-to-port"),
        ((PORTED, OTHER), "ported"),
        ((PORTED, KEPT, OTHER), "kept"),
    ],
)
def test_outcome(sites, expected):
    assert report.outcome(result(*sites)) == expected


@pytest.mark.parametrize(
    ("sites", "expected"),
    [
        ((), "k.py: no pallas_call"),
        ((PORTED,), "k.py: 1 call ported to sm100"),
        ((PORTED, PORTED, KEPT), "k.py: 2 calls ported to sm100, 1 call on Triton still"),
        ((OTHER,), "k.py: 1 call on another backend already"),
    ],
)
def test_summary(sites, expected):
    assert report.summary(result(*sites)) == expected


def test_text():
    assert report.as_text(result(PORTED, KEPT)) == (
        "k.py: 1 call ported to sm100, 1 call on Triton still\n"
        "  k.py:10:3: add: ported\n"
        "    rules: R100 R200\n"
        "    plan: grid axes (i,)\n"
        "    plan: 1 warpgroup\n"
        "    k.py:4:9: N990 sqrt is computed through rsqrt: 2.4 ulp\n"
        "  k.py:12:5: scan: kept\n"
        "    k.py:12:5: C990 the grid depends on a traced value (make it static)\n"
    )


def test_table_holds_all_that_the_text_holds():
    from rich.console import Console

    out = io.StringIO()
    bracketed = SiteReport("[bold]add", 10, 3, "ported", ("R100",), ("x[:, None]",), (ROUNDED,))
    Console(file=out, width=200).print(report.as_table(result(bracketed, KEPT)))
    for part in ("[bold]add", "x[:, None]", "R100", "N990", "C990", "make it static", "kept"):
        assert part in out.getvalue()


def test_json_document():
    assert json.loads(report.as_json("sm100", [result(PORTED, KEPT, text="new")], ["x.py: gone"])) == {
        "version": 1,
        "target": "sm100",
        "files": [
            {
                "file": "k.py",
                "outcome": "kept",
                "changed": True,
                "sites": [
                    {
                        "kernel": "add",
                        "line": 10,
                        "column": 3,
                        "status": "ported",
                        "rules": ["R100", "R200"],
                        "plan": ["grid axes (i,)", "1 warpgroup"],
                        "diagnostics": [
                            {
                                "line": 4,
                                "column": 9,
                                "code": "N990",
                                "reason": "sqrt is computed through rsqrt: 2.4 ulp",
                                "advice": "",
                                "kind": "numerics",
                                "keeps_on_triton": False,
                            }
                        ],
                    },
                    {
                        "kernel": "scan",
                        "line": 12,
                        "column": 5,
                        "status": "kept",
                        "rules": [],
                        "plan": [],
                        "diagnostics": [
                            {
                                "line": 12,
                                "column": 5,
                                "code": "C990",
                                "reason": "the grid depends on a traced value",
                                "advice": "make it static",
                                "kind": "call",
                                "keeps_on_triton": True,
                            }
                        ],
                    },
                ],
            }
        ],
        "errors": ["x.py: gone"],
    }


def test_every_code_has_a_kind():
    assert {code[0] for code in CODES} <= set(report.KINDS)
