# Needs Python >= 3.10 and make, nothing else. `make help` lists the targets.
#
#   PYTHON       the interpreter that makes .venv                 PYTHON=python3.12
#   TORCH_INDEX  index to take torch from, e.g. a CPU build's     TORCH_INDEX=<address>
#   TORCH        what pip is asked to install as torch            TORCH=torch==2.6.0
#   NPROC        ranks of the conformance run                     NPROC=2
#   ARGS         more arguments for pytest or the benchmarks      ARGS="-k reshard -x"

PYTHON ?= python3
TORCH ?= -r requirements/torch.txt
TORCH_INDEX ?=
NPROC ?= 4
ARGS ?=

# Every path below is relative, so that a checkout in a folder with spaces in its name works.
python := .venv/bin/python
pip := $(python) -m pip --require-virtualenv --disable-pip-version-check --no-input
ready := .venv/.ready

# The stamp holds the folder it was made in: an editable install points there, so a checkout that
# was moved, or whose interpreter has gone, is installed again.
$(shell test "$$(cat $(ready) 2>/dev/null)" = "$$PWD" && test -x $(python) || rm -f $(ready))

.DEFAULT_GOAL := help
.PHONY: help venv conformance test test-spawn lint format bench soak clean
.DELETE_ON_ERROR:

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1|\2/p' Makefile | while IFS='|' read -r target text; \
	do printf '%-18s %s\n' "$$target" "$$text"; done

venv: $(ready) ## make .venv with torch, the development requirements and this project

conformance: $(ready) ## prove round trips of the reference on NPROC ranks
	$(python) -m pytest --nproc $(NPROC) $(ARGS)

test: $(ready) ## run the project's own tests
	$(python) -m pytest harness/tests reference/tests suites/tests $(ARGS)

test-spawn: $(ready) ## run the rank engine's tests with spawned ranks
	$(python) -m pytest harness/tests --ranks-start-method=spawn $(ARGS)

lint: $(ready) ## check format, style and types
	$(python) -m ruff format --check .
	$(python) -m ruff check .
	$(python) -m mypy

format: $(ready) ## write the format that lint wants
	$(python) -m ruff format .
	$(python) -m ruff check --fix .

bench: $(ready) ## measure beside torch's own test classes and torchrun
	$(python) -m benchmarks.run $(ARGS)

soak: $(ready) ## run thousands of rank tests, a random fault in every tenth
	$(python) -m benchmarks.soak $(ARGS)

clean: ## remove .venv and everything that was built
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find benchmarks harness reference suites -name __pycache__ -type d -prune -exec rm -rf {} +

# torch comes first, so that no later step chooses a build of it. A .venv that has no pip or is no environment
# (its python would install into the system) was interrupted half way, or its interpreter has gone:
# it is made anew. The build backend is one of the requirements, so installing this project
# downloads nothing.
$(ready): requirements/torch.txt requirements/development.txt requirements/plugins.txt \
		requirements/implementations.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("shardproof needs Python 3.10 or newer; $(PYTHON) is " \
	  + sys.version.split()[0] + ". Name another: make PYTHON=..." if sys.version_info < (3, 10) else 0)'
	@rm -f $@
	@$(python) -c 'import pip, sys; sys.exit(sys.prefix == sys.base_prefix)' 2>/dev/null \
	  || $(PYTHON) -m venv --clear .venv
	$(pip) install --quiet $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) $(TORCH)
	$(pip) install --quiet -r requirements/development.txt
	$(pip) install --quiet --no-build-isolation --no-deps --editable .
	rm -rf .venv/plugins .venv/implementations
	for kind in plugins implementations; do \
	  $(pip) install --quiet --no-deps --target .venv/$$kind -r requirements/$$kind.txt || exit 1; done
	@$(pip) check >/dev/null || { $(pip) check; echo "make clean, then try again"; exit 1; }
	@printf '%s' "$$PWD" >$@
