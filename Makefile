# `make demo` and `make test` need Python 3.11 or later and a C++ compiler; everything else comes from PyPI.
# CPU-only torch: make PIP_ARGS="--extra-index-url https://download.pytorch.org/whl/cpu" demo
PYTHON ?= $(shell command -v python3.11 || command -v python3)
PIP_ARGS ?=
PYTEST_ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
# torch_npu needs an environment of its own: where it is installed and CANN is not, a plain `import torch` fails.
NPU_VENV := .venv-npu
# Of the environment whose stamp file is being made.
PIP = $(@D)/bin/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS)
EXTRAS = $(@D)/bin/python -c 'import sys, tomllib; extras = tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]; print(*sum(map(extras.get, sys.argv[1:]), []), sep="\n")'

# What the native build and the installed metadata are made from: Python files are used where they lie.
SOURCES := pyproject.toml CMakeLists.txt nextn/runtime/contract/version.py $(shell find nextn/runtime/native third_party -type f)
CPP_FILES := $(shell find nextn/runtime/native examples tests -name '*.cpp' -o -name '*.h' -o -name '*.hpp')

.PHONY: demo test test-full test-npu test-npu-full bench lint clean

demo: $(VENV)/nextn
	$(BIN)/nextn-compile demo -o build/demo --force
	$(BIN)/nextn-run build/demo --prompt "The " --max-new-tokens 120
	head -n 8 nextn/weights/demo/prompts.jsonl | $(BIN)/nextn-run build/demo --requests - --max-new-tokens 120

test: $(VENV)/nextn $(VENV)/test
	$(BIN)/pytest $(PYTEST_ARGS)

test-full: $(VENV)/nextn $(VENV)/test
	$(BIN)/pytest -m "full or not full" $(PYTEST_ARGS)

# The Ascend tests, on a fake CANN (tests/fakes/cann): no NPU and no CANN are needed.
NPU_PYTEST = $(NPU_VENV)/bin/pytest tests/fakes tests/npu

test-npu: $(NPU_VENV)/nextn $(NPU_VENV)/npu
	$(NPU_PYTEST) $(PYTEST_ARGS)

test-npu-full: $(NPU_VENV)/nextn $(NPU_VENV)/npu
	$(NPU_PYTEST) -m "full or not full" $(PYTEST_ARGS)

bench: $(VENV)/nextn $(VENV)/test
	$(BIN)/nextn-compile demo -o build/demo --force
	$(BIN)/nextn-compile demo -o build/demo-onnx --emit onnx --force
	$(BIN)/python benchmarks/demo.py build/demo --onnx build/demo-onnx

lint: $(VENV)/nextn $(VENV)/test $(VENV)/lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run --Werror $(CPP_FILES)
	$(BIN)/mypy --strict -p nextn.weights -p nextn.runtime
	$(BIN)/mypy -p nextn

clean:
	rm -rf build $(VENV) $(NPU_VENV)

$(VENV)/bin/python $(NPU_VENV)/bin/python: %/bin/python:
	$(PYTHON) -m venv $*

$(VENV)/nextn $(NPU_VENV)/nextn: %/nextn: %/bin/python $(SOURCES)
	$(PIP) "scikit-build-core==1.1.2" "cmake>=3.26" "ninja>=1.11"
	$(PIP) --no-build-isolation --editable . --config-settings=build-dir=$(*:.venv%=build/cmake%)
	touch $@

$(VENV)/test $(VENV)/lint: $(VENV)/%: $(BIN)/python pyproject.toml
	$(EXTRAS) $* > $@.txt
	$(PIP) --requirement $@.txt
	mv $@.txt $@

# After nextn, which brings torch: torch_npu itself, without what it asks for, then what it really needs.
$(NPU_VENV)/npu: $(NPU_VENV)/nextn pyproject.toml
	$(PIP) --no-deps "torch_npu==$(shell sed -n 's/^    "torch==\(.*\)",$$/\1/p' pyproject.toml)"
	$(EXTRAS) test npu > $@.txt
	$(PIP) --requirement $@.txt
	mv $@.txt $@
