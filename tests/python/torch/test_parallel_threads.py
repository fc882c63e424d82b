# SPDX-License-Identifier: Apache-2.0
"""Inputs for which combinations of parallel methods and offload are known to fail elsewhere.

Each has the losses and norms of one process, or is refused with its cause and what to do. All that need the same
number of ranks are tried in one start of them.
"""

from __future__ import annotations

import tempfile
import unittest
from collections.abc import Callable, Iterator
from typing import Any

import cistern.torch as ct
import compared
import models
import peft
import test_packed_parts as packed
import torch
import torch.distributed as dist
import transformers
from compared import CLIP
from gloo import run_ranks
from models import TorchCase
from test_products import attached
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

N_STEPS = 3
ROWS = 8
FROZEN = 2  # Layers of a first stage that does not train.


def model_of(kind: str) -> Any:
    """Return a model; "cut" and "frozen" are LLaMA whose first layers have no gradients in a step, or never."""
    torch.manual_seed(7)
    layers = {"num_hidden_layers": 4}
    if kind not in ("deep", "cut", "frozen"):
        return getattr(models, kind)()
    model: Any = models.llama(**layers)
    if kind == "cut":
        model.is_cut = False
        model.model.layers[FROZEN].register_forward_pre_hook(
            lambda _, args: (args[0].detach(), *args[1:]) if model.is_cut else None
        )
    if kind == "frozen":
        model.model.embed_tokens.requires_grad_(False)
        model.model.layers[:FROZEN].requires_grad_(False)
    return model


def batch(step: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    ids = torch.randint(3, models.VOCABULARY, (ROWS, 12), generator=generator)
    labels = ids.clone()
    labels[1, 3:] = labels[5:7, :8] = -100
    return {"input_ids": ids, "labels": labels}


def one_process(kind: str, calls: int = 1) -> Any:
    """Return the losses and norms of plain torch."""
    model = model_of(kind)

    def losses_of(step: int) -> Iterator[torch.Tensor]:
        model.is_cut = step == 1
        if kind == "cut":  # Stages give each other zeros for what has no gradient.
            for parameter in model.parameters():
                parameter.grad = torch.zeros_like(parameter)
        for given in batches(step, calls):
            yield model(**given).loss

    return compared.summed(compared.one_process(model, N_STEPS, losses_of))


def batches(step: int, calls: int) -> list[dict[str, Any]]:
    """Return the batches of a step."""
    found: list[dict[str, Any]] = [batch(calls * step + i) for i in range(calls)]
    if calls > 1:
        counted = sum(int((given["labels"][:, 1:] != -100).sum()) for given in found)
        found = [given | {"num_items_in_batch": counted} for given in found]
    return found


def train(job: str, kind: str, how: Any, calls: int = 1, pool: str = "0", **options: Any) -> Any:
    """Train a part of a model, and clip as programs do. Return losses and norms, and the store."""
    model = model_of(kind)
    part = ct.parallelize(model, how, batch=batch(0))
    if calls > 1:
        options["micro_batches"] = calls
    store = attached(part, job, pool, options)
    optimizer = store.optimizer(lr=3e-3)
    results = []
    for step in range(N_STEPS):
        model.is_cut = step == 1
        loss = sum(part.step(**given).item() for given in batches(step, calls))
        norm = nn.utils.clip_grad_norm_(part.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()
        results.append((loss, norm.item()))
    return results, store


def losses(job: str, kind: str, how: Any, **further: Any) -> Any:
    results, store = train(job, kind, how, **further)
    store.close()
    return results


def of_trainer(job: str, how: Any, folder: str, begin: str = "") -> list[tuple[float, float]]:
    """Let a Trainer train, which goes on after the checkpoint ``begin``; without ``job``, in plain torch."""
    args = transformers.TrainingArguments(
        output_dir=folder, use_cpu=True, report_to=[], disable_tqdm=True, logging_steps=1, max_steps=4,
        per_device_train_batch_size=ROWS, learning_rate=3e-3, max_grad_norm=CLIP, save_steps=2, seed=3,
        resume_from_checkpoint=begin or None,
    )  # fmt: skip
    data = [{k: v[i] for k, v in batch(step).items()} for step in range(4) for i in range(ROWS)]
    model = model_of("llama")
    if not job:
        trainer = transformers.Trainer(model, args, train_dataset=data)
        trainer.train()
    else:
        part = ct.parallelize(model, how, batch=batch(0))
        store = ct.attach(part, job, **ct.hf.options(part, args))
        trainer = transformers.Trainer(part, args, train_dataset=data)
        ct.hf.connect(trainer, store)
        trainer.train(resume_from_checkpoint=begin or None)
        store.close()
    return [(log["loss"], log["grad_norm"]) for log in trainer.state.log_history if "loss" in log]


def trainers(job: str, folder: str) -> Any:
    """Return what a Trainer logs, and what another one logs that begins with the checkpoint of the first."""
    whole = of_trainer(job, {"tp": 2}, f"{folder}/whole")
    return whole, of_trainer(f"{job}-on", {"tp": 2}, f"{folder}/on", f"{folder}/whole/checkpoint-2")


def saved_by_one(job: str, folder: str) -> Any:
    """Let one rank save while the others train."""
    part = ct.parallelize(model_of("llama"), {"tp": 2}, batch=batch(0))
    store = ct.attach(part, job)
    optimizer = store.optimizer(lr=3e-3, clip_norm=CLIP)
    results = []
    for step in range(N_STEPS):
        loss = part.step(**batch(step))
        optimizer.step()
        results.append((loss.item(), optimizer.norm.item()))
        if step == 0 and dist.get_rank() == 0:
            store.save(folder)
    store.close()
    return results


def experts(job: str) -> Any:
    """Train experts that two data ranks divide, and clip all parameters together, which are on two meshes."""
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("ep", "tp"))
    model = packed.mixtral()
    packed.divide_experts(model, mesh["ep"], mesh["tp"])
    store = ct.attach(model, job, replicas="sum")
    optimizer = store.optimizer(lr=3e-3, grad_scale=0.5)
    results = []
    for step in range(N_STEPS):
        loss = packed.language_loss(model, packed.batch(step, dist.get_rank()))
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        results.append((loss.item(), norm.item()))
    store.close()
    return results


WIDTH = 16


def mlp() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Linear(8, WIDTH), nn.Linear(WIDTH, 8), nn.Linear(8, WIDTH), nn.Linear(WIDTH, 8)
    )


def meshes(job: str) -> Any:
    """Train layers that ranks divide along other dimensions of a mesh. Return losses and norms, or what is raised."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))
    model = mlp()
    for axis, (up, down) in (("a", "01"), ("b", "23")):
        parallelize_module(model, mesh[axis], {up: ColwiseParallel(), down: RowwiseParallel()})
    try:
        store = ct.attach(model, job)
        optimizer = store.optimizer(lr=3e-3)
    except ValueError as error:
        return str(error)
    results = []
    for step in range(N_STEPS):
        loss = square(model, step)
        loss.backward()
        try:
            norm = nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            optimizer.step()
        except RuntimeError as error:
            return str(error)
        results.append((loss.item(), norm.item()))
    store.close()
    return results


def square(model: nn.Module, step: int) -> torch.Tensor:
    x = torch.randn(6, 8, generator=torch.Generator().manual_seed(step))
    loss: torch.Tensor = (model(x) - 1).square().mean()
    return loss


def plain_mlp() -> Any:
    model = mlp()
    return compared.summed(compared.one_process(model, N_STEPS, lambda step: [square(model, step)]))


def norms_of_heads(job: str) -> Any:
    """Return losses, and the weights of norms of queries and keys as this rank has them in the end."""
    results, store = train(job, "qwen3", {"tp": 2})
    norms = {n: p for n, p in store.model.named_parameters() if "_norm" in n}
    with store.gather(*norms):
        weights = {name: p.detach().clone() for name, p in norms.items()}
    store.close()
    return results, weights


def forgotten_norms(job: str) -> str:
    """Divide heads, and not the norms of their queries. Return what the first step raises."""
    model: Any = models.qwen3()
    columns = ("q_proj", "k_proj", "v_proj")
    plan: dict[str, Any] = {
        f"model.layers.*.self_attn.{name}": ColwiseParallel() for name in columns
    }
    plan["model.layers.*.self_attn.o_proj"] = RowwiseParallel()
    parallelize_module(model, init_device_mesh("cpu", (2,)), plan)
    store = ct.attach(model, job)
    model(**batch(0)).loss.backward()
    try:
        store.optimizer(lr=3e-3).step()
    except RuntimeError as error:
        return str(error)
    finally:
        store.job.close()
    return ""


def tied(job: str, folder: str) -> Any:
    """Train stages that share an embedding, and go on from a checkpoint with ranks that divide tensors."""
    part = ct.parallelize(model_of("qwen2"), {"pp": 2}, batch=batch(0))
    results, path = [], ""
    for name, options in ((job, {}), (f"{job}-on", {"resume": folder})):
        store = ct.attach(part, name, **options)
        optimizer = store.optimizer(lr=3e-3, clip_norm=CLIP)
        while store.step_no < (2 if name == job else N_STEPS):
            loss = part.step(**batch(store.step_no))
            optimizer.step()
            results.append((loss.item(), optimizer.norm.item()))
        if name == job:
            dist.barrier()
            if dist.get_rank() == 0:
                path = store.save(folder)
            dist.barrier()
        store.close()
        part = ct.parallelize(model_of("qwen2"), {"tp": 2}, batch=batch(0))
    return results, str(path)


def adapted_too_late(job: str) -> str:
    """Put adapters onto a part of a model. Return what attach raises."""
    part = ct.parallelize(model_of("llama"), {"pp": 2}, batch=batch(0))
    adapted = peft.get_peft_model(part, peft.LoraConfig(r=4, target_modules=["q_proj"]))
    try:
        ct.attach(adapted, job)
    except TypeError as error:
        return str(error)
    return ""


def states_of_one(job: str) -> str:
    """Load the states of one process's optimizer into stages. Return what is raised."""
    whole = model_of("llama")
    plain = torch.optim.AdamW(whole.parameters())
    whole(**batch(0)).loss.backward()
    plain.step()
    store = ct.attach(ct.parallelize(whole, {"pp": 2}, batch=batch(0)), job)
    try:
        store.optimizer(lr=3e-3).load_state_dict(plain.state_dict())
    except ValueError as error:
        return str(error)
    finally:
        store.close()
    return ""


def two(job: str, folder: str) -> dict[str, Any]:
    """Return by subject what two ranks give."""
    tight = {"pool": "40%"}
    return {
        "tensors": losses(f"{job}-0", "llama", {"tp": 2}, **tight),
        "micro-batches": losses(
            f"{job}-1", "deep", {"pp": 2, "micro_batches": 4}, calls=2, **tight
        ),
        "ring": losses(f"{job}-2", "llama", {"cp": 2}, **tight),
        "ulysses": losses(f"{job}-3", "llama", {"cp": 2, "sequence": "ulysses"}, **tight),
        "experts": experts(f"{job}-4"),
        "trainers": trainers(f"{job}-5", folder),
        "saved by one": saved_by_one(f"{job}-6", f"{folder}/one"),
        "norms of heads": norms_of_heads(f"{job}-7"),
        "forgotten norms": forgotten_norms(f"{job}-8"),
        "gemma": losses(f"{job}-9", "gemma", {"pp": 2}),
        "qwen3": losses(f"{job}-10", "qwen3", {"pp": 2}),
        "cut": losses(f"{job}-11", "cut", {"pp": 2}),
        "frozen": losses(f"{job}-12", "frozen", {"pp": 2}),
        "tied": tied(f"{job}-13", f"{folder}/tied"),
        "adapted too late": adapted_too_late(f"{job}-14"),
        "states of one": states_of_one(f"{job}-15"),
    }


def four(job: str) -> dict[str, Any]:
    """Return by subject what four ranks give."""
    return {
        "tensors and data": losses(f"{job}-20", "llama", {"tp": 2, "dp": 2}),
        "stages": losses(f"{job}-21", "deep", {"pp": 4}),
        "meshes": meshes(f"{job}-22"),
    }


class Threads(TorchCase):
    def ranks(self, world: int, function: Callable[..., Any], *args: Any) -> list[dict[str, Any]]:
        """Return by rank what ``function`` gives, whose jobs are removed in the end."""
        for i in range(30):
            for job in (f"{self.name}-{i}", f"{self.name}-{i}-on"):
                self.addCleanup(self.remove, job)
        return run_ranks(world, function, self.name, *args)

    def check(self, got: list[dict[str, Any]], subject: str, wanted: Any) -> None:
        for of_rank in got:
            with self.subTest(subject):
                self.check_alike(of_rank[subject], wanted)

    def test_two_ranks(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        got = self.ranks(2, two, folder.name)
        llama = one_process("llama")
        for subject in ("tensors", "ring", "ulysses", "saved by one"):
            self.check(got, subject, llama)
        self.check(got, "micro-batches", one_process("deep", calls=2))
        for kind in ("gemma", "qwen3", "cut", "frozen"):
            self.check(got, kind, one_process(kind))
        with self.subTest("experts"):
            for rank, of_rank in enumerate(got):
                wanted = [(of[rank], norm) for of, norm in packed.one_process(2)[:N_STEPS]]
                self.check_alike(of_rank["experts"], wanted)
        plain = of_trainer("", {}, f"{folder.name}/plain")
        with self.subTest("trainers"):
            for of_rank in got:
                whole, later = of_rank["trainers"]
                torch.testing.assert_close(whole, plain, rtol=2e-4, atol=0)
                self.assertEqual(later[-2:], whole[2:])
        with self.subTest("norms of heads"):
            for results, weights in (of_rank["norms of heads"] for of_rank in got):
                self.check_alike(results, one_process("qwen3"))
                self.assertTrue(any("q_norm" in name for name in weights))
                for name, values in weights.items():
                    self.assertTrue(torch.equal(values, got[0]["norms of heads"][1][name]), name)
        for subject, said in (
            ("forgotten norms", "_norm.weight"),
            ("adapted too late", "adapters go onto the whole model"),
            ("states of one", "divided among the ranks.*Store.save and attach.*resume="),
        ):
            with self.subTest(subject):
                for of_rank in got:
                    self.assertRegex(of_rank[subject], said)
        with self.subTest("tied"):
            for of_rank in got:
                self.check_alike(of_rank["tied"][0], one_process("qwen2"))

    def test_four_ranks(self) -> None:
        got = self.ranks(4, four)
        self.check(got, "tensors and data", one_process("llama"))
        self.check(got, "stages", one_process("deep"))
        self.check(got, "meshes", plain_mlp())


if __name__ == "__main__":
    unittest.main()
