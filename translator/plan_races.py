"""Programs of a grid that write the same elements.

On a GPU the programs of a grid run in any order and at the same time.  A block of an output that
does not depend on a grid axis is written by every program along that axis; on a TPU, and in
interpret mode, these run one after the other, and kernels written there use that to accumulate::

    @pl.when(pl.program_id(1) == 0)
    def _():
        o_ref[...] = jnp.zeros_like(o_ref)
    o_ref[...] += x_ref[...]

``revisited`` finds the outputs that are provably written so, axis by axis: neither the index map
nor an index nor a mask of the store, nor a branch around it, depends on ``program_id`` of that axis.
Where such an output is also read, the axis must run in sequence for the result to be defined: it
becomes a loop in the kernel's launch, which gives the meaning of the sequential order whatever the
kernel does.  Where it is only written, each program writes its own value and one of them stays; the
port keeps that, and says so.

What cannot be shown either way (stores at index vectors from memory) is left as it is.
"""

from __future__ import annotations

import ast
import dataclasses
import re
from typing import TYPE_CHECKING

from .model.events import Access, KernelModel
from .names import Resolver, walk
from .specs import Spec
from .values import Array, Scalar, SliceValue

if TYPE_CHECKING:
    from .sites import CallSite


@dataclasses.dataclass(frozen=True)
class Revisit:
    """An output that every program along ``axis`` writes.

    store: a store that does. read: the kernel also reads the output. starts: the output has a value
    before the first step (a store under ``program_id(axis) == 0``).
    """

    ref: str
    axis: int
    store: Access
    read: bool
    starts: bool


def revisited(site: CallSite, specs: list[Spec], model: KernelModel, inputs: int | None, resolver: Resolver) -> list[Revisit]:
    """The outputs that several programs of the grid write.

    specs: one per ref, inputs first; refs beyond them are not there in this call.
    """
    if not site.grid or inputs is None:
        return []
    reads = _Reads(model, resolver)
    found = []
    for position, (ref, spec) in enumerate(zip(model.refs, specs)):
        stores = [a for a in model.accesses if a.ref is ref and a.kind == "store"]
        if position < inputs or not stores:
            continue
        for axis in range(len(site.grid)):
            extent = resolver.value(site.grid[axis])
            if isinstance(extent, ast.Constant) and extent.value == 1 or _map_reads(spec, axis):
                continue
            everywhere = [s for s in stores if not reads.depends(s, axis)]
            if not everywhere:
                continue
            read = any(s.accumulates for s in stores) or any(a.ref is ref and a.kind == "load" for a in model.accesses)
            starts = any(reads.first_step(s, axis) for s in stores)
            found.append(Revisit(ref.name, axis, everywhere[-1], read, starts))
    return found


def _map_reads(spec: Spec, axis: int) -> bool:
    """Whether an index map uses its parameter for a grid axis."""
    index_map = spec.index_map if spec.block_shape else None
    if index_map is None:
        return False
    if not isinstance(index_map, (ast.Lambda, ast.FunctionDef)):
        return True
    params = [a.arg for a in index_map.args.args]
    if index_map.args.vararg is not None:
        params += [index_map.args.vararg.arg] * (axis + 1 - len(params))
    body = index_map.body if isinstance(index_map.body, list) else [index_map.body]
    used = {n.id for part in body for n in walk(part) if isinstance(n, ast.Name)}
    return axis >= len(params) or params[axis] in used


class _Reads:
    """Which values of a kernel may depend on ``program_id`` of an axis."""

    def __init__(self, model: KernelModel, resolver: Resolver) -> None:
        self.model, self.resolver = model, resolver
        self.names = {q.node: q.axis for q in model.grid_queries if not q.size}

    def depends(self, store: Access, axis: int) -> bool:
        """Whether where, or whether, a store writes may depend on the axis."""
        conditions = [*store.guards, *([store.mask] if store.mask is not None else [])]
        if any(self._condition_depends(c, axis) for c in conditions):
            return True
        for index in store.view or ():
            if index.kind == "full":
                continue
            value = index.value.start if isinstance(index.value, SliceValue) else index.value
            known = index.start or (value.expr if isinstance(value, Scalar) else "")
            if not known or isinstance(index.value, Array) and index.value.run is None or self._mentions(known, axis):
                return True
        return False

    def first_step(self, store: Access, axis: int) -> bool:
        """Whether a store runs where ``program_id(axis) == 0``, and on no other condition."""
        if len(store.guards) != 1:
            return False
        guard = self.resolver.value(store.guards[0])
        match guard:
            case ast.Compare(left, [ast.Eq()], [right]):
                pair = [self.model.values.get(n) for n in (left, right)]
                texts = sorted(v.expr for v in pair if isinstance(v, Scalar))
                return texts == ["0", f"program_id({axis})"]
        return False

    def _condition_depends(self, node: ast.expr, axis: int) -> bool:
        """A condition depends on the axis unless all that it reads is known not to."""
        for n in walk(node):
            value = self.model.values.get(n)
            if isinstance(n, ast.Name) and isinstance(self.model.values.get(n), (Scalar, Array)):
                known = value.expr if isinstance(value, Scalar) else getattr(value, "start", "")
                bounds = getattr(value, "mask", None)
                if bounds is not None:
                    known = " ".join(t.start + t.bound for t in bounds) if all(t.bound for t in bounds) else ""
                if not known or self._mentions(known, axis):
                    return True
            elif isinstance(n, ast.Call) and self.names.get(n) == axis:
                return True
        return False

    @staticmethod
    def _mentions(expr: str, axis: int) -> bool:
        return re.search(rf"program_id\({axis}\)", expr) is not None
