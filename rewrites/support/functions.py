"""Support code: functions of jax.nn, jax.numpy and jax.scipy of which Mosaic GPU lowers some operation not.

Their formulas are JAX's own, in float32 and rounded once.  They call the functions of ``math.py``.
"""

import jax.numpy as jnp
from jax import lax

from .math import _copysign, _expm1, _in_float32, _log1p


def _where(condition, x, y):
  """jnp.where; a condition that is one number is spread over the elements first."""
  if not jnp.ndim(condition):
    condition = lax.broadcast_in_dim(jnp.asarray(condition), jnp.broadcast_shapes(jnp.shape(x), jnp.shape(y)), ())
  return jnp.where(condition, x, y)


def _invert(x):
  """~x, also of bools."""
  return x ^ True if x.dtype == jnp.bool_ else ~x


def _signbit(x):
  """Whether the sign of a float is set, that of -0 and nan included."""
  return lax.bitcast_convert_type(x.astype(jnp.float32), jnp.int32) < 0


def _logical_not(x):
  """True where `x` is False or 0."""
  return x ^ True if x.dtype == jnp.bool_ else x == 0


@_in_float32
def _with_sign_of(x, y):
  """jnp.copysign."""
  return _copysign(abs(x), y)


def _relu(x):
  """jax.nn.relu."""
  return jnp.maximum(x, 0)


def _relu6(x):
  """jax.nn.relu6."""
  return jnp.minimum(jnp.maximum(x, 0), 6)


@_in_float32
def _hard_sigmoid(x):
  """jax.nn.hard_sigmoid."""
  return _relu6(x + 3) / 6


@_in_float32
def _hard_silu(x):
  """jax.nn.hard_silu."""
  return x * _hard_sigmoid(x)


@_in_float32
def _logaddexp(x, y):
  """log(exp(x) + exp(y)) from the larger of both, so that nothing overflows."""
  distance = x - y
  return jnp.where(distance != distance, x + y, jnp.maximum(x, y) + _log1p(jnp.exp(-abs(distance))))


@_in_float32
def _logaddexp2(x, y):
  """log2(exp2(x) + exp2(y)), as _logaddexp."""
  distance = x - y
  more = 1.44269504 * _log1p(jnp.exp2(-abs(distance)))
  return jnp.where(distance != distance, x + y, jnp.maximum(x, y) + more)


def _softplus(x):
  """log(1 + exp(x))."""
  return _logaddexp(x, 0)


def _log_sigmoid(x):
  """-log(1 + exp(-x))."""
  return -_logaddexp(-x, 0)


@_in_float32
def _mish(x):
  """x * tanh(softplus(x))."""
  return x * jnp.tanh(_softplus(x))


@_in_float32
def _elu(x, alpha=1.0):
  """x above 0, alpha * expm1(x) below."""
  return jnp.where(x > 0, x, alpha * _expm1(jnp.minimum(x, 0)))


@_in_float32
def _celu(x, alpha=1.0):
  """max(x, 0) + alpha * expm1(min(x, 0) / alpha)."""
  return jnp.maximum(x, 0) + alpha * _expm1(jnp.minimum(x, 0) / alpha)


@_in_float32
def _selu(x):
  """jax.nn.selu."""
  return 1.05070102 * _elu(x, 1.67326319)


@_in_float32
def _log1mexp(x):
  """log(1 - exp(-x)); M. Maechler, Accurately Computing log(1 - exp(-|a|)), 2012."""
  return jnp.where(x < 0.693147182, jnp.log(-_expm1(-x)), _log1p(-jnp.exp(-x)))


@_in_float32
def _xlogy(x, y):
  """x * log(y); 0 where x is 0."""
  return jnp.where((x != 0) | (y != y), x * jnp.log(y), 0)


@_in_float32
def _xlog1py(x, y):
  """x * log1p(y); 0 where x is 0."""
  return jnp.where((x != 0) | (y != y), x * _log1p(y), 0)


@_in_float32
def _entr(x):
  """-x * log(x); -inf below 0."""
  return jnp.where(x < 0, -jnp.inf, -_xlogy(x, x))


@_in_float32
def _logit(x):
  """log(x / (1 - x))."""
  return jnp.log(x / (1 - x))


@_in_float32
def _approx_tanh(x):
  """tanh(x), to full precision."""
  return jnp.tanh(x)
