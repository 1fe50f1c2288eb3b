"""The diff must be one that patch tools apply, whatever the bytes of the file."""

import os
import shutil
import subprocess

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pallas_port.translator.diff import colour, unified

CASES = {
    "changed_line": (b"a\nb\nc\n", b"a\nB\nc\n"),
    "crlf": (b"a\r\nb\r\n", b"a\r\nB\r\n"),
    "no_final_newline_in_both": (b"a\nb", b"A\nb"),
    "final_newline_added": (b"a\nb", b"a\nb\n"),
    "final_newline_removed": (b"a\nb\n", b"a\nb"),
    "last_line_changed_without_newline": (b"a\nb", b"a\nB"),
    "from_empty": (b"", b"a\n"),
    "latin_1_and_form_feed": (b"\xe9\x0cx\n\x85b\nc\n", b"\xe9\x0cx\n\x85B\nc\n"),
    "far_apart": (b"0\n" * 3 + b"a\n" * 30 + b"1\n", b"2\n" + b"a\n" * 30 + b"3\n"),
}


def test_equal_contents_give_no_diff():
    assert unified("k.py", b"a\n", b"a\n") == b""


def test_missing_final_newline_is_marked_on_both_sides():
    assert unified("k.py", b"a\nb", b"a\nc") == (
        b"--- a/k.py\n+++ b/k.py\n@@ -1,2 +1,2 @@\n a\n"
        b"-b\n\\ No newline at end of file\n+c\n\\ No newline at end of file\n"
    )


@pytest.mark.parametrize("tool", ["git", "patch"])
@pytest.mark.parametrize(("before", "after"), CASES.values(), ids=CASES.keys())
def test_patch_tools_apply_it_with_notes_after_it(tmp_path, tool, before, after):
    if shutil.which(tool) is None:
        pytest.skip(f"{tool} is not installed")
    (tmp_path / "k.py").write_bytes(before)
    diff = unified("k.py", before, after) + b"# k.py:1:1: C101 reason (advice)\n"
    command = {"git": ["git", "apply", "-"], "patch": ["patch", "-p1", "--binary", "--silent"]}[tool]
    # Not as part of an enclosing repository, and with no user configuration.
    environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(tmp_path.parent), "GIT_CONFIG_GLOBAL": os.devnull}
    done = subprocess.run(command, cwd=tmp_path, input=diff, env=environment, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "k.py").read_bytes() == after


_CONTENT = st.lists(st.sampled_from([b"a", b"b", b"\r", b"\n", b"\n", b"-", b"+", b"\\"])).map(b"".join)


@given(_CONTENT, _CONTENT)
@example(b"\n\n\naa\n", b"\n\n\naa\na")  # five lines with four alike: cut before the one that differs
def test_removed_and_context_lines_are_the_old_file_added_and_context_the_new(before, after):
    """With files shorter than the context there is one hunk, which then holds both files whole."""
    # Of at most four lines at least one differs, so no more than the three of the context are alike in a row.
    before, after = (b"\n".join(content.split(b"\n")[:4]) for content in (before, after))
    lines = unified("k.py", before, after).split(b"\n")[3:-1]
    if before == after:
        return
    sides = {b"-": b"", b"+": b""}
    ended = {b"-": True, b"+": True}
    last = b""
    for line in lines:
        if line.startswith(b"\\ "):
            for side in sides if last == b" " else [last]:
                sides[side], ended[side] = sides[side][:-1], False
            continue
        last = line[:1]
        for side in sides if last == b" " else [last]:
            assert ended[side], "text after the line without a newline"
            sides[side] += line[1:] + b"\n"
    assert (sides[b"-"], sides[b"+"]) == (before, after)


def test_names_are_relative_to_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("sub/k.py", "./sub/k.py", str(tmp_path / "sub" / "k.py")):
        assert unified(name, b"a\n", b"b\n").startswith(b"--- a/sub/k.py\n+++ b/sub/k.py\n")


def test_absolute_name_elsewhere_has_no_double_slash(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    head = unified(str(tmp_path / "k.py"), b"a\n", b"b\n").splitlines()[0]
    assert head == b"--- a" + os.fsencode(tmp_path / "k.py")


def test_name_with_a_blank_ends_in_a_tab(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert unified("my k.py", b"a\n", b"b\n").startswith(b"--- a/my k.py\t\n+++ b/my k.py\t\n")


def test_colour_paints_changes_and_nothing_else():
    painted = colour(b"@@ -1 +1 @@\n-a\n+b\n c\n")
    assert painted == b"\x1b[36m@@ -1 +1 @@\x1b[0m\n\x1b[31m-a\x1b[0m\n\x1b[32m+b\x1b[0m\n c\n"
