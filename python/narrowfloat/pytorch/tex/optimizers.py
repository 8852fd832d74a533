# SPDX-License-Identifier: Apache-2.0
"""Entries that update many tensors: Adam, SGD, scaling and norms.

Arithmetic is in float32 for all dtypes; constants are rounded to float32 as for a GPU's kernels.
`chunk_size`, which divides a GPU's work, is ignored.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from narrowfloat.pytorch import _native
from narrowfloat.pytorch.constants import DType
from narrowfloat.pytorch.tensor.storage.float8_tensor_storage import float8_scheme

__all__ = [
    "multi_tensor_adam",
    "multi_tensor_adam_capturable",
    "multi_tensor_adam_capturable_master",
    "multi_tensor_adam_fp8",
    "multi_tensor_adam_param_remainder",
    "multi_tensor_l2norm",
    "multi_tensor_scale",
    "multi_tensor_scale_tensor",
    "multi_tensor_sgd",
    "multi_tensor_unscale_l2norm",
]

Tensor = torch.Tensor
Lists = Sequence[Sequence[Tensor]]

_L2_DECAY = 0  # mode 0 adds weight decay to the gradient, mode 1 to the update


def _check_lists(entry: str, lists: Lists, *counts: int) -> None:
    """Raises ValueError unless the number of lists is in `counts` and their lengths are equal."""
    lengths = [len(tensors) for tensors in lists]
    if len(lengths) not in counts or len(set(lengths)) != 1:
        expected = " or ".join(map(str, counts))
        raise ValueError(f"{entry}: needs {expected} lists of equal length, got lengths {lengths}")
    for tensors in zip(*lists, strict=True):
        shapes = [tuple(tensor.shape) for tensor in tensors[:4]]
        if len({tensor.numel() for tensor in tensors[:4]}) > 1:
            raise ValueError(
                f"{entry}: the tensors of one parameter must be equally large, got {shapes}"
            )


def _rounded(value: float) -> float:
    """Returns a number rounded to float32."""
    return torch.tensor(value, dtype=torch.float32).item()


class _Adam(NamedTuple):
    """The constants of a step of Adam."""

    lr: float
    beta1: float
    beta2: float
    correction1: float
    correction2: float
    epsilon: float
    mode: int
    decay: float

    @classmethod
    def of(
        cls,
        lr: float,
        betas: tuple[float, float],
        epsilon: float,
        step: int,
        mode: int,
        bias_correction: int,
        decay: float,
    ) -> "_Adam":
        """Returns the constants in float32; corrections are computed in double precision first."""
        beta1, beta2 = map(_rounded, betas)
        first, second = (
            _rounded(1 - beta**step if bias_correction else 1.0) for beta in (beta1, beta2)
        )
        rest = _rounded(epsilon), mode, _rounded(decay)
        return cls(_rounded(lr), beta1, beta2, first, second, *rest)

    def update(self, grad: Tensor, param: Tensor, m: Tensor, v: Tensor) -> Tensor:
        """Updates the moments and returns the new parameter; all but the moments are float32.

        A float32 `param` is updated in place.
        """
        if self.mode == _L2_DECAY and self.decay:
            grad = torch.add(grad, param, alpha=self.decay)
        first = m.float().mul_(self.beta1).add_(grad, alpha=_rounded(1 - self.beta1))
        second = v.float().mul_(self.beta2)
        second.addcmul_(grad, grad, value=_rounded(1 - self.beta2))
        denominator = (second / self.correction2).sqrt_().add_(self.epsilon)
        step = (first / self.correction1).div_(denominator)
        if self.mode != _L2_DECAY and self.decay:
            step.add_(param, alpha=self.decay)
        for moment, value in ((m, first), (v, second)):
            if moment is not value:
                moment.copy_(value)
        return param.sub_(step, alpha=self.lr)


@torch.no_grad()
def multi_tensor_adam(
    chunk_size: int,
    noop_flag: Tensor,
    tensor_lists: Lists,
    lr: float,
    beta1: float,
    beta2: float,
    epsilon: float,
    step: int,
    mode: int,
    bias_correction: int,
    weight_decay: float,
) -> None:
    """Updates parameters by Adam in place.

    tensor_lists: gradients, parameters, first and second moments, and optional float32 master
    parameters. mode: 0 adds weight decay to the gradient, 1 to the update. The flag is not read:
    infinities and NaN propagate. Errors: ValueError for lists of other lengths.
    """
    _check_lists("multi_tensor_adam", tensor_lists, 4, 5)
    adam = _Adam.of(lr, (beta1, beta2), epsilon, step, mode, bias_correction, weight_decay)
    for grad, param, m, v, *master in zip(*tensor_lists, strict=True):
        full = master[0] if master else param
        new = adam.update(grad.float(), full.float(), m, v)
        for target in (full, param):
            if target is not new:
                target.copy_(new)


@torch.no_grad()
def multi_tensor_adam_param_remainder(
    chunk_size: int,
    noop_flag: Tensor,
    tensor_lists: Lists,
    lr: float,
    beta1: float,
    beta2: float,
    epsilon: float,
    step: int,
    mode: int,
    bias_correction: int,
    weight_decay: float,
) -> None:
    """Updates bfloat16 parameters; only the other 16 bits of their float32 masters are stored.

    tensor_lists: gradients, parameters, moments, int16 remainders: the lower half of the master's
    bits. The parameter is the upper half, plus one if the remainder is negative: rounded.
    """
    _check_lists("multi_tensor_adam_param_remainder", tensor_lists, 5)
    adam = _Adam.of(lr, (beta1, beta2), epsilon, step, mode, bias_correction, weight_decay)
    for grad, param, m, v, remainder in zip(*tensor_lists, strict=True):
        upper = param.view(torch.int16) - (remainder < 0).to(torch.int16)
        master = torch.stack((remainder, upper), -1).view(torch.float32)[..., 0]
        new = adam.update(grad.float(), master.contiguous(), m, v)
        lower, upper = new[..., None].view(torch.int16).unbind(-1)
        remainder.copy_(lower)
        param.view(torch.int16).copy_(upper + (lower < 0).to(torch.int16))


@torch.no_grad()
def multi_tensor_adam_fp8(
    chunk_size: int,
    noop_flag: Tensor,
    tensor_lists: Lists,
    lr: float,
    beta1: float,
    beta2: float,
    epsilon: float,
    step: int,
    mode: int,
    bias_correction: int,
    weight_decay: float,
    fp8_dtype: DType,
) -> None:
    """Updates float32 master parameters by Adam and casts them to FP8 codes by given scales.

    tensor_lists: gradients, codes, moments, masters, and scales, amaxes and reciprocal scales of
    one element each; amaxes become maxima with the parameters'; reciprocals are written.
    """
    _check_lists("multi_tensor_adam_fp8", tensor_lists, 8)
    adam = _Adam.of(lr, (beta1, beta2), epsilon, step, mode, bias_correction, weight_decay)
    spec = _native.make_spec(float8_scheme(DType.cast(fp8_dtype)), True, False)
    for grad, codes, m, v, master, scale, amax, scale_inv in zip(*tensor_lists, strict=True):
        new = adam.update(grad.float(), master.float(), m, v)
        if new is not master:
            master.copy_(new)
        buffers = (codes.view(torch.uint8), scale_inv.view(1), None, None, None, amax.view(1), None)
        _native.quantize(spec, new.view(codes.shape), buffers, scale=scale.view(1))


@torch.no_grad()
def multi_tensor_adam_capturable(
    chunk_size: int,
    noop_flag: Tensor,
    tensor_lists: Lists,
    lr: Tensor,
    beta1: float,
    beta2: float,
    epsilon: float,
    step: Tensor,
    mode: int,
    bias_correction: int,
    weight_decay: float,
    inv_scale: Tensor,
) -> None:
    """Updates parameters as multi_tensor_adam(), unless the flag is 1; numbers are tensors.

    inv_scale: multiplies the gradients, in place. A fifth list has float32 masters.
    """
    _check_lists("multi_tensor_adam_capturable", tensor_lists, 4, 5)
    if int(noop_flag) == 1:
        return
    betas = beta1, beta2
    adam = _Adam.of(float(lr), betas, epsilon, int(step), mode, bias_correction, weight_decay)
    for grad, param, m, v, *master in zip(*tensor_lists, strict=True):
        full = master[0] if master else param
        scaled = grad.float() * inv_scale
        grad.copy_(scaled)
        new = adam.update(scaled, full.float(), m, v)
        for target in (full, param):
            if target is not new:
                target.copy_(new)


@torch.no_grad()
def multi_tensor_adam_capturable_master(
    chunk_size: int,
    noop_flag: Tensor,
    tensor_lists: Lists,
    lr: Tensor,
    beta1: float,
    beta2: float,
    epsilon: float,
    step: Tensor,
    mode: int,
    bias_correction: int,
    weight_decay: float,
    inv_scale: Tensor,
) -> None:
    """Updates as multi_tensor_adam_capturable(); the fifth list, of masters, is required."""
    _check_lists("multi_tensor_adam_capturable_master", tensor_lists, 5)
    multi_tensor_adam_capturable(
        chunk_size, noop_flag, tensor_lists, lr, beta1, beta2, epsilon, step, mode,
        bias_correction, weight_decay, inv_scale,
    )  # fmt: skip


@torch.no_grad()
def multi_tensor_sgd(
    chunk_size: int,
    noop_flag: Tensor,
    tensor_lists: Lists,
    wd: float,
    momentum: float,
    dampening: float,
    lr: float,
    nesterov: bool,
    first_run: bool,
    wd_after_momentum: bool,
    scale: float,
) -> None:
    """Updates parameters by SGD in place, unless the flag is set.

    tensor_lists: gradients, parameters, momenta, and optional copies of the parameters. scale: of
    the gradients. The first run uses the gradient as the momentum. The step is rounded to the
    parameter's dtype before it is added.
    """
    _check_lists("multi_tensor_sgd", tensor_lists, 3, 4)
    if int(noop_flag):
        return
    for grad, param, velocity, *copies in zip(*tensor_lists, strict=True):
        weight = param.float()
        g = grad.float() * scale
        if wd and not wd_after_momentum:
            g.add_(weight, alpha=wd)
        if momentum:
            v = g.clone() if first_run else velocity.float() * momentum + (1 - dampening) * g
            velocity.copy_(v)
            g = g.add_(v, alpha=momentum) if nesterov else v
        if wd and wd_after_momentum:
            g = g.add_(weight, alpha=wd)
        param.add_(g.mul(-lr).to(param.dtype))
        for copy in copies:
            copy.copy_(param)


@torch.no_grad()
def multi_tensor_scale(
    chunk_size: int, noop_flag: Tensor, tensor_lists: Lists, scale: float | Tensor
) -> None:
    """Writes `scale` times the tensors of the first list to those of the second.

    Sets the flag to 1 if a tensor of the first list has an infinity or NaN.
    """
    _check_lists("multi_tensor_scale", tensor_lists, 2)
    for source, target in zip(*tensor_lists, strict=True):
        if not bool(torch.isfinite(source).all()):
            noop_flag.fill_(1)
        target.copy_((source.float() * scale).view(target.shape))


def multi_tensor_scale_tensor(
    chunk_size: int, noop_flag: Tensor, tensor_lists: Lists, scale: Tensor
) -> None:
    """Multiplies as multi_tensor_scale(), by a tensor of one element."""
    multi_tensor_scale(chunk_size, noop_flag, tensor_lists, scale)


@torch.no_grad()
def _norms(
    entry: str, noop_flag: Tensor, lists: Lists, scale: Tensor | None, per_tensor: bool | None
) -> tuple[Tensor, Tensor]:
    _check_lists(entry, lists, 1)
    if not lists[0]:
        raise ValueError(f"{entry}: needs at least one tensor, got an empty list")
    values = [t.float() if scale is None else t.float() * scale for t in lists[0]]
    norms = torch.stack([torch.linalg.vector_norm(value) for value in values])
    if not bool(torch.isfinite(norms).all()):
        noop_flag.fill_(1)
    return torch.linalg.vector_norm(norms).view(1), norms if per_tensor else norms[:0]


def multi_tensor_l2norm(
    chunk_size: int, noop_flag: Tensor, tensor_lists: Lists, per_tensor: bool | None = False
) -> tuple[Tensor, Tensor]:
    """Returns the norm of all tensors of one list together, and per tensor (or an empty tensor).

    Sets the flag to 1 if a norm is infinite or NaN.
    """
    return _norms("multi_tensor_l2norm", noop_flag, tensor_lists, None, per_tensor)


def multi_tensor_unscale_l2norm(
    chunk_size: int,
    noop_flag: Tensor,
    tensor_lists: Lists,
    inv_scale: Tensor,
    per_tensor: bool | None = False,
) -> tuple[Tensor, Tensor]:
    """Returns multi_tensor_l2norm() of the tensors times `inv_scale`, without changing them."""
    return _norms("multi_tensor_unscale_l2norm", noop_flag, tensor_lists, inv_scale, per_tensor)
