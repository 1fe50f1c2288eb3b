"""Support code: functions along one axis of an array of rank 1 or 2."""

import jax.numpy as jnp
from jax import lax

from .math import _in_float32


def _expanded(y, x, axis):
  """`y`, a reduction of `x` over `axis`, broadcast to the shape of `x`."""
  return lax.broadcast_in_dim(y, x.shape, [d for d in range(x.ndim) if d != axis % x.ndim])


def _first_index(best, x, axis):
  """Index along `axis` of the first nan, or else of the first element that equals `best`."""
  axis = 0 if axis is None else axis % x.ndim
  n = x.shape[axis]
  index = lax.broadcasted_iota(jnp.int32, x.shape, axis)
  found = jnp.where(x != x, index - n, jnp.where(x == _expanded(best, x, axis), index, n)).min(axis=axis)
  return jnp.where(found < 0, found + n, found)


def _at_32_bits(x):
  """`x` in a dtype of 32 bits, in the same order."""
  dtype = jnp.float32 if jnp.issubdtype(x.dtype, jnp.floating) else jnp.int32
  return x if x.dtype == jnp.uint32 else x.astype(dtype)


def _argmax(x, axis=None, index_dtype=jnp.int32):
  """Index of the largest element: the first of several, the first nan if there is one."""
  x = _at_32_bits(x)
  return _first_index(x.max(axis=axis), x, axis).astype(index_dtype)


def _argmin(x, axis=None, index_dtype=jnp.int32):
  """Index of the smallest element: the first of several, the first nan if there is one."""
  x = _at_32_bits(x)
  return _first_index(x.min(axis=axis), x, axis).astype(index_dtype)


@_in_float32
def _softmax(x, axis=-1):
  """exp(x - max) / sum(exp(x - max)) along `axis`."""
  e = jnp.exp(x - _expanded(x.max(axis=axis), x, axis))
  return e / _expanded(e.sum(axis=axis), x, axis)


@_in_float32
def _log_softmax(x, axis=-1):
  """x - max - log(sum(exp(x - max))) along `axis`."""
  y = x - _expanded(x.max(axis=axis), x, axis)
  return y - _expanded(jnp.log(jnp.exp(y).sum(axis=axis)), x, axis)


@_in_float32
def _logsumexp(x, axis=None):
  """max + log(sum(exp(x - max))) along `axis`, for a max of infinity without it."""
  axis = 0 if axis is None else axis
  top = x.max(axis=axis)
  top = jnp.where(abs(top) < jnp.inf, top, 0)
  return top + jnp.log(jnp.exp(x - _expanded(top, x, axis)).sum(axis=axis))


@_in_float32
def _var(x, axis=None, ddof=0):
  """Mean squared distance from the mean along `axis`, over n - ddof."""
  axis = 0 if axis is None else axis
  n = x.shape[axis]
  centred = x - _expanded(x.sum(axis=axis) / n, x, axis)
  return (centred * centred).sum(axis=axis) / (n - ddof)


def _std(x, axis=None, ddof=0):
  """Square root of _var."""
  return jnp.sqrt(_var(x, axis=axis, ddof=ddof))


def _nansum(x, axis=None):
  """Sum of what is not nan along `axis`."""
  return jnp.where(x == x, x, 0).sum(axis=axis)


def _ptp(x, axis=None):
  """Largest less smallest along `axis`."""
  return x.max(axis=axis) - x.min(axis=axis)


def _count_nonzero(x, axis=None):
  """How many are not 0 along `axis`."""
  return jnp.where(x != 0, 1, 0).sum(axis=axis)


@_in_float32
def _norm(x, axis=None):
  """Square root of the sum of squares along `axis`."""
  return jnp.sqrt((x * x).sum(axis=axis))
