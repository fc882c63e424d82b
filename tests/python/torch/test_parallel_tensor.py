# SPDX-License-Identifier: Apache-2.0
"""Models that ``parallel.tensor.divide`` divides: the logits of the whole, and the losses and norms of one process."""

from __future__ import annotations

import copy
import unittest
import warnings
from typing import Any

import cistern.torch as ct
import models
import torch
import torch.distributed as dist
import transformers
from cistern.torch import parallel
from gloo import run_ranks
from models import TorchCase
from test_architectures import OPTIONS
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
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


def one_process(kind: str) -> list[tuple[float, float]]:
    model = model_of(kind)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    results = []
    for step in range(N_STEPS):
        tokens = batch(step)
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5).item()
        optimizer.step()
        optimizer.zero_grad()
        results.append((loss.item(), norm))
    return results


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
    meta = model_of("gpt2").to("meta")
    errors = []
    for model, mesh in (
        (model_of("llama"), square),
        (Table(), line),
        (meta, line),
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

    def test_refusals(self) -> None:
        for errors in run_ranks(2, refused):
            wanted = (
                r"mesh of one dimension, not of 2: .*mesh\['tp'\]",
                r"Table has neither a plan .* nor pairs of linear layers",
                r"GPT2LMHeadModel has no plan .*meta device",
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
        wanted = one_process(kind)
        for results in run_ranks(world, trained, name, kind, options):
            for (loss, norm), (loss_wanted, norm_wanted) in zip(results, wanted, strict=True):
                self.assertAlmostEqual(loss, loss_wanted, delta=1e-4 * loss_wanted)
                self.assertAlmostEqual(norm, norm_wanted, delta=1e-4 * norm_wanted)

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
