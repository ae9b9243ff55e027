"""A task by its name, at any setting."""

import pytest

from statelab.registries import data_modules


@pytest.fixture(scope="session")
def task():
    """Build the data module of a name: `task("compression", seq_len=64)`."""

    def build(name, **options):
        plugin = data_modules.get(name)
        return plugin.cls(plugin.config(name=name, **options))

    return build
