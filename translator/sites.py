"""Finds every ``pallas_call`` of a module and takes it apart.

A ``CallSite`` holds what the call says, as syntax: the kernel function behind partials, factories
and wrapping lambdas, the grid, the block specs, the keyword arguments, and which backend the call
runs on.  Nothing is decided here; what cannot be taken apart is left as None or stated in
``unresolved`` and becomes a diagnosis of the plan.
"""

from __future__ import annotations

import ast
import dataclasses

from .names import MOSAIC, PALLAS, TRITON, FunctionNode, Resolver, walk
from .specs import Spec, Unreadable, read_specs

PALLAS_CALL = f"{PALLAS}.pallas_call"
TRITON_KEYWORDS = {"num_warps", "num_stages"}  # of pallas_call itself, until JAX 0.4.26
NO_SCRATCH = "scratch_shapes: the Triton backend has no scratch memory"
_PARTIAL = "functools.partial"
_GRID_SPECS = (f"{PALLAS}.GridSpec",)


@dataclasses.dataclass(frozen=True)
class CallSite:
    """One ``pallas_call``.

    call: the call node (the ``functools.partial`` call for decorated kernels).
    caller: the function that contains it, None at module level.
    invocation: the call that passes the operands, where it follows directly: ``pallas_call(...)(x)``.
    kernel: the kernel function, None if it cannot be found.
    bound: kernel parameters fixed by ``functools.partial``, by name.
    bound_positional: how many leading parameters are fixed by position.
    kernel_path: the expressions passed on the way from the call's first argument to the kernel.
    grid: one expression per axis; () for no grid; None if it cannot be read.
    grid_text: the grid as a tuple, source text; "" for no grid.
    in_specs, out_specs: one Spec per operand; None: absent, all arrays whole.
    backend: ``triton``, ``mosaic``, ``tpu``, ``rocm`` or ``implicit`` (no compiler params).
    unresolved: the parts that could not be read: (what, node).
    """

    call: ast.Call
    caller: FunctionNode | None
    invocation: ast.Call | None
    kernel_expr: ast.expr | None
    kernel: FunctionNode | None
    bound: dict[str, ast.expr]
    bound_positional: int
    keywords: dict[str, ast.expr]
    grid: tuple[ast.expr, ...] | None
    grid_text: str
    in_specs: tuple[Spec, ...] | None
    out_specs: tuple[Spec, ...] | None
    backend: str
    unresolved: tuple[tuple[str, ast.AST], ...]
    decorates: bool = False

    @property
    def kernel_name(self) -> str:
        if isinstance(self.kernel, (ast.FunctionDef, ast.AsyncFunctionDef)):
            return self.kernel.name
        return ast.unparse(self.kernel_expr)[:40] if self.kernel_expr is not None else "?"


def find_sites(resolver: Resolver) -> list[CallSite]:
    """All ``pallas_call`` sites in source order."""
    sites = []
    for node in resolver.parents:
        if not isinstance(node, ast.Call):
            continue
        if resolver.qualified(node.func) == PALLAS_CALL:
            sites.append(_read_site(node, node.args, resolver))
        elif (
            resolver.qualified(node.func) == _PARTIAL
            and node.args
            and resolver.qualified(node.args[0]) == PALLAS_CALL
        ):
            sites.append(_read_site(node, node.args[1:], resolver))
        elif wrapper := _wrapper(node, resolver):
            site = _read_site(node, node.args, resolver)
            what = f"{wrapper} stands between this call and JAX's pallas_call, in another module"
            sites.append(dataclasses.replace(site, unresolved=((what, node), *site.unresolved)))
    return sorted(sites, key=lambda s: (s.call.lineno, s.call.col_offset))


def _wrapper(node: ast.Call, resolver: Resolver) -> str:
    """The name of a ``pallas_call`` of another module that a file for the Triton backend calls, else ""."""
    name = resolver.qualified(node.func) or ""
    for_triton = any(target.startswith(TRITON) for _, _, target in resolver.imports())
    return name if for_triton and name.endswith(".pallas_call") and not name.startswith("jax.") else ""


def _read_site(call: ast.Call, args: list[ast.expr], resolver: Resolver) -> CallSite:
    unresolved: list[tuple[str, ast.AST]] = []
    keywords = {k.arg: k.value for k in call.keywords if k.arg is not None}
    if any(k.arg is None for k in call.keywords):
        unresolved.append(("keyword arguments passed with **", call))
    positional = ("kernel", "out_shape")
    for name, value in zip(positional[1:], args[1:]):
        keywords.setdefault(name, value)
    named = keywords.pop("kernel", None) or keywords.pop("f", None)  # ``f`` until JAX 0.4.36
    kernel_expr = args[0] if args else named

    parent = resolver.parents.get(call)
    decorates = False
    if kernel_expr is None and isinstance(parent, ast.FunctionDef) and call in parent.decorator_list:
        kernel, bound, count = parent, {}, 0
        decorates = True
    elif kernel_expr is None:
        kernel, bound, count = None, {}, 0
    else:
        kernel, bound, count = _find_kernel(kernel_expr, resolver)

    launch = dict(keywords)
    grid_spec = keywords.get("grid_spec")
    if grid_spec is not None:
        launch |= _read_grid_spec(grid_spec, resolver, unresolved)
    specs: dict[str, tuple[Spec, ...] | None] = {}
    for name in ("in_specs", "out_specs"):
        try:
            specs[name] = read_specs(launch.get(name), call, resolver)
        except Unreadable as error:
            unresolved.append((f"{name}: {error.reason}", error.node))
            specs[name] = None
    maps = [s.index_map for found in specs.values() for s in found or () if s.index_map is not None]
    grid, is_number = _read_grid(launch.get("grid"), _map_rank(maps), resolver)
    if grid is None:
        unresolved.append(("the number of grid axes is not known", launch["grid"]))
    caller = resolver.scope_of(call).node
    return CallSite(
        call=call,
        caller=caller if isinstance(caller, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)) else None,
        invocation=parent if isinstance(parent, ast.Call) and parent.func is call else None,
        kernel_expr=kernel_expr,
        kernel=kernel,
        bound=bound,
        bound_positional=count,
        keywords=keywords,
        grid=grid,
        grid_text=_grid_text(launch.get("grid"), grid, is_number, resolver),
        in_specs=specs["in_specs"],
        out_specs=specs["out_specs"],
        backend="rocm" if _in_rocm_branch(call, resolver) else _read_backend(keywords, resolver),
        unresolved=tuple(unresolved),
        decorates=decorates,
    )


def _read_grid_spec(
    node: ast.expr, resolver: Resolver, unresolved: list[tuple[str, ast.AST]]
) -> dict[str, ast.expr]:
    """The arguments of a ``pl.GridSpec`` by name."""
    value = resolver.value(node)
    name = resolver.qualified(value.func) if isinstance(value, ast.Call) else None
    if name is not None and name.endswith(".PrefetchScalarGridSpec"):
        unresolved.append(("scalar prefetch: Triton and Mosaic GPU have none; pass the scalars as an array and load them in the kernel", node))
    elif name not in _GRID_SPECS or any(k.arg is None for k in value.keywords):  # type: ignore[union-attr]
        unresolved.append(("grid_spec is not a pl.GridSpec written out", node))
    else:
        found = dict(zip(("grid", "in_specs", "out_specs", "scratch_shapes"), value.args))  # type: ignore[union-attr]
        found |= {k.arg: k.value for k in value.keywords if k.arg}  # type: ignore[union-attr]
        if "scratch_shapes" in found:
            unresolved.append((NO_SCRATCH, found["scratch_shapes"]))
        return found
    return {}


def _map_rank(maps: list[ast.expr | FunctionNode]) -> int | None:
    """The number of parameters that all index maps take."""
    ranks = {
        len(m.args.args) for m in maps
        if isinstance(m, (ast.Lambda, ast.FunctionDef)) and not m.args.vararg and not m.args.defaults
    }
    return ranks.pop() if len(ranks) == 1 else None


def _grid_text(
    node: ast.expr | None, grid: tuple[ast.expr, ...] | None, is_number: bool, resolver: Resolver
) -> str:
    if not grid or node is None:
        return ""
    if is_number:
        return f"({ast.unparse(node)},)"
    value = resolver.value(node)
    if isinstance(node, ast.List):
        return f"({', '.join(map(ast.unparse, node.elts))}{',' if len(node.elts) == 1 else ''})"
    return f"tuple({ast.unparse(node)})" if isinstance(value, ast.List) else ast.unparse(node)


def _find_kernel(
    expr: ast.expr, resolver: Resolver
) -> tuple[FunctionNode | None, dict[str, ast.expr], int]:
    """The function behind names, partials, factories and forwarding lambdas."""
    bound: dict[str, ast.expr] = {}
    count = 0
    leading: list[ast.expr] = []
    trailing: list[ast.expr] = []
    node: ast.AST = expr
    for _ in range(8):
        if isinstance(node, (ast.FunctionDef, ast.Lambda)):
            forwarded = forwarded_call(node)
            if forwarded is None or resolver.value(forwarded.func) is forwarded.func:  # not of this file
                return node if _bind_by_position(node, leading, trailing, bound) else None, bound, count
            for k in forwarded.keywords:
                bound.setdefault(k.arg, k.value)  # type: ignore[arg-type]
            trailing += forwarded.args[len(_parameters(node)) :]
            node = forwarded.func
        elif isinstance(node, ast.Call) and resolver.qualified(node.func) == _PARTIAL and node.args:
            if any(k.arg is None for k in node.keywords):
                return None, bound, count
            for k in node.keywords:
                bound.setdefault(k.arg, k.value)  # type: ignore[arg-type]
            count += len(node.args) - 1
            leading += node.args[1:]
            node = node.args[0]
        elif isinstance(node, ast.Call):
            factory = resolver.value(node.func)
            inner = _returned_function(factory, resolver)
            if inner is None or not _bind_by_position(inner, leading, trailing, bound):
                return None, bound, count
            return inner, bound, count
        elif isinstance(node, ast.Name):
            value = resolver.value(node)
            if value is node:
                return None, bound, count
            node = value
        else:
            return None, bound, count
    return None, bound, count


def _bind_by_position(
    kernel: FunctionNode, leading: list[ast.expr], trailing: list[ast.expr], bound: dict[str, ast.expr]
) -> bool:
    """Binds the parameters before and after the refs to what wrappers pass there; False if unclear which."""
    args = kernel.args
    names = [a.arg for a in (*args.posonlyargs, *args.args)]
    if len(names) < len(leading) + len(trailing) or any(isinstance(v, ast.Starred) for v in leading):
        return False
    if trailing and (args.defaults or args.vararg or args.posonlyargs):
        return False
    for name, value in [*zip(names, leading), *zip(names[len(names) - len(trailing) :], trailing)]:
        bound.setdefault(name, value)
    return True


def _parameters(node: FunctionNode) -> list[ast.expr]:
    """The parameters of a function as it would pass them on: ``a, b, *refs``."""
    names: list[ast.expr] = [ast.Name(a.arg, ast.Load()) for a in node.args.args]
    if node.args.vararg:
        names.append(ast.Starred(ast.Name(node.args.vararg.arg, ast.Load()), ast.Load()))
    return names


def forwarded_call(node: FunctionNode) -> ast.Call | None:
    """The call of a function that only passes its arguments on, with more arguments after them:
    ``lambda *refs: kernel(*refs, flag=x)``, or the same as a ``def``."""
    body, args = node.body, node.args
    if isinstance(body, list):
        if len(body) != 1 or not isinstance(body[0], ast.Expr) or node.decorator_list:  # type: ignore[union-attr]
            return None
        body = body[0].value
    if not isinstance(body, ast.Call) or any(k.arg is None for k in body.keywords):
        return None
    if args.defaults or args.kwonlyargs or args.kwarg or args.posonlyargs:
        return None
    want = [ast.dump(p) for p in _parameters(node)]
    if [ast.dump(a) for a in body.args[: len(want)]] != want:
        return None
    more = [*body.args[len(want) :], *(k.value for k in body.keywords)]
    own = {a.arg for a in (*args.args, *filter(None, [args.vararg]))}
    used = {n.id for value in more for n in walk(value) if isinstance(n, ast.Name)}
    return None if used & own or any(isinstance(a, ast.Starred) for a in more) else body


def _returned_function(factory: ast.AST, resolver: Resolver) -> FunctionNode | None:
    """The inner function that a factory returns, if all its returns agree."""
    if isinstance(factory, ast.Lambda):
        return factory.body if isinstance(factory.body, ast.Lambda) else None
    if not isinstance(factory, ast.FunctionDef):
        return None
    returned = set()
    for node in walk(factory):
        if isinstance(node, ast.Return) and node.value is not None:
            if resolver.scope_of(node).node is factory:
                returned.add(resolver.value(node.value))
    if len(returned) == 1:
        (only,) = returned
        if isinstance(only, (ast.FunctionDef, ast.Lambda)):
            return only
    return None


def _read_grid(
    node: ast.expr | None, rank: int | None, resolver: Resolver
) -> tuple[tuple[ast.expr, ...] | None, bool]:
    """(one expression per axis, None if their number is not known; whether the grid is a single number).

    rank: the number of axes that the index maps take.
    """
    if node is None:
        return (), False
    values = _values(node, resolver)
    if len(values) == 1:
        (value,) = values
        if isinstance(value, (ast.Tuple, ast.List)) and not any(isinstance(e, ast.Starred) for e in value.elts):
            return tuple(value.elts), False
        if isinstance(value, ast.Constant) and value.value is None:
            return (), False
    numbers = [_is_number(v, resolver) for v in values]
    if values and all(numbers):
        return (node,), True
    if any(numbers):
        return None, False
    ranks = {len(v.elts) for v in values if isinstance(v, ast.Tuple) and not any(isinstance(e, ast.Starred) for e in v.elts)}
    ranks |= {found for v in values if (found := _slice_rank(v)) is not None}
    if rank is None and len(ranks) == 1:
        (rank,) = ranks
    if rank is None or rank == 1 and not any(isinstance(v, (ast.Tuple, ast.List)) or _is_tuple_call(v) or _slice_rank(v) for v in values):
        return None, False  # one axis: an integer or a tuple
    parts = [ast.Subscript(node, ast.Constant(i), ast.Load()) for i in range(rank)]
    return tuple(ast.fix_missing_locations(ast.copy_location(p, node)) for p in parts), False


def _values(node: ast.expr, resolver: Resolver) -> list[ast.AST]:
    """All that an expression may be, as far as its name's assignments tell."""
    if isinstance(node, ast.IfExp):
        return [v for part in (node.body, node.orelse) for v in _values(part, resolver)]
    if isinstance(node, ast.Name) and resolver.binding(node) is None:
        found = resolver.scope_of(node).find(node.id)
        bindings = found[1] if found is not None else []
        return [v for b in bindings if b.kind == "value" for v in _values(b.node, resolver)]  # type: ignore[arg-type]
    value = resolver.value(node)
    return [v for part in (value.body, value.orelse) for v in _values(part, resolver)] if isinstance(value, ast.IfExp) else [value]


def _is_number(value: ast.AST, resolver: Resolver) -> bool:
    if isinstance(value, ast.Constant):
        return isinstance(value.value, int)
    if isinstance(value, ast.Name):  # ``n, d = x.shape``, ``n: int``
        bound = resolver.binding(value)
        if bound is None:
            return False
        if bound.kind == "parameter":
            return isinstance(bound.node, ast.arg) and isinstance(bound.node.annotation, ast.Name) and bound.node.annotation.id == "int"
        return bound.kind == "unpack" and _is_shape(bound.node)
    if isinstance(value, ast.Subscript):
        return _is_shape(value.value) and not isinstance(value.slice, ast.Slice)
    if isinstance(value, ast.Attribute):
        return value.attr in ("size", "ndim")
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id in ("len", "int"):
        return resolver.scope_of(value).find(value.func.id) is None
    if isinstance(value, ast.BinOp):
        return not any(isinstance(v, (ast.Tuple, ast.List)) for v in (value.left, value.right))
    return isinstance(value, ast.Call) and resolver.qualified(value.func) == f"{PALLAS}.cdiv"


def _is_shape(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "shape"


def _slice_rank(value: ast.AST) -> int | None:
    """The number of axes of ``x.shape[:2]``."""
    if not isinstance(value, ast.Subscript) or not _is_shape(value.value) or not isinstance(value.slice, ast.Slice):
        return None
    ends = [0 if e is None else e.value if isinstance(e, ast.Constant) else None for e in (value.slice.lower, value.slice.upper)]
    start, stop = ends
    return stop - start if value.slice.step is None and stop and start is not None and stop > start else None


def _is_tuple_call(value: ast.AST) -> bool:
    return isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "tuple"


def _in_rocm_branch(node: ast.AST, resolver: Resolver) -> bool:
    """True inside ``if platform == "rocm":`` and the like, where only the Triton backend works."""
    child, parent = node, resolver.parents.get(node)
    while parent is not None:
        if isinstance(parent, ast.If) and child in parent.body:
            for test in walk(parent.test):
                if isinstance(test, ast.Compare) and isinstance(test.ops[0], (ast.Eq, ast.In)):
                    words = {c.value for c in walk(test) if isinstance(c, ast.Constant) and isinstance(c.value, str)}
                    negated = isinstance(resolver.parents[test], ast.UnaryOp)
                    if {w.lower() for w in words} & {"rocm", "hip", "amdgpu"} and not negated:
                        return True
        child, parent = parent, resolver.parents.get(parent)
    return False


def compiler_parameter(keywords: dict[str, ast.expr], name: str, resolver: Resolver) -> ast.expr | None:
    """A parameter of the Triton compiler: of ``CompilerParams``, a dictionary, or the call itself."""
    if name in keywords:
        return keywords[name]
    node: ast.AST | None = keywords.get("compiler_params")
    for _ in range(2):  # dict(triton=dict(...))
        value = resolver.value(node) if isinstance(node, ast.expr) else None
        parts: dict[object, ast.expr] = {}
        if isinstance(value, ast.Call):
            parts = {k.arg: k.value for k in value.keywords}
        elif isinstance(value, ast.Dict):
            parts = {k.value: v for k, v in zip(value.keys, value.values) if isinstance(k, ast.Constant)}
        if name in parts:
            return parts[name]
        node = parts.get("triton")
    return None


def _read_backend(keywords: dict[str, ast.expr], resolver: Resolver) -> str:
    if keywords.keys() & TRITON_KEYWORDS:
        return "triton"
    named = keywords.get("backend")
    if isinstance(named, ast.Constant) and isinstance(named.value, str):
        return {"triton": "triton", "mosaic_gpu": "mosaic", "mosaic_tpu": "tpu", "rocm": "rocm"}.get(
            named.value, "implicit"
        )
    params = keywords.get("compiler_params")
    if params is not None:
        value = resolver.value(params)
        if isinstance(value, ast.Call):
            name = resolver.qualified(value.func) or ""
            if name == "builtins.dict" or (isinstance(value.func, ast.Name) and value.func.id == "dict"):
                keys = {k.arg for k in value.keywords}
                if "triton" in keys:
                    return "triton"
                if keys & {"mosaic_gpu"}:
                    return "mosaic"
                if keys & {"mosaic"}:
                    return "tpu"
            if name.startswith(TRITON):
                return "triton"
            if name.startswith(MOSAIC):
                return "mosaic"
            if name.startswith(f"{PALLAS}.tpu"):
                return "tpu"
        if isinstance(value, ast.Dict):
            keys = {k.value for k in value.keys if isinstance(k, ast.Constant)}
            if "triton" in keys:
                return "triton"
    imported = {target for _, _, target in resolver.imports()}
    if any(t.startswith((TRITON, f"{PALLAS}.gpu")) for t in imported):
        return "triton"
    if any(t.startswith(f"{PALLAS}.tpu") for t in imported):
        return "tpu"
    return "implicit"
