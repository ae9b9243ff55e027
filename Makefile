# Everything happens in .venv: nothing is activated, nothing outside this folder is touched.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: help setup demo test test-fast test-gpu lint format clean

help:
	@echo "make demo       train every pair on text and on recall, and compare (6 minutes)"
	@echo "make test       all tests that need no GPU"
	@echo "make test-fast  those that take seconds"
	@echo "make test-gpu   the kernels on a CUDA device"
	@echo "make lint       ruff, mypy, and the direction of imports"
	@echo "make setup      the virtual environment alone, in .venv"

setup: .venv/installed

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --upgrade pip
	$(BIN)/python -m pip install --quiet -c constraints.txt -e . --group dev
	touch $@

demo: setup
	$(BIN)/python -m statelab.demo

test: setup
	$(BIN)/python -m pytest -n auto --dist loadgroup -m "not gpu"

test-fast: setup
	$(BIN)/python -m pytest -n auto -m "not gpu and not slow"

test-gpu: setup
	$(BIN)/python -m pytest -m gpu tests/kernels -rA

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

clean:
	rm -rf .venv dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
