"""The exhibit: primitives by line, both backends' rules, body and call failures kept apart."""

import ast
import pathlib
import subprocess
import sys

import pytest

from pallas_port.translator import check
from pallas_port.translator.check import actions_of, as_table, as_text, check_file, check_source
from pallas_port.translator.diagnostics import InputError
from pallas_port.translator.evident import evident_primitives, helpers_of
from pallas_port.translator.facts import Facts
from pallas_port.translator.names import Resolver
from pallas_port.translator.record import record_example
from pallas_port.translator.result import PortResult
from pallas_port.translator.rule_tables import load_tables
from pallas_port.translator.source import decode, read

HEAD = """\
import functools
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as gpu

"""


def evident(body, signature="x_ref, o_ref, *, flag"):
    """``{source line of the kernel: its primitives}``; lines without any are left out."""
    text = f"{HEAD}def kernel({signature}):\n" + "".join(f"    {line}\n" for line in body.splitlines())
    tree = ast.parse(text)
    kernel = tree.body[-1]
    found = {}
    for item in evident_primitives(kernel, Resolver(tree)):
        found.setdefault(text.splitlines()[item.line - 1].strip(), set()).add(item.primitive)
    return found


@pytest.mark.parametrize(
    "line, expected",
    [
        ("jnp.exp(x_ref[...])", {"exp", "get"}),
        ("x_ref[...].sum(axis=0)", {"get", "reduce_sum"}),
        ("o_ref[...] = lax.rsqrt(x_ref[0])", {"get", "rsqrt", "swap"}),
        ("o_ref[...] += 1", {"add", "get", "swap"}),
        ("x_ref[...] @ x_ref[...].T", {"dot_general", "get", "transpose"}),
        ("jax.nn.relu(x_ref[...])", {"custom_jvp_call", "get", "jit", "max"}),
        ("gpu.load(x_ref.at[:, 0], mask=pl.program_id(0) < 3)", {"lt", "masked_load", "program_id"}),
        ("pl.load(x_ref, (0,))", {"masked_load"}),
        ("pl.atomic_add(o_ref, (), 1.0)", {"atomic_rmw"}),
        ("~(x_ref[...] > 0)", {"get", "gt", "not"}),
        ("x_ref[...] ** 2", {"get", "square"}),
        ("x_ref[...] ** 3", {"get", "integer_pow"}),
        ("pl.program_id(0) // 4", {"and", "div", "jit", "ne", "program_id", "rem", "select_n",
                                   "sign", "sub"}),
        ("x_ref[...][:, None]", {"broadcast_in_dim", "get"}),
        ("lax.fori_loop(0, pl.program_id(0), lambda i, c: c, 0)", {"add", "lt", "program_id", "while"}),
    ],
)
def test_evident(line, expected):
    assert evident(line) == {line: expected}


@pytest.mark.parametrize(
    "line",
    [
        "x_ref.shape[0] * 2",
        "x_ref.dtype == jnp.float32",
        "1 + 2",
        "np.sqrt(2.0)",
        "flag * 2",
        "functools.reduce(max, [1, 2]) - 1",
        "pl.cdiv(x_ref.shape[0], 8)",
    ],
)
def test_static_python_is_not_evident(line):
    assert evident(line) == {}


def test_traced_values_spread_through_assignments_and_loop_bodies():
    found = evident("""\
x = x_ref[...]
y, n = x, x_ref.shape[0]
z = y * 2
k = n * 2
def body(i, carry):
    j = i * 8
    return carry - j
w = lax.fori_loop(0, 4, body, 0)""")
    assert found["z = y * 2"] == {"mul"}
    assert "k = n * 2" not in found
    assert found["j = i * 8"] == {"mul"} and found["return carry - j"] == {"sub"}
    assert found["w = lax.fori_loop(0, 4, body, 0)"] == {"add", "scan"}


def test_method_call_over_several_lines_is_at_the_name_of_the_method():
    assert evident("x = (\n    x_ref[...]\n).sum()")[").sum()"] == {"reduce_sum"}


def test_helpers_of_a_kernel():
    tree = ast.parse("def a(x): return b(x)\ndef b(x): return x\ndef c(x): return x\n"
                     "def kernel(x_ref):\n    def inner(y): return y\n    return a(inner(x_ref))\n")
    assert [f.name for f in helpers_of(tree.body[-1], Resolver(tree))] == ["a", "b"]


KERNEL = HEAD + """\
def helper(x):
    return jnp.cumsum(x, axis=1)


def kernel(x_ref, o_ref):
    x = x_ref[...]
    keep = ~(x > 0)
    o_ref[...] = helper(jnp.where(keep, jnp.exp(x), 0.0))


def run(x):
    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        compiler_params=gpu.CompilerParams(num_warps=4),
    )(x)


def example_inputs():
    return (jnp.ones((8, 16)),)


"""


@pytest.fixture(scope="module")
def kernel_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("check") / "kernel.py"
    path.write_text(KERNEL)
    return path


@pytest.fixture(scope="module")
def recorded(kernel_file):
    return record_example(":example_inputs", str(kernel_file))


def checked(path, facts, action=lambda line: ""):
    return check_source(read(str(path)), facts, load_tables("0.11.2"), action)


def by_text(kernel):
    return {row.text: row for row in kernel.lines}


def test_static_check(kernel_file):
    (kernel,) = checked(kernel_file, Facts()).kernels
    rows = by_text(kernel)
    assert (kernel.name, kernel.evidence, kernel.call_failures) == ("kernel", "static", ())
    assert [row.text for row in kernel.body_failures] == ["return jnp.cumsum(x, axis=1)"]
    (negation,) = [m for m in rows["keep = ~(x > 0)"].marks if m.primitive == "not"]
    assert not negation.failure and not negation.operands_known


def test_recorded_check_knows_the_operands(kernel_file, recorded):
    (kernel,) = checked(kernel_file, recorded).kernels
    rows = by_text(kernel)
    assert kernel.evidence == "recorded"
    (negation,) = [m for m in rows["keep = ~(x > 0)"].marks if m.primitive == "not"]
    assert negation.failure == "boolean operands fail"
    assert {row.text for row in kernel.body_failures} == {
        "return jnp.cumsum(x, axis=1)", "keep = ~(x > 0)"}


def test_marks(kernel_file):
    (kernel,) = checked(kernel_file, Facts()).kernels
    marks = {m.primitive: m for row in kernel.lines for m in row.marks}
    assert marks["cumsum"].triton and not any(marks["cumsum"].mosaic.values())
    assert marks["cumsum"].failure == "no rule"
    assert marks["exp"].mosaic == {
        "Lane/Warp": False, "Lane/Warpgroup": True, "Warpgroup/Warp": False,
        "Warpgroup/Warpgroup": True}


def test_text(kernel_file):
    text = as_text(checked(kernel_file, Facts(), lambda line: "rewritten"))
    (line,) = [i for i, row in enumerate(KERNEL.splitlines(), 1) if "cumsum" in row]
    assert f"{line:>6}  return jnp.cumsum(x, axis=1)    -> rewritten\n" in text
    assert "     !  cumsum " in text
    assert "rules of JAX 0.11.2" in text
    assert "* not: boolean operands fail" in text
    assert "body: 1 of 4 lines fail on Mosaic GPU as they stand; call: 0 failures" in text
    assert all(row == row.rstrip() for row in text.splitlines())


def test_table(kernel_file):
    (table,) = as_table(checked(kernel_file, Facts()))
    assert [column.header for column in table.columns][:3] == ["line", "source, primitives", "Triton"]
    (kernel,) = checked(kernel_file, Facts()).kernels
    assert table.row_count == sum(1 + len(row.marks) for row in kernel.lines)


def test_actions_of_a_port(kernel_file):
    source = read(str(kernel_file))
    line = next(i for i, row in enumerate(KERNEL.splitlines(), 1) if "jnp.exp" in row)
    changed = KERNEL.replace("jnp.exp(x)", "jnp.exp2(x)")
    action = actions_of(PortResult("kernel.py", source.text, changed, "sm100", ()))
    assert action(line) == "rewritten" and action(line - 1) == ""


CALLS = {
    "scalar prefetch": "grid_spec=pltpu.PrefetchScalarGridSpec(num_scalar_prefetch=1)",
    "TPU": "compiler_params=pltpu.CompilerParams()",
}


@pytest.mark.parametrize("reason", ["scalar prefetch", "TPU"])
def test_call_failures_from_the_source(reason):
    text = HEAD + ("from jax.experimental.pallas import tpu as pltpu\n"
                   "def kernel(x_ref, o_ref):\n    o_ref[...] = x_ref[...]\n"
                   f"call = pl.pallas_call(kernel, out_shape=None, {CALLS[reason]})\n")
    source = decode("kernel.py", text.encode())
    (kernel,) = check_source(source, Facts(), load_tables("0.11.2"), lambda line: "").kernels
    assert any(reason in why for _, why in kernel.call_failures)
    assert kernel.body_failures == ()


def test_call_failure_from_a_recording():
    forms = pathlib.Path(__file__).with_name("record_data") / "forms.py"
    facts = record_example(":example_inputs", str(forms))
    kernels = {k.name: k for k in checked(forms, facts).kernels}
    assert [why for _, why in kernels["double_kernel"].call_failures] == [
        "a grid bound is known only at run time"]
    assert kernels["row_kernel"].call_failures == ()


def test_file_without_a_call():
    source = decode("empty.py", b"x = 1\n")
    checked_file = check_source(source, Facts(), load_tables(), lambda line: "")
    assert as_text(checked_file) == "empty.py: no pallas_call found\n"


def test_nothing_is_run_unasked(tmp_path, monkeypatch):
    path = tmp_path / "kernel.py"
    path.write_text("raise SystemExit('was run')\n" + KERNEL)
    monkeypatch.setattr(check, "port_actions", lambda source, facts: lambda line: "")
    assert "cumsum" in check_file(str(path))
    with pytest.raises(InputError):
        check_file(str(path), f"{path}:example_inputs")


def test_static_check_imports_no_jax(kernel_file):
    code = ("import sys\nfrom pallas_port.translator.check import check_file\n"
            f"assert 'cumsum' in check_file({str(kernel_file)!r})\n"
            "assert 'jax' not in sys.modules")
    subprocess.run([sys.executable, "-c", code], check=True)
