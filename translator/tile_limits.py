"""Which output tiles of a matrix product a target can take, with the arithmetic.

The emitted code checks the same when it is traced (``rewrites/support/wgmma.py``, ``tcgen05.py``).
Where tile sizes are known to the plan, by constants or recordings, a tile that cannot work is a
diagnosis instead.  Sources: wgmma takes 64 rows and up to 256 columns in steps of 8 per instruction
(PTX ISA, wgmma.mma_async); a warpgroup of two has 232 registers per thread, of which 192 may hold
accumulators; tcgen05.mma takes 64 or 128 rows and up to 256 columns in steps of 16, and an SM has
512 columns of tensor memory (PTX ISA, tcgen05).  Tiles of 16 or 32 rows keep some of an instruction's rows.
"""

from __future__ import annotations

from .result import Target

_TCGEN05_ROWS = (16, 32, 64, 128, 256)


def tile_problem(target: Target, rows: int, cols: int, accumulators: int) -> str:
    """Why a tile cannot be computed, and the nearest that can; "" if it can."""
    tile = f"a {rows} x {cols} tile with {accumulators} accumulator{'s' if accumulators > 1 else ''}"
    few = rows in (16, 32)
    if target == "sm90":
        if rows % 64 and not few or cols % (32 if few else 8):
            near = (rows, _up(cols, 32)) if few else (_up(rows, 64), _up(cols, 8))
            return (f"{tile}: wgmma needs a multiple of 64 rows and of 8 columns, or 16 or 32 rows and a multiple of 32 columns,"
                    f" the nearest is {near[0]} x {near[1]}")
        rows = max(rows, 64)
        warpgroups = 1 if rows * cols * accumulators <= 128 * 128 else 2
        registers = rows * cols * accumulators // 128 // warpgroups
        part = cols if warpgroups == 1 or rows % 128 == 0 else cols // 2
        if registers > 192 or part > 256:
            return f"{tile}: {rows} * {cols} * {accumulators} / 128 / {warpgroups} = {registers} registers per thread, at most 192 fit"
        return ""
    step = 32 if rows <= 64 else 16
    if rows not in _TCGEN05_ROWS or cols % step or cols > 256:
        near = min(_TCGEN05_ROWS, key=lambda r: (abs(r - rows), r))
        return (f"{tile}: tcgen05 needs 16, 32, 64, 128 or 256 rows and a multiple of {step} columns up to 256,"
                f" the nearest is {near} x {min(256, _up(cols, step))}")
    columns = max(rows // 128, 1) * cols * accumulators
    if columns > 512:
        return f"{tile}: {max(rows // 128, 1)} warpgroups * {cols} * {accumulators} = {columns} columns of TMEM, at most 512 fit"
    return ""


def _up(n: int, step: int) -> int:
    return max(step, -(-n // step) * step)
