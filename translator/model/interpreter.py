"""The interpreter's state; its parts are in the files beside this one."""

from __future__ import annotations

import ast
import contextlib

from ..names import Resolver
from ..values import (
    Tile,
)
from .calls import Calls
from .control_flow import ControlFlow
from .events import (
    Finding,
    KernelModel,
)
from .expressions import Expressions
from .operators import Operators
from .refs import Refs
from .statements import Statements


class Interpreter(Statements, Expressions, Operators, Refs, Calls, ControlFlow):
    """Walks one kernel with abstract values and records events in ``model``."""

    def __init__(self, model: KernelModel, resolver: Resolver, thin: frozenset[ast.AST] = frozenset()) -> None:
        """thin: the loads and creations of one-row arrays that meet tiles of more rows."""
        self.thin = thin
        self.met_tiles: list[Tile] = []  # of one-row arrays that do so here
        self.rows_made: list[tuple[ast.AST, Tile]] = []  # creations of one-row arrays
        self.model = model
        self.resolver = resolver
        self.depth = 0
        self.kernel_level = True
        self.guards: list[ast.expr] = []
        self.evaluations: dict[ast.AST, int] = {}
        self.expansions: dict[ast.AST, int] = {}
        self.axes: dict[ast.AST, int] = {}

    def made_thin(self) -> frozenset[ast.AST]:
        """The loads and creations of one-row arrays that met tiles of more rows."""
        met = {t.find() for t in self.met_tiles}
        loads = [
            (a.node, a.tile) for a in self.model.accesses
            if a.kind == "load" and a.tile is not None and a.dims is not None and len(a.dims) == 2 and a.dims[0] == "1"
        ]
        return frozenset(n for n, t in [*loads, *self.rows_made] if t.find() in met)

    def tile(self, rank: int | None, shape_text: str = "") -> Tile:
        tile = Tile(rank, shape_text)
        self.model.tiles.append(tile)
        return tile

    @contextlib.contextmanager
    def guarded(self, condition: ast.expr):
        """Inside, what is met runs only where ``condition`` holds, or does not, at run time."""
        self.guards.append(condition)
        try:
            yield
        finally:
            self.guards.pop()

    def find(self, code: str, node: ast.AST, reason: str, advice: str = "") -> None:
        if not any(f.node is node and f.code == code for f in self.model.findings):
            self.model.findings.append(Finding(code, node, reason, advice))
