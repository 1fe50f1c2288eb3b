"""What recorded facts add to a plan: ranks of refs, and dtypes or calls that keep a site on Triton.

A static plan infers ranks from the source.  Where the user's code was run, its recordings say them,
and say which dtypes the operands had.  Several recordings of a site may differ: ranks count only if
all agree, and one recording that cannot be ported keeps the site.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from .dtypes import refusal
from .model.events import Dot, KernelModel
from .sites import CallSite

if TYPE_CHECKING:
    from .facts import Facts, OperandFact, SiteFacts

HALF = {"float16", "bfloat16"}
FLOAT8 = {"float8_e4m3fn", "float8_e5m2"}

Problem = tuple[str, ast.AST, str, str]


def recordings(facts: Facts | None, filename: str, site: CallSite) -> tuple[SiteFacts, ...]:
    """The recordings of a call; () without facts."""
    return facts.at(filename, site.call.lineno) if facts else ()


def recorded_ranks(found: tuple[SiteFacts, ...]) -> dict[int, int]:
    """Rank of the ref at each position, inputs first, where all recordings agree."""
    ranks: dict[int, int] = {}
    for i, operands in enumerate(zip(*[(*f.inputs, *f.outputs) for f in found])):
        seen = {_rank(o) for o in operands}
        if len(seen) == 1 and len({len(f.inputs) for f in found}) == 1:
            ranks[i] = seen.pop()
    return ranks


def _rank(operand: OperandFact) -> int:
    return sum(b is not None for b in operand.block)


def recorded_problems(found: tuple[SiteFacts, ...], site: CallSite, model: KernelModel) -> list[Problem]:
    """Why a recorded call cannot be ported."""
    problems: list[Problem] = []
    for facts in found:
        if None in facts.grid:
            problems.append(("C202", site.call, "a grid bound that is known only at run time", ""))
        if facts.scalar_prefetch:
            problems.append(("C202", site.call, "scalar prefetch operands", "pass them as arrays and index them in the kernel"))
        for i, operand in enumerate((*facts.inputs, *facts.outputs)):
            if why := refusal(operand.array.dtype):
                name = model.refs[i].name if i < len(model.refs) else f"operand {i}"
                problems.append(("B131", site.call, f"{name} is {operand.array.dtype}", why))
        for dot in model.dots:  # plan_dots.py decides on float32 and on where 8 bits are possible
            for dtype in sorted(_operand_dtypes(facts, dot) - HALF - FLOAT8 - {"float32", "int8"}):
                problems.append(("B131", dot.node, f"a product of {dtype} operands", "float16, bfloat16, float8 and int8 only"))
    return list(dict.fromkeys(problems))


def recorded_dtypes(found: dict[int, tuple[SiteFacts, ...]], dot: Dot) -> set[str]:
    """The dtypes that a product's operands had in any recording of any call."""
    return {dtype for recordings in found.values() for facts in recordings for dtype in _operand_dtypes(facts, dot)}


def _operand_dtypes(facts: SiteFacts, dot: Dot) -> set[str]:
    node = dot.node
    equations = facts.equations_at(node.lineno, node.col_offset, node.end_lineno or 0, node.end_col_offset or 0)
    return {a.dtype for e in equations if e.primitive == "dot_general" for a in e.in_avals}
