# SPDX-License-Identifier: Apache-2.0
"""Tests how the host's calls reach features: defaults, merging, checks, caching."""

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from narrowfloat.debug.features import api
from narrowfloat.debug.features.utils.stats_buffer import STATS_BUFFERS
from sessions import FEATURES, messages, section, session, te

from narrowfloat import pytorch as nfp

QKV = "decoder.1.attn.qkv"


def test_without_a_configuration_nothing_changes() -> None:
    with session():
        assert te().fp8_gemm_enabled(QKV, gemm="fprop", iteration=0) == (True, None)
        for gemm in ("fprop", "dgrad"):
            names = {"gemm": gemm, "tensor_name": "weight", "iteration": 0}
            assert te().modify_tensor_enabled(QKV, **names) == (False, None)
            assert te().inspect_tensor_postquantize_enabled(QKV, **names) == (False, None)
        assert te().inspect_tensor_enabled(QKV, tensor_name="weight", iteration=0) == (False, None)
        seen = {"tensor_name": "weight", "iteration": 0, "tp_group": None, "tp_size": 1}
        forms = dict.fromkeys(("tensor", "rowwise_quantized_tensor", "columnwise_quantized_tensor"))
        assert te().inspect_tensor(QKV, quantizer=None, **forms, **seen) is None
        with pytest.raises(
            NotImplementedError,
            match=r"^modify_tensor_enabled\(\) returned True, modify_tensor\(\) was "
            r"invoked, but it is not handled by any API\.$",
        ):
            te().modify_tensor(
                QKV,
                gemm="fprop",
                tensor_name="weight",
                tensor=torch.ones(1),
                default_quantizer=None,
                iteration=0,
            )


@pytest.mark.parametrize("feature", ["DisableFP8GEMM", "DisableQuantizationGEMM"])
def test_gemms_in_high_precision(feature: str) -> None:
    with session(section("qkv", **{feature: {"gemms": ["dgrad", "wgrad"]}})):
        for _ in range(2):  # the second answers come from the host's cache
            for gemm, wanted in {"fprop": (True, None), "dgrad": (False, 4)}.items():
                assert te().fp8_gemm_enabled(QKV, gemm=gemm, iteration=3) == wanted
        assert te().fp8_gemm_enabled("fc1", gemm="dgrad", iteration=3) == (True, None)


@pytest.mark.parametrize("block", [{}, {"gemm": "fprop"}])  # the host accepts a key `gemm`
@pytest.mark.parametrize("feature", ["DisableFP8Layer", "DisableQuantizationLayer"])
def test_layers_in_high_precision(feature: str, block: dict) -> None:
    with session(section("qkv", **{feature: block})) as folder:
        for gemm in ("fprop", "dgrad", "wgrad"):
            assert te().fp8_gemm_enabled(QKV, gemm=gemm, iteration=0) == (False, 1)
            assert te().fp8_gemm_enabled("fc1", gemm=gemm, iteration=0) == (True, None)
        assert f"LAYER={QKV}: Quantization Disabled" in messages(folder)


def test_old_names_warn_when_they_are_made() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with session():
            pass
    said = [str(w.message) for w in caught if w.category is DeprecationWarning]
    assert "DisableFP8GEMM is deprecated, use DisableQuantizationGEMM instead." in said
    assert "DisableFP8Layer is deprecated, use DisableQuantizationLayer instead." in said


def test_a_loop_over_gemms_on_one_line_gets_each_gemm_s_answer() -> None:
    blocks = section(FakeQuant={"gemms": ["dgrad"], "tensors": "weight", "quant_format": "FP8E4M3"})
    with session(blocks):
        asked = [
            te().modify_tensor_enabled("l", gemm=gemm, tensor_name=tensor, iteration=2)[0]
            for _ in range(2)
            for gemm in ("fprop", "dgrad", "wgrad")
            for tensor in ("weight", "gradient")
        ]
        assert asked == [False, False, True, False, False, False] * 2
        gemms = [
            te().fp8_gemm_enabled("l", gemm=gemm, iteration=2)[0] for gemm in ("fprop", "dgrad")
        ]
        assert gemms == [True, False]


@pytest.mark.parametrize(
    ("call", "missing"),
    [
        ("fp8_gemm_enabled", "gemm"),
        ("modify_tensor_enabled", "tensor_name"),
        ("modify_tensor", "tensor_name"),
        ("inspect_tensor", "tensor_name"),
        ("inspect_tensor_enabled", "tensor_name"),
        ("inspect_tensor_postquantize", "tensor_name"),
        ("inspect_tensor_postquantize_enabled", "tensor_name"),
    ],
)
def test_a_call_names_what_it_is_about(call: str, missing: str) -> None:
    message = rf"Cannot route API, too ambiguous\. Provide {missing} in {call}\."
    with session(), pytest.raises(AssertionError, match=message):
        getattr(te(), call)("layer", iteration=0)


def test_two_features_do_not_modify_one_tensor() -> None:
    pair = {"gemms": ["fprop"], "tensors": ["weight"]}
    blocks = section(FakeQuant={**pair, "quant_format": "FP8E4M3"}, PerTensorScaling=pair)
    with session(blocks), pytest.raises(AssertionError, match="Only 1 operation permitted"):
        te().modify_tensor_enabled("layer", gemm="fprop", tensor_name="weight", iteration=0)


@pytest.mark.parametrize(
    ("answers", "merged"),
    [
        ([(True, 7), (False, 4)], (True, 4)),
        ([(False, None), (False, 9)], (False, 9)),
        ([(False, None), (False, None)], (False, None)),
        ([False, (False, 4)], (False, 4)),  # the pair counts as its first item, False
        ([True, (False, 9)], (True, 6)),  # a bool names no next iteration: 5 + 1
        ([False, (False, None)], (False, 6)),
        ([[True, 8], (False, None)], (True, 8)),
    ],
)
def test_answers_of_several_features(answers: list, merged: tuple) -> None:
    assert api.merge_enabled(answers, 5) == merged


def test_several_features_see_one_tensor() -> None:
    blocks = section(
        LogTensorStats={"tensors": ["weight"], "stats": ["max"], "freq": 4},
        DumpTensors={"tensors": ["weight"], "high_precision_tensor": True, "freq": 3},
        TestDummyFeature={"tensors": ["gradient"]},
    )
    with session(blocks) as folder:
        enabled = [
            te().inspect_tensor_enabled("l", tensor_name="weight", iteration=step)
            for step in (0, 1, 3, 4)
        ]
        assert enabled == [(True, 3), (False, 3), (True, 4), (True, 6)]
        te().inspect_tensor(
            "l", tensor_name="weight", tensor=torch.ones(2), iteration=0, tp_group=None
        )
        assert len(list(folder.glob("tensor_dumps/**/*.pt"))) == 1
        assert te().inspect_tensor_enabled("l", tensor_name="gradient", iteration=0) is True


FORMS = ("rowwise_quantized_tensor", "columnwise_quantized_tensor")
SCHEDULED = {
    "DumpTensors": {"high_precision_tensor": True},
    "LogTensorStats": {"stats": ["max"]},
    "LogFp8TensorStats": {"stats": ["mse"]},
    "LogNvfp4TensorStats": {"stats": ["mse"]},
}


@pytest.mark.parametrize("feature", SCHEDULED)
def test_a_feature_keeps_its_schedule_beside_another(feature: str) -> None:
    quantizer = (
        nfp.NVFP4Quantizer() if "Nvfp4" in feature else nfp.MXFP8Quantizer(nfp.DType.kFloat8E4M3)
    )
    other = "LogTensorStats" if feature == "DumpTensors" else "DumpTensors"
    blocks = section(
        **{
            feature: {"tensors": ["weight"], **SCHEDULED[feature], "freq": 2, "end_step": 4},
            other: {"tensors": ["weight"], **SCHEDULED[other]},
        }
    )
    acted = set()
    with session(blocks) as folder:
        for step in range(7):
            assert te().inspect_tensor_enabled("l", tensor_name="weight", iteration=step)[0]
            x = torch.ones(32, 32)
            forms = dict.fromkeys(FORMS, quantizer(x))
            seen = {"iteration": step, "tp_group": None, "quantizer": quantizer}
            te().inspect_tensor("l", tensor_name="weight", tensor=x, **forms, **seen)
            logged = STATS_BUFFERS.log_stats()
            dumped = folder / "tensor_dumps" / "rank_0" / f"iter_{step:06d}"
            if dumped.exists() if feature == "DumpTensors" else logged:
                acted.add(step)
    assert acted == {0, 2, 4}


def test_one_true_keeps_a_gemm_quantized_and_two_falses_do_not() -> None:
    blocks = section(
        DisableQuantizationGEMM={"gemms": ["fprop"]},
        FakeQuant={"gemms": ["fprop"], "tensors": ["weight"], "quant_format": "FP8E4M3"},
    )
    with session(blocks):
        assert te().fp8_gemm_enabled("layer", gemm="fprop", iteration=5) == (False, 6)


# Features of a user, in a separate directory.

USER = """
from nvdlfw_inspect.registry import Registry, api_method
from narrowfloat.debug.features.api import TEConfigAPIMapper

class _Base(TEConfigAPIMapper):
    pass

@Registry.register_feature(namespace="transformer_engine")
class User(_Base):
    @api_method
    def inspect_tensor(self, config, layer_name, tensor_name, tensor, iteration, tp_group):
        config["seen"].append(tensor_name)

    @api_method
    def modify_tensor(self, config, layer_name, **kwargs):
        return config["answer"](**kwargs)

    @api_method
    def inspect_tensor_enabled(self, config, layer_name, tensor_name, iteration):
        return config["enabled_answer"]

    @api_method
    def inspect_tensor_postquantize(self, config, layer_name, **kwargs):
        return config["answer"]

@Registry.register_feature(namespace="transformer_engine")
class Keywords(_Base):
    @api_method
    def inspect_tensor(self, config, layer_name, **kwargs):
        config["seen"].append(sorted(kwargs))
"""


@pytest.fixture
def user_features(tmp_path: Path) -> list[str]:
    (tmp_path / "user_features.py").write_text(USER)
    return [FEATURES, str(tmp_path)]


class Kept(list):
    """A list that a copy of the configuration shares."""

    def __deepcopy__(self, memo: dict) -> "Kept":
        return self


SEEN = {
    "tensor_name": "weight",
    "tensor": None,
    "iteration": 0,
    "tp_group": None,
    "tp_size": 1,
    "quantizer": None,
    "rowwise_quantized_tensor": None,
    "columnwise_quantized_tensor": None,
}


def test_a_feature_takes_the_arguments_that_it_names(user_features: list[str]) -> None:
    seen = Kept()
    block = {"tensors": ["weight"], "seen": seen}
    with session(section(User=block), feature_dirs=user_features):
        te().inspect_tensor("layer", **SEEN)
    with session(section(Keywords=block), feature_dirs=user_features):
        te().inspect_tensor("layer", **SEEN)
    assert seen == ["weight", ["iteration", "tensor", "tensor_name", "tp_group"]]


def modified(answer: Any, **arguments: Any) -> Any:
    call = {"gemm": "fprop", "tensor_name": "weight", "tensor": None, "iteration": 0}
    return te().modify_tensor("layer", default_quantizer=None, **call, **arguments)


def test_answers_are_checked(user_features: list[str]) -> None:
    class Odd(torch.Tensor):
        pass

    plain, out = torch.ones(32, 32), torch.empty(32, 32)
    quantized = nfp.MXFP8Quantizer(nfp.DType.kFloat8E4M3)(plain)
    good: list[tuple[Any, dict]] = [
        (plain, {}),
        (torch.nn.Parameter(plain), {}),
        (quantized, {"dtype": torch.bfloat16}),
        (plain, {"dtype": torch.float32}),
        (None, {"out": out}),
    ]
    bad: list[tuple[Any, dict, str]] = [
        (None, {}, "must return a tensor, got NoneType"),
        (3, {}, "must return a tensor, got int"),
        (plain.as_subclass(Odd), {}, "must return a tensor, got Odd"),
        (plain, {"dtype": torch.bfloat16}, "must return torch.bfloat16, got torch.float32"),
        (plain, {"out": out}, "must fill `out` and return None, got a tensor"),
    ]
    pair = {"gemms": ["fprop"], "tensors": ["weight"]}
    for value, arguments, *message in [*good, *bad]:
        answer = lambda value=value, **kwargs: value  # noqa: E731
        with session(section(User={**pair, "answer": answer}), feature_dirs=user_features):
            if message:
                with pytest.raises(AssertionError) as raised:
                    modified(answer, **arguments)
                assert str(raised.value) == (f"[NVTORCH INSPECT ERROR] modify_tensor {message[0]}.")
            else:
                assert modified(answer, **arguments) is value


@pytest.mark.parametrize("answer", [None, 1, "yes"])
def test_enabled_is_a_bool_or_a_pair(user_features: list[str], answer: object) -> None:
    block = {"tensors": ["weight"], "enabled_answer": answer}
    with session(section(User=block), feature_dirs=user_features):
        with pytest.raises(AssertionError, match="must return a bool or a pair, got"):
            te().inspect_tensor_enabled("layer", tensor_name="weight", iteration=0)


def test_the_older_inspection_warns_and_returns_nothing(user_features: list[str]) -> None:
    call = {"tensor_name": "weight", "tensor": None, "rowwise": True, "iteration": 0}
    for answer in (None, 3):
        block = {"tensors": ["weight"], "answer": answer}
        with session(section(User=block), feature_dirs=user_features):
            with pytest.warns(DeprecationWarning, match="use inspect_tensor instead"):
                if answer is None:
                    te().inspect_tensor_postquantize("layer", tp_group=None, tp_size=1, **call)
                else:
                    with pytest.raises(AssertionError, match="must return None, got 3"):
                        te().inspect_tensor_postquantize("layer", tp_group=None, tp_size=1, **call)
