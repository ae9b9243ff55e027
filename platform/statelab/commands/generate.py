"""The command that lets a run's checkpoint go on from a text."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable

from statelab.commands.app import Json, Keys, app, examples, refuse, take

__all__ = ["generate"]

#: Control characters would steer the terminal.
_SHOWN = dict.fromkeys(
    {*range(32), *range(127, 160)} - {ord("\t"), ord("\n")}, "\N{REPLACEMENT CHARACTER}"
)


@app.command(
    epilog=examples(
        "generate run=3f2a prompt='def main('",
        "generate run=3f2a prompt=import temperature=0.8 top_k=50 seed=1",
        "generate run=3f2a prompt='5 40 7' prompt='8 9' temperature=0 --json",
    )
)
def generate(overrides: Keys = None, json: Json = False) -> None:
    """Go on from a prompt with a checkpoint, token by token.

    Keys: run, checkpoint=last|best, prompt, max_new_tokens, temperature (0 takes the likeliest
    token), top_k, top_p, seed, stop (tokens to end before), run_dir and tracking.uri. With
    several prompts all go on at once, and are printed when they are done.
    """
    texts = [each[len("prompt=") :] for each in overrides or [] if each.startswith("prompt=")]
    others = [each for each in overrides or [] if not each.startswith("prompt=")]
    given, rest = take(others, "run", "checkpoint", "run_dir", "tracking.uri")
    for name, value in (("run", given.get("run")), ("prompt", texts)):
        if not value:
            refuse(f"generate needs a {name}: statelab generate run=ID prompt=TEXT.")

    from statelab.console import print_json
    from statelab.evaluate import load_checkpoint
    from statelab.loading import load_section
    from statelab.model.generation import GenerationConfig, stream
    from statelab.registries import data_modules
    from statelab.runs.stored import find_run

    run = find_run(
        given["run"], run_dir=given.get("run_dir", "runs"), uri=given.get("tracking.uri")
    )
    config = run.config().data
    data = data_modules.get(config.name).cls
    settings = load_section(GenerationConfig, rest, defaults={"stop": data.stop(config)})
    prompts = [data.encode(config, text) for text in texts]
    file = run.checkpoint(given.get("checkpoint", "last"))
    tokens = stream(load_checkpoint(file).decoder, prompts, settings)

    if len(prompts) == 1 and not json:
        _print(data.pieces(config, itertools.chain(prompts[0], (token for _, token in tokens))))
        return
    outputs: list[list[int]] = [[] for _ in prompts]
    for sequence, token in tokens:
        outputs[sequence].append(token)
    if json:
        told = [
            {"prompt": text, "text": data.decode(config, output), "tokens": output}
            for text, output in zip(texts, outputs, strict=True)
        ]
        print_json({"run_id": run.id, "checkpoint": str(file), "outputs": told})
    else:
        for prompt, output in zip(prompts, outputs, strict=True):
            _print(data.pieces(config, prompt + output))


def _print(pieces: Iterable[str]) -> None:
    """Print a text, each piece at once, even into a pipe."""
    for piece in pieces:
        sys.stdout.write(piece.translate(_SHOWN))
        sys.stdout.flush()
    sys.stdout.write("\n")
    sys.stdout.flush()
