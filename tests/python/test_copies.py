# SPDX-License-Identifier: Apache-2.0
"""Tests quantized tensors as values: pickled, copied, and quantized again by their own spec."""

from __future__ import annotations

import copy
import pickle
import re

import numpy as np
import pytest

import narrowfloat as nf

X = np.linspace(-3, 5, 64 * 128, dtype=np.float32).reshape(64, 128)


def assert_same(a: nf.QuantizedTensor, b: nf.QuantizedTensor) -> None:
    assert (a.spec, a.shape, a.dtype) == (b.spec, b.shape, b.dtype)
    assert a.buffers.keys() == b.buffers.keys()
    for role, buffer in a.buffers.items():
        assert buffer.tobytes() == b.buffers[role].tobytes(), role


@pytest.mark.parametrize("scheme", nf.schemes())
@pytest.mark.parametrize("columnwise", [False, True])
def test_pickles_and_copies_have_the_bytes(scheme: str, columnwise: bool) -> None:
    q = nf.quantize(X, scheme, columnwise=columnwise)
    pickled = [pickle.dumps(q, protocol) for protocol in range(pickle.HIGHEST_PROTOCOL + 1)]
    for made in (*map(pickle.loads, pickled), copy.deepcopy(q), copy.copy(q)):
        assert_same(made, q)
        assert made.dequantize().tobytes() == q.dequantize().tobytes()
    deep = copy.deepcopy(q)
    deep.buffers["rowwise_data"][...] = 0
    assert_same(q, nf.quantize(X, scheme, columnwise=columnwise))


@pytest.mark.parametrize("scheme", nf.schemes())
def test_a_spec_quantizes_as_the_call_that_it_came_from(scheme: str) -> None:
    for options in ({}, {"columnwise": True}, {"rowwise": False, "columnwise": True}):
        q = nf.quantize(X, scheme, **options)
        assert_same(nf.quantize(X, q.spec), q)
    with pytest.raises(ValueError, match="does not take the option 'rht_sign_mask'"):
        nf.quantize(X, "mxfp8_e4m3:rht_sign_mask=3")


def test_a_state_that_does_not_fit_is_refused() -> None:
    spec, _, dtype, buffers = nf.quantize(X, "mxfp8_e4m3").__getstate__()
    made = nf.QuantizedTensor.__new__(nf.QuantizedTensor)
    with pytest.raises(ValueError, match="must have shape"):
        made.__setstate__((spec, (64, 64), dtype, buffers))
    for state in [(), (spec,), (3, (64, 64), dtype, buffers)]:
        message = f"pickle: the state must be (spec, shape, dtype, buffers), got {state!r}"
        with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
            made.__setstate__(state)
