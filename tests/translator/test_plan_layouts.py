"""Layouts, vector widths and hoisted column sums, planned without touching the source."""

import ast

import pytest

from pallas_port.translator.kernel_model import build_model
from pallas_port.translator.names import Resolver
from pallas_port.translator.plan import FreshNames
from pallas_port.translator.plan_layouts import plan_layouts
from pallas_port.translator.sites import find_sites

HEAD = """
import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu
"""


def plan(body: str, params="x_ref, y_ref, o_ref, *, n, m, w, flag", dims=None):
    lines = "\n".join(f"    {line}" for line in body.strip("\n").split("\n"))
    source = f"{HEAD}\ndef kernel({params}):\n{lines}\n\npl.pallas_call(kernel, grid=(4,), out_shape=s)(x, y)\n"
    resolver = Resolver(ast.parse(source))
    (site,) = find_sites(resolver)
    model = build_model([site], resolver, dims or {})
    assert not model.findings, model.findings
    return plan_layouts(model, resolver, FreshNames.within(model.kernel))


def lines(body: str, **options):
    layouts, problems = plan(body, **options)
    assert not problems
    return list(layouts.lines)


LINES = [
    pytest.param("o_ref[pl.ds(0, w)] = x_ref[pl.ds(0, w)]", ["vec = _vec((x_ref, o_ref), w)", "layout = _blocked((w,), vec)"], id="rank-1"),
    pytest.param("o_ref[pl.ds(n, w)] = x_ref[pl.ds(0, w)]", ["vec = _vec((x_ref, o_ref), w, n)", "layout = _blocked((w,), vec)"], id="start"),
    pytest.param("o_ref[pl.ds(0, w)] = x_ref[pl.ds(x_ref[0], w)]", ["vec = _vec((o_ref,), w)", "layout = _blocked((w,), vec)"], id="gathered-load"),
    pytest.param("c = w - jnp.arange(w)\no_ref[c] = x_ref[c]", ["layout = _blocked((w,))"], id="no-vectors"),
    pytest.param("o_ref[pl.ds(0, m), pl.ds(0, w)] = x_ref[pl.ds(0, m), pl.ds(0, w)]", ["vec = _vec((x_ref, o_ref), w)", "layout = _blocked((m, w), vec)"], id="rank-2"),
    pytest.param("x = x_ref[pl.ds(0, m), pl.ds(0, w)]\no_ref[pl.ds(0, m)] = x.sum(axis=1)", ["vec = _vec((x_ref,), w)", "layout = _blocked((m, w), vec)", "row_layout = layout.reduce(1)"], id="row-sums"),
    pytest.param("x = x_ref[pl.ds(0, m), pl.ds(0, w)]\no_ref[pl.ds(0, w)] = x.sum(axis=0)", ["vec = _vec((x_ref, o_ref), w)", "layout = _blocked((m, w), min(vec, 4))", "column_layout = layout.reduce(0)"], id="column-sums"),
    pytest.param("vec, layout = 1, 2\no_ref[pl.ds(0, w)] = x_ref[pl.ds(0, w)] * vec * layout", ["vec2 = _vec((x_ref, o_ref), w)", "layout2 = _blocked((w,), vec2)"], id="names-taken"),
]


@pytest.mark.parametrize("body, expected", LINES)
def test_lines(body, expected):
    assert lines(body) == expected


REBOUND = [
    pytest.param("c = n + jnp.arange(w)\nn = 16\no_ref[c] = x_ref[c]", id="before-the-access"),
    pytest.param("o_ref[pl.ds(n, w)] = x_ref[pl.ds(n, w)]\nn = 16", id="after-the-access"),
    pytest.param("if flag:\n    n = 16\no_ref[pl.ds(n, w)] = x_ref[pl.ds(n, w)]", id="in-a-branch"),
    pytest.param("n += 1\no_ref[pl.ds(n, w)] = x_ref[pl.ds(n, w)]", id="augmented"),
]


@pytest.mark.parametrize("body", REBOUND)
def test_rebound_parameter_proves_nothing(body):
    assert not [line for line in lines(body) if "n)" in line.replace("min)", "")]


def test_extent_that_is_known_too_late():
    layouts, problems = plan("o_ref[pl.ds(0, w)] = x_ref[pl.ds(0, w)]\nk = n // m\no_ref[pl.ds(0, k)] = x_ref[pl.ds(0, k)]")
    assert [p[0] for p in problems] == ["B122"]


@pytest.mark.parametrize("body, code", [
    pytest.param("i = x_ref[0, jnp.arange(w)]\no_ref[i[:, None], i[None, :]] = x_ref[i[:, None], i[None, :]]", "B121", id="one-vector-for-both"),
    pytest.param("o_ref[pl.ds(0, 4), pl.ds(0, 4), pl.ds(0, 4)] = x_ref[pl.ds(0, 4), pl.ds(0, 4), pl.ds(0, 4)]", "B123", id="rank-3"),
])
def test_problem(body, code):
    assert code in {p[0] for p in plan(body)[1]}


# -- column sums ------------------------------------------------------------------------------------

def loop(body: str, init="jnp.zeros(w)", after="", ret="acc + x.sum(axis=0)", target="acc", more=""):
    return f"""
def step(t, acc):
    x = x_ref[pl.ds(t * m, m), pl.ds(0, w)]
{body}    return {ret}
{target} = lax.fori_loop(0, n, step, {init})
{after}{more}o_ref[pl.ds(0, w)] = {target.split(',')[0]}
"""


HOISTED = [
    pytest.param(loop(""), 1, id="plain"),
    pytest.param(loop("", ret="x.sum(axis=0) + acc"), 1, id="turned"),
    pytest.param(loop("", ret="acc + jnp.sum(x, axis=0)"), 1, id="function"),
    pytest.param(loop("", ret="acc + x.sum(0)"), 1, id="positional"),
    pytest.param(loop("", init="jnp.zeros((w,), jnp.float32)"), 1, id="dtype"),
    pytest.param(loop("    a, b = acc\n", ret="a + x.sum(axis=0), b + (x * x).sum(axis=0)", init="(jnp.zeros(w), jnp.zeros(w))", target="a, b"), 2, id="two"),
    pytest.param(loop("    a, b = acc\n", ret="a + x.sum(axis=0), jnp.maximum(b, x.max(axis=0))", init="(jnp.zeros(w), jnp.zeros(w))", target="a, b"), 1, id="one-of-two"),
]
LEFT = [
    pytest.param(loop("    y = acc * 2\n", ret="acc + x.sum(axis=0) + 0 * y"), id="used-in-the-body"),
    pytest.param(loop("    acc = acc * 0.5\n"), id="scaled-first"),
    pytest.param(loop("    acc = jnp.ones(w)\n"), id="replaced-first"),
    pytest.param(loop("    acc *= 0.5\n"), id="scaled-in-place"),
    pytest.param(loop("    if flag:\n        acc = jnp.ones(w)\n"), id="replaced-in-a-branch"),
    pytest.param(loop("", ret="acc - x.sum(axis=0)"), id="difference"),
    pytest.param(loop("", ret="acc + x.max(axis=0)"), id="maximum"),
    pytest.param(loop("", ret="acc + x.mean(axis=0)"), id="mean"),
    pytest.param(loop("", ret="acc + 2 * x.sum(axis=0)"), id="scaled-sum"),
    pytest.param(loop("", ret="acc + jnp.sum(x, axis=0, dtype=jnp.float32)"), id="dtype-of-the-sum"),
    pytest.param(loop("", init="jnp.ones(w)"), id="starts-at-one"),
    pytest.param(loop("", init="jnp.full(w, 1.0)"), id="starts-full"),
    pytest.param("z = jnp.zeros(w)\n" + loop("", init="z", after="acc = acc + z\n"), id="zeros-used-elsewhere"),
    pytest.param(loop("", more="acc2 = lax.fori_loop(n, m, step, acc)\n"), id="body-of-two-loops"),
    pytest.param(loop("    a, b = acc\n", ret="b + x.sum(axis=0), a + (x * x).sum(axis=0)", init="(jnp.zeros(w), jnp.zeros(w))", target="a, b"), id="swapped"),
    pytest.param(loop("").replace("\no_ref", "; o_ref"), id="one-line-with-a-use"),
    pytest.param(loop("").replace("    return", "    if flag:\n        return acc\n    return"), id="two-returns"),
    pytest.param(loop("").replace("acc = lax.fori_loop(0, n, step, jnp.zeros(w))\n", "").replace("= acc\n", "= lax.fori_loop(0, n, step, jnp.zeros(w))\n"), id="not-assigned"),
]


@pytest.mark.parametrize("body, count", HOISTED)
def test_column_sum_is_hoisted(body, count):
    layouts, _ = plan(body)
    assert len(layouts.hoists) == count
    assert {h.shape for h in layouts.hoists} == {"(m, w)"}


@pytest.mark.parametrize("body", LEFT)
def test_column_sum_stays(body):
    assert plan(body)[0].hoists == []
