# SPDX-License-Identifier: Apache-2.0
"""Tests the package around the module: stubs, names, the entry point, thin Python."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from narrowfloat._options import QuantizeOptions

import narrowfloat as nf

PYTHON = Path(__file__).parents[2] / "python" / "narrowfloat"


def test_stubs_are_those_of_the_module(tmp_path: Path) -> None:
    pytest.importorskip("nanobind", reason="nanobind, which generates the stubs, is not installed")
    made = tmp_path / "_core.pyi"
    script = PYTHON.parents[1] / "scripts" / "core_stubs.py"
    subprocess.run([sys.executable, script, made], check=True)
    assert (PYTHON / "_core.pyi").read_text() == made.read_text(), (
        "remake it: python scripts/core_stubs.py"
    )


def test_the_stubs_have_every_option() -> None:
    """Checks that the stubs have the core's options, so that type checkers refuse only others."""
    message = "unknown option 'swizled'; there are: (.*)"
    with pytest.raises(TypeError, match=message) as caught:
        nf.quantize(np.zeros((32, 32), np.float32), "mxfp8_e4m3", swizled=True)
    known = re.search(message, str(caught.value))
    assert known is not None
    assert sorted(QuantizeOptions.__annotations__) == known[1].split(", ")


def test_every_public_name_is_there_and_documented() -> None:
    assert sorted(nf.__all__) == nf.__all__
    for name in nf.__all__:
        documented = getattr(nf, name)
        if not name.startswith("__"):
            assert documented.__doc__, name
    assert (Path(nf.__file__).parent / "py.typed").exists()


# By file: numbers that are not facts of a format.
NO_FACTS = {
    "common/recipe/custom.py": {128},  # TransformerEngine's default alignment of custom recipes
    "common/recipe/per_tensor.py": {1024},  # steps of an amax history
    "debug/_config_file.py": {32, 100_000},  # bounds on the content of a file
    "debug/__main__.py": {141},  # the exit code of a program that SIGPIPE ended
    "debug/_statistic_values.py": {100},  # per cent
    "jax/quantize/serialization.py": {63, 100, 65536},  # bounds on the content of a file
    "te/_explain.py": {70},  # characters of a line of code that are shown
    "te/jax/fused.py": {5},  # the number of results of its primitive that are kept
    "te/_settings.py": {9, 10},  # generations of CUDA devices
    "te/_host.py": {17, 20},  # TransformerEngine's versions
    "te/_code_cache.py": {0o700},  # permissions of the user alone
    "te/cuda.py": {1e3},  # milliseconds
    "pytorch/_plans.py": {1024, 4096},  # entries of caches
    "pytorch/constants.py": {5, 6, 7, 8, 10},  # TransformerEngine's numbers of item types
    "pytorch/quantization/dtypes.py": {16, 128},  # alignments of products on GPUs
    "pytorch/tensor/storage/_aliases.py": {8},  # entries before old ones are removed
    "pytorch/tensor/_hosted.py": {9, 10},  # generations of CUDA devices
    "pytorch/tensor/_layouts.py": {64, 1024},  # entries of caches
    "pytorch/tensor/nvfp4_tensor.py": {256},  # the other bound of E4M3 scales in 4over6
    "pytorch/tex/activations.py": {7, 25},  # TransformerEngine's default limits
    "pytorch/tex/_bits.py": {8},  # bits of a byte
    "pytorch/tex/attention.py": {91_900},  # a release of cuDNN
    "pytorch/tex/dropout.py": {256},  # the number of values of a random draw
    "pytorch/tex/enums.py": {100},  # TransformerEngine's numbers
    "pytorch/tex/gemm.py": {130_300},  # a version of cuBLASLt
    "pytorch/tex/optimizers.py": {5, 8},  # numbers of lists of tensors in arguments
    "pytorch/tex/_scores.py": {20},  # where softplus is linear in float32
    "pytorch/tex/scaled_activations.py": {7, 25, 32},  # its default limits, columns of a vector
    "pytorch/cpp_extensions/_expanded_product.py": {2_000_000},  # the fewest terms that gain time
    "pytorch/tex/casts.py": {64, 128},  # shapes that a GPU's fused kernels take
    "pytorch/tex/_cache.py": {18},  # as a power of two: elements that fit in a cache
    "common/constants.py": {10_000},  # TransformerEngine's kernels write it over masked scores
    "te/jax/native.py": {
        10,
        11_200,
        13_000,
        91_300,
        130_100,
    },  # a generation, versions of libraries
    "pytorch/utils.py": {9},  # a generation of CUDA devices
}


def test_python_has_no_numerics() -> None:
    """Checks that Python reads formats, block sizes and scheme names from the module.

    The references of custom_recipes are for reading, so they contain such constants.
    """
    for path in sorted(PYTHON.rglob("*.py")):
        place = path.relative_to(PYTHON)
        if "custom_recipes" in place.parts:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Constant):
                continue
            where = f"{place}:{node.lineno}"
            if isinstance(node.value, int | float) and not isinstance(node.value, bool):
                allowed = abs(node.value) <= 4 or node.value in NO_FACTS.get(str(place), ())
                assert allowed, f"{where}: {node.value} is a fact of the core"
            if isinstance(node.value, str) and not node.value.count("\n"):
                assert node.value not in nf.schemes(), f"{where}: ask schemes()"


def test_the_version_is_that_of_the_build() -> None:
    text = (PYTHON.parents[1] / "CMakeLists.txt").read_text()
    assert nf.__version__ == re.search(r"project\(narrowfloat VERSION ([0-9.]+)", text)[1]


def test_the_entry_point_imports_next_to_nothing() -> None:
    """Checks the imports: starting Python takes most of the time, and NumPy ten times as long."""
    project = (PYTHON.parents[1] / "pyproject.toml").read_text(encoding="utf-8")
    assert '\nnarrowfloat = "narrowfloat_cli:main"\n' in project
    source = "import sys, narrowfloat_cli; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-S", "-c", source], capture_output=True, text=True,
                         env={"PYTHONPATH": str(PYTHON.parent)}, check=True)  # fmt: skip
    assert not {"narrowfloat", "numpy", "pathlib", "re"} & set(run.stdout.split())


@pytest.mark.parametrize(
    ("face", "framework", "message"),
    [
        ("pytorch", "torch", "narrowfloat.pytorch needs PyTorch: pip install 'narrowfloat[torch]'"),
        ("jax", "jax", "narrowfloat.jax needs JAX: pip install 'narrowfloat[jax]'"),
    ],
)
def test_a_face_without_its_framework_says_what_to_install(
    face: str, framework: str, message: str
) -> None:
    source = f"import sys; sys.modules['{framework}'] = None; import narrowfloat.{face}"
    run = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True)
    assert run.returncode == 1
    assert run.stderr.endswith(f"ModuleNotFoundError: {message}\n")


def test_the_entry_point_runs_the_program() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "narrowfloat", "version"], capture_output=True, text=True
    )
    program = Path(nf.__file__).parent / "bin" / "narrowfloat"
    if program.is_file():
        assert run.returncode == 0 and nf.__version__ in run.stdout
    else:
        assert run.returncode == 3
        assert run.stderr == f"narrowfloat: this build has no command line ({program})\n"
