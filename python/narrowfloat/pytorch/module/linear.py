# SPDX-License-Identifier: Apache-2.0
"""Linear: torch.nn.Linear with products quantized by the recipe of the autocast."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from narrowfloat.pytorch._types import Group
from narrowfloat.pytorch.module.in_graph import GraphPass
from narrowfloat.pytorch.module.options import choose_dtype, refuse, refuse_parallelism
from narrowfloat.pytorch.module.parameters import Init, ParameterInit
from narrowfloat.pytorch.module.passes import RunningLayer
from narrowfloat.pytorch.module.sharded import Shards, require_whole_blocks, shards_of
from narrowfloat.pytorch.module.watching import Slots
from narrowfloat.pytorch.quantization import FP8GlobalStateManager
from narrowfloat.pytorch.quantization.recompute import FirstPass


class Linear(RunningLayer, torch.nn.Linear):
    """Computes y = x weight^T + bias as torch.nn.Linear does, quantized inside `autocast`.

    Parameters: weight (out_features, in_features), bias (out_features,) or None, with the initial
    values and state_dict names of torch.nn.Linear. Made inside quantized_model_init, the weight is
    a quantized tensor. Without a recipe and a debug feature the product is
    torch.nn.functional.linear itself.

    in_features, out_features, bias, device, dtype: as torch.nn.Linear's.
    params_dtype: another name of dtype. Both may be given if they are equal.
    init_method: called with the weight to initialise it; biases are then zero.
    get_rng_state_tracker, rng_tracker_name: the values are drawn inside the tracker's
        fork(rng_tracker_name).
    return_bias: the result is (x weight^T, bias), and the bias is not added.
    fuse_wgrad_accumulation: adds the weight's gradient to weight.main_grad.
    delay_wgrad_compute: backward_dw() computes the weight's gradient, not the backward pass.
    save_original_input: backward quantizes the input again instead of saving its codes.
    name: the name that debug configurations and roles use; None is `Layer_<n>`.
    tp_group, tp_size: the tensor-parallel group and its size, over which debug features reduce.
    ub_name: stored as an attribute.
    parallel_mode: None, or "column" or "row" with a group of one rank; shard with DTensor instead.
    sequence_parallel: needs a group of one rank.
    parameters_split: must be None.
    ub_overlap_ag, ub_overlap_rs, ub_overlap_rs_dgrad, ub_bulk_dgrad, ub_bulk_wgrad,
    symmetric_ar_type: must not be set; overlap with communication needs a GPU.

    Errors: NotImplementedError for the options above; ValueError for two dtypes that differ or an
    unknown parallel_mode.
    """

    ub_name: str | None = None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        sequence_parallel: bool = False,
        fuse_wgrad_accumulation: bool = False,
        tp_group: Group = None,
        tp_size: int = 1,
        get_rng_state_tracker: Callable[[], Any] | None = None,
        rng_tracker_name: str | None = None,
        init_method: Init | None = None,
        return_bias: bool = False,
        params_dtype: torch.dtype | None = None,
        parallel_mode: str | None = None,
        parameters_split: object = None,
        ub_overlap_ag: bool = False,
        ub_overlap_rs: bool = False,
        ub_overlap_rs_dgrad: bool = False,
        ub_bulk_dgrad: bool = False,
        ub_bulk_wgrad: bool = False,
        ub_name: str | None = None,
        delay_wgrad_compute: bool = False,
        symmetric_ar_type: str | None = None,
        save_original_input: bool = False,
        name: str | None = None,
    ) -> None:
        torch.nn.Module.__init__(self)  # torch.nn.Linear's constructor would make other parameters
        tp_size = refuse_parallelism("Linear", parallel_mode, sequence_parallel, tp_group, tp_size)
        refuse("Linear", "is not supported", parameters_split=parameters_split)
        refuse(
            "Linear",
            "overlaps products and communication, which needs a GPU",
            ub_overlap_ag=ub_overlap_ag,
            ub_overlap_rs=ub_overlap_rs,
            ub_overlap_rs_dgrad=ub_overlap_rs_dgrad,
            ub_bulk_dgrad=ub_bulk_dgrad,
            ub_bulk_wgrad=ub_bulk_wgrad,
            symmetric_ar_type=symmetric_ar_type,
        )
        options: dict[str, Any] = {
            "device": device,
            "dtype": choose_dtype("Linear", dtype, params_dtype),
        }
        self.in_features, self.out_features = in_features, out_features
        self.weight = torch.nn.Parameter(torch.empty((out_features, in_features), **options))
        if bias:
            self.bias = torch.nn.Parameter(torch.empty(out_features, **options))
        else:
            self.register_parameter("bias", None)
        self.ub_name = ub_name
        self._begin(
            name,
            tp_group,
            tp_size,
            ParameterInit(init_method, get_rng_state_tracker, rng_tracker_name),
            return_bias=return_bias,
            fuse_wgrad_accumulation=fuse_wgrad_accumulation,
            delay_wgrad_compute=delay_wgrad_compute,
            save_original_input=save_original_input,
        )
        self.reset_parameters(defer_init=self.weight.is_meta)

    @property
    def weight_names(self) -> tuple[str, ...]:  # type: ignore[override]  # of a field
        """The name of the weight, as in TransformerEngine's layers."""
        return ("weight",)

    @property
    def bias_names(self) -> tuple[str, ...]:  # type: ignore[override]  # of a field
        """The name of the bias, if there is one."""
        return () if self.bias is None else ("bias",)

    def forward(  # type: ignore[override]  # more arguments, and a pair with return_bias
        self,
        inp: torch.Tensor,
        is_first_microbatch: bool | None = None,
        fp8_output: bool = False,
        fp8_grad: bool = False,
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor | None]:
        """Returns y (..., out_features) for inp (..., in_features), in the type of inp.

        is_first_microbatch: True quantizes the weight and caches it, False uses the cached one,
        None quantizes without caching. fp8_output, fp8_grad: quantize y, and the gradient of inp.
        Inside torch.autocast its type replaces the type of inp.
        Errors: TypeError if inp and the parameters differ in type outside torch.autocast (without a
        recipe PyTorch's RuntimeError); ValueError for an option that the recipe does not support.
        """
        y: Any = super().forward(inp, is_first_microbatch, fp8_output, fp8_grad)
        return y

    def _quantizing_options(self, *args: Any) -> tuple[bool | None, bool, bool]:
        return args[1:]

    def _forward(
        self,
        again: FirstPass | GraphPass | None,
        x: torch.Tensor,
        is_first_microbatch: bool | None,
        fp8_output: bool,
        fp8_grad: bool,
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor | None]:
        if x.ndim == 0:
            raise RuntimeError("Linear: the input must have one dimension or more, got 0")
        shards = shards_of(self, x)
        own = x if shards is None else shards.x
        slots = self._slots(again, own, [own.shape[0] if x.ndim > 1 else 1], fp8_output, fp8_grad)
        bias = None if self.return_bias else self.bias
        if slots is None:
            x = x if shards is None else shards.gathered_values(x)
            y = torch.nn.functional.linear(x, self.weight, bias)
        elif shards is not None:
            refuse("Linear", "needs a weight that is not a DTensor", fp8_output=fp8_output)
            refuse("Linear", "needs a weight that is not a DTensor", fp8_grad=fp8_grad)
            y = self._multiply_shards(again, shards, slots, is_first_microbatch)
        else:
            row = x.unsqueeze(0) if x.ndim == 1 else x
            y = self._multiply(again, row, [row.shape[0]], slots, [bias], is_first_microbatch)
            y = y.squeeze(0) if x.ndim == 1 else y
        return (y, self._returned_bias(self.bias, y.dtype)) if self.return_bias else y

    def _multiply_shards(
        self,
        again: FirstPass | GraphPass | None,
        shards: Shards,
        slots: Sequence[Slots],
        is_first_microbatch: bool | None,
    ) -> torch.Tensor:
        require_whole_blocks(self, slots[0])
        quantized = FP8GlobalStateManager.is_fp8_enabled()
        recipe = FP8GlobalStateManager.get_fp8_recipe() if quantized else None
        plain = recipe is None or recipe.backward_override is not None
        needs_wgrad = torch.is_grad_enabled() and self.weight.requires_grad
        x = shards.gathered(slots[0], self._dtype_of_pass(shards.x), needs_wgrad, plain)
        x = x.unsqueeze(0) if x.ndim == 1 else x
        bias = shards.bias(self.bias)
        y = self._multiply(again, x, [x.shape[0]], slots, [bias], is_first_microbatch)
        return shards.joined(y)
