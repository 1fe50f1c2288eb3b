"""Reads and writes Python source files without changing a byte that the port did not change.

A file becomes a ``Source``: its text with the line ends as they are in the file (LF, CRLF or a
mixture), decoded by its byte order mark or PEP 263 cookie.  LibCST gives such a text back exactly,
but for two places at the rim of a file: a form feed at the very start and blanks after the last
line end.  ``Source`` keeps these two aside and puts them back when the text is written, and
``parse`` refuses a file that LibCST would still not give back exactly.

Files are written to a temporary file in the same folder that then takes the place of the old one,
so that a reader sees the old or the new content and never a part of it.

Everything that is wrong with the user's file becomes an ``InputError`` of one line.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import io
import os
import re
import stat
import sys
import tokenize
import typing
import warnings

from .diagnostics import InputError

if typing.TYPE_CHECKING:
    import libcst as cst

STDIN = "-"
_BLANKS_AT_END = re.compile(r"(?<=[\r\n])[ \t\f]+\Z")
_LINE_END = re.compile(r"\r\n|\n|\r")


@dataclasses.dataclass(frozen=True)
class Source:
    """One module's source.

    filename: as the user gave it, ``<stdin>`` for standard input; used in messages.
    text: the module's text with its own line ends, without the rim (module docstring).
    encoding: the codec of the file; ``utf-8-sig`` if it starts with a byte order mark.
    prefix, suffix: the rim, which ``complete`` puts back.
    """

    filename: str
    text: str
    encoding: str = "utf-8"
    prefix: str = ""
    suffix: str = ""

    @property
    def newline(self) -> str:
        """The line end of the first line, which LibCST gives to new lines too."""
        match = _LINE_END.search(self.text)
        return match[0] if match else "\n"

    def complete(self, text: str) -> str:
        """``text`` (this source's or its port's) as it stands in the whole file."""
        return self.prefix + text + self.suffix

    def encode(self, text: str) -> bytes:
        """The bytes of a file that holds ``text`` (this source's or its port's)."""
        try:
            return self.complete(text).encode(self.encoding)
        except UnicodeEncodeError as error:
            raise InputError(f"{self.filename}: cannot be written as {self.encoding}: {error.reason}") from None

    def tree(self) -> ast.Module:
        """The module as Python's own tree. Raises InputError with the place of a syntax error."""
        try:
            return _ast(self.text)
        except (SyntaxError, ValueError) as error:
            raise InputError(f"{self.filename}:{_place_and_reason(error)}") from None

    def parse(self) -> cst.Module:
        """The module as LibCST's tree. Raises InputError with the place of a syntax error."""
        import libcst

        try:
            module = libcst.parse_module(self.text)
        except libcst.ParserSyntaxError as error:
            self.tree()  # Python words its syntax errors better, if it refuses the text as well
            reason = error.message.strip().splitlines()[0]
            raise InputError(f"{self.filename}:{error.raw_line}:{error.raw_column + 1}: {reason}") from None
        if module.code != self.text:
            raise InputError(f"{self.filename}: its white space cannot be kept exactly; convert its line ends to LF or CRLF")
        return module

    def defines_function(self, name: str) -> bool:
        """True if the module defines ``name`` as a function at its top level."""
        if name not in self.text:
            return False
        functions = (ast.FunctionDef, ast.AsyncFunctionDef)
        return any(isinstance(node, functions) and node.name == name for node in self.tree().body)


def read(filename: str) -> Source:
    """Reads a file, or standard input for ``-``. Raises InputError."""
    if filename == STDIN:
        return decode("<stdin>", sys.stdin.buffer.read())
    try:
        with open(filename, "rb") as file:
            data = file.read()
    except OSError as error:
        raise InputError(f"{filename}: {error.strerror or error}") from None
    except ValueError as error:  # a NUL in the name
        raise InputError(f"{filename!r}: {error}") from None
    return decode(filename, data)


def decode(filename: str, data: bytes) -> Source:
    """The source in ``data``, the whole content of a file. Raises InputError."""
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        whole = data.decode(encoding)
        exact = whole.encode(encoding) == data
    except SyntaxError as error:
        raise InputError(f"{filename}: {error.msg}") from None
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputError(f"{filename}:{line}: not valid {encoding}: {error.reason} (byte {error.start})") from None
    except LookupError:  # a cookie that names a codec which is not for text
        raise InputError(f"{filename}: {encoding} is not an encoding for source text") from None
    if not exact:
        raise InputError(f"{filename}: cannot be written back unchanged as {encoding}; convert it to UTF-8")
    if re.search(r"\r(?!\n)", whole):
        raise InputError(f"{filename}: it has a carriage return without a line feed; convert its line ends to LF or CRLF")
    body = whole.lstrip("\f")
    blanks = _BLANKS_AT_END.search(body)
    suffix = blanks[0] if blanks else ""
    return Source(
        filename=filename,
        text=body[: len(body) - len(suffix)],
        encoding=encoding,
        prefix=whole[: len(whole) - len(body)],
        suffix=suffix,
    )


def write(filename: str, data: bytes) -> None:
    """Gives the file the content ``data``: all of it, or, on InputError, none of it.

    A symbolic link stays, the file that it points to is written. Permission bits stay. A device or
    pipe, which cannot be replaced, is written to directly.
    """
    try:
        mode = os.stat(filename).st_mode
    except FileNotFoundError:
        mode = None
    except (OSError, ValueError) as error:
        raise _cannot_write(filename, error) from None
    try:
        if mode is None or stat.S_ISREG(mode):
            _replace(os.path.realpath(filename), data, mode)
        else:
            with open(filename, "wb") as file:
                file.write(data)
    except OSError as error:
        raise _cannot_write(filename, error) from None


def _replace(path: str, data: bytes, mode: int | None) -> None:
    folder, name = os.path.split(path)
    temporary = os.path.join(folder, f".{name}.{os.urandom(4).hex()}.tmp")
    # Not tempfile.mkstemp: a new file gets the permissions that the user's umask gives.
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            if mode is not None:
                os.fchmod(file.fileno(), stat.S_IMODE(mode))
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:  # also on Ctrl-C: leave nothing behind
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def _cannot_write(filename: str, error: Exception) -> InputError:
    reason = getattr(error, "strerror", None) or error
    return InputError(f"{filename}: cannot be written: {reason}")


def _ast(text: str) -> ast.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings about the user's literals are not ours to show
        return ast.parse(text)


def _place_and_reason(error: SyntaxError | ValueError) -> str:
    """``line:column: reason``; a NUL in the text is a ValueError or has no place."""
    line, column = getattr(error, "lineno", None), getattr(error, "offset", None)
    return f"{line or 1}:{max(column or 1, 1)}: {getattr(error, 'msg', error)}"
