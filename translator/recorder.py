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
    ``source_info_util._source_info_context``: see ``_own_places``.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import itertools
import json
import linecache
import os
import sys
import sysconfig
import threading

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
        self._is_library = _library_test(jax)
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
        interpreted = make(kernel, out_shape, **{**kwargs, "interpret": True})
        as_written = bool(kwargs.get("interpret")) or kwargs.get("mesh") is not None

        def call(*args):
            outer = getattr(self._local, "site", None)
            self._local.site = site
            try:
                with _own_places():
                    run = native if as_written else self._runnable(native, interpreted, site, args)
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

    def _runnable(self, native, interpreted, site, args):
        """The function that stands in for the kernel on this machine."""
        import jax

        if jax.default_backend() == "gpu":
            return native
        leaves, tree = jax.tree.flatten(args)
        avals = [jax.ShapeDtypeStruct(jax.typeof(x).shape, jax.typeof(x).dtype) for x in leaves]
        key = (tree, tuple((a.shape, str(a.dtype)) for a in avals))
        failures = site["failures"]
        if key not in failures:
            # Errors while tracing are the user's own and surface in the user's call. What only
            # shows when interpret mode lowers the kernel is a limit of interpret mode.
            traced = jax.jit(interpreted).trace(*jax.tree.unflatten(tree, avals))
            failures[key] = self._interpret_failure(traced)
            if failures[key]:
                self._write({"note": f"{site['file']}:{site['line']}: {site['kernel']} cannot be "
                                     f"interpreted ({failures[key]}); its result was replaced by "
                                     "zeros"})
        if not failures[key]:
            return interpreted

        def zeros(*args):
            shapes = jax.eval_shape(interpreted, *args)
            return jax.tree.map(lambda s: jax.numpy.zeros(s.shape, s.dtype), shapes)

        return zeros

    def _interpret_failure(self, traced):
        """Why a traced call cannot be interpreted, in one line; "" if it can."""
        try:
            traced.lower()
        except Exception as error:
            return f"{type(error).__name__}: {str(error).strip().splitlines()[:1]}"
        return ""

    # -- descriptions

    def _describe_call(self, kernel, kwargs):
        function, statics = _bound_arguments(kernel)
        code = getattr(function, "__code__", None)
        params = kwargs.get("compiler_params")
        place = self._place(*_caller(self._is_library))
        return {
            **place,
            "kernel": getattr(function, "__name__", type(function).__name__),
            "kernel_file": self._path(code.co_filename) if code else "",
            "kernel_line": _definition_line(code) if code else 0,
            "code": (code.co_filename, code.co_qualname) if code else None,
            "failures": {},
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
        public = {k: v for k, v in site.items() if k not in ("code", "failures")}
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
                "params": {k: _plain(v) for k, v in eqn.params.items() if _is_telling(k, v)},
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
        return {
            "file": self._path(code.co_filename),
            "line": line,
            "column": column,
            "end_line": end_line,
            "end_column": end_column,
        }

    # -- files

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


def _library_test(jax):
    """A function of a file name: is this code of JAX, of the standard library or of the recorder?

    JAX's public ``experimental`` folder is not: it holds kernels (``pallas/ops``) that people
    port, and no machinery.
    """
    root = os.path.dirname(jax.__file__)
    folders = [os.path.join(root, "_src") + os.sep, os.path.join(root, "interpreters") + os.sep]
    for name in ("numpy", "jaxlib"):
        spec = importlib.util.find_spec(name)
        if spec and spec.origin:
            folders.append(os.path.dirname(spec.origin) + os.sep)
    standard = sysconfig.get_path("stdlib") + os.sep
    # Usually a folder of the standard library's: what is installed there may be the user's.
    installed = (sysconfig.get_path("purelib") + os.sep, sysconfig.get_path("platlib") + os.sep)

    @functools.cache
    def is_library(filename):
        if filename.startswith("<frozen") or filename == __file__:
            return True
        if filename.startswith(tuple(folders)):
            return True
        return filename.startswith(standard) and not filename.startswith(installed)

    return is_library


@contextlib.contextmanager
def _own_places():
    """Equations traced inside get their own places. A backward pass runs with the place of the
    forward call set for all of its equations, which would hide the lines of its kernel."""
    from jax._src import source_info_util

    holder = source_info_util._source_info_context
    before = holder.context
    holder.context = before.__class__(None, before.name_stack)
    try:
        yield
    finally:
        holder.context = before


def _caller(is_library):
    """Code and place (line, column, end line, end column) of the innermost frame of the user's."""
    frame = sys._getframe(1)
    while frame.f_back and is_library(frame.f_code.co_filename):
        frame = frame.f_back
    positions = frame.f_code.co_positions()
    line, end_line, column, end_column = next(
        itertools.islice(positions, frame.f_lasti // 2, None)
    )
    line = line or frame.f_lineno
    return frame.f_code, line, column or 0, end_line or line, end_column or 0


def _bound_arguments(kernel):
    """The function below partials and wrappers, and the scalars bound to it on the way."""
    statics = {}
    while True:
        if isinstance(kernel, functools.partial):
            names = _parameter_names(kernel.func)
            bound = {**dict(zip(names, kernel.args)), **kernel.keywords}
            statics = {**{k: v for k, v in bound.items() if _is_scalar(v)}, **statics}
            kernel = kernel.func
        elif hasattr(kernel, "__wrapped__"):
            kernel = kernel.__wrapped__
        else:
            break
    code = getattr(kernel, "__code__", None)
    for name, cell in zip(code.co_freevars if code else (), kernel.__closure__ or ()):
        try:
            value = cell.cell_contents
        except ValueError:  # a name that its function has not assigned yet
            continue
        if _is_scalar(value):
            statics.setdefault(name, value)
    return kernel, statics


def _parameter_names(function):
    try:
        return list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return []


def _is_scalar(value):
    return value is None or type(value) in (bool, int, float, str)


def _definition_line(code):
    """The line of ``def`` (``co_firstlineno`` is that of the first decorator) or of the lambda."""
    for line in range(code.co_firstlineno, code.co_firstlineno + 100):
        if linecache.getline(code.co_filename, line).lstrip().startswith(("def ", "async def ")):
            return line if code.co_name != "<lambda>" else code.co_firstlineno
    return code.co_firstlineno


def _backend(params):
    if params is None:
        return "unstated"
    if isinstance(params, dict):  # the era of dict(triton=dict(...))
        return next(iter(params), "unstated")
    module = type(params).__module__
    for name in ("triton", "mosaic_gpu"):
        if name in module:
            return name
    return "mosaic_tpu"


def _fields(params):
    if params is None:
        return {}
    items = params.items() if isinstance(params, dict) else vars(params).items()
    return {k: _plain(v) for k, v in items}


def _bodies(params):
    """The jaxprs among an equation's parameters."""
    found = []
    for value in params.values():
        for item in value if isinstance(value, (tuple, list)) else (value,):
            body = getattr(item, "jaxpr", item)
            if hasattr(body, "eqns"):
                found.append(body)
    return found


def _is_telling(name, value):
    """Whether an equation's parameter says something once it is text: no jaxprs, no tree shapes."""
    return not (_bodies({name: value}) or callable(value) or name.endswith("tree"))


def _defined_in(jaxpr):
    return getattr(jaxpr.debug_info, "func_filename", None) or ""


def _aval(aval):
    inner = getattr(aval, "inner_aval", aval)
    shape = getattr(inner, "shape", ())
    dtype = getattr(inner, "dtype", None)
    return {
        "shape": [_dim(d) for d in shape],
        "dtype": str(dtype if dtype is not None else type(aval).__name__),
        "ref": inner is not aval,
    }


def _dim(dim):
    return dim if isinstance(dim, int) else None


def _plain(value):
    """A value as JSON can hold it; what it cannot hold, as text."""
    if _is_scalar(value):
        return value
    if isinstance(value, (tuple, list)):
        return [_plain(v) for v in value]
    name = getattr(value, "name", None)  # enums and dtypes by name
    return name if isinstance(name, str) else str(value)[:200]


def _import_file(path):
    """The module that ``path`` holds, imported below its package, so that relative imports work."""
    path = os.path.realpath(path)
    folder, name = os.path.dirname(path), os.path.splitext(os.path.basename(path))[0]
    while os.path.exists(os.path.join(folder, "__init__.py")):
        folder, name = os.path.dirname(folder), f"{os.path.basename(folder)}.{name}"
    if folder not in sys.path:
        sys.path.insert(0, folder)
    return importlib.import_module(name)


def run_example(example, kernel_file):
    """Runs ``FILE:FUNCTION`` and what its result asks for (see ``record.record_example``)."""
    path, _, name = example.rpartition(":")
    module = _import_file(path)
    target = _import_file(kernel_file)
    function = getattr(module, name, None)
    if not callable(function):
        raise SystemExit(f"{path} has no function {name}")
    result = function()
    if isinstance(result, tuple):
        result = {"run": result}
    for entry, args in (result if isinstance(result, dict) else {}).items():
        call = getattr(target, entry, None) or getattr(module, entry, None)
        if not callable(call):
            raise SystemExit(f"{name}() returned arguments for {entry}(), which "
                             f"{kernel_file} does not define")
        call(*args)


if __name__ == "__main__":
    run_example(*sys.argv[1:])
