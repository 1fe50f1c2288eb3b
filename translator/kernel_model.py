"""The kernel model: what a kernel body does, found by abstract interpretation of its source.

``build_model`` walks the kernel's statements once with abstract values (``values.py``): loop
bodies once, both branches of conditionals, helpers of the same file at each call.  It records
*events*, each tied to the syntax node that causes it: accesses to refs, queries of the grid,
reductions, thin arrays that must be expanded, square roots, dots, loops, and findings (what the
model could not follow).  It decides nothing: the plan turns events into rewrites or diagnoses.

An array of one row is a tile of its own, or a thin array if it meets tiles of more rows.  Where a
walk finds that it does, the kernel is walked again with it thin from the start.

Not covered: recursion, classes in kernels, ``global``; arrays of rank 3 or more keep their shape
but are only followed through elementwise operations.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence

from .model.events import KernelModel
from .model.interpreter import Interpreter
from .names import Resolver
from .sites import CallSite
from .values import FunctionValue, RefValue, Scalar, Unknown, Value


def build_model(
    sites: Sequence[CallSite], resolver: Resolver, ref_dims: dict[int, tuple[str, ...]]
) -> KernelModel:
    """The model of the kernel that all ``sites`` run.

    ref_dims: the shape of the ref at each position, where the specs tell its rank.
    """
    thin: frozenset[ast.AST] = frozenset()
    while True:
        interpreter = _walk(sites, resolver, ref_dims, thin)
        found = interpreter.made_thin()
        if found <= thin:
            return interpreter.model
        thin |= found


def _walk(
    sites: Sequence[CallSite], resolver: Resolver, ref_dims: dict[int, tuple[str, ...]], thin: frozenset[ast.AST]
) -> Interpreter:
    """One walk over the kernel; ``thin``: see ``Interpreter``."""
    site = sites[0]
    kernel = site.kernel
    assert kernel is not None
    model = KernelModel(kernel, [])
    model.functions.add(kernel)
    interpreter = Interpreter(model, resolver, thin)
    env: dict[str, Value] = {}
    args = kernel.args
    positional = [*args.posonlyargs, *args.args]
    position = 0
    for i, arg in enumerate(positional):
        if i < site.bound_positional or arg.arg in site.bound:
            env[arg.arg] = _static(arg.arg, sites, resolver)
            continue
        ref = RefValue(arg.arg, ref_dims.get(position), position=position)
        model.refs.append(ref)
        env[arg.arg] = ref
        position += 1
    model.named_refs = position
    if args.vararg is not None:
        env[args.vararg.arg] = Unknown("refs")
    for arg in args.kwonlyargs:
        env[arg.arg] = _static(arg.arg, sites, resolver)
    interpreter.run_kernel(kernel, env, ref_dims)
    return interpreter


def _static(name: str, sites: Sequence[CallSite], resolver: Resolver) -> Value:
    """A parameter that is no ref: a function if all sites bind the same one."""
    targets = [resolver.value(s.bound[name]) if name in s.bound else None for s in sites]
    first = targets[0]
    if all(t is first for t in targets) and isinstance(first, (ast.FunctionDef, ast.Lambda)):
        return FunctionValue(first, {})
    libraries = {resolver.qualified(t) if isinstance(t, ast.expr) else None for t in targets}
    if len(libraries) == 1 and isinstance(first, ast.expr) and None not in libraries:
        return FunctionValue(first, {})
    return Scalar(True, (name,), name)
