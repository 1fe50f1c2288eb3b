"""The kernel model: what a kernel body does, found by abstract interpretation of its source.

``build_model`` walks the kernel's statements once with abstract values (``values.py``): loop
bodies once, both branches of conditionals, helpers of the same file at each call.  It records
*events*, each tied to the syntax node that causes it: accesses to refs, queries of the grid,
reductions, thin arrays that must be expanded, square roots, dots, loops, and findings (what the
model could not follow).  It decides nothing: the plan turns events into rewrites or diagnoses.

Not covered: recursion, classes in kernels, ``global``; arrays of rank 3 or more keep their shape
but are only followed through elementwise operations.
"""

from __future__ import annotations

import ast
import dataclasses

from .names import PALLAS, TRITON, FunctionNode, Resolver
from .sites import CallSite
from .values import (
    UNKNOWN_FACTOR,
    Array,
    FunctionValue,
    Index,
    MaskTerm,
    RefValue,
    Scalar,
    ShapeOf,
    SliceValue,
    Tile,
    TupleValue,
    Unknown,
    Value,
    ViewValue,
)

_FLOAT_REDUCTIONS = {"sum", "max", "min", "mean", "prod", "amax", "amin", "any", "all"}
_CREATION = {"zeros", "ones", "full", "empty"}
_LIKE = {"zeros_like", "ones_like", "full_like", "empty_like"}
_DOTS = {
    "jax.numpy.dot",
    "jax.numpy.matmul",
    f"{TRITON}.dot",
    "jax.lax.dot",
    "jax.lax.dot_general",
    "jax.numpy.einsum",
}
_STATIC_CALLS = {
    f"{PALLAS}.cdiv",
    f"{PALLAS}.next_power_of_2",
    "math.prod",
    "math.ceil",
    "math.floor",
    "math.log2",
}
_STATIC_BUILTINS = {"min", "max", "len", "int", "abs", "divmod", "bool", "float", "round"}
_COMPARISONS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Eq, ast.NotEq)


@dataclasses.dataclass(frozen=True, eq=False)
class Access:
    """One load or store of a ref.

    node: the load call, the ``ref[...]`` subscript, or the store call.
    statement: for ``ref[...] = value``, the assignment; else None.
    view: the index of each dimension; None for the whole ref.
    tile: the layout variable of the loaded or stored array; None for a scalar.
    divisors: what the vector width must divide; None if neighbouring elements are not
        consecutive in memory, so that no vector access is possible.
    """

    kind: str
    node: ast.AST
    statement: ast.stmt | None
    ref: RefValue
    view: tuple[Index, ...] | None
    dims: tuple[str, ...] | None
    tile: Tile | None
    divisors: tuple[str, ...] | None
    mask: ast.expr | None = None
    value: ast.expr | None = None
    eviction: bool = False
    mask_value: Value | None = None
    other: ast.expr | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class GridQuery:
    """``program_id(axis)``, or ``num_programs(axis)`` if ``size``."""

    node: ast.Call
    axis: int
    size: bool


@dataclasses.dataclass(frozen=True, eq=False)
class Reduction:
    """``axis`` None: over all axes. ``rank`` is that of the operand, None if unknown."""

    node: ast.Call
    operation: str
    axis: int | None
    rank: int | None
    keepdims: bool
    operand: ast.expr
    tile: Tile


@dataclasses.dataclass(frozen=True, eq=False)
class Strip:
    """``x[:, None]`` that the port leaves out: the array stays thin."""

    node: ast.Subscript


@dataclasses.dataclass(frozen=True, eq=False)
class Expand:
    """A thin array that meets a full tile: the port expands it here along ``axis`` of ``rank``."""

    node: ast.expr
    axis: int
    rank: int


@dataclasses.dataclass(frozen=True, eq=False)
class SquareRoot:
    """``form``: ``reciprocal`` (1/sqrt), ``quotient`` (y/sqrt) or ``plain``; ``node`` is the
    division or the call."""

    node: ast.expr
    call: ast.Call
    form: str


@dataclasses.dataclass(frozen=True, eq=False)
class Dot:
    """A matrix product; operands as values and nodes."""

    node: ast.expr
    left: ast.expr
    right: ast.expr
    left_value: Value
    right_value: Value
    result: Array
    function: str


@dataclasses.dataclass(frozen=True, eq=False)
class Loop:
    """A ``fori_loop``: ``body`` with ``carry`` (parameter names of the carry's components)."""

    node: ast.Call
    body: FunctionNode
    lower: ast.expr
    upper: ast.expr
    init: ast.expr
    env: dict[str, Value]
    static_bounds: bool


@dataclasses.dataclass(frozen=True, eq=False)
class Finding:
    """Something that the plan must diagnose."""

    code: str
    node: ast.AST
    reason: str
    advice: str = ""


@dataclasses.dataclass(eq=False)
class KernelModel:
    """Events in the order of evaluation, and the names known at the kernel's top level."""

    kernel: FunctionNode
    refs: list[RefValue]
    accesses: list[Access] = dataclasses.field(default_factory=list)
    grid_queries: list[GridQuery] = dataclasses.field(default_factory=list)
    reductions: list[Reduction] = dataclasses.field(default_factory=list)
    strips: dict[ast.AST, Strip] = dataclasses.field(default_factory=dict)
    expands: dict[ast.AST, Expand] = dataclasses.field(default_factory=dict)
    square_roots: list[SquareRoot] = dataclasses.field(default_factory=list)
    dots: list[Dot] = dataclasses.field(default_factory=list)
    loops: list[Loop] = dataclasses.field(default_factory=list)
    calls: list[tuple[ast.AST, str]] = dataclasses.field(default_factory=list)
    findings: list[Finding] = dataclasses.field(default_factory=list)
    values: dict[ast.AST, Value] = dataclasses.field(default_factory=dict)
    tiles: list[Tile] = dataclasses.field(default_factory=list)
    functions: set[FunctionNode] = dataclasses.field(default_factory=set)
    ref_ranks: dict[str, int] = dataclasses.field(default_factory=dict)



def build_model(site: CallSite, resolver: Resolver, ref_dims: dict[int, tuple[str, ...]]) -> KernelModel:
    """The model of a site's kernel.

    ref_dims: the shape of the ref at each position, where the specs tell its rank.
    """
    kernel = site.kernel
    assert kernel is not None
    model = KernelModel(kernel, [])
    model.functions.add(kernel)
    interpreter = _Interpreter(model, resolver)
    env: dict[str, Value] = {}
    args = kernel.args
    positional = [*args.posonlyargs, *args.args]
    position = 0
    for i, arg in enumerate(positional):
        if i < site.bound_positional or arg.arg in site.bound:
            env[arg.arg] = Scalar(True, (arg.arg,), arg.arg)
            continue
        ref = RefValue(arg.arg, ref_dims.get(position))
        model.refs.append(ref)
        env[arg.arg] = ref
        position += 1
    if args.vararg is not None:
        env[args.vararg.arg] = Unknown("refs")
    for arg in args.kwonlyargs:
        bound = site.bound.get(arg.arg)
        env[arg.arg] = Scalar(True, (arg.arg,), arg.arg)
        if bound is not None:
            target = resolver.value(bound)
            if isinstance(target, (ast.FunctionDef, ast.Lambda)):
                env[arg.arg] = FunctionValue(target, {})
    interpreter.run_kernel(kernel, env, ref_dims)
    return model


class _Interpreter:
    def __init__(self, model: KernelModel, resolver: Resolver) -> None:
        self.model = model
        self.resolver = resolver
        self.depth = 0
        self.kernel_level = True
        self.evaluations: dict[ast.AST, int] = {}
        self.expansions: dict[ast.AST, int] = {}

    # -- statements -------------------------------------------------------------------------

    def run_kernel(
        self, kernel: FunctionNode, env: dict[str, Value], ref_dims: dict[int, tuple[str, ...]]
    ) -> None:
        self.ref_dims = ref_dims
        if isinstance(kernel, ast.Lambda):
            self.eval(kernel.body, env)
        else:
            self.block(kernel.body, env, [])
        for node, expand in self.model.expands.items():
            if self.expansions[node] < self.evaluations.get(node, 0):  # a helper called twice
                self.find("B105", node, f"{ast.unparse(node)[:40]} has a dimension of extent 1 in some calls only",
                          "write one helper for each shape")

    def block(self, body: list[ast.stmt], env: dict[str, Value], returns: list[Value]) -> None:
        for statement in body:
            self.statement(statement, env, returns)

    def statement(self, node: ast.stmt, env: dict[str, Value], returns: list[Value]) -> None:
        match node:
            case ast.Expr(value):
                self.eval(value, env)
            case ast.Assign(targets, value):
                result = self.eval(value, env)
                for target in targets:
                    self.assign(target, result, node, value, env)
            case ast.AnnAssign(target, _, value) if value is not None:
                self.assign(target, self.eval(value, env), node, value, env)
            case ast.AugAssign():
                self.aug_assign(node, env)
            case ast.Return(value):
                returns.append(self.eval(value, env) if value is not None else TupleValue(()))
            case ast.FunctionDef():
                self.function_def(node, env)
            case ast.If(test, body, orelse):
                self.eval(test, env)
                other = dict(env)
                self.block(body, env, returns)
                self.block(orelse, other, returns)
                self.merge(env, other)
            case ast.For():
                self.for_loop(node, env, returns)
            case ast.With(_, body):
                self.block(body, env, returns)
            case ast.Assert() | ast.Raise() | ast.Pass() | ast.Import() | ast.ImportFrom():
                pass
            case ast.Delete() | ast.Global() | ast.Nonlocal():
                pass
            case _:
                self.find("B101", node, f"a {type(node).__name__.lower()} statement in a kernel")

    def merge(self, env: dict[str, Value], other: dict[str, Value]) -> None:
        for name, value in other.items():
            mine = env.get(name)
            if mine is None:
                env[name] = value
            elif mine is not value:
                env[name] = self.join(mine, value)

    def join(self, a: Value, b: Value) -> Value:
        """A value that stands for either of two."""
        if isinstance(a, Array) and isinstance(b, Array):
            a.tile.unify(b.tile)
            return dataclasses.replace(
                a,
                run=a.run if a.run == b.run else None,
                start=a.start if a.start == b.start else "",
                mask=a.mask if a.mask == b.mask else None,
                kind=a.kind or b.kind,
            )
        if isinstance(a, SliceValue) and isinstance(b, SliceValue) and a != b:
            start = self.join(a.start, b.start)
            same = a.size == b.size and a.stride == b.stride and not (a.full or b.full)
            return SliceValue(start, a.size, stride=a.stride) if same else Unknown("slices")  # type: ignore[arg-type]
        if isinstance(a, TupleValue) and isinstance(b, TupleValue) and len(a.items) == len(b.items):
            return TupleValue(tuple(map(self.join, a.items, b.items)))
        if isinstance(a, Scalar) and isinstance(b, Scalar):
            if a == b:
                return a
            return Scalar(a.static and b.static, tuple(dict.fromkeys(a.terms + b.terms)))
        if isinstance(a, Array) and isinstance(b, Scalar):
            return a
        if isinstance(b, Array) and isinstance(a, Scalar):
            return b
        if isinstance(a, Unknown):
            return b
        if isinstance(a, (RefValue, ViewValue)) and a is not b:
            return Unknown("either of two refs")
        return a

    def for_loop(self, node: ast.For, env: dict[str, Value], returns: list[Value]) -> None:
        iterated = self.eval(node.iter, env)
        step: Value = Unknown("loop variable")
        match node.iter:
            case ast.Call(ast.Name("range"), args):
                values = [self.eval(a, env) for a in args]
                start = values[0] if len(values) > 1 else Scalar(True, (), "0")
                stride = values[2] if len(values) > 2 else Scalar(True, ("1",), "1")
                if all(isinstance(v, Scalar) for v in (start, stride)):
                    step = Scalar(True, (*start.terms, *stride.terms))  # type: ignore[union-attr]
        if isinstance(iterated, TupleValue) and iterated.items:
            step = iterated.items[0]
        if isinstance(node.target, ast.Name):
            env[node.target.id] = step
        else:
            self.bind_pattern(node.target, step, env)
        before = dict(env)
        for name in _assigned(node.body) & env.keys():  # of an earlier iteration
            env[name] = self.carried(env[name], static=True)
        self.block(node.body, env, returns)
        self.merge(env, before)
        self.block(node.orelse, env, returns)

    def function_def(self, node: ast.FunctionDef, env: dict[str, Value]) -> None:
        function = FunctionValue(node, env)
        env[node.name] = function
        for decorator in reversed(node.decorator_list):
            name = self.call_name(decorator)
            if name == f"{PALLAS}.when":
                self.eval(decorator.args[0], env)  # type: ignore[attr-defined]
                self.call_function(function, [], {}, node)
            elif name == f"{PALLAS}.loop":
                self.pallas_loop(decorator, function, env)  # type: ignore[arg-type]
            else:
                self.find("B102", decorator, f"decorator {ast.unparse(decorator)} inside a kernel")

    def pallas_loop(self, node: ast.Call, body: FunctionValue, env: dict[str, Value]) -> None:
        values = [self.eval(a, env) for a in node.args]
        keywords = {k.arg: self.eval(k.value, env) for k in node.keywords if k.arg}
        if "init_carry" in keywords:
            self.find("B102", node, "pl.loop with a carry")
        low = values[0] if len(values) > 1 else keywords.get("lower", Scalar(True, (), "0"))
        step = keywords.get("step", Scalar(True, ("1",), "1"))
        terms: tuple[str, ...] = (UNKNOWN_FACTOR,)
        if isinstance(low, Scalar) and isinstance(step, Scalar):
            terms = (*low.terms, *step.terms)
        self.call_function(body, [Scalar(False, terms)], {}, node)

    def aug_assign(self, node: ast.AugAssign, env: dict[str, Value]) -> None:
        if isinstance(node.target, ast.Subscript):
            base = self.eval(node.target.value, env)
            if isinstance(base, RefValue):
                self.find(
                    "B103", node, "a read-modify-write of a ref",
                    "write the load, the operation and the store as separate statements",
                )
                return
        current = self.eval_target(node.target, env)
        operand = self.eval(node.value, env)
        result = self.binary(node, node.op, node.target, current, node.value, operand)
        self.assign(node.target, result, node, node.value, env)

    def eval_target(self, target: ast.expr, env: dict[str, Value]) -> Value:
        if isinstance(target, ast.Name):
            return env.get(target.id, Unknown(target.id))
        return Unknown("target")

    def assign(
        self, target: ast.expr, value: Value, statement: ast.stmt, node: ast.expr, env: dict[str, Value]
    ) -> None:
        if isinstance(target, ast.Name):
            env[target.id] = self.named(target.id, value)
        elif isinstance(target, ast.Subscript):
            base = self.eval(target.value, env)
            if isinstance(base, (RefValue, ViewValue)):
                self.store(target, statement, base, self.index(target.slice, base, env), value, node, None)
            elif isinstance(base, TupleValue):
                self.find("B101", statement, "assignment to an element of a list")
            else:
                self.find("B101", statement, f"store to {ast.unparse(target)}, which is not a ref")
        elif isinstance(target, (ast.Tuple, ast.List)):
            self.bind_pattern(target, value, env)
        else:
            self.find("B101", statement, f"assignment to {ast.unparse(target)}")

    def named(self, name: str, value: Value) -> Value:
        """A static scalar assigned at the kernel's top level is known by its name from there on."""
        if isinstance(value, Scalar) and value.static and self.depth == 0 and value.text:
            bindings = self.resolver.scopes[self.model.kernel].bindings.get(name, ())
            if not value.text.isdigit() and len(bindings) == 1:
                terms = value.terms if value.terms == () else (name,)
                return Scalar(True, terms, name)
        return value

    def bind_pattern(self, target: ast.expr, value: Value, env: dict[str, Value]) -> None:
        if isinstance(target, ast.Name):
            env[target.id] = self.named(target.id, value)
            return
        if isinstance(target, ast.Starred):
            self.bind_pattern(target.value, Unknown("starred"), env)
            return
        if not isinstance(target, (ast.Tuple, ast.List)):
            return
        elements = target.elts
        starred = any(isinstance(e, ast.Starred) for e in elements)
        if isinstance(value, TupleValue) and len(value.items) == len(elements) and not starred:
            items = list(value.items)
        elif isinstance(value, ShapeOf) and not starred:
            self.model.ref_ranks[value.base] = len(elements)
            items = [
                Scalar(True, (f"{value.base}.shape[{i}]",), f"{value.base}.shape[{i}]")
                for i in range(len(elements))
            ]
        elif isinstance(value, Unknown) and value.why == "refs" and not starred:
            items = []
            for i, e in enumerate(elements):
                name = e.id if isinstance(e, ast.Name) else f"refs[{i}]"
                ref = RefValue(name, self.ref_dims.get(i))
                self.model.refs.append(ref)
                items.append(ref)
        else:
            items = [Unknown("unpacked") for _ in elements]
        for e, item in zip(elements, items):
            self.bind_pattern(e, item, env)

    # -- expressions ------------------------------------------------------------------------

    def eval(self, node: ast.expr, env: dict[str, Value]) -> Value:
        value = self._eval(node, env)
        self.model.values[node] = value
        self.evaluations[node] = self.evaluations.get(node, 0) + 1
        return value

    def _eval(self, node: ast.expr, env: dict[str, Value]) -> Value:
        match node:
            case ast.Constant(bool()):
                return Scalar(True, (UNKNOWN_FACTOR,), repr(node.value))
            case ast.Constant(int()):
                terms = () if node.value == 0 else (str(node.value),)
                return Scalar(True, terms, str(node.value))
            case ast.Constant():
                return Scalar(True, (UNKNOWN_FACTOR,), repr(node.value))
            case ast.Name():
                return self.name(node, env)
            case ast.Tuple(elts) | ast.List(elts):
                return TupleValue(tuple(self.eval(e, env) for e in elts))
            case ast.Attribute():
                return self.attribute(node, env)
            case ast.Subscript():
                return self.subscript(node, env)
            case ast.BinOp(left, op, right):
                if isinstance(op, ast.MatMult):
                    return self.dot(node, left, right, "@", env)
                return self.binary(
                    node, op, left, self.eval(left, env), right, self.eval(right, env)
                )
            case ast.UnaryOp(op, operand):
                return self.unary(node, op, operand, self.eval(operand, env))
            case ast.Compare():
                return self.compare(node, env)
            case ast.BoolOp(_, values):
                for v in values:
                    self.eval(v, env)
                return Scalar(all(isinstance(self.model.values[v], Scalar) for v in values))
            case ast.IfExp(test, body, orelse):
                self.eval(test, env)
                return self.join(self.eval(body, env), self.eval(orelse, env))
            case ast.Call():
                return self.call(node, env)
            case ast.Lambda():
                return FunctionValue(node, env)
            case ast.NamedExpr(target, value):
                result = self.eval(value, env)
                env[target.id] = self.named(target.id, result)
                return result
            case ast.Starred(value):
                return self.eval(value, env)
            case ast.JoinedStr() | ast.Dict() | ast.Set():
                return Unknown("literal")
            case ast.ListComp() | ast.GeneratorExp() | ast.DictComp() | ast.SetComp():
                self.find("B101", node, "a comprehension in a kernel", "write it as a loop")
                return Unknown("comprehension")
            case _:
                return Unknown(type(node).__name__)

    def name(self, node: ast.Name, env: dict[str, Value]) -> Value:
        if node.id in env:
            return env[node.id]
        target = self.resolver.value(node)
        if isinstance(target, (ast.FunctionDef, ast.Lambda)):
            return FunctionValue(target, {})
        if self.resolver.qualified(node):
            return Unknown("import")
        if isinstance(target, ast.Constant) and isinstance(target.value, int):
            return Scalar(True, () if target.value == 0 else (node.id,), node.id)
        return Scalar(True, (node.id,), node.id)

    def attribute(self, node: ast.Attribute, env: dict[str, Value]) -> Value:
        if self.resolver.qualified(node) and not self.is_local(node, env):
            return Unknown("import")
        base = self.eval(node.value, env)
        if isinstance(base, (RefValue, ViewValue)):
            ref = base if isinstance(base, RefValue) else base.ref
            match node.attr:
                case "shape":
                    if isinstance(base, ViewValue):
                        return ShapeOf(ast.unparse(node.value), None)
                    return ShapeOf(ref.name, ref.dims)
                case "at":
                    return base
                case "ndim":
                    return Scalar(True, (UNKNOWN_FACTOR,), f"{ref.name}.ndim")
            return Scalar(True, (UNKNOWN_FACTOR,), f"{ref.name}.{node.attr}")
        if isinstance(base, Array):
            match node.attr:
                case "shape":
                    return TupleValue(
                        tuple(Scalar(True, (d,), d) for d in base.dims)
                    ) if base.dims is not None else ShapeOf(ast.unparse(node.value), None)
                case "T":
                    return self.transpose(node, base)
                case "dtype" | "ndim":
                    return Scalar(True, (UNKNOWN_FACTOR,), "")
            return Unknown(node.attr)
        if isinstance(base, Scalar) and base.static:
            text = f"{base.text}.{node.attr}" if base.text else ""
            return Scalar(True, (text or UNKNOWN_FACTOR,), text)
        return Unknown(node.attr)

    def is_local(self, node: ast.expr, env: dict[str, Value]) -> bool:
        while isinstance(node, ast.Attribute):
            node = node.value
        return isinstance(node, ast.Name) and node.id in env

    def transpose(self, node: ast.expr, base: Array) -> Value:
        """A transposed array: the plan allows it as an operand of a product only."""
        self.model.calls.append((node, ".T"))
        dims = None if base.dims is None else base.dims[::-1]
        return Array(dims, self.tile(base.rank), kind=base.kind)

    def subscript(self, node: ast.Subscript, env: dict[str, Value]) -> Value:
        base = self.eval(node.value, env)
        if isinstance(base, (RefValue, ViewValue)):
            index = self.index(node.slice, base, env)
            if isinstance(node.value, ast.Attribute) and node.value.attr == "at":
                ref = base if isinstance(base, RefValue) else base.ref
                if isinstance(base, ViewValue):
                    self.find("B104", node, "a view of a view (.at[...].at[...])", "index once")
                return ViewValue(ref, index)
            return self.load(node, base, index, None, None, None)
        if isinstance(base, ShapeOf):
            item = self.eval(node.slice, env)
            if isinstance(item, Scalar) and item.static and item.text:
                text = item.text
                if base.dims is not None and text.lstrip("-").isdigit() and abs(int(text)) <= len(base.dims):
                    text = str(int(text) % len(base.dims)) if base.dims else text
                text = f"{base.base}.shape[{text}]"
                return Scalar(True, (text,), text)
            if isinstance(node.slice, ast.UnaryOp):
                text = f"{base.base}.shape[{ast.unparse(node.slice)}]"
                return Scalar(True, (text,), text)
            return Scalar(True)
        if isinstance(base, TupleValue):
            item = self.eval(node.slice, env)
            if isinstance(item, Scalar) and item.text.lstrip("-").isdigit():
                position = int(item.text)
                if -len(base.items) <= position < len(base.items):
                    return base.items[position]
            return Unknown("element")
        if isinstance(base, Array):
            return self.array_subscript(node, base, env)
        if isinstance(base, Scalar) and base.static:
            self.eval(node.slice, env)
            return Scalar(True, (UNKNOWN_FACTOR,), ast.unparse(node) if base.text else "")
        if isinstance(base, Unknown) and base.why == "refs":
            item = self.eval(node.slice, env)
            if isinstance(item, Scalar) and item.text.isdigit():
                ref = RefValue(ast.unparse(node), self.ref_dims.get(int(item.text)))
                self.model.refs.append(ref)
                return ref
        return Unknown("subscript")

    def array_subscript(self, node: ast.Subscript, base: Array, env: dict[str, Value]) -> Value:
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        is_none = [isinstance(p, ast.Constant) and p.value is None for p in parts]
        is_full = [
            isinstance(p, ast.Slice) and p.lower is None and p.upper is None and p.step is None
            for p in parts
        ]
        is_dots = [isinstance(p, ast.Constant) and p.value is Ellipsis for p in parts]
        if not all(n or f or d for n, f, d in zip(is_none, is_full, is_dots)) or sum(is_dots) > 1:
            self.find("B105", node, f"indexing of a register array: {ast.unparse(node)}",
                      "index the ref instead, in the load")
            return Unknown("register index")
        if base.thin_axis is not None:
            self.find("B105", node, "a second new axis on a thin array")
            return Unknown("new axis")
        if base.dims is None:  # one index beside one new axis: the array has rank 1
            ref = self.loaded_from(node.value)
            if len(parts) != 2 or sum(is_none) != 1 or ref is None:
                self.find("B105", node, f"a new axis on {ast.unparse(node.value)}, whose rank is not known")
                return Unknown("new axis")
            self.model.ref_ranks[ref.name] = 1
            base = dataclasses.replace(base, dims=(f"{ref.name}.shape[0]",))
            base.tile.find().rank = 1
        dims: list[str] = []
        rest = list(base.dims)
        for none, dots in zip(is_none, is_dots):
            if none:
                dims.append("1")
            elif dots:
                keep = len(rest) - sum(is_full)
                dims += [rest.pop(0) for _ in range(keep)]
            else:
                dims.append(rest.pop(0))
        dims += rest
        if not any(is_none):
            return base
        if len(base.dims) != 1 or len(dims) != 2:
            self.find("B105", node, f"a new axis that makes an array of rank {len(dims)}")
            return Unknown("new axis")
        axis = dims.index(base.dims[0]) if base.dims[0] != "1" else 0
        axis = 0 if dims[1] == "1" and not is_none[0] else 1
        self.model.strips.setdefault(node, Strip(node))
        return dataclasses.replace(
            base, dims=tuple(dims), thin_axis=axis, axis_from_end=1 - axis,
            mask=self.shift(base.mask, 1 - axis),
        )

    def loaded_from(self, node: ast.expr) -> RefValue | None:
        """The ref that ``node`` loads, if it is a load."""
        return next((a.ref for a in self.model.accesses if a.node is node and a.kind == "load"), None)

    def shift(self, mask: tuple[MaskTerm, ...] | None, by: int) -> tuple[MaskTerm, ...] | None:
        if mask is None:
            return None
        return tuple(dataclasses.replace(t, axis_from_end=t.axis_from_end + by) for t in mask)

    # -- operators --------------------------------------------------------------------------

    def unary(self, node: ast.expr, op: ast.unaryop, operand: ast.expr, value: Value) -> Value:
        if isinstance(value, Scalar):
            text = f"{'-' if isinstance(op, ast.USub) else ''}{value.text}"
            if isinstance(op, ast.USub):
                return Scalar(value.static, value.terms, text if value.text else "")
            return Scalar(value.static, (UNKNOWN_FACTOR,), ast.unparse(node) if value.text else "")
        if isinstance(value, Array):
            if isinstance(op, ast.Invert) and value.kind == "bool":
                self.model.calls.append((node, "~bool"))
            return dataclasses.replace(value, run=None, mask=None)
        return value

    def binary(
        self, node: ast.AST, op: ast.operator, left: ast.expr, a: Value, right: ast.expr, b: Value
    ) -> Value:
        if isinstance(op, ast.Div):
            self.division(node, left, right)
        if isinstance(a, Scalar) and isinstance(b, Scalar):
            return self.scalar_binary(node, op, a, b)
        if isinstance(a, TupleValue) and isinstance(b, TupleValue) and isinstance(op, ast.Add):
            return TupleValue(a.items + b.items)
        if isinstance(a, (RefValue, ViewValue)) or isinstance(b, (RefValue, ViewValue)):
            return Unknown("arithmetic on a ref")
        if isinstance(op, ast.Pow):
            self.power(node, a, b, right)
        if isinstance(op, (ast.FloorDiv, ast.Mod)) and any(isinstance(v, Array) and v.kind == "float" for v in (a, b)):
            self.find("B120", node, f"{ast.unparse(node)[:60]}: Mosaic GPU has no rule for {'floor' if isinstance(op, ast.FloorDiv) else 'rem'} of floats")
        result = self.elementwise(node, [(left, a), (right, b)])
        if not isinstance(result, Array):
            return result
        run = mask = None
        start = ""
        arrays = [v for v in (a, b) if isinstance(v, Array)]
        scalars = [v for v in (a, b) if isinstance(v, Scalar)]
        if isinstance(op, (ast.Add, ast.Sub)) and len(arrays) == 1 and scalars:
            forward = isinstance(op, ast.Add) or arrays[0] is a
            if arrays[0].run is not None and forward:
                run = arrays[0].run + scalars[0].terms
                start = _sum(arrays[0].start, scalars[0].expr)
        if isinstance(op, ast.BitAnd) and len(arrays) == 2:
            if arrays[0].mask is not None and arrays[1].mask is not None:
                mask = arrays[0].mask + arrays[1].mask
        kind = "float" if isinstance(op, ast.Div) else result.kind
        axis = arrays[0].axis_from_end if len(arrays) == 1 else result.axis_from_end
        return dataclasses.replace(result, run=run, start=start, mask=mask, kind=kind, axis_from_end=axis)

    def scalar_binary(self, node: ast.AST, op: ast.operator, a: Scalar, b: Scalar) -> Scalar:
        static = a.static and b.static
        symbol = {
            ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.FloorDiv: "//", ast.Mod: "%",
            ast.Div: "/", ast.Pow: "**",
        }.get(type(op))
        text = ""
        if a.text and b.text and symbol:
            text = f"{_wrap(a.text)} {symbol} {_wrap(b.text)}"
        terms: tuple[str, ...] = (UNKNOWN_FACTOR,)
        if isinstance(op, (ast.Add, ast.Sub)):
            terms = tuple(dict.fromkeys(a.terms + b.terms))
        elif isinstance(op, ast.Mult):
            if a.terms == () or b.terms == ():
                terms = ()
            elif static and text:
                terms = (text,)
            elif b.static and b.text:
                terms = (b.text,)
            elif a.static and a.text:
                terms = (a.text,)
        elif static and text:
            terms = (text,)
        expr = f"{_wrap(a.expr)} {symbol} {_wrap(b.expr)}" if a.expr and b.expr and symbol else ""
        return Scalar(static, terms, text if static else "", expr)

    def division(self, node: ast.AST, left: ast.expr, right: ast.expr) -> None:
        if not (isinstance(right, ast.Call) and isinstance(node, ast.BinOp)):
            return
        for i, root in enumerate(self.model.square_roots):
            if root.call is right and root.form == "plain":
                one = isinstance(left, ast.Constant) and left.value == 1
                self.model.square_roots[i] = SquareRoot(node, right, "reciprocal" if one else "quotient")

    def power(self, node: ast.AST, a: Value, b: Value, exponent: ast.expr) -> None:
        integer = isinstance(exponent, ast.Constant) and isinstance(exponent.value, int)
        if isinstance(exponent, ast.UnaryOp) and isinstance(exponent.operand, ast.Constant):
            integer = isinstance(exponent.operand.value, int)
        if isinstance(a, Array) or isinstance(b, Array):
            self.model.calls.append((node, "integer_pow" if integer else "pow"))

    def compare(self, node: ast.Compare, env: dict[str, Value]) -> Value:
        values = [self.eval(v, env) for v in (node.left, *node.comparators)]
        nodes = [node.left, *node.comparators]
        if not any(isinstance(v, Array) for v in values):
            return Scalar(all(isinstance(v, Scalar) and v.static for v in values))
        if len(node.ops) > 1:
            self.find("B101", node, "a chained comparison of arrays")
            return Unknown("chained comparison")
        result = self.elementwise(node, list(zip(nodes, values)))
        if not isinstance(result, Array):
            return result
        mask: tuple[MaskTerm, ...] | None = None
        arrays = [v for v in values if isinstance(v, Array)]
        scalars = [v for v in values if isinstance(v, Scalar)]
        if len(arrays) == 1 and scalars and arrays[0].run is not None:
            exact = isinstance(node.ops[0], (ast.Lt, ast.GtE) if values[0] is arrays[0] else (ast.Gt, ast.LtE))
            divisors = arrays[0].run + scalars[0].terms if exact else None
            less = isinstance(node.ops[0], ast.Lt if values[0] is arrays[0] else ast.Gt)
            bound = scalars[0].expr if less else ""
            mask = (MaskTerm(arrays[0].axis_from_end, divisors, arrays[0].start, bound),)
        elif arrays and all(a.thin_axis is not None or a.rank == 1 for a in arrays):
            axes = {a.axis_from_end for a in arrays}
            if len(axes) == 1:
                mask = (MaskTerm(axes.pop(), None),)
        return dataclasses.replace(result, kind="bool", run=None, mask=mask)

    def elementwise(self, node: ast.AST, operands: list[tuple[ast.expr, Value]]) -> Value:
        """Broadcasts operands as numpy does and records which thin arrays need expanding."""
        arrays = [(n, v) for n, v in operands if isinstance(v, Array)]
        if not arrays:
            static = all(isinstance(v, Scalar) and v.static for _, v in operands)
            if all(isinstance(v, Scalar) for _, v in operands):
                return Scalar(static)
            return Unknown("operands")
        kind = next((v.kind for _, v in arrays if v.kind == "float"), arrays[0][1].kind)
        if any(v.dims is None for _, v in arrays):
            return self.elementwise_unranked(node, operands, kind)
        rank = max(len(v.dims) for _, v in arrays)  # type: ignore[arg-type]
        dims = ["1"] * rank
        for _, v in arrays:
            for offset, d in enumerate(reversed(v.dims)):  # type: ignore[arg-type]
                if dims[-1 - offset] == "1":
                    dims[-1 - offset] = d
        thin = [(n, v) for n, v in arrays if v.thin_axis is not None]
        same_thin = {v.thin_axis for _, v in thin}
        if thin and len(thin) == len(arrays) and len(same_thin) == 1:
            first = thin[0][1]
            for _, v in thin[1:]:
                first.tile.unify(v.tile)
            return Array(tuple(dims), first.tile, thin_axis=first.thin_axis, kind=kind,
                         axis_from_end=first.axis_from_end)
        full = [v for _, v in arrays if v.thin_axis is None and len(v.dims) == rank]  # type: ignore[arg-type]
        tile = full[0].tile if full else self.tile(rank)
        for v in full[1:]:
            tile.unify(v.tile)
        for n, v in arrays:
            if v.thin_axis is not None:
                self.expand(n, v, tile, rank)
            elif v.rank == 1 and rank == 2:
                v.tile.vary(tile, 1)
        return Array(tuple(dims), tile, kind=kind,
                     axis_from_end=full[0].axis_from_end if len(full) == 1 else 0)

    def elementwise_unranked(self, node: ast.AST, operands: list[tuple[ast.expr, Value]], kind: str) -> Value:
        """Arrays of unknown rank are taken to have the rank of what they meet (or be scalars)."""
        ranked = [(n, v) for n, v in operands if not (isinstance(v, Array) and v.dims is None)]
        unranked = [v for _, v in operands if isinstance(v, Array) and v.dims is None]
        known = self.elementwise(node, ranked) if any(isinstance(v, Array) for _, v in ranked) else None
        first = known if isinstance(known, Array) else unranked[0]
        for v in unranked:
            if v is not first:
                first.tile.unify(v.tile)
        return dataclasses.replace(first, kind=kind, run=None, mask=None)

    def expand(self, node: ast.expr, value: Array, tile: Tile, rank: int) -> None:
        assert value.thin_axis is not None
        value.tile.vary(tile, value.thin_axis)
        if node in self.model.strips:
            del self.model.strips[node]
        self.expansions[node] = self.expansions.get(node, 0) + 1
        old = self.model.expands.setdefault(node, Expand(node, value.thin_axis, rank))
        if old.axis != value.thin_axis:
            self.find("B105", node, f"{ast.unparse(node)[:40]} runs along rows in one call and along columns in another",
                      "write one helper for each shape")

    # -- refs -------------------------------------------------------------------------------

    def index(self, node: ast.expr, base: RefValue | ViewValue, env: dict[str, Value]) -> tuple[Index, ...]:
        """The index of each dimension named; () for ``...`` (the whole ref)."""
        value: ast.AST = node
        if isinstance(node, ast.Name) and isinstance(env.get(node.id), TupleValue):
            value = self.resolver.value(node)
            if not isinstance(value, ast.Tuple):
                self.find("B104", node, "an index tuple that is not written out in the kernel")
                return (Index("gather"),)
        parts = value.elts if isinstance(value, ast.Tuple) else [value]
        if len(parts) == 1 and isinstance(parts[0], ast.Constant) and parts[0].value is Ellipsis:
            return ()
        result = []
        ref = base if isinstance(base, RefValue) else base.ref
        for i, p in enumerate(parts):
            if isinstance(p, ast.Slice):
                result.append(self.slice_index(p, ref, i, env))
            elif isinstance(p, ast.Constant) and p.value is Ellipsis:
                if i == len(parts) - 1:
                    break
                self.find("B104", node, "an ellipsis before other indices")
                result.append(Index("gather"))
            elif value is not node:  # a tuple held in a variable was evaluated where it is made
                result.append(self.one_index(p, self.model.values[p]))
            else:
                result.append(self.one_index(p, self.eval(p, env)))
        arrays = [
            (p, ix.value) for p, ix in zip(parts, result)
            if isinstance(ix.value, Array) and ix.value.rank == 2
        ]
        if arrays:
            self.elementwise(node, arrays)  # index vectors broadcast together
        return tuple(result)

    def slice_index(self, node: ast.Slice, ref: RefValue, i: int, env: dict[str, Value]) -> Index:
        if node.lower is None and node.upper is None and node.step is None:
            return Index("full", (), f"{ref.name}.shape[{i}]")
        lower = self.eval(node.lower, env) if node.lower is not None else Scalar(True, (), "0")
        upper = self.eval(node.upper, env) if node.upper is not None else Scalar(
            True, (f"{ref.name}.shape[{i}]",), f"{ref.name}.shape[{i}]"
        )
        if node.step is not None or not (isinstance(lower, Scalar) and isinstance(upper, Scalar)):
            self.find("B104", node, f"the slice {ast.unparse(node)}", "use pl.ds(start, size)")
            return Index("gather")
        size = upper.text if lower.terms == () else f"{_wrap(upper.text)} - {_wrap(lower.text)}"
        known = upper.text and (lower.text or lower.terms == ())
        return Index("slice", lower.terms, size if known else "", start=lower.expr)

    def one_index(self, node: ast.expr | None, value: Value) -> Index:
        if isinstance(value, SliceValue):
            if value.full:
                return Index("full", (), value.size, value)
            kind = "slice" if value.stride == 1 else "strided"
            return Index(kind, value.start.terms, value.size, value, value.start.expr)
        if isinstance(value, Scalar):
            return Index("scalar", value.terms, "", value, value.expr)
        if isinstance(value, Array):
            real = value.dims[value.thin_axis or 0] if value.dims else ""
            if value.run is not None:
                return Index("run", value.run, real, value, value.start)
            return Index("gather", (), real, value)
        return Index("gather", (), "", value)

    def access_shape(
        self, ref: RefValue, index: tuple[Index, ...]
    ) -> tuple[tuple[str, ...] | None, Tile | None, tuple[str, ...] | None]:
        """(dims, tile, divisors) of an access; tile None for a scalar."""
        rest: list[Index] = []
        if ref.dims is not None:
            rest = [Index("full", (), f"{ref.name}.shape[{i}]") for i in range(len(index), len(ref.dims))]
        elif not index:
            tile = self.tile(None, f"{ref.name}.shape")
            return None, tile, (f"{ref.name}.shape[-1]",)
        dims_index = [*index, *rest]
        vectors = [ix for ix in dims_index if isinstance(ix.value, Array)]
        if not vectors:
            kept = [ix for ix in dims_index if ix.kind != "scalar"]
            if not kept:
                return (), None, None
            dims = tuple(ix.size for ix in kept)
            last = dims_index[-1]
            divisors = None
            if last.kind in ("slice", "full") and last.size:
                divisors = (*last.terms, last.size)
            return dims, self.tile(len(dims), _tuple_text(dims)), divisors
        # Index vectors broadcast together; slices beside them make an outer product, which the
        # support functions do not build.
        others = [ix for ix in dims_index if ix.value is None or isinstance(ix.value, SliceValue)]
        arrays = [ix.value for ix in vectors]
        if others:
            return None, self.tile(None), None
        rank = max(a.rank or 1 for a in arrays)  # type: ignore[union-attr]
        result: Array = arrays[0]  # type: ignore[assignment]
        if rank == 1:
            for a in arrays[1:]:
                result.tile.unify(a.tile)  # type: ignore[union-attr]
            dims, tile = result.dims, result.tile
        else:
            out = ["1", "1"]
            for a in arrays:
                for k, d in enumerate(a.dims or ()):  # type: ignore[union-attr]
                    if d != "1":
                        out[k] = d
            dims = tuple(out)
            full = [a for a in arrays if a.thin_axis is None and a.rank == 2]  # type: ignore[union-attr]
            tile = full[0].tile if full else self.tile(2)  # type: ignore[union-attr]
            for a in arrays:
                if a.thin_axis is not None:  # type: ignore[union-attr]
                    a.tile.vary(tile, a.thin_axis)  # type: ignore[union-attr]
                elif a.rank == 2:  # type: ignore[union-attr]
                    tile.unify(a.tile)  # type: ignore[union-attr]
        root = tile.find()
        root.shape_text = root.shape_text or _tuple_text(dims or ())
        last_index = dims_index[-1]
        divisors = None
        if last_index.kind == "run" and last_index.value.axis_from_end == 0 and all(  # type: ignore[union-attr]
            ix.kind == "scalar" or (isinstance(ix.value, Array) and ix.value.axis_from_end == 1
                                    and ix.value.thin_axis == 0)
            or ix is last_index
            for ix in dims_index
        ):
            divisors = (*last_index.terms, last_index.size)
        return dims, tile, divisors

    def load(
        self, node: ast.AST, base: RefValue | ViewValue, index: tuple[Index, ...],
        mask: ast.expr | None, mask_value: Value | None, other: Value | None, eviction: bool = False,
        other_node: ast.expr | None = None,
    ) -> Value:
        ref = base if isinstance(base, RefValue) else base.ref
        index = index if isinstance(base, RefValue) else base.index + index
        dims, tile, divisors = self.access_shape(ref, index)
        if tile is None:
            if mask is not None:
                self.find("B106", node, "a masked load of one element", "use jnp.where on its index")
            self.record(Access("load", node, None, ref, index, (), None, None))
            return Scalar()
        divisors = self.apply_mask(node, mask, mask_value, tile, divisors)
        if isinstance(other, Array):
            tile.unify(other.tile)
        root = tile.find()
        root.anchored = True
        self.record(Access("load", node, None, ref, index, dims, tile, divisors, mask, eviction=eviction,
                           mask_value=mask_value, other=other_node))
        return Array(dims, tile)

    def store(
        self, node: ast.AST, statement: ast.stmt | None, base: RefValue | ViewValue,
        index: tuple[Index, ...], value: Value, value_node: ast.expr, mask: ast.expr | None,
        mask_value: Value | None = None,
    ) -> None:
        ref = base if isinstance(base, RefValue) else base.ref
        index = index if isinstance(base, RefValue) else base.index + index
        dims, tile, divisors = self.access_shape(ref, index)
        if isinstance(value, Scalar) and dims is None and not index:
            tile = None  # a number stored into a whole ref of unknown rank: only rank 0 makes sense
        if tile is None:
            if mask is not None:
                self.find("B106", node, "a masked store of one element", "use pl.when")
            if isinstance(value, Array):
                self.find("B106", node, "a store of an array into one element")
            self.record(Access("store", node, statement, ref, index, (), None, None, mask, value_node))
            return
        if isinstance(value, Array):
            if value.thin_axis is not None:
                self.find("B107", value_node, "a store of an array with a dimension of extent 1",
                          "store it without that dimension")
            elif value.rank is None or dims is None or len(dims) == value.rank:
                value.tile.unify(tile)
        elif isinstance(value, Scalar):
            self.find("B108", value_node, "a scalar stored into a whole tile", "use jnp.full")
        divisors = self.apply_mask(node, mask, mask_value, tile, divisors)
        tile.find().anchored = True
        self.record(Access("store", node, statement, ref, index, dims, tile, divisors, mask, value_node,
                           mask_value=mask_value))

    def apply_mask(
        self, node: ast.AST, mask: ast.expr | None, value: Value | None, tile: Tile,
        divisors: tuple[str, ...] | None,
    ) -> tuple[str, ...] | None:
        """Unifies the mask's layout with the tile's and adds what its bounds demand."""
        if mask is None or value is None:
            return divisors
        if isinstance(value, Scalar):
            return divisors
        if not isinstance(value, Array):
            return None
        rank = tile.find().rank
        if value.thin_axis is not None and rank == 2:
            self.expand(mask, value, tile, 2)
        elif value.rank == 1 and rank == 2:
            value.tile.vary(tile, 1)
        else:
            tile.unify(value.tile)
        if value.mask is None or divisors is None:
            return None
        for term in value.mask:
            if term.axis_from_end == 0:
                if term.divisors is None:
                    return None
                divisors += term.divisors
        return divisors

    def record(self, access: Access) -> None:
        """A node met twice (a helper called twice) must mean the same both times."""
        for old in self.model.accesses:
            if old.node is access.node:
                if old.ref is not access.ref or (old.tile is None) != (access.tile is None):
                    self.find("B109", access.node, "a load or store in a helper that is called for different refs")
                elif old.tile is not None and access.tile is not None:
                    old.tile.unify(access.tile)
                return
        self.model.accesses.append(access)

    # -- calls ------------------------------------------------------------------------------

    def call_name(self, node: ast.AST) -> str | None:
        return self.resolver.qualified(node.func) if isinstance(node, ast.Call) else None

    def call(self, node: ast.Call, env: dict[str, Value]) -> Value:
        name = None if self.is_local(node.func, env) else self.resolver.qualified(node.func)
        if name is not None:
            return self.library_call(node, name, env)
        if isinstance(node.func, ast.Name) and node.func.id not in env:
            if self.resolver.scope_of(node).find(node.func.id) is None:
                return self.builtin(node, node.func.id, env)
        if isinstance(node.func, ast.Attribute):
            base = self.eval(node.func.value, env)
            if isinstance(base, (Array, Scalar, RefValue)):
                return self.method(node, base, node.func, env)
        function = self.eval(node.func, env)
        args = [self.eval(a, env) for a in node.args]
        keywords = {k.arg: self.eval(k.value, env) for k in node.keywords if k.arg}
        if isinstance(function, FunctionValue):
            return self.call_function(function, args, keywords, node, node.args)
        if isinstance(function, Scalar) and function.static:
            # A callable passed into the kernel (an activation): assumed elementwise, said so.
            self.find("N203", node, f"{ast.unparse(node.func)} is passed into the kernel and was not followed",
                      "check that it uses only what Mosaic GPU lowers")
            return self.elementwise(node, list(zip(node.args, args)))
        return Unknown(ast.unparse(node.func))

    def call_function(
        self, function: FunctionValue, args: list[Value], keywords: dict[str, Value],
        node: ast.AST, arg_nodes: list[ast.expr] | None = None,
    ) -> Value:
        target: FunctionNode = function.node  # type: ignore[assignment]
        self.model.functions.add(target)
        if self.depth > 12:
            self.find("B102", node, "recursion in a kernel")
            return Unknown("recursion")
        env = dict(function.env)
        params = [*target.args.posonlyargs, *target.args.args]
        defaults = target.args.defaults
        for p, d in zip(params[len(params) - len(defaults):], defaults):
            env[p.arg] = self.eval(d, function.env)
        for p, d in zip(target.args.kwonlyargs, target.args.kw_defaults):
            if d is not None:
                env[p.arg] = self.eval(d, function.env)
        for p, v in zip(params, args):
            env[p.arg] = v
        if target.args.vararg is not None:
            env[target.args.vararg.arg] = TupleValue(tuple(args[len(params):]))
        elif len(args) > len(params):
            return Unknown("arguments")
        env.update(function.bound)
        env.update(keywords)
        self.depth += 1
        try:
            if isinstance(target, ast.Lambda):
                return self.eval(target.body, env)
            returns: list[Value] = []
            self.block(target.body, env, returns)
        finally:
            self.depth -= 1
        if not returns:
            return TupleValue(())
        result = returns[0]
        for other in returns[1:]:
            result = self.join(result, other)
        return result

    def builtin(self, node: ast.Call, name: str, env: dict[str, Value]) -> Value:
        values = [self.eval(a, env) for a in node.args]
        for k in node.keywords:
            self.eval(k.value, env)
        if name in _STATIC_BUILTINS:
            if name in ("min", "max", "abs") and any(isinstance(v, Array) for v in values):
                return self.elementwise(node, list(zip(node.args, values)))
            return self.static_call(node, values)
        if name == "slice":
            return self.slice_value(values)
        if name in ("zip", "enumerate", "range", "print", "isinstance", "getattr", "tuple", "list"):
            if name in ("tuple", "list") and values and isinstance(values[0], TupleValue):
                return values[0]
            return Unknown(name)
        self.find("B110", node, f"a call of {name}, which is not known")
        return Unknown(name)

    def static_call(self, node: ast.Call, values: list[Value]) -> Value:
        if all(isinstance(v, Scalar) for v in values):
            static = all(v.static for v in values)  # type: ignore[union-attr]
            text = ""
            if all(v.text for v in values) and not node.keywords:  # type: ignore[union-attr]
                text = f"{ast.unparse(node.func)}({', '.join(v.text for v in values)})"  # type: ignore[union-attr]
            return Scalar(static, (text,) if static and text else (UNKNOWN_FACTOR,), text if static else "")
        return Scalar(True)

    def slice_value(self, values: list[Value]) -> Value:
        if len(values) == 1 and isinstance(values[0], Scalar) and values[0].text == "None":
            return SliceValue(Scalar(True, (), "0"), "", full=True)
        if len(values) == 2 and all(isinstance(v, Scalar) for v in values):
            start, stop = values
            size = stop.text if start.terms == () else f"{_wrap(stop.text)} - {_wrap(start.text)}"  # type: ignore[union-attr]
            return SliceValue(start, size)  # type: ignore[arg-type]
        return Unknown("slice")

    def library_call(self, node: ast.Call, name: str, env: dict[str, Value]) -> Value:
        short = name.rpartition(".")[2]
        if name in (f"{PALLAS}.program_id", f"{PALLAS}.num_programs"):
            return self.grid_query(node, short == "num_programs", env)
        if name == f"{TRITON}.load":
            return self.load_call(node, env)
        if name == f"{TRITON}.store":
            return self.store_call(node, env)
        if name == f"{PALLAS}.ds":
            return self.ds(node, env)
        if name in (f"{PALLAS}.multiple_of", f"{TRITON}.max_contiguous"):
            return self.eval(node.args[0], env)
        if name in _DOTS:
            return self.dot(node, node.args[0] if node.args else node, node.args[1] if len(node.args) > 1 else node, name, env)
        if name == "jax.lax.fori_loop":
            return self.fori_loop(node, env)
        if name == "jax.lax.while_loop":
            return self.while_loop(node, env)
        if name == "jax.lax.cond":
            return self.cond(node, env)
        if name.startswith("functools.partial"):
            inner = self.eval(node.args[0], env)
            bound = {k.arg: self.eval(k.value, env) for k in node.keywords if k.arg}
            if isinstance(inner, FunctionValue):
                positional = [self.eval(a, env) for a in node.args[1:]]
                params = [p.arg for p in inner.node.args.args]  # type: ignore[attr-defined]
                bound |= dict(zip(params, positional))
                return FunctionValue(inner.node, inner.env, inner.bound | bound)
            return Unknown("partial")
        if name in _STATIC_CALLS:
            return self.static_call(node, [self.eval(a, env) for a in node.args])
        if name == f"{PALLAS}.debug_print" or name == "jax.debug.print":
            for a in node.args:
                self.eval(a, env)
            return TupleValue(())
        if name.startswith((PALLAS, TRITON)) and short not in ("approx_tanh",):
            for a in node.args:
                self.eval(a, env)
            self.find("B110", node, f"{short} has no rewrite yet")
            return Unknown(short)
        if not name.startswith(("jax.numpy", "jax.lax", "jax.nn", "jax.scipy", "numpy")):
            self.find("B110", node, f"a call of {name}, whose source is not in this file",
                      "record facts with --example, or move the helper into this file")
            for a in node.args:
                self.eval(a, env)
            return Unknown(name)
        return self.array_call(node, name, short, env)

    def array_call(self, node: ast.Call, name: str, short: str, env: dict[str, Value]) -> Value:
        keywords = {k.arg: k.value for k in node.keywords if k.arg}
        if short == "arange":
            return self.arange(node, env)
        if short == "iota":
            size = self.eval(node.args[1], env) if len(node.args) > 1 else Unknown()
            dim = size.text if isinstance(size, Scalar) else ""
            return Array((dim,), self.tile(1, _tuple_text((dim,))), run=(), kind="int", start="0")
        if short == "broadcasted_iota":
            return self.broadcasted_iota(node, env)
        if short in _CREATION:
            dims = self.shape_argument(node.args[0] if node.args else keywords.get("shape"), env)
            for a in node.args[1:]:
                self.eval(a, env)
            if dims == ():
                return Scalar()
            return Array(dims, self.tile(None if dims is None else len(dims), _tuple_text(dims or ())))
        if short in _LIKE:
            value = self.eval(node.args[0], env)
            if isinstance(value, Array):
                return Array(value.dims, value.tile, thin_axis=value.thin_axis, axis_from_end=value.axis_from_end)
            if isinstance(value, RefValue):
                return Array(value.dims, self.tile(value.dims and len(value.dims), f"{value.name}.shape"))
            return Scalar()
        if short in _FLOAT_REDUCTIONS or short in ("argmax", "argmin", "var", "std", "logsumexp"):
            if name.startswith(("jax.numpy", "jax.nn", "jax.scipy")) and node.args:
                value = self.eval(node.args[0], env)
                return self.reduction(node, short, node.args[0], value, node.args[1:], keywords, env)
        if short in ("broadcast_to", "broadcast_in_dim"):
            return self.broadcast(node, short, env)
        if short == "expand_dims":
            return self.expand_dims(node, env)
        if short == "astype":
            return self.eval(node.args[0], env)
        args = [self.eval(a, env) for a in node.args]
        for k in node.keywords:
            self.eval(k.value, env)
        if name in ("jax.lax.axis_index", "jax.lax.axis_size"):
            return Scalar()
        if short in ("float32", "float16", "bfloat16", "int32", "int64", "uint32", "bool_", "int8"):
            return args[0] if args else Unknown(short)
        if short == "finfo" or short == "iinfo" or short == "dtype":
            return Scalar(True, (UNKNOWN_FACTOR,), ast.unparse(node))
        if any(isinstance(a, Array) for a in args):
            if short == "sqrt":
                self.model.square_roots.append(SquareRoot(node, node, "plain"))
            else:
                self.model.calls.append((node, name))
        elif short == "sqrt" and args and isinstance(args[0], Scalar) and not args[0].static:
            self.model.square_roots.append(SquareRoot(node, node, "plain"))
        elif args and any(isinstance(a, Scalar) and not a.static for a in args):
            self.model.calls.append((node, name))
        if short in ("transpose", "reshape", "concatenate", "stack", "split", "cumsum", "cumprod", "cummax",
                     "take", "sort", "flip", "roll", "squeeze", "ravel", "swapaxes", "dynamic_slice"):
            if not any(c[0] is node for c in self.model.calls):
                self.model.calls.append((node, name))
            value = args[0] if args else Unknown()
            if isinstance(value, Array):
                if short in ("cumsum", "cumprod", "cummax"):
                    return value
                if short in ("transpose", "swapaxes"):
                    return self.transpose(node, value)
            self.find("B105", node, f"{short} of register arrays")
            return Unknown(short)
        result = self.elementwise(node, list(zip(node.args, args)))
        if isinstance(result, Array):
            mask = None
            if short == "logical_and":
                masks = [a.mask for a in args if isinstance(a, Array)]
                if len(masks) == 2 and None not in masks:
                    mask = masks[0] + masks[1]  # type: ignore[operator]
            kind = "bool" if short in ("logical_and", "logical_or", "logical_not", "isfinite", "isnan", "less") else result.kind
            result = dataclasses.replace(result, mask=mask, kind=kind)
        return result

    def arange(self, node: ast.Call, env: dict[str, Value]) -> Value:
        values = [self.eval(a, env) for a in node.args]
        if len(values) == 1 and isinstance(values[0], Scalar) and values[0].text:
            dim = values[0].text
            return Array((dim,), self.tile(1, _tuple_text((dim,))), run=(), kind="int", start="0")
        if len(values) == 2 and all(isinstance(v, Scalar) and v.static and v.text for v in values):
            start, stop = values
            dim = stop.text if start.terms == () else f"{_wrap(stop.text)} - {_wrap(start.text)}"  # type: ignore[union-attr]
            self.find("B111", node, "arange with a start", "write start + jnp.arange(size)") if start.terms else None  # type: ignore[union-attr]
            return Array((dim,), self.tile(1, _tuple_text((dim,))), run=start.terms, kind="int")  # type: ignore[union-attr]
        self.find("B111", node, f"{ast.unparse(node)}: its extent is not known", "use jnp.arange(size)")
        return Unknown("arange")

    def broadcasted_iota(self, node: ast.Call, env: dict[str, Value]) -> Value:
        args = {"dtype": None, "shape": None, "dimension": None} | dict(
            zip(("dtype", "shape", "dimension"), node.args)
        ) | {k.arg: k.value for k in node.keywords}
        dims = self.shape_argument(args["shape"], env)
        axis = self.eval(args["dimension"], env) if args["dimension"] is not None else Unknown()
        if dims is None or not isinstance(axis, Scalar) or not axis.text.isdigit():
            return Unknown("broadcasted_iota")
        from_end = len(dims) - 1 - int(axis.text)
        return Array(dims, self.tile(len(dims), _tuple_text(dims)), run=(), kind="int", start="0", axis_from_end=from_end)

    def shape_argument(self, node: ast.expr | None, env: dict[str, Value]) -> tuple[str, ...] | None:
        if node is None:
            return None
        value = self.eval(node, env)
        if isinstance(value, Scalar):
            return (value.text,) if value.text else None
        if isinstance(value, ShapeOf):
            return value.dims if value.dims is not None else None
        if isinstance(value, TupleValue):
            dims = tuple(v.text if isinstance(v, Scalar) else "" for v in value.items)
            return dims if all(dims) else None
        return None

    def reduction(
        self, node: ast.Call, operation: str, operand: ast.expr, value: Value,
        positional: list[ast.expr], keywords: dict[str, ast.expr], env: dict[str, Value],
    ) -> Value:
        axis_node = positional[0] if positional else keywords.get("axis")
        keep = keywords.get("keepdims")
        keepdims = isinstance(keep, ast.Constant) and keep.value is True
        if not isinstance(value, Array):
            return value
        for k, v in keywords.items():
            if k not in ("axis", "keepdims", "dtype") or k == "keepdims" and not isinstance(v, ast.Constant):
                self.find("B112", node, f"a reduction with {k}={ast.unparse(v)}")
        if len(positional) > 1:
            self.find("B112", node, "a reduction with several positional arguments", "name them")
        axis: int | None = None
        if axis_node is not None and not (isinstance(axis_node, ast.Constant) and axis_node.value is None):
            axis_value = self.eval(axis_node, env)
            if not (isinstance(axis_value, Scalar) and axis_value.text.lstrip("-").isdigit()):
                self.find("B112", node, f"a reduction over axis {ast.unparse(axis_node)}", "give one literal axis")
                return Unknown("axis")
            axis = int(axis_value.text)
        rank = value.rank
        if axis is not None and axis < 0:
            if rank is None:
                self.find("B112", node, "a reduction of an array whose rank is not known")
                return Unknown("axis")
            axis += rank
        if value.thin_axis is not None:
            if axis != value.thin_axis:
                self.find("B112", node, "a reduction over a dimension of extent 1")
                return Unknown("thin")
            rank, axis = 1, 0
        for other in self.model.reductions:
            if other.node is node and (other.axis, other.rank) != (axis, rank):
                self.find("B112", node, "a reduction of arrays of different shapes in a helper", "write one helper for each shape")
        self.model.reductions.append(
            Reduction(node, operation, axis, rank, keepdims, operand, value.tile)
        )
        if axis is None or rank == 1 and not keepdims:
            return Scalar()
        if rank is None or value.dims is None:
            self.find("B112", node, "a reduction of an array whose rank is not known")
            return Unknown("axis")
        if rank == 1:
            self.find("B112", node, "keepdims on an array of rank 1", "drop keepdims")
            return Unknown("thin")
        if rank != 2:
            self.find("B112", node, f"a reduction of an array of rank {rank}")
            return Unknown("rank")
        kept = 1 - axis
        tile = self.tile(1)
        tile.vary(value.tile, kept)
        if keepdims:
            dims = tuple("1" if k == axis else d for k, d in enumerate(value.dims))
            return Array(dims, tile, thin_axis=kept, kind=value.kind, axis_from_end=1 - kept)
        return Array((value.dims[kept],), tile, kind=value.kind)

    def broadcast(self, node: ast.Call, short: str, env: dict[str, Value]) -> Value:
        value = self.eval(node.args[0], env)
        dims = self.shape_argument(node.args[1] if len(node.args) > 1 else None, env)
        if isinstance(value, Scalar):
            return Array(dims, self.tile(dims and len(dims), _tuple_text(dims or ()))) if dims else Unknown()
        if not isinstance(value, Array) or dims is None:
            return Unknown("broadcast")
        tile = self.tile(len(dims), _tuple_text(dims))
        if value.thin_axis is not None:
            self.expand(node.args[0], value, tile, len(dims))
        elif value.rank == len(dims):
            tile.unify(value.tile)
        elif value.rank == 1 and len(dims) == 2:
            axis = 1
            if short == "broadcast_in_dim" and len(node.args) > 2:
                kept = self.eval(node.args[2], env)
                if isinstance(kept, TupleValue) and len(kept.items) == 1 and isinstance(kept.items[0], Scalar):
                    axis = int(kept.items[0].text) if kept.items[0].text.isdigit() else 1
            value.tile.vary(tile, axis)
        return Array(dims, tile, kind=value.kind)

    def expand_dims(self, node: ast.Call, env: dict[str, Value]) -> Value:
        value = self.eval(node.args[0], env)
        self.find("B105", node, "jnp.expand_dims", "write x[:, None] or x[None, :]")
        return value if isinstance(value, Array) else Unknown("expand_dims")

    def method(self, node: ast.Call, base: Value, func: ast.Attribute, env: dict[str, Value]) -> Value:
        keywords = {k.arg: k.value for k in node.keywords if k.arg}
        for a in node.args:
            if func.attr == "astype":
                self.eval(a, env)
        if func.attr == "astype":
            if isinstance(base, Array):
                text = ast.unparse(node.args[0]) if node.args else ""
                kind = "float" if "float" in text else "int" if "int" in text else ""
                return dataclasses.replace(base, kind=kind or base.kind, mask=None)
            return base
        if isinstance(base, RefValue):
            self.find("B110", node, f"the ref method {func.attr}")
            return Unknown(func.attr)
        if func.attr in _FLOAT_REDUCTIONS or func.attr in ("argmax", "argmin", "var", "std"):
            return self.reduction(node, func.attr, func.value, base, node.args, keywords, env)
        args = [self.eval(a, env) for a in node.args]
        if isinstance(base, Array):
            self.model.calls.append((node, f"jax.numpy.{func.attr}"))
            if func.attr in ("transpose",):
                return self.transpose(node, base)
            if func.attr in ("reshape", "ravel", "squeeze", "flatten"):
                self.find("B105", node, f"{func.attr} of a register array")
                return Unknown(func.attr)
            return self.elementwise(node, [(func.value, base), *zip(node.args, args)])
        if isinstance(base, Scalar):
            text = ast.unparse(node) if base.text else ""
            return Scalar(base.static, (text,) if base.static and text else (UNKNOWN_FACTOR,), text if base.static else "")
        return Unknown(func.attr)

    def grid_query(self, node: ast.Call, size: bool, env: dict[str, Value]) -> Value:
        arg = node.args[0] if node.args else next((k.value for k in node.keywords if k.arg == "axis"), None)
        axis = self.eval(arg, env) if arg is not None else Unknown()
        if not (isinstance(axis, Scalar) and axis.text.isdigit()):
            self.find("B113", node, "a grid axis that is not a literal number")
            return Scalar()
        if not any(q.node is node for q in self.model.grid_queries):
            self.model.grid_queries.append(GridQuery(node, int(axis.text), size))
        return Scalar(expr=f"{'num_programs' if size else 'program_id'}({axis.text})")

    def load_call(self, node: ast.Call, env: dict[str, Value]) -> Value:
        keywords = {k.arg: k.value for k in node.keywords if k.arg}
        base = self.eval(node.args[0], env) if node.args else Unknown()
        if len(node.args) > 1 or "idx" in keywords:
            self.find("B114", node, "load(ref, index), the form before JAX 0.9", "write load(ref.at[index])")
            return Unknown("old load")
        mask = keywords.get("mask")
        mask_value = self.eval(mask, env) if mask is not None else None
        other = self.eval(keywords["other"], env) if "other" in keywords else None
        for k in keywords:
            if k not in ("mask", "other", "eviction_policy", "cache_modifier", "volatile"):
                self.find("B110", node, f"load with {k}=")
        if not isinstance(base, (RefValue, ViewValue)):
            self.find("B104", node, f"a load from {ast.unparse(node.args[0]) if node.args else '?'}, which is not a kernel ref")
            return Unknown("load")
        if isinstance(mask, ast.Constant) and mask.value is None:
            mask = mask_value = None
        return self.load(node, base, (), mask, mask_value, other, "eviction_policy" in keywords, keywords.get("other"))

    def store_call(self, node: ast.Call, env: dict[str, Value]) -> Value:
        keywords = {k.arg: k.value for k in node.keywords if k.arg}
        base = self.eval(node.args[0], env) if node.args else Unknown()
        value_node = node.args[1] if len(node.args) > 1 else keywords.get("val")
        if len(node.args) > 2 or value_node is None:
            self.find("B114", node, "store(ref, index, value), the form before JAX 0.9", "write store(ref.at[index], value)")
            return TupleValue(())
        value = self.eval(value_node, env)
        mask = keywords.get("mask")
        mask_value = self.eval(mask, env) if mask is not None else None
        if isinstance(mask, ast.Constant) and mask.value is None:
            mask = mask_value = None
        if not isinstance(base, (RefValue, ViewValue)):
            self.find("B104", node, f"a store to {ast.unparse(node.args[0])}, which is not a kernel ref")
            return TupleValue(())
        self.store(node, None, base, (), value, value_node, mask, mask_value)
        return TupleValue(())

    def ds(self, node: ast.Call, env: dict[str, Value]) -> Value:
        keywords = {k.arg: k.value for k in node.keywords if k.arg}
        start = self.eval(node.args[0], env) if node.args else self.eval(keywords["start"], env)
        size_node = node.args[1] if len(node.args) > 1 else keywords.get("size")
        size = self.eval(size_node, env) if size_node is not None else Unknown()
        stride_node = node.args[2] if len(node.args) > 2 else keywords.get("stride")
        stride: int | None = 1
        if stride_node is not None:
            stride = stride_node.value if isinstance(stride_node, ast.Constant) else None
        if not isinstance(start, Scalar):
            self.find("B104", node, "pl.ds with a start that is not a number")
            return Unknown("ds")
        text = size.text if isinstance(size, Scalar) else ""
        if not text:
            self.find("B104", node, "pl.ds with a size that is not known")
        return SliceValue(start, text, stride=stride)

    def dot(self, node: ast.expr, left: ast.expr, right: ast.expr, name: str, env: dict[str, Value]) -> Value:
        a, b = self.eval(left, env), self.eval(right, env)
        if isinstance(node, ast.Call):
            for arg in node.args[2:]:
                self.eval(arg, env)
        dims: tuple[str, ...] | None = None
        if isinstance(a, Array) and isinstance(b, Array) and a.dims and b.dims:
            if len(a.dims) == 2 and len(b.dims) == 2:
                trans_a = trans_b = False
                if isinstance(node, ast.Call):
                    flags = {k.arg: k.value for k in node.keywords}
                    trans_a = isinstance(flags.get("trans_a"), ast.Constant) and flags["trans_a"].value is True
                    trans_b = isinstance(flags.get("trans_b"), ast.Constant) and flags["trans_b"].value is True
                dims = (a.dims[1 if trans_a else 0], b.dims[0 if trans_b else 1])
        result = Array(dims, self.tile(2, _tuple_text(dims or ())), kind="float")
        if not any(d.node is node for d in self.model.dots):
            self.model.dots.append(Dot(node, left, right, a, b, result, name))
        return result

    # -- control flow -----------------------------------------------------------------------

    def fori_loop(self, node: ast.Call, env: dict[str, Value]) -> Value:
        args = dict(zip(("lower", "upper", "body_fun", "init_val"), node.args))
        args |= {k.arg: k.value for k in node.keywords if k.arg}
        if not {"lower", "upper", "body_fun", "init_val"} <= set(args):
            self.find("B102", node, "fori_loop without its four arguments")
            return Unknown("fori_loop")
        lower, upper = self.eval(args["lower"], env), self.eval(args["upper"], env)
        body = self.eval(args["body_fun"], env)
        init = self.eval(args["init_val"], env)
        if not isinstance(body, FunctionValue):
            self.find("B102", node, "a fori_loop whose body is not a function of this file")
            return Unknown("fori_loop")
        static = all(isinstance(v, Scalar) and v.static for v in (lower, upper))
        if not any(loop.node is node for loop in self.model.loops):
            self.model.loops.append(
                Loop(node, body.node, args["lower"], args["upper"], args["init_val"], dict(env), static)  # type: ignore[arg-type]
            )
        params = body.node.args.args  # type: ignore[attr-defined]
        step = Scalar(False, (UNKNOWN_FACTOR,), expr=params[0].arg if params else "")
        result = self.call_function(body, [step, self.carried(init)], {}, node)
        return self.carry(node, init, result)

    def carried(self, value: Value, static: bool = False) -> Value:
        """What is known of a loop carry inside the loop: a number is no longer static, unless
        Python runs the loop."""
        if isinstance(value, Scalar):
            return Scalar(static and value.static)
        if isinstance(value, TupleValue):
            return TupleValue(tuple(self.carried(v, static) for v in value.items))
        if isinstance(value, Array):
            return dataclasses.replace(value, run=None, start="", mask=None)
        if isinstance(value, SliceValue):
            return Unknown("a slice carried by a loop")
        return value

    def carry(self, node: ast.AST, init: Value, result: Value) -> Value:
        if isinstance(init, TupleValue) and isinstance(result, TupleValue):
            if len(init.items) == len(result.items):
                return TupleValue(tuple(self.carry(node, a, b) for a, b in zip(init.items, result.items)))
        if isinstance(init, Array) and isinstance(result, Array):
            init.tile.unify(result.tile)
            return dataclasses.replace(self.carried(init), thin_axis=result.thin_axis, dims=result.dims or init.dims)  # type: ignore[type-var]
        if isinstance(init, Scalar):
            return self.carried(init) if isinstance(result, Scalar) else result
        return init

    def while_loop(self, node: ast.Call, env: dict[str, Value]) -> Value:
        args = dict(zip(("cond_fun", "body_fun", "init_val"), node.args))
        args |= {k.arg: k.value for k in node.keywords if k.arg}
        test, body = self.eval(args["cond_fun"], env), self.eval(args["body_fun"], env)
        init = self.eval(args["init_val"], env)
        if not (isinstance(test, FunctionValue) and isinstance(body, FunctionValue)):
            self.find("B102", node, "a while_loop whose functions are not in this file")
            return Unknown("while_loop")
        self.call_function(test, [self.carried(init)], {}, node)
        return self.carry(node, init, self.call_function(body, [self.carried(init)], {}, node))

    def cond(self, node: ast.Call, env: dict[str, Value]) -> Value:
        values = [self.eval(a, env) for a in node.args]
        functions = [v for v in values[1:3] if isinstance(v, FunctionValue)]
        if len(functions) != 2:
            self.find("B102", node, "a cond whose branches are not functions of this file")
            return Unknown("cond")
        first, second = (self.call_function(f, values[3:], {}, node) for f in functions)
        return self.join(first, second)

    # -- helpers ----------------------------------------------------------------------------

    def tile(self, rank: int | None, shape_text: str = "") -> Tile:
        tile = Tile(rank, shape_text)
        self.model.tiles.append(tile)
        return tile

    def find(self, code: str, node: ast.AST, reason: str, advice: str = "") -> None:
        if not any(f.node is node and f.code == code for f in self.model.findings):
            self.model.findings.append(Finding(code, node, reason, advice))


def _assigned(body: list[ast.stmt]) -> set[str]:
    """Names that statements assign, those of nested functions left out."""
    found: set[str] = set()
    queue: list[ast.AST] = list(body)
    while queue:
        node = queue.pop()
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        if not isinstance(node, (ast.FunctionDef, ast.Lambda)):
            queue += ast.iter_child_nodes(node)
    return found


def _wrap(text: str) -> str:
    """Parentheses around an expression that is not atomic."""
    try:
        tree = ast.parse(text, mode="eval").body
    except SyntaxError:
        return text
    return f"({text})" if isinstance(tree, (ast.BinOp, ast.UnaryOp, ast.IfExp)) else text


def _sum(a: str, b: str) -> str:
    """``a + b`` as ``Scalar.expr``; zeros vanish."""
    if not a or not b:
        return ""
    return b if a == "0" else a if b == "0" else f"{_wrap(a)} + {_wrap(b)}"


def _tuple_text(dims: tuple[str, ...]) -> str:
    if not dims or not all(dims):
        return ""
    return f"({dims[0]},)" if len(dims) == 1 else f"({', '.join(dims)})"


