# headrace: everything a person or a machine runs, by name. `make help` lists it.

VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
# The newest Python from 3.11 on; name another with `make PYTHON=/path/to/python3.12 .venv`.
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
            $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { command -v $$p; break; }; done)

DEMO_DIR ?= build/demo
PYTEST   := $(BIN)/python -m pytest

.DEFAULT_GOAL := help
.PHONY: help .venv system-packages demo check test test-long prove bench lock clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z.-]+:.*## /{printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.venv: $(STAMP) ## the environment: all extras and console scripts, made once and reused

# uv trusts whom the system trusts (a company's proxy, say), where the system keeps certificates at all.
ifneq ($(wildcard /etc/ssl/certs/ca-certificates.crt /etc/pki/tls/certs/ca-bundle.crt /etc/ssl/cert.pem),)
export UV_SYSTEM_CERTS ?= true
endif

# Bytes of every distribution are pinned by hash; uv itself comes first, from its own pinned file.
$(STAMP): requirements.lock requirements-bootstrap.lock pyproject.toml
	@test -n "$(PYTHON)" || { echo "headrace needs Python 3.11 or newer on the path (or: make PYTHON=/path/to/python3)" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); tests/support/system_packages.sh python3-venv && $(PYTHON) -m venv $(VENV); } \
	  || { rm -rf $(VENV); echo "could not make $(VENV): install Python's venv module (Debian: apt-get install python3-venv)" >&2; exit 1; }
	@echo "installing headrace and its locked dependencies into $(VENV) (first time: one to three minutes)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-bootstrap.lock
	@$(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python --require-hashes -r requirements.lock
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
	@$(BIN)/python -m compileall -q broker platform transforms connectors
	@touch $@

system-packages: ## what the tests use from Debian (PostgreSQL, kcat, iproute2), where apt-get and root are there
	@tests/support/system_packages.sh postgresql kcat iproute2

demo: $(STAMP) ## the main job: a real database through the broker into Delta tables (DEMO_DIR=build/demo)
	@$(BIN)/python configs/demo/run_demo.py --dir "$(DEMO_DIR)"

check: $(STAMP) build ## format, lint, types, import rules
	@$(BIN)/ruff format --check --quiet . && $(BIN)/ruff check --quiet .
	@$(BIN)/mypy --no-error-summary
	@$(BIN)/lint-imports --no-logo > build/import-rules.txt 2>&1 || { cat build/import-rules.txt; exit 1; }
	@echo "check: formatting, lint, types and import rules hold"

test: $(STAMP) system-packages check ## the tests, but for those of test-long and prove (about 13 minutes)
	@$(PYTEST) -m "not jvm and not slow and not prove"

test-long: $(STAMP) system-packages build ## what takes longer: the JVM peers (with mvn on the path) and kill loops
	@$(PYTEST) -m "(jvm or slow) and not prove"

prove: $(STAMP) system-packages build ## the runs of hours
	@$(PYTEST) -m "prove"

bench: $(STAMP) build ## measure, beside Apache Kafka where mvn is on the path; results in tests/benchmarks/results/
	@$(BIN)/python tests/benchmarks/run.py

lock: ## resolve requirements.lock anew from pyproject.toml
	@$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-header --no-emit-find-links --all-extras --group dev \
	  --python-version 3.11 pyproject.toml --output-file requirements.lock
	@echo "uv==$$($(BIN)/uv --version | cut -d' ' -f2)" | $(BIN)/uv pip compile --quiet --universal --generate-hashes --no-header \
	  --no-emit-find-links --python-version 3.11 - --output-file requirements-bootstrap.lock

build:
	@mkdir -p build

clean: ## remove what make made, except the environment
	rm -rf build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
