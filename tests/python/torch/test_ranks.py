# SPDX-License-Identifier: Apache-2.0
"""Several ranks. test_matrix.py has those that die."""

import copy
import threading
from collections.abc import Callable
from typing import Any
from unittest import mock

import cistern.torch as ct
import models
import torch
from cistern import Job, State, _library
from models import TorchCase
from torch import nn

HANGS_AFTER = 120


def in_two_threads(run: Callable[[int], None]) -> dict[int, Exception]:
    """Call ``run`` for two ranks, in two threads. Return what they raise, by rank."""
    raised: dict[int, Exception] = {}

    def guarded(rank: int) -> None:
        try:
            run(rank)
        except Exception as error:  # noqa: BLE001 (the caller decides)
            raised[rank] = error

    threads = [threading.Thread(target=guarded, args=(rank,), daemon=True) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANGS_AFTER)
    hanging = [rank for rank in range(2) if threads[rank].is_alive()]
    if hanging:
        raise AssertionError(f"ranks that still run after {HANGS_AFTER} s: {hanging}; {raised}")
    return raised


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

        self.assertEqual(in_two_threads(run), {})
        for rank in range(2):
            step, weights = got[rank]
            self.assertEqual(step, 1)
            for name, weight in want.items():
                self.assertTrue(torch.equal(weights[name], weight), name)


class Loads(TorchCase):
    """load_state_dict of two ranks."""

    def load(
        self, *given: tuple[dict[str, Any], dict[str, Any]], **options: Any
    ) -> list[list[str]]:
        """Load state dicts of rank 0 and rank 1. Return by rank what each load raises, "" for nothing."""
        model = models.bf16(lambda: nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)))
        texts: list[list[str]] = [[], []]
        self.addCleanup(self.remove, self.name)

        def run(rank: int) -> None:
            options_of_rank = {"rank": rank, "world": 2, "device": "cpu"} | options
            store = ct.attach(copy.deepcopy(model), self.name, **options_of_rank)
            try:
                for of_ranks in given:
                    try:
                        store.load_state_dict(of_ranks[rank])
                        texts[rank].append("")
                    except RuntimeError as error:
                        texts[rank].append(str(error))
                    if rank == 0:  # Nothing of the load comes after this, on any rank.
                        store.write("1.bias", torch.full((4,), 5.0))
                    store.sync()
                texts[rank].append(str(sorted(set(store.read("0.weight").flatten().tolist()))))
                texts[rank].append(str(sorted(set(store.read("1.weight").flatten().tolist()))))
                texts[rank].append(str(sorted(set(store.read("1.bias").tolist()))))
            finally:
                store.job.close()

        self.assertEqual(in_two_threads(run), {})
        return texts

    def state(self, value: float, **others: Any) -> dict[str, Any]:
        plain = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)).state_dict()
        filled = {name: torch.full_like(tensor, value) for name, tensor in plain.items()}
        return filled | {name.replace("_", "."): other for name, other in others.items()}

    def test_what_does_not_fit_is_refused_on_all_ranks(self) -> None:
        no_tensor = self.state(3, **{"1_weight": object()})
        nothing = self.state(3, **{"1_weight": None})
        too_large = self.state(3, **{"1_weight": torch.ones(4, 5)})
        good = self.state(2)
        texts = self.load((good, good), *((bad, bad) for bad in (no_tensor, nothing, too_large)))
        for of_rank in texts:
            self.assertEqual(len(of_rank), 7)
            self.assertEqual(of_rank[0], "")
            self.assertRegex(of_rank[1], r"1\.weight is a <class 'object'> in the state dict")
            self.assertRegex(of_rank[2], r"1\.weight is a <class 'NoneType'> in the state dict")
            self.assertRegex(of_rank[3], r"size mismatch for 1\.weight: \(4, 5\) in the state dict")
            self.assertEqual(of_rank[4:], ["[3.0]", "[2.0]", "[5.0]"])

    def test_nobody_waits_for_a_rank_0_that_has_failed(self) -> None:
        good = self.state(2)
        cannot_be_read = self.state(3, **{"1_weight": torch.empty(4, 4, device="meta")})
        texts = self.load((good, good), (cannot_be_read, self.state(3)))
        self.assertRegex(texts[0][1], "meta")
        texts[0][1] = ""
        self.assertEqual(texts, [["", "", "[2.0]", "[2.0]", "[5.0]"]] * 2)

    def test_a_write_that_fails_says_what_was_written(self) -> None:
        """It fails on rank 0 in the third of four tensors."""
        good = self.state(2)
        write, n_writes = Job.write_from, 0

        def fail(job: Job, number: int, *arguments: Any) -> None:
            nonlocal n_writes
            n_writes += number == 2 and job.rank == 0
            if n_writes == 3:  # After those of attach and of the first load.
                n_writes += 1
                raise OSError("no disk")
            write(job, number, *arguments)

        with mock.patch.object(Job, "write_from", fail):
            texts = self.load((good, good), (self.state(3), self.state(3)))
        self.assertRegex(
            texts[0][1],
            "no disk. .* parameters from '0.weight' to '1.weight', which failed, may have their part"
            " already, and the others have what they had before: load again",
        )
        texts[0][1] = ""
        self.assertEqual(texts, [["", "", "[3.0]", "[2.0]", "[5.0]"]] * 2)

    def test_the_weights_of_rank_0_hold(self) -> None:
        """Whatever the others are given: it can be without memory, too."""
        empty = {name: tensor.to("meta") for name, tensor in self.state(3).items()}
        texts = self.load(*((self.state(2), other) for other in (self.state(3), empty)))
        self.assertEqual(texts, [["", "", "[2.0]", "[2.0]", "[5.0]"]] * 2)

    def test_weights_of_other_types_with_split_masters(self) -> None:
        """These are rounded otherwise than torch does, where two bf16 numbers are equally near."""
        middle = 1 + 2**-8
        states = {name: tensor.half() for name, tensor in self.state(middle).items()}
        texts = self.load((states, states), masters="split")
        self.assertEqual(texts[0], texts[1])
        self.assertEqual(texts[0][0], "")


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
        self.assertEqual(in_two_threads(run), {})
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
        raised = in_two_threads(run)
        self.remove(self.name)
        for error in raised.values():
            self.assertIsInstance(error, ct.Mismatch)
        return list(map(str, raised.values()))

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
            ({}, layers, {"micro_batches": 2}, "the same options"),
            ({}, layers, {"optimizer": "sgd"}, "the same options"),
            ({}, layers, {"masters": "split"}, "the same options"),
            ({}, layers, {"moments": "bf16"}, "the same options"),
            ({}, layers, {"overlap": "early"}, "the same options"),
            ({}, layers, {"chunk_elems": 8192}, "the same options"),
            ({}, layers, {"world": 3}, "the same world="),
        ):

            def run(rank: int, same: Any = same, make: Any = make, other: Any = other) -> None:
                model, options = (make(), other) if rank == 1 else (layers(), same)
                options = {"rank": rank, "world": 2, "device": "cpu"} | options
                ct.attach(model, self.name, **options).job.close()

            with self.subTest(words, other=other):
                texts = self.together(run)
                self.assertEqual(len(texts), 2)
                for text in texts:
                    self.assertRegex(text, rf"All ranks of a job give attach {words}\. ")
                    if words == "the same options":
                        self.assertIn(f"was opened with {next(iter(other))} ", text)

    def test_a_rank_that_commits_when_the_other_one_has_left(self) -> None:
        """Rank 1 has declared its tensors, which rank 0 learns, and goes on after rank 0 has failed."""
        left = threading.Event()
        wait, of_rank_1 = _library.wait, threading.local()

        def late(handle: Any, attempt: Any, teller: Any = None) -> Any:
            if teller is not None and getattr(of_rank_1, "yes", False):
                attempt(_library.cst_err())
                self.assertTrue(left.wait(HANGS_AFTER))
            return wait(handle, attempt, teller)

        def run(rank: int) -> None:
            of_rank_1.yes = rank == 1
            model = layers() if rank == 0 else nn.Linear(3, 3)
            try:
                ct.attach(model, self.name, rank=rank, world=2, device="cpu").job.close()
            finally:
                if rank == 0:
                    left.set()

        with mock.patch.object(_library, "wait", late):
            texts = self.together(run)
        self.assertEqual(len(texts), 2)
        for text in texts:
            self.assertRegex(text, "All ranks of a job give attach the same model")

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
