PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed
# One process per core with one thread each: the test models are too small for more.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist worksteal

.DEFAULT_GOAL := help
.PHONY: help venv compare benchmark prove gpu test test-slow test-extras test-peers check-speculators mutants lint docs tour zoo clean

help:  ## List the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 19

venv: $(INSTALLED)  ## Create .venv with the pinned dependencies

compare: $(INSTALLED)  ## Compare seven drafters (suite=all: more) on held-out text: table, HTML page, records, plots
	$(BIN)/python -m experiments.compare $(if $(suite),+suite=$(suite))

benchmark: $(INSTALLED)  ## Time every decoder, eager and compiled, against Hugging Face's; half an hour the first time
	$(BIN)/python -m experiments.benchmark

prove: $(INSTALLED)  ## Prove losslessness: every drafter with every rule, and injected faults; an hour on one core
	$(BIN)/python -m experiments.prove

# With $(PYTHON) and its packages, not .venv: images with a GPU bring their own PyTorch, and may reach no package index.
gpu:  ## Prove and measure everything on a GPU in ten minutes; in miniature on a CPU
	$(PYTHON) -m experiments.gpu_acceptance

test: $(INSTALLED)  ## Run the tests; six minutes
	$(PYTEST)

test-slow: $(INSTALLED)  ## Run the slow tests: statistics, sweeps, trainings
	$(PYTEST) -m slow

mutants: $(INSTALLED)  ## Mutation tests of the code that exactness depends on; two hours, resumes
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.mutants

test-extras: $(INSTALLED)  ## Install torchao and accelerate, and run the tests of quantised and of sharded targets
	$(BIN)/python -m pip install --disable-pip-version-check -q -c constraints.txt -e ".[quantized,tensor-parallel]"
	$(PYTEST) -m "slow or not slow" tests/framework/models/test_quantised.py tests/framework/models/test_tensor_parallel.py

test-peers: $(INSTALLED)  ## Install OpenVINO and llama.cpp (built from source, minutes), and run the tests of peers
	$(BIN)/python -m pip install --disable-pip-version-check -q -c constraints.txt -e ".[openvino,llama-cpp]"
	$(PYTEST) tests/experiments/peers

# PyPI's torchvision does not fit every build of PyTorch, and the package does not import it.
check-speculators: $(INSTALLED)  ## Install the package speculators beside .venv; compare its logits on exported drafters
	$(PYTHON) -m venv .venv-speculators
	.venv-speculators/bin/python -m pip install --disable-pip-version-check -q speculators==0.9.0 $(shell grep ^torch== constraints.txt)
	.venv-speculators/bin/python -m pip uninstall -q -y torchvision torchaudio
	HF_HUB_OFFLINE=1 LOGURU_LEVEL=ERROR .venv-speculators/bin/python -m tests.support.published.speculators_check
	$(PYTEST) tests/framework/heads/test_speculators_format.py

lint: $(INSTALLED)  ## Check style, formatting and types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

docs: $(INSTALLED)  ## Install mkdocs and build the pages and the API reference in site/
	$(BIN)/python -m pip install --disable-pip-version-check -q -c constraints.txt -e ".[docs]"
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

tour: $(INSTALLED)  ## Execute docs/tour.ipynb again and keep its output; on a quiet machine, since it shows times
	PYTHONWARNINGS=ignore:IProgress $(BIN)/jupyter execute --inplace docs/tour.ipynb

zoo: $(INSTALLED)  ## Train the embedded models again; resumes after an interruption
	$(BIN)/python -m experiments.make_zoo

clean:  ## Remove .venv and caches; keeps trained models and measurements
	rm -rf .venv .venv-speculators build site *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamp is written last, so an interrupted installation resumes and a finished one is skipped.
$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed; $(PYTHON) is `$(PYTHON) --version 2>&1`. Try: make PYTHON=python3.12 ..."; exit 1; }
	$(PYTHON) -m venv .venv
	@echo "Installing the dependencies, including PyTorch: some minutes, only the first time."
	$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt -e ".[dev]"
	@touch $@
