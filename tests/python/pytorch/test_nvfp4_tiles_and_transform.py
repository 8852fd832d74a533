# SPDX-License-Identifier: Apache-2.0
"""Tests NVFP4 with rowwise tiles and with columnwise blocks after the Hadamard transform."""

import pytest
import torch
from narrowfloat.pytorch.quantized_tensor import Quantizer
from narrowfloat.pytorch.tensor.nvfp4_tensor import NVFP4Quantizer

ROWS = ("_rowwise_data", "_rowwise_scale_inv", "_amax_rowwise")
COLUMNS = ("_columnwise_data", "_columnwise_scale_inv", "_amax_columnwise")
RHT = {"with_rht": True, "with_post_rht_amax": True}
X = torch.randn(64, 96, generator=torch.Generator().manual_seed(3)).to(torch.bfloat16)


def both(**options: object) -> NVFP4Quantizer:
    return NVFP4Quantizer(with_2d_quantization=True, **RHT, **options)


def content(tensor: object, name: str) -> torch.Tensor:
    """Returns a buffer without the padding of its scales."""
    buffer = getattr(tensor, name)
    rows, cols = X.shape if name in ROWS else X.shape[::-1]
    return buffer[:rows, : cols // 16] if name.endswith("scale_inv") else buffer


def assert_directions(q: object, tiles: Quantizer, runs: Quantizer) -> None:
    for name in ROWS:
        assert torch.equal(content(q, name), content(tiles(X), name)), name
    for name in COLUMNS:
        assert torch.equal(content(q, name), content(runs(X), name)), name


@pytest.mark.parametrize("signs", [True, False])
def test_each_direction_is_that_of_its_own_quantizer(signs: bool) -> None:
    q = both(with_random_sign_mask=signs)(X).detach()
    tiles = NVFP4Quantizer(with_2d_quantization=True)
    runs = NVFP4Quantizer(**RHT, with_random_sign_mask=signs)
    assert_directions(q, tiles, runs)
    q.copy_(torch.zeros_like(X))
    assert not q.dequantize().any()
    q.copy_(X)
    assert_directions(q, tiles, runs)


@pytest.mark.parametrize("rowwise", [True, False])
def test_one_direction(rowwise: bool) -> None:
    q = both(rowwise=rowwise, columnwise=not rowwise)(X)
    whole = both()(X)
    for name in ROWS + COLUMNS:
        wanted = (name in ROWS) == rowwise
        assert (getattr(q, name) is not None) == wanted
        if wanted:
            assert torch.equal(content(q, name), content(whole, name))


def test_a_noop_leaves_both_directions() -> None:
    q = both()(X).detach()
    before = {name: getattr(q, name).clone() for name in ROWS + COLUMNS}
    q.quantize_(-3 * X, noop_flag=torch.ones(1))
    for name, buffer in before.items():
        assert torch.equal(getattr(q, name), buffer)


def test_stochastic_rounding_is_unbiased_in_both() -> None:
    quantizer = both(stochastic_rounding=True)
    torch.manual_seed(0)
    drawn = [quantizer(X) for _ in range(64)]
    assert not torch.equal(drawn[0]._columnwise_data, drawn[1]._columnwise_data)
    mean = torch.stack([q.dequantize().float() for q in drawn]).mean(0)
    nearest = both()(X).dequantize().float()
    assert (mean - X.float()).square().mean() < (nearest - X.float()).square().mean() / 4


def test_transformed_columns_do_not_follow_from_rows() -> None:
    q = both()(X).detach()
    q.update_usage(columnwise_usage=False)
    with pytest.raises(
        RuntimeError,
        match=r"^update_usage: columnwise NVFP4 data can be made of rowwise data only "
        r"under 2-D quantization without the transform$",
    ):
        q.update_usage(rowwise_usage=True, columnwise_usage=True)
