# SPDX-License-Identifier: Apache-2.0
"""Models of transformers that are divided by the plans that they have themselves."""

from __future__ import annotations

import unittest
from collections.abc import Callable, Iterator
from typing import Any

import cistern.torch as ct
import compared
import models
import torch
from gloo import run_ranks
from models import TorchCase
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from transformers.distributed import DistributedConfig
from transformers.distributed.tensor_parallel import apply_tensor_parallelism

N_STEPS = 10
KINDS = ("llama", "qwen3", "mixtral")


def model_of(kind: str) -> Any:
    torch.manual_seed(7)
    if kind == "deep":
        return models.llama(num_hidden_layers=14)
    build: Callable[[], nn.Module] = getattr(models, kind)
    return build()


def batch(step: int, data_rank: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 * step + data_rank)
    return torch.randint(3, models.VOCABULARY, (4, 9), generator=generator)


def divided(job: str, kind: str, dp: int, tp: int, options: dict[str, Any]) -> Any:
    """Train with ``tp`` ranks for each of ``dp`` batches. Return losses and norms."""
    mesh = init_device_mesh("cpu", (dp, tp), mesh_dim_names=("dp", "tp"))
    model = model_of(kind)
    plan, _, _ = model._resolve_parallel_plans(DistributedConfig(tp_size=tp))
    apply_tensor_parallelism(model, mesh["tp"], plan)
    store = ct.attach(model, job, **options)
    optimizer = store.optimizer(lr=3e-3, clip_norm=0.5)
    results = []
    for step in range(N_STEPS):
        tokens = batch(step, mesh.get_local_rank("dp"))
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        results.append((loss.item(), optimizer.norm.item()))
    store.close()
    return results


def one_process(kind: str, n_data: int) -> list[tuple[list[float], float]]:
    model = model_of(kind)

    def losses_of(step: int) -> Iterator[torch.Tensor]:
        for tokens in (batch(step, rank) for rank in range(n_data)):
            yield model(input_ids=tokens, labels=tokens).loss

    return compared.one_process(model, N_STEPS, losses_of, n_data)


class Plans(TorchCase):
    def check(self, kind: str, dp: int, tp: int, **options: Any) -> None:
        name = f"{self.name}-{kind}-{dp}-{tp}"
        self.addCleanup(self.remove, name)
        got = run_ranks(dp * tp, divided, name, kind, dp, tp, options)
        for rank, results in enumerate(got):
            self.assertEqual([norm for _, norm in results], [norm for _, norm in got[0]])
            for (loss, norm), (losses, wanted) in zip(results, one_process(kind, dp), strict=True):
                self.assertAlmostEqual(loss, losses[rank // tp], delta=1e-4 * losses[rank // tp])
                self.assertAlmostEqual(norm, wanted, delta=1e-4 * wanted)

    def test_tp_2(self) -> None:
        for kind in KINDS:
            with self.subTest(kind):
                self.check(kind, 1, 2)

    def test_dp_2_tp_2(self) -> None:
        self.check("deep", 2, 2, pool="30%")


if __name__ == "__main__":
    unittest.main()
