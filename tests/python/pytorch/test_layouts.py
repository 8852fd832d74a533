# SPDX-License-Identifier: Apache-2.0
"""Tests that a quantizer's cached layouts follow every change of its options."""

import copy
import pickle
import sys
from collections.abc import Callable
from types import FrameType

import pytest
import torch
from families import E4M3, E5M2, SCHEMES, VALUES, assert_same_buffers, buffers, sample
from narrowfloat.pytorch.utils import set_non_tn_fp8_gemm_supported

from narrowfloat import pytorch as nfp

every = pytest.mark.parametrize("kind", list(SCHEMES))


def described(tensor: nfp.QuantizedTensorStorage) -> dict[str, object]:
    """Returns the fields except buffers and the quantizer."""
    names = {buffer.name for buffer in tensor.BUFFERS} | {"_quantizer"}
    return {name: value for name, value in tensor.__dict__.items() if name not in names}


def assert_as_fresh(quantizer: nfp.Quantizer, fresh: nfp.Quantizer, x: torch.Tensor) -> None:
    """Asserts that a used quantizer makes the same tensor as a fresh one."""
    used, new = quantizer(x), fresh(x)
    assert type(used) is type(new) and used.shape == new.shape and used._dtype == new._dtype
    assert_same_buffers(used, new, "after use")
    assert described(used) == described(new)
    assert used._quantizer is not quantizer and used.get_usages() == new.get_usages()
    if isinstance(used, torch.Tensor):
        assert used.stride() == new.stride() and used.requires_grad is False


@every
def test_shapes_and_types_are_told_apart(kind: str) -> None:
    quantizer = SCHEMES[kind]()
    for shape in ((128, 256), (64, 64), (2, 64, 256), (128, 256)):
        for dtype in (torch.bfloat16, torch.float32, torch.bfloat16):
            assert_as_fresh(quantizer, SCHEMES[kind](), sample(*shape, dtype=dtype))
    for tensor in (quantizer(sample()), quantizer(sample(seed=9))):
        tensor.zero_()
    assert_as_fresh(quantizer, SCHEMES[kind](), sample())


@every
def test_every_change_counts(kind: str) -> None:
    quantizer, x = SCHEMES[kind](), sample(dtype=torch.bfloat16)
    quantizer(x)
    if kind != "nvfp4_row_scaled":
        fresh = SCHEMES[kind]()
        for usages in ({"columnwise": False}, {"columnwise": True}):
            quantizer.set_usage(**usages)
            fresh.set_usage(**usages)
            assert_as_fresh(quantizer, fresh, x)
            quantizer(x)
    for name, value in (("internal", True), ("optimize_for_gemm", True), ("internal", False)):
        if name == "optimize_for_gemm" and kind not in ("mxfp8", "mxfp8_2d", "nvfp4", "nvfp4_2d"):
            continue
        fresh = SCHEMES[kind]()
        setattr(quantizer, name, value)
        for field in ("internal", "optimize_for_gemm"):
            setattr(fresh, field, getattr(quantizer, field))
        assert_as_fresh(quantizer, fresh, x)


def test_types_and_options_count() -> None:
    x = sample(dtype=torch.bfloat16)
    mxfp8 = nfp.MXFP8Quantizer(E4M3)
    mxfp8(x)
    mxfp8.dtype = E5M2
    assert_as_fresh(mxfp8, nfp.MXFP8Quantizer(E5M2), x)
    block = nfp.Float8BlockQuantizer(E4M3, rowwise=True, columnwise=True)
    block(x)
    block.block_scaling_dim = 1
    fresh = nfp.Float8BlockQuantizer(E4M3, rowwise=True, columnwise=True, block_scaling_dim=1)
    assert_as_fresh(block, fresh, x)
    current = nfp.Float8CurrentScalingQuantizer(E4M3)
    current(x)
    current.force_pow_2_scales = True
    fresh = nfp.Float8CurrentScalingQuantizer(E4M3, force_pow_2_scales=True)
    assert_as_fresh(current, fresh, x)


def test_the_device_s_products_count() -> None:
    quantizer, x = nfp.Float8CurrentScalingQuantizer(E4M3), sample()
    assert quantizer(x)._transpose is not None
    before = set_non_tn_fp8_gemm_supported(True)
    try:
        assert quantizer(x)._transpose is None
    finally:
        set_non_tn_fp8_gemm_supported(before)
    assert quantizer(x)._transpose is not None


@every
def test_copies_go_their_own_way(kind: str) -> None:
    quantizer, x = SCHEMES[kind](), sample()
    quantizer(x)
    for other in (
        quantizer.copy(),
        copy.deepcopy(quantizer),
        pickle.loads(pickle.dumps(quantizer)),
    ):
        other.internal = True
        assert not isinstance(other(x), torch.Tensor)
        assert isinstance(quantizer(x), torch.Tensor)
    if kind in VALUES:
        assert quantizer == SCHEMES[kind]() and hash(quantizer) == hash(SCHEMES[kind]())


def test_refusals_stay() -> None:
    quantizer = nfp.NVFP4Quantizer(with_rht=True, with_post_rht_amax=True)
    quantizer(sample(dtype=torch.bfloat16))
    with pytest.raises(
        ValueError, match=r"^quantize: with_rht takes bfloat16, got torch\.float32$"
    ):
        quantizer(sample())
    with pytest.raises(ValueError, match="NVFP4Quantizer"):
        quantizer(sample(5, 7, dtype=torch.bfloat16))
    quantizer.row_scaled_nvfp4 = True
    with pytest.raises(ValueError, match="row_scaled_nvfp4 cannot go with with_rht"):
        quantizer(sample(dtype=torch.bfloat16))


def test_a_class_of_a_program_keeps_its_constructor() -> None:
    class Counted(nfp.MXFP8Tensor):
        made = 0

        def __new__(cls, *args: object, **kwargs: object) -> "Counted":
            cls.made += 1
            return super().__new__(cls, *args, **kwargs)

    class Quantizer(nfp.MXFP8Quantizer):
        pass

    Quantizer.TENSOR = Counted
    quantizer = Quantizer(E4M3)
    assert [type(quantizer(sample())) for _ in range(3)] == [Counted] * 3
    assert Counted.made == 3


def test_gradients_pass_where_they_are_wanted() -> None:
    x = sample(64, 64, requires_grad=True)
    quantizer = nfp.MXFP8Quantizer(E4M3)
    assert quantizer(x.detach()).grad_fn is None
    for _ in range(2):
        y = quantizer(x)
        assert y.requires_grad and y.grad_fn is not None
        (grad,) = torch.autograd.grad(y.dequantize().sum(), x)
        assert torch.equal(grad, torch.ones_like(x))


def calls_of(function: Callable[[], object]) -> int:
    """Returns the number of Python functions that a call runs."""
    count = 0

    def note(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize(
    "kind", ["float8_delayed", "float8_current", "mxfp8", "blockwise_2d", "nvfp4"]
)
def test_a_new_tensor_takes_few_calls(kind: str) -> None:
    """Counts Python functions, which take the time of a call, since measured times vary."""
    quantizer, x = SCHEMES[kind](), sample(32, 32, dtype=torch.bfloat16)
    with torch.no_grad():
        out = quantizer(x)
        new = calls_of(lambda: quantizer.quantize(x))
        filled = calls_of(lambda: quantizer.quantize(x, out=out))
    assert new <= filled + 2, f"{new} calls for a new tensor, {filled} with out="
    assert set(buffers(out)) == set(buffers(quantizer(x)))
