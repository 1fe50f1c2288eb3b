"""Support code of launches: grids that CUDA can take."""

import math


def _grid(extents, names):
  """Grid of a launch.  CUDA takes at most 65,535 programs along each axis but the last: if one is
  longer, the longest becomes the last."""
  n = len(extents)
  for order in (range(n), sorted(range(n), key=lambda i: extents[i])):
    grid = tuple(extents[i] for i in order)
    *outer, middle, _ = grid
    if max(math.prod(outer), middle) < 65536:  # JAX makes one axis of the outer ones
      return dict(grid=grid, grid_names=tuple(names[i] for i in order))
  raise ValueError(f"a grid of {extents}: too many programs on all axes but the longest")
