"""Makes Markdown tables from result files: ``python -m pallas_port.golden.table [FILE...]``.

Of ``device.py`` one row per timed shape. Errors are relative norm errors against the reference; a failed shape keeps
its row and says so. Of ``accuracy.py`` one row per function.
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
    """A heading line and a Markdown table for one result file, of either kind."""
    return accuracy_table(report) if "values" in report else speed_table(report)


def speed_table(report: dict[str, Any]) -> str:
    """Times and errors of goldens."""
    rows = [_row(record) for record in report["results"] if "us" in record or record["status"] == "failed"]
    head = f"{report['device']}, JAX {report['jax']}, {report['date']}; times in µs, medians of {report['iterations']}"
    lines = [f"| {' | '.join(cells)} |" for cells in (_COLUMNS, ("---",) * len(_COLUMNS), *rows)]
    return "\n".join([head, "", *lines])


def accuracy_table(report: dict[str, Any]) -> str:
    """A heading line and a Markdown table of largest errors in units in the last place, as port / jnp / Triton."""
    head = (f"{report['device']}, JAX {report['jax']}, {report['date']}: largest error in ulp over "
            f"{report['values']} float32 values and special ones; times of one call in µs")
    columns = ("function", "port", "jnp", "Triton original", "largest error of the port at", "µs port / jnp / Triton")
    kinds = ("port", "jnp", "triton")
    rows = []
    for r in report["results"]:
        found = [r.get(kind, {}) for kind in kinds]
        errors = [f"{f['max_ulp']:.2f}{_wrong(f)}" if "max_ulp" in f else "fails" for f in found]
        times = " / ".join(f"{f['us']:.1f}" if "us" in f else "-" for f in found)
        at = ", ".join(f"{x:.9g}" for x in found[0].get("at", ()))
        rows.append((f"`{r['expression']}`", *errors, at, times))
    lines = [f"| {' | '.join(cells)} |" for cells in (columns, ("---",) * len(columns), *rows)]
    return "\n".join([head, "", *lines])


def _wrong(found: dict[str, Any]) -> str:
    """Special values that came out wrong."""
    wrong = [f"{found[k]} {k.removeprefix('wrong_').replace('_', ' ')}" for k in found if k.startswith("wrong") and found[k]]
    return f" ({', '.join(wrong)} wrong)" if wrong else ""


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
