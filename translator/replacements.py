"""What becomes of each primitive that the Triton backend lowers and Mosaic GPU does not.

``PRIMITIVES`` is the one place that says it: a support function, a rule, or why calls that need the
primitive stay on Triton. The tests go over the rule tables of the installed JAX and ask for an entry
of every Triton-only primitive, so that a new JAX shows its new ones.

A source function is replaced by what its measured primitives say (``primitives.py``): a function
that is one such primitive becomes that primitive's support function. Functions of JAX that are
several operations, at least one of which does not lower, have a support function each: ``FUNCTIONS``.
Support functions take the arguments of the function that they replace, in its order.
"""

from __future__ import annotations

import dataclasses

from .names import TRITON
from .primitives import primitives_of, unsupported_of, wrappers_of
from .rule_tables import load_tables


@dataclasses.dataclass(frozen=True)
class Support:
    """The call becomes a call of this support function. ``layout``: which needs the layout of its operand."""

    function: str
    layout: bool = False

    def __str__(self) -> str:
        return f"becomes {self.function} (MG402)"


@dataclasses.dataclass(frozen=True)
class Rewritten:
    """The rule ``code`` rewrites what produces the primitive."""

    code: str
    how: str

    def __str__(self) -> str:
        return f"{self.how} ({self.code})"


@dataclasses.dataclass(frozen=True)
class Kept:
    """Calls that need the primitive stay on Triton."""

    reason: str
    advice: str

    def __str__(self) -> str:
        return f"stays on Triton: {self.reason}"


Fate = Support | Rewritten | Kept

_NO_RESHAPE = "a register array cannot change its shape: each thread holds fixed elements of it"

PRIMITIVES: dict[str, Fate] = {
    **{p: Support(f"_{p}") for p in (
        "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cbrt", "ceil", "cosh", "erf_inv", "expm1",
        "floor", "log1p", "nextafter", "population_count", "pow", "sinh", "tan")},
    "is_finite": Support("_isfinite"),
    "argmax": Support("_argmax"),
    "argmin": Support("_argmin"),
    "cumsum": Support("_cumsum", layout=True),
    "dot_general": Rewritten("MG501", "becomes wgmma or tcgen05 products"),
    "masked_load": Rewritten("MG201", "becomes _load"),
    "masked_swap": Rewritten("MG202", "becomes _store"),
    "broadcast_to": Rewritten("MG201", "_load and _store broadcast index vectors"),
    "num_programs": Rewritten("MG102", "becomes the grid's extent"),
    "max_contiguous": Rewritten("MG403", "left out: vector widths are proven"),
    "stop_gradient": Rewritten("MG403", "left out: a kernel has no gradient"),
    "remat2": Rewritten("MG403", "left out: a kernel has no gradient"),
    "custom_jvp_call": Rewritten("MG402", "the function's body takes its place"),
    "addupdate": Kept("the update of a ref hides a load and a store", "write the load, the operation and the store"),
    "add_any": Kept("it comes from a derivative taken inside the kernel", "write the derivative out"),
    "atomic_rmw": Rewritten("MG204", "becomes _atomic"),
    "atomic_cas": Rewritten("MG204", "becomes _atomic_element"),
    "debug_barrier": Kept("a barrier orders accesses that the port moves", "leave it out if the kernel is right without"),
    "elementwise_inline_asm": Support("_inline_asm", layout=True),
    "transpose": Kept(_NO_RESHAPE, "load the transposed block, or transpose an operand of a product"),
    "split": Kept(_NO_RESHAPE, "load the parts"),
    "stack": Kept(_NO_RESHAPE, "store the parts one by one"),
    "unstack": Kept(_NO_RESHAPE, "load the parts one by one"),
    "rem": Support("_rem"),
}
PRIMITIVES |= {f"{name}_p": PRIMITIVES[name] for name in ("debug_barrier", "elementwise_inline_asm")}  # up to JAX 0.11

FUNCTIONS: dict[str, str] = {
    "jax.numpy.remainder": "_remainder",
    "jax.numpy.mod": "_remainder",
    "operator.mod": "_remainder",
    "jax.numpy.fmod": "_fmod",
    "jax.lax.rem": "_rem",
    "jax.numpy.floor_divide": "_floor_divide",
    "operator.floordiv": "_floor_divide",
    "jax.numpy.divmod": "_divmod",
    "builtins.divmod": "_divmod",
    "jax.numpy.float_power": "_float_pow",  # of integers too
    "jax.numpy.copysign": "_with_sign_of",
    "jax.numpy.logical_not": "_logical_not",
    "jax.numpy.signbit": "_signbit",
    "jax.numpy.invert": "_invert",
    "jax.numpy.bitwise_not": "_invert",
    "jax.numpy.bitwise_invert": "_invert",
    "jax.lax.bitwise_not": "_invert",
    "jax.numpy.trunc": "_trunc",
    "jax.numpy.fix": "_trunc",
    "jax.nn.relu": "_relu",
    "jax.nn.relu6": "_relu6",
    "jax.nn.hard_sigmoid": "_hard_sigmoid",
    "jax.nn.hard_silu": "_hard_silu",
    "jax.nn.hard_swish": "_hard_silu",
    "jax.nn.softplus": "_softplus",
    "jax.nn.log_sigmoid": "_log_sigmoid",
    "jax.nn.mish": "_mish",
    "jax.nn.elu": "_elu",
    "jax.nn.celu": "_celu",
    "jax.nn.selu": "_selu",
    "jax.nn.log1mexp": "_log1mexp",
    "jax.numpy.logaddexp": "_logaddexp",
    "jax.numpy.logaddexp2": "_logaddexp2",
    "jax.nn.softmax": "_softmax",
    "jax.nn.log_softmax": "_log_softmax",
    "jax.nn.logsumexp": "_logsumexp",
    "jax.scipy.special.softmax": "_softmax",
    "jax.scipy.special.log_softmax": "_log_softmax",
    "jax.scipy.special.logsumexp": "_logsumexp",
    "jax.numpy.nansum": "_nansum",
    "jax.numpy.ptp": "_ptp",
    "jax.numpy.count_nonzero": "_count_nonzero",
    "jax.numpy.linalg.norm": "_norm",
    "jax.numpy.var": "_var",
    "jax.numpy.std": "_std",
    ".var": "_var",
    ".std": "_std",
    "jax.scipy.special.xlogy": "_xlogy",
    "jax.scipy.special.xlog1py": "_xlog1py",
    "jax.scipy.special.entr": "_entr",
    "jax.scipy.special.logit": "_logit",
    f"{TRITON}.approx_tanh": "_approx_tanh",
    f"{TRITON}.elementwise_inline_asm": "_inline_asm",
}

# These lower where all operands are integers.
OF_FLOATS = frozenset({"_remainder", "_rem", "_fmod", "_floor_divide", "_divmod"})

# Replaced where the first argument is a number and others are arrays.
OF_NUMBERS: dict[str, str] = {"jax.numpy.where": "_where"}

# Reductions that both backends lower.
PLAIN_REDUCTIONS = frozenset({"sum", "max", "min", "mean", "amax", "amin"})

# Those that are no elementwise operations: what they give depends on all of an axis.
ALONG_AXES = frozenset({
    "_argmax", "_argmin", "_cumsum", "_softmax", "_log_softmax", "_logsumexp", "_var", "_std",
    "_nansum", "_ptp", "_count_nonzero", "_norm",
})

NEED_LAYOUT = frozenset(f.function for f in PRIMITIVES.values() if isinstance(f, Support) and f.layout)

# The call becomes its first argument.
UNWRAPPED = frozenset({
    "jax.lax.stop_gradient", "jax.checkpoint", "jax.remat", "jax.ad_checkpoint.checkpoint", f"{TRITON}.max_contiguous",
})
# Decorators: of what a derivative does, and of what both backends lower.
DERIVATIVES = frozenset({"jax.custom_jvp", "jax.checkpoint", "jax.remat", "jax.ad_checkpoint.checkpoint"})
JIT = frozenset({"jax.jit"})


def replacement(name: str) -> str | None:
    """The support function that takes the place of a source function, None if there is none."""
    if name in FUNCTIONS:
        return FUNCTIONS[name]
    needed = (primitives_of(name) or frozenset()) - {"convert_element_type"}
    if len(needed) == 1 and wrappers_of(name) <= {"jit"}:
        fate = PRIMITIVES.get(next(iter(needed)))
        return fate.function if isinstance(fate, Support) else None
    return None


@dataclasses.dataclass(frozen=True)
class Obstacle:
    """What Mosaic GPU does not lower of a source function.

    primitives: without a rule, sorted. reason, advice: of what keeps them on Triton, or "".
    """

    primitives: tuple[str, ...]
    reason: str = ""
    advice: str = ""

    def __str__(self) -> str:
        return ", ".join(self.primitives) + (f": {self.reason}" if self.reason else "")


def obstacle(name: str, kind: str = "") -> Obstacle | None:
    """What stands against a source function as it is; None if it lowers or is not known.

    kind: ``float``, ``int``, or "" where the dtype of the operands is not known.
    """
    missing = tuple(sorted(unsupported_of(name, "int" if kind == "int" else "float") - {"jit"}))
    if not missing:
        return None
    kept = next((f for p in missing if isinstance(f := PRIMITIVES.get(p), Kept)), None)
    if kept:
        return Obstacle(missing, kept.reason, kept.advice)
    nowhere = not all(map(load_tables().triton_supports, missing))
    return Obstacle(missing, "the Triton backend has none either" if nowhere else "")
