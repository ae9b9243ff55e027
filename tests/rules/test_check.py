"""The checks find each fault in its row, pass what is sound, and say so on the command line."""

import json
import unittest
from pathlib import Path

import pytest

from statelab.__main__ import main
from statelab.registries import write_rules
from statelab.testing import ReadRuleContract, WriteRuleContract
from statelab.testing.check import Worst
from statelab.testing.subject import Subject
from statelab.testing.suite import CHECKS, examine

BROKEN = Path(__file__).parent / "broken.py"

#: The row that each fault belongs to.
FAULTS = [
    ("LooksAhead", "causality"),
    ("ScalesByLength", "whole = halves"),
    ("ShortIsOtherwise", "whole = halves"),
    ("ScalesByLength", "whole = steps"),
    ("ForgetsDocuments", "packed = separate"),
    ("ForgetsDocuments", "left-padded = unpadded"),
    ("SeesTheBatch", "batch-size invariance"),
    ("HasAnotherLoop", "forms agree"),
    ("OpensItsGate", "extreme inputs"),
    ("ChoosesByLength", "one form at every length"),
    ("WantsEvenKeys", "odd sizes"),
    ("DropsAGradient", "gradients"),
    ("DropsPartOfAGradient", "gradients"),
    ("RoundsInside", "float32"),
    ("BreaksOff", "bfloat16"),
    ("BreaksOff", "autocast"),
    ("Narrow", "state precision"),
    ("IsOtherwiseCompiled", "torch.compile"),
    ("Overflows", "long input"),
    ("DividesByItsSum", "repeated keys"),
    ("ReadsUnset", "uninitialised memory"),
    ("ChangesItsOption", "config round trip"),
    ("SaysLess", "state size"),
    ("Grows", "constant state"),
    ("DrawsAnew", "save and load"),
    ("LosesItsStart", "init"),
    ("NeverStarts", "meta-device build"),
    ("NamesNoParameter", "parameter options"),
    ("IsNotLinear", "memory: linear in the stream"),
    ("ProjectsTwofold", "memory: project is recall's adjoint"),
    ("ScalesByLength", "memory: whole = halves"),
    ("HasOneSlot", "memory: slots"),
    ("HasOneSize", "memory: other streams"),
]


def test_every_row_has_a_fault_that_fails_there():
    assert {row for _, row in FAULTS} == {each.what for each in CHECKS}


@pytest.fixture(autouse=True, scope="module")
def _forget():
    """Leave no rule behind in the registry."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(write_rules, "_plugins", dict(write_rules._plugins))
        yield


def subject(rule):
    return Subject(write=f"{BROKEN}:{rule}", read="plain")


def row(what, pair):
    return next(each for each in CHECKS if each.what == what)(pair)


@pytest.mark.parametrize(("fault", "what"), FAULTS)
def test_a_fault_fails_in_its_row(fault, what):
    found = row(what, subject(fault))
    assert found.passed is False
    assert found.detail
    assert "\n" not in found.detail


@pytest.mark.slow
def test_without_the_fault_every_row_passes():
    assert [row for row in examine(subject("Sound")).rows if row.passed is not True] == []


def test_a_check_that_breaks_off_leaves_the_others_alone():
    rule = subject("BreaksOff")
    assert row("bfloat16", rule).detail == "NotImplementedError: no bf16 here"
    assert row("float32", rule).passed


def test_a_row_without_a_meaning_says_why():
    found = row("state precision", Subject(write="kv", read="softmax"))
    assert found.passed is None
    assert found.detail == "a cache keeps keys and values as they are"


def test_no_number_is_the_worst_of_all():
    worst = Worst()
    for value in (1.0, float("nan"), 2.0):
        worst.see(value, str(value))
    assert worst.where == "nan"


def test_a_contract_fails_with_what_was_measured_and_skips_what_has_no_meaning():
    class Ahead(WriteRuleContract):
        write = f"{BROKEN}:LooksAhead"

    class Cached(ReadRuleContract):
        write, read = "kv", "softmax"

    with pytest.raises(AssertionError, match=r"causality is missed by .*, 1e-09 is allowed: "):
        Ahead().test_a_token_changes_nothing_before_it()
    Ahead().test_the_members_of_a_batch_do_not_see_each_other()
    with pytest.raises(unittest.SkipTest, match="a cache keeps"):
        Cached().test_states_are_single_precision_at_least()


def run(capsys, *words):
    with pytest.raises(SystemExit) as ended:
        main(["check", *words])
    return ended.value.code, capsys.readouterr()


@pytest.fixture
def few(monkeypatch):
    """Only the first rows, since each is tested above."""
    monkeypatch.setattr("statelab.testing.suite.CHECKS", CHECKS[:2])


def test_the_command_prints_a_row_a_check_and_the_form_that_ran(few, capsys):
    status, said = run(capsys, "write=gla", "read=ccq")
    assert status == 0
    assert "gla + ccq, backend auto on cpu: ccq_query chunked, gated_recall chunked" in said.out
    assert "All promises are kept." in said.out
    status, said = run(capsys, f"write={BROKEN}:ScalesByLength", "read=plain")
    assert status == 1
    assert "1 of 2 fail." in said.out
    assert "NO    T = 131, cut at 130, slot layers.1.values" in said.out


def test_the_command_ends_with_one_json_object(few, capsys):
    status, said = run(capsys, f"write={BROKEN}:LooksAhead", "read=plain", "--json")
    assert status == 1
    (pair,) = json.loads(said.out)["pairs"]
    first = pair["rows"][0]
    assert (pair["passed"], first["what"], first["passed"]) == (False, "causality", False)
    assert first["measured"] > first["allowed"]


def test_a_rule_alone_is_checked_with_all_that_fit(monkeypatch, capsys):
    monkeypatch.setattr("statelab.testing.suite.CHECKS", CHECKS[-1:])
    status, said = run(capsys, "write=linear", "model.mixer.output_norm=none", "--json")
    assert status == 0
    reads = [pair["read"] for pair in json.loads(said.out)["pairs"]]
    assert reads == ["ccq", "gka", "mesa", "plain"]
    assert "linear + interdomain is left out: model.mixer.output_norm=none" in said.err
    status, said = run(capsys, "read=softmax", "--json")
    assert [pair["write"] for pair in json.loads(said.out)["pairs"]] == ["kv"]


def test_a_rule_in_a_file_is_checked_with_its_options(few, capsys, tmp_path):
    assert "leaky" not in write_rules.names()
    file = tmp_path / "leaky.py"
    file.write_text(LEAKY)
    status, said = run(capsys, f"write={file}:Leaky", "read=plain", "write.half_life=3")
    assert status == 0
    status, said = run(capsys, f"write={file}:Leaky", "read=plain", "write.half_live=3")
    assert status == 2
    assert "unknown key 'model.write.half_live'" in said.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "check needs a rule: statelab check write=NAME, read=NAME, or both."),
        (("write=gla", "data.seq_len=3"), "check takes write, read, and options of both and of "),
        (("write=gla", "model.layers=[conv]"), "got model.layers="),
        (("write=nope", "read=plain"), "unknown write rule 'nope'."),
        (("write=gla", "read=mesa"), "read rule 'mesa' can't read what 'gla' writes"),
    ],
)
def test_what_cannot_be_checked_is_refused_in_one_line(capsys, words, message):
    status, said = run(capsys, *words)
    assert status == 2
    assert message in said.err
    assert len(said.err.splitlines()) == 1


LEAKY = """
from dataclasses import dataclass
from math import log
from statelab.options import Section, option
from statelab.rules import WriteRule, write_rules
from statelab_kernels.precision import compute_dtype
from statelab_plugins.memory import GatedMemory


@dataclass(frozen=True, kw_only=True, slots=True)
class LeakyConfig(Section):
    half_life: float = option(64.0, "tokens until a write has faded to one half", above=0)


@write_rules.register("leaky", config=LeakyConfig)
class Leaky(WriteRule):
    def forward(self, x, k, v):
        g = k.new_full(k.shape[:3], -log(2) / self.config.half_life, dtype=compute_dtype(k))
        return GatedMemory(k, v, g=g)
"""
