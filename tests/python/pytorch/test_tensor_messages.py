# SPDX-License-Identifier: Apache-2.0
"""Tests whole texts of messages about tensors, quantizers, groups, layers and tex."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from families import ALL, HYBRIDS, sample
from narrowfloat.common.recipe import Float8CurrentScaling, MXFP8BlockScaling
from narrowfloat.pytorch import tex
from narrowfloat.pytorch._arrays import array_of
from narrowfloat.pytorch._extra_state import _walk
from narrowfloat.pytorch.cpp_extensions import general_grouped_gemm
from narrowfloat.pytorch.custom_recipes.reference_utils import high_precision_gemm_ref
from narrowfloat.pytorch.quantization import split_and_copy
from narrowfloat.pytorch.quantization.dtypes import get_fp4_te_dtype
from narrowfloat.pytorch.tensor._collectives import _layout, _require_alike
from narrowfloat.pytorch.tensor._from_core import quantizer_for
from narrowfloat.pytorch.tensor._hosted import HostedStorage, set_generation
from narrowfloat.pytorch.tensor._master_weights import check_matrix
from narrowfloat.pytorch.tensor._operators import _set_data
from narrowfloat.pytorch.tensor.grouped_tensor import GroupedTensor
from narrowfloat.pytorch.tensor.storage import _transport

import narrowfloat as nf
from narrowfloat import pytorch as nfp

X = sample(128, 256)


def made(name: str, x: torch.Tensor = X) -> nfp.QuantizedTensor:
    return ALL[name]()(x)


def check(call: Callable[[], object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^{re.escape(message)}$"):
        call()


class Storage(nfp.QuantizedTensorStorage):
    """Implements nothing."""

    _quantizer = None


class Tensor(nfp.QuantizedTensor):
    """Implements nothing."""


class Quantizer(nfp.Quantizer):
    """Implements only the abstract method."""

    def update_quantized(self, *args: object, **kwargs: object) -> None:
        raise AssertionError


def bare_tensor() -> Tensor:
    return Tensor(shape=(2, 2), dtype=torch.float32)


STORAGE_METHODS: dict[str, Callable[[Storage], object]] = {
    "Storage class does not implement update_usage function": lambda storage: storage.update_usage(
        True
    ),
    "Storage class does not implement get_usages function": lambda storage: storage.get_usages(),
    "Storage class does not implement prepare_for_saving function": lambda storage: (
        storage.prepare_for_saving()
    ),
    "Storage class does not implement restore_from_saved function": lambda storage: (
        storage.restore_from_saved([])
    ),
    "Storage class does not implement copy_from_storage function": lambda storage: (
        storage.copy_from_storage(storage)
    ),
    "Storage class does not implement clear function": lambda storage: storage.clear(),
    "Storage class does not implement fsdp_extract_buffers function": lambda storage: (
        storage.fsdp_extract_buffers()
    ),
    "Storage class does not implement fsdp_assign_gathered function": lambda storage: (
        storage.fsdp_assign_gathered([], {})
    ),
}


@pytest.mark.parametrize("message", STORAGE_METHODS)
def test_a_storage_without_a_method_names_it(message: str) -> None:
    check(lambda: STORAGE_METHODS[message](Storage()), NotImplementedError, message)


def test_a_tensor_and_a_quantizer_without_a_method_name_it() -> None:
    for message, call in {
        "Tensor class does not implement dequantize function": lambda: bare_tensor().dequantize(),
        "Tensor class does not implement quantize_ function": lambda: bare_tensor().quantize_(X),
        "Tensor class does not implement detach function": lambda: bare_tensor().detach(),
    }.items():
        check(call, NotImplementedError, message)
    quantizer = Quantizer(rowwise=True, columnwise=True)
    for call, error, message in [
        (lambda: quantizer(X), NotImplementedError,
         "Quantizer class does not implement quantize_impl function"),
        (lambda: quantizer.onnx_quantize(X), NotImplementedError, "Quantizer has no ONNX form"),
        (lambda: quantizer.onnx_dequantize(X), NotImplementedError, "Quantizer has no ONNX form"),
        (lambda: GroupedTensor.make_grouped_tensor(1, None, None, 128, 256, quantizer=quantizer),
         ValueError, f"Unsupported quantizer for GroupedTensor: {quantizer}"),
        (lambda: Storage()._get_quantizer(), ValueError,
         "Storage has no quantizer and no default quantizer is available"),
    ]:  # fmt: skip
        check(call, error, message)


def test_operators_on_tensors() -> None:
    mx, block, current = made("mxfp8"), made("blockwise_2d"), made("float8_current")
    hybrid = made("hybrid_mxfp8_identity")
    tiles_and_values = nfp.HybridQuantizer(
        rowwise_quantizer=ALL["blockwise_2d"](), columnwise_quantizer=nfp.IdentityQuantizer()
    )
    other = HYBRIDS["hybrid_mxfp8_identity"]()
    other.set_usage(columnwise=False)
    no_quantizer = made("blockwise_2d").detach()
    no_quantizer._quantizer = None
    plain_hybrid = hybrid.detach()
    plain_hybrid._quantizer = None
    read_only = mx[0].requires_grad_()
    columns = nfp.MXFP8Quantizer("e4m3", rowwise=False)(X)
    for call, error, message in [
        (lambda: read_only.numpy(), RuntimeError,
         "numpy: a tensor that requires grad needs detach() first"),
        (lambda: mx.unsqueeze_(0), NotImplementedError,
         "aten.unsqueeze_.default: changing the shape of a MXFP8Tensor in place is not "
         "supported"),
        (lambda: torch.select(mx, 0, 128), IndexError,
         "select: index 128 is out of range for a dimension of size 128"),
        (lambda: setattr(block, "data", made("blockwise_2d", sample(128, 128))), ValueError,
         "Float8BlockwiseQTensor.data: the shape must stay (128, 256), got (128, 128)"),
        (lambda: ALL["blockwise_1d"]().update_quantized(X, block), ValueError,
         "Float8BlockQuantizer: the output must have block_scaling_dim 1, got 2"),
        (lambda: HYBRIDS["hybrid_mxfp8_identity"]().update_quantized(X, mx), ValueError,
         "HybridQuantizer can only update HybridQuantizedTensor, got MXFP8Tensor"),
        (lambda: ALL["float8_current"]().update_quantized(X, mx), ValueError,
         "Float8CurrentScalingQuantizer can only update Float8Tensor, got MXFP8Tensor"),
        (lambda: tiles_and_values(X).split(3), NotImplementedError,
         "split: the local shape must be divisible by 128 for every child to stay quantized, got "
         "pieces of 3"),
        (lambda: hybrid.copy_(other(X)), NotImplementedError,
         "copy_ between hybrid tensors requires matching rowwise/columnwise usages, got "
         "{'rowwise': True, 'columnwise': True} and {'rowwise': True, 'columnwise': False}"),
        (lambda: hybrid.copy_from_storage(mx), TypeError,
         "copy_from_storage expects HybridQuantizedTensorStorage"),
        (lambda: hybrid.get_data_tensors(False, False), ValueError,
         "No data to get, both rowwise_data and columnwise_data are False"),
        (lambda: mx.get_data_tensors(False, False), ValueError,
         "No data to get, both rowwise_data and columnwise_data are False"),
        (lambda: mx.contiguous(memory_format=torch.channels_last), ValueError,
         "MXFP8Tensor does not support different memory formats!"),
        (lambda: no_quantizer.new_empty(32, 32), RuntimeError,
         "new_empty: Float8BlockwiseQTensor has no quantizer to build another tensor with"),
        (lambda: plain_hybrid.new_empty(32, 32), RuntimeError,
         "new_empty: HybridQuantizedTensor has no quantizer to build another tensor with"),
        (lambda: check_matrix(made("mxfp8", sample(2, 32, 32))), ValueError,
         "quantize_master_weights: MXFP8Tensor weights must be matrices, got (2, 32, 32)"),
        (lambda: next(iter(nfp.export({"w": made("mxfp8", sample(2, 32, 32))}, "fp8"))),
         NotImplementedError, "export: 'w' must have two dimensions, got shape (2, 32, 32)"),
        (lambda: next(iter(nfp.export({"w": columns}, "fp8"))), NotImplementedError,
         "export: 'w' must have rowwise data, got MXFP8Tensor of columns alone"),
        (lambda: torch.ops.aten.split_with_sizes.default(current, [1, 2]), RuntimeError,
         "split_with_sizes expects split_sizes to sum exactly to 128 (input tensor's size at "
         "dimension 0), but got split_sizes=[1, 2]"),
        (lambda: _set_data(mx, X), NotImplementedError,
         "set_data: assign to the data attribute of a quantized tensor"),
        (lambda: array_of(torch.empty(1, device="meta")), NotImplementedError,
         "narrowfloat: tensors must be on the CPU, got meta"),
        (lambda: _require_alike("gather", [mx, X]), ValueError,
         f"gather: all tensors must have one layout, got {_layout(mx)} and plain tensors"),
        (lambda: set_generation(8, 9), ValueError,
         "set_generation: the generation must be 9.0 or 10.0, got 8.9"),
        (lambda: HostedStorage().colour, AttributeError,
         "'HostedStorage' object has no attribute 'colour'"),
        (lambda: quantizer_for("fp8_e4m3:scale=3", True, False), NotImplementedError,
         "no tensor class of narrowfloat.pytorch holds 'fp8_e4m3:scale=3'"),
    ]:  # fmt: skip
        check(call, error, message)
    current._data, current._transpose_invalid = None, True  # no codes, no valid transpose
    check(current.dequantize, RuntimeError, "Float8Tensor has no valid data to dequantize")
    tiles = made("nvfp4_2d")
    tiles.update_usage(columnwise_usage=False)
    tiles._rowwise_data = None
    check(tiles._create_columnwise, RuntimeError,
          "update_usage: making columnwise NVFP4 data needs rowwise data")  # fmt: skip


def test_groups_of_tensors() -> None:
    from_rowwise = GroupedTensor.make_grouped_tensor_from_rowwise_data
    group = from_rowwise(num_tensors=2, tensor_shape=(4, 8), rowwise_data=torch.zeros(64),
                         dtype=torch.float32)  # fmt: skip
    wide = GroupedTensor.make_grouped_tensor(2, None, torch.tensor([32, 64]), 8, 96,
                                             quantizer=None, dtype=torch.float32)  # fmt: skip
    empty = from_rowwise(num_tensors=2, tensor_shape=(4, 8), rowwise_data=torch.zeros(64),
                         dtype=torch.float32)  # fmt: skip
    empty.rowwise_data = None
    for call, error, message in [
        (lambda: from_rowwise(num_tensors=0, tensor_shape=(4, 8), rowwise_data=torch.zeros(64),
                              dtype=torch.float32),
         ValueError, "GroupedTensor needs at least one member, got 0"),
        (lambda: from_rowwise(num_tensors=1, tensor_shape=(4, 4, 4), rowwise_data=torch.zeros(64),
                              dtype=torch.float32),
         ValueError, "GroupedTensor members must have one or two dimensions, got (4, 4, 4)"),
        (lambda: from_rowwise(num_tensors=2, tensor_shape=(4, 4), rowwise_data=torch.zeros(64),
                              dtype=torch.float32),
         ValueError,
         "GroupedTensor: 2 members of (4, 4) need rowwise_data of 32 elements, got 64"),
        (wide.get_common_last_dim, RuntimeError, "Last dim varies across tensors"),
        (empty.split_into_quantized_tensors, RuntimeError, "GroupedTensor has no data to split"),
        (lambda: group.view(8, 8), RuntimeError,
         "GroupedTensor.view: the shape must be (-1,), got (8, 8)"),
        (lambda: GroupedTensor((8, 8), torch.float32, num_tensors=1, colour=3), TypeError,
         "GroupedTensor has no argument 'colour'"),
        (lambda: general_grouped_gemm([], [], [torch.zeros(2, 2)], [], torch.float32,
                                      single_output=True),
         ValueError, "general_grouped_gemm: single_output needs m_splits, got None"),
    ]:  # fmt: skip
        check(call, error, message)


def test_layers_and_recipes() -> None:
    with nfp.quantized_model_init(recipe=MXFP8BlockScaling()):
        layer = nfp.Linear(64, 64, name="up")

    def other_recipe() -> object:
        with nfp.autocast(recipe=Float8CurrentScaling()):
            return layer(sample(32, 64))

    check(
        other_recipe,
        RuntimeError,
        "Recipe mismatch for 'weight' of layer up: its quantized values need MXFP8BlockScaling, "
        "got Float8CurrentScaling; enter quantized_model_init and autocast with the same recipe",
    )
    fp8 = SimpleNamespace(fp4_format=SimpleNamespace(name="E4M3"))
    check(
        lambda: get_fp4_te_dtype(fp8),
        ValueError,
        "get_fp4_te_dtype: fp4_format must be E2M1, got E4M3",
    )
    nvfp4 = nf.NVFP4Quantizer(with_rht=True)
    check(lambda: nvfp4(sample(32, 32).numpy()), ValueError,
          "quantize: NVFP4Quantizer's with_rht needs with_post_rht_amax")  # fmt: skip
    by_row = nf.NVFP4Quantizer(rowwise=False, columnwise=True, row_scaled_nvfp4=True)
    check(lambda: by_row(sample(32, 32).numpy()), ValueError,
          "quantize: NVFP4Quantizer's row_scaled_nvfp4 needs rowwise usage")  # fmt: skip
    check(lambda: split_and_copy(torch.zeros(5), [torch.zeros(2)] * 2, [2, 2]), ValueError,
          "split_and_copy: chunk_sizes must have one size per output and add up to 5, got [2, 2] "
          "for 2 outputs")  # fmt: skip
    check(lambda: high_precision_gemm_ref(X, X.T, torch.float32, accumulate=True), AssertionError,
          "high_precision_gemm_ref: accumulate needs out, got None")  # fmt: skip
    check(lambda: list(_walk(pickle.dumps(1) + b"x", set())), ValueError,
          "the data must end with the pickle, got more bytes")  # fmt: skip


def test_saved_tensors_are_restored_once() -> None:
    message = "ctx must have .tensor_objects to restore saved tensors"
    check(lambda: nfp.restore_from_func_ctx(SimpleNamespace()), AttributeError, message)


def test_entries_of_the_native_module() -> None:
    bounds = torch.tensor([0, 4, 8], dtype=torch.int32)
    logits = torch.zeros(4, 8)
    histogram = torch.zeros(4, 3)
    for call, error, message in [
        (lambda: tex.thd_cp_rank_order_to_sequence_order(torch.zeros(3, 2), bounds, 2, 8),
         ValueError,
         "thd_cp_rank_order_to_sequence_order: needs 8 tokens, got shape (3, 2)"),
        (lambda: tex.thd_copy_valid_tokens_from_per_split_to_rank_local(
            torch.zeros(8, 1), torch.zeros(7, 1), bounds, bounds),
         ValueError,
         "thd_copy_valid_tokens_from_per_split_to_rank_local: needs equal shapes of output and "
         "input, and of bounds, got (8, 1), (7, 1), (3,) and (3,)"),
        (lambda: tex.te_general_grouped_gemm(
            [X], True, [X], False, None, None, [], None, [], False, None, 0, False, 0, False, 0),
         ValueError, "te_general_grouped_gemm: needs D, got None"),
        (lambda: tex.te_general_grouped_gemm_for_grouped_tensor(
            [X], True, [X, X], False, [X], None, None, torch.ones(1), torch.zeros(1)),
         ValueError,
         "te_general_grouped_gemm: groups must have the same number of members, got 1, 2, 1 and 1"),
        (lambda: tex.swap_first_dims(torch.zeros(3)), ValueError,
         "swap_first_dims: needs at least two dimensions, got (3,)"),
        (lambda: tex.nvfp4_data_transpose(torch.zeros(3, 4, dtype=torch.uint8)), ValueError,
         "nvfp4_data_transpose: needs a matrix with a multiple of 2 rows, got (3, 4)"),
        (lambda: tex.copy_to_kv_cache(None, None, None, None, None, None, None,
                                      tex.NVTE_QKV_Format.NVTE_BSHD_2SBHD, 1, 1, 1, 1, False),
         ValueError, "copy_to_kv_cache: the format must be bshd, sbhd or thd, got "
         "NVTE_BSHD_2SBHD"),
        (lambda: tex.fused_moe_aux_loss_fwd(logits, torch.zeros(8), 4, 8, 4, 8, 0, 1.0), ValueError,
         "fused_moe_aux_loss_fwd: needs positive topk and tokens, and columns that experts divide, "
         "got 0, 4, 8 columns and 8 experts"),
        (lambda: tex.fused_moe_aux_loss_bwd(torch.zeros(1), torch.zeros(7), 4, 8, torch.ones(1)),
         ValueError, "fused_moe_aux_loss_bwd: needs one count per column, got 7 for 8 columns"),
        (lambda: tex.router._check_histogram("entry", 8, histogram, torch.zeros(2)), ValueError,
         "entry: histogram must be int32 of shape (8, bins), got torch.float32 of (4, 3)"),
        (lambda: tex.router._check_indices(
            "entry", torch.zeros(4, 2), (4,), 2, tex.NVTERoutingMapFormat.BITMAP_U8),
         ValueError, "entry: topk_indices replace the routing map and need the format BYTEMAP, got "
         "BITMAP_U8"),
    ]:  # fmt: skip
        check(call, error, message)


def test_columns_of_three_dimensions_are_not_gathered() -> None:
    """Checks the extraction of a buffer, which DTensor and FSDP2 use to gather."""
    part = nfp.NVFP4Quantizer()(torch.ones(64, 64)).detach().view(2, 32, 64)
    with pytest.raises(
        NotImplementedError,
        match="^gather: _columnwise_data of a tensor of 3 dimensions is that of its matrix, so "
        r"that shards cannot be joined; gather the matrix, then view it$",
    ):
        _transport.extract(part, ["_columnwise_data"])
