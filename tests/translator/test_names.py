"""Names are resolved by what binds them, never by their text."""

import ast

import pytest

from pallas_port.translator.names import MOSAIC, PALLAS, TRITON, Resolver, canonical


def resolve(source: str, text: str) -> str | None:
    """The qualified name of the last occurrence of the expression ``text``."""
    resolver = Resolver(ast.parse(source))
    wanted = ast.dump(ast.parse(text, mode="eval").body)
    found = [n for n in resolver.parents if isinstance(n, (ast.Name, ast.Attribute)) and ast.dump(n) == wanted]
    assert found, f"{text} does not occur"
    return resolver.qualified(max(found, key=lambda n: (n.lineno, n.col_offset)))


ALIASES = [
    pytest.param("import jax.experimental.pallas.triton as X", "X.load", f"{TRITON}.load", id="import-as"),
    pytest.param("import jax.experimental.pallas.triton", "jax.experimental.pallas.triton.load", f"{TRITON}.load", id="import-dotted"),
    pytest.param("from jax.experimental.pallas import triton", "triton.load", f"{TRITON}.load", id="from-import"),
    pytest.param("from jax.experimental.pallas import triton as plgpu", "plgpu.load", f"{TRITON}.load", id="from-import-as"),
    pytest.param("from jax.experimental.pallas.triton import load", "load", f"{TRITON}.load", id="from-module-import"),
    pytest.param("from jax.experimental.pallas.triton import load as ld", "ld", f"{TRITON}.load", id="from-module-import-as"),
    pytest.param("from jax.experimental import pallas as pl", "pl.load", f"{TRITON}.load", id="moved-load"),
    pytest.param("from jax.experimental import pallas as pl", "pl.dot", f"{TRITON}.dot", id="moved-dot"),
    pytest.param("from jax.experimental import pallas as pl", "pl.dslice", f"{PALLAS}.ds", id="dslice"),
    pytest.param("from jax.experimental.pallas import gpu as plgpu", "plgpu.TritonCompilerParams", f"{TRITON}.CompilerParams", id="gpu-era"),
    pytest.param("from jax.experimental.pallas import mosaic_gpu as m", "m.kernel", f"{MOSAIC}.kernel", id="mosaic"),
    pytest.param("from jax._src.pallas.triton import primitives as p", "p.load", f"{TRITON}.load", id="private-home"),
    pytest.param("import jax.numpy as jnp", "jnp.dot", "jax.numpy.dot", id="numpy"),
    pytest.param("import jax", "jax.numpy.dot", "jax.numpy.dot", id="through-parent"),
    pytest.param("from jax.experimental.pallas import triton as t\nld = t.load", "ld", f"{TRITON}.load", id="reassigned"),
    pytest.param("from jax.experimental.pallas import triton as t\nu = t\nld = u.load", "ld", f"{TRITON}.load", id="reassigned-twice"),
    pytest.param("from jax.experimental import pallas as pl\ndef f():\n  call = pl.pallas_call\n  return call", "call", f"{PALLAS}.pallas_call", id="local-alias"),
    pytest.param("try:\n  from jax.experimental.pallas import triton as t\nexcept ImportError:\n  from jax.experimental.pallas import triton as t", "t", TRITON, id="try-import"),
    pytest.param("try:\n  from jax.experimental.pallas import triton as t\nexcept ImportError:\n  t = None", "t.load", f"{TRITON}.load", id="try-import-or-none"),
    pytest.param("if a:\n  from m import t\nelse:\n  from n import t\n  def f():\n    return t.load", "t.load", "n.t.load", id="import-of-this-branch"),
    pytest.param("from jax.experimental.pallas import triton as t\nclass A:\n  t = 1\n  def f(self):\n    return t.load", "t.load", f"{TRITON}.load", id="class-body-is-no-scope"),
    pytest.param("from jax.experimental.pallas import triton as t\ndef f(x=t.load):\n  t = 2", "t.load", f"{TRITON}.load", id="default-is-outside"),
    pytest.param("from jax.experimental.pallas import triton as t\n@t.load\ndef f(t): pass", "t.load", f"{TRITON}.load", id="decorator-is-outside"),
]


@pytest.mark.parametrize("source, text, expected", ALIASES)
def test_alias_resolves(source, text, expected):
    used = source if "def " in source else f"{source}\nuse = {text}\n"
    assert resolve(used, text) == expected


SHADOWED = [
    pytest.param("from m import t\ndef f(t):\n  return t.load", "t.load", id="parameter"),
    pytest.param("from m import t\ndef f():\n  t = 1\n  return t.load", "t.load", id="local"),
    pytest.param("from m import t\ndef f():\n  for t in x:\n    t.load", "t.load", id="loop-variable"),
    pytest.param("from m import t\ndef f():\n  with x as t:\n    t.load", "t.load", id="with"),
    pytest.param("from m import t\nf = lambda t: t.load", "t.load", id="lambda"),
    pytest.param("from m import t\ndef f():\n  def t(): pass\n  return t.load", "t.load", id="inner-function"),
    pytest.param("from m import t\nt = 1\nt.load", "t.load", id="reused-at-module-level"),
    pytest.param("from m import t\nfrom n import t\nt.load", "t.load", id="two-imports"),
    pytest.param("load = 1\nload", "load", id="own-name"),
    pytest.param("pl.load", "pl.load", id="unbound"),
    pytest.param("a = b\nb = a\na.load", "a.load", id="cycle"),
    pytest.param("from m import t\ndef f():\n  (t := 1)\n  return t.load", "t.load", id="walrus"),
    pytest.param("if a:\n  from m import t\nelse:\n  from n import t\nt.load", "t.load", id="import-of-either-branch"),
    pytest.param("try:\n  from m import t\nexcept ImportError:\n  t = 1\nt.load", "t.load", id="try-import-or-another"),
    pytest.param("from m import t\nt += 1\nt.load", "t.load", id="augmented"),
    pytest.param("from m import t\nt, u = 1, 2\nt.load", "t.load", id="unpacked"),
]


@pytest.mark.parametrize("source, text", SHADOWED)
def test_shadowed_name_is_nothing(source, text):
    assert resolve(source, text) is None


@pytest.mark.parametrize("old, new", [
    ("jax._src.pallas.primitives.program_id", f"{PALLAS}.program_id"),
    (f"{PALLAS}.gpu.load", f"{TRITON}.load"),
    ("jax._src.lax.lax.exp", "jax.lax.exp"),
    ("jax._src.nn.functions.relu", "jax.nn.relu"),
    ("numpy.sum", "numpy.sum"),
])
def test_canonical(old, new):
    assert canonical(old) == new
    assert canonical(new) == new


def value_of(source: str) -> str:
    """What the argument of the call of ``use`` stands for."""
    resolver = Resolver(ast.parse(source))
    use = next(n for n in resolver.parents if isinstance(n, ast.Call) and getattr(n.func, "id", "") == "use")
    return ast.unparse(resolver.value(use.args[0]))


VALUES = [
    pytest.param("a = 1\nuse(a)", "1", id="plain"),
    pytest.param("a = 1\nb = a\nuse(b)", "1", id="chain"),
    pytest.param("a, b = 1, 2\nuse(b)", "2", id="unpacked"),
    pytest.param("a = 1\na = 2\nuse(a)", "2", id="last-before-use"),
    pytest.param("a = 1\nuse(a)\na = 2", "1", id="later-assignment"),
    pytest.param("a: int = 1\nuse(a)", "1", id="annotated"),
    pytest.param("def f():\n  a = 1\n  use(a)\na = 2", "1", id="inner-scope"),
    pytest.param("if c:\n  a = 1\n  use(a)\nelse:\n  a = 2", "1", id="own-branch"),
    pytest.param("if c:\n  a = 1\n  def f():\n    use(a)\nelse:\n  a = 2", "1", id="closure-in-its-branch"),
    pytest.param("if c:\n  a = 1\nelif d:\n  a = 2\n  f = lambda: use(a)\nelse:\n  a = 3", "2", id="closure-in-an-elif"),
    pytest.param("def g(c):\n  if c:\n    a = 1\n    def f():\n      for i in x:\n        use(a)\n  else:\n    a = 2", "1", id="loop-in-the-closure"),
    # not known:
    pytest.param("for i in x:\n  if c:\n    a = 1\n    def f():\n      use(a)\n  else:\n    a = 2", "a", id="closure-in-a-loop-over-both"),
    pytest.param("if c:\n  a = 1\n  def f():\n    use(a)\nelse:\n  a = 2\na = 3", "a", id="closure-before-another-assignment"),
    pytest.param("if c:\n  a = 1\nelse:\n  a = 2\ndef f():\n  use(a)", "a", id="closure-after-both-branches"),
    pytest.param("if apply(lambda: use(a)):\n  a = 1\nelse:\n  a = 2", "a", id="closure-in-the-test"),
    pytest.param("a = 1\nif c:\n  a = 2\nuse(a)", "a", id="branch"),
    pytest.param("if c:\n  a = 1\nelse:\n  a = 2\nuse(a)", "a", id="two-branches"),
    pytest.param("a = 1\na += 1\nuse(a)", "a", id="augmented"),
    pytest.param("a = 1\nfor a in x:\n  use(a)", "a", id="loop-variable"),
    pytest.param("a = 1\nfor i in x:\n  use(a)\n  a = 2", "a", id="earlier-iteration"),
    pytest.param("a = 1\nwhile c:\n  a = 2\n  use(a)", "a", id="assigned-in-the-loop"),
    pytest.param("a = 1\na = 2\ndef f():\n  use(a)", "a", id="outer-scope-twice"),
    pytest.param("a, *b = x\nuse(b)", "b", id="starred"),
    pytest.param("with x as a:\n  use(a)", "a", id="with"),
    pytest.param("def f(a):\n  a = a + 1\n  use(a)", "a + 1", id="parameter-rebound"),
    pytest.param("def f(a):\n  if a is None:\n    a = 1\n  use(a)", "a", id="parameter-default"),
    pytest.param("try:\n  a = 1\nexcept E:\n  a = 2\nuse(a)", "a", id="try"),
]


@pytest.mark.parametrize("source, expected", VALUES)
def test_value(source, expected):
    assert value_of(source) == expected


def test_names_bound_anywhere():
    resolver = Resolver(ast.parse("import a.b\ndef f(c, *d, e=1, **g):\n  h = lambda i: i\n  (j, [k]) = x\n"))
    assert resolver.names_bound_anywhere() == {"a", "f", "c", "d", "e", "g", "h", "i", "j", "k"}
