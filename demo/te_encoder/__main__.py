# SPDX-License-Identifier: Apache-2.0
"""Runs TransformerEngine's encoder example for JAX as it is: in bf16, then in FP8.

usage: python -m demo.te_encoder [--source FOLDER] [ARGS of the example]

The example is not in TransformerEngine's wheel; FOLDER is a checkout of its repository. Where the
example's packages for data are not installed, sentences that a rule makes stand for CoLA's.
"""

import argparse
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

REPOSITORY = "https://github.com/NVIDIA/TransformerEngine"
EXAMPLE = Path("examples/jax/encoder/test_single_gpu_encoder.py")
FOR_MODEL, FOR_DATA = ("jax", "flax", "optax"), ("datasets", "nltk")
STAND_IN = Path(__file__).with_name("stand_in")
SHORT = ("--epochs", "2", "--lr", "0.0005")


def missing(packages: tuple[str, ...]) -> list[str]:
    """Returns those of the packages that are not installed."""
    return [name for name in packages if importlib.util.find_spec(name) is None]


def environment(lacking: list[str]) -> dict[str, str]:
    """Returns the variables of the example's process; stand-ins are found where data lack."""
    folders = [str(STAND_IN)] if lacking else []
    folders += [folder for folder in [os.environ.get("PYTHONPATH", "")] if folder]
    return {
        **os.environ,
        "NVTE_FRAMEWORK": "jax",
        "PYTHONPATH": os.pathsep.join(folders),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--source", type=Path, default=Path("../TransformerEngine"))
    options, arguments = parser.parse_known_args()
    script = options.source / EXAMPLE
    if not script.is_file():
        print(f"te_encoder: skipped, no {script}; git clone --depth 1 {REPOSITORY}")
        return
    if absent := missing(FOR_MODEL):
        print(f"te_encoder: skipped, not installed: {', '.join(absent)}")
        return
    lacking = missing(FOR_DATA)
    if lacking:
        print(f"te_encoder: not installed: {', '.join(lacking)}; the data are not CoLA's")
        print("te_encoder: 1024 sentences by a rule stand for them; losses compare to each other")
    for fp8 in ([], ["--use-fp8"]):
        command = [sys.executable, "-m", "narrowfloat.te", str(script)]
        command += [*(arguments or SHORT), *fp8]
        subprocess.run(command, env=environment(lacking), check=True)


if __name__ == "__main__":
    main()
