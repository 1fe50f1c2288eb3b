"""Every rule's examples, as its page shows them: the port of ``before`` holds ``after``."""

import ast

import pytest

from pallas_port.rewrites import RULES
from pallas_port.translator.driver import port
from pallas_port.translator.result import Options
from pallas_port.translator.source import Source

EXAMPLES = [
    pytest.param(rule, example, id=f"{rule.code}-{i}") for rule in RULES for i, example in enumerate(rule.EXAMPLES)
]


@pytest.mark.parametrize("rule", RULES, ids=lambda r: r.code)
def test_rule_states_itself(rule):
    assert rule.EXAMPLES and rule.title and rule.name
    module = __import__(rule.__module__, fromlist=["x"])
    assert "Why:" in module.__doc__


def test_codes_and_names_are_unique():
    assert len({r.code for r in RULES}) == len({r.name for r in RULES}) == len(RULES)


@pytest.mark.parametrize("rule, example", EXAMPLES)
def test_port_holds_the_example(rule, example):
    result = port(Source("example.py", example.before), example.target, Options())
    assert all(s.status == "ported" for s in result.sites), result.diagnostics
    assert rule.code in {code for s in result.sites for code in s.rules}
    assert example.after.strip("\n") in result.text
    ast.parse(result.text)


@pytest.mark.parametrize("rule, example", EXAMPLES)
def test_port_of_the_port_changes_nothing(rule, example):
    result = port(Source("example.py", example.before), example.target, Options())
    again = port(Source("example.py", result.text), example.target, Options())
    assert again.text == result.text
