# Two commands for a newcomer: make demo, make test. make check is what CI runs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUN_STAMP := $(VENV)/.run
DEV_STAMP := $(VENV)/.dev

.PHONY: demo test check lint types format tree native native-test sanitize clean

demo: $(RUN_STAMP)
	$(BIN)/qeff infer --chat --prompt "Why is the sky blue?" --generation-len 80

test: $(DEV_STAMP)
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
	cmake -S . -B build/native -DQEFF_TESTS=ON > build/native.log || { cat build/native.log; exit 1; }
	cmake --build build/native -j 2

native-test: native
	ctest --test-dir build/native --output-on-failure

# The C++ tests under the sanitizers; kernels, thread pool and executor.
sanitize:
	for kind in address,undefined thread; do \
	  cmake -S . -B build/sanitize-$$kind -DQEFF_SANITIZE=$$kind -DQEFF_TESTS=ON -DCMAKE_BUILD_TYPE=RelWithDebInfo -DQEFF_INPLACE=OFF && \
	  cmake --build build/sanitize-$$kind -j 2 && \
	  ctest --test-dir build/sanitize-$$kind --output-on-failure || exit 1; done

tree: $(DEV_STAMP)
	$(BIN)/python docs/make_tree.py

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(RUN_STAMP): $(BIN)/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[build]'
	touch $@

$(DEV_STAMP): $(RUN_STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[build,dev]'
	touch $@

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache
