# SPDX-License-Identifier: Apache-2.0
"""A small network with one matrix that needs more precision than E5M2, for demo.debug_hunt."""

import torch
from narrowfloat.pytorch import Linear

INPUTS, WIDTH, OUTPUTS, BATCH = 16, 32, 4, 256
# Channels with a nearly constant large value, like a few channels of trained transformers.
SINKS, SINK_VALUE = 4, 64.0
STEPS, RATE = 500, 3e-3

Batch = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


class Network(torch.nn.Module):
    """Five linear layers; `fuse` reads the sinks, with weights that add up to 0 at first."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = Linear(INPUTS, WIDTH, name="stem")
        self.mid_0 = Linear(WIDTH, WIDTH, name="mid.0")
        self.fuse = Linear(WIDTH + SINKS, WIDTH, name="fuse")
        self.mid_1 = Linear(WIDTH, WIDTH, name="mid.1")
        self.head = Linear(WIDTH, OUTPUTS, name="head")
        with torch.no_grad():
            sinks = self.fuse.weight[:, -SINKS:]
            sinks -= sinks.mean(1, keepdim=True)

    def forward(self, x: torch.Tensor, sinks: torch.Tensor) -> torch.Tensor:
        """Returns (rows, OUTPUTS) for x (rows, INPUTS) and sinks (rows, SINKS)."""
        hidden = torch.relu(self.stem(x))
        hidden = hidden + torch.relu(self.mid_0(hidden))
        hidden = torch.relu(self.fuse(torch.cat([hidden, sinks], 1)))
        return self.head(hidden + torch.relu(self.mid_1(hidden)))


class Task:
    """Makes batches by number: random inputs, and the outputs of a fixed function."""

    def __init__(self) -> None:
        random = torch.Generator().manual_seed(1)
        self._first = torch.randn(24, INPUTS, generator=random) * 0.15
        self._second = torch.randn(OUTPUTS, 24, generator=random) * 0.5

    def batch(self, number: int) -> Batch:
        """Returns the inputs, sinks and targets."""
        random = torch.Generator().manual_seed(number)
        x = torch.randn(BATCH, INPUTS, generator=random)
        drift = torch.randn(BATCH, 1, generator=random).clamp(-2, 2)
        sinks = (SINK_VALUE * (1 + 0.02 * drift)).expand(-1, SINKS)
        return x, sinks, torch.tanh(x @ self._first.t()) @ self._second.t()


def loss_of(model: Network, batch: Batch) -> torch.Tensor:
    """Returns the mean squared error."""
    x, sinks, target = batch
    return torch.nn.functional.mse_loss(model(x, sinks), target)


def pretrained() -> Network:
    """Returns the network after STEPS steps in high precision."""
    torch.manual_seed(0)
    model, task = Network(), Task()
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.02, STEPS)
    for step in range(STEPS):
        loss = loss_of(model, task.batch(step))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return model
