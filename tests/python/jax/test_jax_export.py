# SPDX-License-Identifier: Apache-2.0
"""Tests exported programs with quantized tensors and quantizers, also with invalid structures."""

from __future__ import annotations

import json
from dataclasses import replace

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from hostile import MODE_IDS, MODES, code_bytes, hostile, make
from jax._src.export import _export
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from narrowfloat.jax._library import TARGETS
from narrowfloat.jax.cpp_extensions.quantization import grouped_quantize, quantize
from narrowfloat.jax.quantize import (
    AmaxComputeAlgo,
    DelayedScaleQuantizer,
    NoScaleTensor,
    NVFP4Quantizer,
    QuantizeLayout,
    QuantizerFactory,
    ScaledTensor1x,
    ScalingMode,
)

BOTH = QuantizeLayout.ROWWISE_COLWISE
CHECKS = [jax.export.DisabledSafetyCheck.custom_call(name) for name in TARGETS]
NAME = "narrowfloat.jax.ScaledTensor1x"


def written(function: object, *like: object) -> bytearray:
    return jax.export.export(jax.jit(function), disabled_checks=CHECKS)(*like).serialize()


def assert_same(a: object, b: object) -> None:
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for left, right in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert code_bytes(left).tobytes() == code_bytes(right).tobytes()


@pytest.mark.parametrize("layout", list(QuantizeLayout), ids=lambda layout: layout.name)
@pytest.mark.parametrize(("mode", "dtype"), MODES, ids=MODE_IDS)
def test_tensors_that_a_program_returns_and_takes(
    mode: ScalingMode, dtype: str, layout: QuantizeLayout
) -> None:
    x = jnp.asarray(hostile((32, 64)))
    make_tensor = jax.export.deserialize(
        written(lambda a: quantize(a, make(mode, dtype, layout)), x)
    )
    tensor = quantize(x, make(mode, dtype, layout))
    assert_same(make_tensor.call(x), tensor)
    read_tensor = jax.export.deserialize(written(lambda t: t.dequantize(), tensor))
    assert_same(read_tensor.call(tensor), tensor.dequantize())


@pytest.mark.parametrize("mode", [ScalingMode.MXFP8_1D_SCALING, ScalingMode.CURRENT_TENSOR_SCALING])
def test_groups_that_a_program_returns(mode: ScalingMode) -> None:
    x, sizes = jnp.asarray(hostile((64, 64))), jnp.asarray([32, 32], jnp.int32)

    def run(a: jax.Array) -> tuple:
        quantizer = QuantizerFactory.create(1, mode, "float8_e4m3fn", BOTH, n_groups=2)
        return grouped_quantize(a, quantizer, sizes), grouped_quantize(a), NoScaleTensor(a)

    assert_same(jax.export.deserialize(written(run, x)).call(x), run(x))


def test_programs_on_several_devices() -> None:
    mesh = Mesh(np.array(jax.devices()[:2]), ("data",))
    x = jnp.asarray(hostile((64, 64)))
    values = lambda a: quantize(a, make(*MODES[3], BOTH)).dequantize()  # noqa: E731
    place = NamedSharding(mesh, P("data"))
    jitted = jax.jit(values, in_shardings=place)
    with pytest.raises(NotImplementedError, match="serialization of host_callbacks"):
        jax.export.export(jitted, disabled_checks=CHECKS)(x)
    parts = jax.shard_map(values, mesh=mesh, in_specs=P("data"), out_specs=P("data"))
    again = jax.export.deserialize(written(parts, x))
    assert_same(again.call(jax.device_put(x, place)), values(x))


def test_quantizers_that_a_program_takes_and_returns() -> None:
    x = jnp.asarray(hostile((32, 64), "float32"))
    state = jnp.arange(4, dtype=jnp.uint32)
    quantizers = [make(mode, dtype, BOTH) for mode, dtype in MODES] + [
        DelayedScaleQuantizer(
            "float8_e5m2", margin=2, amax_compute_algo=AmaxComputeAlgo.MOST_RECENT
        ),
        NVFP4Quantizer(stochastic_rounding_rng_state=state, checkpoint_name='a "name"'),
        QuantizerFactory.create(1, *MODES[2], BOTH, n_groups=2),
        QuantizerFactory.create_set(1, MODES[2][0], *["float8_e4m3fn"] * 2),
    ]
    for quantizer in quantizers:
        again = jax.export.deserialize(written(lambda q: q, quantizer))
        assert_same(again.call(quantizer), quantizer)

    def step(a: jax.Array, q: DelayedScaleQuantizer) -> tuple:
        return quantize(a, q), q

    again = jax.export.deserialize(written(step, x, make(*MODES[2], BOTH)))
    assert_same(again.call(x, make(*MODES[2], BOTH)), step(x, make(*MODES[2], BOTH)))


def structure() -> tuple[dict[str, object], object, object]:
    """Returns the structure of a tensor as a program stores it, its reader and its writer."""
    tensor = quantize(jnp.ones((32, 64)), make(*MODES[3], QuantizeLayout.ROWWISE))
    _, aux = jax.tree.structure(tensor).node_data()
    write = _export.serialization_registry[ScaledTensor1x][1]
    read = _export.deserialization_registry[NAME][1]
    assert read(write(aux)) == aux
    return json.loads(write(aux)), read, write


HOSTILE = {
    "another mode": {"scaling_mode": "NO_SUCH_MODE"},
    "a mode of another type": {"scaling_mode": ["MXFP8_1D_SCALING"]},
    "a dtype of objects": {"dq_dtype": "O"},
    "a dtype as a number": {"dq_dtype": 1},
    "a function by name": {"_dq_func": "os.system"},
    "a function that is not given": {"_dq_func": None},
    "a number for a bool": {"is_colwise": 1},
    "a bool for a number": {"flatten_axis": True},
    "a fraction": {"flatten_axis": 1.5},
    "a large number": {"flatten_axis": 2**70},
    "another layout": {"data_layout": "X"},
    "one field more": {"more": 1},
}


@pytest.mark.parametrize("case", list(HOSTILE))
def test_hostile_structures(case: str) -> None:
    found, read, _ = structure()
    assert_refused(read, json.dumps(found | HOSTILE[case]).encode())


def test_structures_that_are_no_objects() -> None:
    found, read, _ = structure()
    del found["is_colwise"]
    for text in (
        json.dumps(found).encode(),
        b"",
        b"{}",
        b"[]",
        b"null",
        b"\xff\xfe",
        b"[" * 60_000,
        b"9" * 60_000,
        b" " * 70_000 + b"{}",
        b"\x80\x04\x95",  # the beginning of a pickle
    ):
        assert_refused(read, text)


def assert_refused(read: object, text: bytes) -> None:
    with pytest.raises(ValueError) as raised:
        read(text)
    assert raised.value.args == (
        "export: the structure of ScaledTensor1x must be as this version writes it, got "
        f"{text[:100]!r}",
    )


def test_a_program_with_a_hostile_structure() -> None:
    x = jnp.ones((32, 64))
    program = written(lambda a: quantize(a, make(*MODES[3], QuantizeLayout.ROWWISE)), x)
    changed = bytes(program).replace(b'"data_layout": "N"', b'"data_layout": "?"')
    assert changed != bytes(program)
    with pytest.raises(ValueError, match="export: the structure of ScaledTensor1x must be as"):
        jax.export.deserialize(bytearray(changed))


def test_values_that_have_no_text() -> None:
    tensor = quantize(jnp.ones((32, 64)), make(*MODES[3], QuantizeLayout.ROWWISE))
    own = replace(tensor, _dq_func=np.asarray)
    with pytest.raises(ValueError) as raised:
        written(lambda t: t.data, own)
    assert raised.value.args[0].startswith(
        "export: _dq_func of ScaledTensor1x must be one of narrowfloat's own values, got <"
    )
