"""Support code: elementwise functions that Mosaic GPU does not lower, in operations that it does.

They need no layout, so they work on tiles, rows, scalars and results of products alike.  Polynomials
are minimax fits in float64 to the function named in the docstring.  Mosaic GPU contracts ``a * b + c``
into one rounding as it likes; what must be exact is therefore a difference without a product, or a
product of two factors of 12 bits (``_head``).  ``python golden/accuracy.py`` measures the errors.
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax


def _sqrt(x):
  """Square root by rsqrt, right at 0, inf, nan and below 0; error 2.4 ulp in float32."""
  x = x if jnp.issubdtype(jnp.result_type(x), jnp.floating) else x.astype(jnp.float32)
  return jnp.where((x == 0) | (x == jnp.inf), x, x * lax.rsqrt(x))


def _rsqrt(x):
  """lax.rsqrt, of integers too."""
  return lax.rsqrt(x if jnp.issubdtype(jnp.result_type(x), jnp.floating) else x.astype(jnp.float32))


def _in_float32(function):
  """Computes in float32 and rounds to the dtype that jnp's function gives for these arguments.

  Numbers go as vectors of equal elements: Mosaic GPU lowers not all operations on rank 0.
  """

  def wrapped(*xs, **options):
    dtype = jnp.result_type(*xs)
    dtype = dtype if jnp.issubdtype(dtype, jnp.floating) else jnp.float32
    shape = jnp.broadcast_shapes(*(jnp.shape(x) for x in xs))
    xs = [jnp.asarray(x, jnp.float32) for x in xs]
    xs = [x if x.shape else lax.broadcast_in_dim(x, shape or (128,), ()) for x in xs]
    y = function(*xs, **options)
    return (y if shape else y.max()).astype(dtype)

  return wrapped


def _in_int32(function):
  """Computes on int8 in int32, on uint8 in uint32, and casts to the dtype that `function` gives for them."""

  def wrapped(*xs, **options):
    wider = {jnp.dtype(jnp.int8): jnp.int32, jnp.dtype(jnp.uint8): jnp.uint32}
    wide = [wider.get(getattr(x, "dtype", None)) for x in xs]
    if not any(wide):
      return function(*xs, **options)
    dtype = jax.eval_shape(functools.partial(function, **options), *xs).dtype
    y = function(*[x.astype(w) if w else x for x, w in zip(xs, wide)], **options)
    if dtype != jnp.bool_:
      y = lax.optimization_barrier(y)  # MLIR folds the cast of a max back into a max of 8-bit integers
    return y.astype(dtype)

  return wrapped


def _convert(x, dtype):
  """x.astype(dtype); bools by comparison, and 8-bit floats by way of float32."""
  if jnp.dtype(dtype) == jnp.bool_:
    return x != 0
  narrow = any(jnp.issubdtype(d, jnp.floating) and jnp.dtype(d).itemsize == 1 for d in (x.dtype, dtype))
  return (x.astype(jnp.float32) if narrow else x).astype(dtype)


def _polynomial(x, *coefficients):
  """Horner's scheme; the coefficient of the highest power comes first."""
  y = coefficients[0]
  for c in coefficients[1:]:
    y = y * x + c
  return y


def _head(x):
  """float32 `x` without the lower half of its significand: the product of two heads is exact."""
  return lax.bitcast_convert_type(lax.bitcast_convert_type(x, jnp.int32) & -4096, jnp.float32)


def _copysign(x, y):
  """float32 `x` >= 0 with the sign of `y`, that of zeros included."""
  return jnp.where(lax.bitcast_convert_type(y, jnp.int32) < 0, -x, x)


def _quotient(x, y):
  """x / y for finite x and y other than 0, by a step of Newton's method: the division alone errs by up to 2 ulp."""
  q = x / y
  return jnp.where(q == 0, q, q + (x - q * y) / y)


def _power_of_two(n):
  """2.0**n for int32 n from -126 to 127."""
  return lax.bitcast_convert_type((n + 127) << 23, jnp.float32)


def _floor(x):
  """Largest integer not above `x`: the nearest one, less 1 where that is above."""
  if not jnp.issubdtype(x.dtype, jnp.floating):
    return x
  y = x.astype(jnp.float32)
  nearest = lax.round(y, lax.RoundingMethod.TO_NEAREST_EVEN)
  return jnp.where(nearest > y, nearest - 1, nearest).astype(x.dtype)


def _ceil(x):
  """Smallest integer not below `x`; -0.0 for -1 < x < 0."""
  return -_floor(-x) if jnp.issubdtype(x.dtype, jnp.floating) else x


def _trunc(x):
  """`x` without its fraction."""
  return jnp.where(x < 0, _ceil(x), _floor(x))


def _isfinite(x):
  """False at nan and at infinities."""
  return abs(x) < jnp.inf if jnp.issubdtype(x.dtype, jnp.floating) else x == x


@_in_float32
def _log1p(x):
  """log(u) + (x - (u - 1)) / u for u = 1 + x: what the sum loses comes back to first order."""
  u = lax.optimization_barrier(1 + x)  # XLA may take (1 + x) - 1 for x
  lost = x - (u - 1)
  return jnp.where((x != 0) & (x < jnp.inf), jnp.log(u) + jnp.where(u > 0, lost / u, 0), x)


@_in_float32
def _expm1(x):
  """2**k * expm1(f) + (2**k - 1) for x = k * log(2) + f, |f| <= log(2) / 2; exp(x) from 44 on."""
  y = jnp.clip(x, -44, 44)
  k = lax.round(y * 1.44269504, lax.RoundingMethod.TO_NEAREST_EVEN)
  f = (y - k * 0.693359375) + k * 2.12194440e-4
  p = _polynomial(f, 1.9914009e-4, 1.3941041e-3, 8.33327323e-3, 4.16663550e-2, 0.166666672, 0.5)
  p = f + f * f * p
  scale = _power_of_two(k.astype(jnp.int32))
  small = jnp.where(k == 0, p, p * scale + (scale - 1))
  return jnp.where(x > 44, jnp.exp(x), jnp.where(x == 0, x, small))


@_in_float32
def _sinh(x):
  """(t + t / (t + 1)) / 2 for t = expm1(|x|); exp(|x| / 2)**2 / 2 where t may overflow."""
  a = abs(x)
  t = _expm1(a)
  half = jnp.exp(0.5 * a)
  return _copysign(jnp.where(a < 88, 0.5 * (t + t / (t + 1)), 0.5 * half * half), x)


@_in_float32
def _cosh(x):
  """(e + 1 / e) / 2 for e = exp(|x|); exp(|x| / 2)**2 / 2 where e may overflow."""
  a = abs(x)
  e = jnp.exp(a)
  half = jnp.exp(0.5 * a)
  return jnp.where(a < 88, 0.5 * e + 0.5 / e, 0.5 * half * half)


@_in_float32
def _tan(x):
  """sin(x) / cos(x)."""
  return _quotient(jnp.sin(x), jnp.cos(x))


def _small_arcsin(a):
  """asin(a) for 0 <= a <= 0.6, and asin(sqrt((1 - a) / 2)) for a up to 1."""
  z = jnp.where(a > 0.6, 0.5 - 0.5 * a, a * a)
  s = jnp.where(a > 0.6, jnp.sqrt(z), a)
  p = _polynomial(z, 5.57235815e-2, -1.36032496e-2, 3.29188779e-2, 2.84952298e-2, 4.48194407e-2, 7.49922544e-2,
                  0.166666776)
  return s + s * (z * p)


@_in_float32
def _asin(x):
  """asin(x); above 0.6 pi/2 - 2 * asin(sqrt((1 - x) / 2))."""
  a = abs(x)
  r = _small_arcsin(a)
  return _copysign(jnp.where(a > 0.6, 1.57079637 - (2 * r + 4.37113883e-8), r), x)


@_in_float32
def _acos(x):
  """pi/2 - asin(x); above 0.6 2 * asin(sqrt((1 - x) / 2)), and below -0.6 pi less that of -x."""
  a = abs(x)
  r = _small_arcsin(a)
  middle = 1.57079637 - (_copysign(r, x) + 4.37113883e-8)
  return jnp.where(a > 0.6, jnp.where(x < 0, 3.14159274 - (2 * r + 8.74227766e-8), 2 * r), middle)


def _arctan_below_one(t):
  """atan(t) for 0 <= t <= 1: t times a polynomial in t**2."""
  z = t * t
  p = _polynomial(z, 1.13488641e-3, -7.42267771e-3, 2.27604248e-2, -4.49465439e-2, 6.75957873e-2, -8.81885141e-2,
                  0.110602453, -0.142801315, 0.199996933, -0.333333284)
  return t + t * (z * p)


@_in_float32
def _atan(x):
  """atan(x); above 1 pi/2 - atan(1 / x)."""
  a = abs(x)
  r = _arctan_below_one(jnp.where(a > 1, _quotient(1.0, jnp.clip(a, 1, 1e30)), a))
  return _copysign(jnp.where(a > 1, 1.57079637 - (r + 4.37113883e-8), r), x)


@_in_float32
def _atan2(y, x):
  """Angle of the point (x, y): atan of the smaller coordinate over the larger, moved to its octant."""
  a, b = abs(x), abs(y)
  small, large = jnp.minimum(a, b), jnp.maximum(a, b)
  inside = (large > 0) & (large < jnp.inf)
  t = jnp.where(inside, _quotient(small, jnp.where(inside, large, 1)), 0)
  r = _arctan_below_one(jnp.where((small == large) & (large > 0), 1, t))
  r = jnp.where(b > a, 1.57079637 - (r + 4.37113883e-8), r)
  negative = lax.bitcast_convert_type(x, jnp.int32) < 0
  r = jnp.where(negative, 3.14159274 - (r + 8.74227766e-8), r)
  return jnp.where((x != x) | (y != y), x + y, _copysign(r, y))


@_in_float32
def _asinh(x):
  """log1p(a + a**2 / (1 + sqrt(a**2 + 1))) for a = |x|; log(a) + log(2) for large a."""
  a = abs(x)
  b = jnp.minimum(a, 1e8)
  r = _log1p(b + b * b / (1 + jnp.sqrt(b * b + 1)))
  return _copysign(jnp.where(a < 1e8, r, jnp.log(a) + 0.693147182), x)


@_in_float32
def _acosh(x):
  """log1p(t + sqrt(2 * t + t**2)) for t = x - 1; log(x) + log(2) for large x."""
  t = jnp.minimum(x, 1e8) - 1
  r = _log1p(t + jnp.sqrt(2 * t + t * t))
  return jnp.where(x < 1, jnp.nan, jnp.where(x < 1e8, r, jnp.log(x) + 0.693147182))


@_in_float32
def _atanh(x):
  """(log1p(a) - log1p(-a)) / 2 for a = |x|."""
  a = abs(x)
  return _copysign(0.5 * (_log1p(a) - _log1p(-a)), x)


@_in_float32
def _cbrt(x):
  """exp2(log2(|x|) / 3), improved by a step of Newton's method; subnormal x times 2**24."""
  tiny = abs(x) < 1.17549435e-38
  a = jnp.where(tiny, abs(x) * 16777216, abs(x))
  y = jnp.exp2(jnp.log2(a) * 0.333333343)
  y = (y - (y * y * y - a) / (3 * y * y)) * jnp.where(tiny, 0.00390625, 1)
  return jnp.where((a == 0) | (a == jnp.inf), x, _copysign(y, x))


@_in_float32
def _erf_inv(x):
  """x * p(w) for w = -log(1 - x**2): M. Giles, Approximating the erfinv function, 2012."""
  w = -jnp.log((1 - x) * (1 + x))
  near = _polynomial(w - 2.5, 2.81022636e-8, 3.43273939e-7, -3.5233877e-6, -4.39150654e-6, 2.1858087e-4,
                     -1.25372503e-3, -4.17768164e-3, 0.246640727, 1.50140941)
  far = _polynomial(jnp.sqrt(jnp.maximum(w, 5)) - 3, -2.00214257e-4, 1.00950558e-4, 1.34934322e-3, -3.67342844e-3,
                    5.73950773e-3, -7.6224613e-3, 9.43887047e-3, 1.00167406, 2.83297682)
  return jnp.where(abs(x) == 1, x * jnp.inf, x * jnp.where(w < 5, near, far))


@_in_float32
def _float_rem(x, y):
  """C's fmod, exactly: long division of the significands, 12 bits of the quotient in each step.

  The product of 12 bits of quotient and one half of a significand is exact, and so is what it leaves.
  """
  a, b = abs(x), abs(y)
  inside = (a < jnp.inf) & (b > 0) & (b < jnp.inf)
  (a, ea), (b, eb) = _split(jnp.where(inside, a, 1)), _split(jnp.where(inside, b, 1))
  gap = ea - eb
  steps = (jnp.maximum(gap, 0) * 5462) >> 16  # gap / 12
  high = _head(b)
  low = b - high
  inverse = 1 / b

  def reduced(r):
    q = lax.round(r * inverse, lax.RoundingMethod.TO_NEAREST_EVEN)
    return (r - q * high) - q * low

  def step(i, r):
    return jnp.where(i < steps, reduced(r * 4096), r)

  r = reduced(a * _power_of_two(jnp.maximum(gap, 0) - 12 * steps))
  r = lax.fori_loop(0, 23, step, r)  # exponents are up to 276 apart
  r = jnp.where(r < 0, r + b, r)
  r = r * _power_of_two(jnp.maximum(eb, -100)) * _power_of_two(jnp.minimum(eb + 100, 0))
  r = _copysign(jnp.where(gap < 0, abs(x), r), x)
  return jnp.where(inside, r, jnp.where((abs(x) < jnp.inf) & (abs(y) == jnp.inf), x, jnp.nan))


def _split(x):
  """(m, e) with x = m * 2**e and 1 <= m < 2, for finite float32 x > 0."""
  tiny = x < 1.17549435e-38
  bits = lax.bitcast_convert_type(jnp.where(tiny, x * 16777216, x), jnp.int32)
  e = (bits >> 23) - 127
  return lax.bitcast_convert_type(bits - (e << 23), jnp.float32), jnp.where(tiny, e - 24, e)


def _rem(x, y):
  """lax.rem, of integers and floats: the remainder has the sign of `x`."""
  return _float_rem(x, y) if jnp.issubdtype(jnp.result_type(x, y), jnp.floating) else _in_int32(lax.rem)(x, y)


def _fmod(x, y):
  """jnp.fmod: as lax.rem, for dtypes that jnp promotes."""
  return _float_rem(x, y) if jnp.issubdtype(jnp.result_type(x, y), jnp.floating) else _in_int32(jnp.fmod)(x, y)


@_in_float32
def _float_remainder(x, y):
  r = _float_rem(x, y)
  return jnp.where((r != 0) & ((r < 0) != (y < 0)), r + y, r)


def _remainder(x, y):
  """x % y, of integers and floats: the remainder has the sign of `y`."""
  floats = jnp.issubdtype(jnp.result_type(x, y), jnp.floating)
  return _float_remainder(x, y) if floats else _in_int32(jnp.remainder)(x, y)


@_in_float32
def _float_floor_divide(x, y):
  r = _float_rem(x, y)
  q = jnp.where(y == 0, x, x - r) / y
  return lax.round(jnp.where((r != 0) & ((r < 0) != (y < 0)), q - 1, q), lax.RoundingMethod.TO_NEAREST_EVEN)


def _floor_divide(x, y):
  """x // y, of integers and floats."""
  floats = jnp.issubdtype(jnp.result_type(x, y), jnp.floating)
  return _float_floor_divide(x, y) if floats else _in_int32(jnp.floor_divide)(x, y)


def _divmod(x, y):
  """(x // y, x % y)."""
  return _floor_divide(x, y), _remainder(x, y)


@_in_float32
def _nextafter(x, y):
  """The float32 next to `x` in the direction of `y`: one more or less in its bits."""
  bits = lax.bitcast_convert_type(x, jnp.int32)
  step = jnp.where((y > x) == (x > 0), 1, -1)
  moved = lax.bitcast_convert_type(bits + step, jnp.float32)
  moved = jnp.where(x == 0, _copysign(1e-45, y), moved)
  return jnp.where((x != x) | (y != y), x + y, jnp.where(x == y, y, moved))


def _population_count(x):
  """Number of bits set: sums of neighbouring groups of 1, 2, 4, ... bits."""
  v = x.astype(jnp.int32) & (2 ** (8 * x.dtype.itemsize) - 1 if x.dtype.itemsize < 4 else -1)
  v = v - (lax.shift_right_logical(v, 1) & 0x55555555)
  v = (v & 0x33333333) + (lax.shift_right_logical(v, 2) & 0x33333333)
  v = (v + lax.shift_right_logical(v, 4)) & 0x0F0F0F0F
  return lax.shift_right_logical(v * 0x01010101, 24).astype(x.dtype)


def _pow(x, y):
  """x**y as jnp.power: integers exactly, all else in float32 (``_float_pow``)."""
  floats = jnp.issubdtype(jnp.result_type(x, y), jnp.floating)
  return _float_pow(x, y) if floats else jnp.power(x, y)


@_in_float32
def _float_pow(x, y):
  """2**(y * log2(|x|)), the logarithm and the product as sums of two floats; then the sign and C's
  special cases."""
  a = abs(x)
  tiny = a < 1.17549435e-38
  bits = lax.bitcast_convert_type(jnp.where(tiny, a * 16777216, a), jnp.int32)
  exponent = (bits - 0x3F3504F3) >> 23  # of a / m, m from sqrt(1/2) to sqrt(2)
  m = lax.bitcast_convert_type(bits - (exponent << 23), jnp.float32)
  e = exponent.astype(jnp.float32) - jnp.where(tiny, 24.0, 0.0)
  # log2(m) = c * (s + s**3 / 3 + ...) for s = (m - 1) / (m + 1), c = 2 / log(2); s = sh + sl, s**2 = zh + zl, ...
  d = m + 1
  dh = _head(d)
  sh = _head((m - 1) / d)
  sl = (((m - 1) - sh * dh) - sh * (m - (dh - 1))) / d
  s = sh + sl
  z = s * s
  zh = _head(z)
  zl = (sh * sh - zh) + 2 * sh * sl
  uh = _head(s * z)
  ul = (sh * zh - uh) + (sh * zl + sl * zh)
  rest = uh * 0.000126778125 + ul * 0.961796701 + s * z * z * _polynomial(z, 0.340262145, 0.411704183, 0.577082872)
  first, second = sh * 2.884765625, uh * 0.961669921875
  high = first + second
  low = ((first - high) + second) + (rest + (sl * 2.88539 + sh * 6.24456778e-4))
  g = e + high
  low = ((e - g) + high) + low
  gh = _head(g)
  gl = (g - gh) + low
  # y * log2(a) = k + f
  y1 = jnp.clip(y, -1e10, 1e10)
  yh = _head(y1)
  first, rest = yh * gh, (y1 - yh) * gh + y1 * gl
  k = lax.round(jnp.clip(first + rest, -200, 200), lax.RoundingMethod.TO_NEAREST_EVEN)
  f = jnp.clip((first - k) + rest, -1, 1)
  p = _polynomial(f, 1.53136334e-5, 1.5465726e-4, 1.3333438e-3, 9.61804204e-3, 5.55041097e-2, 0.240226507, 0.693147182)
  n = k.astype(jnp.int32)
  r = (1 + f * p) * _power_of_two(n >> 1) * _power_of_two(n - (n >> 1))
  nearest = lax.round(y, lax.RoundingMethod.TO_NEAREST_EVEN)
  odd = (nearest == y) & (lax.round(0.5 * y, lax.RoundingMethod.TO_NEAREST_EVEN) != 0.5 * y)
  r = jnp.where((a == 0) | (a == jnp.inf), jnp.where((a == 0) == (y > 0), 0.0, jnp.inf), r)
  r = jnp.where(odd & (lax.bitcast_convert_type(x, jnp.int32) < 0), -r, r)
  r = jnp.where((x < 0) & (a < jnp.inf) & (nearest != y), jnp.nan, r)
  r = jnp.where((x != x) | (y != y), jnp.nan, r)
  return jnp.where((x == 1) | (y == 0), 1.0, r)
