# SPDX-License-Identifier: Apache-2.0
"""Projections that are packed in one tensor, and experts that ranks divide: files, resumption, losses and norms."""

from __future__ import annotations

import tempfile
import unittest
from typing import Any

import cistern.torch as ct
import compared
import models
import torch
import torch.distributed as dist
from cistern.torch import parallel
from compared import newest, saved
from gloo import run_ranks
from models import TorchCase
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from transformers.distributed import DistributedConfig
from transformers.distributed.expert_parallel import apply_expert_parallelism

N_STEPS = 10
N_FIRST = 3  # Of them, before a checkpoint.


def mixtral() -> Any:
    torch.manual_seed(7)
    return models.mixtral()


def batch(step: int, data_rank: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 * step + data_rank)
    return torch.randint(3, models.VOCABULARY, (4, 9), generator=generator)


def train(store: ct.Store, last: int) -> list[tuple[float, float]]:
    """Train until step ``last``. Return losses and norms."""
    optimizer = store.optimizer(lr=3e-3, clip_norm=0.5)
    results = []
    while store.step_no < last:
        tokens = batch(store.step_no)
        loss = store.model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        results.append((loss.item(), optimizer.norm.item()))
    return results


def part(job: str, last: int, kind: str, options: dict[str, Any]) -> Any:
    """Train as one of the ranks of ``kind``, "tp" or "ep". Return losses, norms and the weights."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=(kind,))
    model = mixtral()
    if kind == "tp":
        parallel.divide(model, mesh)
    elif mesh.size() > 1:
        divide_experts(model, mesh, mesh)
    store = ct.attach(model, job, **options)
    results = train(store, last)
    weights = {name: store.read(name) for name, _ in model.named_parameters()}
    store.close()
    return results, weights


def divide_experts(model: Any, ep_mesh: Any, tp_mesh: Any) -> None:
    """Divide the experts of ``model``, for ranks of which those of ``tp_mesh`` have the same data."""
    n = ep_mesh.size()
    config = DistributedConfig(ep_size=n, fsdp_size=n // tp_mesh.size(), tp_size=tp_mesh.size())
    apply_expert_parallelism(model, ep_mesh, tp_mesh, model._resolve_parallel_plans(config)[1])


def experts(job: str, n_replicas: int) -> Any:
    """Train with experts that two data ranks divide, in each of ``n_replicas``. Return losses and norms."""
    names = ("replica", "ep", "tp")
    mesh = init_device_mesh("cpu", (n_replicas, 2, 1), mesh_dim_names=names)
    model = mixtral()
    divide_experts(model, mesh["ep"], mesh["tp"])
    store = ct.attach(model, job, replicas="sum")
    optimizer = store.optimizer(lr=3e-3, clip_norm=0.5, grad_scale=1 / dist.get_world_size())
    results = []
    for step in range(N_STEPS):
        tokens = batch(step, dist.get_rank())
        loss = language_loss(model, tokens)
        loss.backward()
        optimizer.step()
        results.append((loss.item(), optimizer.norm.item()))
    store.close()
    return results


def language_loss(model: Any, tokens: torch.Tensor) -> torch.Tensor:
    """Return the loss without that of the balance of experts, which is no mean over data ranks."""
    logits = model(input_ids=tokens).logits[:, :-1]
    return nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def one_process(n_data: int) -> list[tuple[list[float], float]]:
    model = mixtral()
    return compared.one_process(
        model,
        N_STEPS,
        lambda step: (language_loss(model, batch(step, rank)) for rank in range(n_data)),
        n_data,
    )


class Packed(TorchCase):
    def setUp(self) -> None:
        super().setUp()
        for name in ("a", "b", "c", "d"):
            self.addCleanup(self.remove, f"{self.name}-{name}")
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def test_files_are_those_of_one_rank(self) -> None:
        """A checkpoint of ranks that divide packed projections is loaded by one, and saved with the same bytes."""
        got = run_ranks(2, part, f"{self.name}-a", N_FIRST, "tp", {})
        files = saved(f"{self.name}-a", f"{self.folder}/a")
        self.assertIn("model.safetensors", files)
        path = newest(f"{self.folder}/a")
        store = ct.attach(mixtral(), f"{self.name}-b", resume=path)
        for name, values in got[0][1].items():
            self.assertEqual(values.shape, mixtral().get_parameter(name).shape)
            self.assertTrue(torch.equal(store.read(name), values), name)
        self.assertEqual(saved(f"{self.name}-b", f"{self.folder}/b"), files)
        wanted = train(store, N_STEPS)
        store.close()
        for kind, world, job in (("tp", 2, "c"), ("ep", 2, "d")):
            with self.subTest(kind):
                resumed = run_ranks(
                    world, part, f"{self.name}-{job}", N_STEPS, kind, {"resume": path}
                )
                self.check_alike(resumed[0][0], wanted)

    def test_in_place(self) -> None:
        """A job goes on with ranks that divide it otherwise, with the same weights."""
        job = f"{self.name}-a"
        before = run_ranks(2, part, job, N_FIRST, "tp", {})
        for world, kind in ((1, "tp"), (2, "ep"), (4, "tp"), (2, "tp")):
            with self.subTest(f"{kind} {world}"):
                after = run_ranks(world, part, job, N_FIRST, kind, {"reshape": True})
                for rank in after:
                    self.assertEqual(rank[0], [])
                    for name, values in before[0][1].items():
                        self.assertTrue(torch.equal(rank[1][name], values), name)
        store = ct.attach(mixtral(), job, reshape=True)
        got = train(store, N_STEPS)
        store.close()
        other = ct.attach(mixtral(), f"{self.name}-b")
        wanted = train(other, N_STEPS)[N_FIRST:]
        other.close()
        self.check_alike(got, wanted)


class Experts(TorchCase):
    def check(self, n_replicas: int) -> None:
        self.addCleanup(self.remove, self.name)
        wanted = one_process(2 * n_replicas)
        for rank, results in enumerate(run_ranks(2 * n_replicas, experts, self.name, n_replicas)):
            for (loss, norm), (losses, norm_wanted) in zip(results, wanted, strict=True):
                self.assertAlmostEqual(loss, losses[rank], delta=1e-4 * losses[rank])
                self.assertAlmostEqual(norm, norm_wanted, delta=1e-4 * norm_wanted)

    def test_ep_2(self) -> None:
        self.check(1)

    def test_dp_2_ep_2(self) -> None:
        self.check(2)


if __name__ == "__main__":
    unittest.main()
