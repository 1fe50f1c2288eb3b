"""The accuracy measurement: all its kernels port, and its errors are what they are called."""

import numpy as np
import pytest

pytest.importorskip("jax")

from pallas_port.golden import accuracy, table  # noqa: E402
from pallas_port.translator.result import TARGETS  # noqa: E402


@pytest.mark.parametrize("target", TARGETS)
def test_every_kernel_ports(target):
    text = accuracy.ported(target)
    assert "pallas_call" not in text and all(f"def {name}(" in text for name in accuracy.FUNCTIONS)


def test_difference_counts_what_is_wrong():
    exact = np.array([1.0, np.nan, 1e300, -0.0, 2.0])
    actual = np.array([1.0 + 2**-23, 0.0, 3e38, 0.0, np.nan], np.float32)
    found = accuracy.difference(actual, exact, [np.arange(5.0)])
    assert found == {"max_ulp": 1.0, "at": [0.0], "wrong_nan": 2, "wrong_inf": 1, "wrong_zero_sign": 1}


def test_an_error_of_half_a_unit():
    exact = np.array([1 + 2.0**-24, 4.0])
    found = accuracy.difference(np.array([1, 4], np.float32), exact, [np.array([7.0, 8.0])])
    assert found["max_ulp"] == 0.5 and found["at"] == [7.0]


def test_arguments_start_with_all_special_values():
    for function in (accuracy.FUNCTIONS["floor"], accuracy.FUNCTIONS["pow"]):
        values = accuracy.arguments(function)
        assert {v.dtype.name for v in values} == {"float32"} and {v.shape for v in values} == {(accuracy.VALUES,)}
        assert np.isnan(values[0]).any() and np.isinf(values[-1]).any()


def test_table_says_what_is_wrong():
    good = {"max_ulp": 1.25, "at": [2.0], "wrong_nan": 0, "wrong_inf": 0, "wrong_zero_sign": 0, "us": 9.0}
    report = {"device": "GPU", "jax": "0.11.2", "date": "today", "values": 4, "results": [
        {"function": "floor", "expression": "jnp.floor(x)", "port": good, "jnp": good | {"wrong_inf": 3}, "triton": {"fault": "no"}}]}
    assert table.accuracy_table(report).splitlines()[-1] == (
        "| `jnp.floor(x)` | 1.25 | 1.25 (3 inf wrong) | fails | 2 | 9.0 / 9.0 / - |")
