"""Compares a generated kernel's port with the original, on the host: lowered for both targets, interpreted.

As a script it tries many: ``python -m pallas_port.tests.fuzz.check --kernels 100 [--first SEED]`` prints each
disagreement with the kernel's source, to be reduced to a test.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import random
import tempfile
import traceback

os.environ.setdefault("JAX_PLATFORMS", "cpu")

from pallas_port.translator.driver import port
from pallas_port.translator.result import TARGETS, Options
from pallas_port.translator.source import Source
from pallas_port.translator.verify import interpret, lower
from pallas_port.translator.verify.example import Subject
from pallas_port.translator.verify.rung import Fail, Skip

from .kernels import Kernel, kernel


def disagreement(made: Kernel) -> str:
    """What is wrong with the port of a kernel; empty if nothing, and for a kernel that stays on Triton."""
    texts = {}
    for target in TARGETS:
        result = port(Source("kernel.py", made.source), target, Options())
        if any(site.status != "ported" for site in result.sites):
            return ""
        texts[target] = result.text
    with tempfile.TemporaryDirectory() as directory:
        file = pathlib.Path(directory) / "kernel.py"
        file.write_text(made.source)
        dtypes = ("float32", "float16", "bfloat16")
        tolerance = dict.fromkeys(dtypes, made.tolerance)
        for target, text in texts.items():
            subject = Subject(str(file), text, str(file), "example_inputs", tolerance=tolerance)
            try:
                lower.check(subject, target, {})
                if target == "sm90":
                    interpret.check(subject, target, {})
            except Skip:
                continue
            except Fail as fault:
                return f"{target}: {fault}"
            except Exception:
                return f"{target}: {traceback.format_exc(limit=-2)}"
    return ""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kernels", type=int, default=100)
    parser.add_argument("--first", type=int, default=0, help="seed of the first kernel")
    arguments = parser.parse_args()
    wrong = 0
    for seed in range(arguments.first, arguments.first + arguments.kernels):
        made = kernel(random.Random(seed).choice)
        if reason := disagreement(made):
            wrong += 1
            print(f"--- kernel {seed}: {reason}\n{made.source}", flush=True)
    print(f"{wrong} of {arguments.kernels} kernels disagree")


if __name__ == "__main__":
    main()
