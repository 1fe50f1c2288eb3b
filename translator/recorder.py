"""The part of recording that runs inside the user's process: it watches ``pallas_call``.

Loaded by path from a ``sitecustomize.py`` that ``record.py`` puts in front of the child's import
path, so it must work in any Python that has JAX: standard library only, no relative imports.

How it works
    ``install(out_dir)`` waits for JAX to import ``jax._src.pallas.pallas_call`` (a program that
    never does pays nothing) and replaces two things in it, so that every alias of ``pallas_call``
    is covered whoever holds it: the internal ``_pallas_call``, which runs once per call expression
    and knows the place, the kernel and the compiler params; and ``pallas_call_p.bind``, which
    runs when the call is traced (also below ``jit``, ``vmap``, ``grad``) and knows the kernel's
    jaxpr and the grid mapping. Each recording is appended to ``out_dir`` as one JSON line at once:
    nothing is lost if the program crashes, forks or leaves through ``os._exit``.

What the user's program gets
    Without a GPU a Triton kernel cannot run, so the call runs in interpret mode; if the kernel
    cannot be interpreted, its result is zeros of the right shape, and a note says so.
    With a GPU the call runs as written.

Private JAX API, all of it in this file (works on 0.11.2 and 0.12.0.1)
    ``jax._src.pallas.pallas_call``: ``_pallas_call``, ``pallas_call_p``: see above; no public hook
    exists. The params of that primitive: ``jaxpr``, ``grid_mapping`` (``BlockMapping``),
    ``compiler_params``. ``eqn.source_info.traceback.raw_frames()`` and
    ``Traceback.code_addr2location``: the place of an equation. The public ``user_frames`` hides
    files inside the jax package, among them the kernels that JAX itself ships.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import itertools
import json
import linecache
import os
import runpy
import sys
import sysconfig
import threading
import types

_HOOKED = "jax._src.pallas.pallas_call"
# Call-like equations whose body is a library function unless its debug info says otherwise.
_CALLS = ("jit", "pjit", "closed_call", "core_call", "remat2", "checkpoint", "custom_jvp_call",
          "custom_vjp_call", "custom_vjp_call_jaxpr")


def install(out_dir: str) -> None:
    """Starts watching: now if JAX's Pallas is imported already, else as soon as it is."""
    if _HOOKED in sys.modules:
        _Recorder(sys.modules[_HOOKED], out_dir)
    else:
        sys.meta_path.insert(0, _AfterImport(out_dir))


class _AfterImport(importlib.abc.MetaPathFinder):
    """Runs the recorder's set-up right after the hooked module has been executed."""

    def __init__(self, out_dir):
        self._out_dir = out_dir

    def find_spec(self, name, path=None, target=None):
        if name != _HOOKED:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            _Recorder(module, self._out_dir)

        spec.loader.exec_module = exec_module
        return spec


class _Recorder:
    """Holds the state of one process: the sites seen, and the file that recordings go to."""

    def __init__(self, module, out_dir):
        import jax

        self._out_dir = out_dir
        self._start_dir = os.getcwd()
        self._library = _library_paths(jax)
        self._written = set()
        self._lock = threading.Lock()
        self._local = threading.local()
        make = getattr(module, "_pallas_call", None)
        primitive = getattr(module, "pallas_call_p", None)
        if make is None or primitive is None:
            self._write({"error": f"recording is not supported on jax {jax.__version__}: "
                                  "its pallas_call has another form"})
            return
        self._write({"jax": jax.__version__})
        self._bind = primitive.bind
        primitive.bind = self._on_bind
        module._pallas_call = functools.wraps(make)(functools.partial(self._on_call, make))

    # -- the two hooks

    def _on_call(self, make, kernel, out_shape, **kwargs):
        """Stands for ``_pallas_call``: notes the place, returns the function to be called."""
        site = self._describe_call(kernel, kwargs)
        native = make(kernel, out_shape, **kwargs)
        if kwargs.get("interpret") or kwargs.get("mesh") is not None:
            chosen = lambda args: native
        else:
            interpreted = make(kernel, out_shape, **{**kwargs, "interpret": True})
            chosen = lambda args: self._runnable(native, interpreted, out_shape, site, args)

        def call(*args):
            run = chosen(args)
            outer = getattr(self._local, "site", None)
            self._local.site = site
            try:
                return run(*args)
            finally:
                self._local.site = outer

        return call

    def _on_bind(self, *args, **params):
        """Stands for ``pallas_call_p.bind``: the first bind below a call carries its own jaxpr.

        Later ones are the work of transformations; ``vmap`` shows as additional grid axes.
        """
        site = getattr(self._local, "site", None)
        if site is not None:
            self._local.site = None
            self._write(self._describe_trace(site, params))
        else:
            mapping = params["grid_mapping"]
            if mapping.vmapped_dims:
                sizes = [_dim(mapping.grid[d]) for d in mapping.vmapped_dims]
                self._write({"batched": params["jaxpr"].debug_info.func_src_info, "sizes": sizes})
        return self._bind(*args, **params)

    # -- what the user's program computes with

    def _runnable(self, native, interpreted, out_shape, site, args):
        """The function that stands in for the kernel on this machine."""
        import jax

        if jax.default_backend() == "gpu":
            return native
        leaves, tree = jax.tree.flatten(args)
        avals = [jax.ShapeDtypeStruct(jax.typeof(x).shape, jax.typeof(x).dtype) for x in leaves]
        key = (tree, tuple((a.shape, str(a.dtype)) for a in avals))
        works = site.setdefault("works", {})
        if key not in works:
            # Trace errors are the user's own and must be raised where the user calls; what only
            # shows when interpret mode lowers the kernel is a limit of interpret mode.
            traced = jax.jit(interpreted).trace(*jax.tree.unflatten(tree, avals))
            try:
                traced.lower()
                works[key] = True
            except Exception as error:
                works[key] = False
                text = (str(error).splitlines() or [""])[0]
                self._write({"note": f"{site['file']}:{site['line']}: {site['kernel']} could not be "
                                     f"interpreted ({type(error).__name__}: {text}); its result "
                                     "was replaced by zeros"})
        if works[key]:
            return interpreted

        def zeros(*args):
            interpreted_shape = jax.eval_shape(interpreted, *args)  # traces: this is what records
            return jax.tree.map(lambda s: jax.numpy.zeros(s.shape, s.dtype), interpreted_shape)

        return zeros

    # -- descriptions

    def _describe_call(self, kernel, kwargs):
        function, statics = _bound_arguments(kernel)
        code = getattr(function, "__code__", None)
        params = kwargs.get("compiler_params")
        place = self._place(*_caller(self._library))
        return {
            **place,
            "kernel": getattr(function, "__name__", type(function).__name__),
            "kernel_file": self._path(code.co_filename) if code else "",
            "kernel_line": _definition_line(code) if code else 0,
            "code": (code.co_filename, code.co_qualname) if code else None,
            "statics": statics,
            "backend": _backend(params),
            "compiler_params": _fields(params),
            "interpret": bool(kwargs.get("interpret")),
        }

    def _describe_trace(self, site, params):
        mapping = params["grid_mapping"]
        operands = [
            {
                "array": _aval(m.array_aval),
                "block": [_dim(getattr(d, "block_size", d)) for d in m.block_shape],
                "kinds": [type(d).__name__.lower() for d in m.block_shape],
                "origin": str(m.origin),
            }
            for m in mapping.block_mappings
        ]
        public = {k: v for k, v in site.items() if k not in ("code", "works")}
        return {
            "source": params["jaxpr"].debug_info.func_src_info,
            "site": {
                **public,
                "grid": [_dim(d) for d in mapping.grid],
                "inputs": operands[: mapping.num_inputs],
                "outputs": operands[mapping.num_inputs :],
                "scratch": [_aval(a) for a in mapping.scratch_avals],
                "scalar_prefetch": mapping.num_index_operands,
                "aliases": [list(pair) for pair in params["input_output_aliases"]],
                "batch": [],
                "equations": list(self._equations(params["jaxpr"], site["code"], (), [])),
            },
        }

    def _equations(self, jaxpr, kernel_code, within, outer):
        """Yields the equations in order, each before those of its body.

        ``outer``: the places of the enclosing equation, taken over where an equation has none of
        its own. Bodies of library functions are traced once and cached, so their equations would
        name whoever called first: they always take over.
        """
        for eqn in jaxpr.eqns:
            places = self._places(eqn.source_info.traceback, kernel_code, outer)
            name = eqn.primitive.name
            first = places[0] if places else _NOWHERE
            yield {
                "primitive": name,
                **first,
                "in_avals": [_aval(v.aval) for v in eqn.invars],
                "out_avals": [_aval(v.aval) for v in eqn.outvars],
                "within": list(within),
                "callers": places[1:],
                "params": {k: _plain(v) for k, v in eqn.params.items() if not _holds_jaxpr(v)},
            }
            for body in _bodies(eqn.params):
                inner = (*within, name)
                if name in _CALLS and self._is_library(_defined_in(body)):
                    yield from self._all_at(body, inner, places)
                else:
                    yield from self._equations(body, kernel_code, inner, places)

    def _all_at(self, jaxpr, within, places):
        """The equations of a library function's body, all at the place of its call."""
        for eqn in self._equations(jaxpr, None, within, []):
            yield {**eqn, **(places[0] if places else _NOWHERE), "callers": places[1:]}

    def _places(self, traceback, kernel_code, outer):
        """Places of the user's frames, innermost first, out to the kernel's own frame."""
        codes, addresses = traceback.raw_frames() if traceback else ((), ())
        places = []
        for code, address in zip(codes, addresses):
            if self._is_library(code.co_filename):
                continue
            places.append(self._place(code, *type(traceback).code_addr2location(code, address)))
            if (code.co_filename, code.co_qualname) == kernel_code:
                return places
        # The kernel's frame is missing: the body of a cached function. Frames further out than
        # its own code belong to whoever traced it first, so only the innermost is sure.
        return places[:1] + [p for p in outer if p not in places[:1]]

    def _place(self, code, line, column, end_line, end_column):
        file = self._path(code.co_filename)
        return {
            "file": file,
            "line": line,
            "column": _characters(file, line, column),
            "end_line": end_line,
            "end_column": _characters(file, end_line, end_column),
        }

    # -- files

    def _is_library(self, filename):
        return filename.startswith(self._library) or filename.startswith("<frozen")

    def _path(self, filename):
        if filename.startswith("<"):
            return filename
        return os.path.realpath(os.path.join(self._start_dir, filename))

    def _write(self, record):
        line = json.dumps(record)
        with self._lock:
            if line not in self._written:
                self._written.add(line)
                path = os.path.join(self._out_dir, f"{os.getpid()}.jsonl")
                with open(path, "a", encoding="utf-8") as file:
                    file.write(line + "\n")


_NOWHERE = {"file": "", "line": 0, "column": 0, "end_line": 0, "end_column": 0}


def _library_paths(jax):
    """Prefixes of files that are not the user's. JAX's public ``experimental`` folder is: it holds
    kernels (``pallas/ops``) that people port, and no machinery."""
    root = os.path.dirname(jax.__file__)
    found = [os.path.join(root, "_src") + os.sep, os.path.join(root, "interpreters") + os.sep]
    found += [sysconfig.get_path("stdlib") + os.sep, __file__]
    for name in ("numpy", "jaxlib"):
        spec = importlib.util.find_spec(name)
        if spec and spec.origin:
            found.append(os.path.dirname(spec.origin) + os.sep)
    # Site-packages usually lies inside the standard library's folder: the user's tree may be there.
    site = tuple({sysconfig.get_path("purelib") + os.sep, sysconfig.get_path("platlib") + os.sep})
    return _Prefixes(tuple(found), site)


class _Prefixes:
    """A set of path prefixes with exceptions, asked through ``startswith`` by ``_is_library``."""
