# SPDX-License-Identifier: Apache-2.0
"""One rank of a small job, which can die or raise at a chosen place."""

from __future__ import annotations

import copy
import hashlib
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any
from unittest import mock

import cistern.torch as ct
import torch
from cistern import State
from cistern.torch import nodes
from torch import nn
from torch.utils.checkpoint import checkpoint

WIDTH = 96
N_BLOCKS = 13
CHUNK_ELEMS = 4096
N_STEPS = 3
WATCHED = 5  # The block whose hooks can fail.


@dataclass(frozen=True)
class Fault:
    """What happens when a rank comes to a place for the nth time in the second step."""

    place: str
    kills: bool  # Else an exception.
    nth: int = 1


@dataclass(frozen=True)
class Cell:
    """A job. ``recompute`` is None or whether checkpoints are reentrant."""

    job: str
    world: int
    pool: int
    recompute: bool | None
    micro_batches: int
    is_reference: bool = False  # Rank 0 compares its gradients with those of plain torch.


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.dropout(self.down(self.up(self.norm(x)).relu()))


class Model(nn.Module):
    def __init__(self, recompute: bool | None) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(N_BLOCKS))
        self.head = nn.Linear(WIDTH, WIDTH)
        self.recompute = recompute

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.requires_grad_()  # Reentrant checkpoints need this.
        for block in self.blocks:
            if self.recompute is None:
                x = block(x)
            else:
                x = checkpoint(block, x, use_reentrant=self.recompute)
        return self.head(x)


def model_of(cell: Cell) -> Model:
    torch.manual_seed(1)
    return Model(cell.recompute).to(torch.bfloat16)


def loss_of(model: nn.Module, cell: Cell, rank: int, step: int, micro: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 * step + 10 * rank + micro)
    batch = torch.randn(4, WIDTH, generator=generator).to(torch.bfloat16)
    loss: torch.Tensor = model(batch).float().square().mean() / cell.micro_batches
    return loss


def seed(rank: int, step: int) -> None:
    torch.manual_seed(7 + 10 * step + rank)


class Trap:
    """Fails at the place of ``fault``, once."""

    def __init__(self, fault: Fault | None, store: ct.Store) -> None:
        self.fault = fault
        self.store = store
        self.n_reached = 0

    def reach(self, place: str) -> None:
        if self.fault is None or place != self.fault.place or self.store.step_no != 1:
            return
        self.n_reached += 1
        if self.n_reached != self.fault.nth:
            return
        if self.fault.kills:
            os.kill(os.getpid(), signal.SIGKILL)
        raise OverflowError

    def around(self, owner: Any, name: str) -> None:
        """Reach two places: before and after the function ``name`` of ``owner`` runs."""
        function: Callable[..., Any] = getattr(owner, name)
        place = f"{getattr(owner, '__name__', 'job')}.{name}"

        def trapped(*arguments: Any) -> Any:
            self.reach("before " + place)
            result = function(*arguments)
            self.reach("after " + place)
            return result

        patch = staticmethod(trapped) if isinstance(owner, type) else trapped
        mock.patch.object(owner, name, patch).start()

    def set(self, model: Model) -> None:
        block = model.blocks[WATCHED]
        block.register_forward_pre_hook(lambda *_: self.reach("forward pre-hook"))
        block.up.register_forward_hook(lambda *_: self.reach("inside forward"))
        block.register_forward_hook(lambda *_: self.reach("forward hook"))
        block.up.weight.register_hook(lambda _: self.reach("gradient hook"))
        self.around(nodes.Leave, "backward")
        self.around(nodes.Enter, "backward")
        self.around(self.store.job, "accumulate")
        self.around(self.store.job, "step")


def train(cell: Cell, rank: int, fault: Fault | None, plain: bool, results: Connection) -> None:
    """Train as one rank. Send the losses, and a digest of the states in the end.

    With ``plain``, gradients of each step are compared with those of plain torch.
    """
    torch.set_num_threads(1)
    model = model_of(cell)
    twin = copy.deepcopy(model) if plain else None
    store = ct.attach(
        model,
        cell.job,
        rank=rank,
        world=cell.world,
        device="cpu",
        pool=cell.pool,
        micro_batches=cell.micro_batches,
        chunk_elems=CHUNK_ELEMS,
    )
    Trap(fault, store).set(model)
    optimizer = store.optimizer(lr=1e-2, clip_norm=1.0)
    losses = []
    while (step := store.step_no) < N_STEPS:
        if plain:
            expected = plain_step(twin, store, cell, step)

        def closure(step: int = step) -> list[torch.Tensor]:
            parts = []
            for micro in range(cell.micro_batches):
                parts.append(loss_of(model, cell, rank, step, micro))
                parts[-1].backward()
            return parts

        seed(rank, step)
        try:
            losses.append([loss.item() for loss in optimizer.step(closure)])
        except OverflowError:
            store.sync()
            continue
        if plain:
            compare(store, expected, losses[-1])
        if cell.is_reference:  # Gradients cannot be read when another rank is in the next step.
            store.sync()
    results.send((losses, digest(store)))
    store.close()


def digest(store: ct.Store) -> str:
    sum_of_bytes = hashlib.sha256()
    for name, _ in store.model.named_parameters():
        for state in (State.MASTER, State.EXP_AVG, State.EXP_AVG_SQ):
            sum_of_bytes.update(store.read(name, state).numpy().tobytes())
    return sum_of_bytes.hexdigest()


Expected = tuple[list[float], dict[str, torch.Tensor], bool]


def plain_step(twin: nn.Module, store: ct.Store, cell: Cell, step: int) -> Expected:
    """Return the losses of rank 0, the sums of the gradients, and whether these are exact."""
    for name, parameter in twin.named_parameters():
        parameter.data.copy_(store.read(name))
    losses = []
    sums = {name: torch.zeros_like(p, dtype=torch.float32) for name, p in twin.named_parameters()}
    for rank in range(cell.world):
        seed(rank, step)
        for micro in range(cell.micro_batches):
            twin.zero_grad()
            loss = loss_of(twin, cell, rank, step, micro)
            loss.backward()
            if rank == 0:
                losses.append(loss.item())
            for name, parameter in twin.named_parameters():
                sums[name] += parameter.grad.float()
    return losses, sums, cell.world * cell.micro_batches == 1


def compare(store: ct.Store, expected: Expected, losses: list[float]) -> None:
    """Raise AssertionError if losses have other bits, or gradients are further off than rounding."""
    plain_losses, sums, exact = expected
    assert losses == plain_losses, (losses, plain_losses)
    for name, plain in sums.items():
        error = (store.read(name, State.GRAD).float() - plain).abs().max()
        assert error <= (0 if exact else 0.01 * plain.abs().max()), (name, error)
