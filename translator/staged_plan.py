"""The plan of a kernel whose products are mixed with register work, as data.

``plan_staged.py`` fills it, ``staged_emission.py`` and ``staged_launch.py`` turn it into actions.
"""

from __future__ import annotations

import ast
import dataclasses

from .model.events import Access, Dot, Loop, Pages


@dataclasses.dataclass(frozen=True, eq=False)
class StagedLoad:
    """A load that the memory warpgroup copies into shared memory.

    read: whether the kernel computes with it, so that it goes on into registers; else only products
        read it. name: of the stage in the compute function. index: of each dimension of the ref, source text.
    block: its extents, source text of the kernel. statement: the assignment that holds the load.
    place: the statement of the loop's body, or of the kernel, that holds it: an ``if`` where the load is made
        under a test only. test: that test, source text of the kernel, "" if the load is always made.
    alone: whether the statement is ``name = load(...)``.
    split: for each of its axes, the dimension that warpgroups divide, else "".
    pages: where the tile is put together of pages that a table in memory names.
    """

    access: Access
    name: str
    index: tuple[str, ...]
    block: tuple[str, ...]
    statement: ast.stmt
    alone: bool
    split: tuple[str, ...]
    place: ast.stmt
    test: str = ""
    read: bool = False
    pages: Pages | None = None

    @property
    def node(self) -> ast.AST:
        """What stands for the tile in the kernel."""
        return self.pages.node if self.pages is not None else self.access.node

    @property
    def window(self) -> str:
        if self.pages is not None:
            pieces = f"[{self.access.ref.name}.at[page] for page in {self.pages.table.id}]"
            return f"{pieces} if {self.test} else None" if self.test else pieces
        whole = all(i == ":" for i in self.index)
        window = self.access.ref.name if whole else f"{self.access.ref.name}.at[{', '.join(self.index)}]"
        return f"{window} if {self.test} else None" if self.test else window


@dataclasses.dataclass(frozen=True, eq=False)
class Ring:
    """Stages that are filled together: once, or in each step of ``loop``.

    name: of the ring in the kernel. step: the number of the step, source text in the loop's body.
    steps: how many there are, source text of the kernel.
    """

    name: str
    loads: tuple[StagedLoad, ...]
    loop: Loop | None
    step: str
    steps: str

    @property
    def paged(self) -> bool:
        return any(load.pages is not None for load in self.loads)

    @property
    def operands(self) -> list[StagedLoad]:
        return [load for load in self.loads if not load.read]

    @property
    def reads(self) -> list[StagedLoad]:
        return [load for load in self.loads if load.read]


def handed_over(phases: list[list[Ring]], ring: Ring) -> list[Ring]:
    """What is copied once for a loop and whose memory the next loop needs: it is given back after the loop of ``ring``."""
    phase = next((p for p in phases[:-1] if ring in p and ring.loop is not None), [])
    return [r for r in phase if r.loop is None]


@dataclasses.dataclass(frozen=True, eq=False)
class RegisterDot:
    """A product whose result is in registers.

    left_transposed, right_transposed: relative to how the operands are written.
    spill_left, spill_right: whether an operand that is computed must go through shared memory.
    added: the expression that the product is added to, source text, "" if none.
    sum: the statement or expression that adds it. target: the name that the sum is assigned to.
    turn: whether the warpgroups take turns at it.
    """

    dot: Dot
    left_transposed: bool
    right_transposed: bool
    spill_left: bool
    spill_right: bool
    added: str = ""
    sum: ast.AST | None = None
    target: str = ""
    turn: bool = False
