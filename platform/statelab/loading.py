"""Fill the configuration in: defaults < preset < experiment < arm < command line.

`resolve` also says where each value came from; `load_config` is the short form.
"""

from __future__ import annotations

import dataclasses
import functools
import typing
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass
from typing import Any, TypeVar

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from statelab.config import (
    Config,
    DataConfig,
    MixerConfig,
    ModelConfig,
    OptimConfig,
    RuleConfig,
    TrackingConfig,
    TrainerConfig,
)
from statelab.errors import ConfigError, RuleError, UnknownKeyError, near_miss
from statelab.experiment import find_experiment
from statelab.model.layers import layer_list
from statelab.options import RangeError, Section, keys_of, type_name
from statelab.pairs import check_pair
from statelab.registry import Plugin, Registry
from statelab.smoke import smoke_values
from statelab.values import BLOCKS, Text, Values, flatten, parse_overrides, plugin_names

__all__ = ["Resolved", "load_config", "load_section", "resolve", "to_dict"]

S = TypeVar("S", bound=Section)


@dataclass(frozen=True, kw_only=True, slots=True)
class Resolved:
    """A configuration, and where each of its values came from.

    Attributes:
        config: The configuration.
        origins: Origin by dotted key; a key that is not named has its default.
    """

    config: Config
    origins: Mapping[str, str]


def load_config(
    experiment: str | Mapping[str, Any] | None = None, overrides: Iterable[str] = ()
) -> Config:
    """The configuration of an experiment, with `key=value` overrides.

    Args:
        experiment: Name or path of an experiment; a nested dictionary, as `to_dict` gives it; or
            None for the defaults.
        overrides: As on the command line: `["write=gla", "model.d_model=128"]`.

    Raises:
        StatelabError: One line on the first key or value that can't be used.
    """
    return resolve(experiment, overrides).config


def resolve(
    experiment: str | Mapping[str, Any] | None = None, overrides: Iterable[str] = ()
) -> Resolved:
    """`load_config`, with the origin of each value."""
    values = Values()
    given = parse_overrides(overrides)
    arm = given.get("arm")
    if experiment is None:
        experiment = given.pop("experiment", None)
    if isinstance(experiment, str):
        file = find_experiment(experiment)
        values.update(flatten(file.values), f"experiment {file.name}")
        values.set("experiment", file.name, f"experiment {file.name}")
        if file.arms:
            arm = arm or file.values.get("arm")
        if arm is not None:
            values.update(flatten(file.arm(arm)), f"arm {arm}")
    elif experiment is not None:
        values.update(flatten(experiment), "run")
    elif arm is not None:
        raise ConfigError(f"arm={arm} needs an experiment: experiment=NAME.")
    if "smoke" in given and _convert("smoke", given["smoke"], bool):
        layers = "model.layers" in values.values.keys() | given.keys()
        # First, since another name drops what was set for the one before.
        names = plugin_names(given)
        values.update({f"{block}.name": name for block, name in names}, "command line")
        values.update(smoke_values(values.names, layers=layers), "smoke")
    values.update(given, "command line")
    return _build(values)


def load_section(
    cls: type[S],
    overrides: Iterable[str],
    *,
    prefix: str = "",
    defaults: Mapping[str, Any] | None = None,
) -> S:
    """A section that stands alone, of `key=value` arguments.

    Args:
        cls: The section.
        overrides: Its arguments.
        prefix: Of its keys, with the dot.
        defaults: Values by key that stand below the arguments.

    Raises:
        ConfigError: If there is no such key, or a value is of another type or out of range.
    """
    values = Values()
    values.update(defaults or {}, "defaults")
    values.update(parse_overrides(overrides), "command line")
    known = [key.name for key in keys_of(cls, prefix)]
    for key in values.values:
        if not any(key == each or key.startswith(f"{each}.") for each in known):
            raise UnknownKeyError(f"unknown key {key!r}.{near_miss(key, known)}")
    section: S = _section(values, cls, prefix)
    return section


def to_dict(config: Config) -> dict[str, Any]:
    """The configuration as nested plain values; `load_config` takes it back unchanged."""
    values: dict[str, Any] = _plain(config)
    return values


def _build(values: Values) -> Resolved:
    plugins = {block: _plugin(block, registry, values) for block, registry in BLOCKS.items()}
    write, read, data = plugins["model.write"], plugins["model.read"], plugins["data"]
    _check_keys(values, plugins)
    check_pair(write, read)
    _apply_preset(values, write, read)

    rules = {
        block: RuleConfig(
            name=str(values.values[f"{block}.name"]),
            options=_section(values, plugins[block].config, f"{block}."),
        )
        for block in ("model.write", "model.read")
    }
    mixer = _section(values, MixerConfig, "model.mixer.")
    read.cls.check(write.cls, mixer, rules["model.read"].options)
    data_config = _section(values, data.config, "data.")
    model = _derive(
        values,
        _section(
            values,
            ModelConfig,
            "model.",
            mixer=mixer,
            write=rules["model.write"],
            read=rules["model.read"],
        ),
        data_config,
    )
    trainer = _section(values, TrainerConfig, "trainer.")
    for plugin in (write, read):
        if plugin.cls.full_precision and trainer.precision == "bf16-true":
            raise RuleError(
                f"trainer.precision=bf16-true would round the parameters of {plugin.name!r} away; "
                "use bf16-mixed."
            )
    config = _section(
        values,
        Config,
        "",
        model=model,
        data=data_config,
        optim=_section(values, OptimConfig, "optim."),
        trainer=trainer,
        tracking=_section(values, TrackingConfig, "tracking."),
    )
    return Resolved(config=config, origins=values.origins)


def _plugin(block: str, registry: Registry[Any], values: Values) -> Plugin[Any]:
    name = values.values.get(f"{block}.name")
    short = block.removeprefix("model.") if block != "data" else "data.name"
    if name is None:
        raise ConfigError(
            f"{block}.name is required: say {short}=NAME, one of {', '.join(registry.names())}."
        )
    plugin = registry.get(str(name))
    # Resolved to an absolute path, so that the run's configuration works from any folder.
    values.values[f"{block}.name"] = registry.qualified(str(name))
    return plugin


def _check_keys(values: Values, plugins: Mapping[str, Plugin[Any]]) -> None:
    common = (key.name for key in keys_of(Config))
    known = [key for key in common if not key.startswith("data.") and key not in BLOCKS]
    for block, plugin in plugins.items():
        known += [f"{block}.name", *(key.name for key in keys_of(plugin.config, f"{block}."))]
    for key in values.values:
        if key not in known and not (key.startswith("tags.") and key != "tags."):
            inside = [each for each in known if each.startswith(f"{key}.")]
            if inside:
                raise ConfigError(f"{key} is a section: give a key of it, such as {inside[0]}.")
            short = [each for each in known if each.rpartition(".")[2] == key.rpartition(".")[2]]
            hint = f" Did you mean {short[0]!r}?" if short else near_miss(key, known)
            raise UnknownKeyError(f"unknown key {key!r}.{hint} `statelab keys` lists all keys.")


def _apply_preset(values: Values, write: Plugin[Any], read: Plugin[Any]) -> None:
    preset = {f"model.mixer.{name}": each for name, each in write.cls.preset(read.cls).items()}
    if values.values.get("model.positions") == "rope":
        preset |= {"model.mixer.rope_base": 10_000.0}
    required = {f"model.mixer.{name}": each for name, each in read.cls.mixer.items()}
    for key, value in preset.items():
        if key not in values.values and key not in required:
            values.set(key, value, f"preset {write.name}+{read.name}")
    for key, value in required.items():
        if str(values.values.get(key, value)) != str(value):
            raise RuleError(
                f"{key}={values.values[key]}: read rule {read.name!r} is not defined without "
                f"{key}={value}. Leave it out."
            )
        if key not in values.values:
            values.set(key, value, f"read rule {read.name}")


def _derive(values: Values, model: ModelConfig, data: DataConfig) -> ModelConfig:
    """Fill in what follows from other keys, so that a saved configuration stands alone."""
    derived: dict[str, Any] = {"num_layers": len(layer_list(model))}
    if model.head_dim is None:
        if model.d_model % model.num_heads:
            fits = [n for n in range(1, model.d_model + 1) if model.d_model % n == 0]
            fewer = [n for n in fits if n < model.num_heads]
            more = [n for n in fits if n > model.num_heads]
            near = fewer[-1:] + more[:1]
            raise ConfigError(
                f"model.num_heads={model.num_heads} must divide model.d_model={model.d_model}; "
                f"try {' or '.join(str(n) for n in near)}, or say model.head_dim."
            )
        derived["head_dim"] = model.d_model // model.num_heads
    if model.value_dim is None:
        derived["value_dim"] = derived.get("head_dim", model.head_dim)
    if model.mlp_hidden is None:
        derived["mlp_hidden"] = -(-8 * model.d_model // 3 // 128) * 128
    vocabulary = data.vocab_size  # type: ignore[attr-defined]
    if model.vocab_size is None:
        if vocabulary is None:
            raise ConfigError(
                f"data.tokenizer={getattr(data, 'tokenizer', None)!r} is not on this machine, and "
                "model.vocab_size follows from it. If it is on the hub, statelab tokenizer show "
                "tokenizer=NAME fetches it; or give model.vocab_size."
            )
        derived["vocab_size"] = vocabulary
    elif vocabulary is not None and model.vocab_size < vocabulary:
        raise ConfigError(
            f"model.vocab_size={model.vocab_size} is less than the data's {vocabulary} tokens; "
            "leave it out, or raise it."
        )
    for name in derived:
        if getattr(model, name) is None:
            values.origins[f"model.{name}"] = "derived"
    return dataclasses.replace(model, **derived)


def _section(values: Values, cls: type, prefix: str, **ready: Any) -> Any:
    """Build one dataclass from the values under a prefix.

    Args:
        values: All values.
        cls: The dataclass.
        prefix: Of its keys, with the dot.
        ready: Fields that are built already.
    """
    hints = typing.get_type_hints(cls)
    fields = dict(ready)
    for each in dataclasses.fields(cls):
        key, hint = prefix + each.name, hints[each.name]
        if each.name in ready:
            continue
        if key in values.values:
            fields[each.name] = _convert(key, values.values[key], hint)
        elif typing.get_origin(hint) is dict:
            entries = {k: v for k, v in values.values.items() if k.startswith(f"{key}.")}
            fields[each.name] = {k.removeprefix(f"{key}."): str(v) for k, v in entries.items()}
        elif each.default is MISSING and each.default_factory is MISSING:
            raise ConfigError(f"{key} is required: say {key}=VALUE.")
    try:
        return cls(**fields)
    except RangeError as error:
        raise ConfigError(f"{prefix}{error}") from error


def _convert(key: str, value: Any, hint: Any) -> Any:
    """A value as its key's type wants it, by OmegaConf's structured merge."""
    given = _typed(key, value, hint) if isinstance(value, Text) else value
    wrong = ConfigError(f"{key} must be {type_name(hint)}, got {value!r}.")
    takes_list = typing.get_origin(hint) is tuple and isinstance(given, (list, tuple))
    # OmegaConf lets a list inside a list pass, and `str` makes a text of anything.
    if any(isinstance(each, (list, tuple, dict)) for each in (given if takes_list else [given])):
        raise wrong
    if given is not None and _kinds(hint) <= {str, type(None)}:
        given = str(given)
    try:
        box = OmegaConf.merge(OmegaConf.structured(_box(hint)), {"value": _literal(given)})
        return OmegaConf.to_object(box).value  # type: ignore[union-attr]
    except OmegaConfBaseException as error:
        raise wrong from error


def _typed(key: str, text: str, hint: Any) -> Any:
    """What a text of the command line says: verbatim where the type is `str`, YAML elsewhere."""
    kinds = _kinds(hint)
    if type(None) in kinds and text in ("null", "none", "None", ""):
        return None
    if typing.get_origin(hint) is typing.Literal:
        return next((word for word in kinds if str(word) == text), str(text))
    if kinds <= {str, type(None)}:
        return str(text)
    try:
        parsed = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{key}={text} can't be read: it is no YAML value.") from error
    if typing.get_origin(hint) is tuple and not isinstance(parsed, list):
        return [part.strip() for part in text.split(",")]
    return parsed


def _kinds(hint: Any) -> set[Any]:
    return set(typing.get_args(hint)) or {hint}


@functools.cache
def _box(hint: Any) -> type:
    return dataclasses.make_dataclass("Box", [("value", hint)])


def _literal(value: Any) -> Any:
    """A value in which OmegaConf sees no reference: a dollar sign means nothing here."""
    if isinstance(value, str):
        return value.replace("${", "\\${")
    return [_literal(each) for each in value] if isinstance(value, (list, tuple)) else value


def _plain(value: Any) -> Any:
    if isinstance(value, RuleConfig):
        return {"name": value.name, **_plain(value.options)}
    if dataclasses.is_dataclass(value):
        return {each.name: _plain(getattr(value, each.name)) for each in dataclasses.fields(value)}
    if isinstance(value, (tuple, list)):
        return [_plain(each) for each in value]
    return dict(value) if isinstance(value, dict) else value
