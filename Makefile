# Two commands: `make demo` does the main job on an embedded default, `make test` checks everything.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --no-compile --constraint constraints.txt
# pip compiles on one core, and also what is hardly ever imported; some files are not meant to be compiled.
RARE := transformers/models|moto/(?!s3|core|moto)\w+|pip|setuptools|mypyc?|networkx|sympy|torchmetrics|torch/(testing|_inductor|onnx)|heldout|tests
COMPILE := $(BIN)/python -m compileall -qq -j 0 -x '/($(RARE))/'

.PHONY: demo test test-long lint types tests pictures chromium clean

demo: .venv/.installed
	$(BIN)/stoker demo records

# Two things at a time: the browser is fetched beside the Python packages, types are checked beside the tests.
test:
	$(MAKE) --no-print-directory --jobs 2 .venv/.installed-dev chromium
	$(MAKE) --no-print-directory lint
	$(MAKE) --no-print-directory --jobs 2 types tests

lint: .venv/.installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: .venv/.installed-dev
	$(BIN)/mypy

tests: .venv/.installed-dev chromium
	$(COMPILE) src examples tests/planted
	$(BIN)/pytest -n 4 --dist worksteal -m "not long"

# Whole tunings of the real program, minutes each; what they are made of is in `make test`.
test-long: .venv/.installed-dev
	$(BIN)/pytest -m long

# The pictures of the README, from a real run.
pictures: .venv/.installed-dev chromium
	$(BIN)/python docs/make_pictures.py

chromium:
	@.ci/chromium

.venv/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Stoker needs Python 3.11 or newer")'
	$(PYTHON) -m venv .venv

.venv/.installed: .venv/bin/python pyproject.toml constraints.txt hatch_build.py src/stoker/loader/source/runs.c
	@echo "Installing Stoker into .venv (torch is large: a few minutes the first time) ..."
	$(PIP) --editable '.[all]'
	$(COMPILE) .venv src || true
	@touch $@

.venv/.installed-dev: .venv/bin/python pyproject.toml constraints.txt hatch_build.py src/stoker/loader/source/runs.c
	@echo "Installing Stoker and its development tools into .venv (a few minutes the first time) ..."
	$(PIP) --editable '.[dev]'
	$(COMPILE) .venv || true
	@touch $@ .venv/.installed

clean:
	rm -rf .venv .stoker .mypy_cache .ruff_cache .pytest_cache .hypothesis
