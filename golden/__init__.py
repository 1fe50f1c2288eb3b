"""Golden kernels: Triton sources with their expected ports, inputs, references and measured results.

One folder per golden kernel::

    golden/NAME/source.py            the Triton kernel: run(*args, ...)
    golden/NAME/expected_sm90.py     its port, committed; a review of the translator is a review of these
    golden/NAME/expected_sm100.py
    golden/NAME/case.py              inputs, reference, bounds (see ``harness.py``)
    golden/results/DEVICE.json       what ``device.py`` measured, one file per device kind

Who does what: ``harness.py`` finds and loads goldens and rewrites the expected ports, ``measure.py`` runs one
golden on a GPU, ``device.py`` all of them, ``table.py`` makes the README's table from the result files.
"""
