# Two commands on a fresh machine: `make demo` and `make test`. Nothing needed but Python 3.10+ and make.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
EXTRAS ?= .venv-extras
ANNIF  ?= .venv-annif

.PHONY: help demo lint check test test-extras fuzz faults docs clean
help:            ## this list
	@grep -hE '^[a-z-]+: .*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/'

# One stamp per set of packages: a second call does nothing unless pyproject.toml changed.
$(VENV)/.ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	@touch $@
$(VENV)/.dev: $(VENV)/.ready
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@

# Extras are large and have an environment of their own, so that everything else is tested without them.
$(EXTRAS)/.ready: pyproject.toml constraints-extras.txt
	$(PYTHON) -m venv $(EXTRAS)
	$(EXTRAS)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints-extras.txt \
		-e '.[torch,ray,arrow,river]' datasets 'pytest>=8' 'hypothesis>=6.100'
	@touch $@

# Annif pins other versions of what they need.
$(ANNIF)/.ready: pyproject.toml constraints-extras.txt
	$(PYTHON) -m venv $(ANNIF)
	$(ANNIF)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints-extras.txt \
		-e '.[annif,serve]' 'pytest>=8' 'hypothesis>=6.100'
	@touch $@

demo: $(VENV)/.ready  ## train the models on the embedded WordNet data and show one table
	$(BIN)/treemax demo

lint: $(VENV)/.dev    ## the linter, the formatter's check and the type checker
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

check: lint           ## the linter, the type checker and the tests that are not slow: a minute
	$(BIN)/python -m pytest -n auto -m "not slow"

test: lint            ## the same with the whole test suite
	$(BIN)/python -m pytest -n auto

test-extras: $(EXTRAS)/.ready $(ANNIF)/.ready  ## the tests of what needs an extra (PyTorch, Ray, river, Annif, data sets of Hugging Face)
	$(EXTRAS)/bin/python -m pytest tests/extras src/treemax/torch src/treemax/river
	$(ANNIF)/bin/python -m pytest tests/extras/test_annif.py tests/extras/test_annif_http.py tests/test_adapters.py src/treemax/annif

MINUTES ?= 30
FUZZ := $(BIN)/python -m tests.fuzz.run --minutes $(MINUTES)
fuzz: $(VENV)/.dev    ## mutated data files and model files for MINUTES, and as long again with bounds checks
	NUMBA_CACHE_DIR=.numba_cache/fuzz $(FUZZ)
	NUMBA_BOUNDSCHECK=1 NUMBA_CACHE_DIR=.numba_cache/fuzz-bounds $(FUZZ)

faults: $(VENV)/.dev  ## kills, forks, threads and limits, long: TREEMAX_FAULTS_SECONDS and TREEMAX_FAULTS_ROUNDS
	TREEMAX_FAULTS_SECONDS=$${TREEMAX_FAULTS_SECONDS:-120} TREEMAX_FAULTS_ROUNDS=$${TREEMAX_FAULTS_ROUNDS:-200} \
		$(BIN)/python -m pytest tests/faults

docs: $(VENV)/.dev    ## build the documentation site into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

clean:           ## remove the environment and everything built
	rm -rf $(VENV) $(EXTRAS) $(ANNIF) site build dist .pytest_cache .mypy_cache .ruff_cache .numba_cache
