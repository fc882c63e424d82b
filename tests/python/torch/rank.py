# SPDX-License-Identifier: Apache-2.0
"""Rank argv[2] of argv[3] of the job argv[1] trains argv[4] steps, and dies in step argv[5]."""

import os
import signal
import sys

import cistern.torch as ct
import torch
from cistern import State
from torch import nn


def train(name: str, rank: int, world: int, n_steps: int, dies_in: int) -> None:
    """Train up to ``n_steps`` steps. In the backward pass of the step ``dies_in`` the process dies."""
    torch.set_num_threads(1)
    torch.manual_seed(1)
    layers = [nn.Linear(64, 64, dtype=torch.bfloat16) for _ in range(6)]
    model = nn.Sequential(*layers[:3], nn.Dropout(0.1), *layers[3:])
    store = ct.attach(model, name, rank=rank, world=world, device="cpu", chunk_elems=8192)
    optimizer = store.optimizer(lr=1e-2, clip_norm=1.0)
    while store.step_no < n_steps:
        step = store.step_no
        torch.manual_seed(100 * rank + step)
        batch = torch.randn(4, 64).to(torch.bfloat16)

        def closure(step: int = step, batch: torch.Tensor = batch) -> torch.Tensor:
            loss = model(batch).float().square().mean()
            if step == dies_in:
                loss.register_hook(lambda _: os.kill(os.getpid(), signal.SIGKILL))
            loss.backward()
            return loss

        optimizer.step(closure)
    if rank == 0:
        for state in (State.MASTER, State.EXP_AVG):
            for tensor, _ in model.named_parameters():
                print(store.read(tensor, state).sum().item())
    store.close()


if __name__ == "__main__":
    train(sys.argv[1], *map(int, sys.argv[2:]))
