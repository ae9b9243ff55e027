"""`statelab generate`, and tokens as text."""

import io
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from statelab.__main__ import main
from statelab.data.mqar import MQAR, MQARConfig
from statelab.data.text import Text, TextConfig
from statelab.train import train

TEXT, NUMBERS = TextConfig(name="text"), MQARConfig(name="mqar", seq_len=64)


@pytest.fixture(scope="module")
def runs(toy_config, tmp_path_factory):
    """A run of each kind of data: where they are, and their ids."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "corpus.txt").write_text("the cat sat on the mat\n" * 40)
    common = (f"run_dir={folder}", "tracking.enabled=false", "trainer.max_steps=1")
    of_kind = {
        "text": ("data.name=text", f"data.files={folder}/corpus.txt"),
        "mqar": (),
        "learned": ("model.positions=learned",),
    }
    ids = {kind: train(toy_config(*common, *given)).run_id for kind, given in of_kind.items()}
    return folder, ids


@pytest.fixture
def generate(runs, capsys):
    """Run the command on a run of that kind; returns exit status, stdout and stderr."""
    folder, ids = runs

    def run(kind, *arguments):
        with pytest.raises(SystemExit) as ended:
            main(["generate", f"run={ids[kind]}", f"run_dir={folder}", *arguments])
        out, err = capsys.readouterr()
        return ended.value.code, out, err

    return run


def test_a_text_goes_on_and_json_says_the_same(generate, runs):
    asked = ("prompt=the cät", "max_new_tokens=30", "temperature=0.8", "top_k=50", "top_p=0.95")
    status, out, _ = generate("text", *asked, "seed=2", "stop=[]")
    assert status == 0
    status, told, _ = generate("text", *asked, "seed=2", "stop=[]", "--json")
    assert status == 0
    assert told.count("\n") == 1
    found = json.loads(told)
    assert found["run_id"] == runs[1]["text"]
    assert Path(found["checkpoint"]).name == "last.ckpt"
    [output] = found["outputs"]
    assert output["prompt"] == "the cät"
    assert len(output["tokens"]) == 30
    assert output["text"] == Text.decode(TEXT, output["tokens"])
    assert printable(out) == printable("the cät" + output["text"])
    _, again, _ = generate("text", *asked, "seed=2", "stop=[]", "--json")
    assert again == told
    _, other, _ = generate("text", *asked, "seed=3", "stop=[]", "--json")
    assert other != told


def printable(text):
    return "".join(each for each in text if each.isprintable() and each != "�")


def test_several_prompts_go_on_as_each_does_alone(generate):
    prompts, asked = ("5 20 7", "8"), ("max_new_tokens=6", "checkpoint=best")
    _, together, _ = generate("mqar", *(f"prompt={each}" for each in prompts), *asked)
    alone = [generate("mqar", f"prompt={each}", *asked)[1] for each in prompts]
    assert together == "".join(alone)
    assert [len(line.split()) for line in together.splitlines()] == [9, 7]
    assert together.startswith("5 20 7 ")
    _, told, _ = generate("mqar", "prompt=8", *asked, "--json")
    [output] = json.loads(told)["outputs"]
    assert together.splitlines()[1] == f"8 {output['text']}"
    assert output["text"].split() == [str(token) for token in output["tokens"]]


def test_a_text_ends_with_its_document_and_steers_no_terminal(generate):
    asked = ("prompt=the", "max_new_tokens=3000")
    _, told, _ = generate("text", *asked, "--json")
    [output] = json.loads(told)["outputs"]
    assert 0 not in output["tokens"]
    assert len(output["tokens"]) < 3000
    _, out, _ = generate("text", "prompt=\x1b[2J\x07 the", "max_new_tokens=1")
    assert out.startswith("�[2J� the")


def test_each_piece_is_printed_before_the_next_one_is_made(generate, monkeypatch):
    done = []

    class Terminal(io.StringIO):
        def write(self, text):
            done.append(text)

        def flush(self):
            done.append("flush")

    monkeypatch.setattr(sys, "stdout", Terminal())
    generate("mqar", "prompt=5 20", "max_new_tokens=3")
    assert done[:4] == ["5", "flush", " 20", "flush"]
    assert len(done) == 2 * (2 + 3 + 1)
    assert set(done[1::2]) == {"flush"}


@pytest.mark.slow
@pytest.mark.parametrize("way", ["closed pipe", "Ctrl-C"])
def test_an_endless_text_can_be_left(runs, way):
    folder, ids = runs
    command = [sys.executable, "-m", "statelab", "generate", f"run={ids['text']}", "stop=[]"]
    command += [f"run_dir={folder}", "prompt=the", "max_new_tokens=1000000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout.read(10).startswith(b"the")
        if way == "Ctrl-C":
            process.send_signal(signal.SIGINT)
        else:
            process.stdout.close()
        said = process.stderr.read()
        assert process.wait(60) == (130 if way == "Ctrl-C" else 1)
    assert said.decode().splitlines() == ["gated_recall on cpu runs chunked"]


@pytest.mark.parametrize(
    ("kind", "arguments", "message"),
    [
        ("text", (), "generate needs a prompt: statelab generate run=ID prompt=TEXT."),
        ("text", ("prompt=",), "prompt 0 is empty; give it at least one token."),
        ("text", ("prompt=a", "max_new_tokens=0"), "max_new_tokens must be >= 1, got 0."),
        ("text", ("prompt=a", "temperature=-1"), "temperature must be >= 0, got -1.0."),
        ("text", ("prompt=a", "top_k=0"), "top_k must be >= 1, got 0."),
        ("text", ("prompt=a", "top_k=few"), "top_k must be int | null, got 'few'."),
        ("text", ("prompt=a", "top_p=0"), "top_p must be > 0 and <= 1, got 0.0."),
        ("text", ("prompt=a", "topk=5"), "unknown key 'topk'. Did you mean 'top_k'?"),
        ("text", ("prompt=a", "seed"), "'seed' is no key=value."),
        (
            "text",
            ("prompt=a", "checkpoint=first"),
            "has no checkpoint 'first'; it has: best, last.",
        ),
        ("mqar", ("prompt=the cat",), "the tokens of data.name=mqar are numbers"),
        ("mqar", ("prompt=5 99",), "token 99 is outside the vocabulary of 32; use the tokenizer"),
        (
            "learned",
            ("prompt=5", "max_new_tokens=17"),
            "there is room for 16 new ones, got max_new_",
        ),
    ],
)
def test_a_mistake_is_one_line(generate, kind, arguments, message):
    status, out, err = generate(kind, *arguments)
    assert (status, out) == (2, "")
    assert err.startswith("statelab: ")
    assert message in err
    assert err.count("\n") == 1


def test_a_run_must_be_named(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["generate", "prompt=a"])
    assert ended.value.code == 2
    assert "generate needs a run: statelab generate run=ID prompt=TEXT." in capsys.readouterr().err


@pytest.mark.parametrize(
    "text", ["the cat\n", "naïve 🐈 日本", "\udcff\udc80 bytes that are no text"]
)
def test_a_text_is_what_its_tokens_say(text):
    tokens = Text.encode(TEXT, text)
    assert bytes(tokens) == text.encode(errors="surrogateescape")
    shown = text.translate({0xDCFF: "�", 0xDC80: "�"})
    assert Text.decode(TEXT, tokens) == shown


def test_a_character_comes_with_its_last_byte():
    pieces = Text.pieces(TEXT, iter("a🐈é".encode() + b"\xc3"))
    assert list(pieces) == ["a", "🐈", "é", "�"]
    read = []
    source = (read.append(byte) or byte for byte in "🐈b".encode())
    pieces = Text.pieces(TEXT, source)
    assert next(pieces) == "🐈"
    assert len(read) == 4


def test_a_token_that_is_no_byte_is_shown_as_damaged():
    assert Text.decode(TEXT, [97, 300, 98]) == "a�b"


def test_numbers_stand_apart():
    assert MQAR.decode(NUMBERS, MQAR.encode(NUMBERS, "5  40\n7")) == "5 40 7"
    assert MQAR.decode(NUMBERS, []) == ""
