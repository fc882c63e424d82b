# SPDX-License-Identifier: Apache-2.0
"""Several ranks. test_matrix.py has those that die."""

import copy
import threading
from collections.abc import Callable
from typing import Any

import cistern.torch as ct
import models
import torch
from cistern import State
from models import TorchCase
from torch import nn


class Reshape(TorchCase):
    def test_another_number_of_ranks_has_the_same_weights(self) -> None:
        model = models.bf16(models.llama)
        store = self.attach(copy.deepcopy(model))
        models.loss_of(store.model, models.tokens()).backward()
        store.optimizer(lr=1e-2).step()
        want = store.state_dict()
        store.close()
        with self.assertRaisesRegex(ct.Mismatch, "has 1 ranks, not 2 .* 'reshape' changes that"):
            self.attach(copy.deepcopy(model), rank=0, world=2)
        got: dict[int, tuple[int, dict[str, torch.Tensor]]] = {}

        def run(rank: int) -> None:
            options = {"rank": rank, "world": 2, "device": models.DEVICE, "reshape": True}
            again = ct.attach(copy.deepcopy(model), self.name, **options)
            got[rank] = again.step_no, again.state_dict()
            again.close()

        threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for rank in range(2):
            step, weights = got[rank]
            self.assertEqual(step, 1)
            for name, weight in want.items():
                self.assertTrue(torch.equal(weights[name], weight), name)


class Loads(TorchCase):
    def test_a_load_that_fails_on_rank_0_fails_on_all(self) -> None:
        model = models.bf16(lambda: nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)))
        good = {name: torch.full_like(p, 2.0) for name, p in model.state_dict().items()}
        not_a_tensor: dict[str, Any] = good | {"1.weight": object()}
        other = good | {"1.bias": torch.full_like(good["1.bias"], 3.0)}
        texts: dict[int, list[str]] = {0: [], 1: []}
        self.addCleanup(self.remove, self.name)

        def run(rank: int) -> None:
            store = ct.attach(copy.deepcopy(model), self.name, rank=rank, world=2, device="cpu")
            for of_rank_0 in (not_a_tensor, other, good):
                try:
                    store.load_state_dict(good if rank else of_rank_0)
                    texts[rank].append("")
                except (AttributeError, RuntimeError) as error:
                    texts[rank].append(str(error))
                store.sync()
            texts[rank].append(str(store.read("1.weight")[0, 0].item()))
            store.job.close()

        threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        words = r"rank 0 has not written the weights that rank 1 was given: those of '{}'"
        for rank, expected in (
            (0, ["has no attribute 'shape'", "^$", "^$", r"^2\.0$"]),
            (1, [words.format("0.weight"), words.format("1.bias"), "^$", r"^2\.0$"]),
        ):
            self.assertEqual(len(texts[rank]), len(expected))
            for text, regex in zip(texts[rank], expected, strict=True):
                self.assertRegex(text, regex)


class Ranks(TorchCase):
    def test_the_gradient_is_the_mean_of_the_ranks(self) -> None:
        """Two ranks in two threads of this process, each with a client of its own."""
        model = models.bf16(models.llama)
        plain = copy.deepcopy(model)
        batches = [models.tokens(), models.tokens()]
        stores: list[ct.Store] = []

        def run(rank: int) -> None:
            torch.set_num_threads(1)
            store = ct.attach(copy.deepcopy(model), self.name, rank=rank, world=2, device="cpu")
            stores.append(store)
            optimizer = store.optimizer(lr=1e-2)
            models.loss_of(store.model, batches[rank]).backward()
            optimizer.step()

        self.addCleanup(self.remove, self.name)
        threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for batch in batches:
            models.loss_of(plain, batch).backward()
        for name, parameter in plain.named_parameters():
            grad = stores[0].read(name, State.GRAD).float()
            error = (grad - parameter.grad.float()).abs().max()
            self.assertLess(error, 0.01 * parameter.grad.abs().max(), name)
        for store in stores:
            store.job.close()


def layers() -> nn.Module:
    torch.manual_seed(1)
    inner = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    return nn.Sequential(nn.Linear(8, 8), inner, nn.Linear(8, 4))


def frozen() -> nn.Module:
    model = layers()
    model[0].requires_grad_(False)
    return model


def with_bf16() -> nn.Module:
    model = layers()
    model[0].bfloat16()
    return model


class Differences(TorchCase):
    """Two ranks that do not give the same arguments: both are told which one differs."""

    def together(self, run: Callable[[int], None]) -> list[str]:
        """Call ``run`` for two ranks, in two threads. Return the texts of what they raise."""
        texts: list[str] = []

        def guarded(rank: int) -> None:
            try:
                run(rank)
            except ct.Mismatch as error:
                texts.append(str(error))

        threads = [threading.Thread(target=guarded, args=(rank,)) for rank in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.remove(self.name)
        return texts

    def test_arguments_of_attach(self) -> None:
        muon = {"optimizer": "muon", "muon": lambda name, _: name == "1.0.weight"}
        for same, make, other, words in (
            ({}, layers, {"units": ["1"]}, "the same model and the same units="),
            ({}, layers, {"units": [""]}, "the same model and the same units="),
            ({}, lambda: nn.Linear(3, 3), {}, "the same model"),
            ({}, lambda: nn.Linear(3, 3), {"units": [""]}, "the same model"),
            ({}, frozen, {}, "the same model, with the same requires_grad"),
            ({}, with_bf16, {}, "the same model, with the same dtypes"),
            ({}, layers, {"param_group": lambda _, p: p.ndim < 2}, "the same param_group="),
            (muon, layers, muon | {"muon": lambda *_: False}, "the same muon="),
            ({}, layers, {"micro_batches": 2}, "the same micro_batches="),
            ({}, layers, {"optimizer": "sgd"}, "the same optimizer="),
            ({}, layers, {"masters": "split"}, "the same masters="),
            ({}, layers, {"moments": "bf16"}, "the same moments="),
            ({}, layers, {"overlap": "early"}, "the same overlap="),
            ({}, layers, {"chunk_elems": 8192}, "the same chunk_elems="),
            ({}, layers, {"world": 3}, "the same world="),
        ):

            def run(rank: int, same: Any = same, make: Any = make, other: Any = other) -> None:
                model, options = (make(), other) if rank == 1 else (layers(), same)
                options = {"rank": rank, "world": 2, "device": "cpu"} | options
                ct.attach(model, self.name, **options).job.close()

            with self.subTest(words):
                texts = self.together(run)
                self.assertEqual(len(texts), 2)
                for text in texts:
                    self.assertRegex(text, rf"All ranks of a job give attach {words}\. ")

    def test_arguments_of_the_optimizer(self) -> None:
        for other, words in (
            ({"lr": 0.2}, "lr"),
            ({"betas": (0.8, 0.999)}, "beta1"),
            ({"betas": (0.9, 0.99)}, "beta2"),
            ({"eps": 1e-6}, "eps"),
            ({"weight_decay": 0.5}, "weight_decay"),
            ({"clip_norm": 1.0}, "clip_norm"),
            ({"grad_scale": 2.0}, "grad_scale"),
            ({"groups": [{}, {"lr": 0.05}]}, "group"),
        ):

            def run(rank: int, other: Any = other) -> None:
                options = {"rank": rank, "world": 2, "device": "cpu"}
                options["param_group"] = lambda _, p: p.ndim < 2
                store = ct.attach(layers(), self.name, **options)
                optimizer = store.optimizer(**{"lr": 0.1} | (other if rank == 1 else {}))
                store.model(torch.ones(1, 8)).sum().backward()
                try:
                    optimizer.step()
                finally:
                    store.job.close()

            with self.subTest(words):
                texts = self.together(run)
                self.assertGreater(len(texts), 0)
                self.assertRegex(texts[0], words)
