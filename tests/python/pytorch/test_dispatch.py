# SPDX-License-Identifier: Apache-2.0
"""Tests the operator table: results that stay quantized, results of plain values, errors."""

import re
import warnings
from collections.abc import Callable, Iterator

import pytest
import torch
from families import (
    ALL,
    SCHEMES,
    assert_nothing_shared,
    assert_same_buffers,
    buffers,
    sample,
    snapshot,
)
from narrowfloat.pytorch import _dispatch
from narrowfloat.pytorch._read_only import ReadOnlyValues
from narrowfloat.pytorch._types import Operator
from narrowfloat.pytorch.cpp_extensions import general_gemm
from narrowfloat.pytorch.quantized_tensor import _quantized_tensor_passthrough_ops

from narrowfloat import pytorch as nfp

aten = torch.ops.aten
every = pytest.mark.parametrize("kind", list(ALL))

# The columns of the table. Each row below has one code per column:
# Q the same type over the same buffers, N the same type over new buffers, D plain values,
# R read-only values in place of a view, P the product of the codes, E an error.
KINDS = (
    "float8_current", "mxfp8", "blockwise_1d", "blockwise_2d", "nvfp4", "identity",
    "hybrid_mxfp8_identity",
)  # fmt: skip


def quantized(kind: str, *shape: int) -> nfp.QuantizedTensor:
    return ALL[kind]()(sample(*shape)).detach()


Row = tuple[str, Callable[[torch.Tensor], torch.Tensor], str]

ROWS: list[Row] = [
    ("detach", lambda t: t.detach(), "QQQQQQQ"),
    ("alias", lambda t: aten.alias(t), "QQQQQQQ"),
    ("clone()", lambda t: t.clone(), "NNNNNNN"),
    ("aten.clone", lambda t: aten.clone(t), "NNNNNNN"),
    ("neg", lambda t: -t, "DDDDDDD"),
    ("sum", lambda t: t.sum(0), "DDDDDDD"),
    ("matmul", lambda t: t @ torch.ones(256, 3), "DDDDDDD"),
    ("product of codes", lambda t: t @ t.mT, "PPPPPDP"),
    ("product of parts", lambda t: t[:64] @ t[:64].mT, "PPDDPDP"),
    ("linear", lambda t: torch.nn.functional.linear(t, t), "PPPPPDP"),
    ("addmm", lambda t: torch.addmm(torch.zeros(128), t, t.t()), "PPPPPDP"),
    ("bmm", lambda t: torch.bmm(t.unsqueeze(0), t.unsqueeze(0).mT)[0], "PPPPPDP"),
    ("cat", lambda t: torch.cat([t, t]), "DDDDDDD"),
    ("stack", lambda t: torch.stack([t, t]), "DDDDDDD"),
    ("index", lambda t: t[torch.tensor([3, 1])], "DDDDDDD"),
    ("expand same shape", lambda t: t.expand(-1, 256), "QQQQQQQ"),
    ("expand", lambda t: t.expand(2, 128, 256), "RRRRRRR"),
    ("repeat", lambda t: t.repeat(2, 1), "DDDDDDD"),
    ("transpose", lambda t: t.transpose(0, 1), "RRRRRRR"),
    ("permute", lambda t: t.permute(1, 0), "RRRRRRR"),
    ("t", lambda t: t.t(), "RRRRRRR"),
    ("unsqueeze", lambda t: t.unsqueeze(0), "QQQQQQQ"),
    ("view same shape", lambda t: t.view(128, 256), "QQQQQQQ"),
    ("view leading dims", lambda t: t.view(4, 32, 256), "QQQRQQQ"),
    ("view last dim", lambda t: t.view(256, 128), "QRRRRQR"),
    ("reshape last dim", lambda t: t.reshape(256, 128), "QERRRQE"),
    ("aten.view same shape", lambda t: aten.view(t, [128, 256]), "QQQQQQQ"),
    ("aten.view leading dims", lambda t: aten.view(t, [4, 32, 256]), "QQQRQQQ"),
    ("flatten", lambda t: t.flatten(), "QERRRQE"),
    ("slice full", lambda t: t[:], "QQQQQQQ"),
    ("slice full, bounds left out", lambda t: aten.slice(t, 1), "QQQQQQQ"),
    ("slice part", lambda t: t[:64], "QQRRQQQ"),
    ("slice step", lambda t: t[::2], "QRRRRQR"),
    ("select", lambda t: t[3], "QRRRRQQ"),
    ("split 0", lambda t: t.split(64)[1], "QQRRQQQ"),
    ("split 0 unevenly", lambda t: t.split(48)[1], "QRRRQQQ"),
    ("split 1", lambda t: t.split(64, 1)[1], "QQRRQQQ"),
    ("as_strided whole", lambda t: t.as_strided((128, 256), (256, 1)), "QQQQQQQ"),
    ("as_strided part", lambda t: t.as_strided((64, 256), (256, 1), 0), "QQRRQQQ"),
    ("new_zeros", lambda t: t.new_zeros(64, 64), "NNNNNNN"),
    ("new_zeros odd", lambda t: t.new_zeros(3, 5), "NDNNDNE"),
    ("new_empty", lambda t: t.new_empty(64, 64), "NNNNNNN"),
    ("empty_like", lambda t: torch.empty_like(t), "NNNNNNN"),
    ("zeros_like", lambda t: torch.zeros_like(t), "DDDDDDD"),
    ("ones_like", lambda t: torch.ones_like(t), "DDDDDDD"),
    ("new_full", lambda t: t.new_full((2, 2), 1.0), "DDDDDDD"),
    ("to device", lambda t: t.to("cpu", copy=True), "NNNNNNN"),
    ("to dtype", lambda t: t.to(torch.float16), "DDDDDDD"),
    ("view as a type", lambda t: t.view(torch.int32), "RRRRREE"),
    ("view.dtype", lambda t: aten.view.dtype(t, torch.int32), "RRRRREE"),
    ("resize_", lambda t: t.resize_(2, 2), "EEEEEEE"),
]


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("column", range(len(KINDS)), ids=KINDS)
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0].replace(" ", "-"))
def test_row(row: Row, column: int) -> None:
    _, operator, codes = row
    tensor, code = quantized(KINDS[column]), codes[column]
    if code == "E":
        with pytest.raises((RuntimeError, ValueError, NotImplementedError, TypeError)):
            operator(tensor)
        return
    result = operator(tensor)
    if code == "P":
        piece = tensor if result.shape == (128, 128) else tensor[:64]
        assert type(result) is torch.Tensor and torch.equal(result, general_gemm(piece, piece)[0])
        return
    if code in "DR":
        assert type(result) is (torch.Tensor if code == "D" else ReadOnlyValues)
        plain = operator(tensor.dequantize())
        assert result.dtype == plain.dtype and torch.equal(result, plain)
        return
    assert type(result) is type(tensor) and not result.requires_grad
    if code == "N":
        assert_nothing_shared(tensor, result)
        if row[0] not in ("new_empty", "empty_like"):
            assert torch.equal(result.dequantize(), operator(tensor.dequantize()))
        return
    assert torch.equal(result.dequantize(), operator(tensor.dequantize()))
    spans = [
        (b.untyped_storage().data_ptr(), b.untyped_storage().nbytes())
        for b in buffers(tensor).values()
    ]
    codes_of_result = next(iter(buffers(result).values()))
    address = codes_of_result.data_ptr()
    assert any(begin <= address < begin + size for begin, size in spans), "an alias"


@pytest.mark.parametrize("kind", KINDS[1:5])
def test_view_of_the_last_dimension_warns(kind: str) -> None:
    name = type(quantized(kind)).__name__
    with pytest.warns(UserWarning, match=f"^{name} cannot reshape its"):
        quantized(kind).view(-1)


@pytest.mark.parametrize(
    ("kind", "operator", "error", "message"),
    [
        ("mxfp8", lambda t: t.reshape(-1), RuntimeError,
         "MXFP8Tensor cannot reshape its inner dimension, from (128, 256) to (32768,)"),
        ("mxfp8", lambda t: aten.view(t, [-1]), ValueError,
         "view: an MXFP8Tensor must keep its last dimension, got (32768,) for "
         "(128, 256)"),
        ("identity", lambda t: t.view(torch.int32), TypeError,
         "view: an IdentityTensor cannot be seen as another type"),
        ("hybrid_mxfp8_identity", lambda t: t.view(torch.int32), TypeError,
         "view: a HybridQuantizedTensor cannot be seen as another type"),
        ("float8_current", lambda t: t.resize_(3), NotImplementedError,
         "resize_: Float8Tensor cannot change its size in place"),
        ("mxfp8", lambda t: torch.mul(sample(3, 128, 256), 2, out=t), ValueError,
         "aten.mul.out: a MXFP8Tensor of shape (128, 256) cannot become (3, 128, 256) in place"),
    ],
)  # fmt: skip
def test_refusals(kind: str, operator: Callable, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^{re.escape(message)}$"):
        operator(quantized(kind))


@every
def test_zero_in_place(kind: str) -> None:
    tensor = quantized(kind)
    assert tensor.zero_() is tensor
    assert not tensor.dequantize().any()


@every
def test_written_arguments_are_found_by_name(kind: str) -> None:
    tensor, x = quantized(kind), sample(seed=21)
    assert torch.mul(x, 2, out=tensor) is tensor
    assert_same_buffers(tensor, ALL[kind]()(x * 2).detach(), "out=")


@every
def test_lists_are_written_element_by_element(kind: str) -> None:
    tensors = [quantized(kind), quantized(kind)]
    expected = ALL[kind]()(tensors[0].dequantize() * 3).detach()
    torch._foreach_mul_(tensors, 3.0)
    for tensor in tensors:
        assert_same_buffers(tensor, expected, "_foreach_mul_")


@every
def test_copy_from_plain_and_to_plain(kind: str) -> None:
    tensor, x = quantized(kind), sample(seed=22)
    assert tensor.copy_(x) is tensor
    assert_same_buffers(tensor, ALL[kind]()(x).detach(), "copy_ from plain")
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64):
        plain = torch.empty(128, 256, dtype=dtype)
        plain.copy_(tensor)
        known = dtype if dtype != torch.float64 else torch.float32
        assert torch.equal(plain, tensor.dequantize(dtype=known).to(dtype))
    tensor.copy_(x.double())
    assert_same_buffers(tensor, ALL[kind]()(x).detach(), "copy_ from float64")
    tensor.copy_(torch.ones(1))
    assert torch.equal(tensor.dequantize(), torch.ones(128, 256))


@every
def test_copy_of_the_same_type_is_raw(kind: str) -> None:
    tensor, other = quantized(kind), ALL[kind]()(sample(seed=23) * 50).detach()
    for buffer in buffers(other).values():
        if buffer.dtype == torch.uint8:
            buffer.view(-1)[3] ^= 5  # codes that quantizing does not make
            break
    places = [buffer.data_ptr() for buffer in buffers(tensor).values()]
    tensor.copy_(other)
    assert_same_buffers(tensor, other, "raw")
    assert places == [buffer.data_ptr() for buffer in buffers(tensor).values()]


def test_raw_copy_never_leaves_a_stale_direction() -> None:
    for kind in ("mxfp8", "blockwise_1d", "nvfp4"):
        tensor, rowwise = quantized(kind), quantized(kind)
        rowwise.quantize_(sample(seed=24))
        rowwise.update_usage(columnwise_usage=False)
        tensor.copy_(rowwise)
        expected = ALL[kind]()(rowwise.dequantize()).detach()
        assert_same_buffers(tensor, expected, f"{kind} copied from one direction")


def test_float8_copy_rebuilds_the_transpose() -> None:
    tensor, other = quantized("float8_current"), quantized("float8_current")
    other.quantize_(sample(seed=25))
    expected = other._transpose.clone()
    other.remove_caches()
    tensor.copy_(other)
    assert torch.equal(tensor._transpose, expected) and not tensor._transpose_invalid


def test_hybrid_copy_needs_equal_usages() -> None:
    tensor, other = quantized("hybrid_mxfp8_identity"), quantized("hybrid_mxfp8_identity")
    before = {name: buffer.clone() for name, buffer in buffers(tensor).items()}
    other.quantize_(sample(seed=26))
    other.update_usage(columnwise_usage=False)
    with pytest.raises(NotImplementedError, match=r"requires matching rowwise/columnwise usages"):
        tensor.copy_(other)
    assert_same_buffers(tensor, before, "nothing written")


@every
def test_setitem(kind: str) -> None:
    tensor = quantized(kind)
    tensor[:, :] = 1
    assert torch.equal(tensor.dequantize(), torch.ones(128, 256))


@every
@pytest.mark.parametrize(
    "index",
    [0, (3, 5), slice(3, 7), (slice(None), 0), slice(None, None, 2), slice(32, 64)],
    ids=str,
)
@pytest.mark.parametrize("value", [1.0, torch.ones(1)], ids=["number", "tensor"])
def test_setitem_of_a_part(kind: str, index: object, value: object) -> None:
    tensor = quantized(kind)
    before, version = tensor.dequantize().clone(), tensor._version
    expected = before.clone()
    expected[index] = value
    tensor[index] = value
    assert tensor._version > version
    found = tensor.dequantize()
    if torch.equal(found, ALL[kind]()(expected).dequantize()):
        return
    # A part of whole blocks is written with the scale or the amax of the whole tensor.
    assert "float8" in kind or "nvfp4" in kind
    # Half a step of E4M3, 2^-4: of the code in FP8; in NVFP4, with codes of 6, of the scale.
    assert torch.allclose(found[index], expected[index], rtol=2**-4, atol=0)
    found[index] = before[index]
    assert torch.equal(found, before)


@every
def test_setitem_loses_no_gradient(kind: str) -> None:
    parameter = torch.nn.Parameter(quantized(kind))
    before, before_values = snapshot(parameter.detach()), parameter.detach().dequantize().clone()
    with pytest.raises(RuntimeError, match="leaf Variable that requires grad"):
        parameter[0] = 1
    assert_same_buffers(parameter.detach(), before, "a refused write")
    with torch.no_grad():
        parameter[0] = 1
    assert not torch.equal(parameter.detach().dequantize(), before_values)


def test_setitem_takes_no_value_with_a_gradient_where_blocks_are_cut() -> None:
    tensor = quantized("mxfp8")
    with pytest.raises(RuntimeError, match="read-only"):
        tensor[0] = torch.ones(256, requires_grad=True)


def test_writing_to_a_slice_of_float8_writes_to_the_whole() -> None:
    tensor = quantized("float8_current", 8, 6)
    plain = tensor.dequantize()
    scale_inv = tensor._scale_inv.clone()
    part = tensor[2:4, 1:3]
    assert not part._data.is_contiguous() and torch.equal(part.dequantize(), plain[2:4, 1:3])
    part.zero_()
    plain[2:4, 1:3] = 0
    assert torch.equal(tensor.dequantize(), plain)
    assert torch.equal(tensor._data, nfp.Float8Tensor.make_like(tensor)._data)
    assert torch.equal(tensor._scale_inv, scale_inv)
    part += 1  # 1 is below the amax of the tensor, so the scale stays
    plain[2:4, 1:3] = 1
    assert torch.equal(tensor._scale_inv, scale_inv)
    assert_same_buffers(tensor, tensor.detach(), "one storage")
    assert torch.equal(tensor.dequantize()[:2], plain[:2])


@pytest.mark.parametrize("shape", [(6,), (4, 6), (2, 4, 6), (2, 2, 4, 6)], ids=str)
def test_float8_cuts_keep_the_transpose(shape: tuple[int, ...]) -> None:
    tensor = quantized("float8_current", *shape)
    plain = tensor.dequantize()
    cuts: list[Callable[[torch.Tensor], torch.Tensor]] = []
    for dim in range(len(shape)):
        cuts.append(lambda t, d=dim: t.narrow(d, 1, 1))
        cuts.append(lambda t, d=dim: t.split(1, d)[0])
        if len(shape) > 1:
            cuts.append(lambda t, d=dim: t.select(d, 1))
    for cut in cuts:
        part = cut(tensor)
        assert torch.equal(part.dequantize(), cut(plain))
        assert not part._transpose_invalid
        part.update_usage(rowwise_usage=False)
        assert torch.equal(part.dequantize(), cut(plain)), "from the transpose alone"


def test_transpose_alone() -> None:
    tensor = quantized("float8_current", 4, 6)
    plain = tensor.dequantize()
    tensor.update_usage(rowwise_usage=False)
    assert tensor.shape == (4, 6) and torch.equal(tensor.dequantize(), plain)
    shard = tensor.as_strided((2, 6), (6, 1), 12)
    assert isinstance(shard, nfp.Float8Tensor) and torch.equal(shard.dequantize(), plain[2:])
    assert type(tensor.as_strided((2, 3), (6, 1))) is ReadOnlyValues
    assert type(tensor.new_zeros(2, 2)) is nfp.Float8Tensor
    with pytest.raises(
        NotImplementedError,
        match=r"^.* with columnwise-only data cannot change its shape, from .* to .*$",
    ):
        tensor.view(24)
    with pytest.raises(
        NotImplementedError,
        match=r"^.* with columnwise-only data cannot change its shape, from .* to .*$",
    ):
        aten.view(tensor, [24])


def test_mxfp8_split_pads_scales_of_copies() -> None:
    tensor = quantized("mxfp8", 192, 256)
    for index, piece in enumerate(tensor.split(64)):
        alone = ALL["mxfp8"]()(sample(192, 256)[64 * index : 64 * index + 64]).detach()
        assert_same_buffers(piece.clone(), alone, f"piece {index}")
    wide = quantized("mxfp8", 256, 256).split(128)[1]
    scales = quantized("mxfp8", 256, 256)._rowwise_scale_inv
    assert torch.equal(wide._rowwise_scale_inv, scales[128:])


def test_pins_and_sizes() -> None:
    for kind in ALL:
        tensor = quantized(kind)
        assert tensor.is_pinned() is False
        assert tensor.numel() == 128 * 256 and sum(len(row) for row in tensor[:]) == 128 * 256


@pytest.mark.parametrize("kind", list(SCHEMES))
def test_float8_rows_iterate(kind: str) -> None:
    tensor = quantized(kind, 32, 32)
    plain = tensor.dequantize()
    for row, wanted in zip(tensor, plain, strict=True):
        assert torch.equal(row.dequantize() if isinstance(row, nfp.Float8Tensor) else row, wanted)


def test_native_accessors_are_refused() -> None:
    tensor = quantized("mxfp8", 32, 32)
    for accessor in ("tolist", "numpy"):
        with pytest.raises(RuntimeError):
            getattr(tensor, accessor)()


def test_another_nominal_type_of_float8_warns() -> None:
    with pytest.warns(UserWarning, match=r"FSDP2 needs parameters of one type$"):
        quantized("float8_current").to(torch.bfloat16)


def test_new_empty_without_a_quantizer() -> None:
    tensor = quantized("float8_current")
    tensor._quantizer = None
    with pytest.raises(RuntimeError, match=r"^new_empty: Float8Tensor has no quantizer"):
        tensor.new_empty(3)
    tensor = quantized("mxfp8")
    tensor._quantizer = None
    assert isinstance(tensor.new_empty(32, 32), nfp.MXFP8Tensor)


def test_rows_are_one_function_each() -> None:
    """Checks that some operators have rows in the table, and that aten.add has no row."""
    operators = {operator for operator, _ in _dispatch._table}
    assert {aten.slice.Tensor, aten.split.Tensor, aten.view.default, aten.copy_.default} < operators
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert _dispatch.find_row(aten.detach.default, nfp.MXFP8Tensor) is not None
        assert _dispatch.find_row(aten.add.Tensor, nfp.MXFP8Tensor) is None


@pytest.fixture
def passing() -> Iterator[Operator]:
    """Yields an operator that gets quantized tensors and returns the lengths of class names."""
    with torch.library._scoped_library("narrowfloat_tests", "FRAGMENT") as library:
        library.define("letters(Tensor x, Tensor[] others) -> int[]")
        library.impl(
            "letters",
            lambda x, others: [len(type(t).__name__) for t in (x, *others)],
            "CompositeExplicitAutograd",
        )
        operator = torch.ops.narrowfloat_tests.letters.default
        _quantized_tensor_passthrough_ops.add(operator)
        yield operator
        _quantized_tensor_passthrough_ops.discard(operator)


@every
def test_operators_that_take_quantized_tensors(kind: str, passing: Operator) -> None:
    tensor = quantized(kind)
    name = len(type(tensor).__name__)
    assert passing(tensor, [torch.ones(2), tensor]) == [name, len("Tensor"), name]
    assert passing(torch.ones(2), [tensor]) == [len("Tensor"), name]
    _quantized_tensor_passthrough_ops.discard(passing)
    assert passing(tensor, []) == [len("Tensor")]
