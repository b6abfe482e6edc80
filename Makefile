# Horarium's commands. `make help` lists them.
#
#   make serve                      everything from nothing to a running service
#   make test PYTEST_ARGS="-k cron" everything from nothing to a test report
#
# Needs make and Python >= 3.11, no more; uv is used where it is found. A stamp in the virtual
# environment remembers what was installed, so that a second run installs nothing.

PYTHON ?= python3
VENV ?= .venv
STATE ?= .horarium
PYTEST_ARGS ?=
# Processes that share the tests, a file of them each at a time; 0 runs them in one, as a debugger wants it.
PROCESSES ?= auto
SERVE_ARGS ?=
LOCK_ARGS ?=
SECONDS ?= 60
CHAOS_SECONDS ?= 300
# Every program of bench/ but the soak, which has a target of its own; `_name.py` is a helper.
BENCH ?= $(filter-out soak,$(patsubst bench/%.py,%,$(wildcard bench/[a-z]*.py)))

BIN := $(VENV)/bin
RUN_STAMP := $(VENV)/.installed-run
DEV_STAMP := $(VENV)/.installed-dev
PROJECT := pyproject.toml src/horarium/__init__.py

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help install dev serve test lint types format bench soak chaos nightly lock clean

help: ## list the commands
	@sed -n 's/^\([a-z]*\):.*## /  make \1\t/p' Makefile | expand -t 18

install: $(RUN_STAMP) ## the virtual environment with what it takes to run

dev: $(DEV_STAMP) ## the virtual environment with what it takes to develop

serve: $(RUN_STAMP) ## run Horarium on an SQLite file with the triggers of examples/
	@mkdir -p $(STATE)
	exec $(BIN)/horarium serve --db sqlite:///$(STATE)/horarium.db --apply examples/ $(SERVE_ARGS)

test: $(DEV_STAMP) ## run the whole test suite (PYTEST_ARGS passes through)
	$(BIN)/python -m pytest --numprocesses $(PROCESSES) --dist loadfile $(PYTEST_ARGS)

lint: $(DEV_STAMP) ## check style and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(DEV_STAMP) ## check types, strictly
	$(BIN)/mypy

format: $(DEV_STAMP) ## mend style and format
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

bench: $(DEV_STAMP) ## print speed and memory, with ratios (BENCH="schedules store" for some)
	@set -e; for name in $(BENCH); do echo "== bench/$$name.py"; $(BIN)/python -m bench.$$name; done

soak: $(DEV_STAMP) ## simulate seeds for SECONDS, then run a busy server as long, and check every slot
	$(BIN)/python -m tests.simulation --seconds $(SECONDS)
	$(BIN)/python -m bench.soak --seconds $(SECONDS)

chaos: $(DEV_STAMP) ## harm real processes and their database for CHAOS_SECONDS and check every slot
	HORARIUM_CHAOS_SECONDS=$(CHAOS_SECONDS) $(BIN)/python -m pytest tests/chaos -s $(PYTEST_ARGS)

nightly: $(DEV_STAMP) ## the long forms: oracles in full, two minutes of fuzz a parser
	HORARIUM_FULL=1 HORARIUM_FUZZ_SECONDS=40 $(BIN)/python -m pytest tests/unit tests/property $(PYTEST_ARGS)

lock: $(BIN)/python ## choose new versions (LOCK_ARGS="--upgrade-package NAME" for one): writes requirements/
	$(BIN)/python -m pip install --quiet --require-hashes -r requirements/lock.txt
	UV=$(BIN)/uv requirements/lock $(LOCK_ARGS)

clean: ## remove what make made (the database too)
	rm -rf $(VENV) $(STATE) dist build .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find src tests bench docs -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

# The virtual environment. `requirements/install` says how; the stamp is touched only when all went well.

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	    echo "Horarium needs Python 3.11 or newer, but '$(PYTHON)' is $$($(PYTHON) --version 2>&1 | head -n 1)."; \
	    echo "Name a newer one: make PYTHON=python3.12 ..."; exit 1; } >&2
	$(PYTHON) -m venv $(VENV)

$(RUN_STAMP): requirements/run.txt requirements/install $(PROJECT) | $(BIN)/python
	@requirements/install $(VENV) requirements/run.txt
	@touch $@

$(DEV_STAMP): requirements/dev.txt requirements/install $(PROJECT) | $(BIN)/python
	@requirements/install $(VENV) requirements/dev.txt
	@touch $@ $(RUN_STAMP)
