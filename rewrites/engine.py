"""Carries out a plan: rewrites the text of each action's node, then adds imports and support code.

Only what an action names is parsed with LibCST and printed again: the expression or statement at
its span, in an indented block like its own.  All other text, down to blanks within the same line, is
copied byte for byte.  Actions inside of another one's node come first, so that the outer rule sees
the node as they left it.  An action whose span holds no node of its kind is an internal error,
never dropped.

A rule either *rewrites* a node or *inserts* lines beside a statement.  Inserted lines are text in
units of two blanks; they take the indentation of the module that they go into.
"""

from __future__ import annotations

import ast
import bisect
import collections
import dataclasses
import io
import itertools
import keyword
import re
import tokenize
from typing import ClassVar, Iterable, Iterator, NamedTuple

import libcst as cst

from ..translator.actions import Action, Span, span_of
from ..translator.plan import ModulePlan, Modules
from . import imports
from .support import emit_support


@dataclasses.dataclass(frozen=True)
class Example:
    """A kernel module before, and lines that its port must hold (``target`` sm90 or sm100)."""

    before: str
    after: str
    target: str = "sm90"


@dataclasses.dataclass(frozen=True)
class Insertion:
    """Lines to put beside a statement, in units of two blanks.

    after: behind it, instead of before it and the comments above it.
    apart: with an empty line on both sides.
    """

    lines: tuple[str, ...]
    after: bool = False
    apart: bool = False


class Rule:
    """One rewrite.

    code, name, title: how reports and pages call it.
    nodes: for each kind of action, the LibCST node types that it may rewrite.
    inserts: the kinds of actions that put lines beside the statement at their span.
    removes: those of ``nodes`` that remove a function with what separates it from the next statement.
    keeps_original: the kinds of actions that put the new text below the old, not in its place.
    """

    code: ClassVar[str]
    name: ClassVar[str]
    title: ClassVar[str]
    nodes: ClassVar[dict[type[Action], tuple[type[cst.CSTNode], ...]]] = {}
    inserts: ClassVar[tuple[type[Action], ...]] = ()
    removes: ClassVar[tuple[type[Action], ...]] = ()
    keeps_original: ClassVar[tuple[type[Action], ...]] = ()
    EXAMPLES: ClassVar[tuple[Example, ...]] = ()

    def __init__(self, modules: Modules) -> None:
        self.modules = modules

    def rewrite(self, action: Action, node: cst.CSTNode) -> cst.CSTNode | cst.RemovalSentinel | list[str]:
        """The node with the action carried out; for a function also its new lines, as in ``Insertion``."""
        raise NotImplementedError

    def insert(self, action: Action) -> Insertion:
        """What goes beside the statement at the action's span."""
        raise NotImplementedError


def apply(text: str, plan: ModulePlan) -> str:
    """The module's text after the plan."""
    from . import RULES

    rules: dict[type[Action], Rule] = {}
    for rule_type in RULES:
        rule = rule_type(plan.modules)
        for kind in (*rule.nodes, *rule.inserts):
            rules[kind] = rule
    editor = _Editor(text, rules)
    support = emit_support(plan.support, plan.modules) if plan.support and plan.actions else ""
    result = editor.edited(plan.actions, support)
    return imports.update(editor.tree, result, plan.modules.missing, editor.newline)


@dataclasses.dataclass
class _Place:
    """A stretch of the text that is written anew: from ``start`` to before ``end``.

    kind: ``expression``, ``small`` (a statement without what is around it on its line), ``line``
        (all statements of a line, with the lines above it that belong to it) or ``function``.
    indent: the blanks before the statement.
    """

    start: int
    end: int
    kind: str
    indent: str
    actions: list[Action] = dataclasses.field(default_factory=list)
    inner: list[_Place] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class _Line:
    """The statements that share a logical line, or a compound statement; lines count from 1.

    first: of its first line (a decorator's, too). above: of the comments and empty lines above it.
    last: its last line. indent: the blanks before it; None if it does not begin its line.
    siblings: all statements of its block.
    """

    above: int
    first: int
    last: int
    indent: str | None
    siblings: list[ast.stmt]


class _Edit(NamedTuple):
    """New text for a stretch of the old one; ``order`` decides among those at one place."""

    start: int
    order: int
    end: int
    text: str


_AFTER, _SUPPORT, _BEFORE, _COMMENT, _REWRITE = range(5)


class _Editor:
    """The text of one module, and the edits of it."""

    def __init__(self, text: str, rules: dict[type[Action], Rule]) -> None:
        self.text, self.rules = text, rules
        self.newline = "\r\n" if "\r\n" in text else "\n"
        self.lines = text.split("\n")
        self.offsets = list(itertools.accumulate((len(line) + 1 for line in self.lines), initial=0))
        self.tree = ast.parse(text)
        self.found = {span_of(s, self.lines)[:2]: (s, siblings) for s, siblings in _statements(self.tree.body)}
        self.starts = sorted(self.found)
        self.edits: list[_Edit] = []

    def edited(self, actions: Iterable[Action], support: str = "") -> str:
        """The text after the actions, with the support code before the first statement that they change."""
        insertions: dict[tuple[int, bool], tuple[_Line, list[Insertion]]] = {}
        places: dict[tuple[int, int, str], _Place] = {}
        for action in actions:
            rule = self.rules[type(action)]
            if type(action) in rule.inserts:
                insertion = rule.insert(action)
                line = self._line(action.span)
                insertions.setdefault((line.first, insertion.after), (line, []))[1].append(insertion)
            else:
                place = self._place(action, rule)
                places.setdefault((place.start, place.end, place.kind), place).actions.append(action)
        for (_, after), (line, held) in insertions.items():
            self._insert(line, after, held)
        self.removed = collections.Counter(
            id(self._line(a.span).siblings) for p in places.values() if p.kind == "line" for a in p.actions
        )
        for place in _nested(places.values()):
            self.edits.append(_Edit(place.start, _REWRITE, place.end, self._rewritten(place)))
        if support:
            self._insert_support(self._first_statement(actions), support)
        return self._spliced(0, len(self.text), self.edits)

    def _first_statement(self, actions: Iterable[Action]) -> int:
        """The first line of the first top-level statement with an action."""
        first = min(a.span.line for a in actions)
        return [line for line in map(_first_line, self.tree.body) if line <= first][-1]

    # -- where ------------------------------------------------------------------------------

    def _offset(self, line: int, column: int) -> int:
        if not 0 < line <= len(self.lines):
            raise RuntimeError(f"no line {line}")
        return self.offsets[line - 1] + column

    def _place(self, action: Action, rule: Rule) -> _Place:
        span, kinds = action.span, rule.nodes[type(action)]
        if kinds == (cst.SimpleStatementLine,):
            line = self._line(span)
            if line.indent is None:
                raise RuntimeError(f"no line of its own for {action}")
            return _Place(self.offsets[line.above - 1], min(self.offsets[line.last], len(self.text)), "line", line.indent)
        statement = self.found.get(span[:2], (None,))[0]
        if kinds == (cst.FunctionDef,):
            if not isinstance(statement, ast.FunctionDef):
                raise RuntimeError(f"no node for {action}")
            start = self._offset(_first_line(statement), span.column)
            last = self._last_of_block(statement)
            if type(action) in rule.removes:  # up to the statement below
                while last < len(self.lines) and not self.lines[last].strip():
                    last += 1
                if last < len(self.lines) and self.lines[last].startswith(self._indent_at(start)):
                    return _Place(start, self.offsets[last] + span.column, "function", self._indent_at(start))
            return _Place(start, self.offsets[last - 1] + len(self.lines[last - 1].removesuffix("\r")), "function", self._indent_at(start))
        start, end = self._offset(*span[:2]), self._offset(*span[2:])
        if isinstance(statement, (ast.Assign, ast.AugAssign, ast.Return)) and span_of(statement, self.lines) == span:
            return _Place(start, end, "small", self._indent_at(start))
        return _Place(*self._with_parentheses(start, end), "expression", self._indent_at(start))

    def _line(self, span: Span) -> _Line:
        """The line of the statement that starts where the span does."""
        if span[:2] not in self.found:
            raise RuntimeError(f"no statement at {span}")
        statement, siblings = self.found[span[:2]]
        at = siblings.index(statement)
        low = high = at
        while low and siblings[low - 1].end_lineno == _first_line(siblings[low]):
            low -= 1
        while high + 1 < len(siblings) and _first_line(siblings[high + 1]) == siblings[high].end_lineno:
            high += 1
        first = _first_line(siblings[low])
        before = self.lines[first - 1][: span_of(siblings[low], self.lines).column]
        indent = before if not before.strip() else None
        above, earlier = first, siblings[low - 1].end_lineno or 0 if low else 0
        while above - 1 > earlier and self._belongs_below(self.lines[above - 2], before):
            above -= 1
        return _Line(above, first, siblings[high].end_lineno or first, indent, siblings)

    @staticmethod
    def _belongs_below(line: str, indent: str) -> bool:
        return not line.strip() or line.startswith(f"{indent}#")

    def _last_of_block(self, function: ast.FunctionDef) -> int:
        """The last line of a function, with the comments that end it."""
        last = following = function.end_lineno or function.lineno
        while following < len(self.lines):
            line = self.lines[following]
            following += 1
            if line.strip() and not (line.lstrip().startswith("#") and len(line) - len(line.lstrip()) > function.col_offset):
                break
            last = following if line.strip() else last
        return last

    def _with_parentheses(self, start: int, end: int) -> tuple[int, int]:
        """The stretch of an expression with the parentheses around it that are not a call's."""
        while True:
            before, after = self.text[:start].rstrip(), self.text[end:].lstrip()
            at = len(before) - 1
            line = before[before.rfind("\n") + 1 :]
            if not (before.endswith("(") and after.startswith(")")) or "#" in line:
                return start, end
            word = re.search(r"(\w*)[^\S\n]*\($", line)
            caller = word and word[1] and not keyword.iskeyword(word[1])
            if caller or re.search(r"[\])}'\"][^\S\n]*\($", line):
                return start, end
            start, end = at, len(self.text) - len(after) + 1

    # -- what -------------------------------------------------------------------------------

    def _insert(self, line: _Line, after: bool, held: list[Insertion]) -> None:
        if not after and self._is_body_behind_colon(line):
            self._insert_behind_colon(line, held)
            return
        if line.indent is None or self.lines[line.first - 1].lstrip().startswith("elif"):
            raise RuntimeError(f"lines cannot be put beside line {line.first}")
        blank = line.above < line.first and not self.lines[line.above - 1].strip() and not after
        new: list[str] = []
        for insertion in held:
            new += [""] if insertion.apart or blank else []
            new += _reindented(insertion.lines, line.indent, self._unit_at(line.first))
        if not blank and any(insertion.apart for insertion in held):
            new.append("")
        text = "".join(row + self.newline for row in new)
        start = self.offsets[line.last] if after else self.offsets[line.above - 1]
        if start > len(self.text):  # the last line of the file has no end
            start, text = len(self.text), self.newline + text.removesuffix(self.newline)
        self.edits.append(_Edit(start, _AFTER if after else _BEFORE, start, text))

    def _is_body_behind_colon(self, line: _Line) -> bool:
        """Whether a line is ``def f(x): statement; statement``."""
        if line.indent is not None:
            return False
        functions = (s for s, _ in self.found.values() if isinstance(s, (ast.FunctionDef, ast.AsyncFunctionDef)))
        return any(f.body is line.siblings for f in functions)

    def _insert_behind_colon(self, line: _Line, held: list[Insertion]) -> None:
        """Puts lines before the body of a function on one line, which goes to a line of its own."""
        start = self._offset(*span_of(line.siblings[0], self.lines)[:2])
        unit = self._unit_at(line.first)
        indent = self._indent_at(start)
        rows = [row for insertion in held for row in _reindented(insertion.lines, indent, unit)]
        rows += [""] if any(insertion.apart for insertion in held) else []
        text = "".join(self.newline + row for row in [*rows, indent])
        self.edits.append(_Edit(len(self.text[:start].rstrip()), _BEFORE, start, text))

    def _insert_support(self, first: int, support: str) -> None:
        """Puts the support code above the top-level statement at a line and the comments above it."""
        at = first - 1
        while at > 0 and self.lines[at - 1].startswith("#"):
            at -= 1
        above = at
        while above > 0 and not self.lines[above - 1].strip():
            above -= 1
        rows = [*support.split("\n"), "", ""]
        inserted = [e.start for e in self.edits if self.offsets[above] <= e.start < self.offsets[at]]
        if inserted:  # a function is put above the empty lines
            rows = ["", "", *rows[:-2]]
        start = min(inserted, default=self.offsets[at])
        self.edits.append(_Edit(start, _SUPPORT, start, "".join(row + self.newline for row in rows)))

    def _rewritten(self, place: _Place) -> str:
        """The new text of a place."""
        inner = [_Edit(p.start, _REWRITE, p.end, self._rewritten(p)) for p in place.inner]
        if place.kind == "function":  # lines put between its statements
            held = [e for e in self.edits if place.start < e.start <= place.end]
            self.edits[:] = [e for e in self.edits if e not in held]
            inner += held
        text = self._spliced(place.start, place.end, inner)
        indent = place.indent
        unit = self._unit_at(place.actions[0].span.line) if place.kind == "function" else "  "
        original = node = _parsed(text, place, unit, self.newline)
        for action in sorted(place.actions, key=_order):
            rule = self.rules[type(action)]
            if not isinstance(original, rule.nodes[type(action)]):
                raise RuntimeError(f"no node for {action}")
            node = rule.rewrite(action, node)  # type: ignore[arg-type]
        if node is cst.RemovalSentinel.REMOVE:
            return "" if place.kind == "function" else self._removed(place)
        if isinstance(node, list):
            new = self.newline.join(_reindented(node, indent, unit)).removeprefix(indent)
        else:
            new = _printed(node, place, unit, self.newline)
        if "#" in text:
            self._keep_comments(place, text, new)
        if any(type(a) in self.rules[type(a)].keeps_original for a in place.actions):
            apart = self.newline * (3 if not indent else 2)
            return f"{self.text[place.start:place.end]}{apart}{indent}{new}"
        return new

    def _removed(self, place: _Place) -> str:
        """What stays of removed statements: comments behind them, and ``pass`` in an empty block."""
        kept = comments(self.text[place.start : place.end])
        line = self._line(place.actions[0].span)
        if self.removed[id(line.siblings)] == len(line.siblings) and line.siblings is not self.tree.body:
            kept.append("pass")
            self.removed[id(line.siblings)] = 0
        return "".join(place.indent + row + self.newline for row in kept)

    def _keep_comments(self, place: _Place, before: str, after: str) -> None:
        """Puts the comments that a rewrite left out above the statement."""
        left = collections.Counter(comments(after))
        lost = []
        for comment in comments(before):
            left[comment] -= 1
            if left[comment] < 0:
                lost.append(comment)
        if not lost:
            return
        line = self._line_at(place.start)
        start = self.offsets[line.first - 1]
        text = "".join((line.indent or "") + comment + self.newline for comment in lost)
        self.edits.append(_Edit(start, _COMMENT, start, text))

    def _spliced(self, start: int, end: int, edits: Iterable[_Edit]) -> str:
        parts = []
        at = start
        for edit in sorted(edits):
            if edit.start < at:
                raise RuntimeError(f"edits overlap at offset {edit.start}")
            parts += [self.text[at : edit.start], edit.text]
            at = edit.end
        return "".join([*parts, self.text[at:end]])

    def _line_at(self, offset: int) -> _Line:
        """The line of the statement that holds what is at an offset."""
        row = bisect.bisect_right(self.offsets, offset)
        at = bisect.bisect_right(self.starts, (row, offset - self.offsets[row - 1]))
        while True:
            at -= 1
            line = self._line(Span(*self.starts[at], 0, 0))
            if line.indent is not None:
                return line

    def _indent_at(self, offset: int) -> str:
        """The blanks at the start of the logical line at an offset."""
        row = bisect.bisect_right(self.offsets, offset)
        if self.lines[row - 1].lstrip().startswith("@"):
            return self.lines[row - 1][: -len(self.lines[row - 1].lstrip())]
        at = bisect.bisect_right(self.starts, (row, offset - self.offsets[row - 1])) - 1
        behind = self._is_body_behind_colon(self._line(Span(*self.starts[at], 0, 0)))
        return (self._line_at(offset).indent or "") + (self._unit_at(row) if behind else "")

    def _unit_at(self, line: int) -> str:
        """The indentation of the first block of the top-level statement at a line, or of the module."""
        at = bisect.bisect_right(self.tree.body, line, key=_first_line) - 1
        return self._first_indent(self.tree.body[at : at + 1]) or self._first_indent(self.tree.body) or "    "

    def _first_indent(self, body: list[ast.stmt]) -> str:
        for statement, _ in _statements(body):
            for inner in getattr(statement, "body", ())[:1]:
                outer, whole = (self.lines[s.lineno - 1][: s.col_offset] for s in (statement, inner))
                if inner.lineno > statement.lineno and not whole.strip() and whole.startswith(outer):
                    return whole.removeprefix(outer)
        return ""


def _statements(body: list[ast.stmt]) -> Iterator[tuple[ast.stmt, list[ast.stmt]]]:
    """All statements, outer ones first, each with the block that it stands in."""
    for statement in body:
        yield statement, body
        for field in ("body", "orelse", "handlers", "cases", "finalbody"):
            for part in getattr(statement, field, ()):
                if not isinstance(part, ast.stmt):  # an except or a case
                    yield from _statements(part.body)
            block = getattr(statement, field, ())
            if block and isinstance(block[0], ast.stmt):
                yield from _statements(block)


def _first_line(statement: ast.stmt) -> int:
    decorators = getattr(statement, "decorator_list", ())
    return min([statement.lineno, *(d.lineno for d in decorators)])


def _nested(places: Iterable[_Place]) -> list[_Place]:
    """The places that lie in no other; the rest is put into those that hold them."""
    outer: list[_Place] = []
    around: list[_Place] = []
    for place in sorted(places, key=lambda p: (p.start, -p.end, p.kind == "expression")):
        while around and around[-1].end <= place.start:
            around.pop()
        (around[-1].inner if around else outer).append(place)
        around.append(place)
    return outer


# -- text and nodes ---------------------------------------------------------------------------


def _parsed(text: str, place: _Place, unit: str, newline: str) -> cst.CSTNode:
    """The node of a place."""
    try:
        if place.kind == "expression" and "\n" not in text:
            return cst.parse_expression(text)
        return _parsed_in_block(text, place, unit, newline)
    except cst.ParserSyntaxError as error:
        raise RuntimeError(f"no node for {place.actions[0]}: {error.message}") from None


def _parsed_in_block(text: str, place: _Place, unit: str, newline: str) -> cst.CSTNode:
    """The node of a place, parsed as a statement of a block with its indentation."""
    if place.kind == "expression":
        text = f"({text})"
    if place.kind != "line":
        text = f"{place.indent}{text}{newline}"
    # LibCST takes the first indentation of a file for its unit.
    context = f"if 1:{newline}{unit}pass{newline}"
    if place.indent:
        context += f"if 1:{newline}{place.indent}pass{newline}"
    body = cst.parse_module(context + text).body
    statement = body[1].body.body[1] if place.indent else body[1]  # type: ignore[union-attr, index]
    if place.kind in ("line", "function"):
        return statement
    (small,) = statement.body  # type: ignore[union-attr, misc]
    if place.kind == "small":
        return small
    return small.value.with_changes(lpar=small.value.lpar[1:], rpar=small.value.rpar[:-1])  # type: ignore[union-attr]


def _printed(node: cst.CSTNode, place: _Place, unit: str, newline: str) -> str:
    """The text of a node that takes a place."""
    if place.kind == "expression":
        code = cst.Module([]).code_for_node(node)
        if "\n" not in code:
            return code
    if isinstance(node, cst.BaseExpression):
        node = cst.Expr(node)
    if isinstance(node, cst.BaseSmallStatement):
        node = cst.SimpleStatementLine([node])
    if place.indent:
        node = cst.If(cst.Integer("1"), cst.IndentedBlock([node], indent=place.indent))  # type: ignore[list-item]
    code = cst.Module([node], default_indent=unit, default_newline=newline).code  # type: ignore[list-item]
    code = code.removeprefix(f"if 1:{newline}")
    return code if place.kind == "line" else code.removeprefix(place.indent).removesuffix(newline)


def _reindented(lines: Iterable[str], indent: str, unit: str) -> list[str]:
    """Lines in units of two blanks, as they stand in a block; the inside of strings stays."""
    rows = "\n".join(lines).split("\n")
    if not indent and unit == "  ":
        return rows
    if unit == "  " and not any(quotes in row for row in rows for quotes in ('\"\"\"', "'''")):
        return [indent + row if row.strip() else "" for row in rows]
    result = [indent + row if row.strip() else "" for row in rows]
    depth, begin = 0, True
    old = new = ""
    done = 0
    for token in tokenize.generate_tokens(io.StringIO("\n".join(rows) + "\n").readline):
        if token.type in (tokenize.INDENT, tokenize.DEDENT):
            depth += 1 if token.type == tokenize.INDENT else -1
        elif token.type == tokenize.NEWLINE:
            begin = True
        elif token.type not in (tokenize.NL, tokenize.ENDMARKER):
            row = token.start[0]
            if token.type == tokenize.COMMENT and begin:  # it comes before the indentation that it starts
                width = token.start[1]
                result[row - 1] = indent + unit * (width // 2) + rows[row - 1][width:]
                continue
            if begin:
                begin, done = False, row - 1
                old, new = " " * token.start[1], indent + unit * depth
            for line in range(done, row):
                text = rows[line]
                result[line] = new + text.removeprefix(old) if text.strip() else ""
            done = max(done, token.end[0])
            for line in range(row, token.end[0]):  # the inside of a string
                result[line] = rows[line]
    return result


def comments(text: str) -> list[str]:
    """The comments in the text of statements or of an expression, in order."""
    if "#" not in text:
        return []
    closed = f"({text}\n)"  # no indentation counts inside of parentheses
    return [t.string for t in tokenize.generate_tokens(io.StringIO(closed).readline) if t.type == tokenize.COMMENT]


def _order(action: Action) -> int:
    """New axes are added to the result of every other rewrite of the same node; a condition holds for all."""
    return {"AddNewAxis": 1, "BroadcastTo": 1, "StagedCondition": 2}.get(type(action).__name__, 0)


def expression(text: str) -> cst.BaseExpression:
    return cst.Name(text) if text.isidentifier() else cst.parse_expression(text)
