# SPDX-License-Identifier: Apache-2.0
"""Models that ``parallel.tensor.divide`` divides: the logits of the whole, and the losses and norms of one process."""

from __future__ import annotations

import copy
import tempfile
import unittest
import warnings
from collections.abc import Iterator
from typing import Any

import cistern.torch as ct
import compared
import models
import torch
import torch.distributed as dist
import transformers
from cistern.torch import parallel
from gloo import run_ranks
from models import TorchCase
from peft import LoraConfig, get_peft_model
from test_architectures import OPTIONS
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

N_STEPS = 10
#: By plans of their own: gemma2 and qwen2 have tied heads, phi3 packed projections.
BY_PLAN = ("llama", "qwen2", "qwen3", "mixtral", "gpt_neox", "gemma2", "phi3", "phi")
#: By chains of linear layers, all of which are divided in the first ones, and only the MLPs in the others.
BY_CHAINS = ("bert", "albert", "bart", "ctrl", "biogpt", "persimmon")
BY_MLPS = ("gpt2", "opt", "bloom", "gptj", "xglm", "gpt_bigcode", "mpt", "stablelm")


def model_of(kind: str) -> Any:
    torch.manual_seed(7)
    if hasattr(models, kind):
        model = getattr(models, kind)()
    else:
        make = getattr(transformers, MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[kind])
        model = make(CONFIG_MAPPING[kind](**OPTIONS))
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        for name, value in vars(module).items():
            if "dropout" in name and isinstance(value, float):
                setattr(module, name, 0.0)
    return model


def batch(step: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(step)
    return torch.randint(3, models.VOCABULARY, (4, 9), generator=generator)


def n_divided(model: nn.Module) -> int:
    return sum(isinstance(parameter.data, DTensor) for parameter in model.parameters())


def logits(kinds: tuple[str, ...]) -> dict[str, Any]:
    """Divide models. Return how far the logits and a gradient are from those of the whole, and what was told."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    found = {}
    tokens = batch(0)
    for kind in kinds:
        model = model_of(kind)
        whole = copy.deepcopy(model)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            parallel.divide(model, mesh)
        results = []
        for one in (model, whole):
            out = one(input_ids=tokens).logits
            out.square().mean().backward()
            grad = one.get_input_embeddings().weight.grad
            grad = grad.full_tensor() if isinstance(grad, DTensor) else grad
            results.append((out.detach(), grad))
        errors = [
            float((a - b).abs().max() / b.abs().max())
            for a, b in zip(results[0], results[1], strict=True)
        ]
        told = [str(w.message) for w in caught if str(w.message).startswith("cistern")]
        found[kind] = errors, n_divided(model), told
    return found


def with_adapters(kind: str) -> Any:
    """Return a model with adapters on layers of its attention and its MLPs."""
    names = ["q_proj", "v_proj", "o_proj", "up_proj", "down_proj", "c_fc", "mlp.c_proj"]
    config = LoraConfig(r=4, lora_alpha=8, target_modules=names, fan_in_fan_out=kind == "gpt2")
    model = get_peft_model(model_of(kind), config)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:  # They are zeros, of which no error is seen.
            nn.init.normal_(parameter, std=0.1)
    return model


def adapted(job: str, kind: str) -> Any:
    """Train adapters of a model that ranks divide, with the function of torch that clips."""
    model = with_adapters(kind)
    parallel.divide(model, init_device_mesh("cpu", (dist.get_world_size(),)))
    n = sum(isinstance(p.data, DTensor) for p in model.parameters() if p.requires_grad)
    store = ct.attach(model, job)
    optimizer = store.optimizer(lr=3e-3)
    results = []
    for step in range(N_STEPS):
        tokens = batch(step)
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        trained = [p for p in model.parameters() if p.requires_grad]
        norm = nn.utils.clip_grad_norm_(trained, 0.5)
        optimizer.step()
        results.append((loss.item(), norm.item()))
    store.close()
    return results, n


def adapted_too_late(job: str) -> str:
    """Put adapters around layers that are divided."""
    model = parallel.divide(model_of("llama"), init_device_mesh("cpu", (2,)))
    try:
        ct.attach(get_peft_model(model, LoraConfig(r=4, target_modules=["q_proj"])), job)
    except TypeError as error:
        return str(error)
    return ""


def by_trainer(job: str, folder: str, divides: bool, resume: bool) -> Any:
    """Let a Trainer train, which saves step 2 of 4. Return the logged losses and norms by step, or the error."""
    args = transformers.TrainingArguments(
        output_dir=folder, use_cpu=True, report_to=[], disable_tqdm=True, logging_steps=1, max_steps=4,
        per_device_train_batch_size=4, learning_rate=3e-3, save_steps=2, seed=3,
        resume_from_checkpoint=f"{folder}/checkpoint-2" if resume else None,
    )  # fmt: skip
    rows = [row for step in range(4) for row in batch(step)]
    data = [{"input_ids": row, "labels": row} for row in rows]
    model = model_of("llama")
    if divides:
        parallel.divide(model, init_device_mesh("cpu", (2,)))
    else:
        model = ct.parallelize(model, {"tp": 2}, batch={"input_ids": batch(0), "labels": batch(0)})
    store = ct.attach(model, job, **ct.hf.options(model, args))
    trainer = transformers.Trainer(model, args, train_dataset=data)
    try:
        ct.hf.connect(trainer, store)
    except ValueError as error:
        return str(error)
    finally:
        if divides:
            store.close()
    trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)
    store.close()
    logs = trainer.state.log_history
    return {log["step"]: (log["loss"], log["grad_norm"]) for log in logs if "loss" in log}


def some_stages(job: str) -> Any:
    """Divide one of two stages alone, among two ranks. Return the error, or the factor of gradients."""
    rank = dist.get_rank()
    group = dist.new_group([0, 1])
    stage = parallel.stage_of(model_of("llama"), int(rank > 1), 2)
    if rank < 2:
        parallel.divide(stage, DeviceMesh.from_group(group, "cpu"))
    try:
        store = ct.attach(stage, job)
    except ValueError as error:
        return str(error)
    factor = store.parts.mean_of_ranks()
    store.close()
    return factor


def trained(job: str, kind: str, options: dict[str, Any]) -> Any:
    """Train as one of the ranks that divide a model. Return losses and norms."""
    model = parallel.divide(model_of(kind), init_device_mesh("cpu", (dist.get_world_size(),)))
    store = ct.attach(model, job, **options)
    optimizer = store.optimizer(lr=3e-3, clip_norm=0.5)
    results = []
    for step in range(N_STEPS):
        tokens = batch(step)
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        results.append((loss.item(), optimizer.norm.item()))
    store.close()
    return results


def one_process(model: Any) -> list[tuple[float, float]]:
    def losses_of(step: int) -> Iterator[torch.Tensor]:
        tokens = batch(step)
        yield model(input_ids=tokens, labels=tokens).loss

    return compared.summed(compared.one_process(model, N_STEPS, losses_of))


class Table(nn.Embedding):
    def __init__(self) -> None:
        super().__init__(50, 8)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return super().forward(input_ids)


class Twisted(nn.Module):
    """Computes otherwise if its layers are divided: what is between them looks at all elements of a row."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(16, 32)
        self.down = nn.Linear(32, 16)
        self.head_dim = 8

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        x = nn.functional.one_hot(input_ids % 16, 16).float()
        y: torch.Tensor = self.down(self.up(x).softmax(-1))
        return y


def refused() -> list[str]:
    """Try what cannot be divided. Return the errors."""
    line, square = init_device_mesh("cpu", (2,)), init_device_mesh("cpu", (2, 1))
    twisted = Twisted()
    before = {name: p.detach().clone() for name, p in twisted.named_parameters()}
    errors = []
    for model, mesh in (
        (model_of("llama"), square),
        (Table(), line),
        (twisted, line),
        (models.t5(), line),
    ):
        try:
            parallel.divide(model, mesh)
        except (TypeError, ValueError) as error:
            errors.append(str(error))
    same = all(torch.equal(p, before[name]) for name, p in twisted.named_parameters())
    out = twisted(torch.arange(8).reshape(2, 4))
    return [*errors, f"{same} {tuple(out.shape)}"]


def on_meta() -> Any:
    """Divide models on the meta device, and give them values. Return how far the logits are from the whole's."""
    mesh = init_device_mesh("cpu", (2,))
    errors = {}
    for kind in ("gpt2", "opt", "qwen2", "llama"):
        whole = model_of(kind)
        model = copy.deepcopy(whole).to("meta")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            parallel.divide(model, mesh)
        assert all(p.is_meta for p in model.parameters())
        for name, parameter in model.named_parameters():
            values = whole.get_parameter(name).detach()
            if isinstance(parameter.data, DTensor):
                values = distribute_tensor(values, mesh, parameter.placements, src_data_rank=None)
            module = model.get_submodule(name.rpartition(".")[0])
            module._parameters[name.rpartition(".")[2]] = nn.Parameter(values)
        for name, buffer in whole.named_buffers():
            parent, _, own = name.rpartition(".")
            model.get_submodule(parent)._buffers[own] = buffer
        if model.config.tie_word_embeddings:
            model.get_output_embeddings().weight = model.get_input_embeddings().weight
        wanted = whole(input_ids=batch(1)).logits
        found = model(input_ids=batch(1)).logits
        errors[kind] = ((found - wanted).abs().max() / wanted.abs().max()).item()
    return errors


def odd() -> str:
    """Divide what three ranks cannot share."""
    try:
        parallel.divide(model_of("mixtral"), init_device_mesh("cpu", (3,)))
    except ValueError as error:
        return str(error)
    return ""


def stages() -> Any:
    """Cut a model into two stages, and divide both. Return how far the logits are from those of the whole."""
    mesh = init_device_mesh("cpu", (2,))
    found = {}
    for kind in ("llama", "qwen2", "gpt2"):
        tokens = batch(1)
        cut = [parallel.stage_of(model_of(kind), i, 2) for i in range(2)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            cut = [parallel.divide(stage, mesh) for stage in cut]
        wanted = model_of(kind)(input_ids=tokens).logits
        error = (cut[1](cut[0](tokens)) - wanted).abs().max() / wanted.abs().max()
        found[kind] = error.item(), [n_divided(stage) for stage in cut]
    return found


class Division(TorchCase):
    def check_logits(self, world: int, kinds: tuple[str, ...]) -> dict[str, Any]:
        found = run_ranks(world, logits, kinds)
        for kind in kinds:
            for of_rank in found:
                errors, n, _ = of_rank[kind]
                self.assertLess(max(errors), 1e-4, kind)
                self.assertGreater(n, 0, kind)
        first: dict[str, Any] = found[0]
        return first

    def test_plans(self) -> None:
        found = self.check_logits(2, BY_PLAN)
        self.assertEqual({kind: told for kind, (_, _, told) in found.items() if told}, {})

    def test_chains(self) -> None:
        found = self.check_logits(2, BY_CHAINS + BY_MLPS)
        for kind, (_, n, told) in found.items():
            self.assertEqual(len(told), int(kind in BY_MLPS), f"{kind}: {n} {told}")
        self.assertRegex(found["gpt2"][2][0], r"3 modules, such as 'transformer.h.0.attn', which")

    def test_three_ranks(self) -> None:
        found = self.check_logits(3, ("gpt2", "llama", "qwen3", "opt", "gpt_neox", "phi3"))
        for kind in ("gpt2", "llama", "gpt_neox"):
            self.assertRegex(found[kind][2][0], "1, 2 ranks can share their heads")
        for text in run_ranks(3, odd):
            self.assertRegex(text, "gate_up_proj' has a dimension of 128, which 3 .*: 1, 2, 4, 8")

    def test_stages(self) -> None:
        for found in run_ranks(2, stages):
            for kind, (error, n) in found.items():
                self.assertLess(error, 1e-4, kind)
                self.assertGreater(min(n), 0, kind)

    def test_meta(self) -> None:
        for errors in run_ranks(2, on_meta):
            for kind, error in errors.items():
                self.assertLess(error, 1e-4, kind)

    def test_refusals(self) -> None:
        for errors in run_ranks(2, refused):
            wanted = (
                r"mesh of one dimension, not of 2: .*mesh\['tp'\]",
                r"Table has neither a plan .* nor pairs of linear layers",
                r"Twisted, divided among 2 ranks, computes something else .*parallelize_module",
                r"T5For\w+ is tried .*: give divide a batch",
                r"True \(2, 4, 16\)",
            )
            self.assertEqual(len(errors), len(wanted), errors)
            for text, pattern in zip(errors, wanted, strict=True):
                self.assertRegex(text, pattern)

    def check_training(self, kind: str, world: int, **options: Any) -> None:
        name = f"{self.name}-{kind}"
        self.addCleanup(self.remove, name)
        wanted = one_process(model_of(kind))
        for results in run_ranks(world, trained, name, kind, options):
            for (loss, norm), (loss_wanted, norm_wanted) in zip(results, wanted, strict=True):
                self.assertAlmostEqual(loss, loss_wanted, delta=1e-4 * loss_wanted)
                self.assertAlmostEqual(norm, norm_wanted, delta=1e-4 * norm_wanted)

    def test_adapters(self) -> None:
        for kind in ("llama", "gpt2"):
            with self.subTest(kind):
                name = f"{self.name}-{kind}"
                self.addCleanup(self.remove, name)
                wanted = one_process(with_adapters(kind))
                for results, n in run_ranks(2, adapted, name, kind):
                    self.assertGreater(n, 0)
                    for (loss, norm), (wanted_loss, wanted_norm) in zip(
                        results, wanted, strict=True
                    ):
                        self.assertAlmostEqual(loss, wanted_loss, delta=1e-4 * wanted_loss)
                        self.assertAlmostEqual(norm, wanted_norm, delta=1e-4 * wanted_norm)
        for text in run_ranks(2, adapted_too_late, self.name):
            self.assertRegex(text, "around a layer that ranks divide.*first make the adapters")

    def test_trainer(self) -> None:
        """A Trainer goes on from its checkpoint; one that would give the ranks different rows is refused."""
        with tempfile.TemporaryDirectory() as folder:
            for name in ("a", "b", "c"):
                self.addCleanup(self.remove, f"{self.name}-{name}")
            wanted = run_ranks(2, by_trainer, f"{self.name}-a", folder, False, False)
            resumed = run_ranks(2, by_trainer, f"{self.name}-b", folder, False, True)
            for rank in range(2):
                self.assertEqual(sorted(wanted[rank]), [1, 2, 3, 4])
                for step in (3, 4):
                    self.assertEqual(resumed[rank][step], wanted[rank][step])
            for text in run_ranks(2, by_trainer, f"{self.name}-c", folder, True, False):
                self.assertRegex(text, "gives each rank other rows.*parallelize")

    def test_some_stages(self) -> None:
        """A stage that is not divided has one rank, or is refused by all ranks."""
        self.addCleanup(self.remove, self.name)
        for text in run_ranks(4, some_stages, self.name):
            self.assertRegex(text, "divide nothing hand in 2 gradients .* hand in 1 of .*divide")
        self.assertEqual(run_ranks(3, some_stages, self.name), [1.0, 1.0, 1.0])

    def test_training_by_chains(self) -> None:
        for kind in ("gpt2", "opt", "bert"):
            with self.subTest(kind):
                self.check_training(kind, 2)

    def test_training_by_plans(self) -> None:
        for kind in ("gpt_neox", "gemma2"):
            with self.subTest(kind):
                self.check_training(kind, 2)

    def test_training_with_uneven_parts(self) -> None:
        self.check_training("gpt2", 3)


if __name__ == "__main__":
    unittest.main()
