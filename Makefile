# make demo | demo-mi300x | test | ui: each sets up everything it needs in .venv and says what it does. Running one again is safe.

PYTHON ?= python3
# Tests that run beside one another; more than the machine has cores makes those that measure wait.
WORKERS ?= 2
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
TESTS := $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal
# Counting lines takes a quarter of the time again: only where it is asked for, and by these rooms' own tests alone.
COVERED := lake formats analysis

# Hundreds of processes that tests start import the package: compiled once, not by each, whatever the caller's shell says.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo demo-mi300x test ui check clean

demo: $(READY)
	@echo "--- What this machine reaches at best, quickly (aaco calibrate takes its time)"
	$(BIN)/aaco calibrate --threads 1 --seconds 6
	@echo "--- Measuring squeezenet on ONNX Runtime's CPU provider, then running all stages"
	$(BIN)/aaco run --model squeezenet
	@echo "--- The lake now holds"
	$(BIN)/aaco ls
	@echo "--- Next: 'make ui' opens Dagster on the same lake; '$(BIN)/aaco --help' lists what else there is"

# A capture of yours: make demo-mi300x CAPTURE=trace.json.gz
CAPTURE := $(VENV)/generated_mi300x.json.gz
demo-mi300x: $(READY)
	@[ "$(CAPTURE)" != "$(VENV)/generated_mi300x.json.gz" ] || { \
		echo "--- No capture given: a generated trace stands in; nothing in it was measured"; \
		$(BIN)/python benchmarks/generate_kineto.py "$(CAPTURE)"; }
	@echo "--- Taking the capture in and running all stages"
	$(BIN)/aaco ingest "$(CAPTURE)"
	$(BIN)/aaco show latest

test: check
	@echo "--- Testing the rooms that their own tests must cover"
	$(TESTS) $(COVERED:%=tests/%) $(COVERED:%=--cov=aaco_pipeline.%) \
		--cov-report=term:skip-covered --cov-fail-under=95 $(PYTEST_ARGUMENTS)
	@echo "--- Testing the rest"
	$(TESTS) tests $(COVERED:%=--ignore=tests/%) $(PYTEST_ARGUMENTS)

check: $(READY)
	@echo "--- Checking style and types"
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

ui: $(READY)
	@echo "--- Opening Dagster on the same lake and instance"
	$(BIN)/aaco ui

$(READY): pyproject.toml constraints.txt
	@echo "--- Setting up $(VENV) with the versions pinned in constraints.txt (about a minute)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "$(PYTHON) is older than 3.11; name a newer one: make PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { echo "No venv module: apt-get install python3-venv, then again"; exit 1; }
	PIP_CONSTRAINT=constraints.txt $(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage
