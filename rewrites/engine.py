"""Carries out a plan: applies each action to its node, then adds imports and support code.

Only the top-level statements that hold an action are parsed with LibCST and printed again; the
rest of the file is not touched, byte for byte.  Within a statement one traversal applies all
actions, so that every node is still the one that the plan saw.  An action that finds no node is an
internal error, never dropped.
"""

from __future__ import annotations

import ast
import bisect
import collections
import dataclasses
from typing import ClassVar, Iterable

import libcst as cst
from libcst.metadata import MetadataWrapper, PositionProvider

from ..translator.actions import Action, Span
from ..translator.plan import ModulePlan, Modules
from . import imports
from .support import emit_support


@dataclasses.dataclass(frozen=True)
class Example:
    """A kernel module before, and lines that its port must hold (``target`` sm90 or sm100)."""

    before: str
    after: str
    target: str = "sm90"


class Rule:
    """One rewrite.

    code, name, title: how reports and pages call it.
    nodes: for each kind of action, the LibCST node types that it may rewrite.
    """

    code: ClassVar[str]
    name: ClassVar[str]
    title: ClassVar[str]
    nodes: ClassVar[dict[type[Action], tuple[type[cst.CSTNode], ...]]]
    EXAMPLES: ClassVar[tuple[Example, ...]] = ()

    def __init__(self, modules: Modules) -> None:
        self.modules = modules

    def rewrite(
        self, action: Action, node: cst.CSTNode
    ) -> cst.CSTNode | cst.FlattenSentinel | cst.RemovalSentinel:
        """The node with the action carried out."""
        raise NotImplementedError


def apply(text: str, plan: ModulePlan) -> str:
    """The module's text after the plan."""
    from . import RULES

    rules: dict[type[Action], Rule] = {}
    for rule_type in RULES:
        rule = rule_type(plan.modules)
        for kind in rule.nodes:
            rules[kind] = rule
    newline = "\r\n" if "\r\n" in text else "\n"
    lines = text.split("\n")
    tree = ast.parse(text)
    pieces: list[tuple[int, int, str]] = []
    first = None
    pending = list(plan.actions)
    for start, end in _segments(tree):
        held = [a for a in pending if start <= a.span.line and a.span.end_line <= end]
        if not held:
            continue
        pending = [a for a in pending if a not in held]
        segment = "\n".join(lines[start - 1 : end]) + "\n"
        pieces.append((start, end, _rewrite_segment(segment, start, held, rules)))
        first = start if first is None else first
    if pending:
        raise RuntimeError(f"no statement holds {pending[0]}")
    for start, end, new in reversed(pieces):
        lines[start - 1 : end] = new.removesuffix("\n").split("\n")
    result = "\n".join(lines)
    if first is not None and plan.support:
        block = emit_support(plan.support, plan.modules)
        result = _insert_support(result, first, block, newline)
    return imports.update(text, result, plan.modules.missing, newline)


def _segments(tree: ast.Module) -> Iterable[tuple[int, int]]:
    """Line ranges of the top-level statements; statements that share a line are one segment."""
    ranges: list[list[int]] = []
    for node in tree.body:
        decorators = getattr(node, "decorator_list", [])
        start = min([node.lineno, *(d.lineno for d in decorators)])
        end = node.end_lineno or node.lineno
        if ranges and start <= ranges[-1][1]:
            ranges[-1][1] = end
        else:
            ranges.append([start, end])
    return [(a, b) for a, b in ranges]


def _rewrite_segment(segment: str, start: int, actions: list[Action], rules: dict[type[Action], Rule]) -> str:
    wrapper = MetadataWrapper(cst.parse_module(segment), unsafe_skip_copy=True)
    commented = {number for number, line in enumerate(segment.split("\n"), 1) if "#" in line}
    rewriter = _Rewriter(start - 1, actions, rules, commented)
    result = wrapper.visit(rewriter).code
    if rewriter.pending:
        raise RuntimeError(f"no node for {next(iter(rewriter.pending))}")
    return result


def _insert_support(text: str, first: int, block: str, newline: str) -> str:
    """Puts the support code before the first rewritten statement and the comments above it."""
    lines = text.split("\n")
    at = first - 1
    while at > 0 and lines[at - 1].startswith("#"):
        at -= 1
    lines[at:at] = [line + newline[:-1] for line in (*block.split("\n"), "", "")]
    return "\n".join(lines)


class _Rewriter(cst.CSTTransformer):
    METADATA_DEPENDENCIES = (PositionProvider,)

    def __init__(
        self, offset: int, actions: list[Action], rules: dict[type[Action], Rule], commented: set[int]
    ) -> None:
        """``commented``: the lines of the segment that may hold a comment."""
        super().__init__()
        self.offset, self.rules, self.commented = offset, rules, commented
        self.pending = dict.fromkeys(actions)
        self.removed = False
        self.by_start: dict[tuple[int, int], list[Action]] = {}
        for action in actions:
            self.by_start.setdefault(action.span[:2], []).append(action)
        self.starts = sorted(self.by_start)

    def on_visit(self, node: cst.CSTNode) -> bool:
        """Leaves out what holds no action: most of a file."""
        position = self.get_metadata(PositionProvider, node, None)
        if position is None:
            return True
        start, end = position.start, position.end
        following = bisect.bisect_left(self.starts, (start.line + self.offset, start.column))
        return following < len(self.starts) and self.starts[following] <= (end.line + self.offset, end.column)

    def on_leave(self, original_node, updated_node):  # type: ignore[override]
        node = super().on_leave(original_node, updated_node)
        place = self._place(original_node)
        if place is None:
            return node
        rewritten = self.removed
        for action in sorted(self.by_start.get(place[:2], ()), key=_order):
            rule = self.rules[type(action)]
            if action in self.pending and isinstance(original_node, rule.nodes[type(action)]):
                statement = isinstance(original_node, (cst.BaseCompoundStatement, cst.SimpleStatementLine))
                if statement or place == action.span:
                    node = _chain(node, rule.rewrite(action, _core(node)))
                    del self.pending[action]
                    rewritten = True
        self.removed = self.removed or isinstance(node, cst.RemovalSentinel)
        if node is not original_node and self._may_lose_comments(original_node, rewritten):
            node = _with_lost_comments(original_node, node)
        return node

    def _may_lose_comments(self, node: cst.CSTNode, rewritten: bool) -> bool:
        """False only where that is clear from the lines: looking through the nodes takes long.

        rewritten: an action changed the function itself or removed a statement; otherwise the
        statements in it have kept their comments.
        """
        if isinstance(node, cst.FunctionDef):
            return rewritten and bool(self.commented)
        if not isinstance(node, cst.SimpleStatementLine):
            return False
        position = self.get_metadata(PositionProvider, node)
        first = position.start.line - len(node.leading_lines)
        return any(first <= line <= position.end.line for line in self.commented)

    def _place(self, node: cst.CSTNode) -> Span | None:
        position = self.get_metadata(PositionProvider, node, None)
        if position is None:
            return None
        start, end = position.start, position.end
        line = start.line
        if isinstance(node, cst.FunctionDef):  # ``ast`` counts from the def, not its decorators
            line = self.get_metadata(PositionProvider, node.name).start.line
        if isinstance(node, cst.SimpleStatementLine):
            places = [self.get_metadata(PositionProvider, s).start for s in node.body]
            wanted = [p for p in places if (p.line + self.offset, p.column) in self.by_start]
            start = (wanted or places)[0]
            line = start.line
        return Span(line + self.offset, start.column, end.line + self.offset, end.column)


class _Comments(cst.CSTVisitor):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def visit_Comment(self, node: cst.Comment) -> None:
        self.found.append(node.value)


def comments(*nodes: cst.CSTNode) -> list[str]:
    """The comments in nodes, in order."""
    visitor = _Comments()
    for node in nodes:
        node.visit(visitor)
    return visitor.found


def _with_lost_comments(before: cst.CSTNode, after):
    """Puts the comments that a rewrite left out above the first statement that took its place."""
    if isinstance(after, cst.RemovalSentinel):
        return after
    nodes = list(after.nodes) if isinstance(after, cst.FlattenSentinel) else [after]
    held = comments(before)
    kept = collections.Counter(comments(*nodes) if held else ())
    lost = []
    for comment in held:
        kept[comment] -= 1
        if kept[comment] < 0:
            lost.append(comment)
    if not lost:
        return after
    at = 0 if isinstance(before, cst.FunctionDef) else len(nodes) - 1
    lines = [*nodes[at].leading_lines, *(cst.EmptyLine(comment=cst.Comment(c)) for c in lost)]
    nodes[at] = nodes[at].with_changes(leading_lines=lines)
    return cst.FlattenSentinel(nodes) if len(nodes) > 1 else nodes[0]


def _order(action: Action) -> int:
    """New axes are added to the result of every other rewrite of the same node."""
    return 1 if type(action).__name__ in ("AddNewAxis", "SumAfterLoop") else 0


def _core(node):
    return node.nodes[-1] if isinstance(node, cst.FlattenSentinel) else node


def _chain(before, after):
    """Joins the statements that earlier actions put before a node with what a later one returns."""
    if not isinstance(before, cst.FlattenSentinel):
        return after
    added = after.nodes if isinstance(after, cst.FlattenSentinel) else [after]
    return cst.FlattenSentinel([*before.nodes[:-1], *added])


def statements(lines: Iterable[str], blank_line: bool = False) -> list[cst.BaseStatement]:
    """Parses lines into statements; ``blank_line`` puts an empty line before the first."""
    body = list(cst.parse_module("\n".join(lines) + "\n").body)
    if blank_line:
        body[0] = body[0].with_changes(leading_lines=[cst.EmptyLine(indent=False), *body[0].leading_lines])
    return body  # type: ignore[return-value]


def after_blank_line(node: cst.CSTNode) -> cst.CSTNode:
    """The statement with an empty line above it and its comments."""
    lines = getattr(node, "leading_lines", ())
    if lines and lines[0].comment is None:
        return node
    return node.with_changes(leading_lines=[cst.EmptyLine(indent=False), *lines])


def expression(text: str) -> cst.BaseExpression:
    return cst.parse_expression(text)
