# `make demo`, `make test`, `make bench` and `make check` each create .venv from this project's files first.
# On a machine with a GPU: `make test EXTRAS=gpu,demo,dev,docs`.

SHELL := /bin/bash
EXTRAS ?= cpu,demo,dev,docs,gpu-target
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Models for the slow tests. keras-hub asks for tensorflow-text, and that for the whole of TensorFlow over tensorflow-cpu; basic-pitch, of which
# only the SavedModel is read, asks for an old TensorFlow. So they come without what they ask for, but for these two, which keras-hub imports.
ALONE := keras-hub tokenizers regex basic-pitch
# Each worker imports TensorFlow and runs whole files, since fixtures are made per file.
PARALLEL := -n auto --maxprocesses 4 --dist loadfile

# The first Python from 3.11 to 3.13 that can make an environment; TensorFlow has no wheels for others.
find_python = for python in $(PYTHON) python3.11 python3.12 python3.13 python3 python; do \
	if "$$python" -c 'import ensurepip, sys, venv; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' >/dev/null 2>&1; \
	then echo "$$python"; break; fi; done

.PHONY: help demo test test-random test-slow test-thorough bench check site format clean

help:
	@echo "make demo       a U-Net trained in half its memory: measured, proved equal, report written to report.html"
	@echo "make test       the tests, without those marked slow"
	@echo "make test-random  the tests in an order drawn each time"
	@echo "make test-slow  the tests marked slow"
	@echo "make test-thorough  long tests that CI does without, and more random programs"
	@echo "make bench      the benchmark tables of docs/benchmarks.md"
	@echo "make check      ruff, formatting, pyright"
	@echo "make site       the documentation site, in build/site; a broken link or a missing page is an error"
	@echo "make format     rewrite the code the way 'make check' wants it"
	@echo "make clean      remove the environment and the caches"

$(STAMP): pyproject.toml constraints.txt
	@python=$$($(find_python)); \
	if [ -z "$$python" ]; then \
		echo "error: no Python 3.11, 3.12 or 3.13 with the modules venv and ensurepip was found." >&2; \
		echo "       Install one (Debian: apt-get install python3 python3-venv), or name it: make PYTHON=/path/to/python3.11" >&2; \
		exit 1; \
	fi; \
	if ! $(BIN)/python -c 'import pip' >/dev/null 2>&1; then echo "creating $(VENV) with $$python"; "$$python" -m venv --clear $(VENV); fi
	@echo "installing graphwright[$(EXTRAS)] into $(VENV)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[$(EXTRAS)]"
	@$(if $(findstring dev,$(EXTRAS)),$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --no-deps $(ALONE))
	@touch $@

demo: $(STAMP)
	$(BIN)/graphwright demo --html report.html

test: $(STAMP)
	$(BIN)/python -m pytest $(PARALLEL)

# The first lines name the seed; `pytest -p randomly --randomly-seed=N` repeats that order.
test-random: $(STAMP)
	$(BIN)/python -m pytest $(PARALLEL) -p randomly

# In two parts, since TensorFlow's allocator hands nothing back before a process ends.
test-slow: $(STAMP)
	@failed=0; for part in tests/commands "--ignore tests/commands"; do \
		$(BIN)/python -m pytest $(PARALLEL) -m "slow and not thorough" $$part || failed=1; \
	done; exit $$failed

# What takes long and that the other tests tell of, too: not in CI.
test-thorough: $(STAMP)
	$(BIN)/python -m pytest $(PARALLEL) -m thorough

bench: $(STAMP)
	$(BIN)/python -m bench.planner
	$(BIN)/python -m bench.memory

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

# Pages open from disk: build/site/index.html. (The theme's own notice is not about this site.)
site: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis
	find src tests bench examples -name __pycache__ -type d -prune -exec rm -rf {} +
