# SPDX-License-Identifier: Apache-2.0
# From a fresh Debian or Ubuntu to a result in one command. Each step is a script in scripts/.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help test try check check-deep docs demo demo-te train format build wheel venv system system-deep system-docs \
  model clean

# NF_SYSTEM=ready: the system packages are installed, do not check.

# ccache sees paths relative to the build folder and one name of the compiler, so that builds and
# clones share objects.
export CXX
export CCACHE_BASEDIR := $(CURDIR)
export CCACHE_NOHASHDIR := 1
export CCACHE_SLOPPINESS := pch_defines,time_macros
export CMAKE_CXX_COMPILER_LAUNCHER ?= $(shell command -v ccache)
export CMAKE_BUILD_PARALLEL_LEVEL ?= $(shell nproc)

help:
	@echo 'To use:'
	@echo '  make demo        quantize a real sentence model in every scheme, show what it costs'
	@echo '  make train       train a small transformer under every recipe, draw the loss curves'
	@echo '  make demo-te     run TransformerEngine itself on the CPU: train a small GPT under every recipe'
	@echo '  make wheel       build the wheel and install it into .venv'
	@echo
	@echo 'To work on it (CONTRIBUTING.md):'
	@echo '  make try K=micro_kernels S=mxfp8_e4m3'
	@echo '                   after a change to a kernel: build it, run its tests of one scheme'
	@echo '  make check       before a commit: format, lint, the quick tests'
	@echo '  make test        before a merge: build everything, run the C++ and the Python tests'
	@echo '  make check-deep  before a release: format, lint, types, API reference, tidy, sanitizers, fuzzing, CUDA build,'
	@echo '                   wheel, clang++, AVX-512, aarch64, the oldest PyTorch and JAX, every TransformerEngine,'
	@echo '                   the owners of conventions of checkpoints, the report in a browser;'
	@echo '                   PARTS="format tidy" selects some of: $(shell scripts/check_deep.sh --list)'
	@echo '  make format      format C++ and Python in place'
	@echo '  make docs        the API reference and the guides as HTML, in build/docs'
	@echo '  make build       the C++ build in build/release'
	@echo '  make clean       remove build/ and .venv/'

test: build wheel model
	@scripts/test.sh

try: system
	@scripts/try.sh "$(K)" "$(S)"

check: wheel
	@scripts/check.sh

docs: system-docs wheel
	@scripts/docs.sh

demo: wheel model
	@.venv/bin/python -m demo.run

train: wheel
	@.venv/bin/python examples/train.py

demo-te: wheel
	@.venv/bin/python -m narrowfloat.te examples/te_gpt.py
	@.venv/bin/python -m demo.te_encoder

check-deep: system-deep venv
	@scripts/check_deep.sh $(PARTS)

format: venv
	@scripts/format.sh --fix

build: system
	@scripts/build.sh release

wheel: venv
	@scripts/wheel.sh

model: venv
	@scripts/model.sh

venv: system
	@scripts/venv.sh

system:
	@[[ "$(NF_SYSTEM)" == ready ]] || scripts/system.sh scripts/packages.txt

system-deep:
	@[[ "$(NF_SYSTEM)" == ready ]] || scripts/system.sh scripts/packages.txt scripts/packages-deep.txt

system-docs:
	@[[ "$(NF_SYSTEM)" == ready ]] || scripts/system.sh scripts/packages.txt scripts/packages-docs.txt

clean:
	rm -rf build .venv
