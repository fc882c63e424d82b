# SPDX-License-Identifier: Apache-2.0
"""What ranks are compared with: one process that trains in plain torch, and the files of checkpoints."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

import cistern
import torch
from torch import nn

CLIP = 0.5  # The largest norm of gradients.


def one_process(
    model: nn.Module,
    n_steps: int,
    losses_of: Callable[[int], Iterable[torch.Tensor]],
    n_data: int = 1,
    lr: float = 3e-3,
) -> list[tuple[list[float], float]]:
    """Train ``model`` with the sum of the losses of each step, divided by ``n_data``. Return losses and norms."""
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=lr)
    results = []
    for step in range(n_steps):
        losses = []
        for loss in losses_of(step):
            (loss / n_data).backward()
            losses.append(loss.item())
        norm = nn.utils.clip_grad_norm_(trained, CLIP).item()
        optimizer.step()
        optimizer.zero_grad()
        results.append((losses, norm))
    return results


def summed(results: list[tuple[list[float], float]]) -> list[tuple[float, float]]:
    """Return the sum of the losses of each step, and its norm."""
    return [(sum(losses), norm) for losses, norm in results]


def newest(folder: str) -> str:
    """Return the path of the last checkpoint in ``folder``."""
    return f"{folder}/{max(os.listdir(folder))}"


def files_of(path: str) -> dict[str, bytes]:
    """Return the tensors of all files of a checkpoint, by the names of the files."""
    found = {}
    for name in sorted(os.listdir(path)):
        if name.endswith(".safetensors"):
            with open(f"{path}/{name}", "rb") as file:
                found[name] = file.read()
    return found


def saved(job: str, folder: str) -> dict[str, bytes]:
    """Save ``job`` to ``folder``. Return its files, as ``files_of``."""
    with cistern.Client() as client:
        client.save(job, folder)
    return files_of(newest(folder))
