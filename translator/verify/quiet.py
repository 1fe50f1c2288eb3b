"""Drops JAX's report of CUDA libraries that are not installed where there is no GPU to use them.

The plugin is wanted on such machines for compiling without a device; the traceback that it logs at start says
nothing about the user's kernel.
"""

from __future__ import annotations

import logging
import warnings


def silence_known_noise() -> None:
    """Call before the first JAX backend is made. Other log records and warnings pass."""
    logging.getLogger("jax._src.xla_bridge").addFilter(_not_plugin_report)
    # The originals run on the backend whose deprecation is the reason for the port.
    warnings.filterwarnings("ignore", category=DeprecationWarning, module=r"jax(\.|$)")
    warnings.filterwarnings("ignore", message=r".*Triton.*", category=DeprecationWarning)


def _not_plugin_report(record: logging.LogRecord) -> bool:
    return not str(record.msg).startswith("Jax plugin configuration error")
