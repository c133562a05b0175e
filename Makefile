# `make demo` and `make test` do all of their set-up on a fresh machine; second runs reuse it.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready-dev
# Two more for what the engine tests start: a trainer's (torch, transformers, TRL) and vLLM's own.
RL := .venv-rl
RL_READY := $(RL)/.ready-rl
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export RAY_USAGE_STATS_ENABLED := 0

.PHONY: demo test engines test-engines check bench fmt types lint fast sim nightly browser clean

demo: $(READY)
	@$(BIN)/gangflow demo

# Everything but the `slow` tests and those of real engines; the browser is fetched from Debian's packages where that is possible.
test: $(READY) browser
	@$(BIN)/python -m pytest -m "not slow" -q --ignore=tests/engines

# Real vLLM servers and a torch trainer on this CPU: 5 GB, five to ten minutes, once.
engines: $(RL_READY)
	@PYTHON=$(PYTHON) bash integrations/vllm/setup_cpu.sh .venv-vllm

test-engines: engines
	@$(RL)/bin/python -m pytest tests/engines -m "not slow" -q

check: $(READY) fmt lint types fast sim

fmt: $(READY)
	@$(BIN)/ruff format --check gangflow recipes integrations tests

lint: $(READY)
	@$(BIN)/ruff check gangflow recipes integrations tests
	@$(BIN)/lint-imports --no-cache

types: $(READY)
	@$(BIN)/mypy

# About three minutes, on two cores at once; whole runs with real processes (tests/integration, recipes end to end) are in `make test`.
fast: $(READY)
	@$(BIN)/python -m pytest -n 2 -m "not slow and not ray and not browser" -q tests/unit tests/property tests/architecture tests/conformance tests/golden tests/recipes --ignore=tests/recipes/grpo/test_end_to_end.py

sim: $(READY)
	@SEEDS=200 $(BIN)/python -m pytest -q tests/property/test_machine_stateful.py

nightly: $(READY) browser
	@SEEDS=2000 FUZZ_EXAMPLES=300 $(BIN)/python -m pytest -q --ignore=tests/engines

bench: $(READY)
	@$(BIN)/python tests/benchmarks/run_all.py

browser:
	@if ! command -v chromium >/dev/null && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "installing Debian's chromium for the dashboard test"; \
	  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium; } >/dev/null 2>&1 \
	    || echo "chromium cannot be installed here: the dashboard's browser test will be skipped"; \
	fi

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "gangflow needs Python 3.11 or newer; this is $$($(PYTHON) -V). Set PYTHON=…"; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { echo "Debian keeps venv in a package of its own: apt-get install python3-venv"; exit 1; }
	@echo "setting up $(VENV) (two to three minutes, once)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --upgrade pip
	@$(BIN)/python -m pip install --quiet -e '.[dev]'
	@touch $@

# Without its stamp it was left half-made, and is made anew; with an old one it is completed.
$(RL_READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "gangflow needs Python 3.11 or newer; this is $$($(PYTHON) -V). Set PYTHON=…"; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { echo "Debian keeps venv in a package of its own: apt-get install python3-venv"; exit 1; }
	@echo "setting up $(RL) (a few minutes, once)"
	@[ -f $@ ] || $(PYTHON) -m venv --clear $(RL)
	@$(RL)/bin/python -m pip install --quiet --upgrade pip
	@$(RL)/bin/python -m pip install --quiet -e '.[rl,plot,test]'
	@touch $@

clean:
	rm -rf $(VENV) $(RL) .venv-vllm out dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
