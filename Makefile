# What users and developers type; `make` alone lists it.

SHELL := /bin/bash
VENV ?= .venv
BIN := $(VENV)/bin

# Each stamp is named after what it stands for: other requirements, another stamp, another set-up.
CPU_FILES := requirements/cpu.txt requirements/cpu-nodeps.txt pyproject.toml scripts/setup.sh
DEV_FILES := $(CPU_FILES) requirements/dev.txt
hash = $(shell (echo $(CURDIR); cat $(1)) | sha256sum | cut -c 1-16)
CPU_STAMP := $(VENV)/.rayscend-cpu-$(call hash,$(CPU_FILES))
DEV_STAMP := $(VENV)/.rayscend-dev-$(call hash,$(DEV_FILES))
BENCH_FILES := $(DEV_FILES) requirements/bench.txt
BENCH_STAMP := $(VENV)/.rayscend-bench-$(call hash,$(BENCH_FILES))

# In a terminal, Ctrl-C is for the server alone, as a job of its own: it ends in good order with
# code 0, where make would report an interrupt.
AS_JOB := if [ -t 0 ]; then set -m; fi

.PHONY: help venv venv-dev serve test test-fast lint format bench bench-clients clean

help: ## list these targets
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 20

venv: $(CPU_STAMP) ## install what serving needs into .venv (VENV=folder for another)

venv-dev: $(DEV_STAMP) ## the same, and what the tests need

$(CPU_STAMP):
	@scripts/setup.sh $(VENV) $@ serve

$(DEV_STAMP): $(CPU_STAMP)
	@scripts/setup.sh $(VENV) $@ dev

$(BENCH_STAMP): $(DEV_STAMP)
	@scripts/setup.sh $(VENV) $@ bench

serve: $(CPU_STAMP) ## serve the default model; ARGS="model=… num_replicas=2" or CONFIG=deploy.yaml
ifdef CONFIG
	@$(AS_JOB); $(BIN)/python -m serve_apps.cli plan --check $(CONFIG) && $(BIN)/serve run $(CONFIG); exit $$?
else
	@$(AS_JOB); $(BIN)/serve run app:deploy $(ARGS); exit $$?
endif

test: test-fast ## every test, those with a real engine too
	$(BIN)/pytest tests/engines $(wildcard tests/multinode)

test-fast: lint ## lint, unit tests, and tests on a local Ray with the simulated engine
	$(BIN)/pytest tests/unit
	$(BIN)/pytest tests/cluster

lint: $(DEV_STAMP) ## ruff and mypy
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: $(DEV_STAMP) ## let ruff format and mend
	$(BIN)/ruff check --fix-only
	$(BIN)/ruff format

bench: $(BENCH_STAMP) ## measure, and rewrite docs/measurements.md; ARGS=--quick only prints (a minute each)
	$(BIN)/python -m scripts.benchmark.overhead $(ARGS)
	$(BIN)/python -m scripts.benchmark.compare_serve_llm $(ARGS)
	$(BIN)/python -m scripts.benchmark.picking $(ARGS)

bench-clients: $(BENCH_STAMP) ## the same with load tools of others; ARGS="--guidellm PATH"
	$(BIN)/python -m scripts.benchmark.clients $(ARGS)

clean: ## remove caches and build output (.venv stays)
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache
	find . -path ./$(VENV) -prune -o -name __pycache__ -type d -exec rm -rf {} +
