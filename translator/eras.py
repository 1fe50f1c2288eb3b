"""Earlier spellings of Pallas, read as today's.

Kernels come from several releases of JAX, and most of the older ones cannot be imported under a
supported JAX: their names are resolved by what they were called, never looked up.  ``read_module``
rewrites the syntax tree, not the text, into today's form before anything else reads it, so that
sites, model and plan know one spelling only.  Nodes keep their places in the source: a call in an
earlier form is still the call at that line and column.

* ``load(ref, index, ...)`` and ``store(ref, index, value, ...)`` (until JAX 0.8) become
  ``load(ref.at[index], ...)`` and ``store(ref.at[index], value, ...)``; a ``swap`` whose result
  nobody reads is such a store.
* ``for_loop(n, body, state)``, whose body writes its state through refs (until JAX 0.6), becomes a
  ``fori_loop`` whose body returns its carry.  That needs changes of the text beyond the accesses;
  ``Resolver.loops`` lists them for the plan.

A loop that cannot be read this way stays as it is, and the model of the kernel diagnoses it.
"""

from __future__ import annotations

import ast
import dataclasses

from .names import FOR_LOOP, PALLAS, TRITON, Resolver, walk

_ACCESSES = {f"{TRITON}.load": 0, f"{TRITON}.store": 1, f"{PALLAS}.swap": 1}  # values they take


@dataclasses.dataclass(frozen=True, eq=False)
class MutableLoop:
    """What the text of one ``for_loop`` needs to become a ``fori_loop``.

    old_name: the parameter of the state. names: (node, new name) of each parameter, load and store
        of a part of the state.
    returned: what the body returns, "" for no state.
    """

    call: ast.Call
    body: ast.FunctionDef
    old_name: str
    names: tuple[tuple[ast.AST, str], ...]
    returned: str


def read_module(tree: ast.Module) -> Resolver:
    """The names of a module, its syntax tree brought into today's spelling in place."""
    resolver = Resolver(tree)
    calls = [n for n in resolver.parents if isinstance(n, ast.Call)]
    old = [c for c in calls if resolver.qualified(c.func) in _ACCESSES and _is_old(c, resolver)]
    loops = [c for c in calls if resolver.qualified(c.func) == FOR_LOOP]
    if not old and not loops:
        return resolver
    for call in old:
        _use_view(call)
    changed = [m for c in loops if (m := _carry_state(c, resolver)) is not None]
    resolver = Resolver(tree)  # parents and bindings of the new nodes
    resolver.loops = changed
    return resolver


# -- accesses -------------------------------------------------------------------------------------


def _is_old(call: ast.Call, resolver: Resolver) -> bool:
    if any(isinstance(a, ast.Starred) for a in call.args) or any(k.arg is None for k in call.keywords):
        return False
    if not call.args:
        return False
    values = _ACCESSES[resolver.qualified(call.func)]  # type: ignore[index]
    return len(call.args) > 1 + values or any(k.arg == "idx" for k in call.keywords)


def _use_view(call: ast.Call) -> None:
    """``f(ref, index, ...)`` as ``f(ref.at[index], ...)``."""
    keyword = next((k for k in call.keywords if k.arg == "idx"), None)
    if keyword is not None:
        call.keywords.remove(keyword)
        index = keyword.value
    else:
        index = call.args.pop(1)
    ref = call.args[0]
    if isinstance(index, ast.Constant) and index.value is Ellipsis or isinstance(index, ast.Tuple) and not index.elts:
        return
    view = ast.copy_location(ast.Attribute(ref, "at", ast.Load()), ref)
    call.args[0] = ast.copy_location(ast.Subscript(view, index, ast.Load()), index)


# -- loops over mutable state ------------------------------------------------------------------------


def _carry_state(call: ast.Call, resolver: Resolver) -> MutableLoop | None:
    """Turns a ``for_loop`` into a ``fori_loop``; None, and no change, if its body cannot be read."""
    args = dict(zip(("nsteps", "body", "init_state"), call.args)) | {k.arg: k.value for k in call.keywords}
    if not {"nsteps", "body", "init_state"} <= args.keys() <= {"nsteps", "body", "init_state", "unroll", "jit"}:
        return None
    body = resolver.value(args["body"])
    if not isinstance(body, ast.FunctionDef) or len(body.args.args) != 2 or body.body[0].lineno == body.lineno:
        return None
    if any(isinstance(n, (ast.Return, ast.Yield)) for n in walk(body)) or body.decorator_list:
        return None
    calls = [n for n in resolver.parents if isinstance(n, ast.Name) and n.id == body.name and resolver.value(n) is body]
    if len(calls) != 1:
        return None
    parameter = body.args.args[1]
    old_name = parameter.arg
    uses = [n for n in walk(body) if isinstance(n, ast.Name) and n.id == parameter.arg]
    names: list[tuple[ast.AST, str]] = []
    stateless = isinstance(args["init_state"], (ast.Tuple, ast.Constant)) and not getattr(args["init_state"], "elts", ())
    if stateless:
        if uses:
            return None
        returned = ""
        init: ast.expr = ast.copy_location(ast.Constant(None), args["init_state"])
    else:
        init = args["init_state"]
        parts = _unpacked_state(body, parameter, uses)
        if parts is None:
            return None
        for part in parts:
            fresh = _fresh_name(part.arg if isinstance(part, ast.arg) else part.id, body)
            found = _part_accesses(part, body, resolver)
            if found is None:
                return None
            names += [(n, fresh) for n in (part, *found)]
        returned = ", ".join(dict.fromkeys(new for _, new in names))
    for node, new in names:
        _replace(node, new, resolver)
    if returned:
        value = ast.parse(returned, mode="eval").body
        last = body.body[-1]
        result = ast.Return(value)
        for n in walk(result):
            if isinstance(n, (ast.expr, ast.stmt)):
                n.lineno = n.end_lineno = last.end_lineno  # type: ignore[assignment]
                n.col_offset = n.end_col_offset = last.end_col_offset  # type: ignore[assignment]
        body.body.append(result)
    zero = ast.copy_location(ast.Constant(0), args["nsteps"])
    call.args, call.keywords = [zero, args["nsteps"], args["body"], init], []
    return MutableLoop(call, body, old_name, tuple(names), returned)


def _unpacked_state(
    body: ast.FunctionDef, parameter: ast.arg, uses: list[ast.Name]
) -> list[ast.arg | ast.Name] | None:
    """The names of the parts of the state: the parameter, or what it is unpacked into."""
    for statement in body.body:
        if (
            isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Name)
            and statement.value.id == parameter.arg and len(statement.targets) == 1
        ):
            target = statement.targets[0]
            if not isinstance(target, ast.Tuple) or len(uses) != 1:
                return None
            if not all(isinstance(e, ast.Name) for e in target.elts):
                return None
            return list(target.elts)  # type: ignore[arg-type]
    return [parameter]


def _part_accesses(part: ast.arg | ast.Name, body: ast.FunctionDef, resolver: Resolver) -> list[ast.Subscript] | None:
    """Every ``part[...]`` or ``part[:]``; None if the part is used in any other way."""
    name = part.arg if isinstance(part, ast.arg) else part.id
    found = []
    for node in walk(body):
        if not (isinstance(node, ast.Name) and node.id == name) or node is part:
            continue
        parent = resolver.parents[node]
        index = parent.slice if isinstance(parent, ast.Subscript) and parent.value is node else None
        whole = isinstance(index, ast.Constant) and index.value is Ellipsis
        whole = whole or isinstance(index, ast.Slice) and index.lower is index.upper is index.step is None
        if not whole or resolver.scope_of(node).node is not body:
            return None
        found.append(parent)
    return found  # type: ignore[return-value]


def _fresh_name(name: str, body: ast.FunctionDef) -> str:
    """``acc`` for ``acc_ref``, which is no ref any more, where that name is free."""
    plain = name.removesuffix("_ref")
    taken = {n.id for n in walk(body) if isinstance(n, ast.Name)} | {n.arg for n in walk(body) if isinstance(n, ast.arg)}
    return name if not plain or plain in taken else plain


def _replace(node: ast.AST, new: str, resolver: Resolver) -> None:
    """Renames a parameter or name; puts a name in the place of a subscript."""
    if isinstance(node, ast.arg):
        node.arg = new
    elif isinstance(node, ast.Name):
        node.id = new
    elif isinstance(node, ast.Subscript):
        name = ast.copy_location(ast.Name(new, node.ctx), node)
        parent = resolver.parents[node]
        for field, value in ast.iter_fields(parent):
            if value is node:
                setattr(parent, field, name)
            elif isinstance(value, list) and node in value:
                value[value.index(node)] = name
