# `make` alone lists what there is. Nothing but Python >= 3.11, make and git is needed.

SHELL := /bin/sh
.DEFAULT_GOAL := help
BIN := .venv/bin
READY := .venv/.ready
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input

.PHONY: help setup run test check lint types contracts coverage container-lint format migration lock clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' Makefile

setup: $(READY) ## make .venv and install the locked packages (by itself before every other target)

# An interpreter that is new enough and can make environments comes first; the rest of the recipe says what is missing.
$(READY): requirements-dev.lock pyproject.toml
	@usable='import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))'; \
	recent='import sys; sys.exit(sys.version_info < (3, 11))'; \
	found=; old=; \
	for python in $(PYTHON) python3 python3.14 python3.13 python3.12 python3.11; do \
	    if "$$python" -c "$$usable" 2>/dev/null; then found=$$python; break; fi; \
	    if "$$python" -c "$$recent" 2>/dev/null; then old=$$python; fi; \
	done; \
	if [ -z "$$found" ] && [ -n "$$old" ]; then \
	    echo "$$old cannot make virtual environments: its venv module is missing." >&2; \
	    echo "On Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; \
	elif [ -z "$$found" ]; then \
	    echo "No Python 3.11 or later was found; install one, or name it: make setup PYTHON=/path/to/python3" >&2; exit 1; \
	fi; \
	if ! $(BIN)/python -m pip --version >/dev/null 2>&1; then "$$found" -m venv --clear .venv; fi
	@echo "Installing the locked packages into .venv (about a minute the first time)"
	@$(PIP) install --quiet --require-hashes -r requirements-dev.lock
	@$(PIP) install --quiet --no-deps --no-build-isolation -e .
	@touch $(READY)

run: $(READY) ## start everything on this machine: database, service, and a page that shows it
	@$(BIN)/oncehook dev

test: $(READY) ## run the tests (args="-k name" picks some; PG_BINDIR=/usr/lib/postgresql/15/bin picks the server)
	@$(BIN)/python -m pytest $(args)

check: lint types contracts container-lint coverage ## all that a change must pass

lint: $(READY) ## style and mistakes
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: $(READY) ## types
	@$(BIN)/mypy

contracts: $(READY) ## which part may import which
	@$(BIN)/lint-imports

coverage: $(READY) ## the tests, and how much of the code and its branches they reach
	@$(BIN)/coverage erase
	@$(BIN)/coverage run -m pytest $(args)
	@$(BIN)/coverage combine --quiet
	@$(BIN)/coverage report

# The values stand in for those that .env must give; nothing is started.
container-lint: $(READY) ## Dockerfile and docker-compose.yml
	@$(BIN)/hadolint Dockerfile
	@POSTGRES_PASSWORD=x STRIPE_WEBHOOK_SECRETS=x $(BIN)/docker-compose --env-file /dev/null config --quiet

format: $(READY) ## lay the code out, and mend what can be mended safely
	@$(BIN)/ruff check --fix-only --quiet .
	@$(BIN)/ruff format .

migration: $(READY) ## a new, empty migration: make migration m="add refunds"
	@if [ -z "$(m)" ]; then echo 'Say what it does: make migration m="add refunds"' >&2; exit 1; fi
	@number=$$(ls alembic/versions | sed -n 's/^\([0-9]\{4\}\)_.*/\1/p' | sort -n | tail -n 1 | sed 's/^0*//'); \
	$(BIN)/alembic revision --rev-id "$$(printf '%04d' $$(($${number:-0} + 1)))" -m "$(m)"

lock: $(READY) ## write both lock files again from pyproject.toml (args=--upgrade takes newer versions)
	@test -x .venv/uv/bin/uv || { $(BIN)/python -m venv .venv/uv && .venv/uv/bin/python -m pip install --quiet uv; }
	@UV_PYTHON_DOWNLOADS=never .venv/uv/bin/uv pip compile --quiet pyproject.toml $(args) --universal --python-version 3.11 \
	    --generate-hashes --no-emit-index-url --no-header --group build --output-file requirements.lock
	@UV_PYTHON_DOWNLOADS=never .venv/uv/bin/uv pip compile --quiet pyproject.toml $(args) --universal --python-version 3.11 \
	    --generate-hashes --no-emit-index-url --no-header --extra embedded --group dev --output-file requirements-dev.lock

clean: ## remove .venv, caches and build output (the data of `make run` in .oncehook stays)
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .coverage .coverage.* htmlcov
	find app tests alembic bench -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
