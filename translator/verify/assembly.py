"""Reads what Mosaic GPU dumps for a compiled kernel: resources from ptxas, opcodes from the disassembly.

``MOSAIC_GPU_DUMP_TO`` makes the compiler leave, per kernel, ``K.ptx``, ``K.ptxas`` (the assembler's report),
``K.resources.txt`` and, if ``nvdisasm`` is installed, ``K.sass_ctrl``. All functions here are pure text
functions of those.
"""

from __future__ import annotations

import collections
import dataclasses
import pathlib
import re
from collections.abc import Iterable, Mapping

# PTX that can only become the SASS opcode on the left: the check that remains where there is no disassembler.
_PTX_OF_SASS: dict[str, str] = {
    "HGMMA": "wgmma.mma_async",
    "UTCHMMA": "tcgen05.mma",
    "UTMALDG": "cp.async.bulk.tensor",
    "UTMASTG": "cp.async.bulk.tensor",
    "USETMAXREG": "setmaxnreg",
    "LDTM": "tcgen05.ld",
    "HMMA": "mma.sync",
}


@dataclasses.dataclass(frozen=True)
class Kernel:
    """One compiled kernel; sizes in bytes, registers per thread.

    sass: count per full opcode such as ``LDG.E.128``; empty if ``disassembled`` is false.
    ptx: which of the known PTX instructions occur.
    """

    name: str
    arch: str
    registers: int
    spill_store_bytes: int
    spill_load_bytes: int
    shared_bytes: int
    tmem_columns: int
    disassembled: bool
    sass: dict[str, int]
    ptx: tuple[str, ...]
    warnings: tuple[str, ...]

    @property
    def spill_bytes(self) -> int:
        return self.spill_store_bytes + self.spill_load_bytes


def read_dump(directory: pathlib.Path) -> list[Kernel]:
    """All kernels that ``directory`` holds, in the order in which they were compiled."""
    kernels = sorted(directory.glob("*.ptx"), key=_serial)
    # The stages of the compiler number their files separately (``k_3.resources.txt`` may go with ``k_1.ptx``), but
    # in the same order.
    resources = sorted(directory.glob("*.resources.txt"), key=_serial)
    if len(resources) != len(kernels):
        resources = [path.with_suffix(".resources.txt") for path in kernels]
    return [_read(*paths) for paths in zip(kernels, resources, strict=True)]


def _serial(path: pathlib.Path) -> tuple[int, str]:
    number = re.search(r"_(\d+)\.", path.name)
    return int(number[1]) if number else 0, path.name


def has_instruction(kernel: Kernel, opcode: str) -> bool:
    """True if an instruction of the kernel has ``opcode``'s base and all its modifiers: ``LDG.E.128`` matches
    ``LDG.E.EF.128.CONSTANT``. Without a disassembly, decided from the PTX where that is possible, else false.
    """
    if not kernel.disassembled:
        return _PTX_OF_SASS.get(opcode.split(".")[0]) in kernel.ptx
    base, *modifiers = opcode.split(".")
    return any(
        parts[0] == base and set(modifiers) <= set(parts[1:]) for parts in (name.split(".") for name in kernel.sass)
    )


def missing_instructions(kernels: Iterable[Kernel], opcodes: Iterable[str]) -> list[str]:
    """The opcodes that no kernel has."""
    kernels = list(kernels)
    return [opcode for opcode in opcodes if not any(has_instruction(kernel, opcode) for kernel in kernels)]


def _read(ptx_path: pathlib.Path, resources_path: pathlib.Path) -> Kernel:
    ptx = ptx_path.read_text(errors="replace")
    report = _text(ptx_path.with_suffix(".ptxas"))
    resources = _text(resources_path)
    sass = _opcodes(_text(ptx_path.with_suffix(".sass_ctrl")))
    stores, loads = _numbers(report, r"(\d+) bytes spill stores, (\d+) bytes spill loads", 2)
    return Kernel(
        name=ptx_path.stem,
        arch=next(iter(re.findall(r"^\.target (\w+)", ptx, re.M)), ""),
        registers=_numbers(report, r"Used (\d+) registers", 1)[0],
        spill_store_bytes=stores,
        spill_load_bytes=loads,
        shared_bytes=_numbers(resources, r"smem_scratch_bytes=(\d+)", 1)[0],
        tmem_columns=sum(int(n) for n in re.findall(r"tmem\w*_cols=(\d+)", resources)),
        disassembled=bool(sass),
        sass=sass,
        ptx=tuple(sorted({name for name in _PTX_OF_SASS.values() if name in ptx})),
        warnings=tuple(sorted({line.strip() for line in report.splitlines() if "warning" in line or "ignored" in line})),
    )


def _text(path: pathlib.Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""


def _numbers(text: str, pattern: str, groups: int) -> tuple[int, ...]:
    match = re.search(pattern, text)
    return tuple(int(group) for group in match.groups()) if match else (0,) * groups


def _opcodes(sass: str) -> Mapping[str, int]:
    # "   -:-:1:Y:07        /*0010*/               @!P0 LDG.E.128 R4, [R2] ;": the guard is optional.
    found = re.findall(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Za-z0-9_.]*)", sass)
    return dict(sorted(collections.Counter(found).items()))
