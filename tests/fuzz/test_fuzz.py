"""A few generated kernels, the same ones each time; ``check.py`` and ``on_gpu.py`` try thousands."""

import numpy as np
import pytest

pytest.importorskip("jax")
hypothesis = pytest.importorskip("hypothesis")
from hypothesis import strategies as st  # noqa: E402

from . import on_gpu  # noqa: E402
from .check import disagreement  # noqa: E402
from .kernels import kernel  # noqa: E402


@st.composite
def kernels(draw):
    return kernel(lambda options: draw(st.sampled_from(list(options))))


@hypothesis.settings(max_examples=12, derandomize=True, deadline=None, database=None,
                     suppress_health_check=list(hypothesis.HealthCheck))
@hypothesis.given(kernels())
def test_ports_agree_with_their_originals(made):
    reason = disagreement(made)
    assert not reason, f"{reason}\n{made.source}"


@pytest.mark.parametrize("actual, expected, status", [
    ([1.0, 2.0], [1.0, 2.0], "agrees"),
    ([1.0, np.nan], [1.0, np.nan], "agrees"),
    ([1.0, np.inf], [1.0, np.inf], "agrees"),
    ([1.0, np.nan], [1.0, 2.0], "disagrees"),
    ([1.0, 2.0], [1.0, np.nan], "disagrees"),
    ([1.0, -np.inf], [1.0, np.inf], "disagrees"),
    ([1.0, 2.1], [1.0, 2.0], "disagrees"),
    ([1.0], [1.0, 2.0], "disagrees"),
])
def test_what_agrees_on_a_gpu(actual, expected, status):
    assert on_gpu._difference(np.asarray(actual), np.asarray(expected), 1e-5)[0] == status
