"""Reads Triton-backend Pallas kernels, plans their move to Mosaic GPU and proves the result.

Data flows one way through four stages::

    read        source.py, names.py, sites.py, kernel_model.py   source text -> model
    plan        plan.py, facts.py                                model -> plan (no CST edits)
    rewrite     ../rewrites/                                     plan -> new source text
    verify      verify/                                          evidence that the port is right

``driver.py`` runs the first three; nothing in them imports JAX.
"""
