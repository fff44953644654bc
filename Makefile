# make train   sets up a virtual environment and trains the digits with two real worker processes
# make test    runs the tests in that environment
# make parity  runs the fit-feature x strategy matrix and prints it
# make bench docs   measures this machine, and writes the tables of README and docs/ from the code
#                   and the figures (an idle machine, please; PyTorch too: pip install -e '.[bench]')
# make lint types build   what CI checks before the tests
# PYTHON=python3.12 chooses the interpreter, VENV=... the folder, EPOCHS=... and WORKERS=... the run,
# PYTEST_ARGS="-k launcher" the tests.

PYTHON ?= python3
VENV ?= .venv
EPOCHS ?= 10
WORKERS ?= 2
PYTEST_ARGS ?=

BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
# mypy needs to see the package as it is installed, not as the folders lie in the checkout.
TYPES := build/types

.PHONY: help venv train test parity lint format types bench docs build clean

help:
	@sed -n 's/^# //p' Makefile

venv: $(INSTALLED)

$(INSTALLED): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@

train: $(INSTALLED)
	$(BIN)/tfdist run -n $(WORKERS) scripts/train.py --strategy=multi_worker --dataset=digits \
	    --epochs=$(EPOCHS) --save=runs/digits.keras

test: $(INSTALLED)
	$(BIN)/python -m pytest $(PYTEST_ARGS)

parity: $(INSTALLED)
	$(BIN)/python tests/parity

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(INSTALLED)
	rm -rf $(TYPES)
	mkdir -p $(TYPES)/tfdist
	ln -s $(CURDIR)/tfdist/* $(CURDIR)/strategies $(CURDIR)/models $(TYPES)/tfdist/
	cd $(TYPES) && $(abspath $(BIN))/mypy --config-file $(CURDIR)/pyproject.toml \
	    --cache-dir $(CURDIR)/build/mypy -p tfdist
	MYPYPATH=$(TYPES) $(BIN)/mypy --cache-dir build/mypy scripts/*.py scripts/bench/contenders.py scripts/bench/fit_overhead.py

bench: $(INSTALLED)
	$(BIN)/python scripts/bench/fit_overhead.py --json=docs/measured/fit_overhead.json
	$(BIN)/python scripts/bench/ps_overhead.py --json=docs/measured/ps_overhead.json
	$(BIN)/python scripts/bench/scaling.py --json=docs/measured/scaling.json

docs: $(INSTALLED)
	$(BIN)/python docs/render.py

build: $(INSTALLED)
	rm -rf build/lib build/bdist.* dist
	mkdir -p build
	$(BIN)/python -m build --outdir dist > build/build.log 2>&1 || { cat build/build.log; exit 1; }

clean:
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache $(VENV)
