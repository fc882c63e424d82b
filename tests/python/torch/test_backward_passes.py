# SPDX-License-Identifier: Apache-2.0
"""Several backward passes of one micro-batch: gradients are those of plain torch, bit for bit."""

import copy
import functools
from collections.abc import Callable
from typing import Any

import models
import torch
from cistern import CstError
from models import TorchCase
from torch import nn
from torch.utils.checkpoint import checkpoint


class Heads(nn.Module):
    """A trunk and two heads. ``recompute`` is None, or whether the layers' checkpoints are reentrant."""

    def __init__(self, recompute: bool | None = None) -> None:
        super().__init__()
        self.trunk = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.one = nn.Linear(8, 4)
        self.two = nn.Linear(8, 4)
        self.recompute = recompute

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        for layer in self.trunk:
            x = x + (
                layer(x)
                if self.recompute is None
                else checkpoint(layer, x, use_reentrant=self.recompute)
            )
        return self.one(x), self.two(x)


def losses(model: nn.Module, i: int) -> tuple[torch.Tensor, torch.Tensor]:
    dtype = next(model.parameters()).dtype
    x = torch.randn(5, 8, generator=torch.Generator().manual_seed(i)).to(models.DEVICE, dtype)
    one, two = model(x.requires_grad_())
    return one.float().square().mean(), (two.float() - 1).abs().mean()


def retained(model: nn.Module, i: int) -> None:
    one, two = losses(model, i)
    one.backward(retain_graph=True)
    two.backward()


def retained_for_nothing(model: nn.Module, i: int) -> None:
    one, two = losses(model, i)
    one.backward(retain_graph=True)
    (one * two).backward(retain_graph=True)
    (one + two).backward(retain_graph=True)


def two_runs(model: nn.Module, i: int) -> None:
    first, second = losses(model, i), losses(model, i + 50)
    first[0].backward()
    (second[0] + second[1]).backward()


def evaluated_between(model: nn.Module, i: int) -> None:
    one, two = losses(model, i)
    one.backward(retain_graph=True)
    with torch.no_grad():
        losses(model, i + 50)
    two.backward()


def another_run_waits(model: nn.Module, i: int) -> None:
    losses(model, i + 50)
    sum(losses(model, i)).backward()


def gradients_of_inputs(model: nn.Module, i: int) -> None:
    dtype = next(model.parameters()).dtype
    x = torch.randn(5, 8, generator=torch.Generator().manual_seed(i)).to(models.DEVICE, dtype)
    one, two = model(x.requires_grad_())
    (inner,) = torch.autograd.grad(one.float().square().sum(), [x], retain_graph=True)
    (one.float().mean() + (two.float() * inner.float().sum()).square().mean()).backward()


PASSES = (
    retained,
    retained_for_nothing,
    two_runs,
    evaluated_between,
    another_run_waits,
    gradients_of_inputs,
)


class BackwardPasses(TorchCase):
    def compare(
        self,
        passes: Callable[[nn.Module, int], None],
        make: Callable[[], nn.Module] = Heads,
        bf16: bool = False,
        n_passes: int = 1,
        **options: Any,
    ) -> None:
        """Train 3 steps beside plain torch. Gradients are compared, and weights are copied each time."""
        model = models.bf16(make) if bf16 else make().to(models.DEVICE)
        twin = copy.deepcopy(model)
        store = self.attach(model, **options)
        optimizer = store.optimizer(lr=1e-2)
        for step in range(3):
            models.copy_weights(store, twin)
            for each in (store.model, twin):
                for i in range(n_passes):
                    passes(each, 10 * step + i)
            optimizer.step()
            self.compare_gradients(twin, store, 0 if n_passes == 1 else 0.02)
        store.close(remove=True)

    def test_gradients_are_those_of_plain_torch(self) -> None:
        for passes in PASSES:
            for bf16 in (False, True):
                with self.subTest(passes.__name__, bf16=bf16):
                    self.compare(passes, bf16=bf16)

    def test_in_each_of_several_micro_batches(self) -> None:
        for passes in PASSES:
            with self.subTest(passes.__name__):
                self.compare(passes, n_passes=2, micro_batches=2)

    def test_in_the_smallest_pool(self) -> None:
        pool = self.least_pool(Heads, 512)
        for passes in PASSES:
            with self.subTest(passes.__name__):
                self.compare(passes, bf16=True, pool=pool, chunk_elems=512)

    def test_with_activations_that_are_computed_again(self) -> None:
        for reentrant in (False, True):
            # torch refuses gradients of inputs with reentrant checkpoints.
            for passes in PASSES[: -1 if reentrant else None]:
                with self.subTest(passes.__name__, reentrant=reentrant):
                    self.compare(passes, functools.partial(Heads, reentrant))

    def test_in_one_block_of_autocast(self) -> None:
        twin = models.llama().to(models.DEVICE)
        store = self.attach(copy.deepcopy(twin), micro_batches=2)
        optimizer = store.optimizer(lr=1e-2)
        for _ in range(2):
            models.copy_weights(store, twin)
            batches = models.tokens(), models.tokens()
            for model in (twin, store.model):
                with torch.autocast(torch.device(models.DEVICE).type, torch.bfloat16):
                    for batch in batches:
                        models.loss_of(model, batch).backward()
            optimizer.step()
            self.compare_gradients(twin, store, 0.02)

    def test_a_forward_pass_begins_another_micro_batch(self) -> None:
        store = self.attach(Heads())
        optimizer = store.optimizer(lr=1e-2)
        one, _ = losses(store.model, 0)
        one.backward(retain_graph=True)
        with self.assertRaisesRegex(CstError, "has had all its backward passes"):
            losses(store.model, 1)[0].backward()
        optimizer.zero_grad()
        retained(store.model, 2)
        optimizer.step()

    def test_what_is_discarded_between_two_of_them(self) -> None:
        twin = Heads()
        store = self.attach(copy.deepcopy(twin))
        optimizer = store.optimizer(lr=1e-2)
        for model in (twin, store.model):
            one, two = losses(model, 0)
            one.backward(retain_graph=True)
            model.zero_grad()
            two.backward()
        optimizer.step()
        for name, parameter in twin.named_parameters():
            if parameter.grad is not None:
                self.assertEqual(
                    models.bits(store.model.get_parameter(name).grad),
                    models.bits(parameter.grad),
                    name,
                )
