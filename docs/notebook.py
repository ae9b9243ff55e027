"""Make `python.ipynb` of `python.md`. After a change run `python docs/notebook.py`."""

from __future__ import annotations

import json
import re
from pathlib import Path

HERE = Path(__file__).parent
PAGE, FILE = HERE / "python.md", HERE / "python.ipynb"


def make() -> str:
    """The notebook as JSON text, without outputs; the same each time."""
    page = PAGE.read_text(encoding="utf-8")
    page = page.replace(" [python.ipynb](python.ipynb) is the same as a notebook.", "")
    cells: list[dict[str, object]] = []
    # Between fences there is text, inside them code, in turn.
    for index, part in enumerate(re.split(r"^```(?:python)?\n", page, flags=re.MULTILINE)):
        source = part.strip("\n")
        if source:
            cells.append(_cell("code" if index % 2 else "markdown", source, len(cells)))
    notebook = {
        "cells": cells,
        "metadata": {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


def _cell(kind: str, source: str, number: int) -> dict[str, object]:
    cell: dict[str, object] = {
        "cell_type": kind,
        "id": f"cell-{number}",
        "metadata": {},
        "source": source.splitlines(keepends=True),
    }
    return cell | {"execution_count": None, "outputs": []} if kind == "code" else cell


if __name__ == "__main__":
    FILE.write_text(make(), encoding="utf-8")
