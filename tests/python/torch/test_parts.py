# SPDX-License-Identifier: Apache-2.0
"""Ranks that have parts of a model: the same losses and norms as one process that has all of it."""

from __future__ import annotations

import unittest
from typing import Any

import cistern.torch as ct
import torch
from gloo import run_ranks
from models import TorchCase
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

N_STEPS = 4
WIDTH = 24


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.up(self.norm(x)).relu()
        out: torch.Tensor = x + self.down(hidden)
        return out


def mlp() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(8, WIDTH), *(Block() for _ in range(3)), nn.Linear(WIDTH, 8))


def batch(step: int, data_rank: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(100 * step + data_rank)
    return torch.randn(6, 8, generator=generator), torch.randn(6, 8, generator=generator)


def train(store: ct.Store, data_rank: int = 0, **options: Any) -> list[tuple[float, float]]:
    """Return the losses and norms of some steps."""
    optimizer = store.optimizer(lr=1e-2, clip_norm=0.5, **options)
    results = []
    for step in range(N_STEPS):
        x, y = batch(step, data_rank)
        loss = (store.model(x) - y).square().mean()
        loss.backward()
        optimizer.step()
        results.append((loss.item(), optimizer.norm.item()))
    return results


def one_process(n_data: int = 1) -> list[tuple[list[float], float]]:
    """Return the losses of each data rank and the norms of plain torch."""
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    results = []
    for step in range(N_STEPS):
        losses = []
        for rank in range(n_data):
            x, y = batch(step, rank)
            loss = (model(x) - y).square().mean()
            (loss / n_data).backward()
            losses.append(loss.item())
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5).item()
        optimizer.step()
        optimizer.zero_grad()
        results.append((losses, norm))
    return results


def tensor_parallel(job: str, dp: int, tp: int) -> Any:
    """Train with ``tp`` ranks for each of ``dp`` batches. Return losses, norms and the weights."""
    mesh = init_device_mesh("cpu", (dp, tp), mesh_dim_names=("dp", "tp"))
    model = mlp()
    plan: dict[str, Any] = {}
    for i in range(1, 4):
        plan |= {f"{i}.up": ColwiseParallel(use_local_output=False), f"{i}.down": RowwiseParallel()}
    parallelize_module(model, mesh["tp"], plan)
    store = ct.attach(model, job)
    results = train(store, mesh.get_local_rank("dp"))
    weights = {name: store.read(name) for name, _ in model.named_parameters()}
    store.close()
    return results, weights


class TensorParallel(TorchCase):
    def check(self, dp: int, tp: int) -> None:
        self.addCleanup(self.remove, self.name)
        got = run_ranks(dp * tp, tensor_parallel, self.name, dp, tp)
        want = one_process(dp)
        for rank, (results, weights) in enumerate(got):
            for (loss, norm), (losses, norm_wanted) in zip(results, want, strict=True):
                self.assertAlmostEqual(loss, losses[rank // tp], delta=1e-4 * losses[rank // tp])
                self.assertAlmostEqual(norm, norm_wanted, delta=1e-4 * norm_wanted)
            for name, values in weights.items():
                self.assertTrue(torch.equal(values, got[0][1][name]), name)
                self.assertEqual(values.shape, mlp().get_parameter(name).shape)

    def test_tp_2(self) -> None:
        self.check(1, 2)

    def test_tp_3_has_uneven_parts(self) -> None:
        self.check(1, 3)

    def test_dp_2_tp_2(self) -> None:
        self.check(2, 2)


if __name__ == "__main__":
    unittest.main()
