"""The order of a launch's axes."""

import pytest

from pallas_port.rewrites.support.launch import _grid


@pytest.mark.parametrize("extents, names", [
    pytest.param((4, 70000), "ij", id="long-last"),
    pytest.param((65535, 4), "ij", id="as-long-as-CUDA-takes"),
    pytest.param((65536, 4), "ji", id="too-long-first"),
    pytest.param((4, 70000, 2), "kij", id="too-long-second"),
    pytest.param((70000, 1, 2), "jki", id="too-long-of-three"),
    pytest.param((2, 3, 4, 5), "ijkl", id="four"),
    pytest.param((4096, 32, 8, 4), "lkji", id="four-whose-outer-ones-are-too-many"),
])
def test_order(extents, names):
    grid = _grid(extents, "ijkl"[: len(extents)])
    assert "".join(grid["grid_names"]) == names
    assert dict(zip(grid["grid_names"], grid["grid"])) == dict(zip("ijkl", extents))


def test_more_than_any_order_can_take():
    with pytest.raises(ValueError, match="too many programs"):
        _grid((70000, 70000), "ij")
