"""Ranks of a kernel's refs, from the call's specs and shapes and from the kernel's own use.

The kernel model needs the rank of each ref.  Sources, in this order: the block shape of its spec
(squeezed dimensions left out), the number of results of its index map, the shape of its output,
``m, n = x.shape`` beside the call, ``m, n = x_ref.shape`` in the kernel; a recording overrides them.  Dimensions are named by
the ref itself: ``x_ref.shape[0]``.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from .kernel_model import build_model
from .names import Resolver
from .recorded import recorded_ranks
from .sites import CallSite
from .specs import Spec

if TYPE_CHECKING:
    from .facts import SiteFacts


def ref_dims(
    sites: list[CallSite], resolver: Resolver, found: dict[int, tuple[SiteFacts, ...]]
) -> tuple[dict[int, tuple[str, ...]], int | None]:
    """({position of the ref: its dimensions}, number of input refs or None)."""
    first = build_model(sites, resolver, {})
    names = {r.position: r.name for r in first.refs}
    ranks = {i: first.ref_ranks[name] for i, name in names.items() if name in first.ref_ranks}
    inputs = _input_count(sites, first)
    for site in sites:
        for i, spec in enumerate(site.in_specs or ()):
            _put(ranks, i, _spec_rank(spec))
        if site.in_specs is None and site.invocation is not None:
            for i, operand in enumerate(site.invocation.args):
                _put(ranks, i, _array_rank(operand, resolver))
        if inputs is not None:
            outs = _out_shapes(site, resolver)
            for i, spec in enumerate(site.out_specs or ()):
                _put(ranks, inputs + i, _spec_rank(spec))
            for i, out in enumerate(outs or ()):
                spec = site.out_specs[i] if site.out_specs is not None and i < len(site.out_specs) else None
                if spec is None or _spec_rank(spec) is None:
                    _put(ranks, inputs + i, _array_rank(out, resolver))
    for site in sites:
        for i, rank in recorded_ranks(found.get(id(site), ())).items():
            ranks[i] = rank
    dims = {
        i: tuple(f"{names[i]}.shape[{d}]" for d in range(rank))
        for i, rank in ranks.items() if i in names and rank != _SEVERAL
    }
    if inputs is not None and not first.dots:
        for i, unit in _thin_refs(sites, inputs, resolver).items():
            dims[i] = tuple("1" if d == unit else text for d, text in enumerate(dims.get(i, ())))
    return dims, inputs


def evident_extents(sites: list[CallSite], names: list[str], inputs: int | None, resolver: Resolver) -> dict[str, int]:
    """{dimension of a ref, or parameter of the kernel: its largest value}, where the calls show numbers."""
    found: dict[str, int] = {}
    for site in sites:
        pairs = list(site.bound.items())
        outs = len(names) if inputs is None else inputs
        for first, specs in ((0, site.in_specs or ()), (outs, site.out_specs or ())):
            for name, spec in zip(names[first:], specs):
                kept = [b for b in spec.block_shape or () if b is not None]
                pairs += [(f"{name}.shape[{d}]", b) for d, b in enumerate(kept)]
        for text, node in pairs:
            value = resolver.value(node)
            if isinstance(value, ast.Constant) and type(value.value) is int:
                found[text] = max(value.value, found.get(text, 0))
    return found


def _thin_refs(sites: list[CallSite], inputs: int, resolver: Resolver) -> dict[int, int]:
    """{position of a ref whose blocks are thin: the dimension of extent 1}.

    Columns, ``(n, 1)``, are thin; rows, ``(1, n)``, where other blocks are taller: else a row is a tile.
    """
    shapes: dict[int, set[tuple[bool, ...]]] = {}
    for site in sites:
        for first, specs in ((0, site.in_specs or ()), (inputs, site.out_specs or ())):
            for i, spec in enumerate(specs):
                blocks = [resolver.value(b) for b in spec.block_shape or () if b is not None]
                unit = tuple(isinstance(b, ast.Constant) and b.value == 1 for b in blocks)
                shapes.setdefault(first + i, set()).add(unit)
    alike = {i: next(iter(units)) for i, units in shapes.items() if len(units) == 1}
    thin = {i: 1 for i, unit in alike.items() if unit == (False, True)}
    if any(len(unit) == 2 and not unit[0] for unit in alike.values()):
        thin |= {i: 0 for i, unit in alike.items() if unit == (True, False)}
    return thin


_SEVERAL = -1  # the calls of a kernel disagree on the rank


def _put(ranks: dict[int, int], position: int, rank: int | None) -> None:
    if rank is not None:
        ranks[position] = rank if ranks.get(position, rank) == rank else _SEVERAL


def _input_count(sites: list[CallSite], model) -> int | None:
    for site in sites:
        if site.in_specs is not None:
            return len(site.in_specs)
        if site.invocation is not None and not any(isinstance(a, ast.Starred) for a in site.invocation.args):
            return len(site.invocation.args)
    stored = {a.ref.name for a in model.accesses if a.kind != "load"}
    return next((r.position for r in model.refs if r.name in stored), None)


def _spec_rank(spec: Spec) -> int | None:
    if spec.block_shape is not None:
        return sum(d is not None for d in spec.block_shape)
    return spec.rank


def _out_shapes(site: CallSite, resolver: Resolver) -> list[ast.expr] | None:
    out = site.keywords.get("out_shape")
    if out is None:
        return None
    value = resolver.value(out)
    if isinstance(value, (ast.List, ast.Tuple)):
        return list(value.elts)
    return [out]


def _array_rank(node: ast.expr, resolver: Resolver) -> int | None:
    """The rank of an array or ShapeDtypeStruct expression, if the source shows it."""
    value = resolver.value(node)
    if isinstance(value, ast.Call):
        keywords = {k.arg: k.value for k in value.keywords}
        name = resolver.qualified(value.func) or ""
        if name.endswith("ShapeDtypeStruct"):
            shape = value.args[0] if value.args else keywords.get("shape")
            return _shape_rank(shape, resolver) if shape is not None else None
        if name in ("jax.numpy.zeros", "jax.numpy.ones", "jax.numpy.empty", "jax.numpy.full") and value.args:
            return _shape_rank(value.args[0], resolver)
        if isinstance(value.func, ast.Attribute) and value.func.attr == "reshape":
            shape = value.args[0] if len(value.args) == 1 else None
            return _shape_rank(shape, resolver) if isinstance(shape, ast.Tuple) else None
    if isinstance(node, ast.Name):
        return _unpacked_rank(node.id, node, resolver)
    return None


def _shape_rank(node: ast.expr, resolver: Resolver) -> int | None:
    value = resolver.value(node)
    if isinstance(value, (ast.Tuple, ast.List)):
        return None if any(isinstance(e, ast.Starred) for e in value.elts) else len(value.elts)
    if isinstance(value, ast.Attribute) and value.attr == "shape" and isinstance(value.value, ast.Name):
        return _unpacked_rank(value.value.id, value, resolver)
    return None


def _unpacked_rank(name: str, use: ast.AST, resolver: Resolver) -> int | None:
    """The length of a pattern that ``name.shape`` is unpacked into in the same scope."""
    scope = resolver.scope_of(use)
    bound = [b.place or b.node for b in (scope.find(name) or (scope, []))[1] if b.kind != "parameter"]
    changes = [resolver.statement_of(b).lineno for b in bound]  # type: ignore[arg-type]
    for node in resolver.statements:
        if not isinstance(node, ast.Assign) or resolver.scope_of(node) is not scope:
            continue
        first, last = sorted((node.lineno, resolver.statement_of(use).lineno))
        if any(first < line <= last for line in changes):
            continue
        pairs = [(t, node.value) for t in node.targets]
        for target, value in list(pairs):
            if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
                pairs += zip(target.elts, value.elts)
        for target, value in pairs:
            if (
                isinstance(value, ast.Attribute) and value.attr == "shape"
                and isinstance(value.value, ast.Name) and value.value.id == name
                and isinstance(target, ast.Tuple) and not any(isinstance(e, ast.Starred) for e in target.elts)
            ):
                return len(target.elts)
    return None
