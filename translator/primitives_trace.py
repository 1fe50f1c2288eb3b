"""Measures what each public function of JAX is traced to, for the snapshots of ``primitives.py``.

``python -m pallas_port.translator.primitives_trace --snapshot`` calls every public function of
the array modules with as many small arrays as it requires, of float32 and of int32, and writes
down the primitives of the jaxpr. What needs other arguments (a shape, a function, a reference) has
a recipe here; a function that can be called neither way is left out, which means "not known".
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import operator
import pathlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from .rule_tables import TABLES

MODULES = ("jax.numpy", "jax.lax", "jax.nn", "jax.scipy.special")
# Call primitives: they wrap a body that is recorded as well.
WRAPPERS = frozenset({"jit", "pjit", "closed_call", "custom_jvp_call", "custom_vjp_call",
                      "custom_vjp_call_jaxpr", "remat2", "checkpoint", "custom_lin"})
# These touch files, devices or global settings.
_NOT_PURE = frozenset({
    "save", "savez", "load", "fromfile", "tofile", "set_printoptions", "printoptions",
    "get_printoptions", "infeed", "outfeed", "create_token", "device_put", "frompyfunc",
})
_OPERATORS = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and_", "or_", "xor", "lshift",
              "rshift", "eq", "ne", "lt", "le", "gt", "ge", "neg", "pos", "abs")
_SHAPE = (8, 16)


class Operands(NamedTuple):
    """What recipes work on, made outside the trace. ``x``, ``y``: (8, 16), float32 or int32."""

    x: Any
    y: Any
    t: Any  # (16, 8), the dtype of x
    row: Any  # (1, 16), the dtype of x
    mask: Any  # (8, 16) bool
    index: Any  # (4,) int32
    flag: Any  # () bool
    number: Any  # () int32


def _recipes() -> dict[str, Callable[[Operands], Any]]:
    """Functions that arrays alone do not call, and those whose plain call would mean little."""
    import jax
    import jax.numpy as jnp
    from jax import lax

    def same(v):
        return v

    return {
        "jax.numpy.zeros": lambda a: jnp.zeros(_SHAPE, a.x.dtype),
        "jax.numpy.ones": lambda a: jnp.ones(_SHAPE, a.x.dtype),
        "jax.numpy.full": lambda a: jnp.full(_SHAPE, 2, a.x.dtype),
        "jax.numpy.arange": lambda a: jnp.arange(16),
        "jax.numpy.linspace": lambda a: jnp.linspace(0.0, 1.0, 16),
        "jax.numpy.reshape": lambda a: jnp.reshape(a.x, (16, 8)),
        "jax.numpy.broadcast_to": lambda a: jnp.broadcast_to(a.x, (2, *_SHAPE)),
        "jax.numpy.expand_dims": lambda a: jnp.expand_dims(a.x, 0),
        "jax.numpy.swapaxes": lambda a: jnp.swapaxes(a.x, 0, 1),
        "jax.numpy.moveaxis": lambda a: jnp.moveaxis(a.x, 0, 1),
        "jax.numpy.concatenate": lambda a: jnp.concatenate([a.x, a.y]),
        "jax.numpy.stack": lambda a: jnp.stack([a.x, a.y]),
        "jax.numpy.split": lambda a: jnp.split(a.x, 2),
        "jax.numpy.where": lambda a: jnp.where(a.mask, a.x, a.y),
        "jax.numpy.clip": lambda a: jnp.clip(a.x, 0, 1),
        "jax.numpy.dot": lambda a: jnp.dot(a.x, a.t),
        "jax.numpy.matmul": lambda a: jnp.matmul(a.x, a.t),
        "jax.numpy.einsum": lambda a: jnp.einsum("mk,nk->mn", a.x, a.y),
        "jax.numpy.pad": lambda a: jnp.pad(a.x, 1),
        "jax.numpy.roll": lambda a: jnp.roll(a.x, 1),
        "jax.numpy.take": lambda a: jnp.take(a.x, a.index, axis=0),
        "jax.numpy.repeat": lambda a: jnp.repeat(a.x, 2),
        "jax.numpy.tile": lambda a: jnp.tile(a.x, 2),
        "jax.numpy.tril": lambda a: jnp.tril(a.x),
        "jax.numpy.triu": lambda a: jnp.triu(a.x),
        "jax.numpy.logical_not": lambda a: jnp.logical_not(a.mask),
        "jax.numpy.logical_and": lambda a: jnp.logical_and(a.mask, a.mask),
        "jax.numpy.logical_or": lambda a: jnp.logical_or(a.mask, a.mask),
        "jax.numpy.any": lambda a: jnp.any(a.mask),
        "jax.numpy.all": lambda a: jnp.all(a.mask),
        "jax.lax.full": lambda a: lax.full(_SHAPE, 2, a.x.dtype),
        "jax.lax.iota": lambda a: lax.iota(jnp.int32, 16),
        "jax.lax.broadcasted_iota": lambda a: lax.broadcasted_iota(jnp.int32, _SHAPE, 0),
        "jax.lax.broadcast": lambda a: lax.broadcast(a.x, (2,)),
        "jax.lax.broadcast_in_dim": lambda a: lax.broadcast_in_dim(a.x, (2, *_SHAPE), (1, 2)),
        "jax.lax.convert_element_type": lambda a: lax.convert_element_type(a.x, jnp.bfloat16),
        "jax.lax.bitcast_convert_type": lambda a: lax.bitcast_convert_type(a.x, jnp.uint32),
        "jax.lax.reshape": lambda a: lax.reshape(a.x, (16, 8)),
        "jax.lax.squeeze": lambda a: lax.squeeze(a.row, (0,)),
        "jax.lax.expand_dims": lambda a: lax.expand_dims(a.x, (0,)),
        "jax.lax.transpose": lambda a: lax.transpose(a.x, (1, 0)),
        "jax.lax.concatenate": lambda a: lax.concatenate([a.x, a.y], 0),
        "jax.lax.select": lambda a: lax.select(a.mask, a.x, a.y),
        "jax.lax.select_n": lambda a: lax.select_n(a.mask, a.x, a.y),
        "jax.lax.clamp": lambda a: lax.clamp(a.y, a.x, a.y),
        "jax.lax.dot": lambda a: lax.dot(a.x, a.t),
        "jax.lax.dot_general": lambda a: lax.dot_general(a.x, a.y, (((1,), (1,)), ((), ()))),
        "jax.lax.integer_pow": lambda a: lax.integer_pow(a.x, 3),
        "jax.lax.slice": lambda a: lax.slice(a.x, (0, 0), (4, 4)),
        "jax.lax.dynamic_slice": lambda a: lax.dynamic_slice(a.x, (0, 0), (4, 4)),
        "jax.lax.argmax": lambda a: lax.argmax(a.x, 0, jnp.int32),
        "jax.lax.argmin": lambda a: lax.argmin(a.x, 0, jnp.int32),
        "jax.lax.reduce_sum": lambda a: lax.reduce_sum(a.x, (0,)),
        "jax.lax.reduce_max": lambda a: lax.reduce_max(a.x, (0,)),
        "jax.lax.reduce_min": lambda a: lax.reduce_min(a.x, (0,)),
        "jax.lax.reduce_prod": lambda a: lax.reduce_prod(a.x, (0,)),
        "jax.lax.fori_loop": lambda a: lax.fori_loop(0, 4, lambda i, v: v, a.x),
        "jax.lax.while_loop": lambda a: lax.while_loop(lambda v: True, same, a.x),
        "jax.lax.scan": lambda a: lax.scan(lambda c, v: (c, None), a.y, a.x),
        "jax.lax.cond": lambda a: lax.cond(a.flag, same, same, a.x),
        "jax.lax.switch": lambda a: lax.switch(a.number, [same, same, same], a.x),
        "jax.nn.one_hot": lambda a: jax.nn.one_hot(a.index, 16),
        "jax.checkpoint": lambda a: jax.checkpoint(same)(a.x),
        "jax.lax.stop_gradient": lambda a: lax.stop_gradient(a.x),
        ".astype": lambda a: a.x.astype(jnp.bfloat16),
        ".reshape": lambda a: a.x.reshape(16, 8),
        ".swapaxes": lambda a: a.x.swapaxes(0, 1),
        ".clip": lambda a: a.x.clip(0, 1),
        ".dot": lambda a: a.x.dot(a.t),
        ".take": lambda a: a.x.take(a.index, axis=0),
        ".repeat": lambda a: a.x.repeat(2),
        "operator.matmul": lambda a: a.x @ a.t,
        "operator.invert": lambda a: ~a.mask,
        "operator.getitem": lambda a: a.x[:, None],
    }


def _kernel_recipes() -> dict[str, Callable[[Any, Any, Any], Any]]:
    """Functions that need a kernel around them. ``r``: Ref (8, 16), float32 or int32; ``m``: a
    bool array (16,); ``s``: Ref (), int32. What they return is used, so no tracing drops it."""
    import jax.numpy as jnp
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton

    pallas, gpu = "jax.experimental.pallas.", "jax.experimental.pallas.triton."
    recipes: dict[str, Callable[[Any, Any, Any], Any]] = {
        "ref.get": lambda r, m, s: r[...],
        "ref.set": lambda r, m, s: r.__setitem__(..., r[...]),
        f"{pallas}program_id": lambda r, m, s: pl.program_id(0),
        f"{pallas}num_programs": lambda r, m, s: pl.num_programs(0),
        f"{pallas}multiple_of": lambda r, m, s: pl.multiple_of(pl.program_id(0), 8),
        f"{pallas}when": lambda r, m, s: pl.when(pl.program_id(0) == 0)(lambda: pl.debug_print("x")),
        f"{pallas}loop": lambda r, m, s: pl.loop(0, 4)(lambda i: pl.debug_print("x")),
        f"{gpu}load": lambda r, m, s: triton.load(r.at[0, :], mask=m, other=0),
        f"{gpu}store": lambda r, m, s: triton.store(r.at[0, :], r[1, :], mask=m),
        f"{gpu}dot": lambda r, m, s: triton.dot(r[...], r[...], trans_b=True),
        f"{gpu}max_contiguous": lambda r, m, s: triton.max_contiguous(pl.program_id(0), 8),
        f"{gpu}debug_barrier": lambda r, m, s: triton.debug_barrier(),
        f"{gpu}approx_tanh": lambda r, m, s: triton.approx_tanh(r[...]),
        f"{gpu}atomic_cas": lambda r, m, s: triton.atomic_cas(s, jnp.int32(0), jnp.int32(1)),
    }
    for kind in ("add", "max", "min", "and", "or", "xor", "xchg"):
        atomic = getattr(triton, f"atomic_{kind}")
        recipes[f"{gpu}atomic_{kind}"] = lambda r, m, s, f=atomic: f(r, (0, slice(None)), r[1, :])
    return recipes


def _bodies(params: dict[str, Any]) -> Iterator[Any]:
    for value in params.values():
        for item in value if isinstance(value, (tuple, list)) else (value,):
            body = getattr(item, "jaxpr", item)
            if hasattr(body, "eqns"):
                yield body


def _collect(jaxpr: Any, primitives: set[str], wrappers: set[str]) -> None:
    for eqn in jaxpr.eqns:
        name = eqn.primitive.name
        (wrappers if name in WRAPPERS else primitives).add(name)
        for body in _bodies(eqn.params):
            _collect(body, primitives, wrappers)


def _trace(call: Callable[..., Any], *args: Any) -> tuple[set[str], set[str]] | None:
    """Primitives and wrappers of a call; None if it cannot be called so."""
    import jax

    try:
        jaxpr = jax.make_jaxpr(call)(*args)
    except Exception:  # whatever a function says about arguments that it was not made for
        return None
    primitives: set[str] = set()
    wrappers: set[str] = set()
    _collect(jaxpr.jaxpr, primitives, wrappers)
    return primitives, wrappers


def _calls(function: Callable[..., Any]) -> Iterator[Callable[[Operands], Any]]:
    """The calls to try: with as many arrays as are required, over one axis before over all."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        parameters = {}
    needed = [p for p in parameters.values() if p.default is p.empty
              and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    counts = (len(needed),) if 1 <= len(needed) <= 3 else (1, 2)
    over_axis = "axis" in parameters and parameters["axis"].default is None
    for keywords in ({"axis": -1}, {}) if over_axis else ({},):
        for count in counts:
            yield lambda a, n=count, k=keywords: function(*(a.x, a.y, a.y)[:n], **k)


def _method_calls(name: str) -> Iterator[Callable[[Operands], Any]]:
    yield lambda a: getattr(a.x, name)(axis=-1)
    yield lambda a: getattr(a.x, name)()
    yield lambda a: getattr(a.x, name)(a.y)


def _functions() -> Iterator[tuple[str, list[Callable[[Operands], Any]]]]:
    """Every name with the calls to try; the first that works counts."""
    import jax

    recipes = _recipes()
    for name, recipe in recipes.items():
        yield name, [recipe]
    for module_name in MODULES:
        module = importlib.import_module(module_name)
        for name in sorted(dir(module)):
            function = getattr(module, name, None)
            skipped = name.startswith("_") or name in _NOT_PURE or inspect.isclass(function)
            if not skipped and callable(function) and f"{module_name}.{name}" not in recipes:
                yield f"{module_name}.{name}", list(_calls(function))
    array = jax.numpy.zeros(_SHAPE)
    for name in sorted(dir(array)):
        if name.startswith("_") or name in _NOT_PURE or f".{name}" in recipes:
            continue
        if callable(getattr(type(array), name, None)):
            yield f".{name}", list(_method_calls(name))
        else:
            yield f".{name}", [lambda a, n=name: getattr(a.x, n)]
    for name in _OPERATORS:
        yield f"operator.{name}", list(_calls(getattr(operator, name)))


def trace_all() -> dict[str, dict[str, list[str]]]:
    """Every function of the installed JAX that could be traced: entries as in the snapshot."""
    functions: dict[str, dict[str, list[str]]] = {}
    kinds = {"float": _operands("float32"), "int": _operands("int32")}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, calls in _functions():
            entry: dict[str, list[str]] = {}
            wrappers: set[str] = set()
            for kind, operands in kinds.items():
                found = next(filter(None, (_trace(call, operands) for call in calls)), None)
                if found:
                    entry[kind] = sorted(found[0])
                    wrappers |= found[1]
            if wrappers:
                entry["wrappers"] = sorted(wrappers)
            if entry:
                functions[name] = entry
        for name, recipe in _kernel_recipes().items():
            found_in = {kind: _trace_kernel(recipe, dtype)
                        for kind, dtype in (("float", "float32"), ("int", "int32"))}
            entry = {kind: sorted(p - _noise(name)) for kind, p in found_in.items() if p}
            if entry:
                functions[name] = entry
    return dict(sorted(functions.items()))


def _operands(dtype: str) -> Operands:
    import jax.numpy as jnp

    x = jnp.ones(_SHAPE, dtype)
    return Operands(x, x, x.T, x[:1], x > 0, jnp.arange(4), jnp.bool_(True), jnp.int32(1))


def _noise(recipe_name: str) -> set[str]:
    """Primitives that serve a kernel recipe and are not what it shows: operands, use of results."""
    noise = {"debug_print", "get"}
    if recipe_name.endswith((".multiple_of", ".when", ".max_contiguous")):
        noise |= {"program_id", "eq", "convert_element_type"}
    return noise - {recipe_name.removeprefix("ref.")}


def _trace_kernel(recipe: Callable[[Any, Any, Any], Any], dtype: str) -> set[str] | None:
    """The primitives of a kernel body that does one thing; None if it cannot be traced."""
    import jax
    from jax.experimental import pallas as pl

    def kernel(r, mask, scalar, out):
        del out
        result = recipe(r, mask[...], scalar)
        if result is not None:
            pl.debug_print("{}", result)

    data = jax.ShapeDtypeStruct(_SHAPE, dtype)
    mask, scalar = jax.ShapeDtypeStruct(_SHAPE[1:], "bool"), jax.ShapeDtypeStruct((), "int32")
    call = pl.pallas_call(kernel, out_shape=data, grid=(2,))
    try:
        jaxpr = jax.make_jaxpr(call)(data, mask, scalar)
    except Exception:  # a dtype that the operation does not take
        return None
    primitives: set[str] = set()
    for eqn in jaxpr.jaxpr.eqns:
        _collect(eqn.params["jaxpr"], primitives, set())
    return primitives


def write_snapshot() -> pathlib.Path:
    """Writes the snapshot of the installed JAX, one function a line, and returns its path."""
    import jax

    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(entry)}"
                       for name, entry in trace_all().items())
    path = TABLES / f"primitives-{jax.__version__}.json"
    path.write_text(f'{{\n "jax": "{jax.__version__}",\n "functions": {{\n{lines}\n }}\n}}\n',
                    encoding="utf-8")
    return path


def _main() -> None:
    parser = argparse.ArgumentParser(description="Primitives of the installed JAX's functions.")
    parser.add_argument("--snapshot", action="store_true", required=True, help="write a snapshot")
    parser.parse_args()
    print(write_snapshot())


if __name__ == "__main__":
    _main()
