"""What the commands print for people."""

from pathlib import Path
from types import SimpleNamespace

from statelab.console import print_result, print_sizes
from statelab.sizes import Sizes


def layer(kind, parameters):
    return {"kind": kind, "parameters": parameters, "state": {"values": 8}}


def test_layers_alike_in_a_row_take_one_line(capsys):
    layers = [layer("memory", 5)] * 3 + [layer("attention", 7)] + [layer("memory", 5)]
    print_sizes(
        Sizes(
            parameters=27,
            state_bytes=40,
            memory_bytes=40,
            per_layer=layers,
            flops_per_token=1,
            config={},
        )
    )
    lines = [line.split() for line in capsys.readouterr().out.splitlines()[-3:]]
    assert lines == [
        ["0-2", "memory", "5", "values", "8"],
        ["3", "attention", "7", "values", "8"],
        ["4", "memory", "5", "values", "8"],
    ]


def test_a_run_ends_with_what_to_type_next(capsys):
    result = SimpleNamespace(
        metrics={}, run_id="3f2a", status="FINISHED", folder=Path("f"), checkpoint=Path("c")
    )
    tracking = SimpleNamespace(uri=None, enabled=True)
    print_result(result, SimpleNamespace(experiment="mqar", tracking=tracking, place=list))
    assert capsys.readouterr().out.splitlines()[-4:] == [
        "statelab eval run=3f2a",
        "statelab inspect run=3f2a",
        "statelab runs experiment=mqar",
        "statelab ui",
    ]
