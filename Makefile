# make local   the comparison on this machine: in a container where a Docker engine answers, else in a virtual environment
# make test    everything that can be tested here in minutes; container tests are skipped, loudly, where no engine answers
# make test-slow   long simulations, fuzzing, load, faults that take minutes each
# make audit   every locked dependency against the package index's list of known vulnerabilities
SHELL := /bin/bash
PYTHON ?= python3
VENV ?= .venv
VENV_LOCAL ?= .venv-local
VENV_AUDIT ?= .venv-audit
# For `make local ARGS="--plan standard --backend gloo,mpi"` and `make test PYTEST_ARGS="tests/analysis -k median"`.
ARGS ?= --plan quick --backend all
PYTEST_ARGS ?=
COMMIT = $(shell git rev-parse HEAD 2>/dev/null)$(shell git diff --quiet HEAD 2>/dev/null || echo +dirty)
LOCK = requirements/dev.txt

.PHONY: help local test test-slow lint audit clean
help:
	@sed -n 's/^# \(make .*\)/\1/p' Makefile

# Without a terminal, compose ends at a signal and leaves the container running: it is stopped here.
local:
	@why=; \
	if ! command -v docker >/dev/null; then why="there is no Docker client"; \
	elif ! timeout 10 docker compose version >/dev/null 2>&1; then why="the Docker client has no compose plugin"; \
	elif ! timeout 20 docker info >/dev/null 2>&1; then why="no Docker engine answers (or not to user $$(id -un))"; fi; \
	if [ -z "$$why" ]; then \
	    echo "make local: a Docker engine answers, so in a container: docker compose run --rm suite-local local $(ARGS)" >&2; \
	    docker image inspect debian:trixie-slim >/dev/null 2>&1 || \
	        echo "make local: the base image is not here yet; where no registry gives it, 'sudo docker/base-image.sh' makes it" >&2; \
	    name=ddp-backend-suite-local-$$$$; trap : INT TERM; \
	    SUITE_COMMIT=$${SUITE_COMMIT:-$(COMMIT)} docker compose run --rm --name $$name suite-local local $(ARGS); \
	    code=$$?; docker stop --time 30 $$name >/dev/null 2>&1; exit $$code; \
	else \
	    echo "make local: $$why, so in a virtual environment ($(VENV_LOCAL)), with the torch that pip gives: fab local $(ARGS)" >&2; \
	    echo "make local: (on Debian or Ubuntu, 'sudo docker/engine-debian.sh' provides an engine)" >&2; \
	    $(MAKE) --no-print-directory $(VENV_LOCAL)/.installed && $(VENV_LOCAL)/bin/fab local $(ARGS); \
	fi

# Tests marked slow (long simulations, fuzzing, load, bare machines) have a target of their own: docs/operations.md.
test: lint
	$(VENV)/bin/python -m pytest -m "not slow" $(PYTEST_ARGS)

# They need a Docker engine, and fail without one rather than being skipped; SUITE_REQUIRE_CONTAINERS=0 runs what can be.
test-slow: $(VENV)/.installed
	SUITE_REQUIRE_CONTAINERS=$${SUITE_REQUIRE_CONTAINERS:-1} $(VENV)/bin/python -m pytest -m slow $(PYTEST_ARGS)

lint: $(VENV)/.installed
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy

# An index without such a list (a mirror of the files alone) makes this fail: nothing was audited then, which is not "clean".
audit: $(VENV_AUDIT)/.installed
	timeout 600 $(VENV_AUDIT)/bin/pip-audit --strict --disable-pip --require-hashes --progress-spinner off -r $(LOCK)

# Exact versions, with hashes, in continuous integration (this folder is put on the path: building a package of it would fetch
# an unpinned setuptools); what pyproject.toml allows elsewhere.
$(VENV)/.installed: pyproject.toml $(wildcard $(LOCK))
	@$(call make-venv,$(VENV))
	@if [ "$$CI" = true ]; then \
	    [ -f $(LOCK) ] || { echo "make: $(LOCK) is missing: nothing is installed without hashes here" >&2; exit 2; }; \
	    $(VENV)/bin/pip install --quiet --disable-pip-version-check --require-hashes -r $(LOCK) && \
	    echo "$(CURDIR)" >"$$($(VENV)/bin/python -c 'import site; print(site.getsitepackages()[0])')/ddp-backend-suite.pth"; \
	else \
	    $(VENV)/bin/pip install --quiet --disable-pip-version-check -e '.[dev]'; \
	fi
	@touch $@

$(VENV_LOCAL)/.installed: pyproject.toml
	@$(call make-venv,$(VENV_LOCAL))
	@echo "make: installing PyTorch and the suite into $(VENV_LOCAL); the first time this fetches several GB" >&2
	@$(VENV_LOCAL)/bin/pip install --quiet --disable-pip-version-check -e '.[local]'
	@touch $@

$(VENV_AUDIT)/.installed: pyproject.toml
	@$(call make-venv,$(VENV_AUDIT))
	@$(VENV_AUDIT)/bin/pip install --quiet --disable-pip-version-check 'pip-audit>=2.7,<3'
	@touch $@

define make-venv
$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
    { echo "make: $(PYTHON) is $$($(PYTHON) --version 2>&1); Python 3.10 or newer is needed: make PYTHON=python3.11 ..." >&2; exit 2; }; \
$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
    { echo "make: $(PYTHON) cannot make virtual environments: sudo apt-get install python3-venv" >&2; exit 2; }; \
[ -x $(1)/bin/pip ] || $(PYTHON) -m venv --clear $(1)
endef

clean:
	rm -rf $(VENV) $(VENV_LOCAL) $(VENV_AUDIT) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache
