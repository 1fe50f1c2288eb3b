"""Facts from running the user's own code once, when the user asks for it.

``record_command`` runs any command; every Python it starts is watched through a
``sitecustomize.py`` put in front of ``PYTHONPATH`` (see ``recorder.py``), whichever interpreter or
virtual environment it belongs to. ``record_example`` runs one function of a file the same way.
The user's code always runs in a child process: it may exit, change global state or choose a JAX
platform, and the port itself stays free of JAX.

Limits: Python started with ``-I``, ``-E`` or ``-S`` ignores ``PYTHONPATH`` and is not seen; of a
kernel that was already lowered into an exported artefact there is nothing to trace.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence

from .diagnostics import InputError
from .facts import Facts, SiteFacts, site_from_dict

_RECORDER = pathlib.Path(__file__).with_name("recorder.py")

# Runs in the child before its own code. A sitecustomize that this one hides still has to run.
_BOOTSTRAP = """\
import importlib.machinery, importlib.util, sys
_spec = importlib.util.spec_from_file_location("pallas_port_recorder", {recorder!r})
_recorder = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_recorder)
_recorder.install({out!r})
_hidden = importlib.machinery.PathFinder.find_spec(
    "sitecustomize", [p for p in sys.path if p != {folder!r}])
if _hidden is not None and _hidden.loader is not None:
    _hidden.loader.exec_module(importlib.util.module_from_spec(_hidden))
"""


def record_example(example: str, kernel_file: str) -> Facts:
    """Facts from one call of a function without arguments.

    example: ``FILE:FUNCTION``; ``FILE`` may be left out (``:example_inputs``) and is then
    ``kernel_file``. If the function returns a tuple, it is taken as the arguments of ``run`` in
    ``kernel_file``; if it returns a dict, as arguments by function name. Otherwise the function is
    expected to have called the kernels itself.

    Raises InputError if the file or function does not exist, or if its code fails.
    """
    path, colon, name = example.rpartition(":")
    path = path or kernel_file
    if not colon or not name.isidentifier():
        raise InputError(f"--example {example}: expected FILE:FUNCTION")
    for file in (path, kernel_file):
        if not os.path.isfile(file):
            raise InputError(f"--example {example}: no such file: {file}")
    command = [sys.executable, str(_RECORDER), f"{os.path.abspath(path)}:{name}",
               os.path.abspath(kernel_file)]
    return _record(command, f"--example {example}")


def record_command(command: Sequence[str]) -> Facts:
    """Facts from every ``pallas_call`` that ``command``, or a process it starts, traces.

    The command's output goes to stderr, since stdout belongs to the ported module.
    Raises InputError if the command cannot be started, fails, or runs no ``pallas_call``.
    """
    if not command:
        raise InputError("--record: no command after --")
    return _record(list(command), f"--record {shlex.join(command)}")


def _record(command: list[str], label: str) -> Facts:
    with tempfile.TemporaryDirectory(prefix="pallas-port-") as folder:
        out = os.path.join(folder, "recordings")
        os.mkdir(out)
        bootstrap = _BOOTSTRAP.format(recorder=str(_RECORDER), out=out, folder=folder)
        pathlib.Path(folder, "sitecustomize.py").write_text(bootstrap, encoding="utf-8")
        paths = [folder, *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        try:
            status = subprocess.run(command, env=environment, stdout=2).returncode
        except OSError as error:
            raise InputError(f"{label}: cannot run {command[0]}: {error.strerror}") from None
        records = [json.loads(line) for file in sorted(pathlib.Path(out).iterdir())
                   for line in file.read_text(encoding="utf-8").splitlines()]
    for record in records:
        if "note" in record:
            print(f"{label}: {record['note']}", file=sys.stderr)
    for record in records:
        if "error" in record:
            raise InputError(f"{label}: {record['error']}")
    if status:
        end = f"exited with status {status}" if status > 0 else f"was killed by signal {-status}"
        raise InputError(f"{label}: the command {end}")
    facts = _facts(records)
    if not facts:
        raise InputError(f"{label}: no pallas_call was run")
    return facts


def _facts(records: Sequence[Mapping]) -> Facts:
    """Sites of all records, with the batch sizes that ``vmap`` gave to their kernels."""
    batches: dict[str, list[tuple[int, ...]]] = {}
    for record in records:
        if "batched" in record:
            batches.setdefault(record["batched"], []).append(tuple(record["sizes"]))
    sites: list[SiteFacts] = []
    for record in records:
        if "site" in record:
            site = site_from_dict(record["site"])
            for batch in batches.get(record["source"], [()]):
                sites.append(dataclasses.replace(site, batch=batch))
    version = next((r["jax"] for r in records if "jax" in r), "")
    return Facts.of(sites, version)
