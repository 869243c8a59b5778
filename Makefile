# The one place for commands; CI calls these.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test test-slow lint types check bench coverage clean help

help:
	@echo "make demo   install, then compare initializations on real images (about 6 minutes, 2 cores, after installation)"
	@echo "make test   install, then run the tests"
	@echo "make coverage  which architectures of timm and transformers are handled, each kind of attention probed once"
	@echo "make test-slow lint types bench clean"

$(STAMP): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	touch $(STAMP)

demo: $(STAMP)
	$(BIN)/kappaone compare images

test: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 --dist worksteal -m "not slow"

test-slow: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -m slow

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: $(STAMP)
	$(BIN)/mypy

check: lint types test

bench: $(STAMP)
	$(BIN)/python benchmarks/init.py
	$(BIN)/python benchmarks/jacobian.py

coverage: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/kappaone coverage timm --probe --summary --jobs 2 --markdown docs/coverage-timm.md
	OMP_NUM_THREADS=1 $(BIN)/kappaone coverage transformers --probe --summary --jobs 2 --markdown docs/coverage-transformers.md

clean:
	rm -rf $(VENV) build dist src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
