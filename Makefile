.PHONY: install quickstart test test-all check format golden
PYTHON ?= python3
BIN := .venv/bin
export HF_HUB_OFFLINE := 1

install: .venv/.installed

.venv/.installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt torch numpy
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[test]'
	touch $@

quickstart: install
	examples/quickstart.sh

test: install
	$(BIN)/python -m pytest

test-all: install
	$(BIN)/python -m pytest -m "not gpu"

check: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest

format: install
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

golden: install
	$(BIN)/python -m tests.golden
