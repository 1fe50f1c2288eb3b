"""Rung ``compile``: the whole GPU compiler, ptxas included, makes machine code for the target, without a GPU.

Runs in a process of its own per target: Mosaic GPU's last pass remembers the first architecture that it sees.

Options: ``instructions``, opcodes that must be in the SASS; ``max_spill_bytes``, per kernel.
"""

from __future__ import annotations

import ast
import dataclasses
import os
import pathlib
import tempfile
from typing import Any

import jax

from . import assembly
from .example import Subject, make_call
from .rung import Fail
from .target import compile_only_topology


def check(subject: Subject, target: str, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """``data["kernels"]``: one :class:`assembly.Kernel` as a dict per compiled kernel."""
    topology = compile_only_topology(target)
    call = make_call(subject)
    with tempfile.TemporaryDirectory(prefix="pallas-port-dump-") as directory:
        os.environ["MOSAIC_GPU_DUMP_TO"] = directory  # read by the compiler for every kernel
        try:
            _compile(call, topology)
        finally:
            del os.environ["MOSAIC_GPU_DUMP_TO"]
        kernels = assembly.read_dump(pathlib.Path(directory))
    data: dict[str, Any] = {"kernels": [dataclasses.asdict(kernel) for kernel in kernels]}
    if not kernels:
        raise Fail("no Mosaic GPU kernel was compiled", data)
    if missing := assembly.missing_instructions(kernels, options.get("instructions", ())):
        raise Fail(f"not in the machine code: {', '.join(missing)}", data)
    limit = options.get("max_spill_bytes")
    spilling = [kernel for kernel in kernels if limit is not None and kernel.spill_bytes > limit]
    if spilling:
        worst = max(spilling, key=lambda kernel: kernel.spill_bytes)
        raise Fail(f"{worst.name} spills {worst.spill_bytes} bytes, the bound is {limit}", data)
    notes = [_summary(kernel) for kernel in kernels]
    if _asks_for_registers(subject.ported_text) and not any(
        assembly.has_instruction(kernel, "USETMAXREG") for kernel in kernels
    ):
        data["set_max_registers_ignored"] = True
        notes.append("set_max_registers was ignored by ptxas: no USETMAXREG (is nvidia-nvjitlink installed?)")
    return "; ".join(notes), data


def _compile(call, topology) -> None:
    mesh = jax.sharding.Mesh([topology.devices[0]], ("x",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    shapes = [jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=sharding) for a in call.arrays]
    with jax.default_device(topology.devices[0]):
        jax.jit(call.port).trace(*shapes).lower().compile()


def _asks_for_registers(text: str) -> bool:
    names = {node.attr for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Attribute)}
    return "set_max_registers" in names


def _summary(kernel: assembly.Kernel) -> str:
    tensor = [op for op in ("HGMMA", "UTCHMMA", "HMMA", "UTMALDG") if assembly.has_instruction(kernel, op)]
    parts = [
        f"{kernel.arch}: {kernel.registers} registers",
        f"{kernel.spill_bytes} bytes spilled",
        f"{kernel.shared_bytes} bytes shared",
    ]
    if kernel.tmem_columns:
        parts.append(f"{kernel.tmem_columns} TMEM columns")
    if not kernel.disassembled:
        parts.append("no nvdisasm, PTX only")
    return ", ".join(parts + tensor)
