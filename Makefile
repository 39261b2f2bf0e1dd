# Needs Python 3.11 or newer and JDK 17; everything else is fetched into .venv and the user's cache.
# `make` alone lists the targets. Each sets up what it needs first, once, and says what it does.

SHELL := /bin/bash
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
# Every process would compile the project anew: a tenth of a second for each of hundreds of workers.
unexport PYTHONDONTWRITEBYTECODE

VENV := .venv
TOOLS := $(VENV)/tools
RUN := $(VENV)/bin
READY := $(VENV)/.ready
ROOMS := agents tables outbox pipeline

# More arguments of pytest, or of the command.
ARGS ?=
# Processes that run tests: five keep two cores busy. Some tests alone (ARGS) run in one.
JOBS ?= $(if $(ARGS),1,5)
# Where the simulation and the fuzzing begin, and how much of it there is.
SEED ?=
SCHEDULES ?= 10000
BUDGET ?= 5000

# The first of these that runs and is new enough. Set PYTHON=... to choose another.
PYTHON ?= $(shell for each in python3.11 python3.12 python3.13 python3 python; do \
	$$each -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && echo $$each && break; done)
PYTEST = $(RUN)/python -P -m pytest -q
TESTS = $(PYTEST) --durations=10 $(if $(filter-out 1,$(JOBS)),--numprocesses=$(JOBS) --dist=loadfile --no-loadscope-reorder)

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1|\2/' | column -t -s '|'

.PHONY: venv
venv: $(READY) ## install holdfast and its tools into .venv (pinned by requirements.lock)

$(READY): requirements.lock pyproject.toml
	@tools/venv $(VENV) "$(PYTHON)"
	@touch $@

$(TOOLS)/.ready: tools/requirements.txt
	@"$(PYTHON)" -m venv --clear $(TOOLS)
	@.ci/install $(TOOLS) --requirement tools/requirements.txt
	@touch $@

.PHONY: demo
demo: $(READY) ## the whole of it on real parts in about two minutes (ARGS=--keep leaves it running; EMBEDDED=1 needs no JDK)
	@echo "== demo: broker, two workers, a fleet, a kill, queries$(if $(EMBEDDED),, Spark)"
	@$(RUN)/holdfast demo $(if $(EMBEDDED),--embedded) $(ARGS)

.PHONY: fast
fast: $(READY) ## the tests without broker, database, Spark or other processes that take no longer than a moment: while you work
	@echo "== fast"
	@TESTS_WITHOUT_PARTS=1 HOLDFAST_TEST_SCALE=0.2 $(TESTS) -m tier_fast $(ARGS)

.PHONY: test
test: $(READY) ## each promise on the embedded Kafka and SQLite, the main ones on Apache Kafka, PostgreSQL and Spark (ARGS='-k claims' for some)
	@echo "== test"
	@TESTS_EMBEDDED=1 HOLDFAST_TEST_SCALE=0.2 $(TESTS) -m tier_test $(ARGS)

.PHONY: test-all
test-all: $(READY) ## all brokers, databases, engines and programs that make test leaves, and random tests for longer
	@tools/browser || true
	@echo "== test-all"
	@HOLDFAST_TEST_SCALE=0.5 $(TESTS) -m "tier_all or tier_random" $(ARGS)

.PHONY: variants
variants: $(READY) ## further cases: other databases, engines, commands and kinds of faults; then the random tests, eight times as long (not with ARGS)
	@tools/browser || true
	@echo "== variants"
	@HOLDFAST_TEST_SCALE=1 $(TESTS) -m tier_variants $(ARGS)
ifeq ($(ARGS),)
	@echo "== random tests, eight times as long"
	@HOLDFAST_TEST_SCALE=4 $(TESTS) -m tier_random
endif

.PHONY: chaos
chaos: $(READY) ## the long runs: kills, freezes, rebalances under load on a real broker
	@echo "== chaos"
	@$(PYTEST) -m tier_chaos $(ARGS)

.PHONY: sim
sim: $(READY) ## fleets of members under faults (SEED=7 SCHEDULES=10000), then long random searches; a SEED alone is just its schedules
	@tools/simulate $(VENV) $(SCHEDULES) $(JOBS) "$(SEED)" $(ARGS)

.PHONY: fuzz
fuzz: $(READY) ## every decoder of bytes from outside against any bytes (SEED=7 BUDGET=20000 inputs for each)
	@echo "== fuzz"
	@HOLDFAST_FUZZ_BUDGET=$(BUDGET) HOLDFAST_FUZZ_SEED=$(or $(SEED),1) $(PYTEST) tests/fuzz $(ARGS)

.PHONY: bounds
bounds: $(READY) ## the tests without parts with the lowest and the newest packages that pyproject.toml allows
	@tools/bounds lowest "$(PYTHON)"
	@tools/bounds newest "$(PYTHON)"

.PHONY: check
check: $(READY) ## lint, format, types, the site of the documents, alert rules, known vulnerabilities
	@echo "== ruff check"
	@$(RUN)/ruff check .
	@echo "== ruff format"
	@$(RUN)/ruff format --check .
	@echo "== mypy --strict"
	@$(RUN)/mypy
	@echo "== site"
	@NO_MKDOCS_2_WARNING=1 tools/optional $(TOOLS)/.ready "not built: mkdocs cannot be installed here" $(TOOLS)/bin/mkdocs build --quiet --strict
	@echo "== alert rules"
	@if command -v promtool >/dev/null; then promtool test rules docs/alerts-test.yml; else echo "not tried: promtool is not installed (the tests parse the rules all the same)"; fi
	@echo "== known vulnerabilities"
	@tools/optional $(TOOLS)/.ready "not checked: pip-audit cannot be installed here" .ci/audit $(TOOLS)/bin/pip-audit

.PHONY: bench
bench: $(READY) ## benchmarks with their rivals, as ratios (takes long; wants a quiet machine)
	@PYTHONPATH=. tools/benchmarks $(VENV) $(ARGS)

.PHONY: lock
lock: $(READY) $(TOOLS)/.ready ## write requirements.lock anew, with hashes, from what .venv holds; and docs/LICENSES.md
	@tools/lock $(VENV) $(TOOLS)

.PHONY: docs
docs: $(TOOLS)/.ready ## the documentation as a site: built, and served until Ctrl-C (DOCS_PORT=8000)
	@NO_MKDOCS_2_WARNING=1 $(TOOLS)/bin/mkdocs serve --strict --dev-addr 127.0.0.1:$(or $(DOCS_PORT),8000)

.PHONY: release
release: $(READY) $(TOOLS)/.ready ## sdist, wheel and bill of materials in dist/, tried in empty environments (HOME_URL=https://… PYTHONS='python3.11 python3.12')
	@PYTHONPATH=. $(RUN)/python -P -m release --tools $(TOOLS)/bin --home "$(HOME_URL)" --pythons "$(or $(PYTHONS),$(PYTHON))"

.PHONY: manifests
manifests: $(READY) $(TOOLS)/.ready ## deploy/kubernetes from the chart in deploy/helm and a new project's compose file, judged by their schemas (needs helm)
	@tools/manifests $(VENV) $(TOOLS)

.PHONY: clean
clean: ## remove what builds, tests and runs left here (not .venv)
	@echo "== clean"
	@if [ -x $(RUN)/holdfast ] && [ -d .holdfast ]; then $(RUN)/holdfast dev down || true; fi
	@rm -rf build dist artifacts spark-warehouse metastore_db derby.log .holdfast .hypothesis .pytest_cache .mypy_cache .ruff_cache
	@find holdfast $(ROOMS) tests bench examples -name __pycache__ -type d -prune -exec rm -rf {} +
