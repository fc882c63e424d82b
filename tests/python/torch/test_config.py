# SPDX-License-Identifier: Apache-2.0
"""Options from a file of JSON, which cistern-gpt reads, too."""

import json
import os
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

import cistern.torch as ct
import models
from cistern import Moments
from models import DEVICE, TorchCase, square
from torch import nn

EVERYTHING = {
    "model": {"layers": 7},
    "data": {"data": "text"},
    "training": {"steps": 3},
    "optimizer": {
        "optimizer": "lion",
        "lr": 0.125,
        "beta1": 0.75,
        "beta2": 0.5,
        "weight_decay": 0.25,
        "clip": 2,
        "moments": "bf16",
        "rounding": "stochastic",
        "warmup": 5,
    },
    "parallel": {"micro_batches": 3, "recompute": False, "device": "host", "threads": 1},
    "memory": {"pool": "800%", "chunk": 4096},
    "job": {"job": "of-the-file"},
}


WEIGHTS_BYTES = 2 * (64 * 4 + 64 + 64 * 64 + 64)


def linears() -> nn.Module:
    return models.bf16(lambda: nn.Sequential(nn.Linear(4, 64), nn.Linear(64, 64)))


class Config(TorchCase):
    def file(self, sections: dict[str, Any]) -> Path:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        path = Path(folder.name) / "job.json"
        path.write_text(json.dumps(sections), encoding="utf-8")
        return path

    def test_everything(self) -> None:
        """The file gives the same job and optimizer as arguments do."""
        self.addCleanup(self.remove, "of-the-file")
        store = ct.attach(linears(), config=self.file(EVERYTHING), device=DEVICE)
        self.addCleanup(store.job.close)
        self.assertEqual(store.job.name, "of-the-file")
        twin = self.attach(
            linears(),
            "of-arguments",
            optimizer="lion",
            moments=Moments.BF16,
            micro_batches=3,
            pool=8 * WEIGHTS_BYTES,
            chunk_elems=4096,
        )
        self.assertEqual(store.plan, twin.plan)
        group = store.optimizer().param_groups[0]
        self.assertEqual((group["lr"], tuple(group["betas"])), (0.125, (0.75, 0.5)))
        self.assertEqual(group["weight_decay"], 0.25)
        square(store.model, models.tokens()).backward()
        store.the_optimizer().step()
        self.assertEqual(store.step_no, 1)

    def test_order(self) -> None:
        """Arguments override the environment of ranks, and that the file."""
        path = self.file({"parallel": {"world": 2, "rank": 1}, "optimizer": {"lr": 0.5}})
        environment = {"LOCAL_WORLD_SIZE": "1", "LOCAL_RANK": "0"}
        with mock.patch.dict(os.environ, environment):
            store = self.attach(linears(), config=path, optimizer="sgd")
        self.assertEqual((store.job.world, store.job.rank), (1, 0))
        self.assertEqual(store.optimizer(lr=0.25).param_groups[0]["lr"], 0.25)
        self.assertEqual(store.optimizer().param_groups[0]["lr"], 0.5)

    def test_refused(self) -> None:
        path = self.file({"parallel": {"recompute": True}})
        with self.assertRaisesRegex(ValueError, "cistern.torch has no option like 'recompute'"):
            self.attach(linears(), config=path)
        path = self.file({"parallel": {"parallel": "dispatch", "micro_batches": 2}})
        with self.assertRaisesRegex(ValueError, "no option like 'parallel': .* set it to \"data\""):
            self.attach(linears(), config=path)
        path = self.file({"memory": {"pol": 1}})
        with self.assertRaisesRegex(ValueError, r"memory\.pol: .* did you mean 'pool'\?"):
            self.attach(linears(), config=path)

    def test_no_learning_rate(self) -> None:
        with self.assertRaisesRegex(ValueError, "has no learning rate"):
            self.attach(linears()).optimizer()

    def test_percentage(self) -> None:
        block = 2 * 4096
        for percentage in (460, 560):
            store = self.attach(linears(), pool=f"{percentage}%", chunk_elems=4096)
            n_blocks = WEIGHTS_BYTES * percentage // 100 // block
            self.assertEqual(store.plan.pool_bytes, n_blocks * block)
            store.close(remove=True)
        with self.assertRaisesRegex(ValueError, "pool is '10%%': a size"):
            self.attach(linears(), "other", pool="10%%")
