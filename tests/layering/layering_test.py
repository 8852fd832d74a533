# SPDX-License-Identifier: Apache-2.0
"""Checks that layering.py reports bad includes of a temporary tree, and accepts good ones."""

import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from layering import offences


def found_in(path: str, include: str) -> list[str]:
    """Returns the offences of a tree that has one file with one include."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / path
        file.parent.mkdir(parents=True)
        file.write_text(f"// SPDX-License-Identifier: Apache-2.0\n#include {include}\n")
        return list(offences(Path(folder)))


class LayeringTest(unittest.TestCase):
    """Tests one include per row."""

    def test_bad_includes_are_found(self) -> None:
        rows = [
            ("narrowfloat/numerics/a.h", '"narrowfloat/schemes/scheme.h"',
             "numerics must not know schemes"),
            ("narrowfloat/kernels/cpu/a.cc", '"narrowfloat/ops/quantize.h"',
             "kernels must not know ops"),
            ("narrowfloat/kernels/cpu/a.cc", '"narrowfloat/schemes/registry.h"',
             "kernels must not know the list of schemes"),
            ("narrowfloat/ops/a.cc", '"narrowfloat/io/file.h"', "ops must not know io"),
            ("narrowfloat/config/a.h", '"narrowfloat/io/file.h"', "config must not know io"),
            ("narrowfloat/types/a.h", '"narrowfloat/c_api/a.h"', "types must not know c_api"),
            ("narrowfloat/ops/a.cc", "<nlohmann/json.hpp>", "ops must not know this library"),
            ("narrowfloat/tensor/a.cc", "<yaml-cpp/yaml.h>", "tensor must not know this library"),
            ("narrowfloat/types/a.cc", "<CLI/CLI.hpp>", "types must not know this library"),
            ("narrowfloat/io/a.cc", "<torch/extension.h>", "io must not know this library"),
            ("narrowfloat/ops/a.cc", '"quantize.h"', 'must read "narrowfloat/<folder>/<file>"'),
            ("narrowfloat/ops/a.cc", '"narrowfloat/quantize.h"', "reads no known folder"),
            ("narrowfloat/ops/a.cc", '"tests/conformance/tensors.h"',
             "only tests may include tests"),
            ("tools/a.cc", '"narrowfloat/helpers/a.h"', "reads no known folder"),
            ("narrowfloat/ops/a.cc", '"narrowfloat/kernels/kernel_table.h"',
             "only a backend may know this"),
            ("narrowfloat/ops/a.h", '"narrowfloat/ops/cpu/tiles.h"',
             "only a backend may know this"),
        ]  # fmt: skip
        for path, include, wrong in rows:
            target = include[1:-1]
            with self.subTest(path=path, include=include):
                self.assertEqual(found_in(path, include), [f"{path}:2: {target}: {wrong}"])

    def test_a_folder_without_a_place_is_found(self) -> None:
        self.assertEqual(
            found_in("narrowfloat/utils/a.h", "<vector>"),
            ["narrowfloat/utils/a.h: 'narrowfloat/utils' has no row in the table of dependencies"],
        )

    def test_good_includes_pass(self) -> None:
        rows = [
            ("narrowfloat/schemes/a.h", '"narrowfloat/numerics/codec.h"'),
            ("narrowfloat/kernels/cpu/a.cc", '"hwy/highway.h"'),
            ("narrowfloat/kernels/cpu/a.cc", '"narrowfloat/kernels/cpu/lanes-inl.h"'),
            ("narrowfloat/kernels/cpu/scheme_drivers.h", '"narrowfloat/schemes/registry.h"'),
            ("narrowfloat/io/a.cc", "<nlohmann/json.hpp>"),
            ("narrowfloat/io/a.cc", '"narrowfloat/config/selection.h"'),
            ("narrowfloat/numerics/codec_test.cc", '"tests/conformance/reference_codec.h"'),
            ("tools/a.cc", '"narrowfloat/narrowfloat.h"'),
            ("tools/a.cc", "<CLI/CLI.hpp>"),
            ("narrowfloat/ops/backend.cc", '"narrowfloat/ops/cpu/cpu_backend.h"'),
            ("narrowfloat/ops/cpu/a.cc", '"narrowfloat/kernels/kernel_table.h"'),
            ("narrowfloat/ops/a_test.cc", '"narrowfloat/kernels/kernel_table.h"'),
        ]
        for path, include in rows:
            with self.subTest(path=path, include=include):
                self.assertEqual(found_in(path, include), [])


if __name__ == "__main__":
    unittest.main()
