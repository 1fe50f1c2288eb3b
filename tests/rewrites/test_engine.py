"""The engine applies actions to their nodes and touches nothing else."""

import ast

import pytest

from pallas_port.rewrites import apply
from pallas_port.rewrites.engine import expression
from pallas_port.translator import actions as act
from pallas_port.translator.actions import Span, span_of
from pallas_port.translator.names import Resolver
from pallas_port.translator.plan import FreshNames, ModulePlan, Modules

IMPORTS = "from jax import lax\nfrom jax.experimental import pallas as pl\nfrom jax.experimental.pallas import mosaic_gpu as plgpu\n"


def plan(text: str, *actions, support=()):
    resolver = Resolver(ast.parse(text))
    return ModulePlan(actions, (), support, Modules(resolver, FreshNames.of_module(resolver), frozenset()))


def span(text: str, part: str, number: int = 0) -> Span:
    """The span of the ``number``-th node that is written ``part``."""
    lines = text.split("\n")
    spans = [span_of(n, lines) for n in ast.walk(ast.parse(text)) if isinstance(n, (ast.expr, ast.stmt)) and ast.get_source_segment(text, n) == part]
    return sorted(dict.fromkeys(spans))[number]


def test_only_the_statement_with_an_action_changes():
    odd = "x = {  1 :2 }  # odd\n"
    text = f"{IMPORTS}{odd}def f( a ) :\n\treturn  pl.program_id( 0 )\n{odd}"
    result = apply(text, plan(text, act.GridAxis(span(text, "pl.program_id( 0 )"), "i", False)))
    assert result == text.replace("pl.program_id( 0 )", 'lax.axis_index( "i" )').replace("from jax.experimental import pallas as pl\n", "")


@pytest.mark.parametrize("before", [
    pytest.param("", id="plain"),
    pytest.param("'日本語'; ", id="non-ascii-before"),
    pytest.param("é = 1; ", id="two-bytes-before"),
    pytest.param("'𝒳'; ", id="four-bytes-before"),
])
def test_columns_count_characters(before):
    text = f"{IMPORTS}def f():\n    {before}return pl.program_id(0), pl.program_id(1)\n"
    result = apply(text, plan(text, act.GridAxis(span(text, "pl.program_id(1)"), "j", False)))
    assert f'    {before}return pl.program_id(0), lax.axis_index("j")\n' in result


def test_action_without_a_node_is_an_error():
    text = f"{IMPORTS}x = 1\n"
    with pytest.raises(RuntimeError):
        apply(text, plan(text, act.GridAxis(Span(4, 1, 4, 3), "i", False)))
    with pytest.raises(RuntimeError):
        apply(text, plan(text, act.GridAxis(Span(40, 0, 40, 3), "i", False)))


def test_statement_rewrites_find_the_second_statement_of_a_line():
    text = f"{IMPORTS}def f(x_ref):\n    a = 1; b = x_ref[0]\n"
    result = apply(text, plan(text, act.DefineLayouts(span(text, "b = x_ref[0]"), ("layout = 2",))))
    assert "    layout = 2\n    a = 1; b = x_ref[0]\n" in result


def test_blank_line_and_comments_stay_with_their_statement():
    text = f"{IMPORTS}def f(x_ref):\n    a = 1\n\n    # about b\n    b = x_ref[0]\n"
    result = apply(text, plan(text, act.DefineLayouts(span(text, "b = x_ref[0]"), ("layout = 2",))))
    assert result.endswith("    a = 1\n\n    layout = 2\n    # about b\n    b = x_ref[0]\n") or result.endswith("    a = 1\n\n    layout = 2\n\n    # about b\n    b = x_ref[0]\n")


@pytest.mark.parametrize("before, after", [
    pytest.param("    p = 1\n    return 2\n", "    return 2\n", id="plain"),
    pytest.param("    # about p\n    p = 1\n    return 2\n", None, id="comment-above"),
    pytest.param("    if x:\n        p = 1\n    return 2\n", "    if x:\n        pass\n    return 2\n", id="only-statement-of-a-branch"),
])
def test_removed_statement(before, after):
    text = f"def f(x):\n{before}"
    result = apply(text, plan(text, act.RemoveStatement(span(text, "p = 1"))))
    ast.parse(result)
    assert "p = 1" not in result and "return 2" in result
    if after is not None:
        assert result == f"def f(x):\n{after}"


def test_two_actions_at_one_statement():
    text = f"{IMPORTS}def f(x_ref):\n    b = x_ref[0]\n"
    at = span(text, "b = x_ref[0]")
    result = apply(text, plan(text, act.DefineLayouts(at, ("layout = 2",)), act.SumAfterLoop(at, ("b",))))
    assert "    layout = 2\n    b = x_ref[0]\n    b = b.sum(axis=0)\n" in result


@pytest.mark.parametrize("node, axis, expected", [
    ("x", 0, "x[:, None]"), ("x", 1, "x[None, :]"), ("a + b", 0, "(a + b)[:, None]"), ("-a", 1, "(-a)[None, :]"),
    ("f(a)", 0, "f(a)[:, None]"), ("a.b", 0, "a.b[:, None]"), ("a[0]", 1, "a[0][None, :]"),
])
def test_new_axis(node, axis, expected):
    text = f"y = g({node})\n"
    assert apply(text, plan(text, act.AddNewAxis(span(text, node), axis))) == f"y = g({expected})\n"


@pytest.mark.parametrize("expr", ["(a + b)", "(a if c else b)", "(lambda: a)", "(a @ b)", "(await_)"])
def test_new_axis_of_what_stands_in_parentheses(expr):
    text = f"y = {expr}\n"
    inner = expr[1:-1]
    result = apply(text, plan(text, act.AddNewAxis(span(text, inner), 0)))
    assert ast.dump(ast.parse(result)) == ast.dump(ast.parse(f"y = {expr}[:, None]\n"))


@pytest.mark.parametrize("form, before, after", [
    ("plain", "jnp.sqrt(x)", "_sqrt(x)"),
    ("reciprocal", "1 / jnp.sqrt(x)", "lax.rsqrt(x)"),
    ("quotient", "y / jnp.sqrt(x)", "y * lax.rsqrt(x)"),
    ("quotient", "y / z / jnp.sqrt(x)", "y / z * lax.rsqrt(x)"),
])
@pytest.mark.parametrize("around", ["{}", "(({}))", "f({}, a)", "({}) ** 2", "a - ({})"])
def test_sqrt_keeps_its_place(form, before, after, around):
    text = f"from jax import lax\nimport jax.numpy as jnp\nz = {around.format(before)}\njnp.a, lax.a\n"
    result = apply(text, plan(text, act.Sqrt(span(text, before), form)))
    (line,) = [x for x in result.split("\n") if x.startswith("z = ")]
    assert ast.dump(ast.parse(line)) == ast.dump(ast.parse(f"z = {around.format(after)}"))


def test_support_code_stands_before_the_first_rewritten_statement_and_its_comments():
    text = f"{IMPORTS}\n\nA = 1\n\n\n# about f\ndef f(x_ref):\n    b = x_ref[0]\n"
    result = apply(text, plan(text, act.DefineLayouts(span(text, "b = x_ref[0]"), ("layout = 2",)), support=("_sqrt",)))
    assert result.index("A = 1") < result.index("# Support code") < result.index("def _sqrt") < result.index("# about f")
    ast.parse(result)


def test_helpers():
    assert type(expression("a.b")).__name__ == "Attribute"
