# SPDX-License-Identifier: Apache-2.0
"""Models that parallelize divides: the losses and norms of one process on the whole batch."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import unittest
from pathlib import Path
from typing import Any

import cistern.torch as ct
import models
import torch
import torch.distributed as dist
from gloo import run_ranks
from models import TorchCase
from torch import nn

N_STEPS = 5
ROWS = 8


def model_of(kind: str) -> Any:
    torch.manual_seed(7)
    model = models.llama(num_hidden_layers=5) if kind == "deep" else getattr(models, kind)()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return model


def batch(step: int, tokens: int = 12, **further: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return a batch whose labels count unevenly: none in some micro-batches, all in others."""
    generator = torch.Generator().manual_seed(step)
    ids = torch.randint(3, models.VOCABULARY, (ROWS, tokens), generator=generator)
    labels = ids.clone()
    labels[:2] = -100
    labels[3, : tokens // 2] = -100
    labels[6, 1:] = -100
    return {"input_ids": ids, "labels": labels} | further


def padded(step: int) -> dict[str, torch.Tensor]:
    found = batch(step)
    mask = torch.ones_like(found["input_ids"])
    mask[1, 9:] = mask[4, 5:] = 0
    found["labels"] = found["labels"].masked_fill(mask == 0, -100)
    return found | {"attention_mask": mask}


BATCHES = {"plain": batch, "padded": padded}


def divided(job: str, kind: str, how: Any, batches: str, options: dict[str, Any]) -> Any:
    """Train with a part of the model. Return losses, norms, and the weights that this rank has."""
    part = ct.parallelize(model_of(kind), how, batch=BATCHES[batches](0))
    store = ct.attach(part, job, **options)
    optimizer = store.optimizer(lr=3e-3, clip_norm=0.5)
    results = []
    for step in range(N_STEPS):
        loss = part.step(**BATCHES[batches](step))
        assert not loss.requires_grad
        optimizer.step()
        results.append((loss.item(), optimizer.norm.item()))
    weights = {name: store.read(name) for name, _ in part.named_parameters()}
    store.close()
    return results, weights


def one_process(kind: str, batches: str) -> list[tuple[float, float]]:
    model = model_of(kind)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    results = []
    for step in range(N_STEPS):
        loss = model(**BATCHES[batches](step)).loss
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5).item()
        optimizer.step()
        optimizer.zero_grad()
        results.append((loss.item(), norm))
    return results


class Products(TorchCase):
    def check(
        self, world: int, how: Any, kind: str = "llama", batches: str = "plain", **options: Any
    ) -> Any:
        name = f"{self.name}-{kind}"
        self.addCleanup(self.remove, name)
        got = run_ranks(world, divided, name, kind, how, batches, options)
        want = one_process(kind, batches)
        for results, _ in got:
            self.assertEqual(results, got[0][0])
            for (loss, norm), (wanted, norm_wanted) in zip(results, want, strict=True):
                self.assertAlmostEqual(loss, wanted, delta=1e-4 * wanted)
                self.assertAlmostEqual(norm, norm_wanted, delta=1e-4 * norm_wanted)
        return got

    def test_tp_2(self) -> None:
        self.check(2, {"tp": 2, "micro_batches": 2}, "qwen3")

    def test_pp_2(self) -> None:
        self.check(2, {"pp": 2, "micro_batches": 4}, "gpt2", "padded")

    def test_tp_2_pp_2(self) -> None:
        self.check(4, {"tp": 2, "pp": 2, "schedule": "gpipe"}, "llama", "padded")

    def test_dp_2_tp_2(self) -> None:
        self.check(4, {"tp": 2})

    def test_dp_2_pp_2(self) -> None:
        self.check(4, {"dp": 2, "pp": 2, "micro_batches": 4}, "qwen2")

    def test_cp_2(self) -> None:
        self.check(2, {"cp": 2})

    def test_interleaved(self) -> None:
        self.check(
            2,
            {"pp": 2, "schedule": "interleaved", "micro_batches": 4, "borders": [1, 2, 3]},
            "deep",
        )

    def test_recompute(self) -> None:
        self.check(2, {"pp": 2, "recompute": [1, 2], "borders": [1]})


def interrupted(job: str, socket: str, how: Any, pid: int, dies_in: tuple[int, int]) -> Any:
    """Train while the daemon is killed once, in the middle of a pass of rank 1. Return losses, norms, and weights."""
    part = ct.parallelize(model_of("llama"), how, batch=batch(0))
    store = ct.attach(part, job, socket=socket)
    optimizer = store.optimizer(lr=3e-3, clip_norm=0.5)
    calls: list[int] = []

    def kill(*_: Any) -> None:
        calls.append(store.step_no)
        if pid and dist.get_rank() == 1 and (store.step_no, calls.count(store.step_no)) == dies_in:
            os.kill(pid, signal.SIGKILL)

    norms = [m for m in part.modules() if type(m).__name__ == "LlamaRMSNorm"]
    norms[0].register_forward_hook(kill)
    results = []
    for step in range(N_STEPS):
        loss = part.step(**batch(step))
        optimizer.step()
        results.append((loss.item(), optimizer.norm.item()))
    weights = {name: store.read(name) for name, _ in part.named_parameters()}
    store.close()
    return results, weights, calls


class KeptDaemon:
    """A daemon on a socket of its own, under a service manager that starts it again and keeps its memory."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self.socket = f"{self._folder.name}/cistern.sock"
        config = Path(self._folder.name) / "empty.conf"
        config.touch()
        self._process = subprocess.Popen(
            [
                "tests/lib/notify_run",
                "--keep",
                "./cisternd",
                "--config",
                str(config),
                "--gpus",
                "none",
            ]
            + ["--socket", self.socket],
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = int(self._told("PID=").removeprefix("PID="))
        self._told("READY=1")

    def _told(self, begin: str) -> str:
        assert self._process.stdout is not None
        return next(line.strip() for line in self._process.stdout if line.startswith(begin))

    def close(self) -> None:
        self._process.terminate()
        self._process.communicate()
        self._folder.cleanup()


class Faults(TorchCase):
    def check(self, how: Any, *dies_in: int) -> None:
        daemon = KeptDaemon()
        self.addCleanup(daemon.close)
        want = run_ranks(2, interrupted, "a", daemon.socket, how, 0, dies_in)
        got = run_ranks(2, interrupted, "b", daemon.socket, how, daemon.pid, dies_in)
        self.assertGreater(got[1][2].count(dies_in[0]), want[1][2].count(dies_in[0]))
        for a, b in zip(want, got, strict=True):
            self.assertEqual(a[0], b[0])
            for name, values in a[1].items():
                self.assertTrue(torch.equal(values, b[1][name]), name)

    def test_a_daemon_that_ends_in_a_pipeline(self) -> None:
        self.check({"pp": 2, "micro_batches": 4}, 2, 2)

    def test_a_daemon_that_ends_while_tensors_are_divided(self) -> None:
        self.check({"tp": 2}, 2, 1)


if __name__ == "__main__":
    unittest.main()
