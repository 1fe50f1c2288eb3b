"""Times a static port of a 700-line file, start of Python included: ``python scripts/bench_static.py``.

The file is made of the golden kernels under new names, all of which are ported. Other files can be
named. Prints the median, the fastest and the slowest wall time of ``pallas-port FILE --to sm100 --report
json``, and its processor time, which a busy machine changes less; exit code 1 if the median is above the
target. Byte code is cached, as for an installed tool.

    --runs N      timed runs after one that is not timed, 11 by default
    --profile     where the time goes instead: the slowest imports and functions of one run
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import pathlib
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
LINES, TARGET_SECONDS = 700, 0.5
_RUN = "from pallas_port.cli import main; main()"
_PROFILE = """
import cProfile, pstats, sys
from pallas_port.cli import main
profile = cProfile.Profile()
try:
    profile.runcall(main)
except SystemExit:
    pass
pstats.Stats(profile, stream=sys.stderr).sort_stats("cumulative").print_stats(40)
"""


def generated() -> str:
    """Golden kernels, one after the other, until there are 700 lines; imports once at the top."""
    sources = [file.read_text() for file in sorted(ROOT.glob("golden/*/source.py"))]
    imports: dict[str, None] = {}
    parts: list[str] = []
    lines = number = 0
    while lines < LINES:
        source = sources[number % len(sources)]
        tree = ast.parse(source)
        names = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
        start = 0
        for node in tree.body:
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                imports[ast.unparse(node)] = None
                start = node.end_lineno or 0
        places = {
            (node.lineno - 1, node.col_offset + (len("def ") if isinstance(node, ast.FunctionDef) else 0))
            for node in ast.walk(tree)
            if isinstance(node, ast.Name) and node.id in names or node in tree.body and isinstance(node, ast.FunctionDef)
        }
        rows = source.split("\n")
        for row, column in sorted(places, reverse=True):
            end = column + len(re.match(r"\w+", rows[row][column:]).group())  # type: ignore[union-attr]
            rows[row] = f"{rows[row][:end]}_{number}{rows[row][end:]}"
        parts.append("\n".join(rows[start:]).strip("\n"))
        number += 1
        lines = len(imports) + sum(part.count("\n") + 3 for part in parts)
    return "\n".join(imports) + "\n\n\n" + "\n\n\n".join(parts) + "\n"


def environment(cache: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    return kept | {"PYTHONPYCACHEPREFIX": cache}


def bench(file: str, runs: int, cache: str) -> bool:
    """Prints one file's line; True if it keeps the target."""
    command = [sys.executable, "-c", _RUN, file, "--to", "sm100", "--report", "json"]
    seconds, processor, output = [], [], b""
    for _ in range(runs + 1):
        start, used = time.perf_counter(), _processor_seconds()
        output = subprocess.run(command, stdout=subprocess.PIPE, env=environment(cache)).stdout
        seconds.append(time.perf_counter() - start)
        processor.append(_processor_seconds() - used)
    sites = [site["status"] for found in json.loads(output)["files"] for site in found["sites"]]
    lines = pathlib.Path(file).read_text().count("\n")
    median = statistics.median(seconds[1:])
    print(
        f"{pathlib.Path(file).name}: {lines} lines, {sites.count('ported')} of {len(sites)} calls ported: "
        f"median {median:.3f} s (fastest {min(seconds[1:]):.3f}, slowest {max(seconds[1:]):.3f}, {runs} runs), "
        f"processor time {statistics.median(processor[1:]):.3f} s"
    )
    return median <= TARGET_SECONDS


def _processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def profile(file: str, cache: str) -> None:
    arguments = [file, "--to", "sm100", "--report", "json"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True, "env": environment(cache)}
    subprocess.run([sys.executable, "-c", _RUN, *arguments], **quiet)
    imports = subprocess.run([sys.executable, "-X", "importtime", "-c", _RUN, *arguments], **quiet).stderr
    rows = [line.removeprefix("import time:").split("|") for line in imports.splitlines() if line.startswith("import time:")]
    timed = sorted(((int(row[1]), row[2].rstrip()) for row in rows if row[1].strip().isdigit()), reverse=True)
    print("imports, milliseconds with what they import:")
    for microseconds, name in timed[:30]:
        print(f"{microseconds / 1000:8.1f}  {name.strip()}")
    print(subprocess.run([sys.executable, "-c", _PROFILE, *arguments], **quiet).stderr)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("files", nargs="*", help="files to port; the generated one by default")
    parser.add_argument("--runs", type=int, default=11)
    parser.add_argument("--profile", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        made = pathlib.Path(folder) / "kernels.py"
        made.write_text(generated())
        cache = str(pathlib.Path(folder) / "cache")
        files = arguments.files or [str(made)]
        if arguments.profile:
            for file in files:
                profile(file, cache)
            return
        kept = [bench(file, arguments.runs, cache) for file in files]
    sys.exit(0 if all(kept) else 1)


if __name__ == "__main__":
    main()
