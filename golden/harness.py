"""Finds and loads goldens; ``python -m pallas_port.golden.harness --update [NAME...]`` rewrites expected ports.

``--export`` writes the ports of goldens without expected text to ``golden/ports/``, for a GPU machine without libcst.

``case.py`` of a golden declares:

``SHAPES: dict[label, dict]``
    Keyword arguments of ``inputs`` (JSON values: sizes, dtype names) per label.
``inputs(**shape) -> tuple``
    Seeded random arguments of the entry; or ``(name, args[, kwargs])`` as in the example protocol.
``reference(*args)``
    The same result in higher precision, at least float32; or a dict of such functions by entry name.
``SMALL``, ``TIMED: tuple[label, ...]``
    The labels that are lowered, compiled and interpreted without a GPU; those that are timed on one.
``work(*args) -> dict``
    ``bytes`` moved at least and ``flops`` done (either may be absent), of one call.

and may declare:

``TOLERANCE: dict[dtype, float]``
    Relative norm error; defaults in ``translator/verify/compare.py``.
``INSTRUCTIONS: dict[target, tuple[opcode, ...]]``, ``MAX_SPILL_BYTES: int`` (default 0)
    What the machine code must contain and may spill.
``WRONG: dict[label, (find, replace, rung)]``
    Wrong ports: a text replacement in ``expected_sm90.py``, found exactly once, and the rung that must fail.
``peers(*args) -> dict[name, function]``
    Other implementations to time on the same arguments, such as a library call.
``ENTRIES: dict[label, name]``
    The function to call per label of ``SHAPES``, ``"example:NAME"`` for one of the case; ``run`` where absent.
``SOURCE_MODULE: str``
    An installed module to port instead of ``source.py``. Then there is no expected text, and the port is made
    on the fly, or read from ``golden/ports/`` where libcst is not installed.
``TARGETS: tuple[target, ...]``
    The targets that it is ported to; on others it stays on Triton, as the expected text says. All by default.
``INTERPRETED: bool`` (default True)
    False if interpret mode does not support the kernel; the case says why in a comment.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import importlib.metadata
import importlib.util
import pathlib
import sys
import types
from collections.abc import Sequence
from typing import Any

from ..translator.result import TARGETS
from ..translator.verify import modules
from ..translator.verify.example import Subject

ROOT = pathlib.Path(__file__).parent
PORTS = ROOT / "ports"  # ignored by git


@dataclasses.dataclass(frozen=True)
class Golden:
    """One golden kernel. Reading ``case`` executes the case file, which imports JAX."""

    name: str
    directory: pathlib.Path

    @functools.cached_property
    def case(self) -> types.ModuleType:
        return modules.load(str(self.directory / "case.py"), role="case")

    @property
    def targets(self) -> tuple[str, ...]:
        """The targets that it is ported to."""
        return getattr(self.case, "TARGETS", TARGETS)

    @property
    def source_file(self) -> pathlib.Path:
        module = getattr(self.case, "SOURCE_MODULE", None)
        if module is None:
            return self.directory / "source.py"
        spec = importlib.util.find_spec(module)
        if spec is None or spec.origin is None:
            raise FileNotFoundError(f"golden {self.name}: module {module} is not installed")
        return pathlib.Path(spec.origin)

    def expected_file(self, target: str) -> pathlib.Path | None:
        """The committed port; None if the source is an installed module."""
        if hasattr(self.case, "SOURCE_MODULE"):
            return None
        return self.directory / f"expected_{target}.py"

    def expected_text(self, target: str) -> str:
        """The committed port, or one made now; without libcst, which only the latter needs, the exported one.

        Raises:
          FileNotFoundError: libcst is missing, and there is no exported port for the installed JAX.
        """
        file = self.expected_file(target)
        if file is None:
            try:
                return self.port(target)
            except ModuleNotFoundError as error:
                if error.name != "libcst":
                    raise
            file = self.exported_file(target)
            if not file.exists():
                raise FileNotFoundError(f"no libcst and no {file}: run the harness with --export where there is libcst")
        return file.read_text(encoding="utf-8")

    def exported_file(self, target: str) -> pathlib.Path:
        """Where ``--export`` puts the port. An installed module differs from version to version: so does the place."""
        return PORTS / importlib.metadata.version("jax") / f"{self.name}_{target}.py"

    def port(self, target: str, text: str | None = None) -> str:
        """The port of the source, or of ``text`` in its place."""
        from ..translator.driver import port
        from ..translator.result import Options
        from ..translator.source import read

        source = read(str(self.source_file))
        if text is not None:
            source = dataclasses.replace(source, text=text)
        return port(source, target, Options(), None).text

    def subject(self, label: str, text: str) -> Subject:
        """What to verify for one shape, with ``text`` as the port."""
        return Subject(
            filename=str(self.source_file),
            ported_text=text,
            example_file=str(self.directory / "case.py"),
            example_function="inputs",
            kwargs=self.case.SHAPES[label],
            entry=getattr(self.case, "ENTRIES", {}).get(label, "run"),
            tolerance=getattr(self.case, "TOLERANCE", {}),
        )

    def compile_options(self, target: str) -> dict[str, Any]:
        """Options of the compile rung."""
        return {
            "instructions": list(getattr(self.case, "INSTRUCTIONS", {}).get(target, ())),
            "max_spill_bytes": getattr(self.case, "MAX_SPILL_BYTES", 0),
        }

    def wrong(self, label: str) -> tuple[str, str]:
        """The text of a wrong port and the rung that must reject it.

        Raises:
          ValueError: the text to replace is not found exactly once, so the mutation no longer says what it did.
        """
        find, replace, rung = self.case.WRONG[label]
        text = self.expected_text("sm90")
        if (count := text.count(find)) != 1:
            raise ValueError(f"golden {self.name}, wrong port {label!r}: {find!r} occurs {count} times, not once")
        return text.replace(find, replace), rung


def discover(names: Sequence[str] = (), root: pathlib.Path = ROOT) -> list[Golden]:
    """All goldens below ``root``, or those named, by name.

    Raises:
      ValueError: a name that is not a golden.
    """
    found = {path.parent.name: Golden(path.parent.name, path.parent) for path in sorted(root.glob("*/case.py"))}
    if unknown := [name for name in names if name not in found]:
        raise ValueError(f"no golden named {', '.join(unknown)}; there are {', '.join(found)}")
    return [golden for name, golden in found.items() if not names or name in names]


def update(goldens: Sequence[Golden]) -> list[pathlib.Path]:
    """Writes the expected ports anew; the files that changed."""
    changed = []
    for golden in goldens:
        for target in TARGETS:
            file = golden.expected_file(target)
            if file is None:
                continue
            text = golden.port(target)
            if not file.exists() or file.read_text(encoding="utf-8") != text:
                file.write_text(text, encoding="utf-8")
                changed.append(file)
    return changed


def export(goldens: Sequence[Golden]) -> list[pathlib.Path]:
    """Writes the ports of installed modules, for the installed JAX; the files."""
    written = []
    for golden in goldens:
        for target in TARGETS:
            if golden.expected_file(target) is None:
                file = golden.exported_file(target)
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(golden.port(target), encoding="utf-8")
                written.append(file)
    return written


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare the expected ports of the goldens with what is made now.")
    parser.add_argument("names", nargs="*", help="goldens; all by default")
    parser.add_argument("--update", action="store_true", help="write what differs")
    parser.add_argument("--export", action="store_true", help="write the ports of installed modules to golden/ports/")
    arguments = parser.parse_args()
    goldens = discover(arguments.names)
    if arguments.export:
        for file in export(goldens):
            print(f"wrote {file}")
        return
    if arguments.update:
        for file in update(goldens):
            print(f"wrote {file}")
        return
    stale = [
        file
        for golden in goldens
        for target in TARGETS
        if (file := golden.expected_file(target))
        and (not file.exists() or file.read_text(encoding="utf-8") != golden.port(target))
    ]
    for file in stale:
        print(f"differs: {file}")
    sys.exit(1 if stale else 0)


if __name__ == "__main__":
    main()
