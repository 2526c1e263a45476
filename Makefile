# Two commands matter: `make demo` and `make test`. Both set up what they need first.
# The rest: make lint, make bench, make sanitize, make rdma-vm, make clean. `make help` lists them.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
export PATH := $(CURDIR)/$(BIN):$(PATH)
# Container images set it, and every one of the thousands of programs that tests start would compile its modules again.
unexport PYTHONDONTWRITEBYTECODE

NATIVE_SOURCES := $(shell find csrc nccl_shim mfsd -name '*.[ch]' -o -name '*.map' -o -name '*.pyx' -o -name '*.pxi' 2>/dev/null | grep -v -e _native.c$$ -e _headers.pxi$$ -e capi.c$$) $(wildcard mfsd/_build/*.py)

.DEFAULT_GOAL := help
.PHONY: help setup demo demo-serve test e2e-vllm e2e-nixl types style lint bench dist man screenshots sanitize fuzz afternoon soak rdma-vm clean

help: ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

$(VENV)/system: tools/system-packages
	tools/system-packages
	@mkdir -p $(VENV) && touch $@

$(VENV)/bench-system: tools/system-packages
	tools/system-packages bench
	@mkdir -p $(VENV) && touch $@

# atheris has wheels for some Pythons only; without it the targets in Python get random mutations.
$(VENV)/fuzz-system: tools/system-packages
	tools/system-packages fuzz
	$(BIN)/python tools/dependencies.py fuzz | $(BIN)/pip install --quiet --only-binary :all: -r /dev/stdin || echo "No wheel of atheris for this Python: mutations instead of coverage."
	@touch $@

$(VENV)/rdma-vm-system: tools/system-packages
	tools/system-packages rdma-vm
	@mkdir -p $(VENV) && touch $@

$(VENV)/pip: $(VENV)/system pyproject.toml tools/dependencies.py
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/python tools/dependencies.py build-system | $(BIN)/pip install --quiet -r /dev/stdin
	@touch $@

$(VENV)/python: $(VENV)/pip
	@echo "Installing Python packages into $(VENV) (a minute or two the first time) ..."
	$(BIN)/python tools/dependencies.py bench,learn,otel,ray,gateway,switch-check,dev | $(BIN)/pip install --quiet -r /dev/stdin
	@touch $@

# Beside the packages, with `make --jobs=2`.
$(VENV)/built: $(VENV)/pip setup.py $(NATIVE_SOURCES)
	@echo "Building the native parts ..."
	@mkdir -p build
	@$(BIN)/pip install --quiet --no-build-isolation --no-deps --editable . >build/setup.log 2>&1 || { cat build/setup.log; exit 1; }
	@touch $@

setup: $(VENV)/python $(VENV)/built ## install system packages (as root), Python packages, build the native parts

demo: setup ## a serving cluster in network namespaces: no scheduler, fixed priorities, MFS, MFS with requests (two minutes)
	$(BIN)/python -m bench.testbed.demo

demo-serve: setup ## three vLLM servers behind one gateway, one killed while requests stream (installs 4 GB, then three minutes)
	PYTHON=$(PYTHON) tools/e2e-vllm-setup build/e2e-vllm
	$(BIN)/python -m tests.e2e.demo_serve

# Those that compute, one for each of two cores; three at a time of those that also wait, each in namespaces or on ports
# of its own; then those that need the links and the cores to themselves.
test: setup ## set up and run every test
	tools/run-tests -q -n 2 tests/unit tests/model tests/fuzz
	tools/run-tests -q -n 3 --dist loadfile --no-loadscope-reorder -m "not alone" tests/fault tests/integration tests/e2e tests/gpu
	tools/run-tests -q -m alone tests/fault tests/integration

e2e-vllm: setup ## vLLM, prefill and decode apart, with Mooncake over RDMA under MFS (installs 4 GB, twenty minutes)
	PYTHON=$(PYTHON) tools/e2e-vllm-setup build/e2e-vllm
	MFS_E2E=1 $(BIN)/python -m pytest -q -s tests/e2e

e2e-nixl: setup ## vLLM, prefill and decode apart, with NIXL over RDMA and over TCP under MFS (installs 4 GB, ten minutes)
	PYTHON=$(PYTHON) tools/e2e-vllm-setup build/e2e-vllm
	MFS_E2E=1 $(BIN)/python -m pytest -q -s tests/e2e/test_nixl.py tests/e2e/test_nixl_push.py tests/e2e/test_lmcache.py tests/integration/test_nixl_plugin.py tests/integration/test_nixl_lanes.py

types: setup
	$(BIN)/mypy

lint: types style ## formatters, type checkers, lengths of functions, what nothing uses

style: setup
	$(BIN)/ruff check .
	tools/lint-c
	$(BIN)/ruff format --check .
	$(BIN)/python tools/function_length.py
	$(BIN)/python tools/unused.py

bench: setup $(VENV)/bench-system ## measure everything beside its peers, write docs/benchmarks.md
	$(BIN)/python -m bench.report

dist: setup ## build sdist and wheel into dist/, check metadata, tags and configuration
	$(BIN)/python -m tests.support.packaged >build/dist.of
	rm -rf dist && $(BIN)/python -m build --outdir dist . >build/dist.log 2>&1 || { tail -30 build/dist.log; exit 1; }
	$(BIN)/twine check --strict dist/*
	$(BIN)/auditwheel show dist/*.whl
	$(BIN)/cibuildwheel --platform linux --archs x86_64 --print-build-identifiers
	mv build/dist.of dist/of

man: setup ## write the manual pages from the commands' help
	$(BIN)/python -m mfsd.cli.manual docs/man

screenshots: setup ## take the pictures of the coordinator's page in docs/ anew
	MFS_SCREENSHOTS=docs/screenshots $(BIN)/python -m pytest -q tests/unit/observe/test_web.py

sanitize: setup ## build and run the native parts under address, undefined and thread sanitizers
	$(BIN)/python -m pytest -q tests/unit/rmlq tests/unit/core tests/unit/shim tests/unit/nixl
	PYTHON=$(BIN)/python tools/sanitize-soft-roce

FUZZ_SECONDS ?= 600
fuzz: setup $(VENV)/fuzz-system ## feed the parsers of foreign bytes for FUZZ_SECONDS each, by coverage
	$(BIN)/python -m tests.fuzz --seconds $(FUZZ_SECONDS)

afternoon: setup ## run docs/afternoon.md as it stands, in a clean system of namespaces (as root, three minutes)
	$(BIN)/python -m tests.afternoon

SOAK_SECONDS ?= 3600
soak: setup ## move bytes for SOAK_SECONDS while daemons, coordinators, etcd and programs are killed at random
	$(BIN)/python -m tests.soak --seconds $(SOAK_SECONDS)

rdma-vm: setup $(VENV)/rdma-vm-system ## shim, daemon and lanes on the kernel's own Soft-RoCE, in a virtual machine (five minutes)
	$(BIN)/python tests/rdma_vm/run.py

clean: ## remove what was built
	rm -rf $(VENV) build out *.egg-info mfsd/_native*.so mfsd/_native.c mfsd/_headers.pxi mfsd/capi*.so mfsd/capi.c nccl_shim/*.so mfsd/soft_roce/*.so
