"""The command line: ``pallas-port FILE... --to TARGET`` and the subcommands.

Two Typer applications share the one command name. The first argument decides: the name of a
subcommand (``check``, ``verify``, ``rules``, ``explain``) picks the second, anything else the
first, so that the main job needs no subcommand. A file that is named like one is ``./check``.

What goes where: stdout gets the one thing that was asked for (module, diff, report), stderr gets
diagnoses and messages. A static port imports neither JAX nor rich, and a module is imported where
it is used, since imports are most of the time of a short run.

An ``InputError`` is the user's (exit code 2), any other exception is ours (3); neither keeps the
other files of the same run from being ported. The exit code is the highest that any file earned.
"""

from __future__ import annotations

import dataclasses
import gc
import os
import sys
import typing
from typing import Annotated, Literal, NoReturn, Sequence

import typer

from . import __version__
from .translator import source as source_files
from .translator.diagnostics import InputError
from .translator.result import Options, PortResult, Target
from .translator.source import STDIN, Source

if typing.TYPE_CHECKING:
    from .translator.facts import Facts

DONE, KEPT, BAD_INPUT, FAULT = 0, 1, 2, 3
_EPILOG = """\
\b
Other commands (each has --help):
  pallas-port check FILE     which primitives of a kernel Mosaic GPU can lower
  pallas-port verify FILE    prove a port: lower, compile, interpret, run, time
  pallas-port rules          list the rewrite rules
  pallas-port explain CODE   explain a rule or a diagnosis

\b
Exit codes:
  0  every call is ported, or nothing is left to port
  1  a call stays on Triton; with --check: something is left to port, or cannot
     be; verify: a rung failed
  2  bad input or usage
  3  internal fault of pallas-port
"""
TRACEBACK_VARIABLE = "PALLAS_PORT_TRACEBACK"

_LOOKS = {  # plain messages: they also go to logs and editors
    "add_completion": False,
    "rich_markup_mode": None,
    "pretty_exceptions_enable": False,
}
_main_job = typer.Typer(**_LOOKS)
_subcommands = typer.Typer(**_LOOKS)
SUBCOMMANDS = ("check", "verify", "rules", "explain")

_File = Annotated[str, typer.Argument(metavar="FILE", show_default=False)]
_To = Annotated[Target, typer.Option("--to", help="GPU generation to port to.")]
_Example = Annotated[
    str | None,
    typer.Option(metavar="FILE:FUNCTION", help="Run this function and use the facts recorded."),
]


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Runs the command line and leaves with SystemExit."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    app = _subcommands if arguments[:1] and arguments[0] in SUBCOMMANDS else _main_job
    arguments, recorded = _split_recorded_command(arguments)
    gc.set_threshold(200_000)  # syntax trees are many objects and little garbage
    command = typer.main.get_command(app)
    try:
        command.main(args=arguments, prog_name="pallas-port", obj=recorded)
    except InputError as error:
        _say(str(error))
        code = BAD_INPUT
    except Exception as error:
        _say(_fault("pallas-port", error))
        code = FAULT
    else:
        code = DONE
    raise SystemExit(code)


def _split_recorded_command(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Takes COMMAND out of ``... --record -- COMMAND...``; without --record, ``--`` is Typer's."""
    if "--" in arguments:
        at = arguments.index("--")
        if "--record" in arguments[:at]:
            return arguments[:at], arguments[at + 1 :]
    return arguments, []


# -- the main job -------------------------------------------------------------------------------


def _show_version(wanted: bool) -> None:
    if wanted:
        _print(f"pallas-port {__version__}\n".encode())
        raise typer.Exit(DONE)


@_main_job.command(epilog=_EPILOG)
def port(
    context: typer.Context,
    files: Annotated[
        list[str],
        typer.Argument(metavar="FILE", help="Python files; - is stdin.", show_default=False),
    ],
    to: _To,
    output: Annotated[
        str | None,
        typer.Option("-o", "--output", metavar="FILE", help="Write the module to FILE."),
    ] = None,
    in_place: Annotated[
        bool, typer.Option("--in-place", help="Replace each FILE by its port.")
    ] = False,
    diff: Annotated[
        bool, typer.Option("--diff", help="Print a unified diff, then the diagnoses.")
    ] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; tell by the exit code.")
    ] = False,
    report: Annotated[
        Literal["text", "json"] | None, typer.Option(help="Print what was done at each call.")
    ] = None,
    keep_native: Annotated[
        bool, typer.Option("--keep-native", help="Keep sqrt where Mosaic GPU has a rule for it.")
    ] = False,
    example: _Example = None,
    record: Annotated[
        bool,
        typer.Option("--record", help="With -- COMMAND... at the end: run it, use the facts."),
    ] = False,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Move the Pallas kernels in FILE from the Triton backend to Mosaic GPU.

    Prints the ported module. What cannot be moved stays on Triton; stderr says why.
    """
    request = Request(to, Options(keep_native), output, in_place, diff, check, report)
    request.refuse_conflicts(files)
    facts = _record_facts(files, example, context.obj if record else None)
    run = Run(request, facts)
    for filename in files:
        run.port(filename)
    raise typer.Exit(run.finish())


@dataclasses.dataclass(frozen=True)
class Request:
    """What the user asked for, without the files."""

    target: Target
    options: Options
    output: str | None
    in_place: bool
    diff: bool
    check: bool
    report: Literal["text", "json"] | None

    def refuse_conflicts(self, files: Sequence[str]) -> None:
        """Raises InputError for options that contradict each other or the files."""
        writes = [name for name, on in (("-o", self.output), ("--in-place", self.in_place)) if on]
        reads = [name for name, on in (("--diff", self.diff), ("--check", self.check)) if on]
        if len(writes) == 2 or (writes and reads):
            raise InputError(f"pallas-port: {' and '.join([*writes, *reads])} exclude each other")
        if self.diff and self.report:
            raise InputError("pallas-port: --diff and --report both print to stdout; choose one")
        if files.count(STDIN) > 1:
            raise InputError("pallas-port: stdin (-) can be read only once")
        if self.in_place and STDIN in files:
            raise InputError("pallas-port: --in-place needs files, not stdin (-)")
        if len(files) > 1 and self.output:
            raise InputError("pallas-port: -o takes one FILE; use --in-place for several")
        if len(files) > 1 and not (self.in_place or reads or self.report):
            raise InputError(
                "pallas-port: several FILEs need --in-place, --diff, --check or --report"
            )


def _record_facts(
    files: Sequence[str], example: str | None, command: list[str] | None
) -> Facts | None:
    """Runs what the user named for recording; None if nothing was named."""
    if example is not None and command is not None:
        raise InputError("pallas-port: --example and --record exclude each other")
    if example is not None:
        from .translator.facts import merge
        from .translator.record import record_example

        return merge(*(record_example(example, filename) for filename in files))
    if command is not None:
        from .translator.record import record_command

        return record_command(command)
    return None


class Run:
    """Ports files one by one as a ``Request`` says, and keeps what the end of the run needs."""

    def __init__(self, request: Request, facts: Facts | None) -> None:
        self._request = request
        self._facts = facts
        self._results: list[PortResult] = []
        self._errors: list[str] = []
        self._code = DONE
        self._holds_kernels = False

    def port(self, filename: str) -> None:
        """Ports one file and gives out its text or diff; errors are kept for ``finish``."""
        try:
            source = source_files.read(filename)
            result = _translate(source, self._request, self._facts)
            self._results.append(result)
            self._give_out(source, result)
        except InputError as error:
            self._fail(str(error), BAD_INPUT)
        except Exception as error:
            self._fail(_fault(filename, error), FAULT)

    def finish(self) -> int:
        """Prints the report, if one is wanted, and the errors. Returns the exit code."""
        if self._request.report == "json":
            from .translator.report import as_json

            _print(as_json(self._request.target, self._results, self._errors).encode())
        elif self._request.report == "text":
            _print_reports(self._results)
        _say(*self._errors)
        return self._code if self._holds_kernels else max(self._code, BAD_INPUT)

    def _give_out(self, source: Source, result: PortResult) -> None:
        from .translator import report

        outcome = report.outcome(result)
        if outcome == "no-call" and not _launches_mosaic_kernel(source):
            _say(f"{source.filename}: no pallas_call found")
            return
        self._holds_kernels = True
        if outcome in ("nothing-to-port", "no-call"):
            _say(f"{source.filename}: nothing to port")
        elif (
            self._facts is None
            and os.path.isfile(source.filename)  # not stdin
            and source.defines_function("example_inputs")
        ):
            _say(
                f"{source.filename}: note: it has example_inputs(); to record facts from it, add "
                f"--example {source.filename}:example_inputs"
            )
        request = self._request
        self._write(source, result)
        if outcome == "kept" or (request.check and result.changed):
            self._raise_code(KEPT)
        if not (request.diff or request.report):
            _say(*(finding.render(result.filename) for finding in result.diagnostics))

    def _write(self, source: Source, result: PortResult) -> None:
        request = self._request
        data = source.encode(result.text)
        if request.diff:
            _print_diff(result, source.encode(result.original), data)
        elif request.output not in (None, STDIN):
            source_files.write(request.output, data)
        elif request.in_place:
            if result.changed:
                source_files.write(source.filename, data)
        elif not (request.check or request.report):
            _print(data)

    def _fail(self, message: str, code: int) -> None:
        self._errors.append(message)
        self._raise_code(code)

    def _raise_code(self, code: int) -> None:
        self._code = max(self._code, code)


def _translate(source: Source, request: Request, facts: Facts | None) -> PortResult:
    from .translator.driver import port as translate

    return translate(source, request.target, request.options, facts)


def _launches_mosaic_kernel(source: Source) -> bool:
    """True if the module names ``plgpu.kernel`` of Mosaic GPU: it may have been ported before."""
    import ast

    from .translator.names import MOSAIC, Resolver

    resolver = Resolver(source.tree())
    return any(
        resolver.qualified(node) == f"{MOSAIC}.kernel"
        for node in ast.walk(resolver.tree)
        if isinstance(node, (ast.Attribute, ast.Name))
    )


def _print_diff(result: PortResult, before: bytes, after: bytes) -> None:
    from .translator import diff

    text = diff.unified(result.filename, before, after)
    if sys.stdout.isatty() and "NO_COLOR" not in os.environ:
        text = diff.colour(text)
    remaining = [f"# {finding.render(result.filename)}\n" for finding in result.diagnostics]
    _print(text + "".join(remaining).encode(errors="surrogateescape"))


def _print_reports(results: Sequence[PortResult]) -> None:
    from .translator import report

    if not sys.stdout.isatty():
        for result in results:
            _print(report.as_text(result).encode(errors="surrogateescape"))
        return
    from rich.console import Console

    for result in results:
        Console().print(report.as_table(result))


# -- the subcommands ----------------------------------------------------------------------------


@_subcommands.command()
def check(file: _File, example: _Example = None) -> None:
    """Show for each line of each kernel which backend can lower it, and what a port does."""
    from .translator.check import check_file

    _print(check_file(file, example).encode())


@_subcommands.command()
def verify(file: _File, to: _To, example: _Example) -> None:
    """Prove the port of FILE against the original, rung by rung; exit code 1 if a rung fails."""
    from .translator.verify import verify_file

    rungs = verify_file(file, to, example)
    for rung in rungs:
        _print(f"{rung.render()}\n".encode())
    raise typer.Exit(KEPT if any(rung.status == "failed" for rung in rungs) else DONE)


@_subcommands.command()
def rules() -> None:
    """List the rewrite rules."""
    from .rewrites import RULES

    for rule in sorted(RULES, key=lambda rule: rule.code):
        _print(f"{rule.code}  {rule.name}: {rule.title}\n".encode())


@_subcommands.command()
def explain(code: Annotated[str, typer.Argument(metavar="CODE", show_default=False)]) -> None:
    """Explain a rewrite rule or a diagnosis."""
    from .rewrites import RULES
    from .translator.diagnostics import CODES

    texts = {rule.code: f"{rule.title}\n\n{sys.modules[rule.__module__].__doc__}" for rule in RULES}
    texts |= {kind.code: f"{kind.title}\n\n{kind.explanation}" for kind in CODES.values()}
    text = texts.get(code.upper())
    if text is None:
        known = " ".join(sorted(texts))
        raise InputError(f"pallas-port: no rule or diagnosis {code}; there are {known}")
    _print(f"{code.upper()}: {text.strip()}\n".encode())


# -- output -------------------------------------------------------------------------------------


def _print(data: bytes) -> None:
    """Writes to stdout byte for byte. A reader that has left (``| head``) is no error, a full disk is (InputError)."""
    try:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left goes there at exit
        if not isinstance(error, BrokenPipeError):
            raise InputError(f"pallas-port: stdout cannot be written: {error.strerror}") from None


def _say(*lines: str) -> None:
    for line in lines:
        print(line, file=sys.stderr)


def _fault(where: str, error: Exception) -> str:
    """One line about an exception that should not have happened, or all of it where asked for."""
    if os.environ.get(TRACEBACK_VARIABLE):
        import traceback

        return "".join(traceback.format_exception(error)).rstrip()
    what = " ".join(f"{type(error).__name__}: {error}".split())
    return (
        f"{where}: internal fault: {what}; please report it "
        f"({TRACEBACK_VARIABLE}=1 shows where it happened)"
    )


if __name__ == "__main__":  # python -m pallas_port.cli
    main()
