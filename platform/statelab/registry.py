"""A registry of plugins: typed, lazy, and unchanged by whatever it refuses.

A plugin gets into a registry in one of three ways, all through the same decorator:

1. An installed distribution names a module in the registry's entry-point group; importing that
   module runs the decorator. Listing the names imports nothing.
2. `module:Class` or `file.py:Class` names the class directly.
3. A notebook or script runs the decorator itself.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import importlib.util
import inspect
import sys
import zlib
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Generic, TypeVar

from statelab.errors import PluginError, UnknownNameError, near_miss
from statelab.signals import Stopped

__all__ = ["Plugin", "Registry"]

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Plugin(Generic[T]):
    """One registered class with the dataclass that configures it."""

    name: str
    cls: type[T]
    config: type

    @property
    def summary(self) -> str:
        """The first line of the class's docstring."""
        return (inspect.getdoc(self.cls) or "").partition("\n")[0]


class Registry(Generic[T]):
    """The plugins of one kind, by name.

    Args:
        kind: What they are, in the singular, for messages: "write rule".
        group: The entry-point group that distributions use.
    """

    def __init__(self, kind: str, group: str) -> None:
        self.kind = kind
        self.group = group
        self._plugins: dict[str, Plugin[T]] = {}

    def register(self, name: str, *, config: type) -> Callable[[type[T]], type[T]]:
        """Decorate a class: `@write_rules.register("leaky", config=LeakyConfig)`.

        Raises:
            PluginError: If the name is taken by another class, or `config` is no frozen dataclass.
        """
        if not name.replace("_", "").isalnum():
            raise PluginError(
                f"{self.kind} {name!r}: a name is made of letters, digits and underscores."
            )
        frozen = getattr(getattr(config, "__dataclass_params__", None), "frozen", False)
        if not frozen:
            raise PluginError(
                f"{self.kind} {name!r}: config={config.__name__} must be a dataclass, decorated "
                "with @dataclass(frozen=True, kw_only=True, slots=True)."
            )

        def store(cls: type[T]) -> type[T]:
            known = self._plugins.get(name)
            if known is not None and _source(known.cls) != _source(cls):
                raise PluginError(
                    f"{self.kind} {name!r} is registered twice: by {_source(known.cls)} and by "
                    f"{_source(cls)}. Rename one of them."
                )
            self._plugins[name] = Plugin(name=name, cls=cls, config=config)
            return cls

        return store

    def names(self) -> list[str]:
        """Every name that can be asked for, sorted; imports no plugin."""
        return sorted(self._plugins.keys() | {point.name for point in self._points()})

    def get(self, name: str) -> Plugin[T]:
        """The plugin of that name, imported now if it wasn't yet.

        Args:
            name: A registered name, `module:Class`, or `file.py:Class`.

        Raises:
            UnknownNameError: If there is none; names the nearest one and all others.
            PluginError: If the plugin can't be loaded, registers another name, or two
                distributions offer it.
        """
        if ":" in name:
            return self._by_reference(name)
        if name not in self._plugins:
            self._load(name)
        return self._plugins[name]

    def summaries(self) -> dict[str, str]:
        """What each plugin is, by name: the first line of its module, read without running it."""
        lines = {name: plugin.summary for name, plugin in self._plugins.items()}
        for point in self._points():
            lines.setdefault(point.name, _first_line(point.module))
        return dict(sorted(lines.items()))

    def qualified(self, name: str) -> str:
        """`name` as it means the same from every folder: a file's path is made absolute."""
        target, colon, cls = name.rpartition(":")
        return f"{Path(target).resolve()}:{cls}" if colon and target.endswith(".py") else name

    def _points(self) -> list[EntryPoint]:
        return list(entry_points(group=self.group))

    def _load(self, name: str) -> None:
        points = [point for point in self._points() if point.name == name]
        if not points and name.endswith(".py"):
            raise UnknownNameError(
                f"{self.kind} {name!r} names a file only. Add its class: {name}:CLASS."
            )
        if not points:
            raise UnknownNameError(
                f"unknown {self.kind} {name!r}.{near_miss(name, self.names())} "
                f"Registered: {', '.join(self.names())}."
            )
        origins = sorted({point.dist.name if point.dist else "?" for point in points})
        if len(origins) > 1:
            raise PluginError(
                f"{self.kind} {name!r} is offered by {' and '.join(origins)}. Uninstall one."
            )
        try:
            points[0].load()
        except Stopped:
            raise
        except (Exception, SystemExit) as error:
            raise PluginError(
                f"{self.kind} {name!r} of {origins[0]} fails to import ({points[0].value}): "
                f"{type(error).__name__}: {error}"
            ) from error
        if name not in self._plugins:
            raise PluginError(
                f"{self.kind} {name!r} of {origins[0]}: importing {points[0].value} registered no "
                f"such name. Let the entry point and the decorator say the same name."
            )

    def _by_reference(self, reference: str) -> Plugin[T]:
        target, _, attribute = reference.rpartition(":")
        try:
            module = (
                _load_file(target) if target.endswith(".py") else importlib.import_module(target)
            )
            cls = getattr(module, attribute, None)
        except Stopped:
            raise
        except (Exception, SystemExit) as error:
            # A script that ends itself would end the command, as if all were done.
            raise PluginError(
                f"{self.kind} {reference!r} can't be loaded: {type(error).__name__}: {error}"
            ) from error
        if cls is None:
            raise PluginError(
                f"{self.kind} {reference!r}: {target} has no {attribute!r}."
                f"{near_miss(attribute, vars(module))}"
            )
        for plugin in self._plugins.values():
            if _source(plugin.cls) == _source(cls):
                return plugin
        raise PluginError(
            f"{self.kind} {reference!r}: {attribute} is not registered as one. Decorate it with "
            f"@register(NAME, config=CONFIG) of the {self.kind}s."
        )


def _load_file(path: str) -> object:
    """Import a file once per process, under a name of its own."""
    file = Path(path).resolve()
    name = f"statelab_file_{file.stem}_{zlib.crc32(str(file).encode())}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None or not file.is_file():
        raise FileNotFoundError(f"no such file: {file}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _first_line(module: str) -> str:
    """The first line of a module's docstring, parsed from its file; its package is imported."""
    try:
        spec = importlib.util.find_spec(module)
        text = Path(spec.origin).read_text(encoding="utf-8") if spec and spec.origin else ""
        return (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0]
    except (ImportError, OSError, SyntaxError, UnicodeDecodeError) as error:
        return f"can't be read: {type(error).__name__}: {error}"


def _source(cls: object) -> str:
    """Where a class comes from.

    A re-run notebook cell gives the same; so does a file, whether imported or named by its path.
    """
    module = getattr(cls, "__module__", "")
    name = getattr(cls, "__qualname__", repr(cls))
    file = getattr(sys.modules.get(module), "__file__", None)
    return f"{Path(file).resolve()}:{name}" if file else f"{module}.{name}"
