# make demo | demo-mi300x | test | test-nightly | ui: each sets up everything it needs in .venv and says what it does. Running one again is safe.

PYTHON ?= python3
# Tests that run beside one another: one more than two cores have room for, since some wait for processes and clocks.
WORKERS ?= 3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
TESTS := $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal
# Of these rooms 95 % of the lines must be run by their own tests. Counting takes a quarter of the time again: at night.
COVERED := lake formats analysis
# Each night draws other kills, inputs and secrets; name an earlier one to have them again: make test-nightly SEED=20260101
SEED ?= $(shell date +%Y%m%d)
NIGHT := $(VENV)/nightly

# Hundreds of processes that tests start import the package: compiled once, not by each, whatever the caller's shell says.
unexport PYTHONDONTWRITEBYTECODE

NIGHTLY := nightly-tests nightly-kills nightly-faults nightly-fuzzing nightly-hostile
.PHONY: demo demo-mi300x test test-nightly $(NIGHTLY) ui check clean

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
		$(BIN)/python -m benchmarks.performance.generate_kineto "$(CAPTURE)"; }
	@echo "--- Taking the capture in and running all stages"
	$(BIN)/aaco ingest "$(CAPTURE)"
	$(BIN)/aaco show latest

test: check
	@echo "--- Testing"
	$(TESTS) --hypothesis-profile=ci $(PYTEST_ARGUMENTS)

# What is too long for every change. One that fails does not keep the others from running with `make -k test-nightly`.
test-nightly: check $(NIGHTLY)

nightly-tests: $(READY)
	@echo "--- Testing the rooms that their own tests must cover, with examples drawn anew"
	$(TESTS) -m '' --hypothesis-profile=nightly $(COVERED:%=tests/%) $(COVERED:%=--cov=aaco_pipeline.%) \
		--cov-report=term:skip-covered --cov-fail-under=95 $(PYTEST_ARGUMENTS)
	@echo "--- Testing the rest, and every command that a document shows"
	$(TESTS) -m '' --hypothesis-profile=nightly tests $(COVERED:%=--ignore=tests/%) $(PYTEST_ARGUMENTS)

# benchmarks/reliability/README.md has the question of each. Results of another seed are not resumed.
nightly-kills: $(READY)
	@echo "--- Killing writers, commands and Dagster's runs (seed $(SEED))"
	@rm -rf $(NIGHT)/kills && mkdir -p $(NIGHT)/kills
	$(BIN)/python -m benchmarks.reliability.kill_publishing --instants 100 --seed $(SEED)
	$(BIN)/python -m benchmarks.reliability.kill_compaction --kills 20 --seed $(SEED) \
		--folder $(NIGHT)/kills/compaction --results $(NIGHT)/kills/compaction.jsonl
	$(BIN)/python -m benchmarks.reliability.kill_recordings --kills 30 --seed $(SEED)
	$(BIN)/python -m benchmarks.reliability.kill_runs --kills 24 --seed $(SEED) \
		--folder $(NIGHT)/kills/runs --results $(NIGHT)/kills/runs.jsonl
	$(BIN)/python -m benchmarks.reliability.kill_campaigns --kills 6 --seed $(SEED) \
		--folder $(NIGHT)/kills/campaigns --results $(NIGHT)/kills/campaigns.jsonl
	$(BIN)/python -m benchmarks.reliability.kill_optimizations --kills 6 --seed $(SEED) \
		--folder $(NIGHT)/kills/optimizations --results $(NIGHT)/kills/optimizations.jsonl
	$(BIN)/python -m benchmarks.reliability.readers_beside_writers --publications 50
	$(BIN)/python -m benchmarks.reliability.lost_manifests --sessions 10

nightly-faults: $(READY)
	@echo "--- Failing each call by which the lake is changed (seed $(SEED))"
	$(BIN)/python -m benchmarks.reliability.fault_injection --seed $(SEED)

nightly-fuzzing: $(READY)
	@echo "--- Damaging captures of every reader (inputs from number $(SEED)000 on)"
	$(BIN)/python -m benchmarks.reliability.fuzz_readers --first $(SEED)000 --inputs 500

nightly-hostile: $(READY)
	@echo "--- Taking in captures made to do harm, and captures with secrets (seed $(SEED))"
	$(BIN)/python -m benchmarks.reliability.hostile_captures
	$(BIN)/python -m benchmarks.reliability.hostile_paths --races 1
	$(BIN)/python -m benchmarks.reliability.planted_secrets --seed $(SEED)

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
