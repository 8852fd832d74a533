# SPDX-License-Identifier: Apache-2.0
"""The operands and results on each rank of a linear layer with parameters sharded by DTensor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from typing_extensions import TypeIs

from narrowfloat.pytorch._autograd import first_order_only
from narrowfloat.pytorch._types import Context, Group
from narrowfloat.pytorch.module.watching import Slots, is_watching
from narrowfloat.pytorch.quantized_tensor import QuantizedTensorStorage, Quantizer
from narrowfloat.pytorch.tensor._gather import gather_quantized, joiner

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

    from narrowfloat.pytorch.module.base import QuantizedLayer
    from narrowfloat.pytorch.module.linear import Linear


def is_dtensor(tensor: object) -> TypeIs[DTensor]:
    """Returns whether a tensor is a DTensor, without importing DTensor."""
    return hasattr(tensor, "device_mesh")


def local(tensor: torch.Tensor) -> torch.Tensor:
    """Returns this rank's part of a DTensor, detached from the graph; else the tensor itself."""
    return tensor._local_tensor if is_dtensor(tensor) else tensor


def part_of(parameter: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
    """Returns this rank's part of the first rank's tensor for a DTensor; else the tensor itself.

    The parts of all ranks are then of one tensor. Codes are sent unchanged.
    """
    if not is_dtensor(parameter):
        return whole
    from torch.distributed.tensor import distribute_tensor

    mesh, placements = parameter.device_mesh, parameter.placements
    return local(distribute_tensor(whole.detach(), mesh, placements)).clone()


def placed_as(parameter: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
    """Returns a DTensor with the given part on this rank, placed like a parameter."""
    if not is_dtensor(parameter):
        return part
    from torch.distributed.tensor import DTensor

    return DTensor.from_local(
        part,
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )


class _GatherRows(torch.autograd.Function):
    """Gathers the rows of all ranks; the gradient is summed over ranks and scattered by rows."""

    @staticmethod
    def forward(
        ctx: Context, x: torch.Tensor, group: Group, quantizer: Quantizer | None, dim: int
    ) -> torch.Tensor:
        """Returns (rows, columns), quantized if there is a quantizer."""
        ctx.group, ctx.dim, ctx.shape = group, dim, x.shape
        runs = x.shape[:dim].numel()
        matrix = x.reshape(-1, x.shape[-1])
        if quantizer is None:
            return joiner(group, runs)(matrix)
        whole: Any = gather_quantized(matrix, group, quantizer, runs)
        return whole

    @staticmethod
    def backward(ctx: Context, grad: torch.Tensor) -> tuple[Any, ...]:
        """Returns the sum in the type of the gradient, as in DTensor and TransformerEngine."""
        dim, shape, world = ctx.dim, ctx.shape, torch.distributed.get_world_size(ctx.group)
        parts = grad.reshape(*shape[:dim], world, *shape[dim:]).movedim(dim, 0)
        parts = parts.reshape(world * shape[0], *shape[1:])
        total = parts.new_empty(shape)
        torch.distributed.reduce_scatter_tensor(total, parts, group=ctx.group)
        if grad.requires_grad and torch.is_grad_enabled():
            return *first_order_only("gather of an input", (total,), grad), None, None, None
        return total, None, None, None


class _OnFirstRank(torch.autograd.Function):
    """Keeps a bias on the first rank and zeros on the others, so that the sum has it once."""

    @staticmethod
    def forward(ctx: Context, bias: torch.Tensor, is_first: bool) -> torch.Tensor:
        return bias.clone() if is_first else torch.zeros_like(bias)

    @staticmethod
    def backward(ctx: Context, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grad, None  # every rank has the gradient of the whole sum


@dataclass
class Shards:
    """The operands of a layer on one rank.

    x: the local part of the input. gather_dim: the dimension of x along which the ranks' parts are
    gathered before the product, or None. by_columns: each rank has some columns of y; else each
    rank has one term of the sum y.
    """

    x: torch.Tensor
    mesh: Any
    by_columns: bool
    gather_dim: int | None
    out_features: int

    def gathered(
        self, slots: Slots, dtype: torch.dtype, needs_wgrad: bool, plain: bool
    ) -> torch.Tensor:
        """Returns the input of the product: (..., in), or (rows, in) if it was gathered.

        plain: backward or a debug feature reads values, so values are sent instead of codes.
        """
        if self.gather_dim is None:
            return self.x
        quantizer = None if plain or is_watching(slots.activation) else slots.activation
        if quantizer is not None:
            quantizer.set_usage(rowwise=True, columnwise=needs_wgrad)
        group = self.mesh.get_group()
        return _GatherRows.apply(self.x.to(dtype), group, quantizer, self.gather_dim)

    def gathered_values(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the input of DTensor's product, with all tokens on every rank."""
        from torch.distributed.tensor import Replicate

        if self.gather_dim is None or not is_dtensor(x):
            return x
        return x.redistribute(placements=[Replicate()])

    def bias(self, bias: torch.Tensor | None) -> torch.Tensor | None:
        """Returns the bias of this rank's product."""
        if bias is None or not is_dtensor(bias):
            return bias
        placed: Any = bias
        own = placed.to_local()
        return own if self.by_columns else _OnFirstRank.apply(own, self.mesh.get_local_rank() == 0)

    def joined(self, y: torch.Tensor) -> torch.Tensor:
        """Returns the output DTensor of all ranks, given this rank's (rows, out)."""
        from torch.distributed.tensor import DTensor, Partial, Shard

        lead = list(self.x.shape[:-1])
        if self.gather_dim is not None:
            lead[self.gather_dim] *= self.mesh.size()
        y = y.reshape(*lead, y.shape[-1])
        shape = torch.Size((*lead, self.out_features))
        stride = torch.empty(shape, device="meta").stride()
        placement = Shard(len(lead)) if self.by_columns else Partial()
        return DTensor.from_local(
            y, self.mesh, [placement], run_check=False, shape=shape, stride=stride
        )


def shards_of(layer: Linear, x: torch.Tensor) -> Shards | None:
    """Returns the operands of this rank, or None for a layer without DTensors.

    Errors: TypeError if only one of input and weight is a DTensor; NotImplementedError, naming the
    parameter, for placements other than those of column- and row-parallel layers.
    """
    weight = layer.weight
    kinds = ["DTensor" if is_dtensor(each) else "Tensor" for each in (x, weight)]
    if kinds[0] != kinds[1]:
        raise TypeError(
            f"Linear {layer.name}: the input and weight must both be DTensors or both be tensors, "
            f"got {kinds[0]} and {kinds[1]}"
        )
    if not is_dtensor(weight) or not is_dtensor(x):
        return None
    _refuse_options(layer)
    from torch.distributed.tensor import Partial, Replicate, Shard

    placements, last = weight.placements, x.ndim - 1
    if placements not in ((Shard(0),), (Shard(1),)):
        raise NotImplementedError(
            f"Linear {layer.name}: weight must have the placement Shard(0) or Shard(1) on a mesh "
            f"of one dimension, got {placements}"
        )
    by_columns = placements == (Shard(0),)
    placed: tuple[Any, ...] = x.placements
    (given,) = placed
    tokens = by_columns and isinstance(given, Shard) and given.dim != last
    if given != (Replicate() if by_columns else Shard(last)) and not tokens:
        wanted = "Replicate or Shard of a dimension of tokens" if by_columns else "Shard(-1)"
        raise NotImplementedError(
            f"Linear {layer.name}: weight with the placement {placements[0]!r} needs an input with "
            f"the placement {wanted}, got {given!r}"
        )
    if tokens and x.shape[given.dim] % x.device_mesh.size() != 0:
        x, tokens = x.redistribute(placements=[Replicate()]), False
    gradient = [Partial()] if by_columns and not tokens else None
    return Shards(
        x=x.to_local(grad_placements=gradient),
        mesh=x.device_mesh,
        by_columns=by_columns,
        gather_dim=given.dim if tokens else None,
        out_features=weight.shape[0],
    )


def refuse_dtensors(layer: QuantizedLayer, x: torch.Tensor) -> None:
    """Raises NotImplementedError with its name if a parameter or the input is a DTensor."""
    for name, tensor in (("input", x), *layer.named_parameters(recurse=False)):
        if is_dtensor(tensor):
            raise NotImplementedError(
                f"{type(layer).__name__} {layer.name}: {name} must not be a DTensor, got "
                f"{tensor.placements}"
            )


def _refuse_options(layer: Linear) -> None:
    for option in ("fuse_wgrad_accumulation", "delay_wgrad_compute", "return_bias"):
        if getattr(layer, option):
            raise NotImplementedError(
                f"Linear {layer.name}: {option} needs a weight that is not a DTensor"
            )


def require_whole_blocks(layer: Linear, slots: Slots) -> None:
    """Raises ValueError if shards of the weight end within blocks of the whole weight."""
    weight, own = layer.weight, local(layer.weight)
    quantizer = getattr(slots.weight, "parent_quantizer", slots.weight)
    if quantizer is None or isinstance(own, QuantizedTensorStorage) or not is_dtensor(weight):
        return
    if quantizer.is_quantizable(weight) and not quantizer.is_quantizable(own):
        raise ValueError(
            f"Linear {layer.name}: the shards of weight must be whole blocks of "
            f"{type(quantizer).__name__}, got {tuple(own.shape)} of {tuple(weight.shape)} with the "
            f"placement {weight.placements[0]!r}"
        )
