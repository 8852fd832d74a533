# SPDX-License-Identifier: Apache-2.0
"""Tests small functions that TransformerEngine exports, and names that two modules have."""

import math

import narrowfloat.pytorch as nfp
import pytest
import torch
from families import SCHEMES
from narrowfloat.pytorch.cpp_extensions import gemm, grouped_gemm
from narrowfloat.pytorch.custom_recipes import reference_nvfp4, reference_utils
from narrowfloat.pytorch.tensor import (
    cast_master_weights_to_fp8,
    get_all_tensor_types,
    nvfp4_tensor,
    replace_raw_data,
    storage,
    utils,
)

import narrowfloat as nf


def test_names_with_a_second_home_are_the_same_objects() -> None:
    assert storage.GroupedTensorStorage is nfp.GroupedTensorStorage
    assert gemm.general_grouped_gemm is grouped_gemm.general_grouped_gemm
    assert cast_master_weights_to_fp8 is utils.cast_master_weights_to_fp8
    assert replace_raw_data is utils.replace_raw_data
    assert reference_nvfp4.cast_to_fp4x2 is reference_utils.cast_to_fp4x2
    assert reference_nvfp4.high_precision_gemm_ref is reference_utils.high_precision_gemm_ref
    assert nfp.constants.DType is nfp.DType


@pytest.mark.parametrize("module", [storage, gemm])
def test_a_name_that_is_not_there_is_an_attribute_error(module: object) -> None:
    text = rf"^module '{module.__name__}' has no attribute 'nothing'$"
    with pytest.raises(AttributeError, match=text):
        _ = module.nothing


def test_requests_and_roles_are_at_the_top() -> None:
    role = nfp.QuantizerRole(module_type="linear", tensor_type="weight")
    assert role.is_linear_weight()
    assert issubclass(nfp.DelayedScalingRequest, nfp.QuantizerRequest)
    assert nfp.get_default_recipe().delayed()


def test_what_the_cpu_has() -> None:
    assert nfp.is_bf16_available() is True
    assert nfp.is_bf16_available(return_reason=True) == (True, "")
    assert nfp.get_cudnn_version() == (0, 0, 0)
    assert nfp.get_device_compute_capability() == (9, 0)


@pytest.mark.parametrize("shape", [(12,), (12, 2)])
def test_gated_halves_are_put_in_turns_and_back(shape: tuple[int, ...]) -> None:
    rows = torch.arange(math.prod(shape)).reshape(shape)
    turns = nfp.interleave_glu_tensor(rows, 3)
    order = [0, 1, 2, 6, 7, 8, 3, 4, 5, 9, 10, 11]  # halves W and V: W0 V0 W1 V1, three rows each
    assert torch.equal(turns, rows[order])
    assert torch.equal(nfp.deinterleave_glu_tensor(turns, 3), rows)


@pytest.mark.parametrize("name", ["interleave_glu_tensor", "deinterleave_glu_tensor"])
def test_gated_halves_need_whole_blocks(name: str) -> None:
    function = getattr(nfp, name)
    text = rf"^{name}: dimension 0 must be a multiple of 2 \* interleave_size = 10, got 12$"
    with pytest.raises(ValueError, match=text):
        function(torch.zeros(12), 5)
    with pytest.raises(ValueError, match=rf"^{name}: interleave_size must be positive, got 0$"):
        function(torch.zeros(12), 0)


def test_types_of_tensors_are_pairs_of_a_tensor_and_its_storage() -> None:
    types = get_all_tensor_types()
    assert types[:2] == [torch.Tensor, torch.nn.Parameter]
    pairs = list(zip(types[2::2], types[3::2], strict=True))
    assert all(issubclass(tensor, bare) for tensor, bare in pairs if tensor != nfp.GroupedTensor)
    made = {type(make()(torch.ones(128, 128))) for make in SCHEMES.values()}
    assert made <= {tensor for tensor, _ in pairs}


def test_custom_is_what_brings_its_own_products() -> None:
    assert not utils.is_custom(None) and not utils.is_custom(torch.ones(1))
    assert not utils.is_custom(nfp.MXFP8Quantizer(nfp.DType.kFloat8E4M3))
    assert utils.is_custom(reference_nvfp4.NVFP4QuantizerRef())
    text = "^is_custom: needs a Quantizer or a QuantizedTensorStorage, got str$"
    with pytest.raises(AssertionError, match=text):
        utils.is_custom("mxfp8")


def test_clearing_the_columns_keeps_the_rows() -> None:
    tensor = nfp.MXFP8Quantizer(nfp.DType.kFloat8E4M3)(torch.randn(64, 64)).detach()
    values = tensor.dequantize()
    utils.clear_columnwise_cache(tensor)
    assert tensor._columnwise_data is None and tensor._columnwise_scale_inv is None
    assert torch.equal(tensor.dequantize(), values)


def test_clearing_a_transpose_marks_it_as_stale() -> None:
    tensor = nfp.Float8CurrentScalingQuantizer(nfp.DType.kFloat8E4M3)(torch.eye(4)).detach()
    assert tensor._transpose is not None and not tensor._transpose_invalid
    utils.clear_columnwise_cache(tensor)
    assert tensor._transpose is None and tensor._transpose_invalid


def test_a_factor_of_a_product_is_given_only_where_it_is_used() -> None:
    assert gemm.validate_gemm_scale(None, True) == 1.0
    assert gemm.validate_gemm_scale(2.0, True) == 2.0
    assert gemm.validate_gemm_scale(None, False) == 0.0
    assert gemm.validate_gemm_scale(0.0, False) == 0.0
    with pytest.raises(ValueError, match=r"^validate_gemm_scale: scale must be zero, got 1\.5$"):
        gemm.validate_gemm_scale(1.5, False)


class TestHadamard:
    # TransformerEngine's fixed signs of the transform.
    SIGNS = (1, 1, 1, -1, 1, -1, -1, -1, -1, -1, -1, 1, -1, 1, -1, -1)

    def test_the_matrix_is_sylvesters(self) -> None:
        sylvester = torch.ones(1, 1)
        for _ in range(4):
            sylvester = torch.kron(torch.tensor([[1.0, 1.0], [1.0, -1.0]]), sylvester)
        assert torch.equal(nvfp4_tensor.get_hadamard_matrix(16, "cpu"), sylvester / 4)
        text = "^get_hadamard_matrix: the dimension must be 16, got 32$"
        with pytest.raises(AssertionError, match=text):
            nvfp4_tensor.get_hadamard_matrix(32, "cpu")

    def test_the_signs_and_their_mask_are_the_fixed_ones(self) -> None:
        signs = nvfp4_tensor.get_wgrad_sign_vector("cpu")
        assert signs.tolist() == list(self.SIGNS) and signs.dtype == torch.float32
        mask = sum(1 << place for place, sign in enumerate(self.SIGNS) if sign == -1)
        assert nvfp4_tensor.get_sign_from_vector(signs) == mask
        assert nvfp4_tensor.get_random_sign_mask_for_rht(True, "cpu") == mask
        assert nvfp4_tensor.get_random_sign_mask_for_rht(False, "cpu") == 0
        assert nvfp4_tensor.get_no_random_sign_vector("cpu").tolist() == [1.0]

    @pytest.mark.parametrize("random", [False, True])
    def test_the_matrix_does_what_the_kernels_do(self, random: bool) -> None:
        matrix = nvfp4_tensor.get_rht_matrix(random, "cpu")
        assert matrix.dtype == torch.bfloat16
        rows = torch.randint(-8, 8, (16, 5)).float()  # sums are exact
        mask = nvfp4_tensor.get_random_sign_mask_for_rht(random)
        done = nf.hadamard_transform(rows.numpy(), sign_mask=mask)
        assert torch.equal(matrix.float().t() @ rows, torch.from_numpy(done))


def test_arguments_have_the_names_of_transformer_engine() -> None:
    layer, group = nfp.Linear(4, 4), nfp.GroupedLinear(1, 4, 4)
    x = torch.ones(2, 4)
    assert layer(inp=x).shape == group(inp=x, m_splits=[2]).shape == (2, 4)
    for quantizer in (
        nfp.Float8CurrentScalingQuantizer(nfp.DType.kFloat8E4M3),
        nfp.MXFP8Quantizer(nfp.DType.kFloat8E4M3),
    ):
        assert sorted(quantizer.get_columnwise_shape(rowwise_data_shape=(2, 4))) == [2, 4]
    decoded = reference_nvfp4.cast_from_fp4x2(
        x=torch.tensor([0x21], dtype=torch.uint8), dq_dtype=torch.float16
    )
    assert decoded.dtype == torch.float16 and decoded.tolist() == [0.5, 1.0]


def test_the_reference_of_nvfp4_has_no_transpose() -> None:
    quantizer = reference_nvfp4.NVFP4QuantizerRef()
    assert not quantizer.supports_allgather_fp8
    with pytest.raises(
        NotImplementedError,
        match=(
            r"^transpose_qresult: NVFP4 codes are not supported, because scales belong to blocks "
            r"of one direction$"
        ),
    ):
        quantizer.transpose_qresult(quantizer(torch.ones(16, 16)))
