"""Files come back byte for byte, wrong files are named in one line, writing is all or nothing."""

import codecs
import io
import os
import pathlib
import stat
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pallas_port.translator import source as source_files
from pallas_port.translator.diagnostics import InputError
from pallas_port.translator.source import Source, decode, read, write

# -- reading ------------------------------------------------------------------------------------

EXACT = {
    "empty": b"",
    "lf": b"x = 1\ny = 2\n",
    "crlf": b"x = 1\r\ny = 2\r\n",
    "mixed": b"x = 1\r\ny = 2\nz = 3\r\n",
    "no_final_newline": b"x = 1",
    "crlf_no_final_newline": b"if x:\r\n\ty = 1",
    "bom": codecs.BOM_UTF8 + b"x = 1\n",
    "bom_and_cookie": codecs.BOM_UTF8 + b"# coding: utf-8\nx = 1\n",
    "latin_1_cookie": b"# -*- coding: latin-1 -*-\nx = '\xe9'\n",
    "cookie_on_line_2": b"#!/usr/bin/env python\n# vim: set fileencoding=cp1252 :\nx = '\x80'\n",
    "form_feed_first": b"\x0cx = 1\n",
    "form_feed_between": b"x = 1\n\x0c\ny = 2\n",
    "blanks_at_end": b"x = 1\n\n\n   ",
    "crlf_blanks_at_end": b"x = 1\r\n\r\n\t",
    "only_blanks": b"\n  ",
    "line_separator_in_comment": "x = 1  # a\u2028b\x85c\n".encode(),
    "continued_line": b"x = 1 + \\\r\n    2\r\n",
    "crlf_in_string": b'x = """a\r\nb"""\n',
}


@pytest.mark.parametrize("data", EXACT.values(), ids=EXACT.keys())
def test_round_trip_through_libcst_is_exact(data):
    source = decode("k.py", data)
    assert source.encode(source.parse().code) == data


_PIECES = ["x = 1", "# é", "    ", "\t", "if x:", "    y = 2", "\x0c", "'''", "\\", "pass", "", "é = 'ß'"]
_ENDS = ["\n", "\r\n"]


@given(
    lines=st.lists(st.tuples(st.sampled_from(_PIECES), st.sampled_from(_ENDS))),
    last=st.sampled_from(_PIECES),
    encoding=st.sampled_from(["utf-8", "utf-8-sig", "latin-1", "cp1252"]),
)
def test_any_source_comes_back_exactly_or_is_refused(lines, last, encoding):
    cookie = f"# coding: {encoding}\n" if not encoding.startswith("utf") else ""
    data = (cookie + "".join(a + b for a, b in lines) + last).encode(encoding)
    source = decode("k.py", data)
    assert source.encode(source.text) == data
    try:
        module = source.parse()
    except InputError:
        return
    assert source.encode(module.code) == data


@given(st.binary())
def test_any_bytes_come_back_exactly_or_are_refused(data):
    try:
        source = decode("k.py", data)
    except InputError as error:
        assert str(error).startswith("k.py:") and "\n" not in str(error)
        return
    assert source.encode(source.text) == data


@pytest.mark.parametrize(
    ("text", "newline"), [("", "\n"), ("x", "\n"), ("x\n", "\n"), ("x\r\ny\n", "\r\n"), ("x\ny\r\n", "\n")]
)
def test_newline_is_that_of_the_first_line(text, newline):
    assert Source("k.py", text).newline == newline


def test_read_takes_the_file_as_it_is(tmp_path):
    path = tmp_path / "k.py"
    path.write_bytes(b"x = 1\r\n")
    assert read(str(path)) == Source(str(path), "x = 1\r\n")


def test_dash_reads_stdin(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"x = 1\r\n")))
    assert read("-") == Source("<stdin>", "x = 1\r\n")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"x = '\xff'\n", "k.py: invalid or missing encoding declaration"),
        (b"x = 1\ny = 2\nz = 3\nw = '\xff'\n", "k.py:4: not valid utf-8: invalid start byte (byte 23)"),
        (b"# coding: klingon\n", "k.py: unknown encoding: klingon"),
        (b"# coding: rot13\nk = 1\n", "k.py: rot13 is not an encoding for source text"),
        (codecs.BOM_UTF8 + b"# coding: latin-1\n", "k.py: encoding problem: utf-8"),
        (b"# coding: utf-7\nx = '+AOk-'\n", "k.py: cannot be written back unchanged as utf-7; convert it to UTF-8"),
    ],
)
def test_undecodable_file_is_an_input_error(data, message):
    with pytest.raises(InputError) as caught:
        decode("k.py", data)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\ny = (\n", "k.py:2:5: '(' was never closed"),
        ("def f(:\n", "k.py:1:7: invalid syntax"),
        ("if x:\ny = 1\n", "k.py:2:1: expected an indented block after 'if' statement on line 1"),
        ("x = '\n", "k.py:1:5: unterminated string literal (detected at line 1)"),
        ("x = 1\0\n", "k.py:1:1: source code string cannot contain null bytes"),
    ],
)
@pytest.mark.parametrize("parse", [Source.parse, Source.tree])
def test_syntax_error_names_the_place_in_one_line(parse, text, message):
    with pytest.raises(InputError) as caught:
        parse(Source("k.py", text))
    assert str(caught.value) == message


def test_what_libcst_would_change_is_refused():
    with pytest.raises(InputError, match="white space cannot be kept exactly"):
        Source("k.py", "x = 1\ry = 2\r").parse()


def test_missing_file(tmp_path):
    with pytest.raises(InputError, match=r"none\.py: No such file or directory"):
        read(str(tmp_path / "none.py"))


def test_folder_instead_of_file(tmp_path):
    with pytest.raises(InputError, match="Is a directory"):
        read(str(tmp_path))


def test_nul_in_file_name():
    with pytest.raises(InputError, match="null"):
        read("k\0.py")


def test_port_that_the_encoding_cannot_hold_is_an_input_error():
    source = decode("k.py", b"# coding: latin-1\n")
    with pytest.raises(InputError, match="cannot be written as"):
        source.encode("# coding: latin-1\nx = '\N{GREEK SMALL LETTER PI}'\n")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("def example_inputs():\n    pass\n", True),
        ("async def example_inputs():\n    pass\n", True),
        ("x = 1\n", False),
        ("# def example_inputs():\n", False),
        ("'''\ndef example_inputs():\n'''\n", False),
        ("class A:\n    def example_inputs(self):\n        pass\n", False),
    ],
)
def test_defines_function(text, expected):
    assert Source("k.py", text).defines_function("example_inputs") is expected


# -- writing ------------------------------------------------------------------------------------


def names(folder: pathlib.Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_write_makes_a_new_file_with_the_users_umask(tmp_path):
    old = os.umask(0o027)
    try:
        write(str(tmp_path / "k.py"), b"x\r\n")
    finally:
        os.umask(old)
    assert (tmp_path / "k.py").read_bytes() == b"x\r\n"
    assert stat.S_IMODE((tmp_path / "k.py").stat().st_mode) == 0o640
    assert names(tmp_path) == ["k.py"]


@pytest.mark.parametrize("mode", [0o755, 0o600, 0o444])
def test_write_keeps_permission_bits(tmp_path, mode):
    path = tmp_path / "k.py"
    path.write_bytes(b"old")
    path.chmod(mode)
    write(str(path), b"new")
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == mode


def test_write_follows_a_symbolic_link(tmp_path):
    (tmp_path / "real").mkdir()
    real, link = tmp_path / "real" / "k.py", tmp_path / "link.py"
    real.write_bytes(b"old")
    link.symlink_to(real)
    write(str(link), b"new")
    assert link.is_symlink() and real.read_bytes() == b"new"
    assert names(tmp_path / "real") == ["k.py"]


def test_write_makes_the_target_of_a_dangling_link(tmp_path):
    (tmp_path / "link.py").symlink_to(tmp_path / "k.py")
    write(str(tmp_path / "link.py"), b"new")
    assert (tmp_path / "link.py").is_symlink() and (tmp_path / "k.py").read_bytes() == b"new"


def test_write_to_a_device_does_not_replace_it():
    write("/dev/null", b"new")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


@pytest.mark.parametrize("step", ["replace", "fsync", "fchmod"])
def test_failure_at_any_step_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, step):
    path = tmp_path / "k.py"
    path.write_bytes(b"old")

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(source_files.os, step, fail)
    with pytest.raises(InputError, match=r"k\.py: cannot be written: No space left on device"):
        write(str(path), b"new")
    assert path.read_bytes() == b"old" and names(tmp_path) == ["k.py"]


def test_failing_write_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "k.py"
    path.write_bytes(b"old")
    with pytest.raises(TypeError):
        write(str(path), "not bytes")
    assert path.read_bytes() == b"old" and names(tmp_path) == ["k.py"]


def test_interrupt_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "k.py"
    path.write_bytes(b"old")

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(source_files.os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write(str(path), b"new")
    assert path.read_bytes() == b"old" and names(tmp_path) == ["k.py"]


def test_read_only_folder(tmp_path, monkeypatch):
    """Root may write anywhere, so the refusal is simulated where the tests run as root."""
    path = tmp_path / "k.py"
    path.write_bytes(b"old")
    tmp_path.chmod(0o555)
    if os.geteuid() == 0:

        def refuse(*_):
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr(source_files.os, "open", refuse)
    try:
        with pytest.raises(InputError, match="cannot be written: Permission denied"):
            write(str(path), b"new")
        assert path.read_bytes() == b"old"
    finally:
        tmp_path.chmod(0o755)
    assert names(tmp_path) == ["k.py"]


def test_write_to_a_folder(tmp_path):
    with pytest.raises(InputError, match="cannot be written: Is a directory"):
        write(str(tmp_path), b"new")


def test_write_below_a_missing_folder(tmp_path):
    with pytest.raises(InputError, match="cannot be written: No such file or directory"):
        write(str(tmp_path / "none" / "k.py"), b"new")


@pytest.mark.parametrize("data", [b"x = 1\ry = 2\r", b'x = """a\rb"""\n', b"x = 1\r\r\n"])
def test_carriage_return_alone_is_refused(data):
    with pytest.raises(InputError, match="k.py: it has a carriage return without a line feed"):
        decode("k.py", data)
