# SPDX-License-Identifier: Apache-2.0
"""Tests the hunt of docs/debug.md: its result, its configurations and its figure."""

import re
import struct
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

pytest.importorskip("nvdlfw_inspect", reason="nvdlfw-inspect, the host, is not installed")

from narrowfloat.debug._check import check  # noqa: E402
from narrowfloat.debug._config_file import read_config, read_layers  # noqa: E402

from demo import debug_hunt  # noqa: E402
from demo.debug_network import pretrained  # noqa: E402

CULPRIT = ("fuse", "fprop", "weight")


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """Returns the output of the hunt and its figure."""
    figure = tmp_path_factory.mktemp("hunt") / "hunt.png"
    command = [sys.executable, "-m", "demo.debug_hunt"]
    try:
        import matplotlib  # noqa: F401

        command += ["--plot", str(figure)]
    except ModuleNotFoundError:
        pass
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout, figure


def test_three_configurations_find_the_matrix(printed: tuple[str, Path]) -> None:
    assert tuple(re.findall(r"^it is (\S+)$", printed[0], re.MULTILINE)) == CULPRIT


def test_each_configuration_goes_on_where_the_one_before_ended() -> None:
    layers, gemms, tensors = (debug_hunt.read(name) for name in debug_hunt.HUNT)
    layer, gemm, tensor = CULPRIT
    for config in (gemms["gemms"], tensors["tensors"]):
        assert config["layers"] == {"layer_types": [layer]}
    assert tensors["tensors"]["transformer_engine"]["FakeQuant"]["gemms"] == [gemm]
    assert layer in layers["layers"]["layers"]["layer_types"]
    assert tensor in tensors["tensors"]["transformer_engine"]["FakeQuant"]["tensors"]


def losses(text: str) -> dict[str, float]:
    """Returns the loss of each run by its printed name: the suspects in E5M2, or a description."""
    return {name.strip(): float(loss) for name, loss in re.findall(r"(.+?) +(0\.\d{4})", text)}


def test_the_matrix_is_what_is_wrong_and_nearly_all_that_is(printed: tuple[str, Path]) -> None:
    found = losses(printed[0])
    good = found["high precision"]
    everything = found["stem, mid.0, fuse, mid.1, head"]
    broken = debug_hunt.BROKEN * good
    assert found["weight"] > broken and everything > broken
    assert found["activation"] < broken and found["stem, mid.0"] < broken
    # Without that matrix, less than half of the loss that E5M2 adds remains.
    assert found["cure.yaml: all but that"] - good < (everything - good) / 2


def test_the_page_shows_what_is_printed(printed: tuple[str, Path]) -> None:
    """Allows other losses: they differ between machines, as training amplifies roundings.

    No bound follows from the roundings. A loss on the page must be nearer to the printed one than
    to the threshold of the hunt, so that both are on the same side of the threshold.
    """
    page = (ROOT / "docs" / "debug.md").read_text(encoding="utf-8")
    shown = re.search(r"```text\n(high precision .*?)```", page, re.DOTALL)[1]
    number = r"0\.\d{4}"
    assert re.sub(number, "#", shown) == re.sub(number, "#", printed[0])
    old, new = ([float(loss) for loss in re.findall(number, text)] for text in (shown, printed[0]))
    for on_page, found in zip(old, new, strict=True):
        assert abs(found - on_page) < abs(on_page - debug_hunt.BROKEN * old[0])


def test_the_figure_is_drawn(printed: tuple[str, Path]) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib, which draws, is not installed")
    for figure in (printed[1], ROOT / "docs" / "debug_hunt.png"):
        head = figure.read_bytes()[:24]
        assert head[:8] == b"\x89PNG\r\n\x1a\n"
        width, height = struct.unpack(">II", head[16:24])
        assert width > 500 and height > 200
    assert (ROOT / "docs" / "debug_hunt.png").stat().st_size < 100_000


def test_statistics_show_the_layer() -> None:
    found = debug_hunt.statistics(pretrained())
    largest = {name: max(value for _, value in found[f"{name}_activation_cur_amax"])
               for name in ("stem", "mid.0", "fuse", "mid.1", "head")}  # fmt: skip
    assert largest.pop("fuse") > 4 * max(largest.values())
    assert [step for step, _ in found["fuse_activation_std"]] == [0, 5, 10, 15, 20, 25]


def test_statistics_go_to_tensorboard(tmp_path: Path) -> None:
    tensorboard = pytest.importorskip(
        "torch.utils.tensorboard", reason="tensorboard is not installed"
    )
    with tensorboard.SummaryWriter(tmp_path) as writer:
        debug_hunt.statistics(pretrained(), writer)
    (file,) = tmp_path.iterdir()
    assert b"fuse_activation_cur_amax" in file.read_bytes()


@pytest.mark.parametrize("name", [*debug_hunt.HUNT, "cure.yaml", "statistics.yaml"])
def test_the_configurations_are_good(name: str) -> None:
    config, repeated = read_config(debug_hunt.CONFIGS / name)
    report = check(config, read_layers(debug_hunt.CONFIGS / "layers.txt"))
    assert not repeated and not report.problems
