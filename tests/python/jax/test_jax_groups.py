# SPDX-License-Identifier: Apache-2.0
"""Compares groups of rows with each group alone: by the handlers and by the public function."""

import dataclasses
import math
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from handler import BOTH, COLWISE, CURRENT, DELAYED, MXFP8, ROWWISE, bits
from hostile import hostile
from narrowfloat.jax.cpp_extensions.quantization import grouped_dbias, grouped_quantize
from narrowfloat.jax.primitives.amax import grouped_amax
from narrowfloat.jax.quantize import (
    GroupedNoScaleTensor,
    GroupedQuantizer,
    GroupedScaledTensor1x,
    NVFP4Quantizer,
    QuantizeLayout,
    QuantizerFactory,
    ScaledTensor2x,
    ScaledTensorFactory,
    ScalingMode,
)
from test_jax_arguments import refused

import narrowfloat as nf
from narrowfloat import _core

SIZES = [[32, 0, 64, 32], [0, 0, 128, 0], [96, 32], [0, 96, 0, 32], [128]]
LAYOUTS = list(QuantizeLayout)


def call_handler(
    x: np.ndarray,
    sizes: list[int],
    mode: int,
    layout: int,
    *,
    scale: np.ndarray | None = None,
    version: int = 1,
    scales: int = 4096,
    flatten_axis: int = -1,
) -> SimpleNamespace:
    """Calls te_grouped_quantize_ffi, or its second version, whose mode is MXFP8."""
    like, count = jax.ShapeDtypeStruct, len(sizes)
    flat = (math.prod(x.shape),)
    scale_dtype = jnp.float8_e8m0fnu if mode == MXFP8 else jnp.float32
    shape = (scales,) if mode == MXFP8 else (count,)
    results = [
        like(flat if layout != COLWISE else (1,), jnp.float8_e4m3fn),
        like(flat if layout != ROWWISE else (1,), jnp.float8_e4m3fn),
        like(shape if layout != COLWISE else (1,), scale_dtype),
        like(shape if layout != ROWWISE else (1,), scale_dtype),
        like((count,), jnp.float32),
        like((0 if version == 1 else (2 * count + 1) * 8,), jnp.uint8),
    ]
    attributes = {"q_layout": np.int64(layout), "flatten_axis": np.int64(flatten_axis)}
    if version == 1:
        attributes["scaling_mode"] = np.int64(mode)
    target = f"te_grouped_quantize{'_v2' * (version == 2)}_ffi"
    out = jax.ffi.ffi_call(target, results)(
        jnp.asarray(x),
        jnp.asarray(np.ones(count, np.float32) if scale is None else scale),
        jnp.asarray(np.asarray(sizes, np.int32)),
        **attributes,
    )
    names = ["data", "data_t", "scale_inv", "scale_inv_t", "amax", "workspace"]
    return SimpleNamespace(**dict(zip(names, map(bits, out), strict=True)))


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("version", [1, 2])
def test_mxfp8_groups(sizes: list[int], version: int) -> None:
    x = hostile((128, 96))
    out = call_handler(x, sizes, MXFP8, BOTH, version=version)
    groups = nf.grouped_quantize(x, sizes, "mxfp8_e4m3", True, True, swizzled=True)
    for name, key in (("data", "rowwise"), ("data_t", "columnwise")):
        together = b"".join(q.buffers[f"{key}_data"].tobytes() for q in groups)
        assert getattr(out, name).tobytes() == together
        scales = b"".join(q.buffers[f"{key}_scale_inv"].tobytes() for q in groups)
        found = getattr(out, name.replace("data", "scale_inv")).tobytes()
        assert found[: len(scales)] == scales
        assert not any(found[len(scales) :]), "what no group uses is zero"
    if version == 2:
        words = out.workspace.view(np.int64)
        np.testing.assert_array_equal(words[: len(sizes)], sizes)
        ends = np.concatenate([[0], np.cumsum(sizes)]) * 96
        np.testing.assert_array_equal(words[len(sizes) :], ends)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("mode", [DELAYED, CURRENT])
def test_groups_with_a_scale_each(sizes: list[int], mode: int) -> None:
    x = hostile((128, 96), "float32")
    scale = np.arange(1, len(sizes) + 1, dtype=np.float32)
    out = call_handler(x, sizes, mode, BOTH, scale=scale)
    ends = np.cumsum(sizes)
    parts = [x[end - size : end] for end, size in zip(ends, sizes, strict=True)]
    qs = [
        nf.quantize(part, "fp8_e4m3", True, True, scale=float(s))
        for part, s in zip(parts, scale, strict=True)
    ]
    for name, key in (("data", "rowwise_data"), ("data_t", "columnwise_data")):
        assert getattr(out, name).tobytes() == b"".join(q.buffers[key].tobytes() for q in qs)
    # Scales of groups with rows are adjacent, as grouped products read them; amaxes are not.
    packed = [1 / s for s, size in zip(scale, sizes, strict=True) if size]
    packed += [0.0] * (len(sizes) - len(packed))
    for found in (out.scale_inv, out.scale_inv_t):
        np.testing.assert_array_equal(found, np.asarray(packed, np.float32))
    amaxes = [np.abs(part).max() if part.size else 0 for part in parts]
    np.testing.assert_array_equal(out.amax, np.asarray(amaxes, np.float32))


def test_sizes_count_slices_or_rows() -> None:
    x = hostile((4, 32, 64))
    by_slices = call_handler(x, [1, 3], MXFP8, BOTH)
    by_rows = call_handler(x, [32, 96], MXFP8, BOTH)
    for name in ("data", "data_t", "scale_inv", "scale_inv_t"):
        np.testing.assert_array_equal(getattr(by_slices, name), getattr(by_rows, name))


@pytest.mark.parametrize(
    ("sizes", "options", "message"),
    [
        (
            [32, 64],
            {},
            "grouped_quantize: group_sizes must add up to the first dimension or to "
            "the 128 rows, got a sum of 96",
        ),
        (
            [160, -32],
            {},
            "grouped_quantize: group 1 must have 0 rows or more, got -32",
        ),
        (
            [128],
            {"scales": 500},
            "grouped_quantize: rowwise scale_inv must have room for 512 items or more, got 500",
        ),
        (
            [160],
            {"version": 2},
            "grouped_quantize: group_sizes must add up to the first dimension or to "
            "the 128 rows, got a sum of 160",
        ),
    ],
)
def test_refused(sizes: list[int], options: dict[str, int], message: str) -> None:
    """Checks errors of the running program: sizes are not known before."""
    with pytest.raises(jax.errors.JaxRuntimeError) as error:
        call_handler(np.ones((128, 96), np.float32), sizes, MXFP8, BOTH, **options)
    assert str(error.value).splitlines()[0] == f"INVALID_ARGUMENT: {message}"


def test_the_second_version_may_leave_rows_over() -> None:
    x = hostile((128, 96))
    out = call_handler(x, [32, 64], MXFP8, BOTH, version=2)
    assert not out.data[96 * 96 :].any() and out.data[: 96 * 96].any()


MODES = [mode for mode in ScalingMode if mode is not ScalingMode.NO_SCALING]


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_grouped_quantize(mode: ScalingMode, layout: QuantizeLayout) -> None:
    x = hostile((128, 64))
    for sizes in SIZES:
        dtype = mode.get_compatible_q_dtypes()[0]
        quantizer = QuantizerFactory.create(1, mode, dtype, layout, n_groups=len(sizes))
        tensor = grouped_quantize(jnp.asarray(x), quantizer, jnp.asarray(sizes, jnp.int32))
        both = isinstance(tensor, ScaledTensor2x)
        assert both == layout.is_rowwise_colwise
        found = [tensor.rowwise_tensor, tensor.colwise_tensor] if both else [tensor]
        for half in found:
            check_groups(half, x, sizes, mode)


def check_groups(
    half: GroupedScaledTensor1x, x: np.ndarray, sizes: list[int], mode: ScalingMode
) -> None:
    begin = 0
    options = {"scale": 1.0} if mode is ScalingMode.DELAYED_TENSOR_SCALING else {}
    scheme = mode.get_scheme()
    for group, (values, size) in enumerate(zip(half.dequantize(), sizes, strict=True)):
        part = x[begin : begin + size]
        begin += size
        if size == 0:
            assert isinstance(values, list) and not values
            continue
        q = nf.quantize(part, scheme, not half.is_colwise, half.is_colwise, **options)
        want = q.dequantize(ml_dtypes.bfloat16)
        want = np.ascontiguousarray(want.T) if half.data_layout == "T" else want
        assert bits(values).tobytes() == want.tobytes()
        if mode.is_tensor_scaling():
            key = "columnwise" if half.is_colwise else "rowwise"
            assert float(half.scale_inv[group]) == q.buffers[f"{key}_scale_inv"][0]
            assert float(half.amax[group]) == q.buffers["amax_rowwise"][0]
        if mode.is_nvfp4_scaling:
            assert float(half.amax[group]) == np.abs(part).max()


def most_scales(mode: ScalingMode, colwise: bool, rows: int, groups: int) -> list[list[int]]:
    """Returns, by number of groups and of rows, the most scales that any sizes need."""
    each = [
        math.prod(_core.scale_shapes(mode.get_scheme(), n, 32, colwise)[1]) for n in range(rows + 1)
    ]
    most = [each]
    for _ in range(1, groups):
        most.append([max(most[-1][r - n] + each[n] for n in range(r + 1)) for r in range(rows + 1)])
    return most


@pytest.mark.parametrize("colwise", [False, True])
@pytest.mark.parametrize(
    "mode", [m for m in MODES if m.is_block_scaling], ids=lambda mode: mode.name
)
def test_there_is_room_for_the_scales_of_any_sizes(mode: ScalingMode, colwise: bool) -> None:
    for before, most in enumerate(most_scales(mode, colwise, 300, 4)):
        found = [mode.get_grouped_scale_room((r, 32), before + 1, colwise)[0] for r in range(301)]
        assert found[before:] == most[before:]
        assert all(room >= need for room, need in zip(found, most, strict=True))


@pytest.mark.parametrize("mode", MODES[2:], ids=lambda mode: mode.name)
def test_small_groups_beside_a_large_one(mode: ScalingMode) -> None:
    sizes = [2, 2, 2, 2, 130]
    x = hostile((sum(sizes), 64))
    dtype = mode.get_compatible_q_dtypes()[0]
    quantizer = QuantizerFactory.create(1, mode, dtype, LAYOUTS[2], n_groups=len(sizes))
    tensor = grouped_quantize(jnp.asarray(x), quantizer, jnp.asarray(sizes, jnp.int32))
    for half in (tensor.rowwise_tensor, tensor.colwise_tensor):
        check_groups(half, x, sizes, mode)


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_every_slice_a_group(mode: ScalingMode) -> None:
    x = hostile((3, 32, 64))
    quantizer = QuantizerFactory.create(
        1, mode, mode.get_compatible_q_dtypes()[0], QuantizeLayout.ROWWISE_COLWISE, n_groups=3
    )
    tensor = jax.jit(lambda a: grouped_quantize(a, quantizer))(jnp.asarray(x))
    options = {"scale": 1.0} if mode is ScalingMode.DELAYED_TENSOR_SCALING else {}
    for half in (tensor.rowwise_tensor, tensor.colwise_tensor):
        assert half.first_dims is None and half.n_groups == 3
        for part, values in zip(x, half.dequantize(), strict=True):
            q = nf.quantize(
                part,
                mode.get_scheme(),
                not half.is_colwise,
                half.is_colwise,
                **options,
            )
            want = q.dequantize(ml_dtypes.bfloat16)
            want = want.T if half.data_layout == "T" else want
            assert bits(values).tobytes() == np.ascontiguousarray(want).tobytes()


@pytest.mark.parametrize(
    "options", [{"use_rht": True}, {"stochastic_rounding_rng_state": 1}], ids=str
)
def test_groups_are_rounded_to_nearest_and_not_transformed(options: dict[str, object]) -> None:
    own = NVFP4Quantizer(**options)
    quantizer = GroupedQuantizer(
        q_dtype=own.q_dtype, scaling_mode=own.scaling_mode, n_groups=1, quantizers=(own,)
    )
    with pytest.raises(NotImplementedError) as raised:
        grouped_quantize(jnp.zeros((16, 16)), quantizer, jnp.asarray([16], jnp.int32))
    assert raised.value.args == (
        "grouped_quantize: use_rht and stochastic rounding are not supported for groups",
    )


def test_delayed_groups_learn_from_their_own_rows() -> None:
    x = np.concatenate([np.full((16, 32), 2.0), np.full((16, 32), 8.0)]).astype(np.float32)
    quantizer = QuantizerFactory.create(
        1,
        ScalingMode.DELAYED_TENSOR_SCALING,
        jnp.float8_e4m3fn,
        QuantizeLayout.ROWWISE,
        n_groups=3,
    )
    grouped_quantize(jnp.asarray(x), quantizer, jnp.asarray([16, 0, 16], jnp.int32))
    newest = [float(member.amax_history[-1]) for member in quantizer.quantizers]
    assert newest == [2.0, 0.0, 8.0]
    assert [float(member.scale[0]) for member in quantizer.quantizers] == [224.0, 1.0, 56.0]


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_a_quantizer_of_blocks_may_have_more_groups_than_a_device(mode: ScalingMode) -> None:
    x, sizes = hostile((96, 64)), [64, 32]
    dtype = mode.get_compatible_q_dtypes()[0]
    quantizer = QuantizerFactory.create(1, mode, dtype, LAYOUTS[2], n_groups=4)
    if not mode.is_block_scaling:
        message = "grouped_quantize: group_sizes must have one size per quantizer, 4, got 2"
        refused(lambda: grouped_quantize(x, quantizer, jnp.asarray(sizes)), ValueError, message)
        return
    tensor = grouped_quantize(jnp.asarray(x), quantizer, jnp.asarray(sizes, jnp.int32))
    for half in (tensor.rowwise_tensor, tensor.colwise_tensor):
        check_groups(half, x, sizes, mode)


def test_arguments_that_do_not_fit() -> None:
    x = jnp.ones((4, 32))
    quantizer = QuantizerFactory.create(
        1, ScalingMode.MXFP8_1D_SCALING, jnp.float8_e4m3fn, QuantizeLayout.ROWWISE, n_groups=2
    )
    with pytest.raises(
        ValueError,
        match=r"^grouped_quantize: group_sizes must have one size per quantizer, 2, got 3$",
    ):
        grouped_quantize(x, quantizer, jnp.asarray([1, 1, 2], jnp.int32))
    with pytest.raises(
        ValueError,
        match=r"^grouped_quantize: flatten_axis must be the last axis, got .* for .* dimensions$",
    ):
        grouped_quantize(jnp.ones((2, 4, 32)), quantizer, flatten_axis=1)
    with pytest.raises(TypeError, match=r"^grouped_quantize: group_sizes must be int32, got float"):
        grouped_quantize(x, quantizer, jnp.asarray([2.0, 2.0]))
    assert isinstance(grouped_quantize(x), GroupedNoScaleTensor)


def test_groups_of_columns_are_refused() -> None:
    mode, sizes = ScalingMode.CURRENT_TENSOR_SCALING, jnp.asarray([16, 16], jnp.int32)
    codes, scales = jnp.zeros(128, jnp.float8_e4m3fn), jnp.ones(2)
    message = (
        "quantize: groups of columns are not supported, so last_dims must be None, got an array of "
        "shape (2,)"
    )
    made = ScaledTensorFactory.create_1x(codes, scales, None, mode, original_shape=(4, 32))
    for call in (
        lambda: ScaledTensorFactory.create_1x(codes, scales, None, mode, last_dims=sizes),
        lambda: dataclasses.replace(made, last_dims=sizes),
        lambda: GroupedNoScaleTensor(jnp.ones((4, 32)), None, None, sizes, (4, 32)),
    ):
        refused(call, NotImplementedError, message)


def test_dbias_of_groups() -> None:
    grad = np.arange(24, dtype=np.float32).reshape(6, 4)
    sums = grouped_dbias(jnp.asarray(grad), jnp.asarray([2, 0, 4], jnp.int32))
    want = np.stack([grad[:2].sum(0), np.zeros(4, np.float32), grad[2:].sum(0)])
    np.testing.assert_array_equal(np.asarray(sums), want)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        (
            [32, 64],
            "group_sizes must add up to the first dimension or to the 128 rows, got a sum of 96",
        ),
        ([160, -32], "group 1 must have 0 rows or more, got -32"),
    ],
)
def test_errors_of_amaxes_of_groups_name_the_function(sizes: list[int], message: str) -> None:
    with pytest.raises(jax.errors.JaxRuntimeError, match=f": grouped_amax: {message}"):
        grouped_amax(hostile((128, 64)), jnp.asarray(sizes, jnp.int32)).block_until_ready()
