# SPDX-License-Identifier: Apache-2.0
"""Random products of degrees and options: the losses and norms of one rank with the same options, or a refusal.

CST_TEST_PRODUCTS: their number; CST_TEST_SEED: which ones.
"""

from __future__ import annotations

import os
import random
import re
import time
import unittest
from typing import Any, NamedTuple

import cistern.torch as ct
import models
import torch
import torch.distributed as dist
from cistern.errors import PoolTooSmall
from gloo import run_ranks
from models import TorchCase

N_STEPS = 4
ROWS = 8
LENGTH = 16
N_PRODUCTS = int(os.environ.get("CST_TEST_PRODUCTS", "2"))
SEED = int(os.environ.get("CST_TEST_SEED", str(int(time.time()) % 100000)))


class Product(NamedTuple):
    kind: str  # Of the model, in models.py.
    lora: bool
    degrees: dict[str, Any]  # For parallelize.
    options: dict[str, Any]  # For attach, of the product and of one rank alike.
    pool: str

    @property
    def world(self) -> int:
        return int(
            self.degrees["dp"] * self.degrees["tp"] * self.degrees["pp"] * self.degrees["cp"]
        )


def product_of(source: random.Random) -> Product:
    degrees: dict[str, Any] = {name: 1 for name in ("dp", "tp", "pp", "cp")}
    for _ in range(source.choice((1, 2, 2))):
        degrees[source.choice(tuple(degrees))] *= 2
    if degrees["pp"] > 1:
        degrees["schedule"] = source.choice(("gpipe", "1f1b", "zb-h1", "shifted"))
    if degrees["cp"] > 1:
        degrees["sequence"] = source.choice(("ring", "ulysses"))
    degrees["micro_batches"] = source.choice((1, 2, 4))
    if source.random() < 0.3:
        degrees["recompute"] = source.choice((1, True))
    options = {
        "masters": source.choice(("fp32", "split")),
        "moments": source.choice(("fp32", "bf16", "mx8")),
        "overlap": source.choice(("commit", "early")),
    }
    return Product(
        kind=source.choice(("llama", "llama", "qwen3", "qwen2", "gpt2", "mixtral")),
        lora=source.random() < 0.25,
        degrees=degrees,
        options=options,
        pool=source.choice(("40%", "100%", "0")),
    )


def model_of(product: Product) -> Any:
    torch.manual_seed(7)
    further = {"num_hidden_layers": 4} if product.kind == "llama" else {}
    model = getattr(models, product.kind)(**further)
    model.config.output_router_logits = False  # The loss of experts' balance is not a sum of rows.
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    if product.lora:
        import peft

        # The router of experts is no linear module.
        targets = ["q_proj", "v_proj"] if product.kind == "mixtral" else "all-linear"

        config = peft.LoraConfig(r=4, lora_alpha=8, target_modules=targets, init_lora_weights=False)
        model = peft.get_peft_model(model, config)
    return model


def batch(step: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    tokens = torch.randint(3, models.VOCABULARY, (ROWS, LENGTH), generator=generator)
    labels = tokens.clone()
    labels[: ROWS // 2, :5] = -100
    return {"input_ids": tokens, "labels": labels}


def attached(part: Any, job: str, pool: str, options: dict[str, Any]) -> ct.Store:
    """Attach with ``pool``, or with one that is larger by what ``attach`` says that it lacks."""
    size: int | str = pool
    said = []
    for _ in range(4):  # Ranks have pools of different sizes.
        try:
            return ct.attach(part, job, pool=size, **options)
        except PoolTooSmall as error:
            said.append(str(error))
            given = re.search("pool of (?:[^(]*[(])?([0-9]+) bytes", str(error))
            lacks = re.search("lacks ([0-9]+) bytes|[(]([0-9]+) bytes[)] short", str(error))
            assert given is not None and lacks is not None, str(error)
            size = int(given[1]) + int(lacks[1] or lacks[2])
        dist.barrier()  # The job is not there any more.
    raise AssertionError(said)


def train(job: str, product: Product, is_alone: bool) -> Any:
    """Return the losses and norms of the steps, or why the product is refused."""
    degrees = {"micro_batches": product.degrees["micro_batches"]} if is_alone else product.degrees
    try:
        part = ct.parallelize(model_of(product), degrees, batch=batch(0))
        store = attached(part, job, "0" if is_alone else product.pool, product.options)
    except ValueError as error:
        dist.barrier()  # All ranks refuse.
        return str(error)
    optimizer = store.optimizer(lr=1e-3, clip_norm=0.5)
    results = []
    for step in range(N_STEPS):
        loss = part.step(**batch(step))
        optimizer.step()
        results.append((loss.item(), optimizer.norm.item()))
    dist.barrier()
    store.close()
    return results


class Products(TorchCase):
    def check(self, name: str, product: Product) -> str:
        """Return why ``product`` is refused, or ""."""
        for job in (f"{name}-one", name):
            self.addCleanup(self.remove, job)
        got = run_ranks(product.world, train, name, product, False)
        if isinstance(got[0], str):
            self.assertTrue(all(isinstance(said, str) for said in got), got)
            self.assertRegex(got[0], "^cistern: ")
            return str(got[0])
        (wanted,) = run_ranks(1, train, f"{name}-one", product, True)
        self.assertNotIsInstance(wanted, str, wanted)
        # Moments of 8 bits have scales for runs of elements, which are others if a tensor is divided.
        near = 1e-2 if product.options["moments"] == "mx8" else 1e-4
        for results in got:
            for (loss, norm), (its_loss, its_norm) in zip(results, wanted, strict=True):
                self.assertAlmostEqual(loss, its_loss, delta=near * its_loss)
                self.assertAlmostEqual(norm, its_norm, delta=near * its_norm)
        return ""

    def test_a_tied_embedding_that_is_frozen(self) -> None:
        """No gradient of it waits in a pool."""
        degrees = {"dp": 1, "tp": 1, "pp": 2, "cp": 1, "schedule": "shifted", "micro_batches": 2}
        options = {"masters": "split", "moments": "fp32", "overlap": "commit"}
        product = Product("qwen2", True, degrees, options, "100%")
        self.assertEqual(self.check(self.name, product), "")

    def test_random_products(self) -> None:
        print(f"CST_TEST_SEED={SEED}")
        source = random.Random(SEED)
        for i in range(N_PRODUCTS):
            product = product_of(source)
            with self.subTest(i=i, product=product):
                refused = self.check(f"{self.name}-{i}", product)
                print(i, product, refused or "as one rank", flush=True)


if __name__ == "__main__":
    unittest.main()
