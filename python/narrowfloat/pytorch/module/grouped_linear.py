# SPDX-License-Identifier: Apache-2.0
"""GroupedLinear: several linear layers of one shape, each for its own rows of one input."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from narrowfloat.pytorch._types import Group
from narrowfloat.pytorch.module.in_graph import GraphPass
from narrowfloat.pytorch.module.options import choose_dtype, refuse, refuse_parallelism
from narrowfloat.pytorch.module.parameters import Init, ParameterInit
from narrowfloat.pytorch.module.passes import RunningLayer
from narrowfloat.pytorch.module.sharded import refuse_dtensors
from narrowfloat.pytorch.module.watching import Slots
from narrowfloat.pytorch.quantization.recompute import FirstPass
from narrowfloat.pytorch.quantized_tensor import QuantizedTensorStorage


class GroupedLinear(RunningLayer):
    """Computes y_i = x_i weight_i^T + bias_i for the parts x_i of the input's rows.

    Parameters: weight0, weight1, ... (out_features, in_features) and bias0, ... (out_features,).

    num_gemms: the number of weights.
    in_features, out_features, bias, device, dtype, params_dtype: of each weight, as Linear's.
    init_method, get_rng_state_tracker, rng_tracker_name: as Linear's, called for each weight.
    return_bias: the result is (y, biases), and the biases are not added.
    fuse_wgrad_accumulation, delay_wgrad_compute, save_original_input, name, tp_group, tp_size,
    ub_name: as Linear's.
    parallel_mode, sequence_parallel: need a group of one rank.
    ub_overlap_rs, ub_overlap_ag: must be False; overlap with communication needs a GPU.
    single_grouped_weight, single_grouped_bias, use_grouped_tensor: must not be set; parameters in
        one grouped tensor are not supported.

    Errors: ValueError unless num_gemms is positive; as Linear.
    """

    MODULE_TYPE = "grouped_linear"

    def __init__(
        self,
        num_gemms: int,
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
        ub_overlap_rs: bool = False,
        ub_overlap_ag: bool = False,
        ub_name: str | None = None,
        delay_wgrad_compute: bool = False,
        save_original_input: bool = False,
        single_grouped_weight: bool = False,
        single_grouped_bias: bool = False,
        name: str | None = None,
        use_grouped_tensor: bool | None = None,
    ) -> None:
        super().__init__()
        layer = "GroupedLinear"
        tp_size = refuse_parallelism(layer, parallel_mode, sequence_parallel, tp_group, tp_size)
        refuse(
            layer,
            "keeps parameters in one grouped tensor, which is not supported",
            single_grouped_weight=single_grouped_weight,
            single_grouped_bias=single_grouped_bias,
            use_grouped_tensor=use_grouped_tensor,
        )
        refuse(
            layer,
            "overlaps products and communication, which needs a GPU",
            ub_overlap_rs=ub_overlap_rs,
            ub_overlap_ag=ub_overlap_ag,
        )
        if num_gemms < 1:
            raise ValueError(f"GroupedLinear: num_gemms must be positive, got {num_gemms}")
        options: dict[str, Any] = {
            "device": device,
            "dtype": choose_dtype(layer, dtype, params_dtype),
        }
        self.num_gemms = num_gemms
        self.in_features, self.out_features = in_features, out_features
        self.use_bias, self.ub_name = bias, ub_name
        for i in range(num_gemms):
            weight = torch.empty((out_features, in_features), **options)
            self.register_parameter(f"weight{i}", torch.nn.Parameter(weight))
            vector = torch.nn.Parameter(torch.empty(out_features, **options)) if bias else None
            self.register_parameter(f"bias{i}", vector)
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
        self.reset_parameters(defer_init=self.get_parameter("weight0").is_meta)

    @property
    def weight_names(self) -> tuple[str, ...]:  # type: ignore[override]  # of a field
        """The names of the weights, in the order of the parts."""
        return tuple(f"weight{i}" for i in range(self.num_gemms))

    @property
    def bias_names(self) -> tuple[str, ...]:  # type: ignore[override]  # of a field
        """The names of the biases; empty without biases."""
        return tuple(f"bias{i}" for i in range(self.num_gemms)) if self.use_bias else ()

    def forward(
        self,
        inp: torch.Tensor,
        m_splits: Sequence[int] | torch.Tensor,
        is_first_microbatch: bool | None = None,
    ) -> torch.Tensor | tuple[torch.Tensor, list[torch.Tensor | None]]:
        """Returns y (..., out_features) for inp (..., in_features); leading dimensions are rows.

        m_splits: the number of rows of each weight, 0 or more. is_first_microbatch: as Linear's.
        With return_bias the result is (y, biases).
        Errors: TypeError for a quantized inp; ValueError unless m_splits has one size per weight
        and they add up to the rows; NotImplementedError for DTensors.
        """
        y: Any = super().forward(inp, m_splits, is_first_microbatch)
        return y

    def _quantizing_options(self, *args: Any) -> tuple[bool | None, bool, bool]:
        return args[2], False, False

    def _forward(
        self,
        again: FirstPass | GraphPass | None,
        x: torch.Tensor,
        m_splits: Sequence[int] | torch.Tensor,
        is_first_microbatch: bool | None,
    ) -> torch.Tensor | tuple[torch.Tensor, list[torch.Tensor | None]]:
        if isinstance(x, QuantizedTensorStorage):
            raise TypeError(f"GroupedLinear: the input must be plain, got {type(x).__name__}")
        refuse_dtensors(self, x)
        rows = x.reshape(-1, x.shape[-1])
        splits = self._checked_splits(m_splits, rows.shape[0])
        slots = self._slots(again, rows, splits)
        biases = [None] * self.num_gemms if self.return_bias else self._biases()
        if slots is None:
            parts = zip(rows.split(splits), self._weights(), biases, strict=True)
            y = torch.cat([torch.nn.functional.linear(*part) for part in parts])
        else:
            self._check_slots(slots)
            y = self._multiply(again, rows, splits, slots, biases, is_first_microbatch)
        y = y.view(*x.shape[:-1], self.out_features)
        if not self.return_bias:
            return y
        return y, [self._returned_bias(bias, y.dtype) for bias in self._biases()]

    def _check_slots(self, slots: Sequence[Slots]) -> None:
        """Raises ValueError if weights have different directions in high precision."""
        for kind in ("activation", "weight", "gradient"):
            quantizers = [getattr(slot, kind) for slot in slots]
            found = {q.holds_values(): type(q).__name__ for q in quantizers if q is not None}
            if len(found) > 1:
                raise ValueError(
                    f"GroupedLinear: {kind} quantizers must not mix Identity-backed and quantized "
                    f"directions, got {' and '.join(sorted(found.values()))}"
                )

    def _checked_splits(self, m_splits: Sequence[int] | torch.Tensor, rows: int) -> list[int]:
        splits = m_splits.tolist() if isinstance(m_splits, torch.Tensor) else list(m_splits)
        if len(splits) != self.num_gemms or sum(splits) != rows or any(n < 0 for n in splits):
            raise ValueError(
                f"GroupedLinear: m_splits must have {self.num_gemms} sizes that add up to {rows} "
                f"rows, got {splits}"
            )
        return splits

    def extra_repr(self) -> str:
        """Returns the number of weights and the arguments of Linear."""
        return f"num_gemms={self.num_gemms}, {super().extra_repr()}"
