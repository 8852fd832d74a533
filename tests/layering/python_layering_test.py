# SPDX-License-Identifier: Apache-2.0
"""Checks that python_layering.py reports bad imports of a temporary package, and no good ones."""

import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from python_layering import offences


def found_in(files: dict[str, str]) -> list[str]:
    """Returns the offences of a package with these modules, given as path and text."""
    with tempfile.TemporaryDirectory() as folder:
        for path, text in files.items():
            file = Path(folder) / "narrowfloat" / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        return list(offences(Path(folder)))


QUANTIZER = "narrowfloat.pytorch.tensor.mxfp8_tensor"


class PythonLayeringTest(unittest.TestCase):
    """Tests one import per row."""

    def test_upward_imports_are_found(self) -> None:
        rows = [
            (
                "pytorch/tensor/storage/a.py",
                f"from {QUANTIZER} import MXFP8Quantizer",
                "narrowfloat.pytorch.tensor.storage must not know narrowfloat.pytorch.tensor",
            ),
            (
                "pytorch/a.py",
                f"def late():\n    import {QUANTIZER}",
                "narrowfloat.pytorch must not know narrowfloat.pytorch.tensor",
            ),
            (
                "jax/a.py",
                "from narrowfloat.pytorch.tensor import mxfp8_tensor",
                "narrowfloat.jax must not know narrowfloat.pytorch.tensor",
            ),
            (
                "common/a.py",
                f"import {QUANTIZER}",
                "narrowfloat.common must not know narrowfloat.pytorch.tensor",
            ),
        ]
        for path, text, wrong in rows:
            module = "narrowfloat." + path.removesuffix(".py").replace("/", ".")
            line = text.count("\n") + 1
            with self.subTest(path=path):
                found = found_in({path: text, "pytorch/tensor/mxfp8_tensor.py": ""})
                self.assertEqual(found, [f"{module}:{line}: {QUANTIZER}: {wrong}"])

    def test_cycles_inside_a_layer_are_found(self) -> None:
        first = "from narrowfloat.pytorch.tensor.b import B"
        for second in ("import narrowfloat.pytorch.tensor.a",
                       "def late():\n    from narrowfloat.pytorch.tensor import a"):  # fmt: skip
            with self.subTest(second=second):
                (found,) = found_in({"pytorch/tensor/a.py": first, "pytorch/tensor/b.py": second})
                self.assertRegex(found, r"^a cycle of imports: .*tensor\.(a|b) <- .*tensor\.(a|b)")

    def test_a_folder_without_a_place_is_found(self) -> None:
        self.assertEqual(
            found_in({"tools/a.py": ""}),
            ["narrowfloat.tools.a: has no row in the table of dependencies"],
        )

    def test_good_imports_pass(self) -> None:
        rows = [
            {"pytorch/tensor/a.py": "from narrowfloat.pytorch.tensor.storage import b",
             "pytorch/tensor/storage/b.py": "from narrowfloat import _core"},
            {"debug/a.py": f"import {QUANTIZER}", "pytorch/tensor/mxfp8_tensor.py": ""},
            {"pytorch/tensor/storage/a.py":
                f"from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import {QUANTIZER}",
             "pytorch/tensor/mxfp8_tensor.py": "import narrowfloat.pytorch.tensor.storage.a"},
            {"jax/a.py": "import torch, numpy\nfrom narrowfloat.common import recipe",
             "common/recipe.py": ""},
        ]  # fmt: skip
        for files in rows:
            with self.subTest(files=files):
                self.assertEqual(found_in(files), [])


if __name__ == "__main__":
    unittest.main()
