"""What counts as right values."""

import numpy as np
import pytest

from pallas_port.translator.verify.compare import compare, fault

RIGHT = np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32)


def with_element(value):
    wrong = RIGHT.copy()
    wrong[3, 5] = value
    return wrong


@pytest.mark.parametrize(
    "actual, expected",
    [
        (RIGHT, RIGHT),
        (RIGHT * (1 + 1e-6), RIGHT),
        (with_element(np.nan), with_element(np.nan)),
        (with_element(np.inf), with_element(np.inf)),
        (np.zeros(4, np.float32), np.zeros(4, np.float32)),
        (np.arange(4), np.arange(4)),
        ([RIGHT, RIGHT], (RIGHT, RIGHT)),
        (np.zeros((0, 4), np.float32), np.zeros((0, 4), np.float32)),
    ],
    ids=["equal", "rounding", "same NaN", "same inf", "zeros", "integers", "pytrees", "empty"],
)
def test_right(actual, expected):
    assert fault(compare(actual, expected)) == ""


@pytest.mark.parametrize(
    "actual, expected, message",
    [
        (RIGHT * 1.001, RIGHT, "norm error 1.0"),
        (with_element(RIGHT[3, 5] + 5e-4), RIGHT, "largest error"),
        (with_element(np.nan), RIGHT, "1 of 4096 elements are NaN"),
        (RIGHT, with_element(np.nan), "NaN"),
        (with_element(np.inf), RIGHT, "infinite"),
        (with_element(-np.inf), with_element(np.inf), "infinite"),
        (RIGHT[:1], RIGHT, "shape"),
        (np.zeros_like(RIGHT), RIGHT, "norm error 1.00e"),
        (RIGHT, np.zeros_like(RIGHT), "norm error"),
        (np.arange(4), np.arange(4) % 3, "1 of 4 elements differ"),
        ((RIGHT, RIGHT * 2), (RIGHT, RIGHT), "output 1: "),
        ((RIGHT,), (RIGHT, RIGHT), "1 outputs instead of 2"),
    ],
)
def test_wrong(actual, expected, message):
    assert message in fault(compare(actual, expected))


def test_one_wrong_element_hidden_in_the_norm_is_found():
    large = np.ones(2**20, np.float32)
    wrong = large.copy()
    wrong[7] = 1.005
    [difference] = compare(wrong, large)
    assert difference.rel_norm < 1e-5
    assert "largest error" in difference.fault


def test_tolerance_by_dtype_of_the_result():
    loose = {"float32": 1e-2}
    assert fault(compare(RIGHT * 1.001, RIGHT, loose)) == ""
    assert fault(compare(RIGHT * 1.001, RIGHT, {"bfloat16": 1e-2})) != ""
