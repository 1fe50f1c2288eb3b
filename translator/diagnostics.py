"""Coded findings: what stays on Triton and why, which numerics changed, what would run faster.

Every finding carries a code, a place in the source, the reason and what the user can do.
The first letter of a code says what the finding is about, and whether it keeps a call on Triton:

====  ======================================================================  ==============
``B``  the kernel *body*: an expression that Mosaic GPU cannot take             keeps on Triton
``C``  the *call*: grid, specs, scalar prefetch, backend                        keeps on Triton
``N``  numerics: the port computes the same thing with another rounding         note
``P``  performance advice that needs a change of the user's own code            note
====  ======================================================================  ==============

The texts live in ``CODES``, so that ``pallas-port explain CODE`` and the pages can show them.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Code:
    """One kind of finding. ``title`` is a short phrase, ``explanation`` a paragraph."""

    code: str
    title: str
    explanation: str

    @property
    def blocks(self) -> bool:
        """True if a finding of this kind keeps its call on the Triton backend."""
        return self.code[0] in "BC"


@dataclasses.dataclass(frozen=True, order=True)
class Diagnostic:
    """One finding at one place. ``line`` counts from 1, ``column`` from 1 (as editors do)."""

    line: int
    column: int
    code: str
    reason: str
    advice: str = ""

    @property
    def blocks(self) -> bool:
        return CODES[self.code].blocks

    def render(self, filename: str) -> str:
        """``file:line:column: CODE reason (advice)``, one line, as compilers print it."""
        advice = f" ({self.advice})" if self.advice else ""
        return f"{filename}:{self.line}:{self.column}: {self.code} {self.reason}{advice}"


class InputError(Exception):
    """The user's input cannot be read or used: one line for stderr, exit code 2."""


_ALL: tuple[Code, ...] = (
    Code("B101", "statement or expression not followed",
         "The kernel uses a Python construct that the model of the kernel does not follow. Write it with assignments, loops and conditionals."),
    Code("B102", "control flow not followed",
         "A loop, branch or decorator whose body is not a function of the same file, or a form of it that has no counterpart."),
    Code("B103", "read-modify-write of one element",
         "Every thread of a program would read the element, change it and write it back. Keep the value in a variable, or use an atomic operation."),
    Code("B104", "index of a ref not followed",
         "The port must know how each dimension of a ref is indexed: pl.ds, a full slice, an integer or a vector of integers."),
    Code("B105", "change of an array's shape in registers",
         "Register arrays cannot be indexed, reshaped or given new axes, except x[:, None] and x[None, :] on arrays of rank 1, and the index 0 of a dimension of extent 1."),
    Code("B106", "array accessed as one element", "The index names one element, the value is an array."),
    Code("B107", "store of a thin array", "An array with a dimension of extent 1 has no register layout of its own."),
    Code("B108", "scalar stored into a tile", "A store needs an array of the tile's shape."),
    Code("B109", "access in a helper that cannot get its layout",
         "A helper function that loads or stores gets the register layout as a parameter; it must be a plain function of the file that kernels call by its name, for tiles of one shape."),
    Code("B110", "unknown function",
         "The port does not know what this function does to register arrays. Its source is not in this file, or the operation has no rewrite yet."),
    Code("B111", "index vector of unknown extent", "Write jnp.arange(size) with a static size, plus an offset."),
    Code("B112", "reduction not followed", "Give one literal axis of an array of rank 1 or 2, along a dimension of more than one element."),
    Code("B113", "grid axis not literal", "program_id and num_programs need a literal axis."),
    Code("B114", "arguments of an access not readable",
         "load and store must name the ref, the index and the value; arguments passed with * or ** cannot be read. Both load(ref.at[index]) and the earlier load(ref, index) are."),
    Code("B120", "primitive without a Mosaic GPU rule",
         "Mosaic GPU has no lowering rule (or no layout inference) for a primitive of this expression. Write it with operations that have one."),
    Code("B121", "one index vector for rows and columns", "A register array has one layout. Use two jnp.arange, one for rows and one for columns."),
    Code("B122", "tile shape not known at the head of the kernel", "Layouts are named before the first load; the tile's shape must be known there."),
    Code("B123", "tile of rank 3 or more", "Blocked layouts have rank 1 or 2."),
    Code("B124", "index vector without a tile",
         "Register arrays take their layout from the loads and stores that they meet; an index vector that meets none has no layout."),
    Code("B125", "tile larger than registers",
         "One warpgroup of 128 threads holds a tile in registers, of which a thread has 255. On the Triton backend num_warps shares a tile among more threads."),
    Code("B130", "matrix product not planned",
         "The matrix product is not of a form that this version pipelines; the reason says what is missing."),
    Code("B132", "tile that the target cannot take", "The output tile of a matrix product does not fit the target's matrix unit, registers or tensor memory. Block sizes belong to your code."),
    Code("B133", "float32 product without an instruction",
         "Matrix units multiply float32 operands only as TF32, with 10 bits of mantissa, and the tcgen05_mma of these JAX versions not even so. On Hopper operands at precision HIGHEST are split into bfloat16 parts, unless an operand is computed."),
    Code("B131", "dtype not covered", "The recorded call used a dtype that this version does not port."),
    Code("B140", "programs accumulate in one block",
         "Programs along a grid axis read and write the same block of an output. On a GPU they run at the same time, so this is a race on Triton too. Where the axis can be run as a loop in each program the port does so; the reason says why not here."),
    Code("C201", "kernel not found", "The kernel behind the call must be a function of the same file."),
    Code("C202", "grid or specs not readable", "Block shapes and index maps become views; they must be readable beside the call."),
    Code("C203", "argument without counterpart", "plgpu.kernel has no such argument."),
    Code("C204", "kernel shared with a call that stays", "A kernel function is ported for all of its calls or for none."),
    Code("C205", "helper shared with a kernel that stays", "A helper function is rewritten for all of its callers or for none."),
    Code("C206", "kernel shared with another backend", "The kernel is also launched on another backend."),
    Code("C207", "kernel also called directly", "Other code calls the kernel function and needs it as it is."),
    Code("C208", "grid axis outside the grid", "program_id asks for an axis that the grid does not have."),
    Code("C209", "ROCm branch", "On AMD GPUs the Triton backend is the only one: Mosaic GPU raises there."),
    Code("C210", "name of support code taken", "The port would emit a support function of a name that the module already binds."),
    Code("N201", "order of additions changed", "A sum is taken in another order than in the source; the result may differ in the last bits."),
    Code("N202", "square root by rsqrt", "The port computes the square root by lax.rsqrt."),
    Code("N203", "callable not followed", "A function passed into the kernel was taken to be elementwise."),
    Code("N204", "implicit backend", "The call names no backend. Before JAX 0.9 it ran on Triton, since then on Mosaic GPU."),
    Code("N205", "precision of a matrix product", "Says what precision the matrix unit works in."),
    Code("N206", "several programs write one block",
         "Every program along a grid axis writes the same block of an output. The value of one of them stays, and it is not defined which, on Triton as on Mosaic GPU."),
    Code("P301", "tile advice", "Another tile would run faster; block sizes belong to your code."),
    Code("P302", "tile as large as registers",
         "One warpgroup of 128 threads holds a tile in registers, of which a thread has 255. What does not fit is kept in local memory."),
)
CODES: dict[str, Code] = {c.code: c for c in _ALL}
