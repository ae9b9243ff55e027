"""The pages under docs/: every block runs, the picture and the notebook are up to date."""

import json
import re
import runpy

import pytest

PAGES = (
    "the-idea",
    "your-first-rule",
    "python",
    "from-zoology",
    "from-fla",
    "from-mad",
    "runs",
    "search",
    "mlflow",
    "compare",
    "text-at-scale",
    "evaluation",
    "tasks",
)


@pytest.fixture(scope="module")
def docs(root):
    return root / "docs"


def page(docs, name):
    return (docs / f"{name}.md").read_text(encoding="utf-8")


def test_every_page_is_tested(docs):
    assert {each.stem for each in docs.glob("*.md")} == {*PAGES, "failures"}


@pytest.mark.slow
@pytest.mark.parametrize("name", [each for each in PAGES if each != "your-first-rule"])
def test_the_blocks_run_in_their_order(docs, reader, name):
    reader.follow(page(docs, name))


@pytest.mark.slow
def test_the_first_rule_ends_beside_gla(docs, reader, capsys):
    text = page(docs, "your-first-rule")
    reader.follow(text)
    rule = (reader.folder / "leaky.py").read_text().splitlines()
    assert len(rule) - 1 <= 20  # without its name
    listed = capsys.readouterr().out
    for name in ("Leaky+plain s0", "gla+plain s0"):
        assert f"`{name}`" in text
        assert re.search(rf"^{re.escape(name)} \d+ 0\.\d+$", listed, re.MULTILINE)


def test_links_lead_somewhere(root):
    for file in (root / "README.md", root / "CONTRIBUTING.md", *(root / "docs").glob("*.md")):
        for target in re.findall(r"\]\(([^):#]+)\)", file.read_text(encoding="utf-8")):
            assert (file.parent / target).is_file(), f"{file.name}: {target}"


def test_the_picture_is_what_its_script_draws(docs):
    script = runpy.run_path(str(docs / "picture.py"))
    assert (docs / "the-idea.svg").read_text(encoding="utf-8") == script["draw"]()


def test_the_notebook_is_made_from_the_page(docs):
    script = runpy.run_path(str(docs / "notebook.py"))
    assert (docs / "python.ipynb").read_text(encoding="utf-8") == script["make"]()


@pytest.mark.slow
def test_the_notebook_runs_from_top_to_bottom(docs, reader):
    """Cell after cell in one session, as Jupyter does; its cells are plain Python."""
    notebook = json.loads((docs / "python.ipynb").read_text(encoding="utf-8"))
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            reader.code("".join(cell["source"]), cell["id"])
