"""Recording sees every form of call, maps primitives to their source, and runs nothing unasked."""

import pathlib
import subprocess
import sys

import pytest

from pallas_port.translator.diagnostics import InputError
from pallas_port.translator.facts import Facts, canonical, merge
from pallas_port.translator.record import record_command, record_example

FORMS = pathlib.Path(__file__).with_name("record_data") / "forms.py"
LINES = FORMS.read_text().splitlines()


@pytest.fixture(scope="module")
def forms():
    return record_example(":example_inputs", str(FORMS))


def line_of(text):
    (found,) = [i for i, line in enumerate(LINES, 1) if text in line]
    return found


def of_kernel(facts, name):
    return [f for f in facts.in_file(str(FORMS)) if f.kernel == name]


def sources(facts, primitive, path=FORMS):
    """The source text of each equation with that primitive, helpers included, in order."""
    lines = path.read_text().splitlines()
    found = []
    for eqn in facts.equations:
        if eqn.primitive == primitive:
            assert eqn.line == eqn.end_line and canonical(str(path)) == eqn.file
            found.append(lines[eqn.line - 1].encode()[eqn.column : eqn.end_column].decode())
    return found


# -- forms of calls -----------------------------------------------------------------------------


def test_plain_call(forms):
    (facts,) = forms.at(str(FORMS), line_of("functools.partial(kernel, scale=2.0)"))
    assert facts.kernel == "kernel" and facts.kernel_line == line_of("def kernel(")
    assert facts.statics == {"scale": 2.0}
    assert facts.backend == "triton"
    assert facts.compiler_params == {"num_warps": 4, "num_stages": 2}
    assert [str(o.array) for o in (*facts.inputs, *facts.outputs)] == ["float32[8,16]"] * 2
    text = LINES[facts.line - 1][facts.column : facts.end_column]
    assert text.startswith("pl.pallas_call(") and text.endswith("compiler_params=PARAMS)")


def test_call_below_jit_by_another_name_is_keyed_by_the_pallas_call(forms):
    (facts,) = forms.at(str(FORMS), line_of("call_of_another_name(functools"))
    assert facts.statics == {"scale": 3.0}
    assert facts.grid == (1,)
    assert facts.backend == "unstated"


def test_vmap_below_jit_records_the_unbatched_kernel_and_the_batch(forms):
    (facts,) = of_kernel(forms, "row_kernel")
    assert facts.inputs[0].array.shape == (16,)
    assert facts.grid == () and facts.batch == (8,)


def test_custom_vjp_backward_kernel_has_its_own_lines(forms):
    (facts,) = of_kernel(forms, "double_backward_kernel")
    assert sources(facts, "sqrt") == ["jnp.sqrt(g_ref[...])"]


def test_kernel_that_cannot_be_interpreted_is_recorded_and_gives_zeros(capfd):
    facts = record_example(":zeros_come_back", str(FORMS))
    (recording,) = of_kernel(facts, "barrier_kernel")
    assert any(e.primitive.startswith("debug_barrier") for e in recording.equations)
    assert "barrier_kernel cannot be interpreted" in capfd.readouterr().err


def test_dynamic_grid_bound_is_none(forms):
    (facts,) = [f for f in of_kernel(forms, "double_kernel") if f.grid]
    assert facts.grid == (None,)


def test_blocks_with_squeezed_dimensions(forms):
    facts = of_kernel(forms, "closure")[0]
    assert facts.inputs[0].block == (2, 16) and facts.inputs[0].kinds == ("blocked", "blocked")
    assert facts.outputs[0].block == (None, 1, 16) and facts.outputs[0].kinds[0] == "squeezed"


# -- several recordings -------------------------------------------------------------------------


def test_recordings_of_one_site_are_kept_and_compared(forms):
    two, four = of_kernel(forms, "closure")
    assert (two.statics, four.statics) == ({"rows": 2}, {"rows": 4})
    differing = {d.what: d.values for d in forms.disagreements if d.line == two.line}
    assert differing["grid"] == ("(4,)", "(2,)")
    assert differing["statics[rows]"] == ("2", "4")
    assert "backend" not in differing


def test_merge_keeps_what_differs_once(forms):
    assert merge(forms, forms) == forms
    assert merge(Facts(), forms) == forms
    assert not Facts() and forms


def test_json_round_trip(forms):
    assert Facts.from_json(forms.to_json()) == forms


# -- places of equations ------------------------------------------------------------------------


def test_primitive_maps_to_its_expression(forms):
    facts = of_kernel(forms, "kernel")[0]
    assert sources(facts, "exp") == ["jnp.exp(x)"]
    assert sources(facts, "mul") == ["jnp.exp(x) * scale"]
    assert sources(facts, "get") == ["x_ref[...]"]
    assert sources(facts, "swap") == ["o_ref[...]"]


def test_helper_keeps_the_place_of_its_call(forms):
    facts = of_kernel(forms, "kernel")[0]
    assert sources(facts, "log1p") == ["jnp.log1p(x)"]
    (eqn,) = [e for e in facts.equations if e.primitive == "log1p"]
    assert [LINES[s.line - 1][s.column : s.end_column] for s in eqn.callers] == ["helper(y)"]


def test_body_of_a_jitted_helper(forms):
    facts = of_kernel(forms, "kernel")[0]
    assert sources(facts, "cumsum") == ["jnp.cumsum(x, axis=1)"]
    (eqn,) = [e for e in facts.equations if e.primitive == "cumsum"]
    assert eqn.within[0] == "jit" and eqn.params["axis"] == 1


def test_body_of_a_library_function_is_at_its_call(forms):
    (facts,) = of_kernel(forms, "row_kernel")
    assert sources(facts, "max") == ["jax.nn.relu(x_ref[...])"]
    (eqn,) = [e for e in facts.equations if e.primitive == "max"]
    assert eqn.within[0] == "custom_jvp_call"


def test_loop_body(forms):
    facts = of_kernel(forms, "closure")[0]
    assert sources(facts, "floor") == ["jnp.floor(x_ref[0, :])"]
    (eqn,) = [e for e in facts.equations if e.primitive == "floor"]
    assert eqn.within == ("scan",) and str(eqn.out_avals[0]) == "float32[16]"


def test_equations_are_found_by_the_span_of_a_node(forms):
    facts = of_kernel(forms, "kernel")[0]
    line = line_of("jnp.exp(x) * scale")
    span = (line, 8, line, 18)
    assert LINES[line - 1][8:18] == "jnp.exp(x)"
    assert [e.primitive for e in facts.equations_at(*span)] == ["exp"]


def test_columns_count_bytes_as_ast_does(tmp_path):
    path = write_script(tmp_path, body="    ä = x_ref[...]; o_ref[...] = ä * jnp.exp(ä)")
    (facts,) = record_command([sys.executable, str(path)]).in_file(str(path))
    assert sources(facts, "exp", path) == ["jnp.exp(ä)"]


# -- JAX's own kernels --------------------------------------------------------------------------

JAX_KERNELS = """
import jax, jax.numpy as jnp
from jax.experimental.pallas.ops.gpu import attention, layer_norm, softmax

softmax.softmax(jnp.ones((4, 300)))
norm = lambda *args: layer_norm.layer_norm(*args).sum()
jax.grad(norm, (0, 1, 2))(jnp.ones((1, 4, 256)), jnp.ones(256), jnp.ones(256))
q = jnp.zeros((1, 128, 1, 64), jnp.float16)
blocks = attention.BlockSizes(64, 64, 64, 64, 64, 64)
jax.grad(lambda q: attention.mha(q, q, q, None, causal=True, block_sizes=blocks).sum())(q)
"""


@pytest.fixture(scope="module")
def jax_kernels(tmp_path_factory):
    script = tmp_path_factory.mktemp("script") / "use.py"
    script.write_text(JAX_KERNELS)
    return record_command([sys.executable, str(script)])


def in_jax(facts, module):
    import jax

    path = pathlib.Path(jax.__file__).parent / f"experimental/pallas/ops/gpu/{module}.py"
    return path, {f.kernel: f for f in facts.in_file(str(path))}


def test_softmax(jax_kernels):
    path, kernels = in_jax(jax_kernels, "softmax")
    facts = kernels["_vmappable_softmax_kernel"]
    assert facts.batch == (4,) and facts.statics["block_row"] == 512
    assert sources(facts, "exp", path) == ["jnp.exp((row - row_max).astype(jnp.float32))"]
    assert sources(facts, "reduce_max", path) == ["jnp.max(row, axis=0)"]
    assert sources(facts, "div", path) == ["numerator / denominator"]


def test_layer_norm_forward_and_both_backward_kernels(jax_kernels):
    path, kernels = in_jax(jax_kernels, "layer_norm")
    assert sources(kernels["layer_norm_forward_kernel"], "sqrt", path) == ["jnp.sqrt(var + eps)"]
    backward = kernels["layer_norm_backward_kernel_dx"]
    assert "plgpu.store(dx_ref.at[col_idx], da.astype(dx_ref.dtype), mask=mask)" in sources(
        backward, "masked_swap", path)
    assert kernels["layer_norm_backward_kernel_dw_db"].grid != ()


def test_attention_forward_and_backward(jax_kernels):
    path, kernels = in_jax(jax_kernels, "attention")
    forward = kernels["mha_forward_kernel"]
    assert sources(forward, "dot_general", path)[0] == "plgpu.dot(q, k.T)"
    assert sources(forward, "transpose", path) == ["k.T"]
    assert {e.within for e in forward.equations if e.primitive == "dot_general"} == {("while",)}
    backward = kernels["mha_backward_kernel"]
    assert "plgpu.dot(q, k.T)" in sources(backward, "dot_general", path)


def test_every_equation_has_a_place(jax_kernels, forms):
    for facts in (jax_kernels, forms):
        for recordings in facts.sites.values():
            for recording in recordings:
                assert all(eqn.line for eqn in recording.equations)


# -- commands -----------------------------------------------------------------------------------

SCRIPT = """
import jax, jax.numpy as jnp
from jax.experimental import pallas as pl

def kernel(x_ref, o_ref):
{body}

pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct((8,), jnp.float32))(jnp.ones(8))
{end}
"""


def write_script(folder, body="    o_ref[...] = x_ref[...]", end=""):
    path = folder / "script.py"
    path.write_text(SCRIPT.format(body=body, end=end))
    return path


def test_command_output_goes_to_stderr(tmp_path, capfd):
    path = write_script(tmp_path, end="print('from the script')")
    assert record_command([sys.executable, str(path)])
    out, err = capfd.readouterr()
    assert out == "" and "from the script" in err


def test_command_that_fails_passes_on_status_and_stderr(tmp_path, capfd):
    path = write_script(tmp_path, end="raise SystemExit('not today')")
    with pytest.raises(InputError, match=r"--record .*script\.py: the command exited with status 1"):
        record_command([sys.executable, str(path)])
    assert "not today" in capfd.readouterr().err


def test_command_killed_by_a_signal(tmp_path):
    path = write_script(tmp_path, end="import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    with pytest.raises(InputError, match="killed by signal 9"):
        record_command([sys.executable, str(path)])


def test_command_that_leaves_without_clean_up_and_its_children(tmp_path):
    path = write_script(tmp_path, end="import os; os._exit(0)")
    facts = record_command(["sh", "-c", f"cd / && '{sys.executable}' '{path}'"])
    assert facts.in_file(str(path))


def test_relative_script_that_changes_directory(tmp_path, monkeypatch):
    path = write_script(tmp_path, body="    import os; os.chdir('/'); o_ref[...] = x_ref[...]")
    monkeypatch.chdir(tmp_path)
    (facts,) = record_command([sys.executable, "script.py"]).in_file(str(path))
    assert sources(facts, "swap", path) == ["o_ref[...]"]


def test_command_without_a_call():
    with pytest.raises(InputError, match="no pallas_call was run"):
        record_command([sys.executable, "-c", "pass"])


def test_a_jax_of_another_form_is_an_input_error(tmp_path, monkeypatch):
    pallas = tmp_path / "jax" / "_src" / "pallas"
    pallas.mkdir(parents=True)
    for folder in (pallas, pallas.parent, pallas.parent.parent):
        (folder / "__init__.py").write_text("__version__ = '99.0'")
    (pallas / "pallas_call.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(InputError, match=r"not supported on jax 99\.0"):
        record_command([sys.executable, "-c", "import jax._src.pallas.pallas_call"])


def test_command_that_does_not_exist():
    with pytest.raises(InputError, match="cannot run no-such-program"):
        record_command(["no-such-program"])
    with pytest.raises(InputError, match="no command"):
        record_command([])


def test_a_hidden_sitecustomize_still_runs(tmp_path, monkeypatch, capfd):
    (tmp_path / "sitecustomize.py").write_text("import sys; print('mine', file=sys.stderr)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    record_command([sys.executable, str(write_script(tmp_path))])
    assert "mine" in capfd.readouterr().err


# -- examples -----------------------------------------------------------------------------------

EXAMPLE = """
import jax, jax.numpy as jnp
from jax.experimental import pallas as pl

def kernel(x_ref, o_ref):
    o_ref[...] = x_ref[...]

def run(x):
    return pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct((8,), jnp.float32))(x)

def example_inputs():
    return (jnp.ones(8),)

def calls_itself():
    run(jnp.ones(8))

def fails():
    raise RuntimeError("no data here")

def for_nobody():
    return {"walk": ()}
"""


@pytest.fixture
def example(tmp_path):
    path = tmp_path / "kernels.py"
    path.write_text(EXAMPLE)
    return str(path)


@pytest.mark.parametrize("function", ["example_inputs", "calls_itself"])
def test_example(example, function):
    (facts,) = record_example(f"{example}:{function}", example).in_file(example)
    assert facts.kernel == "kernel"


def test_example_in_another_file_of_a_package(tmp_path):
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "kernels.py").write_text(EXAMPLE)
    inputs = package / "inputs.py"
    inputs.write_text("import jax.numpy as jnp\nfrom . import kernels\ndef small():\n    return (jnp.ones(8),)\n")
    kernels = str(package / "kernels.py")
    assert record_example(f"{inputs}:small", kernels).in_file(kernels)


@pytest.mark.parametrize(
    "function, message",
    [("fails", "no data here"), ("for_nobody", "walk()"), ("missing", "no function missing")],
)
def test_example_that_fails(example, function, message, capfd):
    with pytest.raises(InputError, match=rf"--example .*:{function}: the command exited"):
        record_example(f"{example}:{function}", example)
    assert message in capfd.readouterr().err


@pytest.mark.parametrize("name", ["function", "kernels.py:", "kernels.py:a b", "absent.py:f"])
def test_example_that_cannot_be_meant(example, name):
    with pytest.raises(InputError, match="--example"):
        record_example(name, example)


# -- nothing runs unasked -----------------------------------------------------------------------


def test_importing_the_modules_imports_no_jax():
    code = ("import pallas_port.translator.record, pallas_port.translator.check, sys\n"
            "assert 'jax' not in sys.modules and 'numpy' not in sys.modules")
    subprocess.run([sys.executable, "-c", code], check=True)
