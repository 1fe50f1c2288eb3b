"""The measured table of functions: right entries, equal to the installed JAX, read without JAX."""

import json
import subprocess
import sys

import pytest

from pallas_port.translator import primitives
from pallas_port.translator.primitives import (
    mosaic_supports,
    primitives_of,
    traced,
    unsupported_of,
    wrappers_of,
)

TRITON = "jax.experimental.pallas.triton"


@pytest.mark.parametrize(
    "name, expected",
    [
        ("jax.numpy.sqrt", {"sqrt"}),
        ("jax.lax.rsqrt", {"rsqrt"}),
        ("jax.numpy.cumsum", {"cumsum"}),
        ("jax.numpy.argmax", {"argmax"}),
        ("jax.numpy.dot", {"dot_general"}),
        ("jax.numpy.where", {"select_n"}),
        ("jax.nn.relu", {"max"}),
        ("jax.scipy.special.erf", {"erf"}),
        ("jax.lax.while_loop", {"while"}),
        ("jax.lax.stop_gradient", {"stop_gradient"}),
        (".sum", {"reduce_sum"}),
        (".T", {"transpose"}),
        (".astype", {"convert_element_type"}),
        ("operator.matmul", {"dot_general"}),
        ("operator.add", {"add"}),
        ("ref.get", {"get"}),
        ("ref.set", {"swap"}),
        (f"{TRITON}.load", {"masked_load"}),
        (f"{TRITON}.store", {"masked_swap"}),
        (f"{TRITON}.dot", {"dot_general"}),
        (f"{TRITON}.atomic_add", {"atomic_rmw"}),
        (f"{TRITON}.atomic_cas", {"atomic_cas"}),
        ("jax.experimental.pallas.program_id", {"program_id"}),
        ("jax.experimental.pallas.when", {"cond"}),
    ],
)
def test_primitives_of(name, expected):
    assert primitives_of(name) == expected


def test_operands_of_the_other_kind():
    assert primitives_of("jax.numpy.sqrt", "int") == {"convert_element_type", "sqrt"}
    assert primitives_of("operator.and_", "float") == primitives_of("operator.and_", "int") == {"and"}
    assert traced("operator.and_").primitives is None
    assert "round" in primitives_of("operator.floordiv")
    assert "round" not in primitives_of("operator.floordiv", "int")


def test_wrappers_are_kept_apart():
    assert "custom_jvp_call" in wrappers_of("jax.nn.relu")
    assert "custom_jvp_call" not in primitives_of("jax.nn.relu")
    assert wrappers_of("jax.numpy.sqrt") == frozenset()


def test_unknown_functions():
    assert primitives_of("jax.numpy.no_such_function") is None
    assert primitives_of("numpy.sqrt") is None
    assert wrappers_of("numpy.sqrt") == unsupported_of("numpy.sqrt") == frozenset()


def test_what_mosaic_does_not_support():
    assert mosaic_supports("exp") and not mosaic_supports("cumsum") and not mosaic_supports("erf")
    assert unsupported_of("jax.numpy.cumsum") == {"cumsum"}
    assert unsupported_of("jax.numpy.exp") == frozenset()


@pytest.mark.timeout(120)
def test_snapshot_equals_the_installed_jax():
    from pallas_port.translator.primitives_trace import trace_all

    path = primitives.TABLES / f"primitives-{primitives._snapshot_version()}.json"
    assert json.loads(path.read_text())["functions"] == trace_all()


def test_read_without_jax():
    code = ("import sys\nfrom pallas_port.translator.primitives import primitives_of\n"
            "assert primitives_of('jax.numpy.exp')\nassert 'jax' not in sys.modules")
    subprocess.run([sys.executable, "-c", code], check=True)
