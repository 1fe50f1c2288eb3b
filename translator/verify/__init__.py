"""The ladder of evidence that a port is right: each rung proves one thing and says so.

========== ============================================================ ====================
rung       what a pass proves                                           needs
========== ============================================================ ====================
text       the port parses; porting it again changes nothing            nothing
lower      every primitive has a Mosaic GPU rule and a layout           JAX
compile    ptxas makes SASS for the target; registers, spills, opcodes  the JAX CUDA plugin
interpret  right values, no race, no access out of bounds               JAX
run        right values on the real GPU, from poisoned outputs          a GPU of the target
time       nothing; it measures port against original                   a GPU of the target
========== ============================================================ ====================

No rung stands for another: interpret mode ignores layouts, lowering ignores races, and neither notices a wrong
architecture. A rung that cannot be climbed is reported as skipped with the reason; none passes on nothing.

How it is built::

    ladder.py                      which rungs, in which order; the entry points
    jobs.py, worker.py             rungs run in child processes: hangs, crashes and dumps stay there
    modules.py, example.py         original and port as two modules; the call to make of each
    text.py lower.py compile.py interpret.py run.py timing.py      one rung each
    compare.py                     what "right values" means
    reference_support.py           what the support functions of a port mean
    target.py, assembly.py, quiet.py      pretended devices; reading ptxas and SASS; known noise

The parent process never imports JAX, so ``pallas-port`` starts fast and cannot be taken down by a kernel.
"""

from .ladder import RUNGS, verify_file, verify_text
from .rung import RungResult, Status

__all__ = ["RUNGS", "RungResult", "Status", "verify_file", "verify_text"]
