"""The example protocol: which function of a kernel file to call, and with what.

An example is ``FILE:FUNCTION``. ``FUNCTION()`` returns one of

* a tuple of arguments: the file's own ``run(*args)`` is called. This is the form of a self-contained kernel file,
  with ``run``, ``example_inputs`` and, if there is one, ``reference(*args)``;
* ``(callable, args)`` or ``(callable, args, kwargs)``: the callable is found by its qualified name in the kernel
  file and in its port;
* ``(name, args)`` or ``(name, args, kwargs)`` with a dotted name, the same;
* ``("example:NAME", args)`` or ``("example:NAME", args, kwargs)``: FILE's own ``NAME(module, *args)`` is called with
  the module of the kernel file and with that of its port, for what takes more than one call, such as gradients.

FILE may be the kernel file itself. ``reference(*args)``, where FILE has one, is what the results are held against;
a dict ``reference`` holds one function per name of the function to call.
"""

from __future__ import annotations

import dataclasses
import functools
import pathlib
import types
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from ..diagnostics import InputError
from . import modules


_IN_EXAMPLE = "example:"


class ExampleError(InputError):
    """The example cannot be used; the message says what is wrong with it."""


@dataclasses.dataclass(frozen=True)
class Subject:
    """What to verify, in JSON terms. ``kwargs`` are passed to the example function.

    entry: name of the function to call when the example returns a tuple of arguments, as in the protocol above.
    tolerance: largest relative norm error per dtype name; missing dtypes take the defaults of ``compare``.
    """

    filename: str
    ported_text: str
    example_file: str
    example_function: str
    kwargs: dict[str, Any] = dataclasses.field(default_factory=dict)
    entry: str = "run"
    tolerance: dict[str, float] = dataclasses.field(default_factory=dict)


def parse(example: str, filename: str) -> tuple[str, str]:
    """Splits ``FILE:FUNCTION``; ``:FUNCTION`` means the kernel file itself.

    Raises:
      ExampleError: if it has not that form or the file does not exist.
    """
    file, colon, function = example.rpartition(":")
    if not colon or not function.isidentifier():
        raise ExampleError(f"example must be FILE:FUNCTION, got {example!r}")
    file = file or filename
    if not pathlib.Path(file).is_file():
        raise ExampleError(f"example file {file} does not exist")
    return file, function


@dataclasses.dataclass(frozen=True)
class Call:
    """One call of the original and of the port with the same arguments.

    ``original`` and ``port`` take ``arrays`` only: what is not an array is bound, since it may be static.
    ``rebuild`` makes the positional arguments from other arrays in their places. ``reference`` is None where the
    example has none.
    """

    original_module: types.ModuleType
    port_module: types.ModuleType
    example_module: types.ModuleType
    original: Callable[..., Any]
    port: Callable[..., Any]
    args: tuple[Any, ...]
    arrays: list[Any]
    rebuild: Callable[[Sequence[Any]], tuple[Any, ...]]
    reference: Callable[[], Any] | None


def make_call(subject: Subject) -> Call:
    """Loads both modules and runs the example function.

    Raises:
      ExampleError: the example does not follow the protocol.
      Exception: whatever the modules or the example raise.
    """
    original = modules.load(subject.filename)
    port = modules.load(subject.filename, subject.ported_text, role="port")
    same = pathlib.Path(subject.example_file).resolve() == pathlib.Path(subject.filename).resolve()
    holder = original if same else modules.load(subject.example_file, role="example")
    function = getattr(holder, subject.example_function, None)
    if not callable(function):
        raise ExampleError(f"{subject.example_file} has no function {subject.example_function}")
    name, args, kwargs = _name_and_arguments(function(**subject.kwargs), subject.entry)
    reference = getattr(holder, "reference", None)
    if isinstance(reference, dict):
        reference = reference.get(name)
    leaves, tree = jax.tree.flatten((args, kwargs))
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, (jax.Array, np.ndarray, np.generic))]

    def rebuild(arrays: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        full = list(leaves)
        for place, array in zip(places, arrays, strict=True):
            full[place] = array
        return jax.tree.unflatten(tree, full)

    def over_arrays(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arrays):
            args, kwargs = rebuild(arrays)
            return function(*args, **kwargs)

        return call

    return Call(
        original_module=original,
        port_module=port,
        example_module=holder,
        original=over_arrays(_function(name, original, holder)),
        port=over_arrays(_function(name, port, holder)),
        args=args,
        arrays=[leaves[place] for place in places],
        rebuild=lambda arrays: rebuild(arrays)[0],
        reference=functools.partial(reference, *args) if callable(reference) else None,
    )


def _name_and_arguments(value: Any, entry: str) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
    if not isinstance(value, tuple) or not value:
        raise ExampleError(f"the example function must return a tuple, got {type(value).__name__}")
    head, *rest = value
    if callable(head) or isinstance(head, str):
        if len(rest) not in (1, 2) or not isinstance(rest[0], (tuple, list)):
            raise ExampleError("the example must return (function, args) or (function, args, kwargs)")
        name = head if isinstance(head, str) else getattr(head, "__qualname__", None)
        if not name or "<" in name:
            raise ExampleError(f"{head!r} has no name at module level; return the name instead")
        return name, tuple(rest[0]), dict(rest[1]) if len(rest) == 2 else {}
    return entry, value, {}


def _function(name: str, module: types.ModuleType, holder: types.ModuleType) -> Callable[..., Any]:
    if name.startswith(_IN_EXAMPLE):
        return functools.partial(_lookup(holder, name.removeprefix(_IN_EXAMPLE)), module)
    return _lookup(module, name)


def _lookup(module: types.ModuleType, name: str) -> Callable[..., Any]:
    try:
        return functools.reduce(getattr, name.split("."), module)
    except AttributeError:
        raise ExampleError(f"{module.__file__} has no {name}") from None

