# Needs Python 3.11 or newer and JDK 17; everything else is fetched into .venv and the user's cache.
# `make` alone lists the targets. Each sets up what it needs first, once, and says what it does.

SHELL := /bin/bash
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
# Every process would compile the project anew: a tenth of a second for each of hundreds of workers.
unexport PYTHONDONTWRITEBYTECODE

VENV := .venv
TOOLS := $(VENV)/tools
RELEASE_TOOLS := $(VENV)/release-tools
SITE_TOOLS := $(VENV)/site-tools
RUN := $(VENV)/bin
READY := $(VENV)/.ready
# Processes that run tests: five keep two cores busy. Some tests alone (ARGS) run in one.
JOBS ?= $(if $(ARGS),1,5)
SCALE ?= 40
SCHEDULES ?= 10000
BUDGET ?= 5000
SEED ?=
ARGS ?=
LOAD ?=
# Whether `make test` runs beside: what it runs too is left to it.
TESTED ?=
TESTS ?= not slow and not variant
PARTS := broker spark database process browser
ROOMS := agents tables outbox pipeline

# The first of these that runs and is new enough. Set PYTHON=... to choose another.
PYTHON ?= $(shell for each in python3.11 python3.12 python3.13 python3 python; do \
	$$each -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && echo $$each && break; done)

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## (.*)/  make \1|\2/' | column -t -s '|'

.PHONY: venv
venv: $(READY) ## install holdfast and its tools into .venv (pinned by requirements.lock)

$(READY): requirements.lock pyproject.toml
	@if [ -z "$(PYTHON)" ]; then \
		echo "holdfast needs Python 3.11 or newer, and none was found on PATH. Install one, or name it: make venv PYTHON=/path/to/python3" >&2; \
		exit 1; \
	fi
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "holdfast needs Python 3.11 or newer; $(PYTHON) is $$("$(PYTHON)" -V 2>&1 || true)" >&2; exit 1; }
	@"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || { \
		echo "$(PYTHON) cannot make virtual environments: install its venv package (Debian and Ubuntu: apt install python3-venv)" >&2; exit 1; }
	@echo "== .venv: $$("$(PYTHON)" -V), packages of requirements.lock (the first time takes some minutes)"
	@$(RUN)/python -m pip --version >/dev/null 2>&1 || "$(PYTHON)" -m venv --clear $(VENV)
	@.ci/install $(VENV) --require-hashes --requirement requirements.lock
	@$(RUN)/python -m compileall -q -j 0 -x '/tests?/' "$$($(RUN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
	@$(RUN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

.PHONY: demo
demo: $(READY) ## the whole of it on real parts in about two minutes (ARGS=--keep leaves it running; EMBEDDED=1 needs no JDK)
	@echo "== demo: broker, two workers, a fleet, a kill, queries$(if $(EMBEDDED),, Spark)"
	@$(RUN)/holdfast demo $(if $(EMBEDDED),--embedded) $(ARGS)

# The tests of the console need it, and the package of playwright brings none.
.PHONY: browser
browser: ## look for Chromium, which the tests of the console drive; as root, install it from the system's packages
	@command -v chromium chromium-browser google-chrome >/dev/null && exit 0; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo "== chromium (once, from the system's packages)"; \
		{ apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends chromium fonts-dejavu-core; } >$(or $(TMPDIR),/tmp)/holdfast-chromium.log 2>&1 && exit 0; \
		tail -5 $(or $(TMPDIR),/tmp)/holdfast-chromium.log >&2; \
	fi; \
	echo "the tests of the console need Chromium, and none is on PATH: sudo apt-get install chromium" >&2; exit 1

.PHONY: test
test: $(READY) ## each promise in its main case, on a real broker, databases and Spark (JOBS=3 for three processes, ARGS='-k claims' for some, LOAD=20 beside 20 busy programs a core)
	@$(MAKE) --silent browser || true
	@echo "== test"
	@HOLDFAST_TEST_SCALE=$${HOLDFAST_TEST_SCALE:-0.5} $(if $(LOAD),$(RUN)/python -P -m tests.support.busy $(LOAD)) $(RUN)/python -P -m pytest -q -m "$(TESTS)" $(if $(LOAD),--timeout=6000) --durations=10 $(if $(filter-out 1,$(JOBS)),--numprocesses=$(JOBS) --dist=loadfile --no-loadscope-reorder) $(ARGS)

.PHONY: variants
variants: ## further cases of what make test shows: other databases, engines, commands and kinds of faults; then its random tests, eight times as long (not with ARGS)
	@HOLDFAST_TEST_SCALE=1 $(MAKE) --silent test TESTS="variant and not slow"
ifeq ($(ARGS),)
	@echo "== random tests, eight times as long"
	@HOLDFAST_TEST_SCALE=4 $(MAKE) --silent test TESTS="not slow and not variant$(PARTS:%= and not %)" JOBS=$(JOBS) \
		ARGS="$$(grep -rl 'tests.support.scale import' tests --include='test_*.py' | tr '\n' ' ')"
endif

.PHONY: fast
fast: $(READY) ## the tests that need no broker, database, Spark or other process, and take no longer than a moment each: while you work
	@echo "== fast"
	@TESTS_WITHOUT_PARTS=1 HOLDFAST_TEST_SCALE=0.2 $(RUN)/python -P -m pytest -q -m "not slow and not long and not variant$(PARTS:%= and not %)" \
		--numprocesses=5 --dist=loadfile --no-loadscope-reorder --durations=10 $(ARGS)

.PHONY: fuzz
fuzz: $(READY) ## every decoder of bytes from outside against any bytes (SEED=7 BUDGET=20000 inputs for each)
	@echo "== fuzz"
	@HOLDFAST_FUZZ_BUDGET=$(BUDGET) HOLDFAST_FUZZ_SEED=$(or $(SEED),1) $(RUN)/python -P -m pytest -q tests/fuzz $(ARGS)

# Tools that look at the packages from outside: in an environment of their own, and done without where they cannot be had.
$(TOOLS)/.ready: requirements.lock
	@"$(PYTHON)" -m venv --clear $(TOOLS)
	@.ci/install $(TOOLS) pip-audit pip-licenses
	@touch $@

.PHONY: check
check: $(READY) ## lint, format, types, import rules, packaging, documents and their site, known vulnerabilities
	@echo "== ruff check"
	@$(RUN)/ruff check .
	@echo "== ruff format"
	@$(RUN)/ruff format --check .
	@echo "== mypy --strict"
	@$(RUN)/mypy
ifeq ($(TESTED),)
	@echo "== rooms and documents"
	@$(RUN)/python -P -m pytest -q tests/test_imports.py tests/test_docs.py
endif
	@echo "== site"
	@$(MAKE) --silent $(SITE_TOOLS)/.ready 2>/dev/null && NO_MKDOCS_2_WARNING=1 $(SITE_TOOLS)/bin/mkdocs build --quiet --strict || { [ -x $(SITE_TOOLS)/bin/mkdocs ] && exit 1; echo "not built: mkdocs cannot be installed here"; }
	@echo "== alert rules"
	@if command -v promtool >/dev/null; then promtool test rules docs/alerts-test.yml; else echo "not tried: promtool is not installed (the tests parse the rules all the same)"; fi
	@echo "== known vulnerabilities"
	@$(MAKE) --silent $(TOOLS)/.ready 2>/dev/null && .ci/audit $(TOOLS)/bin/pip-audit || { [ -x $(TOOLS)/bin/pip-audit ] && exit 1; echo "not checked: pip-audit cannot be installed here"; }

.PHONY: sim
sim: $(READY) ## fleets of members under faults (SEED=7 SCHEDULES=10000), then random logs, cuts and crashes (SCALE=40), then several sources; a SEED alone is just its schedules
	@echo "== simulation, $(SCHEDULES) schedules"
	@PYTHONPATH=. $(RUN)/python -P -m tests.simulation --schedules $(SCHEDULES) --jobs $(JOBS) $(if $(SEED),--seed $(SEED))
ifeq ($(SEED),)
	@echo "== simulation, $(SCALE) times the usual search"
	@HOLDFAST_TEST_SCALE=$(SCALE) $(RUN)/python -P -m pytest -q --timeout=3600 --hypothesis-show-statistics \
		tests/core/engine/fold/test_folding_model.py tests/core/engine/state/test_rows.py tests/core/claims/test_properties.py \
		tests/core/streams/windowing/test_windows_by_oracle.py tests/core/streams/windowing/test_windows_remembered.py \
		tests/core/streams/joins/test_joins_by_oracle.py tests/core/streams/joins/test_join_foreign.py \
		tests/core/streams/joins/test_joins_at_any_pace.py tests/core/streams/windowing/test_windows_at_any_pace.py $(ARGS)
	@echo "== folds of topologies, under two more hash seeds"
	@$(RUN)/python -P -m pytest -q --fold-hash-seeds=2 tests/testing/test_*topolog*.py tests/testing/test_globals.py tests/testing/test_several_sources.py \
		tests/testing/test_event_timers.py tests/core/streams/test_*.py tests/core/streams/joins/test_join_examples.py $(ARGS)
	@echo "== simulation, owners, versions, clocks and globals of several sources"
	@$(RUN)/python -P -m pytest -q -m slow --timeout=3600 tests/choices $(ARGS)
	@echo "== simulation, windows and joins behind steps at any pace, 100,000 schedules"
	@$(RUN)/python -P -m pytest -q -m slow --timeout=7200 tests/core/streams/test_pace_schedules.py $(ARGS)
endif

.PHONY: chaos
chaos: $(READY) ## the long runs: kills, freezes, rebalances under load on a real broker
	@echo "== chaos"
	@$(RUN)/python -P -m pytest -q -m slow $(ARGS)

.PHONY: bench
bench: $(READY) ## benchmarks with their rivals, as ratios (takes long; wants a quiet machine)
	@for each in backlog hostile_web outbox_poison scans merge windows windows_live closing timers embedded rekey joins several books claim_consumer settle keeping pace live queries restore two_workers spark_replay landing bootstrap fold_tail lake_upkeep outbox outbox_life; do \
		echo "== bench $$each"; PYTHONPATH=. $(RUN)/python -P -m bench.$$each $(ARGS) || exit 1; done

.PHONY: lock
lock: $(READY) $(TOOLS)/.ready ## write requirements.lock anew, with hashes, from what .venv holds; and docs/LICENSES.md
	@$(RUN)/python -m pip freeze --exclude-editable --all | grep -vE '^pip==' > $(VENV)/requirements.in
	@$(RUN)/uv pip compile $(VENV)/requirements.in --quiet --universal --python-version 3.11 --no-deps --generate-hashes \
		--no-annotate --no-header --no-emit-index-url --output-file $(VENV)/requirements.out
	@{ sed -n '/^#/p' requirements.lock; cat $(VENV)/requirements.out; } > $(VENV)/requirements.lock
	@mv $(VENV)/requirements.lock requirements.lock
	@{ sed '/^|/,$$d' docs/LICENSES.md; \
		$(TOOLS)/bin/pip-licenses --python=$(RUN)/python --from=mixed --format=markdown --order=name --with-system \
			--ignore-packages holdfast pip | sed '/promql-parser/s/UNKNOWN/MIT    /'; } > $(VENV)/LICENSES.md  # its licence is a file alone
	@mv $(VENV)/LICENSES.md docs/LICENSES.md

$(SITE_TOOLS)/.ready: Makefile
	@"$(PYTHON)" -m venv --clear $(SITE_TOOLS)
	@.ci/install $(SITE_TOOLS) 'mkdocs>=1.6,<2' 'mkdocs-material>=9.5,<10' 'mkdocstrings[python]>=0.29,<2' ruff
	@touch $@

.PHONY: docs
docs: $(SITE_TOOLS)/.ready ## the documentation as a site: built, and served until Ctrl-C (DOCS_PORT=8000)
	@NO_MKDOCS_2_WARNING=1 $(SITE_TOOLS)/bin/mkdocs serve --strict --dev-addr 127.0.0.1:$(or $(DOCS_PORT),8000)

# What builds and judges a release: in an environment of its own, since only a release needs it.
$(RELEASE_TOOLS)/.ready: Makefile
	@"$(PYTHON)" -m venv --clear $(RELEASE_TOOLS)
	@.ci/install $(RELEASE_TOOLS) 'build>=1.2,<2' 'twine>=6' 'cyclonedx-bom>=6,<8' 'kubernetes-validate>=1.31' 'check-jsonschema>=0.30'
	@touch $@

.PHONY: release
release: $(READY) $(RELEASE_TOOLS)/.ready ## sdist, wheel and bill of materials in dist/, tried in empty environments (HOME_URL=https://… PYTHONS='python3.11 python3.12')
	@PYTHONPATH=. $(RUN)/python -P -m release --tools $(RELEASE_TOOLS)/bin --home "$(HOME_URL)" --pythons "$(or $(PYTHONS),$(PYTHON))"

MANIFESTS := deploy/kubernetes/holdfast.yaml
.PHONY: manifests
manifests: $(READY) $(RELEASE_TOOLS)/.ready ## deploy/kubernetes from the chart in deploy/helm and a new project's compose file, judged by their schemas (needs helm)
	@rm -rf build/composed && $(RUN)/holdfast new composed --dir build/composed 2>/dev/null
	@$(RELEASE_TOOLS)/bin/check-jsonschema --builtin-schema vendor.compose-spec build/composed/compose.yaml
	@helm lint --strict --quiet deploy/helm/holdfast
	@helm template shop deploy/helm/holdfast --namespace shop --kube-version 1.31 > $(MANIFESTS)
	@for each in 1.27 1.31 1.34; do $(RELEASE_TOOLS)/bin/kubernetes-validate --strict --quiet -k $$each $(MANIFESTS) || exit 1; done
	@for each in 1.27 1.31 1.34; do helm template shop deploy/helm/holdfast --kube-version 1.31 --set autoscaling.enabled=true,storage.className=fast | \
		$(RELEASE_TOOLS)/bin/kubernetes-validate --strict --quiet -k $$each /dev/stdin || exit 1; done

.PHONY: clean
clean: ## remove what builds, tests and runs left here (not .venv)
	@echo "== clean"
	@if [ -x $(RUN)/holdfast ] && [ -d .holdfast ]; then $(RUN)/holdfast dev down || true; fi
	@rm -rf build dist artifacts spark-warehouse metastore_db derby.log .holdfast .hypothesis .pytest_cache .mypy_cache .ruff_cache
	@find holdfast $(ROOMS) tests bench examples -name __pycache__ -type d -prune -exec rm -rf {} +
