# SPDX-License-Identifier: Apache-2.0
"""What torch does with gradients in ``grad``, a store does or refuses in words."""

import copy
import gc
import math
import pickle
import tempfile
import threading
import warnings
import weakref
from typing import Any

import cistern
import cistern.torch as ct
import models
import torch
from cistern import Overlap, State
from cistern.errors import error_of
from models import TorchCase
from torch import nn


def small() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))


def loss_of(model: nn.Module, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    batch = torch.randn(8, 16, generator=generator).to(models.DEVICE, torch.bfloat16)
    loss: torch.Tensor = model(batch).float().square().mean()
    return loss


class Case(TorchCase):
    def norm(self, model: nn.Module, *seeds: int) -> float:
        """Return the norm of the gradients of a plain model, and leave none."""
        model.zero_grad()
        for seed in seeds:
            loss_of(model, seed).backward()
        norm = float(torch.nn.utils.get_total_norm([p.grad.float() for p in model.parameters()]))
        model.zero_grad()
        return norm

    def pair(self, **options: Any) -> tuple[nn.Module, ct.Store, ct.Optimizer]:
        twin, store = self.twins(small, **options)
        return twin, store, store.optimizer(lr=1e-2)

    def assert_near(self, ours: float, plain: float) -> None:
        self.assertLess(abs(ours - plain), 1e-2 * plain)


class ZeroGrad(Case):
    def test_it_discards_the_gradients_of_the_step(self) -> None:
        for name, micro_batches in (("one", 1), ("two", 2), ("three", 3)):
            twin, store = self.twins(small, name=name, micro_batches=micro_batches)
            optimizer = store.optimizer(lr=1e-2)
            for seed in range(micro_batches):
                (loss_of(store.model, seed) * 1e3).backward()
            optimizer.zero_grad()
            for seed in range(micro_batches):
                loss_of(store.model, 7 + seed).backward()
            optimizer.step()
            seeds = [7 + seed for seed in range(micro_batches)]
            self.assert_near(optimizer.last.grad_norm, self.norm(twin, *seeds))

    def test_the_model_and_a_forward_pass_before_it(self) -> None:
        twin, store, optimizer = self.pair()
        (loss_of(store.model, 5) * 1e3).backward()
        loss = loss_of(store.model, 6)
        store.model.zero_grad()
        loss.backward()
        optimizer.step()
        self.assert_near(optimizer.last.grad_norm, self.norm(twin, 6))

    def test_it_does_nothing_where_there_are_no_gradients(self) -> None:
        _, store, optimizer = self.pair()
        attempts = []
        sync, store.job.sync = store.job.sync, lambda: attempts.append(sync())
        optimizer.zero_grad()
        loss = loss_of(store.model, 0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        store.model.zero_grad()
        self.assertEqual(attempts, [])

    def test_it_follows_an_exception_in_the_backward_pass(self) -> None:
        twin, store, optimizer = self.pair()
        loss = loss_of(store.model, 0)
        handle = store.model[0].weight.register_hook(lambda _: 1 / 0)
        with self.assertRaises(ZeroDivisionError):
            loss.backward()
        handle.remove()
        optimizer.zero_grad()
        loss_of(store.model, 1).backward()
        optimizer.step()
        self.assert_near(optimizer.last.grad_norm, self.norm(twin, 1))

    def test_all_ranks_discard_together(self) -> None:
        model = models.bf16(small)
        twin = copy.deepcopy(model)
        meet = threading.Barrier(2, timeout=60)
        results: list[tuple[ct.Store, Any]] = []

        def run(rank: int) -> None:
            torch.set_num_threads(1)
            store = ct.attach(copy.deepcopy(model), self.name, rank=rank, world=2, device="cpu")
            optimizer = store.optimizer(lr=1e-2)
            (loss_of(store.model, rank) * 1e3).backward()
            meet.wait()
            optimizer.zero_grad()
            loss_of(store.model, 3 + rank).backward()
            optimizer.step()
            results.append((store, optimizer.last))

        self.addCleanup(self.remove, self.name)
        threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(len(results), 2)
        self.assert_near(2 * results[0][1].grad_norm, self.norm(twin, 3, 4))
        for store, _ in results:
            store.job.close()

    def test_early_updates_cannot_be_undone(self) -> None:
        _, store, optimizer = self.pair(overlap=Overlap.EARLY)
        loss_of(store.model, 0).backward()
        with self.assertRaisesRegex(RuntimeError, "early updates"):
            optimizer.zero_grad()
        optimizer.step()
        optimizer.zero_grad()

    def test_a_step_that_was_given_up_is_not_committed(self) -> None:
        _, store, optimizer = self.pair()
        loss_of(store.model, 0).backward()
        store.abandon()
        with self.assertRaisesRegex(RuntimeError, "given up"):
            optimizer.step()
        loss_of(store.model, 0).backward()
        optimizer.step()


class Clipping(Case):
    def clip(self, store: ct.Store, *arguments: Any, **options: Any) -> torch.Tensor:
        return torch.nn.utils.clip_grad_norm_(store.model.parameters(), *arguments, **options)

    def test_it_holds_for_one_step(self) -> None:
        _, store = self.twins(small)
        optimizer = store.optimizer(lr=1e-2, clip_norm=0.2)
        for seed, asked, limit in ((0, 0.05, 0.05), (1, None, 0.2), (2, math.inf, 0.2)):
            loss_of(store.model, seed).backward()
            if asked is not None:
                self.clip(store, asked)
            optimizer.step()
            last = optimizer.last
            self.assertAlmostEqual(last.clip, min(limit / last.grad_norm, 1.0), places=4)

    def test_the_smallest_of_several_limits_holds(self) -> None:
        _, store, optimizer = self.pair()
        loss_of(store.model, 0).backward()
        first, second = self.clip(store, 0.05), self.clip(store, 0.1)
        optimizer.step()
        self.assertAlmostEqual(optimizer.last.clip, 0.05 / float(first), places=4)
        self.assertEqual(float(first), float(second))

    def test_a_discarded_gradient_has_no_limit(self) -> None:
        _, store, optimizer = self.pair()
        loss_of(store.model, 0).backward()
        self.clip(store, 0.05)
        optimizer.zero_grad()
        loss_of(store.model, 0).backward()
        optimizer.step()
        self.assertEqual(optimizer.last.clip, 1.0)

    def test_the_norm_cannot_be_read_before_the_step(self) -> None:
        _, store, optimizer = self.pair()
        loss_of(store.model, 0).backward()
        norm = self.clip(store, 1.0)
        for read in (
            torch.isnan,
            torch.Tensor.item,
            float,
            lambda n: n > 1,
            torch.Tensor.clone,
        ):
            with self.assertRaisesRegex(RuntimeError, "not known before the step"):
                read(norm)
        optimizer.step()
        self.assertAlmostEqual(norm.item(), optimizer.last.grad_norm, places=5)
        loss_of(store.model, 1).backward()
        optimizer.step()
        self.assertNotAlmostEqual(norm.item(), optimizer.last.grad_norm, places=5)

    def test_what_a_store_cannot_do_is_refused(self) -> None:
        _, store, _ = self.pair()
        loss_of(store.model, 0).backward()
        utils = torch.nn.utils
        with self.assertRaisesRegex(ValueError, "1 parameters are left out, such as '0.weight'"):
            utils.clip_grad_norm_(list(store.model.parameters())[1:], 1.0)
        for norm in (0.0, -1.0, math.nan):
            with self.assertRaisesRegex(ValueError, "above 0"):
                self.clip(store, norm)
        with self.assertRaisesRegex(ValueError, "call clip_grad_norm_"):
            utils.clip_grads_with_norm_(store.model.parameters(), 1.0, torch.tensor(2.0))

    def test_early_updates_have_the_limit_of_the_optimizer(self) -> None:
        _, store = self.twins(small, overlap=Overlap.EARLY)
        for limit in (0.0, 0.05):
            optimizer = store.optimizer(lr=1e-2, clip_norm=limit)
            loss_of(store.model, 0).backward()
            with self.assertRaisesRegex(RuntimeError, "give Store.optimizer the clip_norm"):
                self.clip(store, 0.01)
            self.clip(store, limit or math.inf)
            optimizer.step()
            self.assertEqual(optimizer.last.clip < 1, limit > 0)

    def test_gradients_that_are_not_finite_are_told(self) -> None:
        _, store, optimizer = self.pair()
        before = store.read("0.weight", State.MASTER)
        loss_of(store.model, 0).backward()
        optimizer.step()
        for told in (True, False):
            (loss_of(store.model, 0) * math.nan).backward()
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                optimizer.step()
            texts = [str(w.message) for w in caught if "cistern" in str(w.message)]
            self.assertEqual(len(texts), int(told))
            self.assertTrue(all("step 1 is nan" in text for text in texts))
        changed = store.read("0.weight", State.MASTER)
        self.assertFalse(torch.equal(before, changed))
        (loss_of(store.model, 0) * math.nan).backward()
        self.clip(store, 1.0, error_if_nonfinite=True)
        with self.assertRaisesRegex(RuntimeError, "step 3 is nan"):
            optimizer.step()
        self.assertTrue(torch.equal(changed, store.read("0.weight", State.MASTER)))
        loss_of(store.model, 0).backward()
        optimizer.step()
        self.assertFalse(optimizer.last.skipped)


class Changes(Case):
    """Of a model, after attach."""

    def test_a_frozen_parameter_stays_frozen(self) -> None:
        model = models.bf16(small)
        model[0].weight.requires_grad_(False)
        store = self.attach(model, unused="zero")
        optimizer = store.optimizer(lr=1e-2)
        for number, text in (
            (0, "0.weight' needs a gradient"),
            (2, "2.weight' needs no gradient"),
        ):
            weight = model[number].weight
            weight.requires_grad_(not weight.requires_grad)
            loss_of(model, 0).backward()
            with self.assertRaisesRegex(RuntimeError, text):
                optimizer.step()
            weight.requires_grad_(not weight.requires_grad)
            optimizer.zero_grad()
        loss_of(model, 0).backward()
        optimizer.step()

    def test_parameters_that_come_later_are_named_once(self) -> None:
        _, store, optimizer = self.pair()
        store.model.append(nn.Linear(4, 4).to(models.DEVICE, torch.bfloat16))
        for told in (True, False):
            loss_of(store.model, 0).backward()
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                optimizer.step()
            texts = [str(w.message) for w in caught if "in no store" in str(w.message)]
            self.assertEqual(len(texts), int(told))
            self.assertTrue(all("2 parameters" in t and "3.weight, 3.bias" in t for t in texts))

    def test_modules_that_are_removed_are_forgotten(self) -> None:
        class Holder(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.used, self.removed = nn.Linear(4, 4), nn.Linear(4, 4)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                result: torch.Tensor = self.used(x)
                return result

        for units in ([], [""]):
            with self.subTest(units=units):
                _, store = self.twins(Holder, units=units)
                store.model.removed.later = nn.Parameter(torch.ones(4))
                later = weakref.ref(store.model.removed.later)
                del store.model.removed
                gc.collect()
                self.assertIsNone(later())
                models.square(store.model, torch.empty(0)).backward()
                store.optimizer(lr=1e-2).step()
                store.close(remove=True)

    def test_other_optimizers_are_refused(self) -> None:
        model = models.bf16(small)
        other = torch.optim.AdamW(model.parameters())
        other.step()
        store = self.attach(model)
        optimizer = store.optimizer(lr=1e-2)
        loss_of(model, 0).backward()
        with self.assertRaisesRegex(RuntimeError, r"AdamW cannot update parameter '0\.weight'"):
            other.step()
        with self.assertRaisesRegex(cistern.CstError, r"zero_grad.* Store\.optimizer"):
            loss_of(model, 1).backward()
        optimizer.zero_grad()
        alone = nn.Linear(2, 2)
        alone(torch.ones(2)).sum().backward()
        before = alone.weight.detach().clone()
        torch.optim.AdamW(alone.parameters()).step()
        self.assertFalse(torch.equal(before, alone.weight))


class OtherWeights(Case):
    """Backward passes of forward passes that had other weights: plain torch refuses them, too."""

    def assert_refused(self, loss: torch.Tensor) -> None:
        text = r"weights of module '2' have changed since its forward pass.* detach"
        with self.assertRaisesRegex(RuntimeError, text):
            loss.backward()

    def assert_goes_on(self, store: ct.Store) -> None:
        twin = models.bf16(small)
        models.copy_weights(store, twin)
        for model in (twin, store.model):
            loss_of(model, 9).backward()
        store.the_optimizer().step()
        self.compare_gradients(twin, store, 0.0)

    def test_after_a_step(self) -> None:
        _, store, optimizer = self.pair()
        stale, loss = loss_of(store.model, 0), loss_of(store.model, 1)
        loss.backward(retain_graph=True)
        optimizer.step()
        self.assert_refused(stale)
        self.assert_refused(loss)
        self.assert_goes_on(store)

    def test_after_writes(self) -> None:
        twin, store, _ = self.pair()
        loss = loss_of(store.model, 0)
        with self.assertRaisesRegex(cistern.CstError, "EBUSY"):
            store.write("2.bias", torch.zeros(4))
        loss.backward()
        loss = loss_of(store.model, 0)
        store.sync()
        store.write("2.bias", torch.zeros(4))
        self.assert_refused(loss)
        loss = loss_of(store.model, 0)
        store.model.load_state_dict(twin.state_dict())
        self.assert_refused(loss)
        self.assert_goes_on(store)

    def test_a_state_that_is_not_detached(self) -> None:
        _, store, optimizer = self.pair()
        first = loss_of(store.model, 0)
        first.backward(retain_graph=True)
        optimizer.step()
        self.assert_refused(loss_of(store.model, 1) + first)
        self.assert_goes_on(store)

    def test_what_has_not_changed_is_accepted(self) -> None:
        """Frozen units and steps that were given up."""
        model = models.bf16(small)
        model[2].requires_grad_(False)
        store = self.attach(model)
        store.optimizer(lr=1e-2)
        batch = torch.ones(2, 16, dtype=torch.bfloat16, device=models.DEVICE).requires_grad_()
        through = model[2](batch).sum()
        loss = loss_of(model, 0)
        store.sync()
        loss.backward()
        store.the_optimizer().step()
        through.backward()
        self.assertTrue(bool(batch.grad.abs().sum() > 0))


class Reading(Case):
    def test_a_gradient_is_read_after_its_step(self) -> None:
        twin, store, optimizer = self.pair()
        for seed in range(2):
            models.copy_weights(store, twin)
            loss_of(store.model, seed).backward()
            with self.assertRaisesRegex(cistern.CstError, "not complete.*EBUSY"):
                store.read("2.weight", State.GRAD)
            optimizer.step()
            loss_of(twin, seed).backward()
            self.compare_gradients(twin, store, 0.0)
        loss_of(store.model, 5).backward()
        optimizer.zero_grad()
        with self.assertRaisesRegex(cistern.CstError, "not complete.*EBUSY"):
            store.read("2.weight", State.GRAD)


class Steps(Case):
    def test_a_step_without_gradients_is_refused(self) -> None:
        _, store, optimizer = self.pair()
        before = store.read("0.weight", State.MASTER)
        with self.assertRaisesRegex(RuntimeError, "there are no gradients"):
            optimizer.step()
        loss_of(store.model, 0).backward()
        optimizer.zero_grad()
        with self.assertRaisesRegex(RuntimeError, "there are no gradients"):
            optimizer.step()
        self.assertTrue(torch.equal(before, store.read("0.weight", State.MASTER)))
        loss_of(store.model, 0).backward()
        optimizer.step()
        self.assertEqual(store.step_no, 1)


class Advice(Case):
    """Errors say what to do, in words of Python."""

    def test_grad_is_set_by_hand(self) -> None:
        def with_spare() -> nn.Module:
            model = small()
            model[0].spare = nn.Parameter(torch.ones(4))
            return model

        _, store = self.twins(with_spare)
        optimizer, spare = store.optimizer(lr=1e-2), store.model[0].spare
        loss_of(store.model, 0).backward()
        with self.assertRaisesRegex(RuntimeError, "'0.weight' cannot be set.*register_hook"):
            store.model[0].weight.grad = torch.zeros(16, 16).to(models.DEVICE, torch.bfloat16)
        spare.grad = torch.zeros_like(spare, device=models.DEVICE)  # It had none.
        with self.assertRaisesRegex(cistern.CstError, "module '0' was set after the backward pass"):
            optimizer.step()
        spare.grad = None
        optimizer.step()
        self.assertGreater(optimizer.last.grad_norm, 0)

    def test_a_job_of_another_model(self) -> None:
        self.attach(models.bf16(small)).close()
        text = f"another name, or remove it: cistern rm {self.name}"
        with self.assertRaisesRegex(ct.Mismatch, text):
            self.attach(models.bf16(lambda: nn.Linear(2, 2)))
        with self.assertRaisesRegex(ct.Mismatch, text):
            self.attach(models.bf16(small), masters="split")

    def test_the_directory_of_checkpoints_is_no_model(self) -> None:
        store = self.attach(models.bf16(small))
        with tempfile.TemporaryDirectory() as folder:
            with self.assertRaisesRegex(cistern.CstError, f"no safetensors files in '{folder}'"):
                self.attach(models.bf16(small), "other", load=folder)
            store.save(folder)
            step = f"{folder}/step-00000000"
            with self.assertRaisesRegex(cistern.CstError, f"resume='{folder}' .* load='{step}' "):
                self.attach(models.bf16(small), "other", load=folder)
            self.attach(models.bf16(small), "other", load=step)

    def test_copies_of_parts(self) -> None:
        _, store, optimizer = self.pair()
        for copied in (copy.deepcopy, pickle.dumps):
            with self.assertRaisesRegex(TypeError, r"state_dict\(\) can.* Store.save"):
                copied(optimizer)
        part = store.model[0]
        with self.assertRaisesRegex(RuntimeError, "load_state_dict of the whole model"):
            part.load_state_dict(models.bf16(small)[0].state_dict())

    def test_what_was_discarded_is_said(self) -> None:
        twin, store, optimizer = self.pair()
        loss_of(store.model, 0).backward()
        store.load_state_dict(twin.state_dict())
        with self.assertRaisesRegex(
            RuntimeError, "zero_grad, load_state_dict or sync has discarded"
        ):
            optimizer.step()

    def test_a_daemon_that_is_gone(self) -> None:
        gone = error_of(cistern.Status.ECONN, "the peer closed the connection")
        self.assertRegex(str(gone), "connection. When the daemon runs again, .*resume=")

    def test_an_optimizer_is_missing(self) -> None:
        _, store = self.twins(small)
        loss_of(store.model, 0).backward()
        with self.assertRaisesRegex(RuntimeError, r"Store.optimizer or, .* ct\.hf\.connect"):
            torch.nn.utils.clip_grad_norm_(store.model.parameters(), 1.0)


class Arguments(Case):
    def test_bad_ones_are_found_at_once(self) -> None:
        _, store, optimizer = self.pair()
        for options, text in (
            ({"lr": math.nan}, "lr is nan"),
            ({"lr": math.inf}, "lr is inf"),
            ({"lr": -1.0}, "lr is -1.0"),
            ({"weight_decay": -1.0}, "weight_decay is -1.0"),
            ({"betas": (0.9, 1.0)}, r"betas\[1\] is 1.0"),
            ({"betas": (0.0, 0.0)}, r"betas of \(0, 0\)"),
            ({"eps": 0.0}, "an eps of 0"),
            ({"clip_norm": -1.0}, "clip_norm is -1.0"),
            ({"grad_scale": 0.0}, "a grad_scale of 0"),
        ):
            with self.assertRaisesRegex(ValueError, text):
                store.optimizer(**({"lr": 1e-2} | options))
        self.assertIs(store.the_optimizer(), optimizer)

    def test_those_of_attach_have_names(self) -> None:
        store = self.attach(models.bf16(small), masters="split", moments="bf16", overlap="commit")
        self.assertIn("step 0", str(store))
        store.close(remove=True)
        if not torch.cuda.is_available():
            with self.assertRaisesRegex(ValueError, "no GPU here.*device='cpu'"):
                self.attach(models.bf16(small), device="cuda")

    def test_the_state_of_another_optimizer_is_refused(self) -> None:
        twin, _, optimizer = self.pair()
        with self.assertRaisesRegex(ValueError, "without betas, and not of AdamW"):
            optimizer.load_state_dict(torch.optim.SGD(twin.parameters()).state_dict())
        state = optimizer.state_dict()
        state["param_groups"] *= 2
        with self.assertRaisesRegex(ValueError, "1 groups, not 2"):
            optimizer.load_state_dict(state)
