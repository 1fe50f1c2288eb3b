"""What a target cannot take is said with the nearest that it can."""

import pytest

pytest.importorskip("jax")

from pallas_port.rewrites.support.rows import _WgmmaRows
from pallas_port.rewrites.support.rows_tcgen05 import _Tcgen05Rows


@pytest.mark.parametrize("kind, rows, nearest", [
    pytest.param(_WgmmaRows, [32, 96], "[64, 128]", id="sm90"),
    pytest.param(_Tcgen05Rows, [32, 100], "[128, 128]", id="sm100"),
])
def test_rows_that_the_matrix_unit_does_not_take(kind, rows, nearest):
    with pytest.raises(ValueError, match="the next larger blocks have") as raised:
        kind(rows, [64])
    assert nearest in str(raised.value)
    kind([n + -n % kind.unit for n in rows], [64])
