"""Reductions along a dimension of extent 1, for which JAX's layout inference finds no layout.

Extents are known where the source spells them: ``pl.ds(i, 1)``, or a 1 in the block shape of a
BlockSpec.  Others show when the port is lowered.
"""

from __future__ import annotations

import ast

from .model.events import KernelModel, Reduction
from .sites import CallSite
from .values import Array


def unit_reductions(model: KernelModel, sites: list[CallSite], inputs: int | None) -> list[Reduction]:
    """The reductions that take a dimension of extent 1 away."""
    units = {text for site in sites for text in _unit_dims(model, site, inputs)} | {"1"}
    found = []
    for reduction in model.reductions:
        value = model.values.get(reduction.operand)
        if isinstance(value, Array) and value.dims is not None and value.thin_axis is None and len(value.dims) == 2:
            axes = (0, 1) if reduction.axis is None else (reduction.axis,)
            if any(value.dims[axis] in units for axis in axes):
                found.append(reduction)
    return found


def _unit_dims(model: KernelModel, site: CallSite, inputs: int | None) -> list[str]:
    """``x_ref.shape[1]`` for each dimension of a block that is 1 in the call's specs."""
    specs = list(enumerate(site.in_specs or ()))
    if inputs is not None:
        specs += [(inputs + i, spec) for i, spec in enumerate(site.out_specs or ())]
    texts = []
    for position, spec in specs:
        if spec.block_shape is not None and position < len(model.refs):
            kept = [b for b in spec.block_shape if b is not None]
            ones = [d for d, b in enumerate(kept) if isinstance(b, ast.Constant) and b.value == 1]
            texts += [f"{model.refs[position].name}.shape[{d}]" for d in ones]
    return texts
