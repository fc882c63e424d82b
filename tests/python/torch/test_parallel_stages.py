# SPDX-License-Identifier: Apache-2.0
"""Stages that are cut out of models of transformers: the losses and norms of one process."""

from __future__ import annotations

import copy
import os
import resource
import tempfile
import time
import unittest
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
from safetensors.torch import load_file, save_file
from test_architectures import MOST_ELEMENTS, OPTIONS
from torch import nn
from torch.distributed import pipelining
from transformers import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

N_STEPS = 5
N_MICRO = 4
ROWS = 2
KINDS = ("llama", "qwen3", "qwen2", "gpt2")  # The last two have tied embeddings.


def model_of(kind: str) -> Any:
    torch.manual_seed(7)
    model = getattr(models, kind)()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return model


def on_meta(model: Any) -> Any:
    """Return a copy of ``model``, whose parameters, and not its buffers, are on the meta device."""
    return copy.deepcopy(
        model,
        {id(p): nn.Parameter(p.detach().to("meta"), p.requires_grad) for p in model.parameters()},
    )


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    tokens = torch.randint(3, models.VOCABULARY, (N_MICRO * ROWS, 9), generator=generator)
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def cross_entropy(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten()) / N_MICRO


def pipeline(job: str, kind: str) -> list[tuple[float, float]]:
    """Train as a stage. Return the losses, which the last one has, and the norms."""
    rank, world = dist.get_rank(), dist.get_world_size()
    stage = parallel.stage_of(model_of(kind), rank, world)
    store = ct.attach(stage, job, micro_batches=N_MICRO)
    part = pipelining.PipelineStage(stage, rank, world, torch.device("cpu"))
    schedule = pipelining.Schedule1F1B(part, N_MICRO, loss_fn=cross_entropy, scale_grads=False)
    optimizer = store.optimizer(lr=3e-3, clip_norm=0.5)
    results = []
    for step in range(N_STEPS):
        x, y = batch(step)
        losses: list[torch.Tensor] = []
        schedule.step(*((x,) if rank == 0 else ()), target=y, losses=losses)
        optimizer.step()
        results.append((sum(loss.item() for loss in losses), optimizer.norm.item()))
    store.close()
    return results


def loaded_stage(job: str, kind: str, path: str) -> bool:
    """Load a stage that is cut out of a model on the meta device. Return whether it has the values of the file."""
    stage = parallel.stage_of(on_meta(model_of(kind)), dist.get_rank(), dist.get_world_size())
    store = ct.attach(stage, job, load=path)
    wanted = load_file(path)
    names = [name for name, _ in stage.named_parameters()]
    is_loaded = all(torch.equal(store.read(name), wanted[name]) for name in names)
    store.close()
    return is_loaded and 0 < len(names) < len(wanted)


def one_process(kind: str) -> list[tuple[float, float]]:
    model = model_of(kind)

    def losses_of(step: int) -> Iterator[torch.Tensor]:
        for x, y in zip(*(t.chunk(N_MICRO) for t in batch(step)), strict=True):
            yield cross_entropy(model(input_ids=x).logits, y)

    return compared.summed(compared.one_process(model, N_STEPS, losses_of))


def built(make: Any, kind: str) -> nn.Module | None:
    """Return a tiny model; None: it is too large, or plain torch cannot run it so."""
    try:
        config = CONFIG_MAPPING[kind](**OPTIONS)
        with torch.device("meta"):
            n = sum(p.numel() for p in make(copy.deepcopy(config)).parameters())
        if n > MOST_ELEMENTS:
            return None
        torch.manual_seed(0)
        model: nn.Module = make(config).eval()
        if not model(input_ids=torch.full((2, 8), 5)).logits.isfinite().all():
            return None
    except Exception:  # noqa: BLE001 (each model has its own reasons)
        return None
    return model


class Stages(TorchCase):
    def check(self, kind: str, world: int) -> None:
        name = f"{self.name}-{kind}"
        self.addCleanup(self.remove, name)
        got = run_ranks(world, pipeline, name, kind)
        for (loss, norm), (wanted, norm_wanted) in zip(got[-1], one_process(kind), strict=True):
            self.assertAlmostEqual(loss, wanted, delta=1e-4 * wanted)
            self.assertAlmostEqual(norm, norm_wanted, delta=1e-4 * norm_wanted)

    def test_pp_2(self) -> None:
        for kind in KINDS:
            with self.subTest(kind):
                self.check(kind, 2)

    def test_pp_3(self) -> None:
        self.check("gpt2", 3)

    def test_a_stage_on_the_meta_device_is_loaded(self) -> None:
        for kind in ("llama", "gpt2"):
            with self.subTest(kind), tempfile.TemporaryDirectory() as made:
                model, path = model_of(kind), f"{made}/model.safetensors"
                save_file({name: p.detach() for name, p in model.named_parameters()}, path)
                name = f"{self.name}-{kind}"
                self.addCleanup(self.remove, name)
                self.assertEqual(run_ranks(2, loaded_stage, name, kind, path), [True, True])


class Cuts(unittest.TestCase):
    def test_stages_are_the_whole(self) -> None:
        whole = model_of("llama").eval()
        x = batch(0)[0]
        got = x
        for stage in range(3):
            part = parallel.stage_of(model_of("llama").eval(), stage, 3, borders=[1, 2])
            got = part(got)
            self.assertLessEqual(
                {n for n, _ in part.named_parameters()}, {n for n, _ in whole.named_parameters()}
            )
        torch.testing.assert_close(got, whole(input_ids=x).logits)

    @unittest.skipIf(os.environ.get("CST_TEST_SPARSE"), "a sparse run: this takes half a minute")
    def test_every_architecture_is_cut_or_refused(self) -> None:
        cut = []
        for kind, name in sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items()):
            model = built(getattr(transformers, name), kind)
            if model is None:
                continue
            tokens = torch.randint(3, 90, (2, 8), generator=torch.Generator().manual_seed(1))
            wanted = model(input_ids=tokens).logits
            with self.subTest(kind):
                try:
                    parts = [parallel.stage_of(copy.deepcopy(model), i, 2) for i in range(2)]
                except ValueError as error:
                    self.assertRegex(
                        str(error), "^cistern: stage . .*Give attach stages|^cistern: stage .*give"
                    )
                    continue
                got = parts[1](parts[0](tokens))
                torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)
                names = {name for part in parts for name, _ in part.named_parameters()}
                self.assertEqual(names, {name for name, _ in model.named_parameters()})
                cut.append(kind)
        print(f"{len(cut)} architectures:", *cut)
        self.assertGreater(len(cut), 80)

    def test_what_cannot_be_cut_is_refused(self) -> None:
        for text, arguments in (
            ("3 layers cannot be cut into 4 stages", (0, 4)),
            ("stage 2 is none of the 2 stages", (2, 2)),
        ):
            with self.assertRaisesRegex(ValueError, text):
                parallel.stage_of(model_of("llama"), *arguments)
        with self.assertRaisesRegex(ValueError, "borders .* do not cut 3 layers into 2 stages"):
            parallel.stage_of(model_of("llama"), 0, 2, borders=[3])
        with self.assertRaisesRegex(ValueError, "no list of layers"):
            parallel.stage_of(nn.Linear(2, 2), 0, 1)

    def test_models_that_change_their_input_are_refused(self) -> None:
        model = model_of("llama")
        plain, embed = model.model.forward, model.model.embed_tokens

        def scaled(input_ids: Any = None, inputs_embeds: Any = None, **given: Any) -> Any:
            inputs = embed(input_ids) if inputs_embeds is None else inputs_embeds
            return plain(inputs_embeds=3 * inputs, **given)

        model.model.forward = scaled
        with self.assertRaisesRegex(ValueError, "stage 1 computes something else"):
            parallel.stage_of(model, 1, 2)

    def test_models_on_the_meta_device_are_cut_alike(self) -> None:
        for kind in (
            "llama",
            "gpt2",
            "mixtral",
        ):  # With a head of its own, a tied one, and experts.
            with self.subTest(kind):
                whole = model_of(kind).eval()
                for stage in range(2):
                    meta = on_meta(whole)
                    part = parallel.stage_of(meta, stage, 2)
                    real = parallel.stage_of(copy.deepcopy(whole), stage, 2)
                    shapes = {name: p.shape for name, p in real.named_parameters()}
                    self.assertEqual({n: p.shape for n, p in part.named_parameters()}, shapes)
                    self.assertEqual({p.is_meta for p in part.parameters()}, {True})
                    self.assertEqual({b.is_meta for b in part.buffers()} - {False}, set())

    def test_models_on_the_meta_device_that_change_their_input_are_refused(self) -> None:
        model = on_meta(model_of("llama"))
        plain, embed = model.model.forward, model.model.embed_tokens

        def scaled(input_ids: Any = None, inputs_embeds: Any = None, **given: Any) -> Any:
            inputs = embed(input_ids) if inputs_embeds is None else inputs_embeds
            return plain(inputs_embeds=3 * inputs, **given)

        model.model.forward = scaled
        with self.assertRaisesRegex(ValueError, "stage 1 computes something else"):
            parallel.stage_of(model, 1, 2)
        self.assertEqual({p.is_meta for p in model.parameters()}, {True})

    def test_llama_7b_is_cut_without_memory(self) -> None:
        with torch.device("meta"):
            model = transformers.LlamaForCausalLM(transformers.LlamaConfig()).bfloat16()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        began = time.process_time()
        part = parallel.stage_of(model, 1, 2)
        used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        print(
            f"LLaMA-7B: {time.process_time() - began:.2f} s of a processor, {used >> 10} MiB more"
        )
        self.assertLess(used, 512 << 10)
        self.assertEqual(sum(p.numel() for p in part.parameters()), 3369209856)


if __name__ == "__main__":
    unittest.main()
