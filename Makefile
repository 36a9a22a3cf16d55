# Everything runs in a virtual environment of its own (.venv). It needs make and Python >= 3.11, nothing else:
#   make demo PYTHON=python3.12      chooses the interpreter
# A stamp file per set of extras says what is installed, so that a second call starts at once.

PYTHON ?= python3
VENV ?= .venv
# Tests compile a lot: one process per core, at most two; a file stays in one process to share what it compiled.
PYTEST_ARGS ?= -n 2 --dist loadfile
ARGS ?=

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
# One BLAS thread: with more, LAPACK calls on small matrices get slower, on a busy machine by far.
export OPENBLAS_NUM_THREADS ?= 1

.DEFAULT_GOAL := help
.PHONY: help demo test test-all lint docs bench clean distclean

help:
	@echo "make demo      install what the demo needs and run it; results in out/"
	@echo "make test      install the test extra and run the tests (slow ones skipped; ARGS=--slow=5: 5 min of them)"
	@echo "make test-all  the tests, the slow ones too"
	@echo "make lint      ruff and pyright"
	@echo "make docs      build the documentation, docs/_build/html/index.html"
	@echo "make bench     side-by-side benchmarks; results in benchmarks/results/"
	@echo "make clean     remove what was built and written (distclean: .venv too)"
	@echo "PYTHON=python3.12 chooses the interpreter, ARGS='...' goes to the command that is run"

demo: $(VENV)/.stamp-viz
	$(BIN)/jaxdyn demo $(ARGS)

test: $(VENV)/.stamp-test
	$(BIN)/python -m pytest $(PYTEST_ARGS) $(ARGS)

test-all: $(VENV)/.stamp-test
	$(BIN)/python -m pytest $(PYTEST_ARGS) --slow=1000 $(ARGS)

lint: $(VENV)/.stamp-viz $(VENV)/.stamp-dev
	$(BIN)/ruff check .
	$(BIN)/pyright $(ARGS)

docs: $(VENV)/.stamp-docs
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html $(ARGS)
	@echo "docs/_build/html/index.html"

bench: $(VENV)/.stamp-test $(VENV)/.stamp-bench
	$(BIN)/python -m benchmarks $(ARGS)

clean:
	rm -rf build dist out docs/_build docs/reference docs/notebooks .pytest_cache .ruff_cache .hypothesis
	find jaxdyn tests benchmarks docs notebooks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

distclean: clean
	rm -rf $(VENV)

$(VENV)/.stamp-venv:
	@command -v $(PYTHON) >/dev/null 2>&1 || { \
	  echo "jaxdyn: '$(PYTHON)' is not an interpreter on this machine; name one: make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "jaxdyn: needs Python >= 3.11, but '$(PYTHON)' is $$($(PYTHON) --version 2>&1); choose another: make PYTHON=python3.12" >&2; exit 1; }
	@rm -rf $(VENV)
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
	  echo "jaxdyn: '$(PYTHON) -m venv' failed (on Debian and Ubuntu: apt install python3-venv)" >&2; exit 1; }
	@touch $@

$(VENV)/.stamp-%: $(VENV)/.stamp-venv pyproject.toml
	@echo "Installing jaxdyn[$*] into $(VENV) (the first time this takes a minute or more) ..."
	@$(PIP) install -q -e '.[$*]'
	@touch $@
