# One line per verb. `make run` and `make test` are all a newcomer needs.
VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
SOURCES := pyproject.toml CMakeLists.txt $(wildcard cpp/include/rowgrad/*.h cpp/kernels/* cpp/bind/*)

.PHONY: run test test-slow fuzz bench bench-series bench-peers lint format sanitize docs clean

run: $(VENV)/.ready   ## the tour: every operator and its gradient on a small example
	@$(BIN)/rowgrad tour

test: $(VENV)/.ready   ## every test that needs no browser, and the checks on the source
	$(MAKE) --no-print-directory lint
	$(BIN)/python -m pytest -n auto -m "not slow"

test-slow: $(VENV)/.ready   ## tests that take minutes
	$(BIN)/python -m pytest -m slow

fuzz: $(VENV)/.ready   ## a million random calls against the naive reference
	$(BIN)/python tools/fuzz.py --calls 1000000

bench: $(VENV)/.ready   ## the six cases, the sparse ops and tiny calls against the peers installed; writes bench/results
	$(BIN)/rowgrad bench --out latest

bench-series: $(VENV)/.ready   ## time and memory as ids, rows, columns and threads grow; writes bench/results
	$(BIN)/rowgrad bench --series N,V,D,threads --out series

bench-peers:   ## an environment with the libraries rowgrad is compared with
	$(PYTHON) -m venv .venv-peers
	.venv-peers/bin/python -m pip install -q -r bench/requirements-peers.txt
	.venv-peers/bin/python -m pip install -q --no-deps fbgemm-gpu-cpu==1.8.0

lint: $(VENV)/.ready   ## style, types, direction of imports, generated files up to date
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/gen_stubs.py --check
	$(BIN)/python tools/gen_docs.py --check

format: $(VENV)/.ready   ## make the source look as `lint` wants it
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/.ready   ## write the stub, the reference pages and the README's tables from the catalogue
	$(BIN)/python tools/gen_stubs.py
	$(BIN)/python tools/gen_docs.py

sanitize: $(VENV)/.ready   ## the kernels' C++ tests under address, undefined-behaviour and thread sanitizers
	@for s in address,undefined thread; do \
	  $(BIN)/cmake -S . -B build/sanitize-$$s -G Ninja -DROWGRAD_TESTS=ON -DROWGRAD_SANITIZE=$$s \
	    -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN)/ninja) > build/sanitize-$$s.log && \
	  $(BIN)/cmake --build build/sanitize-$$s >> build/sanitize-$$s.log && \
	  $(BIN)/ctest --test-dir build/sanitize-$$s --output-on-failure || { tail -30 build/sanitize-$$s.log; exit 1; }; \
	done

$(VENV)/.ready: $(SOURCES)
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@mkdir -p build
	@echo "building rowgrad into $(VENV) …"
	@$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[dev]'
	@touch $@

clean:
	rm -rf build dist $(VENV)
