# SPDX-License-Identifier: Apache-2.0
"""Compares bytes of TransformerEngine's classes with ours; prints the number of compared pairs."""

import itertools

import narrowfloat.te  # isort: skip  (first: it makes the next import work)
import torch
import transformer_engine.pytorch as te
import transformer_engine_torch as tex
from narrowfloat.pytorch import tensor
from narrowfloat.pytorch.utils import set_non_tn_fp8_gemm_supported

assert narrowfloat.te
E4M3 = te.DType.kFloat8E4M3
BLOCK = {"rowwise": True, "columnwise": True, "block_scaling_dim": 1}
SCALE = (torch.full((1,), 3.0), torch.zeros(1), E4M3)
PAIRS = {
    "Float8Quantizer": (SCALE, {}),
    "Float8CurrentScalingQuantizer": ((E4M3, "cpu"), {}),
    "MXFP8Quantizer": ((E4M3,), {}),
    "Float8BlockQuantizer": ((E4M3,), BLOCK),
    "NVFP4Quantizer": ((), {}),
}


def same_buffers(ours: object, hosts: object) -> None:
    """Asserts that both have the same buffers, bit by bit."""
    for buffer in ours.BUFFERS:
        mine, other = getattr(ours, buffer.name), getattr(hosts, buffer.name)
        assert (mine is None) == (other is None), buffer.name
        if mine is not None:
            assert torch.equal(mine.view(torch.uint8), other.view(torch.uint8)), buffer.name


set_non_tn_fp8_gemm_supported(True)  # as on generation 10.0, like TransformerEngine's classes
torch.manual_seed(0)
random = torch.randn(128, 256)
tried = 0
for name, dtype in itertools.product(PAIRS, (torch.bfloat16, torch.float16)):
    arguments, options = PAIRS[name]
    x = random.to(dtype)
    own = getattr(tensor, name)(*arguments, **options)
    its = getattr(te, name)(*arguments, **options)
    for internal in (False, True):
        own.internal = its.internal = internal
        ours, hosts = tex.quantize(x, own), tex.quantize(x, its)
        assert type(hosts).__module__.startswith("transformer_engine."), type(hosts)
        same_buffers(ours, hosts)
        values = [tex.dequantize(q, tex.DType.kFloat32) for q in (ours, hosts)]
        assert torch.equal(*values), name
        products = [
            tex.generic_gemm(
                q, True, q, False, None, None, tex.DType.kFloat32, None, None, False, None, False
            )[0]
            for q in (ours, hosts)
        ]
        assert torch.equal(*products), name
        if name != "Float8Quantizer":  # delayed scaling has no groups
            sizes = torch.tensor([0, 128])
            groups = [tex.group_quantize(x, q, 2, sizes) for q in (own, its)]
            assert torch.equal(groups[0].rowwise_data, groups[1].rowwise_data), name
    tried += 1

# Only some shapes have swizzled scales before the tensor is filled; all have them afterwards.
nvfp4 = te.NVFP4Quantizer(with_2d_quantization=True)
ours = tensor.NVFP4Quantizer(with_2d_quantization=True)
nvfp4.optimize_for_gemm = ours.optimize_for_gemm = True
for rows, at_once in ((128, True), (64, False)):
    empty = nvfp4.make_empty((rows, 256), dtype=torch.bfloat16)
    assert empty._with_gemm_swizzled_scales is at_once, rows
    assert tex.quantize(x[:rows], nvfp4, empty)._with_gemm_swizzled_scales, rows
    same_buffers(tex.quantize(x[:rows], ours), empty)
print(tried)
