# SPDX-License-Identifier: Apache-2.0
"""Schedules of `cistern schedule` in ranks of torch: the bits of one process, with a store and without."""

from __future__ import annotations

import functools
import json
import os
import re
import signal
import subprocess
import tempfile
import unittest
from pathlib import Path
from typing import Any
from unittest import mock

import cistern.torch as ct
import test_parallel_stages
import torch
import torch.distributed as dist
from cistern import State
from cistern.torch import parallel
from cistern.torch.parallel import pipelining as runtimes
from cistern.torch.parallel import schedules
from cistern.torch.parallel.recomputation import Recomputed
from gloo import run_ranks
from models import TorchCase
from test_schedules import Stage as Unbound
from torch import nn
from torch.distributed import pipelining
from torch.distributed.pipelining import schedules as torch_schedules

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
        if options.get("v_shaped"):
            numbers = [self.me, n - 1 - self.me]
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


def logged(kinds: list[str], n_micro: int) -> list[list[str]]:
    """Return by kind what this rank has done in the second of two steps."""
    return [order_of(kind, n_micro) for kind in kinds]


def order_of(kind: str, n_micro: int) -> list[str]:
    log: list[str] = []
    virtual = 2 if kind == "interleaved" else 1

    def noted(name: str, letter: str) -> Any:
        plain = getattr(pipelining.PipelineStage, name)

        @functools.wraps(plain)
        def function(stage: Any, micro: int, *args: Any, **kwargs: Any) -> Any:
            is_split = not kwargs.get("full_backward", True)
            log.append(f"{stage.stage_index}{'I' if is_split else letter}{micro}")
            return plain(stage, micro, *args, **kwargs)

        return mock.patch.object(pipelining.PipelineStage, name, function)

    plain_again = Recomputed.again

    def again(module: Recomputed, *args: Any) -> None:
        log.append(f"{module.name}R")
        plain_again(module, *args)

    with (
        noted("forward_one_chunk", "F"),
        noted("backward_one_chunk", "B"),
        noted("backward_weight_one_chunk", "W"),
        mock.patch.object(Recomputed, "again", again),
    ):
        rank = Rank("", n_micro, {"virtual": virtual})
        schedule = schedules.runtime(kind, rank.parts, n_micro, loss_fn=cross_entropy)
        rank.step(schedule, 0)
        log.clear()
        rank.step(schedule, 1)
    return log


class Sender(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.aside = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.up(x), self.aside(x)


class Receiver(nn.Module):
    """Does not use what it is given second in some micro-batches."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.down(x)
        return result + y.tanh() if bool(x[0, 0] > 0) else result


def squares(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (x - y).square().sum()


def unused_output(kind: str) -> dict[str, torch.Tensor]:
    torch.manual_seed(1)
    modules = [Sender(), Receiver()]
    me = dist.get_rank()
    stage = pipelining.PipelineStage(modules[me], me, 2, torch.device("cpu"))
    schedule = schedules.runtime(kind, stage, 4, loss_fn=squares)
    generator = torch.Generator().manual_seed(2)
    x, y = torch.randn(8, 4, generator=generator), torch.randn(8, 4, generator=generator)
    schedule.step(*((x,) if me == 0 else ()), target=y)
    return {name: p.grad for name, p in modules[me].named_parameters()}


def refused() -> list[str]:
    """Return what is said of schedules that are not for this pipeline of two ranks."""
    rank, said = Rank("", 4, {}), []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "list.csv"
        for kind, text, options in (
            ("zigzag", "", {}),
            (path, "0F0,0B0\n1F0,1B0\n", {}),
            (path, "1F0,1F1,1F2,1F3,1B0,1B1,1B2,1B3\n0F0,0F1,0F2,0F3,0B0,0B1,0B2,0B3\n", {}),
            (path, "0F0,0B0\n1B0,1F0\n", {}),
            ("1f1b", "", {"recompute": [1]}),
            ("1f1b", "", {"recompute": -1}),
        ):
            path.write_text(text)
            try:
                schedules.runtime(kind, rank.parts, 4, loss_fn=cross_entropy, **options)
                said.append("")
            except ValueError as error:
                said.append(str(error))
    return said


def not_the_list() -> str:
    """Return what is said when torch leaves out a repeated forward pass."""
    rank = Rank("", 1, {})
    others = (torch_schedules.UNSHARD, torch_schedules.RESHARD)

    def without(order: Any, _: Any) -> list[Any]:
        return [action for action in order if action.computation_type not in others]

    with tempfile.NamedTemporaryFile("w", suffix=".csv") as file:
        file.write("0F0,0UNSHARD0,0B0\n")
        file.flush()
        with mock.patch.object(runtimes, "_with_repeats", without):
            schedule = schedules.runtime(file.name, rank.parts, 1, loss_fn=cross_entropy)
    try:
        rank.step(schedule, 0)
    except RuntimeError as error:
        return str(error)
    return ""


def of_transformers(job: str, kind: str, schedule_name: str) -> list[tuple[float, float]]:
    """Return the losses and norms of a rank that has a stage of a model of transformers."""
    me, n = dist.get_rank(), test_parallel_stages.N_MICRO
    stage = parallel.stage_of(test_parallel_stages.model_of(kind), me, 2)
    store = ct.attach(stage, job, micro_batches=n)
    part = pipelining.PipelineStage(stage, me, 2, torch.device("cpu"))
    loss_fn = test_parallel_stages.cross_entropy
    schedule = schedules.runtime(schedule_name, part, n, loss_fn=loss_fn)
    optimizer = store.optimizer(lr=3e-3, clip_norm=0.5)
    results = []
    for step in range(test_parallel_stages.N_STEPS):
        x, y = test_parallel_stages.batch(step)
        losses: list[torch.Tensor] = []
        schedule.step(*((x,) if me == 0 else ()), target=y, losses=losses)
        optimizer.step()
        results.append((sum(loss.item() for loss in losses), optimizer.norm.item()))
    store.close()
    return results


class Bits(TorchCase):
    def check(self, kind: str, world: int, n_micro: int, with_store: bool, **options: Any) -> None:
        job = f"{self.name}-{kind}-{world}" if with_store else ""
        if job:
            self.addCleanup(self.remove, job)
            self.addCleanup(self.remove, job + "-one")
        got = run_ranks(world, train, job, kind, n_micro, options)
        losses, grads, weights = one_process(job and job + "-one", n_micro)
        self.assertEqual(next(found for found, _, _ in got if found[0]), losses)
        for what, wanted, n in (("gradient", grads, 1), ("weight", weights, 2)):
            found = {name: values for rank in got for name, values in rank[n].items()}
            self.assertEqual(found.keys(), wanted.keys())
            for name, values in wanted.items():
                self.assertTrue(torch.equal(found[name], values), f"{what} of {name}")

    def test_plain(self) -> None:
        for kind, world, n_micro, options in (
            ("gpipe", 2, 4, {"recompute": 1}),
            ("zb-h1", 2, 4, {}),
            ("zb-h1", 3, 6, {"recompute": 2}),
            ("shifted", 2, 8, {}),
            ("shifted", 3, 6, {}),
            ("interleaved", 2, 4, {"virtual": 2, "recompute": [1, 0, True, 1]}),
        ):
            with self.subTest(kind, world=world, **options):
                self.check(kind, world, n_micro, False, **options)

    def test_store(self) -> None:
        for kind, world, n_micro, options in (
            ("zb-h1", 1, 4, {}),
            ("1f1b", 2, 4, {"recompute": True}),
            ("zb-h1", 2, 4, {"pool": "30%"}),
            ("zb-h1", 3, 6, {}),
            ("shifted", 2, 8, {"pool": "30%"}),
            ("shifted", 3, 6, {}),
            ("interleaved", 2, 4, {"virtual": 2}),
        ):
            with self.subTest(kind, world=world, **options):
                self.check(kind, world, n_micro, True, **options)

    def test_of_a_file(self) -> None:
        """Of torch's form, with forward passes that are repeated; stage 1 has none of them."""
        with tempfile.NamedTemporaryFile("w", suffix=".csv") as file:
            file.write("0F0,0F1,,0UNSHARD0,0B0,0F2,0UNSHARD1,0B1,0B2,0F3,0B3\n")
            file.write(",1F0,1I0,1F1,1W0,1I1,1W1,1F2,1B2,1F3,1B3\n")
            file.flush()
            self.check(file.name, 2, 4, False)

    def test_v_shaped_lists_of_torch(self) -> None:
        options = {"virtual": 2, "v_shaped": True}
        for kind in (
            torch_schedules.ScheduleZBVZeroBubble,
            torch_schedules.ScheduleDualPipeV,
        ):
            with self.subTest(kind.__name__), tempfile.NamedTemporaryFile(suffix=".csv") as file:
                theirs = kind([Unbound(i, 4, 0, 2) for i in (0, 3)], 4, loss_fn=cross_entropy)
                theirs._dump_csv(file.name, "compute_only")
                self.check(file.name, 2, 4, False, **options)

    def test_dropout_is_repeated(self) -> None:
        options = {"dropout": 0.3}
        want = run_ranks(2, train, "", "shifted", 4, options | {"recompute": [0, 0]})
        for recompute in (0, [2, 1]):
            got = run_ranks(2, train, "", "shifted", 4, options | {"recompute": recompute})
            self.assertEqual(got[1][0], want[1][0])
            for (_, _, mine), (_, _, wanted) in zip(got, want, strict=True):
                for name, values in wanted.items():
                    self.assertTrue(torch.equal(mine[name], values), name)

    def test_ranks_that_are_killed_go_on_with_the_same_bits(self) -> None:
        for kind in ("zb-h1", "shifted"):
            for name in ("a", "b"):
                self.addCleanup(self.remove, f"{self.name}{kind}{name}")
            want = run_ranks(2, train, f"{self.name}{kind}a", kind, 4, {})
            with self.assertRaisesRegex(
                AssertionError, "rank 1: it says nothing|rank 1 (died|disconnected) in step 1"
            ):
                run_ranks(2, train, f"{self.name}{kind}b", kind, 4, {"dies": 1})
            got = run_ranks(2, train, f"{self.name}{kind}b", kind, 4, {})
            for (_, _, mine), (_, _, wanted) in zip(got, want, strict=True):
                for name, values in wanted.items():
                    self.assertTrue(torch.equal(mine[name], values), name)

    def test_an_output_that_is_not_used(self) -> None:
        for kind in ("1f1b", "zb-h1"):
            torch.manual_seed(1)
            first, last = Sender(), Receiver()
            generator = torch.Generator().manual_seed(2)
            x, y = torch.randn(8, 4, generator=generator), torch.randn(8, 4, generator=generator)
            used = []
            for a, b in zip(x.chunk(4), y.chunk(4), strict=True):
                given = first(a)
                used.append(bool(given[0][0, 0] > 0))
                squares(last(*given), b).backward()
            self.assertEqual(set(used), {True, False})
            got = run_ranks(2, unused_output, kind)
            for module, grads in zip((first, last), got, strict=True):
                for name, p in module.named_parameters():
                    self.assertTrue(torch.equal(grads[name], p.grad), name)


class Models(TorchCase):
    """Models of transformers, one with a tied embedding in two stages."""

    def test_losses_and_norms_are_those_of_one_process(self) -> None:
        for kind, name in (("llama", "zb-h1"), ("qwen2", "zb-h1"), ("qwen2", "shifted")):
            with self.subTest(kind, schedule=name):
                job = f"{self.name[:30]}-{kind}-{name}"
                self.addCleanup(self.remove, job)
                got = run_ranks(2, of_transformers, job, kind, name)
                wanted = test_parallel_stages.one_process(kind)
                for (loss, norm), (a, b) in zip(got[1], wanted, strict=True):
                    self.assertAlmostEqual(loss, a, delta=1e-4 * a)
                    self.assertAlmostEqual(norm, b, delta=1e-4 * b)


class Orders(unittest.TestCase):
    def test_what_runs_is_the_list(self) -> None:
        kinds = ["gpipe", "1f1b", "interleaved", "zb-h1", "early", "shifted"]
        got = run_ranks(2, logged, kinds, 8)
        for i, kind in enumerate(kinds):
            command = ["cistern", "schedule", kind, "--json", "--micro-batches", "8"]
            command += ["--ranks", "2", "--stages", "4" if kind == "interleaved" else "2"]
            text = subprocess.run(command, capture_output=True, check=True).stdout
            for mine, actions in zip(got, json.loads(text)["ranks"], strict=True):
                # Of a repeated pass, the module knows the stage.
                wanted = [re.sub(r"^(\d+)R\d+$", r"stage \1R", action) for action in actions]
                self.assertEqual(mine[i], wanted, kind)


class Refusals(unittest.TestCase):
    def test_what_is_not_for_this_pipeline(self) -> None:
        words = (
            "zigzag.*gpipe.*1f1b.*zb-h1",
            "has 1 micro-batches, and here are 4",
            r"gives rank \d the stages \[\d\], and here are \[\d\]",
            "1B0",
            "recompute has 1 numbers, and there are 2 stages",
            "recompute is a number of layers of each stage",
        )
        for said in run_ranks(2, refused):
            for text, pattern in zip(said, words, strict=True):
                self.assertRegex(text, f"(?s){pattern}")

    def test_a_runtime_that_does_something_else_is_told(self) -> None:
        (said,) = run_ranks(1, not_the_list)
        self.assertRegex(said, "it has run 0F0,0B0 in place of 0F0,0R0,0B0")

    def test_another_torch_is_told(self) -> None:
        self.addCleanup(runtimes.self_test.cache_clear)
        owner = torch_schedules._PipelineScheduleRuntime
        for patch in (
            mock.patch.object(torch_schedules, "_Action", None),
            mock.patch.object(owner, "_load_csv", lambda self, path: None),
            mock.patch.object(owner, "register_custom_function", lambda self, function: None),
            mock.patch.object(pipelining.PipelineStage, "backward_maybe_with_nosync", print),
        ):
            runtimes.self_test.cache_clear()
            words = f"torch {re.escape(torch.__version__)}, .*use that"
            with patch, self.assertRaisesRegex(ImportError, words):
                runtimes.self_test()
        runtimes.self_test()


if __name__ == "__main__":
    unittest.main()
