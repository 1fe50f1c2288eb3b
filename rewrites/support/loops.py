"""Support code: loops of which some steps need no mask."""

import jax.numpy as jnp
from jax import lax


def _split_loop(lower, upper, body, carry, *, start=None, end=None):
  """`lax.fori_loop`, whose steps from `start` (None: the first) up to `end` (None: the last) need no
  mask: they are `body(step, carry, True)`."""
  clip = lambda step: lax.clamp(jnp.int32(lower), jnp.int32(step), jnp.int32(upper))
  first = lower if start is None else clip(start)
  last = upper if end is None else lax.max(jnp.int32(first), clip(end))
  if start is not None:
    carry = lax.fori_loop(lower, first, body, carry)
  carry = lax.fori_loop(first, last, lambda step, carry: body(step, carry, True), carry)
  if end is not None:
    carry = lax.fori_loop(last, upper, body, carry)
  return carry
