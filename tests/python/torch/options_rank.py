# SPDX-License-Identifier: Apache-2.0
"""A rank of a job with random options of ``attach``, as tests/e2e/revival_torch.sh runs it.

    options_rank.py SEED JOB RANK WORLD STEPS RESULT

It trains up to STEPS steps and writes the losses to RESULT.losses, and digests of the states to
RESULT.states. WORLD 1: the job is to be reshaped, or it is the base of others. RESULT "-": it prints
the options.
"""

from __future__ import annotations

import hashlib
import os
import random
import sys
from pathlib import Path
from typing import Any

import cistern.torch as ct
import torch
from cistern import State
from torch import nn
from torch.utils.checkpoint import checkpoint

WIDTH = 96


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
    def __init__(self, n_blocks: int, recompute: bool | None) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(n_blocks))
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


class Options:
    """What the seed chooses. The first choices are those of a job that cannot be changed later."""

    def __init__(self, seed: int, folder: Path) -> None:
        choose = random.Random(seed).choice
        self.n_blocks = choose([3, 5])
        self.recompute = choose([None, None, True, False])
        self.dtypes = choose(["bf16", "bf16", "fp32", "norms"])
        self.groups = choose([False, False, True])
        self.frozen = choose(["", "", "", "0", "base"])
        self.kept: dict[str, Any] = {}  # Options that stay when a job is reshaped.
        rule = choose(["adamw", "adamw", "adam", "lion", "sgd", "muon"])
        self.kept["optimizer"] = rule
        if rule == "muon" and choose([True, False]):
            self.kept["muon"] = lambda name, parameter: parameter.ndim == 2 and "up" in name
        if choose([True, False, False]):
            self.kept["masters"] = "split"
        if self.groups:
            self.kept["param_group"] = lambda name, _: int("norm" in name)
        self.reshaped = self.frozen != "base" and choose([True, False, False])
        self.moments = choose(["fp32", "fp32", "bf16", "mx8"])
        self.overlap = choose(["commit", "commit", "early", "delayed"])
        self.micro_batches = choose([1, 1, 2, 3])
        self.others: dict[str, Any] = {
            "moments": self.moments,
            "overlap": self.overlap,
            "micro_batches": self.micro_batches,
            "device": choose(["cpu", "cpu", "paced"]),
            "tokens": choose([0, 4]),
            "timeout_ms": choose([0, 60000]),
            "ttl_s": choose([0, 600]),
        }
        pool = choose([0, 0, "200%", "300%", "600K", 1 << 20])
        others = self.others
        if choose([True, False, False, False]):
            others["units"] = [f"blocks.{n}" for n in range(self.n_blocks)]
        if choose([True, False, False, False]):
            others["chunk_elems"] = choose([4096, 20000, 65536])
        if choose([True, False, False, False]):
            others["config"] = folder / "options.json"
            others["config"].write_text(f'{{"memory": {{"pool": "{pool}"}}}}' if pool else "{}")
        else:
            others["pool"] = pool
        self.plans = self.frozen != "base" and choose([True, False, False, False])
        self.rates, self.plan_file = folder.parent / "rates.json", folder / "plan.json"
        self.pool = pool

    def model(self) -> nn.Module:
        torch.manual_seed(1)
        model = Model(self.n_blocks, self.recompute)
        if self.dtypes != "fp32":
            for module in model.modules():
                if self.dtypes == "bf16" or not isinstance(module, nn.LayerNorm):
                    for parameter in module.parameters(recurse=False):
                        parameter.data = parameter.data.bfloat16()
        if self.dtypes == "norms":
            for module in model.modules():
                if isinstance(module, nn.LayerNorm):
                    module.register_forward_pre_hook(lambda _, args: (args[0].float(),))
                    module.register_forward_hook(lambda _, args, output: output.bfloat16())
        if self.frozen == "0":
            model.blocks[0].requires_grad_(False)
        if self.frozen == "base":
            model.blocks.requires_grad_(False)
        return model

    def plan(self, model: nn.Module, world: int) -> None:
        """Let the job follow a plan that was made before it."""
        given = {key: self.others[key] for key in ("moments", "overlap", "micro_batches")}
        units = self.others.get("units", ())
        ct.plan(
            model,
            tokens=4,
            pool=0 if isinstance(self.pool, str) and "%" in self.pool else self.pool,
            world=world,
            units=units,
            rates=self.rates,
            save=self.plan_file,
            **given,
            **self.kept,
        )
        self.others |= {"plan_file": self.plan_file, "tokens": 4}
        self.others.pop("chunk_elems", None)
        self.others.pop("config", None)
        self.others["pool"] = 0


def input_of(options: Options, rank: int, step: int, micro: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * step + 10 * rank + micro)
    x = torch.randn(4, WIDTH, generator=generator)
    return x if options.dtypes == "fp32" else x.bfloat16()


def digest(store: ct.Store) -> str:
    text = ""
    for name, parameter in store.model.named_parameters():
        states = [State.MASTER, State.EXP_AVG, State.EXP_AVG_SQ] if parameter.requires_grad else []
        for state in states:
            try:
                value = store.read(name, state).contiguous().view(torch.uint8)
            except Exception as error:  # noqa: BLE001 (such as a state that the optimizer lacks)
                text += f"{name} {state.name} {error}\n"
                continue
            text += f"{name} {state.name} {hashlib.sha256(value.numpy().tobytes()).hexdigest()}\n"
        weight = store.read(name).contiguous().view(torch.uint8).numpy().tobytes()
        text += f"{name} {hashlib.sha256(weight).hexdigest()}\n"
    return text


def train(options: Options, store: ct.Store, rank: int, n_steps: int) -> list[str]:
    limit = 0.0 if options.overlap == "early" else 1.0
    groups = [{}, {"weight_decay": 0.0, "lr": 2e-3}] if options.groups else []
    optimizer = store.optimizer(lr=1e-3, clip_norm=limit, groups=groups)
    losses = []
    while (step := store.step_no) < n_steps:

        def closure(step: int = step) -> torch.Tensor:
            torch.manual_seed(7 + 10 * step + rank)  # Also if the step is done again.
            total = torch.zeros(())
            for micro in range(options.micro_batches):
                output = store.model(input_of(options, rank, step, micro))
                loss = output.float().square().mean() / options.micro_batches
                loss.backward()
                total += loss.detach()
            return total

        losses.append(f"{step} {optimizer.step(closure).item().hex()}")
    return losses


def main() -> None:
    seed, job, rank, world, n_steps, result = sys.argv[1:]
    rank, world, n_steps = int(rank), int(world), int(n_steps)
    folder = Path(os.environ["CST_TEST_FOLDER"]) / f"rank{rank}"
    folder.mkdir(exist_ok=True)
    options = Options(int(seed), folder)
    if result == "-":
        print(f"n_blocks={options.n_blocks} recompute={options.recompute} dtypes={options.dtypes}"
              f" frozen={options.frozen} reshaped={options.reshaped} plan={options.plans}"
              f" {options.kept} {options.others}")  # fmt: skip
        return
    torch.set_num_threads(1)
    model = options.model()
    given: dict[str, Any] = {"rank": rank, "world": world} | options.kept
    if job == "base":
        model.requires_grad_(False)
    elif world == 1:
        given |= {"moments": "mx8", "micro_batches": options.micro_batches}
    else:
        if options.plans:
            options.plan(model, world)
        given |= options.others | {"reshape": options.reshaped and "again" not in os.environ}
        given["base"] = "base" if options.frozen == "base" else None
    store = ct.attach(model, job, **given)
    if job == "base":
        store.close()
        return
    losses = train(options, store, rank, n_steps)
    store.sync()
    Path(result + ".losses").write_text("\n".join(losses) + "\n")
    Path(result + ".states").write_text(digest(store))
    store.close()


main()
