"""The rewrites: one file per rule, each a small pass over the syntax nodes that the plan named.

A rule decides nothing: the plan says where and with what (``translator/actions.py``); the rule
knows how that is spelled in Mosaic GPU.  ``RULES`` lists them; pages and tests are generated from
their docstrings and ``EXAMPLES``.
"""

from __future__ import annotations

from .aliases import Aliases
from .atomics import Atomics
from .block_views import BlockViews
from .dot_sm90 import DotSm90
from .dot_sm100 import DotSm100
from .engine import Rule, apply
from .epilogues import Epilogues
from .functions import Functions
from .grid_axes import GridAxes
from .helper_versions import HelperVersions
from .hoist_column_sums import HoistColumnSums
from .invert_masks import InvertMasks
from .launch import Launch
from .layouts import Layouts
from .loads import Loads
from .loop_carries import LoopCarries
from .new_axes import NewAxes
from .reductions import Reductions
from .remove_unused import RemoveUnused
from .sequential_axes import SequentialAxes
from .sqrt import Sqrt
from .staged import Staged
from .stores import Stores
from .whole_steps import WholeSteps
from .wrappers import Wrappers

RULES: tuple[type[Rule], ...] = (
    Launch,
    GridAxes,
    BlockViews,
    Aliases,
    RemoveUnused,
    LoopCarries,
    SequentialAxes,
    HelperVersions,
    Loads,
    Stores,
    Atomics,
    Layouts,
    NewAxes,
    Reductions,
    HoistColumnSums,
    InvertMasks,
    Sqrt,
    Functions,
    Wrappers,
    DotSm90,
    DotSm100,
    Epilogues,
    Staged,
    WholeSteps,
)

__all__ = ["RULES", "Rule", "apply"]
