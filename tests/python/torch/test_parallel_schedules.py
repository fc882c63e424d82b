# SPDX-License-Identifier: Apache-2.0
"""Schedules of `cistern schedule` in ranks of torch: the bits of one process, with a store and without."""

from __future__ import annotations

import os
import signal
import unittest
from typing import Any

import cistern.torch as ct
import torch
import torch.distributed as dist
from cistern import State
from cistern.torch.parallel import schedules
from gloo import run_ranks
from models import TorchCase
from torch import nn
from torch.distributed import pipelining

WIDTH = 48
N_STEPS = 3
N_LAYERS = 14


class Block(nn.Module):
    """Has branches, a norm, a product of activations, and dropout if wanted."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.gate, self.up = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(WIDTH, 2 * WIDTH, bias=False)
        self.down = nn.Linear(2 * WIDTH, WIDTH)
        self.scale = nn.Parameter(torch.full((WIDTH,), 0.5))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm(x)
        out: torch.Tensor = self.dropout(self.down(self.gate(h).sigmoid() * self.up(h)))
        return x + out * self.scale


class Whole(nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.embed = nn.Embedding(40, WIDTH)
        self.layers = nn.ModuleList(Block(dropout) for _ in range(N_LAYERS))
        self.head = nn.Linear(WIDTH, 40)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        for layer in self.layers:
            x = layer(x)
        result: torch.Tensor = self.head(x)
        return result


class Stage(nn.Module):
    """Some layers of ``whole``, with their names."""

    def __init__(self, whole: Whole, number: int, n: int) -> None:
        super().__init__()
        mine = range(N_LAYERS * number // n, N_LAYERS * (number + 1) // n)
        self.layers = nn.ModuleDict({str(i): whole.layers[i] for i in mine})
        if number == 0:
            self.embed = whole.embed
        if number == n - 1:
            self.head = whole.head

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x) if hasattr(self, "embed") else x
        for layer in self.layers.values():
            x = layer(x)
        return self.head(x) if hasattr(self, "head") else x


def words(step: int, n_micro: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    whole = torch.randint(40, (n_micro * 2, 9), generator=generator)
    return whole[:, :-1].contiguous(), whole[:, 1:].contiguous()


def cross_entropy(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten()) / 8


def units_in(cut: list[Stage]) -> list[str]:
    """Return the modules in blocks, whose own parameters are units, too."""
    return [
        name
        for stage in cut
        for name, module in stage.named_modules()
        if name.count(".") == 2 and not isinstance(module, nn.Dropout)
    ]


class Rank:
    """A rank of torch.distributed with its stages of the model, and what it has done."""

    def __init__(self, job: str, n_micro: int, options: dict[str, Any]) -> None:
        self.me, world = dist.get_rank(), dist.get_world_size()
        n = world * options.get("virtual", 1)
        numbers = list(range(self.me, n, world))
        whole = Whole(options.get("dropout", 0.0))
        self.cut = [Stage(whole, i, n) for i in numbers]
        self.n_micro = n_micro
        torch.manual_seed(self.me)
        self.store = None
        if job:
            self.store = ct.attach(
                self.cut,
                job,
                micro_batches=n_micro * len(numbers),
                pool=options.get("pool"),
                units=units_in(self.cut) if "pool" in options else (),
                chunk_elems=256,
            )
            self.optimizer: Any = self.store.optimizer(lr=1e-2, grad_scale=1.0)
        else:
            parameters = [p for stage in self.cut for p in stage.parameters()]
            self.optimizer = torch.optim.AdamW(parameters, lr=1e-2)
        self.parts = [
            pipelining.PipelineStage(stage, i, n, torch.device("cpu"))
            for i, stage in zip(numbers, self.cut, strict=True)
        ]

    def step(self, schedule: Any, step: int) -> list[float]:
        x, y = words(step, self.n_micro)
        losses: list[torch.Tensor] = []
        schedule.step(*((x,) if self.me == 0 else ()), target=y, losses=losses)
        return [loss.item() for loss in losses]

    def named(self) -> dict[str, nn.Parameter]:
        return {n: p for stage in self.cut for n, p in stage.named_parameters()}

    def grads(self) -> dict[str, torch.Tensor]:
        if self.store is not None:
            return {name: self.store.read(name, State.GRAD) for name in self.named()}
        return {name: p.grad.clone() for name, p in self.named().items() if p.grad is not None}

    def weights(self) -> dict[str, torch.Tensor]:
        if self.store is not None:
            return {name: self.store.read(name) for name in self.named()}
        return {name: p.detach().clone() for name, p in self.named().items()}


def train(job: str, kind: str, n_micro: int, options: dict[str, Any]) -> Any:
    """Return the losses of each step, which the last rank has, the last gradients and the weights."""
    rank = Rank(job, n_micro, options)
    schedule = schedules.runtime(
        kind,
        rank.parts,
        n_micro,
        loss_fn=cross_entropy,
        recompute=options.get("recompute", 0),
    )
    losses, grads = [], {}
    for step in range(rank.store.step_no if rank.store else 0, N_STEPS):
        losses.append(rank.step(schedule, step))
        if options.get("dies") == step and rank.me == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        grads = grads if rank.store else rank.grads()
        rank.optimizer.step()
        grads = rank.grads() if rank.store else grads
        rank.optimizer.zero_grad()
    weights = rank.weights()
    if rank.store is not None:
        rank.store.close()
    return losses, grads, weights


def one_process(job: str, n_micro: int) -> Any:
    """Return the same of the whole model, whose micro-batches come one after the other."""
    model = Whole()
    store = ct.attach(model, job, micro_batches=n_micro) if job else None
    optimizer: Any = (
        store.optimizer(lr=1e-2) if store else torch.optim.AdamW(model.parameters(), lr=1e-2)
    )
    losses, grads = [], {}
    names = [name for name, _ in model.named_parameters()]
    for step in range(N_STEPS):
        losses.append([])
        for x, y in zip(*(t.chunk(n_micro) for t in words(step, n_micro)), strict=True):
            loss = cross_entropy(model(x), y)
            loss.backward()
            losses[-1].append(loss.item())
        grads = {} if store else {n: p.grad.clone() for n, p in model.named_parameters()}
        optimizer.step()
        grads = {name: store.read(name, State.GRAD) for name in names} if store else grads
        optimizer.zero_grad()
    weights = {n: store.read(n) if store else p.detach() for n, p in model.named_parameters()}
    if store is not None:
        store.close()
    return losses, grads, weights


def with_unused_outputs() -> Any:
    """Train a stage after another one, which does not use the second output of some micro-batches."""


class Bits(TorchCase):
    def check(self, kind: str, world: int, n_micro: int, with_store: bool, **options: Any) -> None:
        job = f"{self.name}-{kind}-{world}" if with_store else ""
        if job:
            self.addCleanup(self.remove, job)
            self.addCleanup(self.remove, job + "-one")
        got = run_ranks(world, train, job, kind, n_micro, options)
        losses, grads, weights = one_process(job and job + "-one", n_micro)
        self.assertEqual(got[-1][0], losses)
        for what, wanted, n in (("gradient", grads, 1), ("weight", weights, 2)):
            found = {name: values for rank in got for name, values in rank[n].items()}
            self.assertEqual(found.keys(), wanted.keys())
            for name, values in wanted.items():
                self.assertTrue(torch.equal(found[name], values), f"{what} of {name}")

    def test_plain(self) -> None:
        for kind, world, n_micro, options in (
            ("1f1b", 2, 4, {}),
            ("gpipe", 2, 4, {"recompute": 1}),
            ("zb-h1", 2, 4, {}),
            ("zb-h1", 3, 6, {"recompute": True}),
            ("shifted", 2, 8, {}),
            ("shifted", 3, 6, {}),
            ("early", 3, 6, {"recompute": 1}),
            ("interleaved", 2, 4, {"virtual": 2, "recompute": [1, 0, True, 1]}),
        ):
            with self.subTest(kind, world=world, **options):
                self.check(kind, world, n_micro, False, **options)

    def test_store(self) -> None:
        for kind, world, n_micro, options in (
            ("1f1b", 2, 4, {"recompute": True}),
            ("zb-h1", 2, 4, {"pool": "30%"}),
            ("zb-h1", 3, 6, {}),
            ("shifted", 2, 8, {"pool": "30%"}),
            ("shifted", 3, 6, {}),
            ("interleaved", 2, 4, {"virtual": 2}),
        ):
            with self.subTest(kind, world=world, **options):
                self.check(kind, world, n_micro, True, **options)


if __name__ == "__main__":
    unittest.main()
