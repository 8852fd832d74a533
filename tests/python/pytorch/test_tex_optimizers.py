# SPDX-License-Identifier: Apache-2.0
"""Compares updates of many tensors by the native module with float64."""

from collections.abc import Callable

import pytest
import torch
from bounds import UNIT, assert_near, half_ulp
from narrowfloat.pytorch import tex

Tensor = torch.Tensor
LR, BETA1, BETA2, EPS, DECAY = 1e-2, 0.9, 0.999, 1e-8, 0.1
# One step has fewer than 16 roundings. Constants such as 1 - beta2 are differences of rounded
# numbers. Their relative error is up to 2**-24 / (1 - beta2), which is 1000 roundings more.
ROUNDINGS = 16
CONSTANTS = 1100
NO_FLAG = torch.zeros(1, dtype=torch.int32)
SHAPES = [(5,), (3, 4), (64, 7)]


def tensors(dtype: torch.dtype = torch.float32, scale: float = 1.0) -> list[Tensor]:
    return [(torch.randn(shape) * scale).to(dtype) for shape in SHAPES]


def adam64(
    grad: Tensor, param: Tensor, m: Tensor, v: Tensor, step: int, mode: int, corrected: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns parameter and moments after a step of Adam in float64."""
    grad, param, m, v = (t.double() for t in (grad, param, m, v))
    if mode == 0:
        grad = grad + DECAY * param
    m = BETA1 * m + (1 - BETA1) * grad
    v = BETA2 * v + (1 - BETA2) * grad * grad
    c1, c2 = (1 - beta**step if corrected else 1.0 for beta in (BETA1, BETA2))
    update = (m / c1) / ((v / c2).sqrt() + EPS)
    if mode == 1:
        update = update + DECAY * param
    return param - LR * update, m, v


def check_adam(
    param: Tensor, m: Tensor, v: Tensor, exact: tuple[Tensor, ...], before: Tensor
) -> None:
    """Checks an updated parameter and its moments."""
    # An update is at most the learning rate times 1 / (1 - beta1) + decay.
    reach = before.double().abs() + LR * 16 * (CONSTANTS / ROUNDINGS)
    assert_near(param, exact[0], reach, ROUNDINGS, "parameter")
    assert_near(m, exact[1], exact[1].abs() + 1, ROUNDINGS, "first moment")
    assert_near(v, exact[2], exact[2].abs() + 1e-2, CONSTANTS, "second moment")


@pytest.mark.parametrize("corrected", [True, False])
@pytest.mark.parametrize("mode", [0, 1])
@pytest.mark.parametrize("moments", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("master", [False, True])
def test_adam(
    master: bool, dtype: torch.dtype, moments: torch.dtype, mode: int, corrected: bool
) -> None:
    torch.manual_seed(11)
    full = tensors()
    grads, params = tensors(dtype), [p.to(dtype) for p in full]
    m, v = tensors(moments), [t.square() for t in tensors(moments)]
    sources = full if master else params
    exact = [adam64(*one, 3, mode, corrected) for one in zip(grads, sources, m, v, strict=True)]
    before = [source.clone() for source in sources]
    lists = [grads, params, m, v, *([full] if master else [])]
    tex.multi_tensor_adam(64, NO_FLAG, lists, LR, BETA1, BETA2, EPS, 3, mode, int(corrected), DECAY)
    for i in range(len(SHAPES)):
        check_adam(sources[i], m[i], v[i], exact[i], before[i])
        if master:
            assert torch.equal(params[i], full[i].to(dtype))


@pytest.mark.parametrize("master", [False, True])
def test_capturable_adam_scales_gradients_and_heeds_the_flag(master: bool) -> None:
    torch.manual_seed(12)
    full = tensors()
    grads, params = tensors(scale=8.0), [p.clone() for p in full]
    m, v = tensors(), [t.square() for t in tensors()]
    inverse = torch.tensor([0.125])
    exact = [
        adam64(g * 0.125, p, a, b, 2, 1, True) for g, p, a, b in zip(grads, full, m, v, strict=True)
    ]
    before = [g.clone() for g in grads]
    entry = tex.multi_tensor_adam_capturable_master if master else tex.multi_tensor_adam_capturable
    lists = [grads, params, m, v, *([full] if master else [])]
    rest = (torch.tensor(LR), BETA1, BETA2, EPS, torch.tensor([2], dtype=torch.int32), 1, 1, DECAY)
    copies = [[t.clone() for t in tensors_] for tensors_ in lists]
    entry(64, torch.ones(1, dtype=torch.int32), lists, *rest, inverse)
    for tensors_, old in zip(lists, copies, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(tensors_, old, strict=True))
    entry(64, NO_FLAG, lists, *rest, inverse)
    for i in range(len(SHAPES)):
        assert torch.equal(grads[i], before[i] * 0.125)
        check_adam(params[i], m[i], v[i], exact[i], copies[1][i])
        if master:
            assert torch.equal(params[i], full[i])


def test_remainders_keep_every_bit_of_the_master() -> None:
    torch.manual_seed(13)
    masters = [t.clone() for t in tensors()]
    params, remainders = [], []
    # The upper half is rounded up if bit 15 of the lower half, its sign as int16, is set:
    # 0x3F808000 becomes 0x3F81 and -0x8000.
    for master in masters:
        bits = master.view(torch.int32)
        lower = (bits & 0xFFFF).to(torch.int16)
        upper = ((bits >> 16) + (lower < 0).int()).to(torch.int16)
        params.append(upper.view(torch.bfloat16))
        remainders.append(lower)
    grads = tensors(torch.bfloat16)
    m, v = tensors(), [t.square() for t in tensors()]
    copies = [t.clone() for t in m], [t.clone() for t in v]
    rest = (LR, BETA1, BETA2, EPS, 4, 1, 1, DECAY)
    tex.multi_tensor_adam(64, NO_FLAG, [grads, masters, *copies], *rest)
    tex.multi_tensor_adam_param_remainder(64, NO_FLAG, [grads, params, m, v, remainders], *rest)
    for master, param, remainder in zip(masters, params, remainders, strict=True):
        upper = param.view(torch.int16).int() - (remainder < 0).int()
        rebuilt = (upper << 16) | (remainder.int() & 0xFFFF)
        assert torch.equal(rebuilt.view(torch.float32), master)
        assert (param.float() - master).abs().le(master.abs() * 2**-8).all()


@pytest.mark.parametrize("fp8", [tex.DType.kFloat8E4M3, tex.DType.kFloat8E5M2])
def test_fp8_parameters_are_cast_by_given_scales(fp8: tex.DType) -> None:
    torch.manual_seed(14)
    masters, grads = tensors(), tensors(torch.bfloat16)
    m, v = tensors(), [t.square() for t in tensors()]
    plain = [[t.clone() for t in tensors_] for tensors_ in (masters, m, v)]
    codes = [torch.zeros(shape, dtype=torch.uint8) for shape in SHAPES]
    scales = [torch.tensor([2.0**i]) for i in (3, 9, -1)]  # the second saturates
    amaxes = [torch.zeros(1), torch.full((1,), 99.0), torch.zeros(1)]
    inverses = [torch.zeros(1) for _ in SHAPES]
    rest = (LR, BETA1, BETA2, EPS, 4, 1, 1, DECAY)
    tex.multi_tensor_adam(64, NO_FLAG, [grads, *plain], *rest)
    lists = [grads, codes, m, v, masters, scales, amaxes, inverses]
    tex.multi_tensor_adam_fp8(64, NO_FLAG, lists, *rest, fp8)
    dtype = {7: torch.float8_e4m3fn, 8: torch.float8_e5m2}[int(fp8)]
    for i, master in enumerate(masters):
        assert torch.equal(master, plain[0][i])
        top = torch.finfo(dtype).max
        expected = (master * scales[i]).clamp(-top, top).to(dtype)
        assert torch.equal(codes[i].view(dtype).float(), expected.float())
        assert float(amaxes[i]) == max(float(master.abs().max()), 99.0 if i == 1 else 0.0)
        assert float(inverses[i]) == 1 / float(scales[i])


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_sgd(dtype: torch.dtype, momentum: float, after: bool, first: bool, nesterov: bool) -> None:
    torch.manual_seed(15)
    dampening, scale = 0.0 if nesterov else 0.25, 0.5
    grads, params, velocities = tensors(dtype), tensors(dtype), tensors(dtype)
    copies = [torch.zeros(shape, dtype=torch.float16) for shape in SHAPES]
    exact = []
    for grad, param, velocity in zip(grads, params, velocities, strict=True):
        g, p, v = grad.double() * scale, param.double(), velocity.double()
        if not after:
            g = g + DECAY * p
        if momentum:
            v = g if first else momentum * v + (1 - dampening) * g
            g = g + momentum * v if nesterov else v
        if after:
            g = g + DECAY * p
        exact.append((p - LR * g, v, LR * g))
    lists = [grads, params, velocities, copies]
    arguments = (DECAY, momentum, dampening, LR, nesterov, first, after, scale)
    old = [p.clone() for p in params]
    tex.multi_tensor_sgd(64, torch.ones(1, dtype=torch.int32), lists, *arguments)
    assert all(torch.equal(a, b) for a, b in zip(old, params, strict=True))
    tex.multi_tensor_sgd(64, NO_FLAG, lists, *arguments)
    for i, (param, velocity, step) in enumerate(exact):
        rounded = half_ulp(dtype, step) / (ROUNDINGS * UNIT)  # the step is rounded first
        assert_near(params[i], param, param.abs() + 1 + rounded, ROUNDINGS, "parameter")
        assert_near(velocities[i], velocity, velocity.abs() + 4, ROUNDINGS, "momentum")
        assert torch.equal(copies[i], params[i].to(torch.float16))


@pytest.mark.parametrize("source", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("target", [torch.float32, torch.bfloat16, torch.float16])
def test_scale(source: torch.dtype, target: torch.dtype) -> None:
    torch.manual_seed(16)
    x, flag = tensors(source), torch.zeros(1, dtype=torch.int32)
    for scale in (0.75, torch.tensor([0.75])):
        y = [torch.empty(shape, dtype=target) for shape in SHAPES]
        by_tensor = isinstance(scale, torch.Tensor)
        entry = tex.multi_tensor_scale_tensor if by_tensor else tex.multi_tensor_scale
        entry(64, flag, [x, y], scale)
        for a, b in zip(x, y, strict=True):
            assert torch.equal(b, (a.float() * 0.75).to(target))
        assert int(flag) == 0
    x[1][0, 0] = float("nan")
    tex.multi_tensor_scale(64, flag, [x, y], 0.75)
    assert (
        int(flag) == 1
        and y[1][0, 0].isnan()
        and torch.equal(y[0], (x[0].float() * 0.75).to(target))
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_norms(dtype: torch.dtype) -> None:
    torch.manual_seed(17)
    x, flag = tensors(dtype), torch.zeros(1, dtype=torch.int32)
    exact = torch.stack([t.double().norm() for t in x])
    # Squares, partial sums over up to 448 terms, and a root.
    for factor, norms in (
        (1.0, tex.multi_tensor_l2norm(64, flag, [x], True)),
        (0.25, tex.multi_tensor_unscale_l2norm(64, flag, [x], torch.tensor([0.25]), True)),
    ):
        assert norms[0].shape == (1,) and norms[0].dtype == torch.float32
        assert_near(norms[1], exact * factor, exact * factor, 64, "each")
        assert_near(norms[0], exact.norm()[None] * factor, exact.norm() * factor, 64, "all")
    assert tex.multi_tensor_l2norm(64, flag, [x])[1].numel() == 0 and int(flag) == 0
    x[0][0] = float("inf")
    assert tex.multi_tensor_l2norm(64, flag, [x])[0].item() == float("inf") and int(flag) == 1


def test_a_step_of_sgd_is_rounded_before_it_is_added() -> None:
    one, step = torch.ones(1, dtype=torch.float16), 2.0**-11 + 2.0**-22  # above half an ulp of 1
    param = one.clone()
    tex.multi_tensor_sgd(
        64, NO_FLAG, [[one], [param], [one.clone()]], 0.0, 0.0, 0.0, -step, False, True, False, 1.0
    )
    assert float(param) == 1  # one rounding would give the next number


def test_constants_are_rounded_to_float32() -> None:
    """Checks that 1 - beta is the difference of the float32 numbers that kernels receive."""
    m, v = torch.zeros(1), torch.zeros(1)
    rest = (LR, BETA1, BETA2, EPS, 1, 1, 0, 0.0)
    tex.multi_tensor_adam(64, NO_FLAG, [[torch.ones(1)], [torch.zeros(1)], [m], [v]], *rest)
    one, beta = torch.tensor(1.0), torch.tensor([BETA1, BETA2])
    assert [float(m), float(v)] == (one - beta).tolist()
    assert abs(float(v) - 1e-3) > UNIT * 1e-3  # double precision gives another value


@pytest.mark.parametrize(
    "call,message",
    [
        (
            lambda x: tex.multi_tensor_adam(
                64, NO_FLAG, [[x], [x], [x]], LR, BETA1, BETA2, EPS, 1, 1, 1, DECAY
            ),
            "multi_tensor_adam: needs 4 or 5 lists of equal length, got lengths [1, 1, 1]",
        ),
        (
            lambda x: tex.multi_tensor_scale(64, NO_FLAG, [[x, x], [x]], 1.0),
            "multi_tensor_scale: needs 2 lists of equal length, got lengths [2, 1]",
        ),
        (
            lambda x: tex.multi_tensor_l2norm(64, NO_FLAG, [[]]),
            "multi_tensor_l2norm: needs at least one tensor, got an empty list",
        ),
        (
            lambda x: tex.multi_tensor_unscale_l2norm(64, NO_FLAG, [[]], x, True),
            "multi_tensor_unscale_l2norm: needs at least one tensor, got an empty list",
        ),
        (
            lambda x: tex.multi_tensor_sgd(
                64, NO_FLAG, [[x], [x[:2]], [x]], 0, 0, 0, LR, False, False, False, 1.0
            ),
            "multi_tensor_sgd: the tensors of one parameter must be equally large, got "
            "[(3,), (2,), (3,)]",
        ),
    ],
)
def test_bad_lists_are_refused(call: Callable, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        call(torch.ones(3))
    assert str(caught.value) == message
