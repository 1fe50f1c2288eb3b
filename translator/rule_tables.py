"""Which primitives the Triton backend and the Mosaic GPU backend of Pallas lower.

Each backend is a dictionary from primitive to lowering function; a primitive without an entry
fails before any instruction is emitted. The dictionaries change with every JAX release, so the
installed JAX is the truth: ``load_tables(live=True)`` reads it. Importing JAX takes a second,
which a static port cannot spend; it gets the snapshot of the installed version from ``tables/``
(the version is found without importing JAX), or else the nearest snapshot and a note that says so.

``python -m pallas_port.translator.rule_tables --snapshot`` writes the installed JAX's snapshot.

Mosaic GPU has one table per pair of lowering semantics and thread level; kernels run with
``Warpgroup/Warpgroup`` unless they ask for something else. There a rule is not enough: it emits
MLIR operations whose register layouts must be inferred afterwards, and for a few of them no
inference exists. ``NO_LAYOUT_INFERENCE`` and ``PARTIAL_SUPPORT`` hold what was found by
lowering each elementwise primitive alone; the tests repeat that against the installed JAX.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import pathlib
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from .diagnostics import InputError

TABLES = pathlib.Path(__file__).with_name("tables")
DEFAULT_SEMANTICS = "Warpgroup/Warpgroup"

# A Mosaic GPU rule exists and lowering fails all the same at Warpgroup semantics.
NO_LAYOUT_INFERENCE: dict[str, str] = {
    "erf": "math.erf has no layout inference",
    "atan2": "math.atan2 has no layout inference",
}
# Lowering succeeds, but not for all operands (``Tables.mosaic_failure`` decides on known ones).
PARTIAL_SUPPORT: dict[str, str] = {
    "rem": "floating-point operands fail",
    "not": "boolean operands fail",
    "max": "boolean operands fail",
    "min": "boolean operands fail",
    "select_n": "three cases, or a scalar condition on arrays, fail",
}


class Operand(Protocol):
    """What is asked of an operand: ``facts.Aval`` has it."""

    @property
    def shape(self) -> tuple[int | None, ...]: ...

    @property
    def dtype(self) -> str: ...


@dataclasses.dataclass(frozen=True)
class Tables:
    """The rule tables of one JAX version.

    version: the JAX version that they come from.
    triton: primitives that the Triton backend lowers.
    mosaic: by semantics (``Lane/Warpgroup``, ``Warpgroup/Warp``, ...), what Mosaic GPU lowers.
    note: why this is not the table of the installed JAX; "" if it is.
    """

    version: str
    triton: frozenset[str]
    mosaic: Mapping[str, frozenset[str]]
    note: str = ""

    def triton_supports(self, primitive: str) -> bool:
        return primitive in self.triton

    def mosaic_has_rule(self, primitive: str, semantics: str = DEFAULT_SEMANTICS) -> bool:
        """Whether a lowering rule exists, which does not yet mean that lowering succeeds."""
        return primitive in self.mosaic.get(semantics, frozenset())

    def mosaic_supports(self, primitive: str, semantics: str = DEFAULT_SEMANTICS) -> bool:
        """Whether the primitive lowers, at least for some operands (``PARTIAL_SUPPORT``)."""
        if semantics.startswith("Warpgroup/") and primitive in NO_LAYOUT_INFERENCE:
            return False
        return self.mosaic_has_rule(primitive, semantics)

    def mosaic_semantics(self, primitive: str) -> tuple[str, ...]:
        """All semantics that have a rule for the primitive."""
        return tuple(name for name in self.mosaic if self.mosaic_has_rule(primitive, name))

    def mosaic_failure(self, primitive: str, operands: Sequence[Operand] | None = None) -> str:
        """Why Mosaic GPU does not lower the primitive at its default semantics; "" if it does.

        operands: of one equation; if they are not known, only what fails for all of them counts.
        """
        if not self.mosaic_has_rule(primitive):
            return "no rule"
        if primitive in NO_LAYOUT_INFERENCE:
            return NO_LAYOUT_INFERENCE[primitive]
        if operands and primitive in PARTIAL_SUPPORT and _in_failing_part(primitive, operands):
            return PARTIAL_SUPPORT[primitive]
        return ""

    @property
    def triton_only(self) -> frozenset[str]:
        return self.triton.difference(*self.mosaic.values())


def _in_failing_part(primitive: str, operands: Sequence[Operand]) -> bool:
    if primitive == "select_n":
        condition, *cases = operands
        return len(cases) > 2 or (not condition.shape and bool(cases[0].shape))
    dtype = operands[0].dtype
    return "float" in dtype if primitive == "rem" else dtype == "bool"


def load_tables(version: str | None = None, *, live: bool = False) -> Tables:
    """The rule tables of JAX ``version``, by default the installed one.

    live: read them from the installed JAX, which imports it. ``version`` must then be left out.
    Raises InputError if ``live`` is asked for and JAX is missing or too old or too new to be read.
    """
    if live:
        if version is not None:
            raise ValueError("live tables exist only for the installed version")
        return _read_installed()
    return _snapshot(version or installed_version())


@functools.cache
def installed_version() -> str | None:
    """The version of the installed JAX, without importing it; None if there is none."""
    for folder in sys.path:  # importlib.metadata looks at the same names, and takes longer to import
        with contextlib.suppress(OSError):
            for name in os.listdir(folder):
                if name.startswith("jax-") and name.endswith(".dist-info"):
                    return name.removeprefix("jax-").removesuffix(".dist-info")
    import importlib.metadata

    try:
        return importlib.metadata.version("jax")
    except importlib.metadata.PackageNotFoundError:
        return None


def _by_version(names: Iterable[str]) -> list[str]:
    from packaging.version import Version

    return sorted(names, key=Version)


def snapshot_versions() -> tuple[str, ...]:
    """Versions with a snapshot, oldest first."""
    return tuple(_by_version(_snapshot_names()))


def _snapshot_names() -> list[str]:
    return [p.name.removeprefix("rules-").removesuffix(".json") for p in TABLES.glob("rules-*.json")]


def nearest_snapshot(version: str | None, available: Iterable[str]) -> tuple[str, str]:
    """The version to use for ``version``, and a note ("" if it is that version).

    Nearest is the newest one that is not newer; before the first there is only the first.
    """
    available = list(available)
    if version in available:
        return version, ""
    available = _by_version(available)
    if version is None:
        return available[-1], f"JAX is not installed: tables of {available[-1]}"
    older = available[: _by_version([*available, version]).index(version)]
    chosen = older[-1] if older else available[0]
    return chosen, f"no snapshot for JAX {version}: tables of {chosen}"


@functools.cache
def _snapshot(version: str | None) -> Tables:
    chosen, note = nearest_snapshot(version, _snapshot_names())
    data = json.loads((TABLES / f"rules-{chosen}.json").read_text(encoding="utf-8"))
    mosaic = {name: frozenset(primitives) for name, primitives in data["mosaic"].items()}
    return Tables(data["jax"], frozenset(data["triton"]), mosaic, note)


@functools.cache
def _read_installed() -> Tables:
    """Reads the private tables: JAX has no public list of what its GPU backends lower.

    ``triton_lowering_rules`` and ``mosaic_lowering_rules`` have kept these names since JAX 0.4.
    Primitives register when their module is imported, hence the two public imports first.
    """
    try:
        import jax
        import jax.experimental.pallas.mosaic_gpu
        import jax.experimental.pallas.triton
        from jax._src.pallas.mosaic_gpu import lowering as mosaic
        from jax._src.pallas.triton import lowering as triton

        triton_rules, mosaic_rules = triton.triton_lowering_rules, mosaic.mosaic_lowering_rules
    except (ImportError, AttributeError) as error:
        raise InputError(f"cannot read the rule tables of the installed JAX: {error}") from None
    return Tables(
        jax.__version__,
        frozenset(p.name for p in triton_rules),
        {"/".join(part.name for part in key): frozenset(p.name for p in rules)
         for key, rules in mosaic_rules.items()},
    )


def write_snapshot() -> pathlib.Path:
    """Writes the installed JAX's tables as a snapshot and returns its path."""
    tables = _read_installed()
    data = {
        "jax": tables.version,
        "triton": sorted(tables.triton),
        "mosaic": {name: sorted(tables.mosaic[name]) for name in sorted(tables.mosaic)},
    }
    path = TABLES / f"rules-{tables.version}.json"
    path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    return path


def _main() -> None:
    import argparse

    parser = argparse.ArgumentParser(description="Rule tables of the installed JAX.")
    parser.add_argument("--snapshot", action="store_true", required=True, help="write a snapshot")
    parser.parse_args()
    print(write_snapshot())


if __name__ == "__main__":
    _main()
