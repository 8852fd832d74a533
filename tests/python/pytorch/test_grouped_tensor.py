# SPDX-License-Identifier: Apache-2.0
"""Tests groups of tensors in flat buffers."""

import copy
import io
import math
import pickle
from collections.abc import Callable, Sequence

import pytest
import torch
from families import ALL, E4M3, SCHEMES, assert_same_buffers, buffers, sample
from narrowfloat.pytorch.tensor.grouped_tensor import GroupedTensor
from narrowfloat.pytorch.tensor.storage.grouped_tensor_storage import GroupedTensorStorage

from narrowfloat import pytorch as nfp

schemes = pytest.mark.parametrize("kind", list(SCHEMES))
SIZES = [32, 96, 64]


def grouped(kind: str, sizes: list[int] | None = None, cols: int = 128) -> GroupedTensor:
    shapes = [(rows, cols) for rows in sizes or [64, 64, 64]]
    return GroupedTensorStorage.make_grouped_tensor_with_shapes(
        len(shapes), shapes, SCHEMES[kind](), "cpu", torch.float32
    )


@schemes
@pytest.mark.parametrize("sizes", [None, SIZES], ids=["uniform", "varying"])
def test_members_are_quantized_as_if_alone(kind: str, sizes: list[int] | None) -> None:
    group = grouped(kind, sizes)
    inputs = [sample(*shape, seed=i) for i, shape in enumerate(group.tensor_shapes)]
    members = group.quantize(inputs)
    flat = {
        tensor.untyped_storage().data_ptr()
        for tensor in group.__dict__.values()
        if isinstance(tensor, torch.Tensor)
    }
    for x, member in zip(inputs, members, strict=True):
        assert_same_buffers(member, SCHEMES[kind]()(x).detach(), "member")
        for name, buffer in buffers(member).items():
            assert buffer.untyped_storage().data_ptr() in flat, f"{name} is a part of the group"
    for kept, member in zip(group.quantized_tensors, members, strict=True):
        assert torch.equal(kept.dequantize(), member.dequantize())
    before = [member.dequantize() for member in members]
    group.quantize([x * 2 for x in inputs], noop_flag=torch.ones(1))
    for member, values in zip(members, before, strict=True):
        assert torch.equal(member.dequantize(), values)


@schemes
def test_flat_buffers(kind: str) -> None:
    group, cols = grouped(kind, SIZES), 128
    assert group.num_tensors == 3 and group.tensor_shapes == [(rows, cols) for rows in SIZES]
    assert group.logical_shape == (sum(SIZES), cols) and tuple(group.size()) == (192, 128)
    assert group.first_dims.tolist() == SIZES and group.last_dims is None
    assert group.offsets == group.tensor_offsets.tolist() == [0, 4096, 16384, 24576]
    per_byte = 2 if kind.startswith("nvfp4") else 1
    assert group.rowwise_data.shape == (192 * 128 // per_byte,)
    assert group.get_common_last_dim() == cols and group.get_dtype() == torch.float32
    with pytest.raises(RuntimeError, match=r"^First dim varies across tensors$"):
        group.get_common_first_dim()
    quantizer = SCHEMES[kind]()
    if hasattr(quantizer, "get_scale_shape"):
        counts = [math.prod(quantizer.get_scale_shape((rows, cols), False)) for rows in SIZES]
        sums = [sum(counts[:i]) for i in range(4)]
        assert group.scale_inv_offsets == sums and group.scale_inv.shape == (sums[-1],)
    else:
        assert group.scale_inv.shape == (3,) and group.amax.shape == (3,)
        assert (group.scale is not None) is (kind == "float8_current")


def test_shapes_that_vary() -> None:
    dims = torch.tensor([128, 256])
    wide = GroupedTensor.make_grouped_tensor(2, None, dims, 64, 384, dtype=torch.float32)
    assert wide.tensor_shapes == [(64, 128), (64, 256)] and wide.logical_shape == (64, 384)
    both = GroupedTensor.make_grouped_tensor(
        2, torch.tensor([2, 3]), torch.tensor([4, 5]), 1, 23, dtype=torch.float32
    )
    assert both.tensor_shapes == [(2, 4), (3, 5)] and both.logical_shape == (1, 23)
    assert both.varying_both_dims() and not wide.varying_both_dims()
    uniform = grouped("mxfp8")
    assert uniform.all_same_shape() and uniform.get_common_first_dim() == 64
    assert tuple(uniform.size()) == (3, 64, 128) and uniform.offsets == [0, 8192, 16384, 24576]


def test_without_a_quantizer() -> None:
    values = sample(6, 4).reshape(-1)
    group = GroupedTensor.make_grouped_tensor_from_rowwise_data(
        num_tensors=3, tensor_shape=(2, 4), rowwise_data=values
    )
    assert isinstance(group, GroupedTensor) and group.rowwise_data.data_ptr() == values.data_ptr()
    assert [tuple(member.shape) for member in group.quantized_tensors] == [(2, 4)] * 3
    assert torch.equal(group.dequantize(), values.view(3, 2, 4))
    bare = GroupedTensor.make_grouped_tensor_from_rowwise_data(
        num_tensors=6, tensor_shape=(4,), rowwise_data=values, internal=True
    )
    assert type(bare) is GroupedTensorStorage and bare.logical_shape == (6, 4)
    for count, shape, message in (
        (0, (4,), "GroupedTensor needs at least one member, got 0"),
        (3, (2, 2, 2), "GroupedTensor members must have one or two dimensions, got (2, 2, 2)"),
        (2, (5,), "GroupedTensor: 2 members of (5,) need rowwise_data of 10 elements, got 24"),
    ):
        with pytest.raises(ValueError) as raised:
            GroupedTensor.make_grouped_tensor_from_rowwise_data(
                num_tensors=count, tensor_shape=shape, rowwise_data=values
            )
        assert str(raised.value) == message
    with pytest.raises(TypeError) as unknown:
        GroupedTensor((2, 4), torch.float32, num_tensors=1, rows=2)
    assert str(unknown.value) == "GroupedTensor has no argument 'rows'"
    with pytest.raises(AssertionError, match=r"^dtype must be provided"):
        GroupedTensor.make_grouped_tensor(1, None, None, 2, 2)


@pytest.mark.parametrize(
    ("quantizer", "error", "message"),
    [
        (
            nfp.IdentityQuantizer(),
            NotImplementedError,
            "GroupedTensor does not support IdentityQuantizer",
        ),
        (
            ALL["hybrid_mxfp8_identity"](),
            NotImplementedError,
            "GroupedTensor does not support HybridQuantizer",
        ),
        (
            nfp.NVFP4Quantizer(row_scaled_nvfp4=True),
            ValueError,
            "GroupedTensor: row_scaled_nvfp4 needs rowwise usage alone",
        ),
    ],
    ids=["identity", "hybrid", "row_scaled"],
)
def test_quantizers_without_a_flat_form(
    quantizer: nfp.Quantizer, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=f"^{message}$"):
        GroupedTensor.make_grouped_tensor(2, None, None, 64, 64, quantizer, "cpu", torch.float32)


def test_internal_quantizers_make_storages() -> None:
    quantizer = nfp.MXFP8Quantizer(E4M3)
    quantizer.internal = True
    group = GroupedTensor.make_grouped_tensor(2, None, None, 64, 64, quantizer, "cpu")
    assert type(group) is GroupedTensorStorage
    members = group.quantize([sample(32, 64), sample(32, 64, seed=2)])
    assert all(type(member) is nfp.MXFP8TensorStorage for member in members)
    assert torch.equal(
        members[1].dequantize(), nfp.MXFP8Quantizer(E4M3)(sample(32, 64, seed=2)).dequantize()
    )


def test_lifetime() -> None:
    group = grouped("nvfp4", SIZES)
    alias = group.copy()
    assert alias.rowwise_data is group.rowwise_data and alias.offsets == group.offsets
    data = group.rowwise_data
    tensors, shell = group.prepare_for_saving()
    assert len(tensors) == 10 and tensors[0] is data and shell is group and not group.has_data()
    left = group.restore_from_saved([*tensors, data])
    assert left == [data] and group.rowwise_data is data and group.has_columnwise_data()
    group.clear()
    assert group.logical_shape == (0, 0) and group.num_tensors == 0 and not group.has_data()


def test_operators() -> None:
    group = grouped("mxfp8")
    inputs = [sample(64, 128, seed=i) for i in range(3)]
    members = group.quantize(inputs)
    stacked = torch.stack([member.dequantize() for member in members])
    assert torch.equal(group + 1, stacked + 1) and type(group + 1) is torch.Tensor
    group.mul_(2)
    expected = [nfp.MXFP8Quantizer(E4M3)(part * 2).detach() for part in stacked]
    for member, wanted in zip(group.split_into_quantized_tensors(), expected, strict=True):
        assert_same_buffers(member, wanted, "in place")
    alias = group.detach()
    assert type(alias) is GroupedTensor and alias.rowwise_data is group.rowwise_data
    assert type(group.expand(3, 64, 128)) is GroupedTensor
    assert group.view(-1) is group.rowwise_data
    refused = (
        lambda: group.view(3, -1), lambda: group.reshape(-1, 128), lambda: group.transpose(0, 1),
        lambda: group[0:1], lambda: group.split(1), lambda: torch.cat([group, group]),
        lambda: torch.stack([group, group]), lambda: group.permute(2, 1, 0),
    )  # fmt: skip
    for operator in refused:
        with pytest.raises(RuntimeError, match=r"^GroupedTensor"):
            operator()
    with pytest.raises(RuntimeError) as raised:
        group.view(3, -1)
    assert str(raised.value) == "GroupedTensor.view: the shape must be (-1,), got (3, -1)"
    with pytest.raises(
        NotImplementedError, match=r"^GroupedTensor: operators need members of one shape, got .*$"
    ):
        grouped("mxfp8", SIZES) + 1


def test_parameters_and_gradients() -> None:
    group = grouped("mxfp8")
    group.quantize([sample(64, 128, seed=i) for i in range(3)])
    parameter = torch.nn.Parameter(group)
    assert isinstance(parameter, GroupedTensor) and isinstance(parameter, torch.nn.Parameter)
    same = parameter.expand_as(parameter)
    assert same.grad_fn is not None
    grad = sample(3, 64, 128)
    same.backward(grad)
    assert torch.equal(parameter.grad, grad)


WRITES: dict[str, Callable[[GroupedTensor], object]] = {
    "member": lambda group: group.split_into_quantized_tensors()[0].zero_(),
    "kept member": lambda group: group.quantized_tensors[1].mul_(0.5),
    "part of a member": lambda group: group.split_into_quantized_tensors()[2][:128].zero_(),
    "quantize_() of a member": lambda group: group.split_into_quantized_tensors()[0].quantize_(
        torch.ones(256, 128)
    ),
    "quantize() of the group": lambda group: group.quantize([torch.ones(256, 128)] * 3),
    "member that quantize() returned": lambda group: group.quantize([torch.ones(256, 128)] * 3)[
        0
    ].zero_(),
}


@schemes
@pytest.mark.parametrize("write", WRITES)
def test_autograd_counts_a_write_to_a_member(kind: str, write: str) -> None:
    group = grouped(kind, [256] * 3)
    group.quantize([sample(256, 128, seed=i) for i in range(3)])
    parameter = torch.nn.Parameter(group)
    loss = (parameter * parameter).sum()
    with torch.no_grad():
        WRITES[write](parameter)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_autograd_counts_a_write_to_a_plain_member() -> None:
    parameter = torch.nn.Parameter(
        GroupedTensor.make_grouped_tensor_from_rowwise_data(
            num_tensors=2, tensor_shape=(4, 4), rowwise_data=torch.ones(32)
        )
    )
    loss = (parameter * parameter).sum()
    with torch.no_grad():
        parameter.quantized_tensors[0].zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@schemes
def test_members_in_inference_mode(kind: str) -> None:
    group = grouped(kind)
    with torch.inference_mode():
        member = group.split_into_quantized_tensors()[0]
        inner = grouped(kind).split_into_quantized_tensors()
    before = group._version
    member.zero_()
    assert not member.is_inference() and group._version == before + 1
    assert all(made.is_inference() for made in inner)


@pytest.mark.parametrize(("rowwise", "columnwise"), [(True, False), (False, True), (True, True)])
def test_groups_of_one_scale_keep_what_they_measured(rowwise: bool, columnwise: bool) -> None:
    quantizer = nfp.Float8CurrentScalingQuantizer(E4M3, rowwise=rowwise, columnwise=columnwise)
    rows = [64, 0, 96]
    group = GroupedTensorStorage.make_grouped_tensor_with_shapes(
        3, [(n, 32) for n in rows], quantizer, "cpu", torch.bfloat16
    )
    inputs = [sample(n, 32, dtype=torch.bfloat16, seed=n) * (n + 1) for n in rows]
    group.quantize(inputs)
    wanted = [x.abs().amax().float() if x.numel() else torch.zeros(()) for x in inputs]
    assert torch.equal(group.amax, torch.stack(wanted))
    assert torch.equal(group.scale_inv, torch.reciprocal(group.scale))
    alone = [nfp.Float8CurrentScalingQuantizer(E4M3)(x).detach() for x in inputs if x.numel()]
    if rowwise:
        assert torch.equal(group.rowwise_data, torch.cat([q._data.reshape(-1) for q in alone]))
    if columnwise:
        assert torch.equal(group.columnwise_scale_inv, group.scale_inv)
        codes = torch.cat([q._transpose.reshape(-1) for q in alone])
        assert torch.equal(group.columnwise_data, codes)


def test_plain_members_keep_float64() -> None:
    group = GroupedTensor.make_grouped_tensor_from_rowwise_data(
        num_tensors=2,
        tensor_shape=(4, 4),
        rowwise_data=torch.full((32,), 1 / 3, dtype=torch.float64),
        dtype=torch.float64,
    )
    group.mul_(3)
    assert torch.equal(group.rowwise_data, torch.ones(32, dtype=torch.float64))


def filled(kind: str, sizes: list[int] | None, seed: int = 0) -> GroupedTensor:
    group = grouped(kind, sizes)
    group.quantize([sample(*s, seed=seed + i) for i, s in enumerate(group.tensor_shapes)])
    return group


def assert_same_group(
    group: GroupedTensor, wanted: GroupedTensor, without: Sequence[str] = ()
) -> None:
    """Asserts that both have the same bytes in buffers of their own, except in `without`."""
    assert type(group) is GroupedTensor and type(group.quantizer) is type(wanted.quantizer)
    for name, value in wanted._arguments().items():
        mine = group._arguments()[name]
        if name in without:
            continue
        if isinstance(value, torch.Tensor):
            assert torch.equal(mine.view(torch.uint8), value.view(torch.uint8)), name
            assert mine.data_ptr() != value.data_ptr() or not value.numel(), name
        elif name != "quantizer":
            assert mine == value, name
    for member, other in zip(group.quantized_tensors, wanted.quantized_tensors, strict=True):
        assert_same_buffers(member, buffers(other), "member")


def saved_and_loaded(group: GroupedTensor) -> GroupedTensor:
    file = io.BytesIO()
    torch.save(group, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@schemes
@pytest.mark.parametrize("sizes", [None, SIZES], ids=["uniform", "varying"])
@pytest.mark.parametrize(
    "way",
    [copy.deepcopy, saved_and_loaded, lambda group: pickle.loads(pickle.dumps(group))],
    ids=["deepcopy", "torch.load", "pickle"],
)
def test_copies_keep_every_byte(
    kind: str, sizes: list[int] | None, way: Callable[[GroupedTensor], GroupedTensor]
) -> None:
    group = filled(kind, sizes)
    assert_same_group(way(group), group)
    parameter = torch.nn.Parameter(group)
    again = way(parameter)
    assert isinstance(again, torch.nn.Parameter) and again.requires_grad
    module = way({"group": parameter, "again": parameter})
    assert module["group"] is module["again"]
    with_gradient = way(GroupedTensor.make_like(group, requires_grad=True))
    assert with_gradient.requires_grad and not isinstance(with_gradient, torch.nn.Parameter)


@schemes
@pytest.mark.parametrize("sizes", [None, SIZES], ids=["uniform", "varying"])
def test_copies_and_state_dictionaries_move_codes(kind: str, sizes: list[int] | None) -> None:
    source, target = filled(kind, sizes), filled(kind, sizes, seed=9)
    members = target.quantized_tensors
    # The scale and the amax of per-tensor FP8 belong to the quantizers, not to the members.
    without = ("amax", "scale") if kind.startswith("float8") else ()
    assert target.copy_(source) is target and target.quantized_tensors is members
    assert_same_group(target, source, without)
    module = torch.nn.Module()
    module.group = torch.nn.Parameter(filled(kind, sizes, seed=9))
    module.load_state_dict({"group": source})
    assert_same_group(module.group.detach(), source, without)


def test_copies_between_formats_quantize_values() -> None:
    source, target = filled("mxfp8", None), filled("nvfp4", None)
    target.copy_(source)
    for member, other in zip(target.quantized_tensors, source.quantized_tensors, strict=True):
        assert_same_buffers(member, buffers(SCHEMES["nvfp4"]()(other.dequantize())), "member")


@schemes
def test_a_copy_makes_columns_anew_that_a_written_member_lacks(kind: str) -> None:
    source, target = filled(kind, None), filled(kind, None, seed=9)
    source.quantized_tensors[0].mul_(0.5)
    target.copy_(source)
    for member, other in zip(target.quantized_tensors, source.quantized_tensors, strict=True):
        assert torch.equal(member.dequantize(), other.dequantize())


def test_plain_groups_copy_members_of_different_shapes() -> None:
    shapes = [(rows, 8) for rows in (2, 3)]
    source, target = (
        GroupedTensorStorage.make_grouped_tensor_with_shapes(2, shapes, None, "cpu", torch.float32)
        for _ in range(2)
    )
    source.rowwise_data.copy_(torch.arange(40.0))
    target.copy_(source)
    assert torch.equal(target.rowwise_data, torch.arange(40.0))
    assert_same_buffers_of_plain(copy.deepcopy(source), source)
    assert_same_buffers_of_plain(saved_and_loaded(source), source)


def assert_same_buffers_of_plain(group: GroupedTensor, wanted: GroupedTensor) -> None:
    assert group.tensor_shapes == wanted.tensor_shapes and group.quantizer is None
    assert torch.equal(group.rowwise_data, wanted.rowwise_data)
    for member, other in zip(group.quantized_tensors, wanted.quantized_tensors, strict=True):
        assert torch.equal(member, other)


@pytest.mark.parametrize("kind", ["float8_delayed", "float8_current", "mxfp8", "blockwise_2d"])
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_functions_take_groups(kind: str, backend: str) -> None:
    torch._dynamo.reset()

    def step(group: GroupedTensor) -> tuple[torch.Tensor, torch.Tensor]:
        before = group * 2
        group.mul_(0.5)
        return before, group + 0

    compiled = torch.compile(step, backend=backend)
    for scale in (8.0, 5.3):  # scales of delayed scaling, not constants of a graph
        groups = []
        for _ in range(2):
            group = grouped(kind, cols=256)
            if kind == "float8_delayed":
                group.quantizer.scale.fill_(scale)
            group.quantize([sample(64, 256, seed=i) for i in range(3)])
            groups.append(group)
        for made, expected in zip(compiled(groups[0]), step(groups[1]), strict=True):
            assert torch.equal(made, expected)
        for name in ("rowwise_data", "scale_inv", "columnwise_data", "columnwise_scale_inv"):
            buffer = groups[1].__dict__[name]
            if buffer is not None:
                assert torch.equal(groups[0].__dict__[name], buffer), name


@schemes
def test_memory_of_a_group(kind: str) -> None:
    """Checks methods that would read the memory of the wrapper, which has none."""
    group = filled(kind, None)
    values = group.dequantize()
    with pytest.raises(BufferError, match=r"^dlpack: a quantized tensor is not an array of values"):
        torch.from_dlpack(group)
    with pytest.raises(TypeError, match=r"^apply_: needs a tensor of plain values, as dequantize"):
        group.apply_(lambda value: value)
    assert not group.is_shared()
    assert group.share_memory_() is group and group.is_shared()
    assert torch.equal(group.dequantize(), values)
    group.quantized_tensors[0].zero_()
    assert not group.dequantize()[0].any() and group.dequantize()[1].any()


@schemes
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_assigning_data_quantizes(kind: str, dtype: torch.dtype) -> None:
    group, before = filled(kind, [128, 128]), filled(kind, [128, 128])
    alias, values = group.detach(), sample(2, 128, 128, seed=9).to(dtype)
    group.data = values
    assert group.dtype is group.fake_dtype is dtype and group.dequantize().dtype is dtype
    for members in (group.quantized_tensors, group.split_into_quantized_tensors()):
        for member, x in zip(members, values, strict=True):
            own = SCHEMES[kind]()(x.float() if dtype is torch.float64 else x).detach()
            assert_same_buffers(member, own, "a member")
    assert torch.equal(alias.dequantize(), before.dequantize())
    group.data = before
    assert torch.equal(group.dequantize(), before.dequantize()) and group.dtype is torch.float32
    before.zero_()
    assert not group.dequantize().any(), "memory of the assigned group"
    assert group.data is not group and not group.data.requires_grad


def test_assigning_data_of_groups_of_values_and_of_other_shapes() -> None:
    values = sample(2, 3, 4)
    group = GroupedTensorStorage.make_grouped_tensor_from_rowwise_data(
        num_tensors=2, tensor_shape=(3, 4), rowwise_data=torch.zeros(24)
    )
    group.data = values
    assert group.rowwise_data.data_ptr() == values.data_ptr()
    assert torch.equal(torch.stack(group.quantized_tensors), values)
    with pytest.raises(ValueError) as raised:
        group.data = values[0]
    assert str(raised.value) == (
        "GroupedTensor.data: the new tensor must have the shape (2, 3, 4), got (3, 4)"
    )
    with pytest.raises(NotImplementedError, match=r"^GroupedTensor: operators need members of one"):
        grouped("mxfp8", SIZES).data = torch.zeros(192, 128)


@schemes
def test_modules_convert_groups(kind: str) -> None:
    module, group = torch.nn.Module(), filled(kind, [128, 128])
    module.plain, module.group = torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(group)
    values = group.dequantize()
    module.half()
    assert module.group.dtype is module.plain.dtype is torch.float16
    assert module.group.quantized_tensors[0].dtype is torch.float16
    assert torch.equal(module.group.dequantize(), values.half())
    module.to(torch.bfloat16)
    assert isinstance(module.group, GroupedTensor) and module.group.dtype is torch.bfloat16
    assert (module.group * 1).dtype is torch.bfloat16
    torch.nn.utils.vector_to_parameters(torch.zeros(2 + 2 * 128 * 128), module.parameters())
    assert not module.group.dequantize().any()
    module.to("meta")
    assert type(module.group) is GroupedTensor and module.group.device.type == "meta"
    assert isinstance(module.group, torch.nn.Parameter)
    module.to_empty(device="cpu")
    assert type(module.group) is GroupedTensor and module.group.dequantize().shape == (2, 128, 128)


@schemes
def test_a_copy_of_a_group_shares_nothing(kind: str) -> None:
    group = filled(kind, [128, 128])
    copied = group.to("cpu", copy=True)
    before = group.dequantize()
    assert type(copied) is GroupedTensor and torch.equal(copied.dequantize(), before)
    copied.zero_()
    assert torch.equal(group.dequantize(), before) and not copied.quantized_tensors[0].any()
