"""MLflow's pages and the page of a comparison as a browser shows them.

Screenshots are kept in the folder that STATELAB_SCREENSHOTS names.
"""

import json
import math
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from playwright.sync_api import expect, sync_playwright

from statelab.__main__ import main
from statelab.loading import load_config
from statelab.runs.naming import run_name
from statelab.runs.opening import open_run
from statelab.runs.tracking import USUAL_ADDRESS, StudyTrial, tracker
from statelab.sizes import Sizes
from statelab_mlflow.links import comparison, run_page

# One server and one browser, so one process of pytest-xdist.
pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.xdist_group("browser")]

WAIT_SECONDS = 60
WRITES, READS, SEEDS = ("gla", "gated_deltanet"), ("plain", "ccq"), (0, 1)
SIZES = {"parameters": 1234, "state_bytes": 2100, "memory_bytes": 2048, "flops_per_token": 1}
# The assistant would open over a quarter of the page.
CLOSED = """
localStorage.setItem('mlflow.assistant.panelOpen_v1', 'false');
localStorage.setItem('mlflow.assistant.fab.autoOpenedOnFirstLoad_v1', 'true');
"""
# Whether a name ends in dots: what it stands in, inside of its link, is too narrow.
IS_CUT = """
link => [link, ...link.querySelectorAll('*')].some(
    each => each.clientWidth && each.scrollWidth > each.clientWidth)
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory, empty_database, toy):
    """A study of four pairs with two seeds each, and a run beside it; nothing is trained."""
    run_dir = tmp_path_factory.mktemp("browser") / "runs"
    run_dir.mkdir()
    shutil.copy(empty_database, run_dir)
    where = (f"run_dir={run_dir}", f"tracking.uri=sqlite:///{run_dir}/mlflow.db")

    def config(*overrides):
        return load_config(None, toy(*where, *overrides))

    study = {"study": "small-grid"}
    parent = tracker().start(
        config(), name="small-grid", params={}, tags={**study, "kind": "study"}, description=""
    )
    trials = []
    for write in WRITES:
        for read in READS:
            for seed in SEEDS:
                made = config(f"write={write}", f"read={read}", f"seed={seed}")
                number = len(trials)
                trial = StudyTrial(
                    **study,
                    number=number,
                    parent=parent.id,
                    name=run_name(made),
                    started=print,
                    prune=None,
                )
                trials.append(log(made, trial, rate=0.01 + 0.002 * number))
    parent.finish("FINISHED")
    log(config("write=deltanet"), None, rate=0.001)
    return where, parent.id, trials


def log(config, trial, rate):
    run = open_run(config, Sizes(**SIZES, per_layer=[], config={}), None, trial)
    for step in range(0, 200, 10):
        left = math.exp(-rate * step)
        metrics = {"train/loss": 3 * left, "optim/lr": 1e-3, "val/loss": 3 * left}
        metrics |= {"val/accuracy": 1 - left, "read/lambda_mean/layer_0": left}
        run.logger.log_metrics(metrics, step)
    run.finish("FINISHED")
    return run.id


@pytest.fixture(scope="module")
def pages(runs):
    """What `statelab ui` prints: addresses by what they show."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-u", "-m", "statelab", "ui", *runs[0], f"port={port}"]
    ui = subprocess.Popen(command, stdout=-1, text=True)
    try:
        lines = [ui.stdout.readline().strip() for _ in range(4)]
        assert lines[0] == f"statelab UI at http://127.0.0.1:{port}  (Ctrl-C stops it)"
        yield {
            "root": f"http://127.0.0.1:{port}",
            **dict(each.split(": ", 1) for each in lines[1:]),
        }
    finally:
        ui.send_signal(signal.SIGTERM)
        ui.communicate(timeout=30)


@pytest.fixture(scope="module")
def browser():
    found = shutil.which("chromium") or shutil.which("google-chrome")
    assert found, "these tests need Chromium: apt-get install chromium"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=found, args=["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        )
        yield browser
        browser.close()


@pytest.fixture
def page(browser, request, tmp_path):
    """An empty page of a new visitor; what it shows in the end is kept."""
    context = browser.new_context(viewport={"width": 1500, "height": 900})
    context.set_default_timeout(1000 * WAIT_SECONDS)
    context.add_init_script(CLOSED)
    page = context.new_page()
    yield page
    folder = Path(os.environ.get("STATELAB_SCREENSHOTS") or tmp_path)
    page.screenshot(path=folder / f"{request.node.name.removeprefix('test_')}.png", full_page=True)
    context.close()


@pytest.fixture(autouse=True, scope="module")
def patience():
    expect.set_options(timeout=1000 * WAIT_SECONDS)
    yield
    expect.set_options(timeout=5000)


def see(page, address):
    page.goto(address, wait_until="domcontentloaded")


def test_a_study_unfolds_to_its_trials_with_columns(page, pages):
    see(page, pages["default"])
    expect(page.get_by_text("small-grid", exact=True)).to_be_visible()
    for column in ("val/loss", "val/accuracy", "optim.lr", "seed", "memory_bytes"):
        header = page.get_by_role("columnheader", name=column, exact=True)
        expect(header.first).to_be_visible()
    page.locator(".ag-row button").first.click()
    for pair in ("gla+plain", "gla+ccq", "gdelt+plain", "gdeltan+ccq"):
        for seed in SEEDS:
            link = page.get_by_role("link", name=f"{pair} s{seed}", exact=True)
            expect(link).to_be_visible()
            assert not link.evaluate(IS_CUT)


def test_the_best_runs_come_first(page, pages):
    see(page, pages["best first"])
    expect(page.get_by_text("delta+plain s0", exact=True)).to_be_visible()
    expect(page.get_by_text("small-grid", exact=True)).to_have_count(0)
    links = page.locator("a[href*='/runs/']").all_inner_texts()
    shown = [each for each in links if "+" in each]
    assert (shown[0], shown[-1]) == ("gdeltan+ccq s1", "delta+plain s0")


def test_the_curves_of_a_study(page, pages):
    see(page, pages["curves of small-grid"])
    for title in ("train/loss", "val/loss", "val/accuracy"):
        expect(page.get_by_text(title, exact=True).first).to_be_visible()
    expect(page.locator(".js-plotly-plot .main-svg").first).to_be_visible()
    expect(page.locator(".js-plotly-plot .scatterlayer .trace").nth(7)).to_be_attached()
    expect(page.get_by_text("optim/lr", exact=True)).to_have_count(0)
    expect(page.get_by_text("delta+plain s0", exact=True)).to_have_count(0)


def test_four_runs_side_by_side_with_their_chart(page, pages, runs):
    experiment = re.search(r"/experiments/(\d+)/", pages["default"])[1]
    see(page, comparison(pages["root"], [experiment], runs[2][:4]))
    expect(page.get_by_text("Comparing 4 Runs").first).to_be_visible()
    expect(page.locator(".js-plotly-plot .main-svg").first).to_be_visible()
    for name in ("gla+plain s0", "gla+plain s1", "gla+ccq s0", "gla+ccq s1"):
        expect(page.get_by_text(name, exact=True).first).to_be_visible()


@pytest.fixture(scope="module")
def compared(runs, pages):
    """What `statelab compare` prints: addresses by what they show, on the server that is up."""
    command = ["compare", "study=small-grid", "metric=val/accuracy", *runs[0], "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "statelab", *command], check=True, capture_output=True, text=True
    )
    usual = "http://{}:{}".format(*USUAL_ADDRESS)
    found = json.loads(done.stdout)["pages"]
    return {name: each.replace(usual, pages["root"]) for name, each in found.items()}


def test_the_pages_of_a_comparison_sort_draw_and_put_side_by_side(page, compared):
    see(page, compared["best first"])
    expect(page.get_by_text("val/accuracy", exact=True).first).to_be_visible()
    expect(page.get_by_text("gdeltan+ccq s1", exact=True).first).to_be_visible()
    expect(page.get_by_text("delta+plain s0", exact=True)).to_have_count(0)
    see(page, compared["curves"])
    expect(page.locator(".js-plotly-plot .main-svg").first).to_be_visible()
    see(page, compared["side by side"])
    expect(page.get_by_text("Comparing 8 Runs").first).to_be_visible()
    see(page, compared["this comparison"])
    expect(page.get_by_text("compare val/accuracy by write, read").first).to_be_visible()


def test_a_run_is_described_by_its_equations(page, pages, runs):
    experiment = re.search(r"/experiments/(\d+)/", pages["default"])[1]
    see(page, run_page(pages["root"], experiment, runs[2][2]))
    expect(page.get_by_text("Sₜ = diag(exp gₜ) Sₜ₋₁ + kₜ vₜᵀ").first).to_be_visible()
    expect(page.get_by_text("oₜ = Sₜᵀ lift(qₜ − λₜ Σₜ qₜ)").first).to_be_visible()
    expect(page.get_by_text("optim.lr", exact=True).first).to_be_visible()


def test_the_page_of_a_study_lists_its_trials(page, pages, runs):
    experiment = re.search(r"/experiments/(\d+)/", pages["default"])[1]
    see(page, run_page(pages["root"], experiment, runs[1]))
    for seed in SEEDS:
        expect(page.get_by_text(f"gla+ccq s{seed}", exact=True).first).to_be_visible()


def test_the_page_of_a_comparison_draws_its_figures_without_a_network(page, runs, tmp_path):
    where = [*runs[0], f"out={tmp_path}", "tracking.enabled=false"]
    with pytest.raises(SystemExit) as ended:
        main(["compare", "study=small-grid", "metric=val/accuracy", *where])
    assert ended.value.code == 0
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    address = (tmp_path / "compare.html").as_uri()
    see(page, address)
    figures = page.locator(".plotly-graph-div")
    assert figures.count() >= 2
    for index in range(figures.count()):
        expect(figures.nth(index).locator(".main-svg").first).to_be_visible()
    assert page.locator("tbody tr").count() == 4
    assert asked == [address]
