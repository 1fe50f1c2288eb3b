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

PALLAS_CALL = f"{PALLAS}.pallas_call"
TRITON_KEYWORDS = {"num_warps", "num_stages"}  # of pallas_call itself, until JAX 0.4.26
_PARTIAL = "functools.partial"
_SPECS = (f"{PALLAS}.BlockSpec", f"{PALLAS}.no_block_spec")


@dataclasses.dataclass(frozen=True)
class Spec:
    """A BlockSpec. ``block_shape`` None: the whole array; an element None: a squeezed dimension."""

    node: ast.expr
    block_shape: tuple[ast.expr | None, ...] | None = None
    index_map: ast.expr | FunctionNode | None = None
    rank: int | None = None  # of a whole array, where its index map tells


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
    return sorted(sites, key=lambda s: (s.call.lineno, s.call.col_offset))


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

    grid_spec = keywords.get("grid_spec")
    if grid_spec is not None:
        unresolved.append(("grid_spec", grid_spec))
    grid = _read_grid(keywords.get("grid"), resolver)
    in_specs = _read_specs(keywords.get("in_specs"), "in_specs", resolver, unresolved)
    out_specs = _read_specs(keywords.get("out_specs"), "out_specs", resolver, unresolved)
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
        in_specs=in_specs,
        out_specs=out_specs,
        backend="rocm" if _in_rocm_branch(call, resolver) else _read_backend(keywords, resolver),
        unresolved=tuple(unresolved),
        decorates=decorates,
    )


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


def _read_grid(node: ast.expr | None, resolver: Resolver) -> tuple[ast.expr, ...] | None:
    if node is None:
        return ()
    value = resolver.value(node)
    if isinstance(value, (ast.Tuple, ast.List)):
        return None if any(isinstance(e, ast.Starred) for e in value.elts) else tuple(value.elts)
    if isinstance(value, ast.Constant) and value.value is None:
        return ()
    if isinstance(value, (ast.Constant, ast.BinOp)) or (
        isinstance(value, ast.Call) and resolver.qualified(value.func) == f"{PALLAS}.cdiv"
    ):
        return (node,)  # a single integer is a grid of rank 1
    return None


def _read_specs(
    node: ast.expr | None, what: str, resolver: Resolver, unresolved: list[tuple[str, ast.AST]]
) -> tuple[Spec, ...] | None:
    if node is None or (isinstance(node, ast.Constant) and node.value is None):
        return None
    elements = _elements(node, resolver)
    specs = [_read_spec(e, resolver) for e in elements] if elements is not None else [None]
    if any(s is None for s in specs) or _is_mutated(node, resolver):
        unresolved.append((what, node))
        return None
    return tuple(s for s in specs if s is not None)


def _elements(node: ast.expr, resolver: Resolver) -> list[ast.expr] | None:
    """The elements of a list display, ``[spec] * 3``, ``a + b``; a single spec is one element."""
    value = resolver.value(node)
    if isinstance(value, (ast.List, ast.Tuple)):
        return None if any(isinstance(e, ast.Starred) for e in value.elts) else list(value.elts)
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Mult):
        for items, times in ((value.left, value.right), (value.right, value.left)):
            inner = _elements(items, resolver) if isinstance(items, (ast.List, ast.Tuple)) else None
            if inner is not None and isinstance(times, ast.Constant) and isinstance(times.value, int):
                return inner * times.value
        return None
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add):
        left, right = _elements(value.left, resolver), _elements(value.right, resolver)
        return left + right if left is not None and right is not None else None
    return [node]


def _is_mutated(node: ast.expr, resolver: Resolver) -> bool:
    """True if the list that a name holds may be changed after it was made."""
    if not isinstance(node, ast.Name):
        return False
    scope = resolver.scope_of(node)
    for other in resolver.named(node.id):
        if other is node:
            continue
        parent = resolver.parents[other]
        if resolver.scope_of(other) is not scope:
            continue
        if isinstance(parent, ast.Attribute):
            return True  # append, extend, insert and the like
        stored = isinstance(parent, ast.Subscript) and parent.value is other
        if stored and isinstance(parent.ctx, (ast.Store, ast.Del)):  # type: ignore[union-attr]
            return True
        if isinstance(parent, ast.AugAssign) and parent.target is other:
            return True
    return False


def _read_spec(node: ast.expr, resolver: Resolver) -> Spec | None:
    value = resolver.value(node)
    if isinstance(value, ast.Constant) and value.value is None:
        return Spec(node)
    if isinstance(value, (ast.Name, ast.Attribute)) and resolver.qualified(value) in _SPECS:
        return Spec(node)
    if not isinstance(value, ast.Call) or resolver.qualified(value.func) != _SPECS[0]:
        return None
    keywords = {k.arg: k.value for k in value.keywords}
    if not keywords.keys() <= {"block_shape", "index_map", "memory_space"}:
        return None  # ``**``, or a mode in which the index map or the block means something else
    args = list(value.args)
    if args and isinstance(resolver.value(args[0]), (ast.Lambda, ast.FunctionDef)):
        args = args[1::-1] + args[2:]  # until JAX 0.4.31 the index map came first
    shape = args[0] if args else keywords.get("block_shape")
    index_map = args[1] if len(args) > 1 else keywords.get("index_map")
    if shape is not None:
        shape = resolver.value(shape)  # type: ignore[assignment]
    if shape is None or (isinstance(shape, ast.Constant) and shape.value is None):
        return Spec(node)
    if not isinstance(shape, (ast.Tuple, ast.List)):
        return _whole_operand_spec(node, shape, index_map)
    dims: list[ast.expr | None] = []
    for e in shape.elts:
        if isinstance(e, ast.Starred):
            return None
        squeezed = isinstance(e, ast.Constant) and e.value is None
        squeezed = squeezed or resolver.qualified(e) == f"{PALLAS}.squeezed"
        if isinstance(e, ast.Call) and (resolver.qualified(e.func) or "").startswith((f"{PALLAS}.Element", f"{PALLAS}.BoundedSlice")):
            return None  # the index map counts elements, not blocks
        dims.append(None if squeezed else e)
    if index_map is not None:
        target = resolver.value(index_map)
        index_map = target if isinstance(target, (ast.Lambda, ast.FunctionDef)) else index_map
    return Spec(node, tuple(dims), index_map)


def _whole_operand_spec(
    node: ast.expr, shape: ast.expr, index_map: ast.expr | None
) -> Spec | None:
    """``BlockSpec(x.shape, lambda i: (0, 0))``: the whole array, if every index is 0."""
    if not (isinstance(shape, ast.Attribute) and shape.attr == "shape"):
        return None
    if index_map is None:
        return Spec(node)
    if isinstance(index_map, ast.Lambda):
        body = index_map.body
        parts = body.elts if isinstance(body, ast.Tuple) else [body]
        if all(isinstance(p, ast.Constant) and p.value == 0 for p in parts):
            return Spec(node, rank=len(parts))
    return None


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
