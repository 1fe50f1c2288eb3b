"""Which primitives a source-level function produces: ``jax.nn.relu`` -> ``max`` below wrappers.

Without running the user's code, the name that a call resolves to is all there is. This table says
what such a name becomes when it is traced, so that a static port can diagnose ``jnp.cumsum`` by
its primitive and need no hand-kept list of functions. It is measured, not written:
``primitives_trace.py`` calls each public function of JAX on small arrays, and the snapshot
``tables/primitives-<version>.json`` keeps the outcome per JAX version.

Names are the canonical ones of ``names.py``; array methods and properties are ``.sum``, ``.T``;
operators are named as in Python's ``operator`` module: ``operator.add``; ``ref.get`` and
``ref.set`` stand for ``ref[...]`` read and written.

Limits: defaults are traced, so keyword arguments that change the outcome (``axis=None`` of a
reduction, ``precision=``) are not seen, and dtype enters only as float or integer.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from typing import Literal

from .rule_tables import TABLES, Tables, installed_version, load_tables, nearest_snapshot

Kind = Literal["float", "int"]


@dataclasses.dataclass(frozen=True)
class Traced:
    """What one function becomes.

    primitives: of float32 operands, flat, through the bodies of jit and custom_jvp functions.
    int_primitives: of int32 operands; None where the function does not take them.
    wrappers: the call primitives around those bodies (``jit``, ``custom_jvp_call``), which need
        a lowering rule of their own.
    """

    primitives: frozenset[str] | None
    int_primitives: frozenset[str] | None
    wrappers: frozenset[str]


def traced(qualified_name: str) -> Traced | None:
    """Everything known about a function; None if it was never traced."""
    entry = _snapshot(_snapshot_version()).get(qualified_name)
    return None if entry is None else from_entry(entry)


def primitives_of(qualified_name: str, kind: Kind = "float") -> frozenset[str] | None:
    """The flat primitives of a function, without wrappers; None if the function is not known.

    A function that takes operands of the other kind only gives those.
    """
    entry = traced(qualified_name)
    if entry is None:
        return None
    first, second = entry.primitives, entry.int_primitives
    if kind == "int":
        first, second = second, first
    return first if first is not None else second


def wrappers_of(qualified_name: str) -> frozenset[str]:
    """The call primitives that a function adds around its body: ``custom_jvp_call``, ``jit``."""
    entry = traced(qualified_name)
    return entry.wrappers if entry else frozenset()


def mosaic_supports(primitive: str, tables: Tables | None = None) -> bool:
    """Whether Mosaic GPU lowers a primitive at its default semantics (see ``rule_tables.py``)."""
    return (tables or load_tables()).mosaic_supports(primitive)


def unsupported_of(qualified_name: str, kind: Kind = "float") -> frozenset[str]:
    """The primitives and wrappers of a function that Mosaic GPU does not lower."""
    found = (primitives_of(qualified_name, kind) or frozenset()) | wrappers_of(qualified_name)
    return frozenset(p for p in found if not mosaic_supports(p))


@functools.cache
def _snapshot_version() -> str:
    names = [p.name.removeprefix("primitives-").removesuffix(".json")
             for p in TABLES.glob("primitives-*.json")]
    return nearest_snapshot(installed_version(), names)[0]


@functools.cache
def _snapshot(version: str) -> dict[str, dict[str, list[str]]]:
    text = (TABLES / f"primitives-{version}.json").read_text(encoding="utf-8")
    return json.loads(text)["functions"]


def from_entry(entry: dict[str, list[str]]) -> Traced:
    """One entry of a snapshot: keys ``float``, ``int``, ``wrappers``, each optional."""
    sets = {key: frozenset(names) for key, names in entry.items()}
    return Traced(sets.get("float"), sets.get("int"), sets.get("wrappers", frozenset()))
