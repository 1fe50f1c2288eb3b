"""The pages agree with the tool: generated parts are fresh, links lead somewhere, quotes are what it prints."""

import importlib.util
import pathlib
import re
import subprocess
import sys

import pytest

import pallas_port
from pallas_port import cli
from pallas_port.rewrites import RULES
from pallas_port.translator.diagnostics import CODES

ROOT = pathlib.Path(pallas_port.__file__).resolve().parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
README = (ROOT / "README.md").read_text()


@pytest.fixture(scope="module")
def generator():
    spec = importlib.util.spec_from_file_location("document_rules", ROOT / "scripts" / "document_rules.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_generated_pages_are_fresh(generator):
    differing = sorted(str(file.relative_to(ROOT)) for file in generator.stale())
    assert not differing, "review and commit what this writes: python scripts/document_rules.py"


def test_every_rule_and_code_has_its_place():
    index = (ROOT / "docs" / "rules" / "index.md").read_text()
    diagnostics = (ROOT / "docs" / "diagnostics.md").read_text()
    for rule in RULES:
        assert f"({rule.code}-{rule.name}.md)" in index
    for code in CODES.values():
        assert f"### {code.code}: {code.title}" in diagnostics


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_local_links_lead_somewhere(page):
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)]+)\)", text):
        if "://" not in target and not target.startswith("#"):
            assert (page.parent / target.partition("#")[0]).exists(), target


def quoted(name):
    part = README.partition(f"<!-- {name} -->")[2].partition(f"<!-- /{name} -->")[0]
    return re.findall(r"```python\n(.*?)\n```", part, re.DOTALL)


@pytest.mark.parametrize("name, golden", [("softmax", "softmax_rows"), ("matmul", "matmul_nn")])
def test_readme_quotes_what_the_tool_prints(name, golden):
    source = ROOT / "golden" / golden / "source.py"
    command = [sys.executable, "-c", "from pallas_port.cli import main; main()", str(source), "--to", "sm100"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    before, after = quoted(f"{name} before"), quoted(f"{name} after")
    assert len(before) == len(after) == 1
    for function in before[0].split("\n\n\n"):
        assert function in source.read_text()
    for function in after[0].split("\n\n\n"):
        assert function in printed


def test_readme_names_every_option_command_and_exit_code():
    from typer.main import get_command

    options = [o for p in get_command(cli._main_job).params for o in p.opts if o.startswith("-")]
    for word in (*options, *(f"pallas-port {name}" for name in cli.SUBCOMMANDS)):
        assert word in README, word
    for code in (cli.DONE, cli.KEPT, cli.BAD_INPUT, cli.FAULT):
        assert f"\n| {code} | " in README


def test_without_support_leaves_the_users_code(generator):
    before = "import jax\n\n\ndef _mine(x):\n  return x\n"
    after = "import jax\nimport math\n\n\n# Support code for Mosaic GPU, x.\ndef _vec(refs):\n  return math.pi\n\n\ndef _mine(x):\n  return x\n"
    assert generator.without_support(before, after) == (before, ["_vec"])
    assert generator.without_support(before, before) == (before, [])


def test_fill_refuses_a_readme_without_marks(generator):
    with pytest.raises(ValueError, match="softmax before"):
        generator.fill("no marks")
