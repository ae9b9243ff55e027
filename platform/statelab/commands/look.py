"""Commands that look at what there is and what a configuration means; nothing is run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from statelab.commands.app import Json, Keys, app, examples

if TYPE_CHECKING:
    from statelab.registry import Registry

__all__ = ["describe", "keys", "rules", "show"]


@app.command(epilog=examples("rules", "rules --json"))
def rules(json: Json = False) -> None:
    """List the rules, data modules and evaluation tasks."""
    from statelab.console import print_json, print_rules
    from statelab.registries import data_modules, eval_tasks, read_rules, write_rules

    kinds: dict[str, Registry[Any]] = {
        "write": write_rules,
        "read": read_rules,
        "data": data_modules,
        "task": eval_tasks,
    }
    listed = {kind: registry.summaries() for kind, registry in kinds.items()}
    print_json(listed) if json else print_rules(listed)


@app.command(epilog=examples("keys", "keys task=length", "keys data.name=text --json"))
def keys(overrides: Keys = None, json: Json = False) -> None:
    """List every key with its type, default, range and meaning.

    With write=NAME, read=NAME, data.name=NAME or task=NAME only the options of that one.
    """
    from statelab.catalogue import all_keys, keys_of_plugins, keys_of_tasks
    from statelab.console import print_json, print_keys

    sections = keys_of_plugins(overrides) if overrides else all_keys() | keys_of_tasks()
    print_json(sections) if json else print_keys(sections)


@app.command(
    epilog=examples(
        "show experiment=mqar write=gla read=ccq", "show experiment=ccq_1p3b arm=gla_ccq > my.yaml"
    )
)
def show(overrides: Keys = None, json: Json = False) -> None:
    """Print the configuration, and where each value comes from."""
    from statelab.console import print_config, print_json
    from statelab.loading import resolve, to_dict

    resolved = resolve(None, overrides or [])
    config = to_dict(resolved.config)
    print_json(config) if json else print_config(config, resolved.origins)


@app.command(
    epilog=examples(
        "describe experiment=interdomain_125m", "describe experiment=mqar model.d_model=256 --json"
    )
)
def describe(overrides: Keys = None, json: Json = False) -> None:
    """Print a model's parameters, state size and operations, unbuilt."""
    import dataclasses

    from statelab.console import print_json, print_sizes
    from statelab.loading import load_config
    from statelab.model.shapes_only import without_compiler
    from statelab.sizes import measure

    with without_compiler():
        sizes = measure(load_config(None, overrides or []))
    print_json(dataclasses.asdict(sizes)) if json else print_sizes(sizes)
