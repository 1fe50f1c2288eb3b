"""Makes the README's table from a result file: ``python -m pallas_port.golden.table [FILE...]``.

One row per timed shape. Errors are relative norm errors against the reference; a failed shape keeps its row and says
so.
"""

from __future__ import annotations

import json
import pathlib
import sys
from typing import Any

_ARITHMETIC_BOUND = 50.0  # TFLOP/s: below, no tensor core is at work
RESULTS = pathlib.Path(__file__).parent / "results"
_COLUMNS = ("kernel", "shape", "port", "Triton original", "speed-up", "rate of the port", "error port / original", "others")


def table(report: dict[str, Any]) -> str:
    """A heading line and a Markdown table for one result file."""
    rows = [_row(record) for record in report["results"] if "us" in record or record["status"] == "failed"]
    head = f"{report['device']}, JAX {report['jax']}, {report['date']}; times in µs, medians of {report['iterations']}"
    lines = [f"| {' | '.join(cells)} |" for cells in (_COLUMNS, ("---",) * len(_COLUMNS), *rows)]
    return "\n".join([head, "", *lines])


def _row(record: dict[str, Any]) -> tuple[str, ...]:
    name = (record["golden"].replace("_", " "), record["label"])
    if "us" not in record:
        return (*name, "**failed**", *[""] * (len(_COLUMNS) - 3))
    us, errors = record["us"], record["errors"]
    others = [f"{peer} {time:.1f}" for peer, time in us.items() if peer not in ("port", "original")]
    port = f"{us['port']:.1f}" + ("" if record["status"] == "passed" else " (**wrong**)")
    return (
        *name,
        port,
        f"{us['original']:.1f}" if "original" in us else "fails",
        f"{record['speedup']:.2f}x" if "speedup" in record else "",
        _rate(record.get("rates", {}).get("port", {})),
        " / ".join(_error(errors, pair) for pair in ("port_vs_reference", "original_vs_reference")),
        ", ".join(others),
    )


def _rate(rates: dict[str, float]) -> str:
    """Arithmetic where it is the limit, memory traffic elsewhere."""
    unit = "TFLOP/s" if rates.get("TFLOP/s", 0) >= _ARITHMETIC_BOUND else "GB/s"
    return f"{rates[unit]:.0f} {unit}" if unit in rates else ""


def _error(errors: dict[str, Any], pair: str) -> str:
    return f"{errors[pair]['rel_norm']:.1e}" if pair in errors else "-"


def main() -> None:
    files = [pathlib.Path(name) for name in sys.argv[1:]] or sorted(RESULTS.glob("*.json"))
    print("\n\n".join(table(json.loads(file.read_text())) for file in files))


if __name__ == "__main__":
    main()
