"""Adds parameters to functions."""

from __future__ import annotations

import libcst as cst


def with_parameters(node: cst.FunctionDef, names: tuple[str, ...]) -> cst.FunctionDef:
    """The function with more keyword-only parameters."""
    parameters = node.params
    star = parameters.star_arg
    if not isinstance(star, (cst.Param, cst.ParamStar)):
        star = cst.ParamStar()
    new = [*parameters.kwonly_params, *(cst.Param(cst.Name(name)) for name in names)]
    return node.with_changes(params=parameters.with_changes(star_arg=star, kwonly_params=new))
