"""An installed pallas-port holds every package of the tool, and every table that it reads."""

import pathlib
import tomllib

import pallas_port

ROOT = pathlib.Path(pallas_port.__file__).parent
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]


def test_every_folder_with_modules_is_a_listed_package():
    folders = {
        path.parent.relative_to(ROOT)
        for top in ("translator", "rewrites")
        for path in (ROOT / top).rglob("*.py")
    }
    expected = {"pallas_port"} | {".".join(("pallas_port", *folder.parts)) for folder in folders}
    assert set(SETTINGS["packages"]) == expected


def test_every_other_file_is_listed_as_data():
    found = {
        path.relative_to(ROOT / "translator")
        for path in (ROOT / "translator").rglob("*")
        if path.is_file() and path.suffix not in (".py", ".pyc")
    }
    patterns = SETTINGS["package-data"]["pallas_port.translator"]
    listed = {
        path.relative_to(ROOT / "translator")
        for pattern in patterns
        for path in (ROOT / "translator").glob(pattern)
    }
    assert found == listed
