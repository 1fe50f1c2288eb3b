"""The child process of ``jobs.py``: ``python -m ...worker JOBS RESULTS [--stop-on-failure]``.

Appends to RESULTS, per job, ``{"started": name}`` and then the fields of its ``RungResult``.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import re
import sys
import traceback

from .example import ExampleError, Subject
from .quiet import silence_known_noise
from .rung import Fail, RungResult, Skip

_ROOT = __package__.rsplit(".", 2)[0]
_MESSAGE_CHARACTERS = 1500


def main(inbox: str, outbox: str, stop_on_failure: bool) -> None:
    silence_known_noise()
    with open(inbox) as file:
        jobs = json.load(file)
    with open(outbox, "a", buffering=1) as results:
        for job in jobs:
            results.write(json.dumps({"started": job["name"]}) + "\n")
            result = _result(job)
            results.write(json.dumps(dataclasses.asdict(result)) + "\n")
            if stop_on_failure and result.status == "failed":
                return


def _result(job: dict) -> RungResult:
    name = job["name"]
    try:
        check = importlib.import_module(f"{_ROOT}.{job['check']}").check
        subject = Subject(**job["subject"]) if job["subject"] else None
        detail, data = check(subject, job["target"], job["options"])
        return RungResult(name, "passed", detail, data)
    except Skip as reason:
        return RungResult(name, "skipped", str(reason))
    except Fail as fault:
        return RungResult(name, "failed", str(fault), fault.data)
    except ExampleError as error:
        return RungResult(name, "failed", str(error), {"example_error": True})
    except Exception as error:
        traceback.print_exc()
        return RungResult(name, "failed", _message(error))


def _message(error: BaseException) -> str:
    """The kind, the text, and the innermost line of the user's own code."""
    text = f"{type(error).__name__}: {error}".strip()
    if "Traceback (most recent call last)" in text:
        # An error of interpret mode inside a callback: the text is a traceback of JAX, and the error is its end.
        errors = re.findall(r"^\w[\w.]*(?:Error|Exception): .*", text.partition("Traceback")[2], re.M)
        text = errors[-1] if errors else text
    text = text[:_MESSAGE_CHARACTERS]
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename.startswith("<port of")]
    if frames:
        text += f"\n  at line {frames[-1].lineno} of the port: {frames[-1].line}"
    return text


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], "--stop-on-failure" in sys.argv[3:])
