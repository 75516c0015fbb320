# `make demo` runs the example tasks, `make test` runs every check; both work in a fresh clone.
# Nothing is installed outside .venv, and nothing again before pyproject.toml changes.

.POSIX:
.PHONY: help demo test lint clean

BIN = .venv/bin
PIP = $(BIN)/python -m pip --quiet --disable-pip-version-check
PYTEST = $(BIN)/python -m pytest

help:
	@echo "make demo    install into .venv and run the example tasks: no Docker, Redis or account needed"
	@echo "make test    install what the tests need and run every check"
	@echo "make lint    style, types and import contracts only"
	@echo "make clean   remove .venv and caches; results in jobs/ stay"

# A broker or store in the environment would send the demo to a fleet.
demo: .venv/installed-all
	@env -u BENCHFLOW_BROKER_URL -u BENCHFLOW_STORE_URL $(BIN)/bench run examples/tasks --agent oracle --agent nop

test: lint
	$(PYTEST) -n 4 --dist loadfile tests/architecture tests/unit --cov --cov-report=
	$(PYTEST) tests/contract --cov --cov-append --cov-fail-under=90
	$(PYTEST) tests/integration
	$(PYTEST) -n 2 --dist loadfile tests/acceptance tests/chaos

lint: .venv/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .coverage build dist
	find benchflow_client benchflow_workers tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/installed-all: pyproject.toml .venv/python-found
	@echo "installing benchflow into .venv (once, up to a minute) ..."
	@$(PIP) install --editable '.[all]'
	@touch $@

.venv/installed-dev: pyproject.toml .venv/python-found
	@echo "installing benchflow and its test tools into .venv (once, up to two minutes) ..."
	@$(PIP) install --editable '.[dev]'
	@touch .venv/installed-all $@

# The newest suitable Python wins; a command that exists but does not run is passed over.
.venv/python-found:
	@for candidate in $(PYTHON) python3.13 python3.12 python3.11 python3; do \
	  if "$$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then \
	    python=$$candidate; break; \
	  fi; \
	done; \
	if [ -z "$$python" ]; then \
	  echo "error  No Python 3.11 or newer on PATH (looked for python3.13, python3.12, python3.11, python3)." >&2; \
	  echo "       Install one, or name it: make demo PYTHON=/path/to/python3" >&2; \
	  exit 1; \
	fi; \
	if ! "$$python" -m venv --clear .venv; then \
	  rm -rf .venv; \
	  echo "error  '$$python -m venv' failed, see above. On Debian and Ubuntu: apt-get install python3-venv" >&2; \
	  exit 1; \
	fi; \
	touch $@
