# Every target works alone on a fresh checkout: it creates .venv and installs what it needs, once.
#   make test PYTHON=/path/to/python3.12     another interpreter
# On Linux PyPI's torch is a CUDA build of several GB; for the CPU build of the same version:
#   PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu make test

VENV := .venv
BIN := $(VENV)/bin
WORKERS ?= 2
PYTHON ?=
CANDIDATES := $(or $(PYTHON),python3.11 python3.12 python3.13 python3.14 python3)
DEMO ?= study/demo
DEMO_OUT := runs/demo

.DELETE_ON_ERROR:
.PHONY: help demo test test-slow test-device lint format types bench wheel docs reference clean

help:
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

demo: $(VENV)/.installed-base ## a small study of interventions and its report, into runs/demo
	rm -rf $(DEMO_OUT)
	$(BIN)/rlplast study $(DEMO) --out $(DEMO_OUT)
	$(BIN)/rlplast report $(DEMO_OUT)

test: $(VENV)/.installed-dev ## all tests that are neither slow nor need a GPU
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

test-slow: $(VENV)/.installed-dev test-device ## the slow tests, and those on a pretended device
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "slow and not gpu"

test-device: $(VENV)/.installed-dev ## the tests on a CUDA device, or on a pretended one, which needs g++
	$(BIN)/python -m pytest -n $(WORKERS) -p tests.pretend.plugin -m "" tests/pretend

lint: $(VENV)/.installed-dev ## ruff: rules and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(VENV)/.installed-dev ## let ruff fix and format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(VENV)/.installed-dev ## pyright
	$(BIN)/pyright

bench: $(VENV)/.installed-bench ## speed measurements
	$(BIN)/python -m benchmarks

wheel: $(VENV)/.installed-dev ## a wheel and an sdist, into dist/
	$(BIN)/python -m hatchling build

docs: $(VENV)/.installed-docs ## the documentation site, into site/; a warning is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

reference: $(VENV)/.installed-docs ## write into docs/ what its pages take from the code
	$(BIN)/python -m docs.generate

clean: ## remove .venv, caches and the demo run
	rm -rf $(VENV) $(DEMO_OUT) build dist site .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.installed-base: pyproject.toml constraints.txt | $(BIN)/pip
	$(BIN)/python -m pip install -c constraints.txt -e .
	@touch $@

# Extras contain the base, so their stamp renews that of the base.
$(VENV)/.installed-%: pyproject.toml constraints.txt | $(BIN)/pip
	$(BIN)/python -m pip install -c constraints.txt -e ".[$*]"
	@touch $@ $(VENV)/.installed-base

$(BIN)/pip:
	@for python in $(CANDIDATES); do \
		if "$$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' \
			2>/dev/null; then \
			echo "creating $(VENV) with $$python"; \
			exec "$$python" -m venv $(VENV); \
		fi; \
	done; \
	echo "error: none of '$(CANDIDATES)' is a Python >= 3.11 with the venv module;" \
		"install one or name it: make PYTHON=/path/to/python3.11" >&2; \
	exit 1
