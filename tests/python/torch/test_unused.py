# SPDX-License-Identifier: Apache-2.0
"""Parameters without a gradient in a step, beside torch.optim.AdamW."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable
from typing import Any

import cistern.torch as ct
import models
import torch
from cistern import Mismatch, Optimizer, Overlap, State
from models import TorchCase, bits
from test_ranks import in_two_threads
from torch import nn

WIDTH = 24
N_EXPERTS = 4
OPTIONS = {"lr": 1e-2, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}
_STATES = (State.WEIGHT, State.MASTER, State.EXP_AVG, State.EXP_AVG_SQ)


class Mixture(nn.Module):
    """Experts of which each step uses those in ``chosen``, with heads that take turns."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(WIDTH, WIDTH)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(N_EXPERTS))
        self.heads = nn.ModuleList(nn.Linear(WIDTH, 3) for _ in range(2))
        self.chosen = [0]
        self.head = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x).tanh()
        for number in self.chosen:
            x = x + self.experts[number](x).tanh()
        return self.heads[self.head](x).float().square().mean()


def discard_in_pass(model: nn.Module, wanted: Callable[[], bool] = lambda: True) -> Any:
    """Discard the gradients of a head in backward passes in which it is wanted."""

    def discard(_: nn.Parameter) -> None:
        if wanted():
            model.heads[0].zero_grad()

    return model.stem.weight.register_post_accumulate_grad_hook(discard)


def some(dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(5, WIDTH).to(models.DEVICE, dtype)


class UnusedCase(TorchCase):
    """Compares each step of a store with one of torch.optim.AdamW from the same states."""

    is_delayed = False

    def begin(self, dtype: torch.dtype, **options: Any) -> None:
        self.dtype = dtype
        model = Mixture().to(models.DEVICE, dtype)
        self.twin = copy.deepcopy(model)
        self.store = self.attach(model, **options)
        self.optimizer = self.store.optimizer(**OPTIONS)
        self.steps = dict.fromkeys((name for name, _ in model.named_parameters()), 0)

    def read(self) -> dict[str, dict[State, torch.Tensor]]:
        return {name: {s: self.store.read(name, s) for s in _STATES} for name in self.steps}

    def backward(self, x: torch.Tensor) -> None:
        """Compute gradients of both models, which have the same weights."""
        for model in (self.store.model, self.twin):
            model(x).backward()

    def step(
        self, change: Callable[[nn.Module], None] = lambda _: None, n_backward: int = 1
    ) -> None:
        """Do a step, and compare it. ``change`` is called for both models before the update."""
        models.copy_weights(self.store, self.twin)
        for _ in range(n_backward):
            self.backward(some(self.dtype))
        for model in (self.store.model, self.twin):
            change(model)
        before = self.read()
        self.optimizer.step()
        for name, parameter in self.twin.named_parameters():
            now = {state: self.store.read(name, state) for state in _STATES}
            if parameter.grad is None:
                self.assert_kept(name, before[name], now)
            else:
                # With delayed updates, the model and its twin have different weights.
                grad = self.store.read(name, State.GRAD) if self.is_delayed else parameter.grad
                self.steps[name] += 1
                self.assert_updated(name, before[name], now, grad)

    def assert_kept(self, name: str, before: dict[Any, Any], now: dict[Any, Any]) -> None:
        for state in _STATES:
            same = bits(before[state]) == bits(now[state])
            self.assertTrue(same, f"{state.name} of {name}, which has no gradient")

    def assert_updated(
        self, name: str, before: dict[Any, Any], now: dict[Any, Any], grad: torch.Tensor
    ) -> None:
        plain = nn.Parameter(before[State.MASTER].clone())
        plain.grad = grad.cpu().float()
        theirs = torch.optim.AdamW([plain], **OPTIONS)
        theirs.state[plain] = {
            "step": torch.tensor(float(self.steps[name] - 1)),
            "exp_avg": before[State.EXP_AVG].clone(),
            "exp_avg_sq": before[State.EXP_AVG_SQ].clone(),
        }
        theirs.step()
        ours = now[State.MASTER]
        moved = (plain.detach() - before[State.MASTER]).abs()
        ulp = torch.finfo(torch.float32).eps * plain.detach().abs()
        wrong = (ours - plain.detach()).abs() > ulp + 1e-6 * moved + 1e-12
        self.assertFalse(wrong.any(), f"{name} after its step {self.steps[name]}")
        if self.dtype == torch.bfloat16:
            self.assertTrue(torch.equal(now[State.WEIGHT], ours.bfloat16()), name)

    def use(self, chosen: list[int], head: int = 0) -> None:
        for model in (self.store.model, self.twin):
            model.chosen, model.head = chosen, head


class Idle(UnusedCase):
    def test_idle_experts_are_skipped_in_bf16(self) -> None:
        self.run_mixture(torch.bfloat16)

    def test_idle_experts_are_skipped_in_fp32(self) -> None:
        self.run_mixture(torch.float32)

    def test_idle_experts_of_small_chunks_are_skipped(self) -> None:
        """Then most chunks have one tensor, and a chunk is idle as a whole."""
        self.run_mixture(torch.bfloat16, chunk_elems=WIDTH * WIDTH)

    def test_idle_experts_are_skipped_with_delayed_updates(self) -> None:
        self.is_delayed = True
        self.run_mixture(torch.bfloat16, overlap=Overlap.DELAYED)

    def test_idle_experts_are_skipped_with_split_masters_and_bf16_moments(self) -> None:
        self.begin(torch.bfloat16, masters="split", moments="bf16")
        for step in range(6):
            self.use([step % N_EXPERTS])
            before = self.read()
            self.store.model(some(self.dtype)).backward()
            self.optimizer.step()
            for name in self.steps:
                idle = name.startswith("experts") and f".{step % N_EXPERTS}." not in name
                now = {state: self.store.read(name, state) for state in _STATES}
                if idle or name.startswith("heads.1"):
                    self.assert_kept(name, before[name], now)
                else:
                    self.assertNotEqual(bits(before[name][State.MASTER]), bits(now[State.MASTER]))

    def run_mixture(self, dtype: torch.dtype, **options: Any) -> None:
        self.begin(dtype, **options)
        for chosen in ([0], [1, 2], [0], [3], [2, 0], [1]):
            self.use(chosen)
            self.step()

    def test_heads_take_turns(self) -> None:
        self.begin(torch.bfloat16)
        for step in range(6):
            self.use([0], head=step % 2)
            self.step()

    def test_a_gradient_in_any_micro_batch_counts(self) -> None:
        self.begin(torch.bfloat16, micro_batches=2)
        for step in range(4):
            models.copy_weights(self.store, self.twin)
            for head in range(2):
                self.use([step % N_EXPERTS, (step + head) % N_EXPERTS], head=head)
                self.store.model(some(self.dtype)).backward()
            idle = [
                n for n in range(N_EXPERTS) if n not in (step % N_EXPERTS, (step + 1) % N_EXPERTS)
            ]
            before = self.read()
            self.optimizer.step()
            for name in self.steps:
                now = {state: self.store.read(name, state) for state in _STATES}
                if any(name.startswith(f"experts.{n}.") for n in idle):
                    self.assert_kept(name, before[name], now)
                else:
                    self.assertNotEqual(bits(before[name][State.MASTER]), bits(now[State.MASTER]))

    def test_zero_moves_what_has_no_gradient(self) -> None:
        self.begin(torch.bfloat16, unused="zero")
        self.use([0])
        before = self.store.read("experts.1.weight", State.MASTER)
        self.backward(some(self.dtype))
        self.optimizer.step()
        now = self.store.read("experts.1.weight", State.MASTER)
        decayed = before * (1 - OPTIONS["lr"] * OPTIONS["weight_decay"])
        self.assertTrue(torch.allclose(now, decayed, atol=0))
        self.assertFalse(torch.equal(now, before))

    def test_other_optimizers_skip_too(self) -> None:
        for rule in Optimizer:
            with self.subTest(rule.name):
                model = Mixture().to(models.DEVICE, torch.bfloat16)
                store = self.attach(model, f"{self.name[:40]}{rule.name}", optimizer=rule)
                optimizer = store.optimizer(lr=1e-2, betas=(0.9, 0.99))
                name = "experts.1.weight"
                for chosen in ([1], [0], [0]):
                    model.chosen = chosen
                    before = store.read(name, State.MASTER)
                    moment = store.read(name, State.EXP_AVG)
                    model(some(torch.bfloat16)).backward()
                    optimizer.step()
                    kept = bits(store.read(name, State.MASTER)) == bits(before)
                    kept_moment = bits(store.read(name, State.EXP_AVG)) == bits(moment)
                    self.assertEqual((kept, kept_moment), (chosen == [0],) * 2)
                store.close(remove=True)

    def test_the_norm_is_that_of_the_gradients_there_are(self) -> None:
        self.begin(torch.bfloat16)
        self.use([0])
        self.step()
        grads = [p.grad for p in self.twin.parameters() if p.grad is not None]
        norm = torch.nn.utils.get_total_norm([grad.float() for grad in grads])
        self.assertAlmostEqual(self.optimizer.norm.item(), norm.item(), places=5)


class Discarded(UnusedCase):
    def test_recipe_of_dino(self) -> None:
        """The last layer has no gradient in the first steps: ``p.grad = None`` before the step."""

        def cancel(model: nn.Module) -> None:
            for name, parameter in model.named_parameters():
                if name.startswith("heads.0"):
                    parameter.grad = None

        for dtype in (torch.bfloat16, torch.float32):
            with self.subTest(dtype):
                self.name = f"{self.name[:40]}{str(dtype)[-4:]}"
                self.begin(dtype)
                for step in range(5):
                    self.step(cancel if step < 3 else lambda _: None)
                    grads = [p.grad for p in self.twin.parameters() if p.grad is not None]
                    norm = torch.nn.utils.get_total_norm([grad.float() for grad in grads])
                    self.assertAlmostEqual(self.optimizer.norm.item(), norm.item(), places=5)

    def test_zero_grad_of_a_part(self) -> None:
        self.begin(torch.bfloat16)
        self.step(lambda model: model.heads[0].zero_grad())

    def test_a_discarded_gradient_that_is_not_finite_does_not_skip_the_step(self) -> None:
        self.begin(torch.bfloat16)
        weight = dict(self.store.model.named_parameters())["heads.0.weight"]
        handle = weight.register_hook(lambda grad: torch.full_like(grad, torch.inf))

        def cancel(model: nn.Module) -> None:
            model.heads[0].weight.grad = None

        self.step(cancel)
        handle.remove()
        self.assertFalse(self.optimizer.last.overflow)
        self.step()

    def test_of_a_parameter_that_was_frozen_since_its_backward_pass(self) -> None:
        """Frozen or not, its gradient counts in plain torch, until it is discarded."""

        def freeze(model: nn.Module) -> None:
            model.heads[0].weight.requires_grad_(False)

        def cancel(model: nn.Module) -> None:
            freeze(model)
            model.heads[0].weight.grad = None

        self.begin(torch.float32)
        for change in (freeze, cancel, lambda _: None):
            for model in (self.store.model, self.twin):
                model.heads[0].weight.requires_grad_(True)
            self.step(change)

    def test_it_comes_before_clipping_and_after_the_last_micro_batch(self) -> None:
        self.begin(torch.bfloat16, micro_batches=2)
        model = self.store.model
        model(some(self.dtype)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        with self.assertRaisesRegex(RuntimeError, "comes after clip_grad_norm_"):
            model.heads[0].weight.grad = None
        self.optimizer.zero_grad()
        model(some(self.dtype)).backward()
        model.heads[0].weight.grad = None
        with self.assertRaisesRegex(RuntimeError, "heads.0.weight.*was discarded"):
            model(some(self.dtype)).backward()
        self.optimizer.zero_grad()
        self.step(n_backward=1)


class Held(UnusedCase):
    """``grad = None`` while autograd holds gradients, because their graph is retained."""

    def begin(self, dtype: torch.dtype, **options: Any) -> None:
        super().begin(dtype, **{"micro_batches": 2} | options)

    choices = ([0], [0])  #: The experts of the two micro-batches.

    def half(self, model: nn.Module, *, retain_graph: bool) -> torch.Tensor:
        model.chosen = self.choices[len(self.inputs) - 1]
        loss: torch.Tensor = model(self.inputs.pop()) / 2
        loss.backward(retain_graph=retain_graph)
        return loss

    def both(
        self, second: Callable[[nn.Module, torch.Tensor], None], dtype: torch.dtype = torch.float32
    ) -> None:
        """Do steps of two micro-batches. ``second`` gets a model, and the loss with its graph."""
        self.begin(dtype)
        for _ in range(3):
            models.copy_weights(self.store, self.twin)
            inputs = [some(dtype), some(dtype)]
            for model in (self.twin, self.store.model):
                self.inputs = list(inputs)
                self.half(model, retain_graph=False)
                second(model, self.half(model, retain_graph=True))
            before = self.read()
            self.optimizer.step()
            for name, parameter in self.twin.named_parameters():
                now = {state: self.store.read(name, state) for state in _STATES}
                if parameter.grad is None:
                    self.assert_kept(name, before[name], now)
                else:
                    self.steps[name] += 1
                    grad = self.store.read(name, State.GRAD)
                    torch.testing.assert_close(grad, parameter.grad.cpu())
                    if dtype is torch.float32:  # Else the update has a finer sum.
                        self.assert_updated(name, before[name], now, grad)
                    self.assertNotEqual(bits(before[name][State.MASTER]), bits(now[State.MASTER]))
            grads = [p.grad for p in self.twin.parameters() if p.grad is not None]
            norm = torch.nn.utils.get_total_norm([grad.float() for grad in grads])
            torch.testing.assert_close(self.optimizer.norm, norm.cpu(), rtol=1e-2, atol=0)

    def test_gradients_of_both_micro_batches_are_discarded(self) -> None:
        def cancel(model: nn.Module, _: torch.Tensor) -> None:
            model.heads[0].weight.grad = None
            model.experts[0].zero_grad()
            model.stem.bias.grad = None

        for dtype in (torch.float32, torch.bfloat16):
            with self.subTest(dtype):
                self.name = f"{self.name[:40]}{str(dtype)[-4:]}"
                self.both(cancel, dtype)

    def test_ranks_of_which_one_holds_gradients(self) -> None:
        """Two ranks, of which one or both retain their graphs, are one process with the mean of both."""
        for retains in ((True, False), (True, True)):
            for micro_batches in (1, 2):
                with self.subTest(retains=retains, micro_batches=micro_batches):
                    self.run_ranks(retains, micro_batches)

    def run_ranks(self, retains: tuple[bool, bool], micro_batches: int) -> None:
        n_steps, options = 3, {"world": 2, "micro_batches": micro_batches}
        made = [[some(torch.float32) for _ in range(2 * micro_batches)] for _ in range(n_steps)]
        model = Mixture().to(models.DEVICE)
        twin = copy.deepcopy(model)
        found: dict[int, dict[str, torch.Tensor]] = {}

        def run(rank: int) -> None:
            store = ct.attach(
                copy.deepcopy(model), self.name, rank=rank, device=models.DEVICE, **options
            )
            optimizer = store.optimizer(**OPTIONS)
            try:
                for batches in made:
                    for x in batches[rank::2]:
                        loss = store.model(x) / micro_batches
                        loss.backward(retain_graph=retains[rank])
                    cancel(store.model)
                    optimizer.step()
                store.sync()
                found[rank] = store.state_dict()
            finally:
                store.job.close()

        def cancel(model: nn.Module) -> None:
            model.heads[0].weight.grad = None
            model.experts[0].zero_grad()

        self.addCleanup(self.remove, self.name)
        self.assertEqual(in_two_threads(run), {})
        self.remove(self.name)
        plain = torch.optim.AdamW(twin.parameters(), **OPTIONS)
        for batches in made:
            for x in batches:
                (twin(x) / len(batches)).backward()
            cancel(twin)
            plain.step()
            plain.zero_grad()
        for name, parameter in twin.named_parameters():
            for rank in range(2):
                torch.testing.assert_close(found[rank][name], parameter.detach().cpu())
            if name.startswith("experts") or name == "heads.0.weight":
                first = model.get_parameter(name).detach().cpu()
                self.assertEqual(bits(found[0][name]), bits(first), name)

    def test_one_rank_alone_cannot_discard_a_gradient(self) -> None:
        """Whether it holds the gradient of its last micro-batch or not."""
        model = Mixture().to(models.DEVICE)
        for retains, n in ((False, 1), (False, 2), (True, 1), (True, 2)):

            def run(rank: int, retains: bool = retains, n: int = n) -> None:
                options = {"rank": rank, "world": 2, "micro_batches": n, "device": models.DEVICE}
                store = ct.attach(copy.deepcopy(model), self.name, **options)
                optimizer = store.optimizer(**OPTIONS)
                try:
                    for _ in range(n):
                        store.model(some(torch.float32)).backward(retain_graph=retains)
                    if rank == 0:
                        store.model.heads[0].weight.grad = None
                    optimizer.step()
                finally:
                    store.job.close()

            with self.subTest(retains=retains, micro_batches=n):
                raised = in_two_threads(run)
                self.remove(self.name)
                self.assertGreater(len(raised), 0)
                for error in raised.values():
                    self.assertRegex(str(error), "heads.0.weight.*discard|void|died")

    def test_a_hook_discards_those_of_both(self) -> None:
        """In the second pass, when the gradient of the first one is handed in."""
        discarded = []

        def cancel(parameter: nn.Parameter) -> None:
            if not self.inputs:
                parameter.grad = None
                discarded.append(parameter)

        def hook(model: nn.Module, _: torch.Tensor) -> None:
            if not hasattr(model, "is_hooked"):
                model.is_hooked = True
                model.stem.weight.register_post_accumulate_grad_hook(cancel)
            elif model is self.twin:  # Then the store must have kept the parameter.
                self.assertIsNone(model.stem.weight.grad)

        self.both(hook)
        self.assertEqual(len(discarded), 4)  # Two steps of two models.

    def test_a_hook_discards_those_of_a_part_of_the_model(self) -> None:
        def second(model: nn.Module, _: torch.Tensor) -> None:
            if not hasattr(model, "is_hooked"):
                model.is_hooked = True
                discard_in_pass(model, lambda: not self.inputs)

        self.both(second)

    def test_a_later_micro_batch_cannot_add_to_what_a_hook_has_discarded(self) -> None:
        """The daemon has the first one's gradient, and would add the third one's."""
        self.begin(torch.float32, micro_batches=3)
        model = self.store.model
        model(some(torch.float32)).backward()
        hook = discard_in_pass(model)
        model(some(torch.float32)).backward()
        hook.remove()
        with self.assertRaisesRegex(RuntimeError, r"heads.0.*was discarded"):
            model(some(torch.float32)).backward()

    def test_a_hook_discards_nothing_if_no_parameter_is_skipped(self) -> None:
        self.begin(torch.float32, unused="zero")
        model = self.store.model
        model(some(torch.float32)).backward()
        discard_in_pass(model)
        with self.assertRaisesRegex(RuntimeError, "zero_grad of a part of a model discards no"):
            model(some(torch.float32)).backward()

    def test_a_hook_of_one_rank_alone_cannot_discard_a_gradient(self) -> None:
        model = Mixture().to(models.DEVICE)

        def run(rank: int) -> None:
            options = {"rank": rank, "world": 2, "micro_batches": 2, "device": models.DEVICE}
            store = ct.attach(copy.deepcopy(model), self.name, **options)
            optimizer = store.optimizer(**OPTIONS)
            try:
                store.model(some(torch.float32)).backward()
                if rank == 0:
                    discard_in_pass(store.model)
                store.model(some(torch.float32)).backward()
                optimizer.step()
            finally:
                store.job.close()

        raised = in_two_threads(run)
        self.remove(self.name)
        self.assertGreater(len(raised), 0)
        for error in raised.values():
            self.assertRegex(str(error), r"heads.0.*discard|void|died")

    def test_what_has_none_in_one_of_them(self) -> None:
        """The expert that only the second micro-batch uses has been handed in by none."""

        def cancel(model: nn.Module, _: torch.Tensor) -> None:
            model.experts[1].weight.grad = None
            model.experts[2].weight.grad = None

        self.choices = [[1], [2]]
        self.both(cancel)

    def test_another_backward_pass_of_the_same_graph_is_refused(self) -> None:
        """The daemon cannot take one part out of the sum."""
        self.begin(torch.float32)
        for again in (self.optimizer.step, lambda: self.store.model(some(torch.float32))):
            self.inputs = [some(torch.float32), some(torch.float32)]
            self.half(self.store.model, retain_graph=False)
            loss = self.half(self.store.model, retain_graph=True)
            self.store.model.heads[0].weight.grad = None
            loss.backward(retain_graph=True)
            for _ in range(2):
                with self.assertRaisesRegex(RuntimeError, "heads.0.weight.*was discarded"):
                    again()
            self.optimizer.zero_grad()
        self.inputs = [some(torch.float32), some(torch.float32)]
        self.half(self.store.model, retain_graph=False)
        self.half(self.store.model, retain_graph=False)
        self.optimizer.step()

    def test_another_backward_pass_after_what_was_not_handed_in(self) -> None:
        """Then its gradient alone counts, as in plain torch."""

        def again(model: nn.Module, loss: torch.Tensor) -> None:
            model.experts[2].weight.grad = None
            loss.backward(retain_graph=True)

        self.choices = [[2], [1]]
        self.both(again)

    def test_it_comes_before_clipping(self) -> None:
        self.begin(torch.float32, micro_batches=1)
        self.inputs = [some(torch.float32)]
        self.half(self.store.model, retain_graph=True)
        torch.nn.utils.clip_grad_norm_(self.store.model.parameters(), 1.0)
        with self.assertRaisesRegex(RuntimeError, "comes after clip_grad_norm_"):
            self.store.model.heads[0].weight.grad = None

    def test_a_part_of_the_sum_cannot_be_read(self) -> None:
        self.begin(torch.float32)
        weight = self.store.model.heads[0].weight
        self.inputs = [some(torch.float32), some(torch.float32)]
        self.half(self.store.model, retain_graph=True)
        self.assertGreater(weight.grad.abs().max(), 0)
        self.half(self.store.model, retain_graph=True)
        with self.assertRaisesRegex(RuntimeError, "cannot be read.*sums it in the step"):
            weight.grad.mul_(2)
        self.store.model.heads[0].zero_grad(set_to_none=False)
        before = self.read()["heads.0.weight"]
        self.optimizer.step()
        self.assert_kept("heads.0.weight", before, self.read()["heads.0.weight"])

    def test_zero_refuses(self) -> None:
        self.begin(torch.float32, unused="zero")
        self.inputs = [some(torch.float32), some(torch.float32)]
        self.half(self.store.model, retain_graph=True)
        self.store.model.heads[0].weight.grad = None  # Nothing is handed in.
        self.half(self.store.model, retain_graph=True)
        self.store.model.heads[1].weight.grad = None  # It has none.
        with self.assertRaisesRegex(RuntimeError, "unused='zero'"):
            self.store.model.stem.weight.grad = None


class Trainable(UnusedCase):
    def test_a_frozen_parameter_is_trained_later(self) -> None:
        for dtype in (torch.bfloat16, torch.float32):
            with self.subTest(dtype):
                self.name = f"{self.name[:40]}{str(dtype)[-4:]}"
                self.dtype = dtype
                model = Mixture().to(models.DEVICE, dtype)
                model.stem.requires_grad_(False)
                model.experts.requires_grad_(False)
                self.twin = copy.deepcopy(model)
                self.store = self.attach(model, trainable=lambda name, _: name.startswith("stem"))
                self.optimizer = self.store.optimizer(**OPTIONS)
                self.steps = {
                    name: 0 for name, _ in model.named_parameters() if "experts" not in name
                }
                frozen = bits(self.store.read("experts.0.weight"))
                self.unfreeze()
                self.assertEqual(frozen, bits(self.store.read("experts.0.weight")))

    def unfreeze(self) -> None:
        for freeze in (None, None, False, False, True, False):
            for model in (self.store.model, self.twin):
                if freeze is not None:
                    model.stem.requires_grad_(not freeze)
            self.step()

    def step(
        self, change: Callable[[nn.Module], None] = lambda _: None, n_backward: int = 1
    ) -> None:
        twin, self.twin = self.twin, _Part(self.twin)
        super().step(change, n_backward)
        self.twin = twin

    def test_what_was_not_declared_is_refused(self) -> None:
        model = Mixture().to(models.DEVICE)
        model.stem.requires_grad_(False)
        store = self.attach(model)
        model.stem.requires_grad_(True)
        model(some(torch.float32)).backward()
        with self.assertRaisesRegex(RuntimeError, "give attach trainable="):
            store.optimizer(lr=1e-3).step()

    def test_options_that_do_not_go_together(self) -> None:
        with self.assertRaisesRegex(ValueError, "unused='skip'"):
            ct.attach(Mixture(), self.name, unused="zero", trainable=lambda *_: True)
        with self.assertRaisesRegex(ValueError, "early updates"):
            ct.attach(Mixture(), self.name, unused="skip", overlap="early")
        with self.assertRaisesRegex(ValueError, "unused"):
            ct.attach(Mixture(), self.name, unused="perhaps")


class _Part(nn.Module):
    """A model without its experts as parameters that are compared."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.stem, self.heads = model.stem, model.heads
        self.whole = [model]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.whole[0](x)


class Continued(UnusedCase):
    """The steps that a parameter has made are kept with its states."""

    def test_checkpoint(self) -> None:
        self.begin(torch.bfloat16)
        for chosen in ([0], [1], [0, 2]):
            self.use(chosen)
            self.step()
        with tempfile.TemporaryDirectory() as folder:
            self.store.save(folder)
            self.store.close(remove=True)
            model = Mixture().to(models.DEVICE, torch.bfloat16)
            self.store = self.attach(model, resume=folder, chunk_elems=WIDTH * WIDTH)
        self.optimizer = self.store.optimizer(**OPTIONS)
        self.go_on()

    def test_reshape(self) -> None:
        self.begin(torch.bfloat16)
        for chosen in ([0], [1], [0, 2]):
            self.use(chosen)
            self.step()
        self.store.close()
        model = Mixture().to(models.DEVICE, torch.bfloat16)
        self.store = self.attach(model, reshape=True, chunk_elems=WIDTH * WIDTH, micro_batches=2)
        self.optimizer = self.store.optimizer(**OPTIONS)
        self.go_on()

    def test_a_new_process_goes_on(self) -> None:
        self.begin(torch.bfloat16)
        for chosen in ([0], [1], [0, 2]):
            self.use(chosen)
            self.step()
        self.store.close()
        with self.assertRaisesRegex(Mismatch, "unused skip, not zero"):
            self.attach(Mixture().to(models.DEVICE, torch.bfloat16), unused="zero")
        self.store = self.attach(Mixture().to(models.DEVICE, torch.bfloat16))
        self.optimizer = self.store.optimizer(**OPTIONS)
        self.go_on()

    def go_on(self) -> None:
        for chosen in ([3], [1, 2], [0], [3]):
            self.use(chosen)
            self.step()
        self.assertEqual(self.steps["experts.3.weight"], 2)
