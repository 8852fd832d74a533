# SPDX-License-Identifier: Apache-2.0
"""Compares with TransformerEngine 2.20.2 on an NVIDIA H200, for the inputs of tests/golden.

tests/golden/te220_h200/manifest.json has the SHA-256 of each output, and the calls that made it.
"""

import hashlib
import json
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
from golden import DTYPES, ROOT, Case, cases

import narrowfloat as nf

FOLDER = ROOT / "te220_h200"
MANIFEST = json.loads((FOLDER / "manifest.json").read_text())
RECORDED = MANIFEST["groups"]
FP8_MAX = {"e4m3": 448.0, "e5m2": 57344.0}
# NaN of each type as the library writes it (decision 1). The GPU has the same codes of NaN.
NAN = {DTYPES["fp32"]: 0x7FC00000, DTYPES["fp16"]: 0x7E00, DTYPES["bf16"]: 0x7FC0}
# By group: the compared outputs, and those in which only the pattern of NaN differs.
COUNTS = {
    "cs": (862, 3),
    "ds": (237, 5),
    "bs": (829, 0),
    "ct": (20, 2),
    "dsu": (186, 0),
    "dq": (53, 51),
    "sw": (389, 0),
    "nv_dequant": (230, 16),
    "rht": (17, 1),
    "dbias": (12, 0),
}
# After a newest amax of 0, TransformerEngine's kernel for one tensor rolls the history; its bulk
# kernel does not. The library follows the bulk kernel, which the training loop calls.
ROLLED = {
    ("dsu/len16_max_e4m3_margin0_zeros", "kernel.history"),
    ("dsu/len2_max_e4m3_margin1_zeros", "kernel.history"),
    ("dsu/len2_max_e4m3_margin1_zeros", "kernel.scale"),
    ("dsu/len4_most_recent_e4m3_margin2_zeros", "kernel.history"),
    ("dsu/len5_max_e4m3_marginm1_zeros", "kernel.history"),
    ("dsu/len5_max_e4m3_marginm1_zeros", "kernel.scale"),
}

Outputs = dict[str, np.ndarray]


@cache
def recorded(folder: str) -> dict[str, Case]:
    return {case.name: case for case in cases(folder)}


def padded(scales: np.ndarray, shape: tuple[int, ...], value: int = 0) -> np.ndarray:
    out = np.full(shape, value, np.uint8)
    out[: scales.shape[0], : scales.shape[1]] = scales.view(np.uint8)
    return out


def values(q: nf.QuantizedTensor, case: Case) -> Outputs:
    return {f"dequant.{name}": q.dequantize(DTYPES[name]) for name in case.dequantized}


def per_tensor(case: Case) -> Outputs:
    """Quantizes the recorded input and decodes the result."""
    if "amax_epsilon" in case.params:
        options = {k: case.params[k] for k in ("amax_epsilon", "force_pow_2_scales")}
    else:
        options = {"scale": case["scale"]}
    x = case["x"].reshape(case.params["shape"])
    q = nf.quantize(x, f"fp8_{case.params['q_dtype']}", columnwise=True, **options)
    b = q.buffers
    return {
        "data": b["rowwise_data"],
        "data_t": b["columnwise_data"],
        "scale": b["scale"],
        "scale_inv": b["rowwise_scale_inv"],
        "amax": b["amax_rowwise"],
        **values(q, case),
    }


def blocks(case: Case) -> Outputs:
    one = case.params["tile"][0] == 1
    scheme = f"fp8_block{'1x128' if one else '128x128'}_{case.params['q_dtype']}"
    options = {k: case.params[k] for k in ("amax_epsilon", "force_pow_2_scales")}
    q = nf.quantize(case["x"], scheme, columnwise="data_t" in case, **options)
    out = {"data": q.buffers["rowwise_data"]}
    out |= block_scales(case, "scale_inv", q.buffers["rowwise_scale_inv"], one)
    if "data_t" in case:
        out["both.data_t"] = q.buffers["columnwise_data"]
        scales = block_scales(case, "scale_inv_t", q.buffers["columnwise_scale_inv"], one)
        out["both.scale_inv_t"] = scales["scale_inv_t"]
        out["scale_inv_t_gemm"] = scales["scale_inv_t_gemm"]
    rows, columns = case["data"].shape
    flat, whole = case["x"].ndim == 2, rows % 4 == 0 and columns % 128 == 0
    if case.params["force_pow_2_scales"] and flat and whole:
        out["mxfp8_scales"] = nf.block_scales_to_mxfp8(q)
    return out


def block_scales(case: Case, name: str, scales: np.ndarray, transposed: bool) -> Outputs:
    """Returns the scales as stored, and the scales without padding as [line][block]."""
    ordered = scales.T if transposed else scales
    lines, columns = case[name].shape
    return {f"{name}_gemm": scales, name: ordered[:lines, :columns]}


def tables(case: Case) -> Outputs:
    element = case.params["q_dtype"]
    scheme, one = f"fp8_{element}", np.ones(1, np.float32)
    if case.params["mode"] == "encode":
        return {"code": nf.quantize(case["x"], scheme, scale=one).buffers["rowwise_data"]}
    if case.params["mode"] == "decode":
        buffers = {"rowwise_data": case["code"].view(np.uint8), "rowwise_scale_inv": one}
        return {"x": nf.from_buffers(scheme, case["code"].shape, buffers).dequantize()}
    options = {k: case.params[k] for k in ("amax_epsilon", "force_pow_2_scales")}
    made = [nf.quantize(one, scheme, amax=amax, **options).buffers for amax in case["amax"]]
    return {
        "scale": np.concatenate([b["scale"] for b in made]),
        "scale_inv": np.concatenate([b["rowwise_scale_inv"] for b in made]),
    }


def delayed_scales(case: Case) -> Outputs:
    return training(case) if "x" in case else {**updates(case, False), **updates(case, True)}


def updates(case: Case, reduced: bool) -> Outputs:
    history, scale = case["initial_history"].copy(), case["initial_scale"]
    p = case.params
    histories, scales = [], []
    for amax in case["amax"]:
        history[0] = amax / np.float32(2) if reduced else amax
        history, scale = nf.update_delayed_scale(
            history,
            scale,
            FP8_MAX[p["q_dtype"]],
            p["margin"],
            p["amax_compute_algo"],
            reduced_amax=amax if reduced else None,
        )
        histories.append(history.copy())
        scales.append(scale)
    made = {"history": np.stack(histories), "scale": np.stack(scales)}
    kinds = ["bulk_reduced"] if reduced else ["bulk", "kernel"]
    return {f"{kind}.{name}": array for kind in kinds for name, array in made.items()}


def training(case: Case) -> Outputs:
    element = case.params["q_dtype"]
    history = np.zeros((case.params["history_length"], 1), np.float32)
    scale = np.ones(1, np.float32)
    steps: dict[str, list[np.ndarray]] = {}
    for x in case["x"]:
        b = nf.quantize(x, f"fp8_{element}", scale=scale).buffers
        history[0] = b["amax_rowwise"]
        step = {"scale_used": scale, "data": b["rowwise_data"], "amax": b["amax_rowwise"]}
        step["scale_inv"] = b["rowwise_scale_inv"]
        history, scale = nf.update_delayed_scale(history, scale, FP8_MAX[element])
        for name, array in {**step, "history_after": history.copy()}.items():
            steps.setdefault(name, []).append(array.reshape(-1))
    return {"scale_final": scale, **{k: np.concatenate(v) for k, v in steps.items()}}


def decoded(case: Case) -> Outputs:
    """Decodes recorded codes by recorded scales: per-tensor FP8, or NVFP4."""
    shape, p = tuple(case.params["shape"]), case.params
    if p["mode"] == "fp8_per_tensor":
        buffers = {"rowwise_data": case["data"].view(np.uint8)}
        buffers["rowwise_scale_inv"] = case["scale_inv"].reshape(1)
        return values(nf.from_buffers(f"fp8_{p['q_dtype']}", shape, buffers), case)
    options = {"row_scaled": True} if p.get("row_scaled") else {}
    if p["e4m3_max"] != 448:
        options["e4m3_max"] = p["e4m3_max"]
    like = nf.quantize(np.zeros(shape, np.float32), "nvfp4").buffers
    buffers = {
        "rowwise_data": case["data"].reshape(like["rowwise_data"].shape),
        "rowwise_scale_inv": padded(case["scale_inv"], like["rowwise_scale_inv"].shape),
        "amax_rowwise": case["amax"],
    }
    return values(nf.from_buffers("nvfp4", shape, buffers, **options), case)


def nvfp4(case: Case) -> Outputs:
    """Returns the amax of the recorded input, and the values of the recorded codes."""
    q = nf.quantize(case["x"], "nvfp4", row_scaled=bool(case.params["row_scaled"]))
    return {"amax": q.buffers["amax_rowwise"], **decoded(case)}


def transform(case: Case) -> Outputs:
    if "rht_x_t" not in case:
        x = np.ascontiguousarray(case["x"].T)
        return {"y": nf.hadamard_transform(x, case.params["sign_mask"]).T}
    x = case["x"].reshape(case.params["flattened_shape"])
    return {"rht_x_t": nf.hadamard_transform(x, case.params["rht_sign_mask"]).T}


def swizzled(case: Case, padding: int = 0) -> Outputs:
    """Swizzles the recorded compact scales, and fills them up with `padding`."""
    p = case.params
    if p["mode"] == "swizzle":
        (m, k), rowwise = p["padded_shape"], p["direction"] == "rowwise"
        shape = (m, k * 32) if rowwise else (m * 32, k)
        return {"swizzled": swizzle("mxfp8_e4m3", shape, rowwise, case["scale_inv"], padding)}
    nv = p["mode"] == "nvfp4"
    scheme, columnwise = ("nvfp4", "scale_inv_t") if nv else ("mxfp8_e4m3", "scale_inv_colwise")
    shape = case["x"].reshape(-1, case["x"].shape[-1]).shape
    return {
        f"{name}_swizzled": swizzle(scheme, shape, name == "scale_inv", case[name], padding)
        for name in ("scale_inv", columnwise)
        if name in case
    }


def swizzle(
    scheme: str, shape: tuple[int, ...], rowwise: bool, scales: np.ndarray, padding: int
) -> np.ndarray:
    direction = "rowwise" if rowwise else "columnwise"
    like = nf.quantize(np.zeros(shape, np.float32), scheme, rowwise, not rowwise).buffers
    key = f"{direction}_scale_inv"
    buffers = {f"{direction}_data": like[f"{direction}_data"]}
    buffers[key] = padded(scales, like[key].shape, padding)
    return nf.swizzle(nf.from_buffers(scheme, shape, buffers)).buffers[key]


def dbias(case: Case) -> Outputs:
    out = {}
    for element in ("e4m3", "e5m2"):
        _, sums = nf.quantize_dbias(case["x"], f"fp8_{element}", columnwise=True, scale=0.75)
        for kernel in ("nvte_quantize_dbias", "nvte_cast_transpose_dbias"):
            out[f"{element}.{kernel}.dbias"] = sums
    return out


GROUPS: dict[str, Callable[[Case], Outputs]] = {
    "cs": per_tensor,
    "ds": per_tensor,
    "bs": blocks,
    "ct": tables,
    "dsu": delayed_scales,
    "dq": decoded,
    "sw": swizzled,
    "nv_dequant": nvfp4,
    "rht": transform,
    "dbias": dbias,
}


def with_nan(array: np.ndarray, pattern: str | None) -> tuple[bytes, bool]:
    """Returns the bytes of `array` with the GPU's NaN, and whether that changed a byte."""
    items = np.ascontiguousarray(array).reshape(-1)
    if items.dtype not in NAN:
        return items.tobytes(), False
    bits = items.view(f"u{items.dtype.itemsize}").copy()
    nan = np.isnan(items.astype(np.float64))
    assert (bits[nan] == NAN[items.dtype]).all()
    if pattern is None:
        return bits.tobytes(), False
    bits[nan] = int(pattern, 16)
    return bits.tobytes(), bool(nan.any()) and int(pattern, 16) != NAN[items.dtype]


def sha256(array: bytes) -> str:
    return hashlib.sha256(array).hexdigest()


@pytest.mark.parametrize("group", GROUPS)
def test_bytes_are_those_of_the_gpu(group: str) -> None:
    differ: set[tuple[str, str]] = set()
    compared = nans = 0
    for name, outputs in RECORDED[group]["cases"].items():
        ours = GROUPS[group](recorded(name.split("/")[0])[name])
        for output, entry in outputs.items():
            made, by_nan = with_nan(ours[output], entry.get("nan"))
            compared += 1
            nans += by_nan
            if sha256(made) != entry["sha256"]:
                differ.add((name, output))
    assert differ == (ROLLED if group == "dsu" else set())
    assert (compared, nans) == COUNTS[group]


def test_swizzle_zeroes_the_padding_as_the_gpu_does() -> None:
    """Checks that padding is 0 for any padding of compact scales, as on the GPU (decision 11)."""
    compared = 0
    for name, outputs in RECORDED["sw_pad"]["cases"].items():
        ours = swizzled(recorded(name.split("/")[0])[name], 0xA7)
        for output, entry in outputs.items():
            assert sha256(ours[output].tobytes()) == entry["sha256"], f"{name} {output}"
            compared += 1
    assert compared == COUNTS["sw"][0]


def test_bytes_other_than_the_record_are_stored_whole() -> None:
    stored = Case(FOLDER / "other_than_recorded.safetensors")
    others = [
        (f"{group}/{name}/{output}", entry)
        for group, recording in RECORDED.items()
        for name, outputs in recording["cases"].items()
        for output, entry in outputs.items()
        if "other" in entry
    ]
    assert len(others) == 37
    for key, entry in others:
        assert sha256(stored[key].tobytes()) == entry["sha256"], key


def test_every_group_is_compared_or_equals_one_that_is() -> None:
    same = {group: entry["same_as"] for group, entry in RECORDED.items() if "same_as" in entry}
    assert same == {"cs_static": "cs", "ds_static": "ds", "dbias_static": "dbias"}
    assert set(RECORDED) == {*GROUPS, *same, "sw_pad"}
