# SPDX-License-Identifier: Apache-2.0
# make test, make demo, make demo-te, make train: from a fresh Debian or Ubuntu to the result. What
# each step does stands in scripts/.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help test demo demo-te train check-deep format build wheel venv system system-deep model clean

# NF_SYSTEM=ready: the system packages are there, do not look.

# ccache sees paths relative to the build folder and one name of the compiler, so that builds and
# clones share objects.
export CXX
export CCACHE_BASEDIR := $(CURDIR)
export CCACHE_NOHASHDIR := 1
export CCACHE_SLOPPINESS := time_macros
export CMAKE_CXX_COMPILER_LAUNCHER ?= $(shell command -v ccache)
export CMAKE_BUILD_PARALLEL_LEVEL ?= $(shell nproc)

help:
	@echo 'make test        build everything, run the C++ and the Python tests'
	@echo 'make demo        quantize a real sentence model in every scheme, show what it costs'
	@echo 'make train       train a small transformer under every recipe, draw the loss curves'
	@echo 'make demo-te     run TransformerEngine itself on the CPU: train a small GPT under every recipe'
	@echo 'make check-deep  format, lint, tidy, sanitizers, fuzzing, CUDA compile, wheel, AVX-512,'
	@echo '                 the oldest PyTorch and JAX that the package takes, every TransformerEngine;'
	@echo '                 PARTS="format tidy" picks some of: $(shell scripts/check_deep.sh --list)'
	@echo 'make format      format C++ and Python in place'
	@echo 'make build       the C++ build in build/release'
	@echo 'make wheel       the wheel, installed into .venv'
	@echo 'make clean       remove build/ and .venv/'

test: build wheel model
	@scripts/test.sh

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

clean:
	rm -rf build .venv
