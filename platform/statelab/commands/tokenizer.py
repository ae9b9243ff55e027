"""The command on text at scale: tokenizers, and tokenised data."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from statelab.commands.app import Json, Keys, app, examples, refuse, take

__all__ = ["tokenizer"]


def _actions(incomplete: str) -> list[str]:
    return [each for each in _ACTIONS if each.startswith(incomplete)]


@app.command(
    epilog=examples(
        "tokenizer train files='corpus/*.parquet' vocab_size=32000",
        "tokenizer show tokenizer=tokenizer.json text='some words'",
        "tokenizer shards experiment=interdomain_125m",
        "tokenizer shards experiment=interdomain_125m verify=true",
    )
)
def tokenizer(
    action: Annotated[str, typer.Argument(metavar="ACTION", autocompletion=_actions)],
    overrides: Keys = None,
    json: Json = False,
) -> None:
    """Train or show a tokenizer, or tokenise the text of a run ahead.

    ACTION is train (keys: files, vocab_size, out, overwrite, subset, split, column, revision,
    max_bytes), show (tokenizer, text, end_token; fetches it from the hub), or shards (a run's
    keys; verify=true reads all files once more and compares their checksums).
    """
    if action not in _ACTIONS:
        refuse(f"tokenizer takes {', '.join(_ACTIONS)}, got {action!r}.")
    from statelab.console import print_facts, print_json

    facts = _ACTIONS[action](overrides or [])
    print_json(facts) if json else print_facts(facts)


def _train(overrides: list[str]) -> dict[str, Any]:
    from statelab.corpus.bpe import TokenizerConfig, train_tokenizer
    from statelab.corpus.tokenizer import fingerprint
    from statelab.loading import load_section

    file, size = train_tokenizer(load_section(TokenizerConfig, overrides))
    return {"file": str(file), "vocab_size": size, "fingerprint": fingerprint(str(file))}


def _show(overrides: list[str]) -> dict[str, Any]:
    from statelab.corpus.tokenizer import BYTES, fetch, fingerprint, load

    given, rest = take(overrides, "tokenizer", "text", "end_token")
    if rest or "tokenizer" not in given:
        refuse(
            "tokenizer show takes tokenizer=NAME, text and end_token, got "
            f"{rest[0] if rest else 'no tokenizer'}."
        )
    name = given["tokenizer"]
    found = load(name, end_token=given.get("end_token"))
    facts: dict[str, Any] = {
        "file": name if name == BYTES else str(fetch(name)),
        "vocab_size": found.vocab_size,
        "fingerprint": fingerprint(name),
        "end": found.end,
    }
    if "text" in given:
        ((tokens, sizes),) = found.encode_sized([given["text"].encode(errors="surrogateescape")])
        facts["tokens"] = tokens.tolist()
        facts["pieces"] = [found.spell(token) for token in tokens.tolist()]
        facts["bytes"] = sizes.tolist()
    return facts


def _shards(overrides: list[str]) -> dict[str, Any]:
    from statelab.loading import load_config

    given, rest = take(overrides, "verify")
    verify = given.get("verify", "false")
    if verify not in ("true", "false"):
        refuse(f"verify must be true or false, got {verify!r}.")
    config = load_config(None, rest).data
    from statelab.data.hf import HfConfig, shards_of

    if not isinstance(config, HfConfig):
        refuse(f"tokenizer shards needs data.name=hf, got data.name={config.name}.")
    shards = shards_of(config)
    facts: dict[str, Any] = {"folder": str(shards.folder), "shards": len(shards.records)}
    for split, counts in shards.counts.items():
        for what in ("documents", "tokens", "bytes"):
            facts[f"{split}_{what}"] = getattr(counts, what)
    if verify == "true":
        facts["verified_bytes"] = shards.verify()
    return facts


_ACTIONS = {"train": _train, "show": _show, "shards": _shards}
