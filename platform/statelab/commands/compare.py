"""The command that compares runs."""

from __future__ import annotations

from statelab.commands.app import Json, Keys, app, examples, refuse

__all__ = ["compare"]

_USED = ("uri", "enabled", "experiment", "offline")


@app.command(
    epilog=examples(
        "compare experiment=mqar metric=val/accuracy",
        "compare study=mqar-grid baseline=read:plain out=figures",
        "compare experiment=mqar at=memory_bytes tolerance=0.05",
        "compare runs=3f2a,91bc metric=val/accuracy value=best --json",
    )
)
def compare(overrides: Keys = None, json: Json = False) -> None:
    """Compare runs: seeds together, at equal size, with intervals.

    Which ones: experiment, study, runs=ID,ID, and any key=value that they were trained with. How:
    metric, value, direction, by, over, at, tolerance, baseline. Where to: out=FOLDER. Where from:
    run_dir and tracking.uri. The comparison is recorded as a run too; tracking.enabled=false
    leaves that out.
    """
    from statelab.compare.config import CompareConfig
    from statelab.compare.show import print_comparison
    from statelab.config import TrackingConfig
    from statelab.console import print_json
    from statelab.loading import load_section
    from statelab.options import keys_of
    from statelab.values import parse_overrides

    own = {key.name for key in keys_of(CompareConfig)}
    mine: list[str] = []
    tracking: list[str] = []
    where: list[str] = []
    for each in overrides or []:
        key = each.partition("=")[0]
        section, _, name = key.partition(".")
        if section == "tracking":
            if name not in _USED:
                refuse(f"compare takes tracking.{', tracking.'.join(_USED)}, got {key}.")
            tracking.append(each)
        else:
            (mine if key in own else where).append(each)
    config = load_section(CompareConfig, mine)
    store = load_section(TrackingConfig, tracking, prefix="tracking.")
    from statelab.compare.report import run_comparison

    report = run_comparison(config, parse_overrides(where), store)
    print_json(report.to_json()) if json else print_comparison(report)
