# `make quickstart` and `make test` need python3.11 (or newer), make and the package index, nothing else: they set up
# .venv with the pinned versions and run in it. A second call uses it as it is, until pyproject.toml or constraints.txt change.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
BIN := $(VENV)/bin
SITE ?= site
READY := $(VENV)/.ready

# One thread per process: the models here are tiny, and several processes share the cores.
export OMP_NUM_THREADS ?= 1
export TOKENIZERS_PARALLELISM ?= false
export HF_HUB_DISABLE_TELEMETRY ?= 1

# Three processes for two cores (many tests wait for a process of theirs), a test file as a whole in one of them.
PYTEST_ARGS ?= -n 3 --dist loadfile

.PHONY: setup quickstart check test slow lint docs resolve trl dist clean

setup: $(READY)

# torch first and by its exact version: left to the others it would resolve to a newer build of several GB.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "r3bench needs Python 3.11 or newer")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -c constraints.txt torch==2.13.0
	$(BIN)/python -m pip install -c constraints.txt -e '.[dev,docs]'
	touch $@

quickstart: $(READY)
	$(BIN)/r3bench quickstart

# Before a commit, in about a minute: lint, types, and tests that load no PyTorch (refused here, so that it stays so).
check: lint
	R3BENCH_WITHOUT_TORCH=1 $(BIN)/python -m pytest -n 2 --dist loadfile @tests/check.txt

test: $(READY)
	$(BIN)/python -m pytest $(PYTEST_ARGS)

slow: $(READY)
	$(BIN)/python -m pytest -m slow

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# A link that leads nowhere or a page that isn't in the navigation is an error.
docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --site-dir $(SITE)

# Whether every extra can be installed with constraints.txt, for each Python; nothing is downloaded but metadata.
resolve: $(READY)
	$(BIN)/python .ci/resolve.py

# `make trl VERSION=x.y.z`: what depends on TRL, against another version of it, and what broke.
trl: $(READY)
	test -n "$(VERSION)" || { echo "make trl VERSION=x.y.z"; exit 2; }
	$(BIN)/python .ci/try_trl.py $(VERSION)

# The wheel and the source archive, and whether each installs into an empty environment and trains there.
dist: $(READY)
	rm -rf build dist
	$(BIN)/python -m build
	$(BIN)/python -m pytest -m 'slow or not slow' tests/project/test_project_wheel.py

clean:
	rm -rf build dist site *.egg-info .pytest_cache .mypy_cache .ruff_cache
