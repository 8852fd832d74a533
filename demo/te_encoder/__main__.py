# SPDX-License-Identifier: Apache-2.0
"""Runs TransformerEngine's encoder example for JAX unchanged: in bf16, then in FP8.

usage: python -m demo.te_encoder [--source FOLDER] [--cola FOLDER] [ARGS of the example]

The example is not in TransformerEngine's wheel; --source is a checkout of its repository. If the
example's data packages are not installed, CoLA is read from --cola, a checkout of its repository;
without --cola, generated sentences replace CoLA's.
"""

import argparse
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

REPOSITORY = "https://github.com/NVIDIA/TransformerEngine"
COLA_REPOSITORY = "https://github.com/nyu-mll/CoLA-baselines"
EXAMPLE = Path("examples/jax/encoder/test_single_gpu_encoder.py")
FOR_MODEL, FOR_DATA = ("jax", "flax", "optax"), ("datasets", "nltk")
COLA = Path("acceptability_corpus/cola_public/tokenized")
COLA_VARIABLE = "NF_DEMO_COLA"  # the folder of CoLA's files, for stand_in/datasets.py
STAND_IN = Path(__file__).with_name("stand_in")
SHORT = ("--epochs", "2", "--lr", "0.0005")


def missing(packages: tuple[str, ...]) -> list[str]:
    """Returns the packages that are not installed."""
    return [name for name in packages if importlib.util.find_spec(name) is None]


def environment(lacking: list[str], cola: Path | None) -> dict[str, str]:
    """Returns the variables of the example's process, with stand_in/ on its path if needed."""
    folders = [str(STAND_IN)] if lacking else []
    folders += [folder for folder in [os.environ.get("PYTHONPATH", "")] if folder]
    return {
        **os.environ,
        "NVTE_FRAMEWORK": "jax",
        "PYTHONPATH": os.pathsep.join(folders),
        COLA_VARIABLE: "" if cola is None else str((cola / COLA).resolve()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--source", type=Path, default=Path("../TransformerEngine"))
    parser.add_argument("--cola", type=Path)
    options, arguments = parser.parse_known_args()
    if options.cola is not None and not (options.cola / COLA).is_dir():
        parser.error(f"--cola needs a checkout of {COLA_REPOSITORY}, got {options.cola}")
    script = options.source / EXAMPLE
    if not script.is_file():
        print(f"te_encoder: skipped, no {script}; git clone --depth 1 {REPOSITORY}")
        return
    if absent := missing(FOR_MODEL):
        print(f"te_encoder: skipped, not installed: {', '.join(absent)}")
        return
    lacking = missing(FOR_DATA)
    if lacking and options.cola is not None:
        print(f"te_encoder: not installed: {', '.join(lacking)}; CoLA, in lower case, is read from")
        print(f"te_encoder: {options.cola / COLA}")
    elif lacking:
        print(f"te_encoder: not installed: {', '.join(lacking)}; the data are not CoLA's")
        print("te_encoder: 1024 sentences by a rule stand for them; compare losses with each other")
    for fp8 in ([], ["--use-fp8"]):
        command = [sys.executable, "-m", "narrowfloat.te", str(script)]
        command += [*(arguments or SHORT), *fp8]
        subprocess.run(command, env=environment(lacking, options.cola), check=True)


if __name__ == "__main__":
    main()
