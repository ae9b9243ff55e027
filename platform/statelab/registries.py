"""The registries themselves; importing them imports no torch and no plugin."""

from __future__ import annotations

from typing import TYPE_CHECKING

from statelab.registry import Registry

if TYPE_CHECKING:
    from statelab.data.module import DataModule
    from statelab.rules import ReadRule, WriteRule
    from statelab.runs.tracking import Tracker

__all__ = ["data_modules", "read_rules", "trackers", "write_rules"]

write_rules: Registry[WriteRule] = Registry("write rule", "statelab.write_rules")
read_rules: Registry[ReadRule] = Registry("read rule", "statelab.read_rules")
data_modules: Registry[DataModule] = Registry("data module", "statelab.data")
trackers: Registry[Tracker] = Registry("tracker", "statelab.tracking")
