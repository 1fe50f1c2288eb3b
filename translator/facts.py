"""What is known about a ``pallas_call`` from having run it: shapes, dtypes, grids, primitives.

``Facts`` is the one interface between whatever knows (a recording, see ``record.py``) and whatever
asks (the plan, ``check.py``). Empty facts are valid everywhere: they stand for "nothing was run".

Three rules follow from where facts come from.

* One run shows one case. A site may therefore hold several recordings, and a port must stay right
  for all of them; ``Facts.disagreements`` lists what differed, so that the plan treats exactly that
  as a variable and nothing seen once as a law.
* Equations keep their *place*: file, line and column of the source expression, counted as ``ast`` counts
  (lines from 1, columns from 0 in UTF-8 bytes, the end exclusive), so that an equation can be
  looked up by the syntax node it came from, and a node by its equations.
* Facts travel between processes as JSON (``to_json``/``from_json``): the user's program runs in a
  child, so this module imports neither JAX nor anything that does.
"""

from __future__ import annotations

import collections
import dataclasses
import json
import os
from collections.abc import Iterable, Mapping
from typing import Any

Scalar = bool | int | float | str | None


@dataclasses.dataclass(frozen=True)
class Aval:
    """Shape and dtype of one value. ``ref``: a reference to memory, not an array in registers."""

    shape: tuple[int | None, ...]
    dtype: str
    ref: bool = False

    def __str__(self) -> str:
        dims = ",".join("?" if d is None else str(d) for d in self.shape)
        return f"{'Ref ' if self.ref else ''}{self.dtype}[{dims}]"


@dataclasses.dataclass(frozen=True)
class Span:
    """A source expression: lines from 1, columns from 0 in UTF-8 bytes, the end exclusive."""

    file: str
    line: int
    column: int
    end_line: int
    end_column: int


@dataclasses.dataclass(frozen=True)
class EqnFact:
    """One equation of a kernel's jaxpr.

    file ... end_column: the innermost expression of the user's own source that produced it; what a
        library function produces belongs to the call of that function. ``line`` 0 means unknown.
    callers: the calls around it, innermost first, out to the kernel itself: for code in a helper,
        where in the kernel the helper was called.
    within: the enclosing equations, outermost first: ``("scan", "jit")``.
    params: parameters that are numbers, strings or tuples of them, others as text; no jaxprs.
    """

    primitive: str
    file: str
    line: int
    column: int
    end_line: int
    end_column: int
    in_avals: tuple[Aval, ...] = ()
    out_avals: tuple[Aval, ...] = ()
    within: tuple[str, ...] = ()
    callers: tuple[Span, ...] = ()
    params: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def span(self) -> Span:
        return Span(self.file, self.line, self.column, self.end_line, self.end_column)

    def span_in(self, file: str) -> Span | None:
        """The innermost place in ``file`` that led to this equation; None if there is none."""
        for span in (self.span, *self.callers):
            if span.line and same_file(span.file, file):
                return span
        return None


@dataclasses.dataclass(frozen=True)
class OperandFact:
    """One input or output of the call.

    array: the whole array. block: the block's extent per array dimension, None where the spec
    says None (the kernel's ref lacks that dimension). kinds: per dimension ``blocked``,
    ``squeezed``, ``element``, ... as the spec said. origin: ``args[0]``, ``outputs``.
    """

    array: Aval
    block: tuple[int | None, ...]
    kinds: tuple[str, ...]
    origin: str = ""


@dataclasses.dataclass(frozen=True)
class SiteFacts:
    """One recording of one ``pallas_call``.

    file ... end_column: the expression ``pallas_call(...)``, without the call of its result.
    kernel, kernel_file, kernel_line: the function below any ``functools.partial``.
    statics: arguments bound by ``functools.partial`` and variables of the closure, where scalar.
    grid: None for a bound that is only known at run time. scalar_prefetch: number of operands.
    batch: sizes of the axes that ``jax.vmap`` added to calls of this kernel.
    backend: ``triton``, ``mosaic_gpu``, ``mosaic_tpu``, or ``unstated`` without compiler params.
    """

    file: str
    line: int
    column: int
    end_line: int
    end_column: int
    kernel: str
    kernel_file: str
    kernel_line: int
    statics: Mapping[str, Scalar] = dataclasses.field(default_factory=dict)
    grid: tuple[int | None, ...] = ()
    inputs: tuple[OperandFact, ...] = ()
    outputs: tuple[OperandFact, ...] = ()
    scratch: tuple[Aval, ...] = ()
    scalar_prefetch: int = 0
    aliases: tuple[tuple[int, int], ...] = ()
    batch: tuple[int, ...] = ()
    backend: str = "unstated"
    compiler_params: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    interpret: bool = False
    equations: tuple[EqnFact, ...] = ()

    @property
    def key(self) -> tuple[str, int]:
        return self.file, self.line

    def equations_at(self, line: int, column: int, end_line: int, end_column: int,
                     file: str | None = None) -> tuple[EqnFact, ...]:
        """The equations whose place lies inside the given span of ``file`` (the kernel's)."""
        start, end = (line, column), (end_line, end_column)
        found = []
        for eqn in self.equations:
            span = eqn.span_in(file or self.kernel_file)
            if span and start <= (span.line, span.column) and (span.end_line, span.end_column) <= end:
                found.append(eqn)
        return tuple(found)


@dataclasses.dataclass(frozen=True)
class Disagreement:
    """Recordings of one site that differ: ``what`` (``grid``, ``inputs[0].block``, ...)."""

    file: str
    line: int
    what: str
    values: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Facts:
    """Recordings by site: ``(file, line of the pallas_call expression)`` -> its recordings.

    jax_version: the JAX that recorded them, "" for empty facts.
    """

    sites: Mapping[tuple[str, int], tuple[SiteFacts, ...]] = dataclasses.field(default_factory=dict)
    jax_version: str = ""

    def __bool__(self) -> bool:
        return bool(self.sites)

    def at(self, file: str, line: int) -> tuple[SiteFacts, ...]:
        """The recordings of the call whose expression starts at ``line``; () if there are none."""
        return self.sites.get((canonical(file), line), ())

    def in_file(self, file: str) -> tuple[SiteFacts, ...]:
        """All recordings of calls written in ``file``, by line."""
        path = canonical(file)
        return tuple(f for key in sorted(self.sites) if key[0] == path for f in self.sites[key])

    def of_kernel(self, file: str, line: int) -> tuple[SiteFacts, ...]:
        """All recordings of the kernel function whose definition starts at ``line``."""
        path = canonical(file)
        return tuple(
            f
            for key in sorted(self.sites)
            for f in self.sites[key]
            if f.kernel_line == line and same_file(f.kernel_file, path)
        )

    @property
    def disagreements(self) -> tuple[Disagreement, ...]:
        return tuple(d for key in sorted(self.sites) for d in _disagreements(self.sites[key]))

    def to_json(self) -> str:
        records = [dataclasses.asdict(f) for key in sorted(self.sites) for f in self.sites[key]]
        return json.dumps({"jax": self.jax_version, "sites": records}, indent=1)

    @classmethod
    def from_json(cls, text: str) -> Facts:
        data = json.loads(text)
        return cls.of((site_from_dict(d) for d in data["sites"]), data["jax"])

    @classmethod
    def of(cls, recordings: Iterable[SiteFacts], jax_version: str = "") -> Facts:
        """Groups recordings by site; of recordings that say the same, one is kept."""
        sites: dict[tuple[str, int], list[SiteFacts]] = collections.defaultdict(list)
        for recording in recordings:
            if recording not in sites[recording.key]:
                sites[recording.key].append(recording)
        return cls({key: tuple(found) for key, found in sites.items()}, jax_version)


def merge(*parts: Facts) -> Facts:
    """All recordings of all parts."""
    version = next((p.jax_version for p in parts if p.jax_version), "")
    return Facts.of((f for p in parts for found in p.sites.values() for f in found), version)


def canonical(file: str) -> str:
    """The form of a path in which facts store it: absolute, links resolved; ``<stdin>`` as it is."""
    return file if file.startswith("<") else os.path.realpath(file)


def same_file(a: str, b: str) -> bool:
    return a == b or canonical(a) == canonical(b)


def site_from_dict(data: Mapping[str, Any]) -> SiteFacts:
    """The inverse of ``dataclasses.asdict`` after a trip through JSON."""
    fields = dict(data)
    for name in ("grid", "batch"):
        fields[name] = tuple(data[name])
    fields["aliases"] = tuple((i, o) for i, o in data["aliases"])
    fields["scratch"] = _avals(data["scratch"])
    for name in ("inputs", "outputs"):
        fields[name] = tuple(
            OperandFact(_aval(d["array"]), tuple(d["block"]), tuple(d["kinds"]), d["origin"])
            for d in data[name]
        )
    fields["compiler_params"] = _frozen(data["compiler_params"])
    fields["equations"] = tuple(_eqn(d) for d in data["equations"])
    return SiteFacts(**fields)


def _eqn(data: Mapping[str, Any]) -> EqnFact:
    return EqnFact(
        **{
            **data,
            "in_avals": _avals(data["in_avals"]),
            "out_avals": _avals(data["out_avals"]),
            "within": tuple(data["within"]),
            "callers": tuple(Span(**d) for d in data["callers"]),
            "params": _frozen(data["params"]),
        }
    )


def _aval(data: Mapping[str, Any]) -> Aval:
    return Aval(tuple(data["shape"]), data["dtype"], data["ref"])


def _avals(data: Iterable[Mapping[str, Any]]) -> tuple[Aval, ...]:
    return tuple(_aval(d) for d in data)


def _frozen(value: Any) -> Any:
    """Lists, which is what JSON makes of tuples, become tuples again."""
    if isinstance(value, list):
        return tuple(_frozen(v) for v in value)
    if isinstance(value, dict):
        return {k: _frozen(v) for k, v in value.items()}
    return value


def _disagreements(recordings: tuple[SiteFacts, ...]) -> list[Disagreement]:
    if len(recordings) < 2:
        return []
    views = [_view(r) for r in recordings]
    found = []
    for what in dict.fromkeys(name for view in views for name in view):
        values = tuple(dict.fromkeys(view.get(what, "absent") for view in views))
        if len(values) > 1:
            found.append(Disagreement(recordings[0].file, recordings[0].line, what, values))
    return found


def _view(facts: SiteFacts) -> dict[str, str]:
    """What recordings of one site are compared by, as text."""
    view = {
        "kernel": facts.kernel,
        "grid": str(facts.grid),
        "batch": str(facts.batch),
        "backend": facts.backend,
        "aliases": str(facts.aliases),
    }
    for name, value in facts.statics.items():
        view[f"statics[{name}]"] = repr(value)
    for name, value in facts.compiler_params.items():
        view[f"compiler_params[{name}]"] = repr(value)
    for group in ("inputs", "outputs"):
        for i, operand in enumerate(getattr(facts, group)):
            view[f"{group}[{i}].array"] = str(operand.array)
            view[f"{group}[{i}].block"] = str(operand.block)
    # Shapes inside the body follow from the operands; which primitives a line yields does not.
    lines: dict[tuple[str, int], set[str]] = collections.defaultdict(set)
    for eqn in facts.equations:
        lines[eqn.file, eqn.line].add(eqn.primitive)
    for (file, line), primitives in sorted(lines.items()):
        view[f"primitives {os.path.basename(file)}:{line}"] = " ".join(sorted(primitives))
    return view
