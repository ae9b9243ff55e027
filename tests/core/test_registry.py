"""Registries: what they find, what they refuse, and that a refusal changes nothing."""

import itertools
import sys
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from types import SimpleNamespace

import pytest

from statelab.errors import PluginError, UnknownNameError
from statelab.registry import Registry


@dataclass(frozen=True)
class Options:
    size: int = 1


class Leaky:
    """Forgets slowly.

    And more.
    """


class Other:
    pass


@pytest.fixture
def registry():
    return Registry("write rule", "no.such.group")


@pytest.fixture
def offer(registry, monkeypatch, tmp_path):
    """Let a distribution offer a module of that source under a name, as an entry point."""
    points = []
    monkeypatch.setattr(registry, "_points", lambda: list(points))
    monkeypatch.syspath_prepend(tmp_path)

    def add(name, source, dist="stranger"):
        module = f"offered_by_{dist}_{next(NUMBERS)}"
        (tmp_path / f"{module}.py").write_text(source)
        point = EntryPoint(name, module, registry.group)
        vars(point)["dist"] = SimpleNamespace(name=dist)
        points.append(point)
        return module

    # Such a module reaches the registry under test through this one.
    monkeypatch.setitem(sys.modules, "the_registry", SimpleNamespace(it=registry, Options=Options))
    return add


# Modules stay imported, so that each has a name of its own.
NUMBERS = itertools.count()

SOURCE = '''"""A rule from elsewhere."""
from the_registry import Options, it

@it.register("{name}", config=Options)
class Found:
    pass
'''


def test_a_registered_class_is_found_with_its_options(registry):
    assert registry.register("leaky", config=Options)(Leaky) is Leaky
    plugin = registry.get("leaky")
    assert (plugin.name, plugin.cls, plugin.config) == ("leaky", Leaky, Options)
    assert plugin.summary == "Forgets slowly."
    assert registry.names() == ["leaky"]


def test_an_offered_name_is_listed_without_import_and_loaded_when_asked_for(registry, offer):
    module = offer("leaky", SOURCE.format(name="leaky"))
    assert registry.names() == ["leaky"]
    assert registry.summaries() == {"leaky": "A rule from elsewhere."}
    assert module not in sys.modules
    assert registry.get("leaky").cls is sys.modules[module].Found


def test_summaries_say_which_module_cannot_be_read(registry, offer):
    offer("leaky", "def (")
    assert registry.summaries()["leaky"].startswith("can't be read: SyntaxError")


def test_an_unknown_name_gets_the_near_one_and_all_others(registry):
    registry.register("deltanet", config=Options)(Leaky)
    registry.register("gla", config=Options)(Other)
    with pytest.raises(
        UnknownNameError,
        match=r"unknown write rule 'delta_net'\. Did you mean 'deltanet'\? "
        r"Registered: deltanet, gla\.",
    ):
        registry.get("delta_net")


def test_a_name_near_to_none_gets_no_guess(registry):
    registry.register("gla", config=Options)(Leaky)
    with pytest.raises(UnknownNameError, match=r"'zzz'\. Registered: gla\."):
        registry.get("zzz")


def test_a_name_of_two_distributions_is_refused(registry, offer):
    offer("leaky", SOURCE.format(name="leaky"), dist="one")
    offer("leaky", SOURCE.format(name="leaky"), dist="two")
    with pytest.raises(PluginError, match=r"'leaky' is offered by one and two\. Uninstall one\."):
        registry.get("leaky")


def test_a_failing_import_is_told_and_chained(registry, offer):
    module = offer("leaky", "raise ZeroDivisionError('no luck')")
    with pytest.raises(
        PluginError,
        match=rf"'leaky' of stranger fails to import \({module}\): ZeroDivisionError: no luck",
    ) as caught:
        registry.get("leaky")
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_an_entry_point_that_registers_another_name_is_refused(registry, offer):
    module = offer("leaky", SOURCE.format(name="tight"))
    with pytest.raises(PluginError, match=rf"importing {module} registered no such name\. Let"):
        registry.get("leaky")


@dataclass
class Loose:
    size: int = 1


class Bare:
    pass


@pytest.mark.parametrize("config", [Loose, Bare])
def test_options_that_are_no_frozen_dataclass_are_refused(registry, config):
    with pytest.raises(PluginError, match=rf"config={config.__name__} must be a dataclass, .*froz"):
        registry.register("leaky", config=config)
    assert registry.names() == []


@pytest.mark.parametrize("name", ["", "a b", "a.b", "a:b", "a+b"])
def test_a_name_that_the_command_line_could_not_say_is_refused(registry, name):
    with pytest.raises(PluginError, match="letters, digits and underscores"):
        registry.register(name, config=Options)


def test_a_name_taken_by_another_class_is_refused_and_stays_as_it_was(registry):
    registry.register("leaky", config=Options)(Leaky)
    with pytest.raises(
        PluginError, match=r"'leaky' is registered twice: by .*Leaky and by .*Other\. Rename"
    ):
        registry.register("leaky", config=Options)(Other)
    assert registry.get("leaky").cls is Leaky


def test_a_notebook_cell_may_run_again(registry):
    for size in (1, 2):
        cls = type("Cell", (), {"size": size, "__module__": "__main__"})
        registry.register("cell", config=Options)(cls)
    assert registry.get("cell").cls.size == 2


def test_every_refusal_leaves_the_registry_as_it_was(registry, offer):
    registry.register("gla", config=Options)(Leaky)
    offer("broken", "import no_such_module_anywhere")
    before = registry.names(), registry.get("gla")
    for ask in ("gal", "broken", "no_such_module_anywhere:Rule", "missing.py:Rule"):
        with pytest.raises((UnknownNameError, PluginError)):
            registry.get(ask)
    assert (registry.names(), registry.get("gla")) == before


@pytest.fixture
def file(tmp_path, offer):
    path = tmp_path / "leaky.py"
    path.write_text(SOURCE.format(name="from_a_file"))
    return path


def test_a_class_is_named_by_its_file(registry, file):
    plugin = registry.get(f"{file}:Found")
    assert plugin.name == "from_a_file"
    assert registry.get(f"{file}:Found") is plugin


def test_a_file_is_named_from_the_current_folder_and_kept_for_every_other(
    registry, file, monkeypatch
):
    monkeypatch.chdir(file.parent)
    assert registry.get("leaky.py:Found").name == "from_a_file"
    assert registry.qualified("leaky.py:Found") == f"{file}:Found"


def test_a_file_may_be_named_and_imported_in_one_session(registry, offer, tmp_path, monkeypatch):
    (tmp_path / "both_ways.py").write_text(
        "from the_registry import Options, it\n"
        "@it.register('both_ways', config=Options)\n"
        "class Found: pass\n"
    )
    monkeypatch.chdir(tmp_path)
    assert registry.get("both_ways.py:Found").name == "both_ways"
    import both_ways

    assert registry.get("both_ways").cls is both_ways.Found
    assert registry.get("both_ways.py:Found").cls is both_ways.Found
    assert registry.qualified("leaky") == "leaky"
    assert registry.qualified("package.module:Found") == "package.module:Found"


def test_a_class_is_named_by_its_module(registry, offer):
    module = offer("leaky", SOURCE.format(name="from_a_module"))
    assert registry.get(f"{module}:Found").name == "from_a_module"


@pytest.mark.parametrize(
    ("reference", "why"),
    [
        ("missing.py:Rule", "FileNotFoundError: no such file: .*missing.py"),
        ("broken.py:Rule", "SyntaxError"),
        ("no_such_module_anywhere:Rule", "ModuleNotFoundError: No module named"),
        (":Rule", "ValueError: Empty module name"),
        ("script.py:Rule", "SystemExit: 0"),
    ],
)
def test_a_reference_that_leads_nowhere_says_why(registry, file, monkeypatch, reference, why):
    monkeypatch.chdir(file.parent)
    (file.parent / "broken.py").write_text("def (")
    (file.parent / "script.py").write_text("raise SystemExit(0)")
    with pytest.raises(PluginError, match=f"can't be loaded: {why}") as caught:
        registry.get(reference)
    assert caught.value.__cause__ is not None


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("leaky.py:Fond", "'leaky.py:Fond': leaky.py has no 'Fond'. Did you mean 'Found'?"),
        ("leaky.py:Zzzz", "'leaky.py:Zzzz': leaky.py has no 'Zzzz'."),
        ("leaky.py:", "'leaky.py:': leaky.py has no ''."),
        ("leaky.py", "'leaky.py' names a file only. Add its class: leaky.py:CLASS."),
    ],
)
def test_a_file_without_that_class_is_told_in_its_own_name(
    registry, file, monkeypatch, reference, message
):
    monkeypatch.chdir(file.parent)
    with pytest.raises((PluginError, UnknownNameError)) as caught:
        registry.get(reference)
    assert str(caught.value) == f"write rule {message}"


def test_a_class_that_is_not_registered_is_refused(registry):
    with pytest.raises(PluginError, match=r"'pathlib:Path': Path is not registered as one"):
        registry.get("pathlib:Path")


def test_a_file_that_failed_is_read_again_when_mended(registry, file):
    good = file.read_text()
    file.write_text("raise RuntimeError('first')")
    with pytest.raises(PluginError, match="RuntimeError: first"):
        registry.get(f"{file}:Found")
    file.write_text(good)
    assert registry.get(f"{file}:Found").name == "from_a_file"
