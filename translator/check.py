"""``pallas-port check``: each line of each kernel against the rule tables of both backends.

For every kernel of a file, and the functions of the same file that it calls, each line is shown
with the primitives it produces, whether the Triton backend and Mosaic GPU have a lowering rule for
them in the installed JAX, and what a port does about the line. Primitives come from recorded facts
where there are any, else from what the source shows (``evident.py``).

The two classes of failure are kept apart. A failure of the *body* is a primitive without a rule:
it belongs to a line. A failure of the *call* is raised before any primitive is reached: a grid
bound known only at run time, scalar prefetch, a kind of block spec, the backend.

``check_source`` returns data, ``as_text`` and ``as_table`` render it.
"""

from __future__ import annotations

import ast
import dataclasses
import difflib
import sys
import typing
from collections.abc import Callable, Iterable, Mapping

from . import source as source_files
from .evident import evident_primitives, helpers_of
from .facts import Aval, Facts, SiteFacts
from .names import PALLAS, FunctionNode, Resolver
from .replacements import PRIMITIVES
from .result import Options, PortResult, Target
from .rule_tables import NO_LAYOUT_INFERENCE, PARTIAL_SUPPORT, Tables, load_tables
from .sites import CallSite, find_sites
from .source import Source

if typing.TYPE_CHECKING:
    from rich.table import Table

# What a port does about a line: of the line number, "" for nothing to say.
Action = Callable[[int], str]
_SPEC_KINDS = ("blocked", "squeezed", "int")
_COLUMNS = (("Triton", ""), ("WG", "Warpgroup/Warpgroup"), ("Lane", "Lane/Warpgroup"),
            ("warp", "Warpgroup/Warp"))


@dataclasses.dataclass(frozen=True)
class Mark:
    """One primitive of a line.

    triton: the Triton backend has a rule. mosaic: by semantics, whether Mosaic GPU has one.
    failure: why Mosaic GPU does not lower it at Warpgroup semantics, which takes more than a rule;
        "" if it does, or, where ``operands_known`` is False, does for some operands.
    """

    primitive: str
    triton: bool
    mosaic: Mapping[str, bool]
    failure: str
    operands_known: bool


@dataclasses.dataclass(frozen=True)
class LineCheck:
    """One source line that produces primitives. ``action``: what a port does about it."""

    line: int
    text: str
    marks: tuple[Mark, ...]
    action: str = ""

    @property
    def fails(self) -> bool:
        return any(mark.failure for mark in self.marks)


@dataclasses.dataclass(frozen=True)
class KernelCheck:
    """One kernel with the calls that use it.

    calls: lines of its ``pallas_call`` expressions.
    evidence: ``recorded`` or ``static``.
    lines: the failures of the body are those with ``fails``.
    call_failures: (line of the call, reason).
    """

    name: str
    line: int
    calls: tuple[int, ...]
    evidence: str
    lines: tuple[LineCheck, ...]
    call_failures: tuple[tuple[int, str], ...] = ()

    @property
    def body_failures(self) -> tuple[LineCheck, ...]:
        return tuple(line for line in self.lines if line.fails)


@dataclasses.dataclass(frozen=True)
class Check:
    """All kernels of one file. ``note``: why the tables are not those of the installed JAX."""

    filename: str
    jax_version: str
    note: str
    kernels: tuple[KernelCheck, ...]


def check_file(filename: str, example: str | None = None) -> str:
    """The check of a file as text, as a coloured table if stdout is a terminal.

    example: ``FILE:FUNCTION`` to run for recorded facts; nothing is run without it.
    Raises InputError if the file cannot be read or the example fails.
    """
    source = source_files.read(filename)
    facts = Facts()
    if example is not None:
        from .record import record_example

        facts = record_example(example, filename)
    tables = load_tables()
    if tables.note:  # no snapshot of the installed version: ask that JAX itself, if there is one
        tables = _live_or(tables)
    check = check_source(source, facts, tables, port_actions(source, facts))
    if sys.stdout.isatty():
        return _rich_text(check)
    return as_text(check)


def check_source(source: Source, facts: Facts, tables: Tables, action: Action) -> Check:
    """Every kernel of the file against the tables.

    facts: recordings of calls in this file; empty facts mean static evidence.
    """
    resolver = Resolver(source.tree())
    by_kernel: dict[FunctionNode | str, list[CallSite]] = {}
    for site in find_sites(resolver):
        key = site.kernel if site.kernel is not None else f"{site.kernel_name}:{site.call.lineno}"
        by_kernel.setdefault(key, []).append(site)
    kernels = []
    for sites in by_kernel.values():
        recorded = tuple(f for site in sites for f in facts.at(source.filename, site.call.lineno))
        kernels.append(_check_kernel(source, resolver, sites, recorded, tables, action))
    return Check(source.filename, tables.version, tables.note, tuple(kernels))


def port_actions(source: Source, facts: Facts, target: Target = "sm100") -> Action:
    """What a port of the source does, by line: a finding's code and reason, or ``rewritten``."""
    from .driver import port

    return actions_of(port(source, target, Options(), facts or None))


def actions_of(result: PortResult) -> Action:
    """The actions that a finished port shows: its findings, and which lines it changed."""
    findings: dict[int, dict[str, None]] = {}
    for finding in result.diagnostics:
        findings.setdefault(finding.line, {})[f"{finding.code} {finding.reason}"] = None
    before, after = result.original.splitlines(), result.text.splitlines()
    changed = {
        line + 1
        for tag, start, end, _, _ in difflib.SequenceMatcher(None, before, after, False).get_opcodes()
        if tag != "equal"
        for line in range(start, end)
    }

    def action(line: int) -> str:
        done = ["rewritten"] if line in changed else []
        return "; ".join([*done, *findings.get(line, ())])

    return action


def _live_or(tables: Tables) -> Tables:
    from .diagnostics import InputError

    try:
        return load_tables(live=True)
    except InputError:
        return tables


# -- one kernel -----------------------------------------------------------------------------


def _check_kernel(source: Source, resolver: Resolver, sites: list[CallSite],
                  recorded: tuple[SiteFacts, ...], tables: Tables, action: Action) -> KernelCheck:
    first = sites[0]
    if recorded:
        found = _recorded_primitives(source, recorded)
    else:
        found = _evident_primitives(resolver, first)
    texts = source.text.splitlines()
    lines = tuple(
        LineCheck(
            line,
            texts[line - 1].strip(),
            tuple(_mark(p, uses, tables) for p, uses in primitives.items()),
            action(line),
        )
        for line, primitives in sorted(found.items())
    )
    return KernelCheck(
        first.kernel_name,
        first.kernel.lineno if first.kernel else first.call.lineno,
        tuple(site.call.lineno for site in sites),
        "recorded" if recorded else "static",
        lines,
        tuple(dict.fromkeys(_call_failures(sites, recorded, resolver))),
    )


# Line -> primitive -> the operands of its equations there; [] where no recording tells.
Primitives = dict[int, dict[str, list[tuple[Aval, ...]]]]


def _mark(primitive: str, uses: list[tuple[Aval, ...]], tables: Tables) -> Mark:
    """One primitive against the tables: it fails if any of its uses does."""
    failures = (tables.mosaic_failure(primitive, operands) for operands in uses or [None])
    return Mark(
        primitive,
        tables.triton_supports(primitive),
        {name: tables.mosaic_has_rule(primitive, name) for name in tables.mosaic},
        next(filter(None, failures), ""),
        bool(uses),
    )


def _recorded_primitives(source: Source, recorded: Iterable[SiteFacts]) -> Primitives:
    """Primitives by line of this file; those of a helper elsewhere count where it is called."""
    found: Primitives = {}
    for facts in recorded:
        for eqn in facts.equations:
            span = eqn.span_in(source.filename)
            if span is not None:
                uses = found.setdefault(span.line, {}).setdefault(eqn.primitive, [])
                uses.append(eqn.in_avals)
    return found


def _evident_primitives(resolver: Resolver, site: CallSite) -> Primitives:
    if site.kernel is None:
        return {}
    found: Primitives = {}
    static = frozenset(site.bound)
    for function in (site.kernel, *helpers_of(site.kernel, resolver)):
        for item in evident_primitives(function, resolver, static):
            found.setdefault(item.line, {}).setdefault(item.primitive, [])
    return found


def _call_failures(sites: Iterable[CallSite], recorded: Iterable[SiteFacts],
                   resolver: Resolver) -> Iterable[tuple[int, str]]:
    for site in sites:
        line = site.call.lineno
        if site.backend == "rocm":
            yield line, "ROCm: Mosaic GPU does not run there, the call has to stay on Triton"
        if site.backend == "tpu":
            yield line, "the call runs on a TPU"
        spec = site.keywords.get("grid_spec")
        name = resolver.qualified(spec.func) if isinstance(spec, ast.Call) else None
        if name and name.startswith(PALLAS) and name.endswith(".PrefetchScalarGridSpec"):
            yield line, "scalar prefetch: Mosaic GPU takes no index operands"
    for facts in recorded:
        if None in facts.grid:
            yield facts.line, "a grid bound is known only at run time"
        if facts.scalar_prefetch:
            yield facts.line, "scalar prefetch: Mosaic GPU takes no index operands"
        for operand in (*facts.inputs, *facts.outputs):
            for kind in operand.kinds:
                if kind not in _SPEC_KINDS:
                    yield facts.line, f"block spec of {operand.origin}: {kind} dimension"


# -- rendering ------------------------------------------------------------------------------


def as_text(check: Check) -> str:
    """Plain text: per kernel a heading, per line its source, below it one row per primitive."""
    out = [_heading(check)]
    for kernel in check.kernels:
        out += ["", _kernel_heading(kernel)]
        out += [f"  call, line {line}: {reason}" for line, reason in kernel.call_failures]
        width = max([9, *(len(m.primitive) for row in kernel.lines for m in row.marks)])
        titles = "  ".join(f"{title:<6}" for title, _ in _COLUMNS)
        out.append(f"{'line':>6}  {'primitive':<{width}}  {titles}".rstrip())
        for row in kernel.lines:
            tail = f"    -> {row.action}" if row.action else ""
            out.append(f"{row.line:>6}  {row.text}{tail}")
            for m in row.marks:
                cells = "  ".join(f"{cell:<6}" for cell in _cells(m))
                sign = "!" if m.failure else " "
                out.append(f"{sign:>6}  {m.primitive:<{width}}  {cells}  {_reason(m)}".rstrip())
        out += [f"  {line}" for line in _closing(kernel)]
    return "\n".join(out) + "\n"


def as_table(check: Check) -> list[Table]:
    """One rich table per kernel: a row with each line's source, below it one per primitive."""
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    tables = []
    for kernel in check.kernels:
        calls = [f"call, line {line}: {reason}" for line, reason in kernel.call_failures]
        table = Table(
            title=escape(_kernel_heading(kernel)),
            caption=escape("\n".join([*calls, *_closing(kernel)])),
            box=box.SIMPLE_HEAD, title_justify="left", caption_justify="left", padding=(0, 1, 0, 0),
        )
        table.add_column("line", justify="right")
        table.add_column("source, primitives", overflow="fold")
        for title, _ in _COLUMNS:
            table.add_column(title, no_wrap=True)
        table.add_column("port", overflow="fold")
        for row in kernel.lines:
            blank = [""] * len(_COLUMNS)
            table.add_row(str(row.line), escape(row.text), *blank, escape(row.action), style="bold")
            for m in row.marks:
                cells = (*_cells(m), escape(_reason(m)))
                table.add_row("", f"  {m.primitive}", *cells, style="red" if m.failure else "")
        tables.append(table)
    return tables


def _rich_text(check: Check) -> str:
    from rich.console import Console

    console = Console()
    with console.capture() as capture:
        console.print(_heading(check), markup=False, highlight=False)
        for table in as_table(check):
            console.print(table)
    return capture.get()


def _heading(check: Check) -> str:
    note = f" ({check.note})" if check.note else ""
    if not check.kernels:
        return f"{check.filename}: no pallas_call found"
    return (f"{check.filename}: rules of JAX {check.jax_version}{note}; Mosaic GPU by semantics: "
            "WG = Warpgroup (the default), Lane, warp = one warp at Warpgroup")


def _kernel_heading(kernel: KernelCheck) -> str:
    calls = ", ".join(str(line) for line in kernel.calls)
    how = "recorded" if kernel.evidence == "recorded" else "as far as the source shows"
    return f"{kernel.name} (line {kernel.line}), called at line {calls}; primitives {how}"


def _closing(kernel: KernelCheck) -> list[str]:
    """Footnotes and the verdict."""
    body, calls = len(kernel.body_failures), len(kernel.call_failures)
    unsure = {m.primitive for row in kernel.lines for m in row.marks if _is_unsure(m)}
    notes = [f"* {primitive}: {PARTIAL_SUPPORT[primitive]}" for primitive in sorted(unsure)]
    return [*notes, f"body: {body} of {len(kernel.lines)} lines fail on Mosaic GPU as they stand; "
                    f"call: {calls} failure{'' if calls == 1 else 's'}"]


def _is_unsure(m: Mark) -> bool:
    return not m.failure and not m.operands_known and m.primitive in PARTIAL_SUPPORT


def _reason(m: Mark) -> str:
    """Why a primitive fails, where the columns do not say it, and what a port does about it."""
    why = m.failure if m.mosaic.get("Warpgroup/Warpgroup") else ""
    fate = PRIMITIVES.get(m.primitive) if m.failure else None
    return "; ".join(filter(None, (why, str(fate or ""))))


def _cells(m: Mark) -> tuple[str, ...]:
    def cell(semantics: str) -> str:
        if not semantics:
            return "yes" if m.triton else "-"
        if not m.mosaic.get(semantics):
            return "-"
        if semantics.startswith("Warpgroup/"):
            if m.failure or m.primitive in NO_LAYOUT_INFERENCE:
                return "no"
            return "yes*" if _is_unsure(m) else "yes"
        return "yes"

    return tuple(cell(semantics) for _, semantics in _COLUMNS)
