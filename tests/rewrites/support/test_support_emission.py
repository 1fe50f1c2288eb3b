"""Support code in ports: only what is called, with the module's own names, and nothing hidden."""

import ast
import builtins

import pytest

from pallas_port.rewrites.support import _function, _functions, _imports, _texts, emit_support, needed_functions, needed_modules


class Names:
    """Local names of modules, as ``plan.Modules`` gives them."""

    def __init__(self, **renamed):
        self.renamed = renamed
        self.standard = {module: local for local, module in _imports().items()}

    def name(self, module: str) -> str:
        local = self.standard[module]
        return self.renamed.get(local, local)


def emit(*wanted: str, **renamed) -> str:
    """The functions and all that they call."""
    return emit_support(tuple(needed_functions(wanted)), Names(**renamed))


ALL = tuple(_functions())
ROOTS = ["_load", "_store", "_atomic", "_atomic_element", "_vec", "_blocked", "_sqrt", "_Ring", "_WgmmaTile", "_Tcgen05Tile", "_persistent", "_stages", "_tma_fit", "_whole"]


def free_names(text: str) -> set[str]:
    """Names that the text reads and does not bind anywhere."""
    tree = ast.parse(text)
    bound = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)}
    bound |= {n.arg for n in ast.walk(tree) if isinstance(n, ast.arg)}
    bound |= {n.name for n in ast.walk(tree) if isinstance(n, (ast.FunctionDef, ast.ClassDef))}
    used = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    return used - bound - set(dir(builtins))


@pytest.mark.parametrize("name", ALL)
def test_every_function_can_be_emitted_alone(name):
    text = emit(name)
    compile(text, "support.py", "exec")
    locals_of_modules = {Names().name(m) for m in needed_modules((name,))}
    assert free_names(text) <= locals_of_modules


@pytest.mark.parametrize("name", ROOTS)
def test_only_what_is_called_is_emitted(name):
    emitted = [n.name for n in ast.parse(emit(name)).body]
    assert emitted == needed_functions((name,))
    called, queue = set(), [name]
    while queue:
        current = queue.pop()
        if current not in called:
            called.add(current)
            tree = ast.parse(_function(current)[0])
            queue += [n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and n.id in _functions()]
    assert set(emitted) == called


def test_order_and_duplicates():
    once = emit("_load", "_store")
    assert once == emit("_store", "_load", "_load")
    names = [n.name for n in ast.parse(once).body]
    assert len(names) == len(set(names))
    assert names == [n for n in ALL if n in names]


def test_text_is_that_of_the_support_files():
    text = emit("_vec")
    assert _function("_vec")[0] in text


RENAMES = [
    pytest.param({"jnp": "np", "np": "onp"}, id="jnp-is-np-and-np-is-onp"),
    pytest.param({"jnp": "np", "np": "jnp"}, id="exchanged"),
    pytest.param({"pl": "pallas", "plgpu": "pl"}, id="chain"),
    pytest.param({"lax": "jlax", "pl": "p", "plgpu": "g", "math": "m_"}, id="others"),
]


@pytest.mark.parametrize("renamed", RENAMES)
@pytest.mark.parametrize("name", ROOTS)
def test_renamed_modules(name, renamed):
    """Every module is called by its local name; nothing else changes."""
    text = emit(name, **renamed)
    compile(text, "support.py", "exec")
    plain = emit(name)

    def modules(tree):
        return [n.value.id for n in ast.walk(tree) if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name)]

    before, after = modules(ast.parse(plain)), modules(ast.parse(text))
    local = set(_imports()) - {a.arg for a in ast.walk(ast.parse(plain)) if isinstance(a, ast.arg)}
    assert after == [renamed.get(n, n) if n in local else n for n in before]


@pytest.mark.parametrize("name", ALL)
def test_support_names_are_private(name):
    assert name.startswith("_")


@pytest.mark.parametrize("name", ALL)
def test_modules_are_used_as_modules_only(name):
    """Renaming rests on ``module.attribute``: a bare module name or a parameter of that name would break."""
    tree = ast.parse(_function(name)[0])
    attributes = {n.value for n in ast.walk(tree) if isinstance(n, ast.Attribute)}
    bare = [n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and n.id in _imports() and n not in attributes]
    hidden = [a.arg for a in ast.walk(tree) if isinstance(a, ast.arg) and a.arg in _imports()]
    assert not bare and not hidden


@pytest.mark.parametrize("name", ALL)
def test_public_functions_say_what_they_do(name):
    (node,) = ast.parse(_function(name)[0]).body
    assert len(_function(name)[0].splitlines()) < 80
    assert node.name == name


def test_support_functions_have_names_of_their_own():
    names = [
        node.name for text in _texts() for node in ast.parse(text).body
        if isinstance(node, (ast.FunctionDef, ast.ClassDef))
    ]
    assert len(names) == len(set(names))
