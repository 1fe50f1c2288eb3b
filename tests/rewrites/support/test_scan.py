"""Running sums: the instructions of ``_cumsum`` carried out by 128 threads in lockstep, for every kind of layout.

MLIR operations are replaced by NumPy ones on an array of all threads' values. What this does not show is that the
barriers suffice; the test counts them.
"""

import types

import numpy as np
import pytest

pytest.importorskip("jax")

from jax.experimental.pallas import mosaic_gpu as plgpu  # noqa: E402

from pallas_port.rewrites.support import gmem, scan  # noqa: E402

from .test_gmem import tiled  # noqa: E402

THREADS = np.arange(128)


class Value(np.ndarray):
    """One number (or vector) per thread."""

    type = None


def value(x):
    return np.broadcast_to(x, (128, *np.shape(x)[1:])).view(Value)


def threads_elements(layout, shape):
    """For each register: the linear element numbers that each thread holds, (128, vector length)."""
    elements = tiled(shape, layout.tiling.tiles)
    index = [np.zeros(128, int)] * elements.ndim
    for number, dims in ((THREADS % 32, layout.lane_dims), (THREADS // 32, layout.warp_dims)):
        for d in reversed(dims):
            size = d.times if isinstance(d, plgpu.Replicated) else layout.tiled_tiling_shape[d]
            if not isinstance(d, plgpu.Replicated):
                index[d] = number % size
            number = number // size
    registers = np.empty(layout.registers_shape(shape), object)
    for k in np.ndindex(registers.shape):
        at = [i + j for i, j in zip(index, k)]
        columns = []
        for i in range(layout.vector_length):
            at[layout.vector_dim] = np.full(128, i)
            columns.append(elements[tuple(at)])
        registers[k] = np.stack(columns, 1)
    return registers


class Machine:
    """Stands for the modules that ``scan.py`` imports."""

    def __init__(self, monkeypatch, layout):
        self.layout, self.barriers = layout.to_mgpu(), 0
        compare = {"ult": np.less, "eq": np.equal}
        patches = {
            "arith": types.SimpleNamespace(
                addf=np.add, addi=np.add, subi=np.subtract, muli=np.multiply, divui=np.floor_divide, remui=np.remainder,
                select=lambda c, a, b: np.where(c, a, b).view(Value), cmpi=lambda p, a, b: compare[p](a, b),
                CmpIPredicate=types.SimpleNamespace(ult="ult", eq="eq"),
            ),
            "llvm": types.SimpleNamespace(inline_asm=self.shuffle, load=lambda _, at: at[0][at[1]].view(Value), store=self.store),
            "vector": types.SimpleNamespace(
                extract=lambda r, _, at: r[:, at[0]].view(Value),
                from_elements=lambda _, e: np.stack([value(x) for x in e], 1).view(Value),
            ),
            "mgpu_utils": types.SimpleNamespace(
                c=lambda n, _: value(np.int64(n)), thread_idx=lambda: THREADS.view(Value), warpgroup_barrier=self.barrier,
                memref_ptr=lambda ref: ref, getelementptr=lambda ref, at, _: (ref, at[0]),
            ),
            "mgpu_arrays": types.SimpleNamespace(FragmentedArray=lambda _registers, _layout, _is_signed: _registers),
            "ir": types.SimpleNamespace(F32Type=int, IntegerType=types.SimpleNamespace(get_signless=lambda _: None)),
            "pl": types.SimpleNamespace(run_scoped=lambda f, memory: f(memory)),
            "plgpu": types.SimpleNamespace(
                inline_mgpu=self.inline, RefType=lambda: None, ShapeDtypeStruct=lambda *_: None, Replicated=plgpu.Replicated,
                SMEM=lambda shape, dtype: np.full(shape, np.nan),
            ),
        }
        for name, fake in patches.items():
            monkeypatch.setattr(scan, name, fake)

    def barrier(self):
        self.barriers += 1

    def shuffle(self, _, operands, *rest, **more):
        x, lane = map(value, operands)
        return x[THREADS // 32 * 32 + lane % 32]

    def store(self, x, at):
        at[0][at[1]] = x

    def inline(self, **_):
        def run(function):
            def call(*args):
                *scratch, x = args
                held = threads_elements(self.layout, x.shape)
                registers = np.empty_like(held)
                for k, elements in np.ndenumerate(held):
                    registers[k] = x.ravel()[elements].astype(np.int64).view(Value)
                tile = types.SimpleNamespace(registers=registers, layout=None, mlir_dtype=None, is_signed=None)
                results, out = function(None, *scratch, tile), np.full(x.size, np.nan)
                for k, elements in np.ndenumerate(held):
                    out[elements] = results[k]
                for k, elements in np.ndenumerate(held):  # copies agree
                    assert np.array_equal(out[elements], results[k])
                return out.reshape(x.shape)

            return call

        return run


@pytest.mark.parametrize("vec", [1, 2, 4])
@pytest.mark.parametrize("shape, axis", [
    ((16,), 0), ((128,), 0), ((512,), 0), ((4096,), None), ((16, 128), 1), ((16, 128), 0), ((8, 1024), -1), ((64, 64), 0),
    ((2, 256), 0), ((2, 256), 1), ((1, 2048), 1), ((256, 8), 0), ((256, 8), 1), ((4, 32), 0), ((4, 4), 1), ((1, 1), 0),
])
def test_sums(monkeypatch, shape, axis, vec):
    layout = gmem._blocked(shape, vec)
    machine = Machine(monkeypatch, layout)
    x = np.random.default_rng(0).integers(-9, 10, shape)
    assert np.array_equal(scan._cumsum(x, axis, layout=layout), np.cumsum(x, axis))
    assert machine.barriers != 1  # none within a warp, else one per step and one at the end


@pytest.mark.parametrize("axis", [0, 1])
def test_sums_of_rows_and_columns_of_a_tile(monkeypatch, axis):
    tile = gmem._blocked((64, 128), 4)
    layout = tile.reduce(1 - axis)
    x = np.random.default_rng(0).integers(-9, 10, (64, 128)[axis])
    Machine(monkeypatch, layout)
    assert np.array_equal(scan._cumsum(x, layout=layout), np.cumsum(x))
