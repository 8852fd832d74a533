# SPDX-License-Identifier: Apache-2.0
"""Tests the import of a package that looks like TransformerEngine, and its effects elsewhere."""

import os
import sys
import tempfile
from pathlib import Path
from unittest.mock import Mock

import pytest
from lookalike import Run, write
from narrowfloat.te import _code_cache

START = "import narrowfloat.te, transformer_engine.pytorch as te; "


def test_the_package_sees_the_stand_in_and_others_see_pytorch(run: Run, site: Path) -> None:
    write(site, {"other.py": "import torch\ndef cuda():\n    return torch.cuda.is_available()"})
    program = """
import torch
before = torch.cuda, torch.version.cuda, torch.device, torch.cuda.get_device_capability
import narrowfloat.te
narrowfloat.te.emulate("9.0")
from transformer_engine.pytorch import native
import narrowfloat.pytorch.tex, other
print(native.facts(), native.tex is narrowfloat.pytorch.tex, native.torch is torch)
print(other.cuda(), "__narrowfloat_te__" in vars(other))
print(before == (torch.cuda, torch.version.cuda, torch.device, torch.cuda.get_device_capability))
"""
    done = run("-c", program)
    expected = ["('cpu', (9, 0), True) True True", "False False", "True"]
    assert done.stdout.splitlines() == expected, done.stderr


def test_the_generation_is_chosen_by_the_environment_too(run: Run) -> None:
    code = "from narrowfloat.te._settings import SETTINGS; print(SETTINGS.generation)"
    assert run("-c", code).stdout == run("-c", START + code).stdout == "(10, 0)\n"
    assert run("-c", START + code, NF_TE_AS="9.0").stdout == "(9, 0)\n"


def test_a_generation_that_is_not_known_is_refused(run: Run) -> None:
    done = run("-c", "import narrowfloat.te", NF_TE_AS="8.9")
    assert "narrowfloat.te: the generation must be 9.0 or 10.0, got '8.9'" in done.stderr


def test_nothing_on_the_disk_changes(run: Run, site: Path) -> None:
    before = sorted(site.rglob("*"))
    run("-c", START)
    assert sorted(site.rglob("*")) == before


def test_a_plain_import_afterwards_gets_plain_code(run: Run) -> None:
    run("-c", START)
    done = run("-c", "import transformer_engine")
    assert "libcudnn is not there" in done.stderr


def test_code_is_cached_and_made_anew_when_the_source_changes(
    run: Run, site: Path, tmp_path: Path
) -> None:
    def entries() -> set[Path]:
        return set((tmp_path / "cache/narrowfloat/te").glob("*.code"))

    run("-c", START)
    first = entries()
    run("-c", START)
    assert first
    assert entries() == first
    changed = site / "transformer_engine/pytorch/__init__.py"
    changed.write_text(changed.read_text() + "\ndevice = lambda: 'new'\n")
    assert run("-c", START + "print(te.device())").stdout == "new\n"
    assert len(entries()) == len(first) + 1


def test_a_damaged_entry_is_made_anew(run: Run, tmp_path: Path) -> None:
    run("-c", START)
    for entry in (tmp_path / "cache/narrowfloat/te").glob("*.code"):
        entry.write_bytes(entry.read_bytes()[:-1])
    assert run("-c", START + "print(te.device())").stdout == "cpu\n"


@pytest.mark.parametrize("fails", ["write", "replace"])
def test_a_failed_write_leaves_no_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fails: str
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path))
    no_space, make = Mock(side_effect=OSError("no space")), tempfile.NamedTemporaryFile

    def full(*args: object, **named: object) -> object:
        file = make(*args, **named)
        file.write = no_space
        return file

    if fails == "write":
        monkeypatch.setattr(tempfile, "NamedTemporaryFile", full)
    else:
        monkeypatch.setattr(os, "replace", no_space)
    _code_cache.store(b"", "a.py", (compile("", "a.py", "exec"), []))
    assert no_space.called and not list(_code_cache.folder().iterdir())


def test_python_that_writes_no_code_caches_none(run: Run, tmp_path: Path) -> None:
    run("-B", "-c", START)
    assert not (tmp_path / "cache").exists()


def test_a_framework_is_imported_when_it_is_asked_for(run: Run) -> None:
    code = START + "import sys; print('transformer_engine.jax' in sys.modules); "
    code += "import transformer_engine.jax; print('transformer_engine.jax' in sys.modules)"
    done = run("-c", code)
    assert done.stdout.split() == ["False", "True"], done.stderr


def test_kernels_without_a_stand_in_refuse_by_name(run: Run) -> None:
    done = run("-c", START + "from transformer_engine.pytorch.triton.mhc import mix; mix.apply(1)")
    assert done.stderr.endswith(
        "NotImplementedError: narrowfloat.te: mix.apply is a Triton kernel and needs a GPU\n"
    )


def test_the_variable_that_stops_the_search_for_libraries_is_put_back(run: Run) -> None:
    for before in ({}, {"NVTE_PROJECT_BUILDING": "0"}):
        code = START + "import os; print(os.environ.get('NVTE_PROJECT_BUILDING'))"
        assert run("-c", code, **before).stdout.strip() == str(before.get("NVTE_PROJECT_BUILDING"))


def test_garbage_is_not_collected_during_the_import_and_then_as_before(run: Run) -> None:
    code = """
import gc
import narrowfloat.te
from narrowfloat.te import _import_hook
seen = []
_import_hook.OBSERVERS.append(lambda path, rewrites: seen.append(gc.isenabled()))
import transformer_engine.pytorch
print(any(seen[1:]), len(seen) > 1, gc.isenabled())
"""
    assert run("-c", code).stdout == "False True True\n"
    assert run("-c", f"import gc; gc.disable(); {code.strip()}").stdout == "False True False\n"


def test_variables_of_the_user_are_kept(run: Run) -> None:
    names = "NVTE_TORCH_COMPILE", "NVTE_UnfusedDPA_Emulate_FP8"
    code = START + f"import os; print(*map(os.environ.get, {names}))"
    assert run("-c", code, NVTE_TORCH_COMPILE="1").stdout == "1 1\n"


def test_no_backend_of_attention_is_chosen_by_a_variable(run: Run) -> None:
    """Checks that these variables stay unset: Megatron refuses values other than its own."""
    names = "NVTE_FLASH_ATTN", "NVTE_FUSED_ATTN", "NVTE_UNFUSED_ATTN"
    assert run("-c", START + f"import os; print(*map(os.getenv, {names}))").stdout == (
        "None None None\n"
    )


def test_transformer_engine_alone_does_not_find_flash_attention(run: Run, site: Path) -> None:
    folder = "transformer_engine/pytorch/attention/dot_product_attention"
    finds = """
        from importlib.metadata import PackageNotFoundError, version
        def found(name):
            try:
                return version(name)
            except PackageNotFoundError:
                return None
        names = "flash-attn", "flash-attn-3", "flash-attn-4", "beside"
        versions = [*map(found, names)]
        """
    write(site, {"transformer_engine/pytorch/attention/__init__.py": ""})
    write(site, {f"{folder}/__init__.py": "", f"{folder}/backends.py": finds, "plain.py": finds})
    for name in ("flash_attn", "flash_attn_3", "flash_attn_4", "beside"):
        text = f"Metadata-Version: 2.1\nName: {name}\nVersion: 2.8.3"
        write(site, {f"{name}-2.8.3.dist-info/METADATA": text})
    code = f"import {folder.replace('/', '.')}.backends as b, plain; "
    done = run("-c", START + code + "print(b.versions, plain.versions)")
    assert done.stdout == f"{[None] * 3 + ['2.8.3']} {['2.8.3'] * 4}\n", done.stderr


def test_a_late_start_is_refused(run: Run) -> None:
    code = "import sys, types; sys.modules['transformer_engine'] = types.ModuleType('x'); "
    done = run("-c", code + "import narrowfloat.te")
    assert (
        "ImportError: narrowfloat.te: must be imported before transformer_engine, "
        "which is imported already" in done.stderr
    )


def test_another_generation_is_chosen_before_the_import(run: Run) -> None:
    code = "import sys, types, narrowfloat.te; "
    code += "sys.modules['transformer_engine'] = types.ModuleType('x'); "
    done = run("-c", code + "narrowfloat.te.emulate('9.0')")
    assert (
        "ImportError: narrowfloat.te.emulate: must be called before transformer_engine is imported"
        in done.stderr
    )


def test_other_versions_are_refused(run: Run, tmp_path: Path) -> None:
    for version, fits in (("2.16.0", False), ("2.17.1", True), ("2.20.2", True), ("2.21", False)):
        info = "transformer_engine.dist-info/METADATA"
        text = f"Metadata-Version: 2.1\nName: transformer_engine\nVersion: {version}"
        write(tmp_path / version, {info: text})
        done = run("-c", f"import sys; sys.path.insert(0, '{version}'); import narrowfloat.te")
        refusal = f"narrowfloat.te: needs transformer_engine 2.17 to 2.20, got {version}"
        assert (refusal in done.stderr) != fits, done.stderr
        assert (done.returncode == 0) == fits


# By framework: a module that finds a GPU, and the import of TransformerEngine for the framework.
ON_GPU = {
    "torch": (
        "import sys, types; torch = sys.modules['torch'] = types.ModuleType('torch'); "
        "torch.cuda = types.SimpleNamespace(is_available=lambda: True); " + START
    ),
    "jax": (
        "import sys, types; jax = sys.modules['jax'] = types.ModuleType('jax'); "
        "jax.devices = lambda: [types.SimpleNamespace(platform='gpu')]; "
        "import narrowfloat.te, transformer_engine.jax; "
    ),
}


@pytest.mark.parametrize("framework", list(ON_GPU))
def test_a_gpu_with_the_real_native_module_is_refused_unless_asked(
    run: Run, site: Path, framework: str
) -> None:
    name = f"transformer_engine_{framework}"
    info = f"{name}-2.20.2.dist-info/METADATA"
    write(site, {info: f"Metadata-Version: 2.1\nName: {name}\nVersion: 2.20.2"})
    code = ON_GPU[framework] + "print('ran')"
    done = run("-c", code)
    assert done.stderr.endswith(
        "ImportError: narrowfloat.te: a GPU and transformer_engine's own native module are there, "
        "which this module would hide; set NF_TE_BESIDE_GPU=1 to run on the CPU all the same\n"
    )
    assert run("-c", code, NF_TE_BESIDE_GPU="1").stdout == "ran\n"


def test_files_of_the_package_are_rewritten_when_the_host_loads_them_by_path(
    run: Run, site: Path
) -> None:
    names = "device = 'cuda'\n"
    write(site, {"transformer_engine/debug/features/log_all.py": names, "other/feature.py": names})
    write(
        site,
        {
            "nvdlfw_inspect/__init__.py": """
                import importlib.util
                def load(path):
                    spec = importlib.util.spec_from_file_location("feature", path)
                    module = importlib.util.module_from_spec(spec)
                    spec.loader.exec_module(module)
                    return module.device
                """
        },
    )
    files = [site / "transformer_engine/debug/features/log_all.py", site / "other/feature.py"]
    code = START + f"from nvdlfw_inspect import load; print(*map(load, {[*map(str, files)]}))"
    done = run("-c", code)
    assert done.stdout == "cpu cuda\n", done.stderr
