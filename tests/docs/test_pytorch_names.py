# SPDX-License-Identifier: Apache-2.0
"""Checks that the tables of TransformerEngine's names state the names of narrowfloat.pytorch."""

import subprocess
import sys
from pathlib import Path

import pytest
import pytorch_names
import te_names
import update_readme
from pytorch_names import ABSENT, GPU, HERE

MODULES = pytorch_names.listed()["modules"]
REMAKE = "run .venv/bin/python scripts/update_readme.py names all-names"


@pytest.mark.parametrize("section", ["names", "all-names"])
def test_the_tables_are_what_the_package_has(section: str) -> None:
    _, generate = update_readme.SECTIONS[section]
    assert update_readme.section(section) == generate(), REMAKE


@pytest.mark.parametrize("module", MODULES)
def test_exported_names_are_transformer_engines_or_listed_as_ours(module: str) -> None:
    assert pytorch_names.beside(module) == pytorch_names.OURS.get(module, set())


def test_names_of_an_all_are_there() -> None:
    for module in map(pytorch_names.module_here, MODULES):
        missing = [name for name in getattr(module, "__all__", ()) if not hasattr(module, name)]
        assert missing == [], module


def test_every_name_has_one_row_and_every_row_has_names() -> None:
    rows = {pytorch_names.theme_of(module).title for module, _ in pytorch_names.homes()}
    assert rows == {theme.title for theme in pytorch_names.THEMES}
    named = {name for _, name in pytorch_names.homes()}
    for module in filter(pytorch_names.is_package, MODULES):
        exported = set(MODULES[module])
        assert exported - named <= {
            "constants",
            "load_framework_extension",
            "ops",
            "optimizers",
        }  # modules


def test_gpu_names_are_names_of_transformer_engine() -> None:
    assert pytorch_names.GPU_NAMES <= {name for names in MODULES.values() for name in names}


def test_states_of_names_that_are_known() -> None:
    state = pytorch_names.state_of
    assert state("transformer_engine.pytorch", "MXFP8Quantizer") == HERE
    assert state("transformer_engine.pytorch", "TransformerLayer") == ABSENT
    assert state("transformer_engine.pytorch", "initialize_ub") == GPU
    assert state("transformer_engine.pytorch.graph", "make_graphed_callables") == GPU
    assert state("transformer_engine_torch", "quantize") == HERE


def test_a_broken_import_is_not_an_absent_module(monkeypatch: pytest.MonkeyPatch) -> None:
    def needs_another(path: str) -> None:
        raise ModuleNotFoundError("No module named 'other'", name="other")

    monkeypatch.setattr(pytorch_names.importlib, "import_module", needs_another)
    with pytest.raises(ModuleNotFoundError, match=r"^No module named 'other'$"):
        pytorch_names.module_here.__wrapped__("transformer_engine.pytorch.tensor")


def write(folder: Path, path: str, text: str) -> None:
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    (folder / path).write_text(text)


def test_the_list_is_read_from_a_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    top = "transformer_engine/pytorch"
    write(tmp_path, f"{top}/__init__.py", "from .a import *\nfrom .b import thing as it\nimport os")
    write(
        tmp_path,
        f"{top}/a.py",
        "import transformer_engine_torch as tex\nfrom os import path\naten = LIMIT = _X = 1\n"
        "try:\n  def f(): return tex.quantize\nexcept E:\n  class G: pass\n",
    )
    write(tmp_path, f"{top}/_hidden.py", "def unseen(): return tex.gelu\n")
    write(tmp_path, f"{top}/ops/deep.py", "def unseen(): pass\n")
    write(tmp_path, "transformer_engine-1.2.dist-info/METADATA", "")
    monkeypatch.setattr(te_names, "LIST", tmp_path / "list.json")
    te_names.main(tmp_path)
    assert (tmp_path / "list.json").exists()
    monkeypatch.setattr(pytorch_names, "LIST", tmp_path / "list.json")
    assert pytorch_names.listed.__wrapped__() == {
        "package": "transformer_engine",
        "version": "1.2",
        "modules": {
            "transformer_engine.pytorch": ["G", "LIMIT", "f", "it"],
            "transformer_engine.pytorch.a": ["G", "LIMIT", "f"],
            "transformer_engine_torch": ["gelu", "quantize"],
        },
    }


def test_a_folder_without_a_wheel_is_refused(tmp_path: Path) -> None:
    text = rf"^te_names: {tmp_path} must hold one transformer_engine-\*.dist-info, got \[\]$"
    with pytest.raises(ValueError, match=text):
        te_names.version_of(tmp_path)


def test_transformer_engine_is_not_imported() -> None:
    listing = (
        "import sys, pytorch_names; pytorch_names.full_list(); "
        "sys.exit(any(name.startswith('transformer_engine') for name in sys.modules))"
    )
    scripts = Path(pytorch_names.__file__).parent
    subprocess.run([sys.executable, "-c", listing], cwd=scripts, check=True)
