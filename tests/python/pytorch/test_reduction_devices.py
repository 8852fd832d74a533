# SPDX-License-Identifier: Apache-2.0
"""Tensors that ranks exchange are on the device of the layer's or tensor's own buffers."""

import pytest
import torch
from families import ALL, sample
from narrowfloat.common.recipe import DelayedScaling
from narrowfloat.pytorch.quantization import global_state
from narrowfloat.pytorch.quantization.recipe_states import DelayedScalingRecipeState
from narrowfloat.pytorch.tensor import _collectives


class Ranks:
    """A process group of two ranks that agree; records the devices of what it sends."""

    def __init__(self) -> None:
        self.devices: list[str] = []

    def size(self) -> int:
        return 2

    def wait(self) -> None:
        pass

    def allgather(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor]) -> "Ranks":
        assert len(outputs[0]) == self.size()
        self.devices += [tensor.device.type for tensor in (*outputs[0], *inputs)]
        raise InterruptedError  # values of meta tensors cannot be compared


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_ranks_compare_layouts_on_the_device_of_the_buffers(
    monkeypatch: pytest.MonkeyPatch, kind: str, device: str
) -> None:
    ranks = Ranks()
    monkeypatch.setattr(torch.distributed.ProcessGroup, "unbox", lambda group: group)
    tensor = ALL[kind]()(sample().to(device)).detach()
    with pytest.raises(InterruptedError):
        _collectives._require_alike(torch.ops.c10d.broadcast_.default, [tensor], ranks)
    assert ranks.devices == [device] * 3


def test_a_rank_without_states_reduces_on_their_device(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    monkeypatch.setattr(global_state, "_is_running", lambda group: True)
    monkeypatch.setattr(
        global_state, "reduce_newest_amax", lambda amax, *_: found.append(amax.device.type)
    )
    recipe = DelayedScaling()
    members = global_state._Members(recipe, None)
    members.update()
    state = DelayedScalingRecipeState(recipe, mode="forward", num_quantizers=3, device="meta")
    members.add(state)
    members.remove(state)
    members.update()
    assert found == ["cpu", "meta"] and members.length == 3
