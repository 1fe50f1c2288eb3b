"""The example protocol."""

import pathlib

import numpy as np
import pytest

from pallas_port.translator.verify.example import ExampleError, Subject, make_call, parse

KERNEL = """
import functools
import numpy as np

def run(x, scale=2):
    return x * scale

def other(x, *, scale):
    return x + scale

class Namespace:
    @staticmethod
    def method(x):
        return -x

decorated = functools.wraps(other)(functools.partial(other))

def inputs():
    return (np.ones(3), 5)

def sized(n):
    return (np.ones(n),)

def pair():
    return other, (np.ones(3),), {"scale": 7}

def dotted():
    return "Namespace.method", [np.ones(3)]

def both(module, x, *, scale):
    return module.run(x) + module.other(x, scale=scale)

def own():
    return "example:both", (np.ones(3),), {"scale": 7}

def local():
    return (lambda x: x), (np.ones(3),)

def reference(x, scale=2):
    return x * scale
"""


@pytest.fixture
def subject(tmp_path):
    file = tmp_path / "kernel.py"
    file.write_text(KERNEL)
    port = KERNEL.replace("x * scale", "x * scale + 100").replace("x + scale", "x + scale + 100")

    def make(function, **fields):
        return Subject(str(file), port, str(file), function, **fields)

    return make


def results(call):
    return [float(np.ravel(f(*call.arrays))[0]) for f in (call.original, call.port)]


@pytest.mark.parametrize(
    "function, expected",
    [("inputs", [5, 105]), ("pair", [8, 108]), ("dotted", [-1, -1]), ("own", [10, 210])],
)
def test_forms(subject, function, expected):
    call = make_call(subject(function))
    assert results(call) == expected
    assert len(call.arrays) == 1  # what is not an array is bound


def test_keyword_arguments(subject):
    call = make_call(subject("sized", kwargs={"n": 4}))
    assert call.arrays[0].shape == (4,)


def test_reference_gets_all_arguments(subject):
    assert make_call(subject("inputs")).reference()[0] == 5


def test_rebuild_puts_other_arrays_in_their_places(subject):
    call = make_call(subject("inputs"))
    assert call.rebuild([np.zeros(3)])[1] == 5


def test_reference_by_name_of_the_function(tmp_path):
    file = tmp_path / "kernel.py"
    file.write_text(KERNEL + "\nreference = {'other': lambda x: 'other'}\n")
    subject = Subject(str(file), KERNEL, str(file), "pair")
    assert make_call(subject).reference() == "other"
    assert make_call(Subject(str(file), KERNEL, str(file), "inputs")).reference is None


@pytest.mark.parametrize(
    "function, message",
    [("missing", "has no function missing"), ("local", "return the name instead")],
)
def test_errors(subject, function, message):
    with pytest.raises(ExampleError, match=message):
        make_call(subject(function))


def test_parse(tmp_path):
    file = tmp_path / "kernel.py"
    file.write_text("")
    assert parse(f"{file}:inputs", "x.py") == (str(file), "inputs")
    assert parse(":inputs", str(file)) == (str(file), "inputs")
    for bad in ("inputs", f"{file}:", f"{file}:1x"):
        with pytest.raises(ExampleError, match="FILE:FUNCTION"):
            parse(bad, str(file))
    with pytest.raises(ExampleError, match="does not exist"):
        parse(f"{pathlib.Path(file).parent / 'no.py'}:f", str(file))
