# SPDX-License-Identifier: Apache-2.0
"""Trains TransformerEngine's flax modules on the CPU; tests replacements of JAX's functions."""

import importlib.util
import math
import pickle
from pathlib import Path

import numpy as np
import pytest
from lookalike import Run
from narrowfloat.te.jax import enums, native

NEEDED = ("transformer_engine", "jax", "flax", "optax")
MISSING = [name for name in NEEDED if importlib.util.find_spec(name) is None]
CHOSEN = ("MXFP8BlockScaling:DenseGeneral", "Float8CurrentScaling:DenseGeneral")


def test_the_workspace_of_cublas_is_refused() -> None:
    with pytest.raises(RuntimeError) as raised:
        native.get_grouped_gemm_setup_workspace_size(2)
    message = "narrowfloat.te: the CPU has no cuBLAS, whose grouped product this sizes"
    assert str(raised.value) == message


def test_fused_attention_is_refused_in_the_form_of_each_release() -> None:
    backend = enums.NVTE_Fused_Attn_Backend.NVTE_No_Backend
    assert native.get_fused_attn_backend(*range(20)) == backend  # up to 2.19
    assert native.get_fused_attn_backend(object())[0] == backend


def test_handlers_are_those_of_the_cpu_in_a_build_with_cuda_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        native._handlers, "cuda_registrations", lambda: dict.fromkeys(native.registrations())
    )
    own = native._handlers.registrations()
    found = native.registrations()
    assert found and all(found[name] is own[name] for name in found)


with_flax = pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}")
CHECKS = {
    "jax_products.py": ["products", "nvfp4", "groups", "plain", "sharded", "modes"],
    "jax_fused.py": [
        *("norms", "norm_gradients", "activations", "gradients", "clamped"),
        *("softmaxes", "sharded_fused"),
    ],
}


@with_flax
def test_flax_modules_train_and_repeat_themselves(run_alone: Run) -> None:
    ran = run_alone(str(Path(__file__).with_name("jax_program.py")), *CHOSEN, *CHOSEN)
    assert ran.returncode == 0, ran.stderr
    lines = ran.stdout.splitlines()
    assert lines[:2] == lines[2:], "the same losses in a second run"
    for line in lines[:2]:
        first, second, third = map(float, line.split()[2:])
        assert math.isfinite(first) and first > second > third
    assert lines[0].split()[2:] != lines[1].split()[2:], "the recipes quantize differently"


@with_flax
@pytest.mark.parametrize("program", CHECKS)
def test_primitives_have_exact_results_on_any_number_of_devices(
    run_alone: Run, program: str
) -> None:
    devices = "--xla_force_host_platform_device_count=4"
    path = str(Path(__file__).with_name(program))
    ran = run_alone(path, *CHECKS[program], XLA_FLAGS=devices, NVTE_FRAMEWORK="jax")
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split() == CHECKS[program]


@pytest.mark.parametrize("name", [name for name in enums.__all__ if "Backend" not in name])
def test_members_are_numbered_in_order_and_pickled_by_name(name: str) -> None:
    enum = getattr(enums, name)
    assert [member.value for member in enum] == list(range(len(enum)))
    assert pickle.loads(pickle.dumps(enum(0))) is enum(0)


def test_a_cast_to_e4m3_keeps_its_values_under_jit() -> None:
    jax = pytest.importorskip("jax", reason="JAX is not installed")
    from narrowfloat.te.jax import runtime

    values = np.array([448.0, 256.0, 2.0**-9, -448.0], np.float32)
    cast = jax.jit(lambda x: runtime.reduce_precision(x.astype(jax.numpy.float8_e4m3fn), 4, 3))
    assert np.array_equal(np.asarray(cast(values)).astype(np.float32), values)
    other = runtime.reduce_precision(jax.numpy.float32(1 + 2.0**-9), 8, 7)
    assert float(other) == 1, "other operands are JAX's"


def test_a_product_of_blocks_is_that_of_the_decoded_values() -> None:
    jnp = pytest.importorskip("jax.numpy", reason="JAX is not installed")
    from narrowfloat.te.jax import runtime

    random = np.random.default_rng(0)
    codes = [random.integers(-8, 9, (2, rows, 64)).astype(np.float32) for rows in (3, 5)]
    scales = [2.0 ** random.integers(-2, 3, (2, rows, 2)).astype(np.float32) for rows in (3, 5)]
    made = runtime.scaled_matmul(
        *(jnp.asarray(c, jnp.float8_e4m3fn) for c in codes),
        *(jnp.asarray(s, jnp.float8_e8m0fnu) for s in scales),
        preferred_element_type=jnp.float32,
    )
    a, b = (c * np.repeat(s, 32, axis=2) for c, s in zip(codes, scales, strict=True))
    # All terms are multiples of 2**-4 up to 2**10, so that fp32 sums of 64 of them are exact.
    assert np.array_equal(np.asarray(made), np.einsum("bmk,bnk->bmn", a, b))
