# The one place for commands; CI calls these.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test test-slow test-versions lint types check bench coverage coverage-some clean help

help:
	@echo "make demo   install, then compare initializations on real images (about 6 minutes, 2 cores, after installation)"
	@echo "make test   install, then run the tests"
	@echo "make coverage  which architectures of timm and transformers are handled, each kind of attention probed once"
	@echo "make coverage-some test-slow test-versions lint types bench clean"

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
	status=0; for library in timm transformers; do \
	OMP_NUM_THREADS=1 $(BIN)/kappaone coverage $$library --probe --summary --jobs 2 --markdown docs/coverage-$$library.md \
	|| status=1; done; exit $$status

# A part of it that takes minutes: the paper's families and one model of each way of storing.
coverage-some: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/kappaone coverage timm --probe --jobs 2 vit_tiny_patch16_224 deit_tiny_patch16_224 \
	swin_tiny_patch4_window7_224 swinv2_tiny_window8_256 xcit_nano_12_p16_224 davit_tiny cait_xxs24_224 \
	beit_base_patch16_224 eva02_tiny_patch14_224 levit_128s pvt_v2_b0 hiera_tiny_224 tnt_s_legacy_patch16_224
	OMP_NUM_THREADS=1 $(BIN)/kappaone coverage transformers --probe --jobs 2 bert gpt2 llama qwen3 qwen3_next gemma2 \
	deepseek_v3 falcon bloom codegen t5 nystromformer swin swinv2 vit clip whisper albert deberta-v2 modernbert gpt_oss

# The layouts once more, under the oldest releases of timm and transformers that we support.
test-versions: $(STAMP)
	.ci/versions

clean:
	rm -rf $(VENV) .venv-versions build dist src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
