PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed
# A process per core, and one thread in each: the models of the tests are too small for more.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist worksteal

.DEFAULT_GOAL := help
.PHONY: help venv compare benchmark prove test test-slow lint zoo clean

help:  ## Say what the targets do
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 12

venv: $(INSTALLED)  ## Create .venv with the pinned dependencies

compare: $(INSTALLED)  ## Decode held-out text with seven drafters, or suite=all; print the table, write records, a page and pictures
	$(BIN)/python -m experiments.compare $(if $(suite),+suite=$(suite))

benchmark: $(INSTALLED)  ## Time every way to decode, eager and compiled, beside Hugging Face's; half an hour the first time
	$(BIN)/python -m experiments.benchmark

prove: $(INSTALLED)  ## Prove losslessness: every drafter with every rule, and faults that must be seen
	$(BIN)/python -m experiments.prove

test: $(INSTALLED)  ## Run the tests; some minutes
	$(PYTEST)

test-slow: $(INSTALLED)  ## Run the long statistics, sweeps and trainings
	$(PYTEST) -m slow

lint: $(INSTALLED)  ## Check style, formatting and types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

zoo: $(INSTALLED)  ## Train the embedded models again; resumes where it was interrupted
	$(BIN)/python -m experiments.make_zoo

clean:  ## Remove .venv and caches; keeps what was trained and measured
	rm -rf .venv build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamp is written last: an interrupted installation is taken up again, a finished one is left alone.
$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed; $(PYTHON) is `$(PYTHON) --version 2>&1`. Try: make PYTHON=python3.12 ..."; exit 1; }
	$(PYTHON) -m venv .venv
	@echo "Installing the dependencies, PyTorch among them: minutes, the first time only."
	$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt -e ".[dev]"
	@touch $@
