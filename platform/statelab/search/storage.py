"""Where a study is kept, and with which sampler and pruner it goes on."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from statelab.errors import ConfigError, RunError, StatelabError, near_miss
from statelab.runs.tracking import make_folder
from statelab.search.turn import FileTurn, PostgresTurn, Turn

if TYPE_CHECKING:
    from optuna.pruners import BasePruner
    from optuna.samplers import BaseSampler
    from optuna.storages import BaseStorage

__all__ = [
    "make_pruner",
    "make_sampler",
    "open_storage",
    "public_url",
    "reaching",
    "storage_url",
    "turn_of",
]

_DEAD_AFTER = 4  # heartbeats

_SAMPLERS: dict[str, tuple[str, dict[str, Any]]] = {
    "tpe": ("TPESampler", {"multivariate": True, "group": True}),
    "random": ("RandomSampler", {}),
}
_PRUNERS: dict[str, tuple[str, dict[str, Any]]] = {
    "median": ("MedianPruner", {}),
    "hyperband": ("HyperbandPruner", {}),
    "none": ("NopPruner", {}),
}


def storage_url(given: str | None, run_dir: str) -> str:
    """The database's URL, with the driver that is installed.

    Raises:
        ConfigError: If it is neither SQLite nor PostgreSQL.
    """
    if given is None:
        return f"sqlite:///{Path(run_dir).resolve() / 'optuna.db'}"
    scheme, separator, rest = given.partition("://")
    if scheme in ("postgresql", "postgres"):
        return f"postgresql+psycopg://{rest}"
    is_file = scheme == "sqlite" and rest.removeprefix("/") not in (rest, "", ":memory:")
    if not separator or not (is_file or scheme.startswith("postgresql+")):
        raise ConfigError(
            f"search.storage={public_url(given)} must be sqlite:///FILE, or "
            "postgresql://USER@HOST/DATABASE for several machines."
        )
    return given


def public_url(url: str) -> str:
    """The URL without its password."""
    return re.sub(r"(://[^:/@]*):[^/@]*@", r"\1@", url)


def turn_of(url: str, name: str) -> Turn:
    """The lock of a study, or of the whole storage.

    Raises:
        RunError: If the folder of the database's file can't be made.
    """
    if url.startswith("sqlite"):
        file = _file_of(url)
        make_folder(file.parent, url, key="search.storage")
        return FileTurn(file.with_name(f"{file.name}.{name}.lock"))
    from sqlalchemy import create_engine
    from sqlalchemy.pool import NullPool

    return PostgresTurn(create_engine(url, poolclass=NullPool), name)


def open_storage(url: str, *, heartbeat: int) -> BaseStorage:
    """Open the database, and make its tables if there are none.

    Args:
        url: As `storage_url` gives it.
        heartbeat: Seconds between signs of life of a running trial.

    Raises:
        RunError: If it can't be opened, or was made by another Optuna.
    """
    from statelab.search.patient import PatientStorage

    options: dict[str, Any] = {"pool_pre_ping": True}
    if url.startswith("sqlite"):
        options = {"connect_args": {"timeout": 60}}
    # Two processes that make the tables at once would be in each other's way.
    with reaching(url), turn_of(url, "tables").taken(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return PatientStorage(
            url,
            engine_kwargs=options,
            heartbeat_interval=heartbeat,
            grace_period=_DEAD_AFTER * heartbeat,
        )


@contextmanager
def reaching(url: str) -> Iterator[None]:
    """Tell in one line what the database of that URL refuses.

    Raises:
        RunError: Instead of the errors of SQLAlchemy and of Optuna's storage.
    """
    from statelab.search.patient import AWAY

    try:
        yield
    except StatelabError:
        raise
    except (*AWAY, RuntimeError, ImportError, OSError) as error:
        why = " ".join(str(error.__cause__ or error).split())[:200]
        raise RunError(
            f"search.storage={public_url(url)} can't be used: {why} Give another with "
            "search.storage=URL."
        ) from error


def make_sampler(name: str, options: Mapping[str, str], seed: int) -> BaseSampler:
    """A sampler of Optuna's; it gets the seed if it takes one.

    Raises:
        ConfigError: If there is none of that name, or it doesn't take these options.
    """
    import optuna

    sampler: BaseSampler = _make(
        "sampler", optuna.samplers, name, options, _SAMPLERS, {"seed": seed}
    )
    return sampler


def make_pruner(name: str, options: Mapping[str, str]) -> BasePruner:
    """A pruner of Optuna's.

    Raises:
        ConfigError: If there is none of that name, or it doesn't take these options.
    """
    import optuna

    pruner: BasePruner = _make("pruner", optuna.pruners, name, options, _PRUNERS, {})
    return pruner


def _make(
    kind: str,
    module: Any,
    name: str,
    options: Mapping[str, str],
    short: Mapping[str, tuple[str, Mapping[str, Any]]],
    fitting: Mapping[str, Any],
) -> Any:
    import inspect

    cls_name, presets = short.get(name, (name, {}))
    cls = getattr(module, cls_name, None)
    suffix = kind.capitalize()
    if cls is None or not cls_name.endswith(suffix):
        known = [*short, *(each for each in module.__all__ if each.endswith(suffix))]
        raise ConfigError(
            f"unknown search.{kind} {name!r}.{near_miss(name, known)} There are: "
            f"{', '.join(sorted(each for each in known if not each.startswith('Base')))}."
        )
    taken = inspect.signature(cls).parameters
    given = {key: yaml.safe_load(value) for key, value in options.items()}
    own = {key: value for key, value in fitting.items() if key in taken}
    try:
        with warnings.catch_warnings():
            # Optuna calls some of what it recommends experimental.
            warnings.simplefilter("ignore")
            return cls(**{**presets, **own, **given})
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"search.{kind}={name} doesn't take search.{kind}_options={dict(options)}: {error}. "
            f"It knows: {', '.join(each for each in taken if each != 'self')}."
        ) from error


def _file_of(url: str) -> Path:
    return Path(url.partition("///")[2].partition("?")[0]).resolve()
