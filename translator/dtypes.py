"""Dtypes that a port cannot have, where the source names them.

Mosaic GPU ports take booleans and 8 to 32 bits.  A dtype is named as an attribute (``jnp.float64``),
or as a string where one is expected: by ``dtype=``, ``astype`` or ``ShapeDtypeStruct``.  Dtypes that
only a recording shows are diagnosed in ``recorded.py``; what neither shows, the port refuses when it
is traced.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from .model.events import KernelModel
from .names import Resolver, walk
from .sites import CallSite

WIDE = frozenset({"float64", "int64", "uint64", "complex64", "complex128"})
PACKED = frozenset({"int2", "uint2", "int4", "uint4", "float4_e2m1fn"})
_TAKERS = {  # positional argument that is a dtype
    "jax.ShapeDtypeStruct": 1, "jax.numpy.zeros": 1, "jax.numpy.ones": 1, "jax.numpy.empty": 1, "jax.numpy.full": 2,
    "jax.numpy.asarray": 1, "jax.numpy.array": 1, "jax.lax.convert_element_type": 1, "jax.lax.broadcasted_iota": 0,
    "jax.lax.iota": 0, "jax.lax.bitcast_convert_type": 1,
}
_KEYWORDS = {"dtype", "preferred_element_type", "new_dtype"}


def refusal(dtype: str) -> str:
    """Why operands of a dtype stay on Triton; "" if they do not."""
    if dtype in WIDE:
        return "Mosaic GPU ports take up to 32 bits"
    return "values below a byte cannot be addressed one by one; pass them as int8" if dtype in PACKED else ""


def refused_dtypes(site: CallSite, model: KernelModel, resolver: Resolver) -> Iterator[tuple[str, ast.AST, str, str]]:
    """Diagnoses of the dtypes that a call's results or its kernel name."""
    roots: list[ast.AST] = [*model.functions]
    shapes = site.keywords.get("out_shape")
    if shapes is not None:
        value = resolver.value(shapes)
        roots += [shapes] if value is shapes else [value]
    for root in roots:
        for node in walk(root):
            if isinstance(node, ast.Call):
                for argument in _dtype_arguments(node, resolver):
                    name = dtype_name(argument, resolver)
                    if why := refusal(name):
                        yield "B131", argument, f"the dtype {name}", why


def _dtype_arguments(node: ast.Call, resolver: Resolver) -> Iterator[ast.expr]:
    yield from (k.value for k in node.keywords if k.arg in _KEYWORDS)
    position = _TAKERS.get(resolver.qualified(node.func) or "")
    if isinstance(node.func, ast.Attribute) and node.func.attr in ("astype", "view"):
        position = 0
    if position is not None and len(node.args) > position:
        yield node.args[position]
    if (resolver.qualified(node.func) or "").startswith("jax.numpy."):
        yield node.func  # ``jnp.int64(x)``


def dtype_name(node: ast.expr, resolver: Resolver) -> str:
    """The dtype that an expression names; "" if it does not name one."""
    value = resolver.value(node)
    if isinstance(value, ast.Constant) and isinstance(value.value, str):
        return value.value
    qualified = resolver.qualified(value) if isinstance(value, (ast.Name, ast.Attribute)) else None
    module, _, name = (qualified or "").rpartition(".")
    return name if module in ("jax.numpy", "numpy", "ml_dtypes") else ""
