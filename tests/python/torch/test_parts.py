# SPDX-License-Identifier: Apache-2.0
"""Ranks that have parts of a model: the same losses and norms as one process that has all of it."""

from __future__ import annotations

import itertools
import json
import os
import re
import tempfile
import unittest
import warnings
from collections.abc import Iterator
from typing import Any

import cistern
import cistern.torch as ct
import compared
import torch
import torch.distributed as dist
from gloo import run_ranks
from models import TorchCase
from safetensors.torch import save_file
from torch import nn
from torch.distributed import pipelining
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

    def losses_of(step: int) -> Iterator[torch.Tensor]:
        for x, y in (batch(step, rank) for rank in range(n_data)):
            yield (model(x) - y).square().mean()

    return compared.one_process(model, N_STEPS, losses_of, n_data, lr=1e-2)


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
        self.check_files(got[0][1])

    def check_files(self, weights: dict[str, torch.Tensor]) -> None:
        """Files have whole tensors, which one process loads with the same bits."""
        with tempfile.TemporaryDirectory() as folder:
            with cistern.Client() as client:
                client.save(self.name, folder)
            path = f"{folder}/step-{N_STEPS:08d}"
            with open(f"{path}/model.safetensors", "rb") as file:
                header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
            whole = mlp().state_dict()
            self.assertEqual(
                {name: entry["shape"] for name, entry in header.items() if name != "__metadata__"},
                {name: list(values.shape) for name, values in whole.items()},
            )
            self.addCleanup(self.remove, self.name + "-one")
            store = ct.attach(mlp(), self.name + "-one", resume=path)
            for name, values in weights.items():
                self.assertTrue(torch.equal(store.read(name), values), name)
            store.close()

    def test_tp_2(self) -> None:
        self.check(1, 2)

    def test_tp_3_has_uneven_parts(self) -> None:
        self.check(1, 3)

    def test_dp_2_tp_2(self) -> None:
        self.check(2, 2)


def freeze(model: nn.Module) -> nn.Module:
    """Freeze the layers that tensor parallelism divides, and train the others."""
    for i in range(1, 3):
        for name in ("up", "down"):
            model.get_submodule(f"{i}.{name}").requires_grad_(False)
    return model


def frozen_parallel(job: str, resume: str | None) -> Any:
    """Train with frozen layers that are divided. Return losses, norms and the weights."""
    model = freeze(mlp())
    plan: dict[str, Any] = {}
    for i in range(1, 4):
        plan |= {f"{i}.up": ColwiseParallel(use_local_output=False), f"{i}.down": RowwiseParallel()}
    parallelize_module(model, init_device_mesh("cpu", (2,)), plan)
    store = ct.attach(model, job, resume=resume)
    results = train(store)
    weights = {name: store.read(name) for name, _ in model.named_parameters()}
    store.close()
    return results, weights


class Frozen(TorchCase):
    def setUp(self) -> None:
        super().setUp()
        for name in ("", "-one", "-two"):
            self.addCleanup(self.remove, self.name + name)

    def plain(self) -> list[tuple[float, float]]:
        model = freeze(mlp())

        def losses_of(step: int) -> Iterator[torch.Tensor]:
            x, y = batch(step)
            yield (model(x) - y).square().mean()

        return compared.summed(compared.one_process(model, N_STEPS, losses_of, lr=1e-2))

    def test_frozen_layers_are_joined_and_cut(self) -> None:
        """They give the losses of one process, and files have them whole: one process and two load them."""
        got = run_ranks(2, frozen_parallel, self.name, None)
        for (loss, norm), (wanted, norm_wanted) in zip(got[0][0], self.plain(), strict=True):
            self.assertAlmostEqual(loss, wanted, delta=1e-4 * wanted)
            self.assertAlmostEqual(norm, norm_wanted, delta=1e-4 * norm_wanted)
        with tempfile.TemporaryDirectory() as folder:
            with cistern.Client() as client:
                client.save(self.name, folder)
            path = f"{folder}/step-{N_STEPS:08d}"
            with open(f"{path}/model.safetensors", "rb") as file:
                header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
            shapes = {name: v["shape"] for name, v in header.items() if name != "__metadata__"}
            self.assertEqual(
                shapes, {name: list(v.shape) for name, v in mlp().state_dict().items()}
            )
            store = ct.attach(freeze(mlp()), self.name + "-one", resume=path)
            for name, values in got[0][1].items():
                self.assertTrue(torch.equal(store.read(name), values), name)
            one = train(store)
            store.close()
            two = run_ranks(2, frozen_parallel, self.name + "-two", path)
        for (loss, _), (wanted, _) in zip(two[0][0], one, strict=True):
            self.assertAlmostEqual(loss, wanted, delta=1e-4 * wanted)


def forgotten_sum(job: str) -> str:
    """Divide the layers around a norm, of which each rank has a part of the gradient. Return what the step raises."""
    mesh = init_device_mesh("cpu", (2,))
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(8, WIDTH), nn.LayerNorm(WIDTH // 2), nn.Linear(WIDTH, 8))
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    store = ct.attach(model, job)
    x, y = batch(0)
    (store.model(x) - y).square().mean().backward()
    try:
        store.optimizer(lr=1e-2).step()
    except RuntimeError as error:
        return str(error)
    finally:
        store.job.close()
    return ""


def killed_once(job: str, dies: bool) -> Any:
    """Train with tensor parallelism; with ``dies``, the ranks end after two steps, as torchrun kills them."""
    model = mlp()
    plan = {"1.up": ColwiseParallel(use_local_output=False), "1.down": RowwiseParallel()}
    parallelize_module(model, init_device_mesh("cpu", (2,)), plan)
    store = ct.attach(model, job)
    optimizer = store.optimizer(lr=1e-2)
    while store.step_no < N_STEPS:
        x, y = batch(store.step_no)
        (store.model(x) - y).square().mean().backward()
        if dies and store.step_no == 2:
            os._exit(0)
        optimizer.step()
    weights = {name: store.read(name) for name, _ in model.named_parameters()}
    store.close()
    return weights


def whole_values(job: str, path: str) -> Any:
    """Give divided parameters whole values, and look at them. Return the errors of this rank."""
    mesh = init_device_mesh("cpu", (2,))
    model = mlp()
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    plan = {"1.up": ColwiseParallel(use_local_output=False), "1.down": RowwiseParallel()}
    parallelize_module(model, mesh, plan)
    store = ct.attach(model, job, load=path)
    want = mlp().state_dict()
    loaded = all(torch.equal(store.read(name), values) for name, values in want.items())
    with store.swapped({name: values + 1 for name, values in want.items()}):
        swapped = store.state_dict()["1.up.weight"].full_tensor()
    store.load_state_dict({name: values + 2 for name, values in want.items()})
    store.load_state_dict(store.state_dict())
    written = torch.equal(store.read("1.up.weight"), want["1.up.weight"] + 2)
    # One rank gives up the first step.
    x, y = batch(0)
    try:
        (store.model(x) - y).square().mean().backward()
        store.optimizer(lr=1e-2).step() if dist.get_rank() else store.sync()
    except ct.StepVoid:
        store.sync()
    store.close()
    return loaded, torch.equal(swapped, want["1.up.weight"] + 1), written


def one_stage(job: str) -> list[str]:
    """Use what one stage alone has. Return the errors."""
    rank = dist.get_rank()
    model = stages(2)[rank]
    store = ct.attach(model, job, param_group=lambda name, _: int("blocks.3" in name))
    optimizer = store.optimizer(lr=1e-2, grad_scale=1.0, groups=[{}, {"weight_decay": 0.0}])
    errors = []
    if rank == 1:
        try:
            with store.changing("blocks.3.up.weight"):
                pass
        except RuntimeError as error:
            errors.append(str(error))
    assert len(optimizer.param_groups) == 2
    store.close()
    return errors


def fails(job: str) -> str:
    """Attach a model without parameters on rank 1."""
    model = nn.ReLU() if dist.get_rank() else mlp()
    try:
        ct.attach(model, job)
    except ValueError as error:
        return str(error)
    return ""


def same_names(job: str) -> list[str]:
    """Attach stages that are numbered from 0."""
    layers = [nn.Linear(8, 8) for _ in range(4)]
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in layers[2 * rank : 2 * rank + 2]))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ct.attach(model, job).close()
    return [str(warning.message) for warning in caught]


class Faults(TorchCase):
    def test_whole_values(self) -> None:
        self.addCleanup(self.remove, self.name)
        with tempfile.TemporaryDirectory() as folder:
            save_file(mlp().state_dict(), f"{folder}/model.safetensors")
            for result in run_ranks(2, whole_values, self.name, folder):
                self.assertEqual(result, (True, True, True))

    def test_one_stage(self) -> None:
        self.addCleanup(self.remove, self.name)
        errors = run_ranks(2, one_stage, self.name)
        self.assertEqual(errors[0], [])
        self.assertRegex(errors[1][0], "some ranks do not have it.*Store.write")

    def test_a_rank_without_a_part(self) -> None:
        told, own = run_ranks(2, fails, self.name)
        self.assertRegex(told, "rank 1 has no part of the model: .*no parameters")
        self.assertRegex(own, "no parameters")

    def test_other_values_are_told(self) -> None:
        self.addCleanup(self.remove, self.name)
        first, second = run_ranks(2, same_names, self.name)
        self.assertEqual(first, [])
        self.assertRegex(second[0], "'0.weight', have other values than .* on rank 0.*whole model")

    def test_a_forgotten_sum_is_told(self) -> None:
        self.addCleanup(self.remove, self.name)
        for text in run_ranks(2, forgotten_sum, self.name):
            self.assertRegex(
                text, r"have '1\.\w+' whole, and compute different gradients .* on rank 1"
            )

    def test_ranks_that_die_go_on_with_the_same_bits(self) -> None:
        for name in ("a", "b"):
            self.addCleanup(self.remove, self.name + name)
        want = run_ranks(2, killed_once, self.name + "a", False)
        with self.assertRaisesRegex(AssertionError, "it says nothing"):
            run_ranks(2, killed_once, self.name + "b", True)
        got = run_ranks(2, killed_once, self.name + "b", False)
        for name, values in want[0].items():
            self.assertTrue(torch.equal(values, got[1][name]), name)


class Tied(nn.Module):
    """A language model whose head has the weights of its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(40, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(4))
        self.head = nn.Linear(WIDTH, 40, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        out: torch.Tensor = self.head(x)
        return out


class FirstStage(nn.Module):
    """The modules of a stage, with the names that they have in the whole model."""

    def __init__(self, whole: Tied, blocks: range) -> None:
        super().__init__()
        self.embed = whole.embed
        self.blocks = nn.ModuleDict({str(i): whole.blocks[i] for i in blocks})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        for block in self.blocks.values():
            x = block(x)
        return x


class MiddleStage(nn.Module):
    def __init__(self, whole: Tied, blocks: range) -> None:
        super().__init__()
        self.blocks = nn.ModuleDict({str(i): whole.blocks[i] for i in blocks})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks.values():
            x = block(x)
        return x


class LastStage(nn.Module):
    """Its head has the name of the embedding that it is tied to."""

    def __init__(self, whole: Tied, blocks: range) -> None:
        super().__init__()
        self.blocks = nn.ModuleDict({str(i): whole.blocks[i] for i in blocks})
        self.embed = nn.Linear(WIDTH, 40, bias=False)
        self.embed.weight = whole.embed.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks.values():
            x = block(x)
        out: torch.Tensor = self.embed(x)
        return out


def tied() -> Tied:
    torch.manual_seed(5)
    return Tied()


N_MICRO = 6


def words(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    whole = torch.randint(40, (N_MICRO * 2, 9), generator=generator)
    return whole[:, :-1], whole[:, 1:]


def cross_entropy(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten()) / N_MICRO


def stages(n: int) -> list[nn.Module]:
    """Return the stages of the tied model, cut into ``n``."""
    whole = tied()
    borders = [4 * i // n for i in range(n + 1)]
    ranges = [range(a, b) for a, b in itertools.pairwise(borders)]
    return [
        FirstStage(whole, ranges[0]),
        *(MiddleStage(whole, between) for between in ranges[1:-1]),
        LastStage(whole, ranges[-1]),
    ]


def pipeline(job: str, kind: str, n_virtual: int, options: dict[str, Any]) -> Any:
    """Train as a stage of a pipeline of torch. Return losses and norms, and all weights of this rank."""
    rank, world = dist.get_rank(), dist.get_world_size()
    cut = stages(world * n_virtual)
    mine = [rank + world * i for i in range(n_virtual)]
    model = [cut[i] for i in mine]
    schedule_of: Any = getattr(pipelining, kind)
    store = ct.attach(model, job, micro_batches=N_MICRO * n_virtual, **options)
    parts = [
        pipelining.PipelineStage(cut[i], i, world * n_virtual, torch.device("cpu")) for i in mine
    ]
    schedule = schedule_of(
        parts if n_virtual > 1 else parts[0], N_MICRO, loss_fn=cross_entropy, scale_grads=False
    )
    optimizer = store.optimizer(lr=1e-2, clip_norm=0.5, grad_scale=1.0)
    results = []
    for step in range(N_STEPS):
        x, y = words(step)
        losses: list[torch.Tensor] = []
        given = (x,) if rank == 0 else ()
        schedule.step(*given, target=y, losses=losses)
        optimizer.step()
        results.append((sum(loss.item() for loss in losses), optimizer.norm.item()))
    weights = {name: store.read(name) for name, _ in store.model.named_parameters()}
    store.close()
    return results, weights


def plain_steps() -> list[tuple[float, float]]:
    model = tied()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    results = []
    for step in range(N_STEPS):
        total = 0.0
        for x, y in zip(*(t.chunk(N_MICRO) for t in words(step)), strict=True):
            loss = cross_entropy(model(x), y)
            loss.backward()
            total += loss.item()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5).item()
        optimizer.step()
        optimizer.zero_grad()
        results.append((total, norm))
    return results


class Pipeline(TorchCase):
    def check(self, world: int, kind: str, n_virtual: int = 1, **options: Any) -> Any:
        self.addCleanup(self.remove, self.name)
        got = run_ranks(world, pipeline, self.name, kind, n_virtual, options)
        for (loss, norm), (_, every_norm), (wanted, norm_wanted) in zip(
            got[-1][0], got[0][0], plain_steps(), strict=True
        ):
            self.assertAlmostEqual(loss, wanted, delta=1e-4 * wanted)
            self.assertAlmostEqual(norm, norm_wanted, delta=1e-4 * norm_wanted)
            self.assertEqual(norm, every_norm)
        return got

    def test_1f1b_with_a_tied_embedding(self) -> None:
        self.check(2, "Schedule1F1B")

    def test_gpipe(self) -> None:
        self.check(3, "ScheduleGPipe")

    def test_interleaved(self) -> None:
        self.check(2, "ScheduleInterleaved1F1B", n_virtual=2)

    def test_the_smallest_pool(self) -> None:
        lacks = r"share 'embed.weight', whose gradient waits .*: a pool of (\d+) bytes lacks (\d+) bytes"
        self.addCleanup(self.remove, self.name)
        found = None
        # The other rank may be the first to tell, and then says only that the job was removed.
        for _ in range(5):
            with self.assertRaises(AssertionError) as raised:
                run_ranks(2, pipeline, self.name, "Schedule1F1B", 1, {"pool": "120%"})
            self.remove(self.name)  # Rank 0 may have been killed before it removed its job.
            found = re.search(lacks, str(raised.exception))
            if found is not None:
                break
            self.assertIn("the job was removed", str(raised.exception))
        assert found is not None
        self.check(2, "Schedule1F1B", pool=int(found[1]) + int(found[2]))


if __name__ == "__main__":
    unittest.main()
