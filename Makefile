# Works on a fresh machine with git, make and Python 3.11 or newer (with venv and pip). Everything goes into $(VENV).
#   make quickstart                                   the first results
#   make test N=8 ARGS="-k oracle"                    more workers, fewer tests
#   make PYTHON=python3.12 VENV=.venv312 test         another Python, beside the first

# Where it is set, every command would compile all that it imports anew: three seconds each.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help quickstart check lint test test-slower test-long test-all format bench docs clean

VENV ?= .venv
N ?= 2
ARGS ?=
BIN := $(VENV)/bin
SOURCES := $(wildcard jaxsched tests benchmarks notebooks docs/_site)
TYPED := $(filter-out notebooks docs/_site,$(SOURCES))

# The newest Python that runs, is new enough, and can make environments. A name on PATH may be a stub that fails, so each
# is tried. Looked for only when an environment is to be made.
CANDIDATES := $(or $(PYTHON),python3.13 python3.12 python3.11 python3)
NEW_ENOUGH := import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))
FOUND = $(shell for p in $(CANDIDATES); do "$$p" -c '$(NEW_ENOUGH)' >/dev/null 2>&1 && { echo "$$p"; break; }; done)
NONE_FOUND = none of these is a working Python 3.11 or newer with venv and pip: $(CANDIDATES). \
	Install one, or name it: make PYTHON=/path/to/python3

PIP := $(BIN)/python -m pip --disable-pip-version-check
INSTALL := $(PIP) install --quiet --no-compile --constraint constraints.txt

PYTEST = XLA_PYTHON_CLIENT_PREALLOCATE=false $(BIN)/python -m pytest -n $(N) --dist worksteal --durations=25 \
	--benchmark-disable --nbmake --nbmake-timeout=900 notebooks tests

# Tests compile for longer than they compute. So LLVM takes less time over it, but in the long tests, which have what users
# have; make SHARED=1 test-long has the programs of the others.
QUICK := XLA_FLAGS="--xla_backend_optimization_level=1 --xla_llvm_disable_expensive_passes=true $$XLA_FLAGS"

# An API server for the tests of `kube`: from the folder KUBEBUILDER_ASSETS, else one packed beside this checkout.
PACKED := $(if $(KUBEBUILDER_ASSETS),,$(wildcard ../shared/kube/bin))
SERVER := $(if $(PACKED),.cache/kube/etcd .cache/kube/kube-apiserver .cache/kube/kubectl)
test-long: export KUBEBUILDER_ASSETS := $(if $(PACKED),$(CURDIR)/.cache/kube,$(KUBEBUILDER_ASSETS))

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

quickstart: $(VENV)/.installed-run ## install what runs need, then produce the first results
	$(BIN)/jaxsched quickstart $(ARGS)

check: lint ## `make lint` and the fast tests: 3 minutes on 2 cores, for every change
	$(QUICK) $(PYTEST) -m "not slow and not slower and not long and not kube" $(ARGS)

test: $(VENV)/.installed-dev ## the fast tests and the most telling slow ones on N=2 workers: 10 minutes
	$(QUICK) $(PYTEST) -m "not slower and not long and not kube" $(ARGS)

test-slower: $(VENV)/.installed-dev ## more of what `make test` has some of: 12 minutes
	$(QUICK) $(PYTEST) -m slower $(ARGS)

test-long: $(VENV)/.installed-dev $(SERVER) ## what these leave out, notebooks among it: 30 minutes
	$(if $(SHARED),$(QUICK)) $(PYTEST) -m "not slower and (long or kube)" $(ARGS)

test-all: test test-slower test-long ## all tests

lint: $(VENV)/.installed-dev ## check style, formatting, types and layers
	@failed=0; set -x; \
	$(BIN)/ruff check $(SOURCES) || failed=1; \
	$(BIN)/ruff format --check --output-format concise $(SOURCES) || failed=1; \
	PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(BIN)/pyright --pythonpath $(BIN)/python $(TYPED) || failed=1; \
	$(BIN)/lint-imports --no-logo --no-cache || failed=1; \
	{ set +x; } 2>/dev/null; exit $$failed

format: $(VENV)/.installed-dev ## put imports and layout in order
	$(BIN)/ruff check --fix $(SOURCES)
	$(BIN)/ruff format $(SOURCES)

bench: $(VENV)/.installed-run ## measure speed
	$(BIN)/jaxsched bench $(ARGS)

docs: $(VENV)/.installed-dev ## build the documentation site into build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

clean: ## remove the environment and all caches
	rm -rf $(VENV) build dist *.egg-info .benchmarks .cache .hypothesis .pytest_cache .ruff_cache
	find jaxsched tests benchmarks notebooks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

.cache/kube/%: $(PACKED)/%.xz
	@mkdir -p $(@D)
	xz -dc $< >$@.partial && chmod +x $@.partial && mv $@.partial $@

$(BIN)/python:
	"$(or $(FOUND),$(error $(NONE_FOUND)))" -m venv --clear $(VENV)

$(VENV)/.installed-run: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing into $(VENV) ..."
	$(INSTALL) --editable '.[compiled,viz]'
	@touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing into $(VENV), with the tools for development ..."
	$(INSTALL) --editable '.[dev]'
	@touch $(VENV)/.installed-run $@
