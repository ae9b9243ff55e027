"""A new package: a rule or a data module of one's own, with its test, ready to be installed."""

from __future__ import annotations

import ast
import importlib.util
import keyword
import os
import re
import tempfile
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from statelab.errors import ConfigError
from statelab.registries import data_modules, read_rules, write_rules
from statelab.registry import Registry

__all__ = ["KINDS", "Kind", "write_package"]


@dataclass(frozen=True, slots=True)
class Kind:
    """What a package can hold.

    Attributes:
        registry: Where it is found once it is installed.
        commands: What its author types next, with `$name` for its name.
    """

    registry: Registry[Any]
    commands: tuple[str, ...]

    def next_commands(self, name: str) -> list[str]:
        """From inside the package's folder."""
        first = ("pip install -e .", "python -m pytest")
        return [Template(each).substitute(name=name) for each in (*first, *self.commands)]


KINDS = {
    "write": Kind(
        write_rules,
        (
            "statelab check write=$name",
            "statelab train experiment=mqar write=$name read=plain smoke=true",
        ),
    ),
    "read": Kind(
        read_rules,
        (
            "statelab check read=$name",
            "statelab train experiment=mqar write=gla read=$name smoke=true",
        ),
    ),
    "data": Kind(data_modules, ("statelab train data.name=$name write=gla read=plain smoke=true",)),
}


def write_package(kind: str, name: str, parent: Path) -> Path:
    """Write the folder `name`, all of it or nothing.

    Args:
        kind: One of `KINDS`.
        name: Of the folder, the module, and what it registers.
        parent: Where the folder goes.

    Returns:
        The folder.

    Raises:
        ConfigError: If the name can't be used or is taken, or the folder can't be written.
    """
    if kind not in KINDS:
        raise ConfigError(f"new makes a package of kind {' | '.join(KINDS)}, got {kind!r}.")
    registry, folder = KINDS[kind].registry, parent / name
    if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", name) or keyword.iskeyword(name):
        raise ConfigError(
            f"{name!r} can't be a name: it is made of lower-case letters, digits and underscores "
            "between them, such as slow_leaky, and is no word of Python's own."
        )
    if name in registry.names():
        raise ConfigError(f"there is a {registry.kind} {name!r} already. Take another name.")
    if os.path.lexists(folder):
        raise ConfigError(f"{folder.absolute()} exists already. Take another name, or move it.")
    text = _fill(kind, name)
    cls = _class_name(name)
    if importlib.util.find_spec(name) or cls in _imported(text[f"{name}.py"]):
        raise ConfigError(
            f"module {name} with class {cls} would hide another one. Take another name."
        )
    try:
        # Beside its place, so that a rename is all that is left.
        with tempfile.TemporaryDirectory(dir=parent, prefix=f".{name}-") as beside:
            made = Path(beside) / name
            made.mkdir()
            for file, content in text.items():
                (made / file).write_text(content, encoding="utf-8")
            made.rename(folder)
    except OSError as error:
        raise ConfigError(
            f"{folder.absolute()} can't be written: {error.strerror}. Nothing was left behind."
        ) from error
    return folder


def _fill(kind: str, name: str) -> dict[str, str]:
    """Each file's text by its name."""
    words = {
        "name": name,
        "Name": _class_name(name),
        "what": KINDS[kind].registry.kind,
        "group": KINDS[kind].registry.group,
        "commands": "\n".join(f"    {each}" for each in KINDS[kind].next_commands(name)),
    }
    sources = {
        "README.md": "README.md",
        "pyproject.toml": "pyproject.toml",
        f"{name}.py": f"{kind}.py",
        f"test_{name}.py": f"test_{kind}.py",
    }
    templates = files("statelab") / "templates"
    return {
        file: Template((templates / f"{source}.template").read_text("utf-8")).substitute(words)
        for file, source in sources.items()
    }


def _class_name(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))


def _imported(text: str) -> set[str]:
    """The names that a module imports from others."""
    nodes = [each for each in ast.walk(ast.parse(text)) if isinstance(each, ast.ImportFrom)]
    return {alias.name for each in nodes for alias in each.names}
