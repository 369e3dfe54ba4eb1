# Two commands for a newcomer: make demo, make test. make check is what CI runs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUN_STAMP := $(VENV)/.run
DEV_STAMP := $(VENV)/.dev
# Those of the environment where there is one, looked for when they are used.
CMAKE = $(shell command -v $(BIN)/cmake || echo cmake)
CTEST = $(shell command -v $(BIN)/ctest || echo ctest)
JOBS ?= $(shell getconf _NPROCESSORS_ONLN)

MAKEFLAGS += --no-print-directory
.NOTPARALLEL:
.PHONY: demo test check lint types format tree native native-test sanitize clean

# The native core is compiled while pip installs the rest.
demo: $(BIN)/cmake
	@$(MAKE) native & building=$$!; $(MAKE) $(RUN_STAMP) && wait $$building
	$(BIN)/qeff infer --chat --prompt "Why is the sky blue?" --generation-len 80

test: $(DEV_STAMP) native-test
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadgroup

check: lint types test

lint: $(DEV_STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(DEV_STAMP)
	$(BIN)/mypy

format: $(DEV_STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The native core alone, into qeff/_native/: for work on csrc/, and for running from the source tree.
native:
	mkdir -p build
	$(CMAKE) -S . -B build/native -DQEFF_TESTS=ON > build/native.log || { cat build/native.log; exit 1; }
	$(CMAKE) --build build/native --target inplace -j $(JOBS)

# The C++ tests, in the same build folder: the kernels are compiled once.
native-test: native
	$(CMAKE) --build build/native -j $(JOBS)
	$(CTEST) --test-dir build/native --output-on-failure

# The C++ tests under the sanitizers. The kernels' own tests have one thread, which the thread sanitizer need not see.
sanitize:
	mkdir -p build
	for kind in address,undefined thread; do \
	  folder=build/sanitize-$$kind targets=all; \
	  if [ $$kind = thread ]; then targets="thread_pool_test executor_test"; fi; \
	  $(CMAKE) -S . -B $$folder -DQEFF_SANITIZE=$$kind -DQEFF_TESTS=ON -DQEFF_INPLACE=OFF \
	    -DCMAKE_BUILD_TYPE=RelWithDebInfo > build/sanitize.log || { cat build/sanitize.log; exit 1; }; \
	  $(CMAKE) --build $$folder --target $$targets -j $(JOBS) && \
	  $(CTEST) --test-dir $$folder --output-on-failure -j $(JOBS) $$(test $$kind = thread && echo -R 'pool|executor') || exit 1; done

tree: $(DEV_STAMP)
	$(BIN)/python docs/make_tree.py

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# The native core is not built by pip here but by `make native`, once for running and testing.
PIP = $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
EDITABLE = --config-settings=wheel.cmake=false -e

$(BIN)/cmake: | $(BIN)/python
	$(PIP) cmake
	touch $@

$(RUN_STAMP): $(BIN)/python $(BIN)/cmake pyproject.toml constraints.txt
	$(PIP) $(EDITABLE) '.[build]'
	touch $@

$(DEV_STAMP): $(RUN_STAMP)
	$(PIP) $(EDITABLE) '.[build,dev]'
	touch $@

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache
