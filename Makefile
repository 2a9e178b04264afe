# Two commands do everything: `make up` and `make test`.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check

# Where the compiler would use AMX: GCC 12 needs two intrinsics mended, or llama.cpp's first decode dies. Others
# were not tried with AMX, so llama.cpp is built without it. A decode with AMX takes 0.7 of the time.
COMPILER := $(shell echo | $(CXX) -march=native -dM -E -x c++ - 2>/dev/null)
ifneq ($(findstring __AMX_INT8__,$(COMPILER)),)
ifeq ($(findstring __clang__,$(COMPILER))$(findstring __GNUC__ 12,$(COMPILER))$(words $(CURDIR)),__GNUC__ 121)
export CXXFLAGS += -include $(CURDIR)/server/llama/amx_tiles.h
else
NO_AMX := -mno-amx-tile -mno-amx-int8 -mno-amx-bf16
export CFLAGS := $(CFLAGS) $(NO_AMX)
export CXXFLAGS := $(CXXFLAGS) $(NO_AMX)
endif
endif

# Part of a model may be computed on other machines: duo lend there, --rpc here.
export CMAKE_ARGS += -DGGML_RPC=ON
# Pictures only, not videos, which would need another program.
export CMAKE_ARGS += -DMTMD_VIDEO=OFF
ifeq ($(words $(CURDIR)),1)  # CMAKE_ARGS is split at spaces
export CMAKE_ARGS += -DCMAKE_PROJECT_INCLUDE=$(CURDIR)/.ci/llama.cmake
endif

.PHONY: up test lint type bench chaos soak fuzz docs openapi lock clean

up: $(VENV)/.runtime  ## install, then run: embedded Redis, lead, drafter, chat page on http://127.0.0.1:5555
	$(BIN)/duo up $(ARGS)

test: $(VENV)/.dev  ## every test, fast ones first, in two processes
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder $(ARGS)

lint: $(VENV)/.dev
	$(BIN)/ruff check . && $(BIN)/ruff format --check .

type: $(VENV)/.dev
	$(BIN)/pyright

bench: $(VENV)/.dev  ## beside llama-server: make bench ARGS="--llama-server PATH"
	$(BIN)/python -m benchmarks.compare $(ARGS)

chaos: $(VENV)/.dev  ## faults by seeds, on toys and on the bundled models: make chaos SEEDS=1000 MODEL_SEEDS=100
	$(BIN)/python -m tests.chaos.seeds --seeds $(or $(SEEDS),100)
	$(BIN)/python -m tests.chaos.seeds --seeds $(or $(MODEL_SEEDS),10) --models
	$(BIN)/python -m tests.chaos.pools --seeds $(or $(POOL_SEEDS),20)
	$(BIN)/python -m tests.chaos.engines --seeds $(or $(ENGINE_SEEDS),20)

soak: $(VENV)/.dev  ## a lead that lives for an hour: make soak ARGS="--minutes 5"
	$(BIN)/python -m benchmarks.soak $(ARGS)

fuzz: $(VENV)/.dev  ## strange input led by coverage, a minute for each target; then many more strange requests
	$(PIP) "atheris>=3.0"
	for target in $(or $(TARGETS),$$($(BIN)/python -m tests.fuzz --list)); do \
		$(BIN)/python -m tests.fuzz $$target .fuzz/$$target -max_total_time=$(or $(FUZZ_S),60) || exit 1; done
	DUO_EXAMPLES=$(or $(EXAMPLES),1000) $(BIN)/python -m pytest -q -p no:randomly --timeout 0 tests/contract/test_anything.py

docs: $(VENV)/.runtime  ## renew docs/settings.md
	$(BIN)/python -m server.settings_page > docs/settings.md.new && mv docs/settings.md.new docs/settings.md

openapi: $(VENV)/.dev  ## renew openapi.yaml
	$(BIN)/python -m server.api.contract > openapi.yaml.new && mv openapi.yaml.new openapi.yaml

lock: | $(VENV)/bin/python  ## renew the locked requirements and their hashes
	$(PIP) uv
	$(BIN)/uv pip compile --quiet --universal --no-header --no-annotate --no-emit-index-url --generate-hashes pyproject.toml -o requirements.lock
	$(BIN)/uv pip compile --quiet --universal --no-header --no-annotate --no-emit-index-url --generate-hashes --extra dev --extra clients -c requirements.lock pyproject.toml -o requirements-dev.lock

clean:
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .hypothesis

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

# Without pip's cache, which does not know how its llama.cpp was compiled.
$(VENV)/.runtime: requirements.lock pyproject.toml | $(VENV)/bin/python
	@echo "Installing into $(VENV). llama.cpp is compiled once: two to six minutes on two cores."
	@$(BIN)/python .ci/install.py --no-cache-dir install --require-hashes -r requirements.lock
	$(PIP) --no-deps -e .
	@touch $@

$(VENV)/.dev: requirements-dev.lock $(VENV)/.runtime
	$(PIP) --no-compile --require-hashes -r requirements-dev.lock  # compiled where they are imported
	@touch $@
