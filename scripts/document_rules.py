"""Writes the generated pages: docs/rules/, docs/diagnostics.md and the marked parts of README.md.

    python scripts/document_rules.py            writes what differs and names it
    python scripts/document_rules.py --check    writes nothing; exit code 1 if something differs

The texts of rules are the docstrings and examples of their files, those of diagnoses stand in
``translator/diagnostics.py``, and every port shown is made by the tool when this runs. In README.md
the text between ``<!-- NAME -->`` and ``<!-- /NAME -->`` is replaced; ``PARTS`` says by what.

Needs jinja2 (part of the test extra).
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import difflib
import functools
import json
import pathlib
import re
import sys
from collections.abc import Callable

import jinja2

from pallas_port.golden import table
from pallas_port.rewrites import RULES, Rule
from pallas_port.translator.diagnostics import CODES
from pallas_port.translator.driver import port
from pallas_port.translator.result import Options
from pallas_port.translator.source import Source, read

ROOT = pathlib.Path(__file__).resolve().parent.parent
_HEADING = "# Support code for Mosaic GPU"
_GROUPS = {
    "B": ("The body of a kernel", "Keeps the call on the Triton backend: an expression that Mosaic GPU cannot take, or that the port does not follow."),
    "C": ("The call", "Keeps the call on the Triton backend: grid, specs, aliases, backend, or code that other calls share."),
    "N": ("Numerics", "A note: the call is ported, and its results may differ in the way that the note says."),
    "P": ("Performance", "A note: the call is ported, and a change of your own code would make it faster."),
}


# -- rules --------------------------------------------------------------------------------------


def rule_facts(rule: type[Rule]) -> dict[str, object]:
    """What a page shows of a rule. Paragraphs of the docstring are told apart by how they begin."""
    module = sys.modules[rule.__module__]
    summary, *rest = re.split(r"\n\s*\n", (module.__doc__ or "").strip())
    why, details, limits = "", [], []
    for paragraph in rest:
        if paragraph.startswith("Why:"):
            why = _capital(paragraph.removeprefix("Why:").strip())
        elif paragraph.startswith("Does not cover"):
            limits.append(paragraph)
        else:
            details.append(paragraph)
    file = pathlib.Path(module.__file__ or "").name
    return {
        "code": rule.code,
        "name": rule.name,
        "title": rule.title,
        "page": f"{rule.code}-{rule.name}.md",
        "file": file,
        "summary": summary,
        "why": why,
        "details": details,
        "limits": limits,
        "actions": ", ".join(f"`{action.__name__}`" for action in (*rule.nodes, *rule.inserts)),
        "examples": [_example(e.before.strip("\n") + "\n", e.target) for e in rule.EXAMPLES],
    }


def _example(before: str, target: str) -> dict[str, object]:
    after = port(Source("kernel.py", before), target, Options()).text  # type: ignore[arg-type]
    shown, support = without_support(before, after)
    lines = difflib.unified_diff(before.splitlines(), shown.splitlines(), "kernel.py", "kernel.py", lineterm="")
    return {
        "before": before.rstrip("\n"),
        "target": target,
        "diff": "\n".join(lines),
        "support": bool(support),
    }


def without_support(before: str, after: str) -> tuple[str, list[str]]:
    """The port without the support code and the imports that only it uses; the names left out."""
    lines = after.split("\n")
    heading = next((i for i, line in enumerate(lines, 1) if line.startswith(_HEADING)), None)
    if heading is None:
        return after, []
    tree, names = ast.parse(after), []
    last = heading
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.lineno > heading and node.name in _support_names():
            names.append(node.name)
            last = node.end_lineno or last
    while last < len(lines) and not lines[last].strip():
        last += 1
    del lines[heading - 1 : last]
    text = "\n".join(lines)
    used = {n.id for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Name)}
    dropped = set()
    for node in ast.parse(text).body:
        if isinstance(node, (ast.Import, ast.ImportFrom)) and ast.unparse(node) not in before:
            if not {(a.asname or a.name).partition(".")[0] for a in node.names} & used:
                dropped |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return "\n".join(line for i, line in enumerate(lines, 1) if i not in dropped), names


@functools.cache
def _support_names() -> frozenset[str]:
    trees = (ast.parse(file.read_text()) for file in (ROOT / "rewrites" / "support").glob("*.py"))
    return frozenset(n.name for t in trees for n in t.body if isinstance(n, (ast.FunctionDef, ast.ClassDef)))


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


# -- diagnoses ----------------------------------------------------------------------------------


def findings() -> dict[str, dict[str, str]]:
    """{code: {reason: advice}} as the translator spells them; computed parts are shown as "…"."""
    found: dict[str, dict[str, str]] = {code: {} for code in CODES}
    for file in sorted(set((ROOT / "translator").glob("*.py")) - {ROOT / "translator" / "diagnostics.py"}):
        for node in ast.walk(ast.parse(file.read_text())):
            code, texts = _finding(node)
            if code and texts and texts[0]:
                found[code].setdefault(texts[0], texts[1] if len(texts) > 1 else "")
    return found


def _finding(node: ast.AST) -> tuple[str, list[str]]:
    """The code, and reason and advice, of a call or tuple ``(..., CODE, node, reason[, advice])``."""
    if isinstance(node, ast.Call):
        name, parts = ast.unparse(node.func), node.args
        if name == "_Unplanned":
            return "B130", [_text(part) for part in parts[1:3]]
    elif isinstance(node, ast.Tuple):
        name, parts = "", node.elts
    else:
        return "", []
    for i, part in enumerate(parts):
        if isinstance(part, ast.Constant) and part.value in CODES:
            first = i + (1 if name == "Diagnostic" else 2)
            return part.value, [_text(part) for part in parts[first : first + 2]]
    return "", []


def _text(node: ast.expr) -> str:
    """A literal or f-string; "" for any other expression."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(part.value if isinstance(part, ast.Constant) else "…" for part in node.values)
    return ""


# -- parts of README.md -------------------------------------------------------------------------


def _source(golden: str) -> str:
    return read(str(ROOT / "golden" / golden / "source.py")).text


def _port(golden: str, target: str) -> str:
    return port(Source("source.py", _source(golden)), target, Options()).text  # type: ignore[arg-type]


def _quote(text: str, *functions: str) -> str:
    """The named top-level functions of a module, as they stand."""
    segments = []
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef) and node.name in functions:
            segments.append(ast.get_source_segment(text, node) or "")
    return "```python\n" + "\n\n\n".join(segments) + "\n```"


def _results() -> str:
    files = sorted(table.RESULTS.glob("*.json"), key=lambda f: (f.name.startswith("accuracy-"), f.name))
    return "\n\n".join(table.table(json.loads(file.read_text())) for file in files) or "No results are committed."


PARTS: dict[str, Callable[[], str]] = {
    "softmax before": lambda: _quote(_source("softmax_rows"), "make_kernel", "run"),
    "softmax after": lambda: _quote(_port("softmax_rows", "sm100"), "make_kernel", "run"),
    "matmul before": lambda: _quote(_source("matmul_nn"), "matmul_kernel", "run"),
    "matmul after": lambda: _quote(_port("matmul_nn", "sm100"), "matmul_kernel_loads", "matmul_kernel", "run"),
    "results": _results,
}


def fill(text: str) -> str:
    """README.md with each marked part replaced. Raises ValueError for a part that is not marked once."""
    for name, make in PARTS.items():
        start, end = f"<!-- {name} -->", f"<!-- /{name} -->"
        if text.count(start) != 1 or text.count(end) != 1:
            raise ValueError(f"README.md must hold {start} and {end} once")
        head, _, rest = text.partition(start)
        text = f"{head}{start}\n{make()}\n{end}{rest.partition(end)[2]}"
    return text


# -- all pages ----------------------------------------------------------------------------------


def pages() -> dict[str, str]:
    """{path from the repository's top: text} of every generated page."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(ROOT / "scripts" / "templates"),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
    )
    environment.filters["cell"] = lambda text: text.replace("|", "\\|")
    render = lambda name, **values: environment.get_template(f"{name}.md.jinja").render(**values)  # noqa: E731
    rules = [rule_facts(rule) for rule in sorted(RULES, key=lambda rule: rule.code)]
    reasons = findings()
    groups = [
        {
            "title": title,
            "text": text,
            "codes": [
                {**dataclasses.asdict(code), "reasons": reasons[code.code].items()}
                for code in CODES.values() if code.code[0] == letter
            ],
        }
        for letter, (title, text) in _GROUPS.items()
    ]
    return {
        **{f"docs/rules/{rule['page']}": render("rule", rule=rule) for rule in rules},
        "docs/rules/index.md": render("rules_index", rules=rules),
        "docs/diagnostics.md": render("diagnostics", groups=groups),
        "README.md": fill((ROOT / "README.md").read_text()),
    }


def stale() -> dict[pathlib.Path, str | None]:
    """{file: its new text} of what differs from the repository; None for a page to remove."""
    new = {ROOT / name: text for name, text in pages().items()}
    found: dict[pathlib.Path, str | None] = {
        file: text for file, text in new.items() if not file.exists() or file.read_text() != text
    }
    found |= {file: None for file in (ROOT / "docs" / "rules").glob("*.md") if file not in new}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 if something differs")
    check = parser.parse_args().check
    found = stale()
    for file, text in found.items():
        print(f"{'differs' if check else 'wrote' if text is not None else 'removed'}: {file.relative_to(ROOT)}")
        if check:
            continue
        if text is None:
            file.unlink()
        else:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
    sys.exit(1 if check and found else 0)


if __name__ == "__main__":
    main()
