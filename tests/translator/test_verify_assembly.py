"""Reading the compiler's dumps."""

import pytest

from pallas_port.translator.verify import assembly

PTX = ".version 9.0\n.target sm_90a\n.address_size 64\n wgmma.mma_async.sync.aligned.m64n128k16;\n setmaxnreg.dec;\n"
REPORT = """ptxas info    : Compiling entry function 'k' for 'sm_90a'
    8 bytes stack frame, 12 bytes spill stores, 20 bytes spill loads
ptxas info    : Used 168 registers, used 16 barriers, 1 bytes smem
ptxas warning : 'setmaxnreg' ignored to maintain minimum register requirements.
"""
RESOURCES = "Resources(smem_scratch_bytes=2048, tmem_scratch_cols=128, tmem_collective_scratch_cols=0)"
SASS = """
   -:-:-:Y:01        /*0000*/                   LDC R1, c[0x0][0x28]
   -:-:1:Y:07        /*0010*/              @!P0 LDG.E.EF.128.CONSTANT R4, [R2]
   -:-:1:Y:07        /*0020*/             @!UP0 HGMMA.64x128x16.F32 R24, gdesc[UR4]
   -:-:1:Y:07        /*0030*/                   LDG.E.128 R4, [R2]
"""


def dump(tmp_path, sass=SASS):
    for suffix, text in {"ptx": PTX, "ptxas": REPORT, "resources.txt": RESOURCES, "sass_ctrl": sass}.items():
        if text:
            (tmp_path / f"k_0.{suffix}").write_text(text)
    [kernel] = assembly.read_dump(tmp_path)
    return kernel


def test_resources(tmp_path):
    kernel = dump(tmp_path)
    assert (kernel.name, kernel.arch, kernel.registers) == ("k_0", "sm_90a", 168)
    assert (kernel.spill_bytes, kernel.shared_bytes, kernel.tmem_columns) == (32, 2048, 128)
    assert kernel.warnings == ("ptxas warning : 'setmaxnreg' ignored to maintain minimum register requirements.",)


def test_opcodes(tmp_path):
    kernel = dump(tmp_path)
    assert kernel.sass == {"HGMMA.64x128x16.F32": 1, "LDC": 1, "LDG.E.128": 1, "LDG.E.EF.128.CONSTANT": 1}


@pytest.mark.parametrize(
    "opcode, present",
    [("LDG", True), ("LDG.E.128", True), ("LDG.128", True), ("LDG.64", False), ("LD", False), ("USETMAXREG", False)],
)
def test_instruction_matches_base_and_modifiers(tmp_path, opcode, present):
    assert assembly.has_instruction(dump(tmp_path), opcode) is present


def test_without_disassembly_the_ptx_answers_where_it_can(tmp_path):
    kernel = dump(tmp_path, sass="")
    assert not kernel.disassembled
    assert assembly.has_instruction(kernel, "HGMMA")
    assert assembly.missing_instructions([kernel], ["HGMMA", "UTMALDG", "LDG.E.128"]) == ["UTMALDG", "LDG.E.128"]


def test_resources_numbered_apart_from_the_code(tmp_path):
    for code, resources, size in ((1, 3, 1024), (10, 11, 4096)):
        (tmp_path / f"k_{code}.ptx").write_text(PTX)
        (tmp_path / f"k_{resources}.resources.txt").write_text(f"Resources(smem_scratch_bytes={size})")
    kernels = assembly.read_dump(tmp_path)
    assert [(kernel.name, kernel.shared_bytes) for kernel in kernels] == [("k_1", 1024), ("k_10", 4096)]


def test_empty_dump(tmp_path):
    assert assembly.read_dump(tmp_path) == []
    assert assembly.missing_instructions([], ["HGMMA"]) == ["HGMMA"]
