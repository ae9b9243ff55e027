"""The registries themselves; importing them imports no torch and no plugin."""

from __future__ import annotations

from typing import TYPE_CHECKING

from statelab.registry import Registry

if TYPE_CHECKING:
    from statelab.data.module import DataModule
    from statelab.rules import ReadRule, WriteRule
    from statelab.runs.tracking import Tracker
    from statelab.tasks.task import EvalTask

__all__ = ["data_modules", "eval_tasks", "read_rules", "trackers", "write_rules"]

write_rules: Registry[WriteRule] = Registry("write rule", "statelab.write_rules")
read_rules: Registry[ReadRule] = Registry("read rule", "statelab.read_rules")
data_modules: Registry[DataModule] = Registry("data module", "statelab.data")
eval_tasks: Registry[EvalTask] = Registry("evaluation task", "statelab.eval_tasks")
trackers: Registry[Tracker] = Registry("tracker", "statelab.tracking")
