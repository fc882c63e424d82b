# SPDX-License-Identifier: Apache-2.0
"""A store has one copy of a model that a mesh divides, in each mode: the losses and norms of one process."""

import unittest
from typing import Any

import cistern.torch as ct
import compared
import torch
from gloo import run_ranks
from models import TorchCase
from test_parallel_models import batch, model_of

N_STEPS = 3
TOLERANCE = 1e-4
Results = list[tuple[float, float]]


def one_process() -> tuple[Results, dict[str, torch.Tensor]]:
    model = model_of("Llama")
    results = compared.one_process(
        model, N_STEPS, lambda step: [model(**batch(step)).loss], lr=1e-2
    )
    weights = {name: p.detach() for name, p in model.named_parameters()}
    return compared.summed(results), weights


def divided(job: str) -> dict[str, Any]:
    """Train in each mode. Return the losses, the norms, and the whole weights."""
    found = {}
    for mode in ct.parallel.MODES:
        model = ct.parallel.shard(model_of("Llama"), ct.parallel.make_mesh(mode), mode)
        store = ct.attach(model, f"{job}-{mode}")
        optimizer = store.optimizer(lr=1e-2, clip_norm=0.5)
        results = []
        for step in range(N_STEPS):
            loss = model(**batch(step)).loss
            loss.backward()
            optimizer.step()
            results.append((loss.item(), optimizer.norm.item()))
        found[mode] = results, {name: store.read(name) for name, _ in model.named_parameters()}
        store.close()
    return found


class Stores(TorchCase):
    def test_four_ranks_in_each_mode(self) -> None:
        for mode in ct.parallel.MODES:
            self.addCleanup(self.remove, f"{self.name}-{mode}")
        want, weights = one_process()
        for by_mode in run_ranks(4, divided, self.name):
            for mode, (results, found) in by_mode.items():
                with self.subTest(mode=mode):
                    for ours, theirs in zip(results, want, strict=True):
                        for mine, plain in zip(ours, theirs, strict=True):
                            self.assertAlmostEqual(mine, plain, delta=TOLERANCE * plain)
                    for name, whole in weights.items():
                        self.assertEqual(found[name].shape, whole.shape)
                        self.assertLess((found[name] - whole).abs().max(), 1e-3, name)


if __name__ == "__main__":
    unittest.main()
