"""Snapshots equal the installed JAX's tables, and the knowledge beyond the tables is right."""

import functools
import subprocess
import sys

import pytest

from pallas_port.translator import rule_tables
from pallas_port.translator.diagnostics import InputError
from pallas_port.translator.facts import Aval
from pallas_port.translator.rule_tables import (
    DEFAULT_SEMANTICS,
    NO_LAYOUT_INFERENCE,
    PARTIAL_SUPPORT,
    load_tables,
    nearest_snapshot,
    snapshot_versions,
)


def test_snapshot_equals_the_installed_jax():
    assert load_tables() == load_tables(live=True)
    assert load_tables().note == ""


def test_known_rules():
    for version in snapshot_versions():
        tables = load_tables(version)
        assert tables.triton_supports("dot_general")
        assert not tables.mosaic_supports("dot_general")
        assert {"cumsum", "argmax", "transpose", "masked_load"} <= tables.triton_only
        assert tables.mosaic_supports("exp")
        assert tables.mosaic_has_rule("erf") and not tables.mosaic_supports("erf")
        assert tables.mosaic_supports("erf", "Lane/Warpgroup")
        assert tables.mosaic_has_rule("wgmma") and not tables.triton_supports("wgmma")
        assert tables.mosaic_semantics("exp") != tables.mosaic_semantics("cumsum") == ()
        assert tables.mosaic_failure("dot_general") == "no rule"
        assert "layout" in tables.mosaic_failure("erf")


@pytest.mark.parametrize(
    "primitive, operands, fails",
    [
        ("rem", [Aval((8,), "float32")] * 2, True),
        ("rem", [Aval((8,), "bfloat16")] * 2, True),
        ("rem", [Aval((8,), "int32")] * 2, False),
        ("not", [Aval((8,), "bool")], True),
        ("not", [Aval((8,), "int32")], False),
        ("max", [Aval((8,), "float32")] * 2, False),
        ("select_n", [Aval((8,), "bool"), *[Aval((8,), "float32")] * 2], False),
        ("select_n", [Aval((), "bool"), *[Aval((8,), "float32")] * 2], True),
        ("select_n", [Aval((), "bool"), *[Aval((), "float32")] * 2], False),
        ("select_n", [Aval((8,), "int32"), *[Aval((8,), "float32")] * 3], True),
    ],
)
def test_failures_that_depend_on_operands(primitive, operands, fails):
    assert bool(load_tables().mosaic_failure(primitive, operands)) == fails
    assert load_tables().mosaic_failure(primitive) == ""


def test_snapshots_exist_for_the_tested_versions():
    assert {"0.11.2", "0.12.0.1"} <= set(snapshot_versions())


@pytest.mark.parametrize(
    "version, chosen",
    [("2.0", "2.0"), ("2.1", "2.0"), ("9.9", "3.0.1"), ("0.1", "1.0"), (None, "3.0.1"),
     ("3.0.1.dev1", "2.0")],
)
def test_nearest_snapshot(version, chosen):
    found, note = nearest_snapshot(version, ["3.0.1", "1.0", "2.0"])
    assert found == chosen
    assert bool(note) == (version != chosen)


def test_unknown_version_has_a_note():
    assert "tables of" in load_tables("99.0").note


def test_live_tables_take_no_version():
    with pytest.raises(ValueError):
        load_tables("0.11.2", live=True)


def test_a_jax_of_another_form_is_an_input_error(monkeypatch):
    rule_tables._read_installed.cache_clear()
    monkeypatch.setitem(sys.modules, "jax._src.pallas.triton", None)
    try:
        with pytest.raises(InputError, match="rule tables of the installed JAX"):
            load_tables(live=True)
    finally:
        rule_tables._read_installed.cache_clear()


def test_snapshots_are_read_without_jax():
    code = ("import sys\nfrom pallas_port.translator.rule_tables import load_tables\n"
            "load_tables().mosaic_supports('exp')\nassert 'jax' not in sys.modules")
    subprocess.run([sys.executable, "-c", code], check=True)


# -- beyond the tables --------------------------------------------------------------------------

OF_LAX = {"not": "bitwise_not", "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor"}
NOT_ELEMENTWISE = {"optimization_barrier", "select_n"}


def lowers(function, kinds):
    """Whether a function of 256-element arrays lowers at Warpgroup semantics.

    Booleans are made and used inside the kernel: stores of them have a limit of their own.
    """
    import jax
    import jax.numpy as jnp
    from jax.experimental.pallas import mosaic_gpu as plgpu

    def whole(*arrays):
        arrays = [a > 0 if kind == "bool" else a for a, kind in zip(arrays, kinds)]
        result = function(*arrays)
        if result.dtype == bool:
            return jnp.where(result, jnp.ones(256), jnp.zeros(256))
        return result

    def body(*refs):
        refs[-1][...] = whole(*(ref[...] for ref in refs[:-1]))

    args = [jnp.ones(256, "float32" if kind == "bool" else kind) for kind in kinds]
    kernel = plgpu.kernel(body, out_type=jax.eval_shape(whole, *args))
    try:
        jax.jit(kernel).trace(*args).lower(lowering_platforms=("cuda",))
    except Exception:
        return False
    return True


@functools.cache
def probed():
    """Elementwise primitives with a rule -> {operand dtypes: whether they lower}."""
    import jax
    import jax.numpy as jnp

    found = {}
    rules = load_tables(live=True).mosaic[DEFAULT_SEMANTICS]
    for primitive in sorted(rules - NOT_ELEMENTWISE):
        function = getattr(jax.lax, OF_LAX.get(primitive, primitive), None)
        for dtype in ("float32", "int32", "bool"):
            for count in (1, 2):
                args = [jnp.ones(256, dtype)] * count
                try:
                    equations = jax.make_jaxpr(function)(*args).jaxpr.eqns
                except Exception:
                    continue  # not an operation on such arrays
                if [eqn.primitive.name for eqn in equations] == [primitive]:
                    found.setdefault(primitive, {})[dtype] = lowers(function, (dtype,) * count)
    return found


def test_no_layout_inference_is_what_lowers_for_no_operands():
    assert len(probed()) > 30
    never = {p for p, outcome in probed().items() if not any(outcome.values())}
    assert never == set(NO_LAYOUT_INFERENCE)


def test_partial_support_is_what_lowers_for_some_operands():
    partly = {p for p, outcome in probed().items() if len(set(outcome.values())) == 2}
    assert partly == set(PARTIAL_SUPPORT) - NOT_ELEMENTWISE
    for primitive in partly:
        for dtype, lowered in probed()[primitive].items():
            failure = load_tables().mosaic_failure(primitive, [Aval((256,), dtype)])
            assert bool(failure) != lowered


def test_select_with_three_cases_or_a_scalar_condition_fails():
    import jax

    kinds = ("int32", "float32", "float32", "float32")
    assert not lowers(lambda c, *cases: jax.lax.select_n(c, *cases), kinds)
    assert not lowers(lambda c, x, y: jax.lax.select_n(c[0], x, y), ("bool", "float32", "float32"))
    assert lowers(lambda c, x, y: jax.lax.select_n(c, x, y), ("bool", "float32", "float32"))
