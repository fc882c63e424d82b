# SPDX-License-Identifier: Apache-2.0
"""Profiles of models that compute nothing, and the products of parallelism that are chosen with them."""

from __future__ import annotations

import copy
import json
import resource
import subprocess
import tempfile
import time
import unittest
from collections.abc import Iterator
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import cistern.torch as ct
import models
import torch
import transformers
from cistern.torch.parallel import auto, degrees, proxy
from cistern.torch.units import find_units
from gloo import run_ranks
from models import TorchCase
from torch import nn
from transformers.models.llama.modeling_llama import LlamaMLP

TOKENS = 2048
MIB = 1 << 20


def modules_of(model: nn.Module) -> dict[str, nn.Module]:
    return {name: unit.module for name, unit in find_units(model).items()}


def batch_of(rows: int, columns: int = 8, seed: int = 1) -> dict[str, torch.Tensor]:
    ids = torch.randint(3, 90, (rows, columns), generator=torch.Generator().manual_seed(seed))
    return {"input_ids": ids, "labels": ids}


def profile_of(model: nn.Module, batch: dict[str, torch.Tensor]) -> proxy.Profile:
    return proxy.profile(model, batch, modules_of(model))


def kept_by(model: nn.Module, batch: dict[str, torch.Tensor]) -> int:
    """Return the bytes of storages that a real forward pass keeps, without parameters."""
    known = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept: dict[int, Any] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            kept[storage.data_ptr()] = storage  # Held, so that its address is not used again.
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model(**batch, use_cache=False)
    return sum(storage.nbytes() for storage in kept.values())


def uneven() -> Any:
    """Return a model of seven layers of which no two take equally long."""
    model: Any = models.llama(num_hidden_layers=7)
    for i, layer in enumerate(model.model.layers):
        config = copy.copy(model.config)
        config.intermediate_size = 64 * (1 + 7 * i % 5 + i)
        layer.mlp = LlamaMLP(config)
    return model


class Residual(nn.Module):
    """A layer that can add what an earlier one returned."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(
        self, x: torch.Tensor, table: torch.Tensor, first: torch.Tensor | None = None
    ) -> torch.Tensor:
        y: torch.Tensor = self.linear(x * table)
        return y if first is None else y + first


class Skipping(nn.Module):
    """The fourth layer needs what the second one returned."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Residual() for _ in range(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        table = torch.ones_like(x).cumsum(0)  # All layers use it, and it depends on inputs alone.
        second = x
        for i, layer in enumerate(self.layers):
            x = layer(x, table, second if i == 3 else None)
            second = x if i == 1 else second
        return x


class Profiles(unittest.TestCase):
    def test_llama_7b(self) -> None:
        config = transformers.LlamaConfig()  # Of 7 B parameters.
        with torch.device("meta"):
            model = transformers.LlamaForCausalLM(config).bfloat16()
        units, batch = modules_of(model), batch_of(1, TOKENS)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        began = time.process_time()
        found = proxy.profile(model, batch, units)
        print(f"a profile of LLaMA-7B: {time.process_time() - began:.2f} s of a processor")
        self.assertLess(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, 512 << 10)
        h, inner, n = config.hidden_size, config.intermediate_size, config.num_hidden_layers
        matrices = n * (4 * h * h + 3 * h * inner) + config.vocab_size * h
        wanted = 2 * TOKENS * matrices + n * 4 * TOKENS * TOKENS * h
        flops = sum(cost.flops for cost in found.units.values())
        self.assertAlmostEqual(flops / wanted, 1, delta=0.01)
        self.assertEqual((found.n_fused, found.n_layers, found.heads, found.n_rows), (n, n, 32, 1))
        layers = [cost for name, cost in found.units.items() if ".layers." in name]
        self.assertEqual([cost.out_bytes for cost in layers], [16 * MIB] * (n - 1) + [0])
        for cost in layers:
            self.assertEqual(cost.sum_bytes, 2 * 16 * MIB)  # After attention and after the MLP.
            # Keeps several times h and the inner size, and less than the scores of all heads would be.
            self.assertLess(2 * TOKENS * (4 * h + 3 * inner), cost.kept_bytes)
            self.assertLess(cost.kept_bytes, 2 * TOKENS * (16 * h + 6 * inner))

    def test_what_is_kept_is_what_a_real_pass_keeps(self) -> None:
        for make in (models.llama, models.gpt2, models.qwen3, models.opt):
            with self.subTest(make.__name__):
                model: Any = make().train()
                model.set_attn_implementation("eager")
                batch = batch_of(2)
                found = profile_of(model, batch)
                self.assertEqual(found.n_fused, 0)
                kept = sum(cost.kept_bytes for cost in found.units.values())
                self.assertEqual(kept, kept_by(model, batch))

    def test_fewer_heads_of_keys_and_masks(self) -> None:
        model: Any = models.llama(num_attention_heads=4, num_key_value_heads=2)
        batch = batch_of(2)
        found = profile_of(model, batch)
        self.assertEqual((found.n_fused, found.heads), (3, 2))
        masked = profile_of(model, {**batch, "attention_mask": torch.ones(2, 8).long()})
        self.assertEqual(masked.n_fused, 3)
        for name, cost in found.units.items():
            self.assertEqual(masked.units[name].flops, cost.flops)
            self.assertEqual(masked.units[name].out_bytes, cost.out_bytes)

    def test_the_model_does_not_change(self) -> None:
        model = models.gpt2().eval()
        model.transformer.h[1].train()
        before = {name: (id(p), p.detach().clone()) for name, p in model.named_parameters()}
        modes = [module.training for module in model.modules()]
        random = torch.get_rng_state()
        profile_of(model, batch_of(2))
        for name, parameter in model.named_parameters():
            self.assertEqual(id(parameter), before[name][0])
            torch.testing.assert_close(parameter, before[name][1], rtol=0, atol=0)
            self.assertIsNone(parameter.grad)
        self.assertEqual([module.training for module in model.modules()], modes)
        self.assertTrue(torch.equal(torch.get_rng_state(), random))
        for module in model.modules():
            self.assertFalse(module._forward_hooks or module._forward_pre_hooks)

    def test_no_cut_where_two_tensors_cross(self) -> None:
        model = Skipping()
        found = profile_of(model, {"x": torch.ones(4, 8)})
        sizes = [cost.out_bytes for cost in found.units.values()]
        self.assertEqual(sizes, [128, 128, 0, 128, 0])

    def test_models_that_branch_on_values_are_refused(self) -> None:
        class Branches(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.linear = nn.Linear(2, 2)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                y: torch.Tensor = self.linear(x)
                return y if y.sum() > 0 else -y

        model = Branches()
        with self.assertRaisesRegex(ValueError, "does not run on tensors without values"):
            profile_of(model, {"x": torch.ones(2, 2)})
        self.assertFalse(model.linear.weight.is_meta)
        with self.assertRaisesRegex(TypeError, "batch is a .*mapping"):
            proxy.profile(model, [torch.ones(2, 2)], modules_of(model))  # type: ignore[arg-type]


class Descriptions(unittest.TestCase):
    def test_operators_are_in_the_order_in_which_they_run(self) -> None:
        described = json.loads(ct.describe(models.opt(), batch=batch_of(2)))
        names = [operator["name"] for operator in described["operators"]]
        # The last norm is defined before the layers.
        self.assertEqual(names[-2:], ["model.decoder.final_layer_norm", "lm_head"])
        self.assertEqual(described["heads"], 0)

    def test_ties(self) -> None:
        described = json.loads(ct.describe(models.gpt2(), batch=batch_of(2)))
        users = [
            o["name"] for o in described["operators"] if "transformer.wte.weight" in o["tensors"]
        ]
        self.assertEqual(users, ["transformer.wte", "lm_head"])

    def test_the_program_plans_what_is_described(self) -> None:
        model = models.llama(num_attention_heads=4, num_key_value_heads=4)
        with tempfile.TemporaryDirectory() as made:
            path = Path(made) / "model.json"
            path.write_text(ct.describe(model, batch=batch_of(1)))
            command = [
                "cistern",
                "plan",
                str(path),
                "--parallel",
                "auto",
                "--ranks",
                "4",
                "--rates",
                "a100",
            ]
            ran = subprocess.run([*command, "--json"], capture_output=True, text=True, check=True)
        found = json.loads(ran.stdout)
        products = {(p["data"], p["tensor"], p["pipeline"]) for p in found["products"]}
        self.assertEqual(products, {(4, 1, 1), (2, 2, 1), (2, 1, 2), (1, 4, 1), (1, 2, 2)})
        self.assertEqual([r["pipeline"] for r in found["refused"]], [4])  # Of 3 layers.


def choose(model: nn.Module, rows: int, n_ranks: int, **limits: Any) -> auto.Choice:
    return auto.search(model, batch_of(rows), n_ranks, rates="a100", **limits)


def all_borders(n_layers: int, n_stages: int) -> Iterator[tuple[int, ...]]:
    return combinations(range(1, n_layers), n_stages - 1)


class Choices(unittest.TestCase):
    def test_auto(self) -> None:
        model = models.llama(num_hidden_layers=6, num_attention_heads=4, num_key_value_heads=4)
        for limits in (
            {},
            {"pp": 2, "dp": 2},
            {"pp": 4, "schedule": "gpipe"},
            {"tp": 2, "micro_batches": 2},
        ):
            with self.subTest(limits):
                found = choose(model, 8, 4, **limits)
                product, plan = found.product, found.details["products"][0]
                assert product is not None
                self.assertEqual(product["dp"] * product["tp"] * product["pp"], 4)
                self.assertEqual(8 % (product["dp"] * product["micro_batches"]), 0)
                for name, value in limits.items():
                    self.assertEqual(product[name], value)
                ends = [0, *product["borders"], 6]
                self.assertTrue(all(a < b for a, b in pairwise(ends)), ends)
                self.assertEqual(len(product["recompute"]), len(ends) - 1)
                self.assertEqual(len(product["recompute"]) % product["pp"], 0)
                degrees.parse(product, 4)  # It is one that ``parallelize`` takes.
                self.assertEqual(plan["stages"][-1]["to"], "lm_head")
                self.assertEqual(plan["stages"][0]["from"], "model.embed_tokens")
                for stage, first in zip(plan["stages"][1:], product["borders"], strict=True):
                    self.assertEqual(stage["from"], f"model.layers.{first}")
        print(found.product)

    def test_memory_is_that_of_the_units(self) -> None:
        model = models.llama()
        found = choose(model, 4, 2, dp=2, micro_batches=2)
        whole = profile_of(model, batch_of(4)).share(4)
        n = sum(p.numel() for p in model.parameters())
        kept = sum(cost.kept_bytes for cost in whole.units.values())
        per_rank = found.details["products"][0]["rank_bytes"]
        self.assertAlmostEqual(per_rank, 8 * n + kept, delta=8 * len(whole.units))

    def test_less_memory_repeats_layers(self) -> None:
        model = models.llama(num_hidden_layers=6)
        limits = {"pp": 2, "schedule": "gpipe", "micro_batches": 8}
        plenty = choose(model, 8, 2, **limits)
        needed = plenty.details["products"][0]["rank_bytes"]
        less = choose(model, 8, 2, memory=int(needed * 0.6), **limits)
        assert plenty.product is not None and less.product is not None
        self.assertEqual(sum(plenty.product["recompute"]), 0)
        self.assertGreater(sum(less.product["recompute"]), 0)
        self.assertLessEqual(less.details["products"][0]["rank_bytes"], needed * 0.6)
        none = choose(model, 8, 2, memory=1000, **limits)
        self.assertIsNone(none.product)
        self.assertIn("even if all its units recompute", none.why_not)

    def test_cuts_are_those_of_brute_force(self) -> None:
        model = uneven()
        whole = profile_of(model, batch_of(1))
        times: list[float] = []
        for (
            name,
            cost,
        ) in whole.units.items():  # The embedding is with layer 0, the head with the last.
            if ".layers." in name and not name.endswith(".0"):
                times.append(0)
            times = times or [0]
            times[-1] += cost.flops
        self.assertEqual(len(set(times)), 7)
        for n_stages in (2, 3, 4):
            for m in (4, 8):
                found = choose(
                    model, m, n_stages, pp=n_stages, schedule="1f1b", micro_batches=m
                ).product
                assert found is not None

                def cost(borders: tuple[int, ...], m: int = m) -> float:
                    sums = [sum(times[a:b]) for a, b in pairwise((0, *borders, len(times)))]
                    return sum(sums) + (m - 1) * max(sums)

                best = min(map(cost, all_borders(len(times), n_stages)))
                self.assertAlmostEqual(cost(tuple(found["borders"])) / best, 1, places=9)

    def test_degrees_that_a_model_cannot_have_are_not_chosen(self) -> None:
        gpt2 = models.gpt2()  # It has no plan for tensor parallelism.
        found = choose(gpt2, 8, 4)
        assert found.product is not None
        self.assertEqual(found.product["tp"], 1)
        refused = choose(gpt2, 8, 4, tp=2)
        self.assertIn("number of heads", refused.why_not)
        with self.assertRaisesRegex(RuntimeError, "2 heads do not divide into 4 parts"):
            auto.choose(models.llama(), batch_of(8), 4, rates="a100", tp=4)
        self.assertIn("3 units can be cut into 1 to 3", choose(gpt2, 8, 4, pp=4).why_not)
        few = choose(gpt2, 8, 2, pp=2, micro_batches=1)
        self.assertIn("1 micro-batches are fewer than 2 stages", few.why_not)
        with self.assertRaisesRegex(ValueError, "6 rows of batch do not divide"):
            choose(gpt2, 6, 4, dp=4)

    def test_a_model_that_cannot_be_cut_has_one_stage(self) -> None:
        model: Any = models.llama()
        inner = model.model.forward

        def scaled(*args: Any, inputs_embeds: Any = None, **given: Any) -> Any:
            again = None if inputs_embeds is None else 3 * inputs_embeds
            return inner(*args, inputs_embeds=again, **given)

        model.model.forward = scaled
        found = choose(model, 8, 4, tp=1)
        assert found.product is not None
        self.assertEqual(found.product["pp"], 1)

    def test_forecasts_and_plan_files(self) -> None:
        with torch.device("meta"):
            model = models.llama(num_hidden_layers=6)
        with tempfile.TemporaryDirectory() as made:
            saved = Path(made) / "plan.json"
            forecast = ct.plan(
                model, batch=batch_of(8), parallel={"pp": 2}, world=4, rates="a100", save=saved
            )
            self.assertEqual(json.loads(saved.read_text()), forecast.parallel)
        self.assertTrue(forecast.fits)
        text = str(forecast)
        self.assertRegex(text, r"^fits: .* of each rank\ndata \d x tensor \d x pipeline 2: ")
        self.assertIn("6 calls of attention are fused", text)
        tokens = 64 / forecast.step_seconds
        self.assertAlmostEqual(forecast.tokens_per_second / tokens, 1)
        with self.assertRaisesRegex(ValueError, "'auto' or a mapping"):
            ct.plan(model, batch=batch_of(8), parallel="all", world=4)
        with self.assertRaisesRegex(ValueError, "cannot keep 'cp': keys are dp, tp, pp, schedule"):
            ct.plan(model, batch=batch_of(8), parallel={"cp": 2}, world=4)
        with self.assertRaisesRegex(TypeError, "needs batch="):
            ct.plan(model, parallel="auto", world=4)
        tight = ct.plan(model, batch=batch_of(8), parallel="auto", world=4, rates="a100", pool="1K")
        self.assertRegex(str(tight), "^does not fit: .*no product of 4 ranks works")


def llama() -> Any:
    torch.manual_seed(7)
    return models.llama(num_hidden_layers=6, num_attention_heads=4, num_key_value_heads=4)


def train(job: str, path: str) -> list[tuple[float, float]]:
    """Train as the file says. Return the losses and norms."""
    part = ct.parallelize(llama(), path, batch=batch_of(8))
    store = ct.attach(part, job)
    optimizer = store.optimizer(lr=3e-3, clip_norm=0.5)
    results = []
    for seed in range(3):
        loss = part.step(**batch_of(8, seed=seed))
        optimizer.step()
        results.append((loss.item(), optimizer.norm.item()))
    store.close()
    return results


class Runs(TorchCase):
    def test_plan_files_are_run(self) -> None:
        model, wanted = llama(), []
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        for seed in range(3):
            loss = model(**batch_of(8, seed=seed)).loss
            loss.backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()
            wanted.append((loss.item(), norm.item()))
        for i, parallel in enumerate(({}, {"pp": 4}, {"pp": 2, "tp": 2})):
            with self.subTest(parallel), tempfile.TemporaryDirectory() as made:
                path = f"{made}/plan.json"
                ct.plan(
                    llama(), batch=batch_of(8), parallel=parallel, world=4, rates="a100", save=path
                )
                name = f"{self.name}-{i}"
                self.addCleanup(self.remove, name)
                got = run_ranks(4, train, name, path)
                for rank in got:
                    torch.testing.assert_close(rank, wanted, rtol=1e-4, atol=0)


if __name__ == "__main__":
    unittest.main()
