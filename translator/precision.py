"""What the precision of a matrix product asks for, as the Triton backend reads it.

On Triton (``_dot_general_lowering`` of JAX 0.11.2 and 0.12.0.1) a float32 product runs as TF32 at
``precision`` None, DEFAULT and HIGH and at the preset TF32_TF32_F32, if one of a pair says so too;
``allow_tf32=True`` is HIGH, ``allow_tf32=False`` HIGHEST.  HIGHEST and F32_F32_F32 are IEEE float32,
TF32_TF32_F32_X3 is nearly that.  The presets with 16-bit operands cast to those.  For float16 and
bfloat16 operands none of this changes the product, but that such a preset may round more than a port
does, whose accumulator is always float32.

Matrix units have no IEEE float32: a port splits such operands into bfloat16 parts (``support/parts.py``) or
leaves the product on Triton; TF32 only where it is asked for here.  ``preferred_element_type`` says the result's dtype and nothing about this.
"""

from __future__ import annotations

import ast
from typing import Literal

from .model.events import Dot
from .names import PALLAS, TRITON, Resolver

# ``tf32``: float32 operands may be rounded to TF32. ``ieee``: they must not. ``other``: not known.
Need = Literal["tf32", "ieee", "other"]

_NEEDS: dict[str, Need] = {
    **dict.fromkeys(("default", "fastest", "bfloat16", "high", "bfloat16_3x", "tensorfloat32"), "tf32"),
    **dict.fromkeys(("tf32_tf32_f32",), "tf32"),
    **dict.fromkeys(("highest", "float32", "f32_f32_f32", "tf32_tf32_f32_x3"), "ieee"),
}
_ENUMERATIONS = ("jax.lax.Precision.", "jax.lax.DotAlgorithmPreset.")
# Position of ``precision`` in calls where it may be positional.
_POSITIONS = {"jax.lax.dot": 2, "jax.lax.dot_general": 3}


def need_of(dot: Dot, resolver: Resolver) -> Need:
    """What a product asks for float32 operands."""
    if not isinstance(dot.node, ast.Call):
        return "tf32"  # ``a @ b``
    keywords = {k.arg: k.value for k in dot.node.keywords}
    allowed = keywords.get("allow_tf32")
    if allowed is not None and not _is_none(allowed):
        known = isinstance(allowed, ast.Constant)
        return ("tf32" if allowed.value else "ieee") if known else "other"  # type: ignore[union-attr]
    if dot.function in (f"{TRITON}.dot", f"{PALLAS}.dot") and len(dot.node.args) > 4 or None in keywords:
        return "other"
    value = keywords.get("precision")
    at = _POSITIONS.get(dot.function, len(dot.node.args))
    if value is None and len(dot.node.args) > at:
        value = dot.node.args[at]
    return "tf32" if value is None else _need(value, resolver)


def _need(node: ast.expr, resolver: Resolver) -> Need:
    node = resolver.value(node)  # type: ignore[assignment]
    if _is_none(node):
        return "tf32"
    if isinstance(node, (ast.Tuple, ast.List)):
        needs = [_need(e, resolver) for e in node.elts]
        if "other" in needs or not needs:
            return "other"
        return "tf32" if "tf32" in needs else "ieee"
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return _NEEDS.get(node.value.lower(), "other")
    name = resolver.qualified(node) or ""
    prefix = next((p for p in _ENUMERATIONS if name.startswith(p)), None)
    return "other" if prefix is None else _NEEDS.get(name.removeprefix(prefix).lower(), "other")


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None
