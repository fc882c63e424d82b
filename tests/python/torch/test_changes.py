# SPDX-License-Identifier: Apache-2.0
"""Changes of weights and gradients that only the store may make: none is lost without a word."""

from collections.abc import Callable
from functools import partial

import models
import torch
from cistern import State
from models import TorchCase, square, tokens
from torch import nn

Change = Callable[[nn.Linear], object]


def _into_the_graph(model: nn.Linear) -> None:
    with torch.no_grad():
        model.weight.mul_(2)


CHANGES: dict[str, Change] = {
    "the parameter": _into_the_graph,
    "data": lambda model: model.weight.data.clamp_(0, 0.01),
    "an element of data": lambda model: model.weight.data.view(-1)[3].fill_(5.0),
    "data by an index": lambda model: model.weight.data.__setitem__(0, 5.0),
    "init of data": lambda model: nn.init.zeros_(model.weight.data),
    "detach": lambda model: model.weight.detach().add_(1),
}


class Writer(nn.Linear):
    """Changes its weight in its forward pass, if it is told to."""

    change: Change | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.change is not None:
            self.change()
        return super().forward(x)


class Weights(TorchCase):
    def test_changes_in_place_raise_and_are_undone(self) -> None:
        twin, store = self.twins(lambda: nn.Sequential(Writer(4, 4), nn.Linear(4, 4)))
        writer, want = store.model[0], square(store.model, tokens()).detach()
        for what, change in CHANGES.items():
            for mode in (torch.enable_grad, torch.no_grad, torch.inference_mode):
                with self.subTest(what, mode=mode.__name__), mode():
                    writer.change = change.__get__(writer)
                    with self.assertRaisesRegex(
                        RuntimeError, "'0.weight' was changed in place while module '0' ran"
                    ):
                        square(store.model, tokens())
                    writer.change = None
                    self.assertTrue(torch.equal(square(store.model, tokens()), want))
        self.compare_steps(twin, store, loss=square)

    def test_a_change_in_a_backward_pass(self) -> None:
        _, store = self.twins(lambda: nn.Linear(4, 4))
        weight, want = store.model.weight, square(store.model, tokens())
        hook = weight.register_hook(lambda _: weight.data.zero_())
        with self.assertRaisesRegex(RuntimeError, "'weight' was changed in place"):
            want.backward()
        hook.remove()
        self.assertTrue(torch.equal(square(store.model, tokens()), want))

    def test_a_change_of_gathered_weights(self) -> None:
        _, store = self.twins(lambda: nn.Linear(4, 4))
        weight, want = store.model.weight, square(store.model, tokens())
        with (
            self.assertRaisesRegex(RuntimeError, "'weight' was changed in a block of gather"),
            store.gather("bias", "weight"),
        ):
            weight.data.zero_()
        self.assertTrue(torch.equal(square(store.model, tokens()), want))
        with self.assertRaisesRegex(OverflowError, "first"), store.gather("weight"):
            weight.data.zero_()
            raise OverflowError("first")
        self.assertTrue(torch.equal(square(store.model, tokens()), want))

    def test_parameters_of_other_models_are_as_they_were(self) -> None:
        _, store = self.twins(lambda: nn.Linear(4, 4))
        plain = nn.Linear(4, 4)
        version = plain.weight._version
        plain.weight.data.zero_()
        self.assertEqual(plain.weight._version, version)
        plain(torch.ones(1, 4)).sum().backward()
        plain.weight.grad = None
        del plain.bias.grad
        self.assertEqual((plain.weight.grad, plain.bias.grad), (None, None))
        self.assertIs(type(store.model.weight), nn.Parameter)


class Gradients(TorchCase):
    def test_grad_none_after_a_backward_pass_discards_nothing(self) -> None:
        """If parameters without a gradient are not skipped. test_unused.py has what is else."""
        linear = partial(nn.Linear, 4, 4)
        twin, store = self.twins(linear, micro_batches=2, unused="zero")
        optimizer = store.optimizer(lr=0.1)
        weight = store.model.weight
        for _ in range(2):
            weight.grad = None
            del weight.grad
            square(store.model, tokens()).backward()
            with self.assertRaisesRegex(RuntimeError, "grad = None discards no .* zero_grad"):
                weight.grad = None
            with self.assertRaisesRegex(RuntimeError, "grad = None discards no gradient"):
                del store.model.bias.grad
            optimizer.step()
            square(store.model, tokens()).backward()
            store.model.zero_grad()
            weight.grad = None
        hook = weight.register_hook(torch.zeros_like)
        models.copy_weights(store, twin)
        for model in (store.model, twin):
            square(model, tokens()).backward()
        optimizer.step()
        self.assertEqual(store.read("weight", State.GRAD).count_nonzero(), 0)
        self.assertTrue(torch.equal(store.read("bias", State.GRAD), twin.bias.grad))
        hook.remove()

    def test_zero_grad_of_a_module_that_contains_the_model(self) -> None:
        twin, store = self.twins(lambda: nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)))
        optimizer = store.optimizer(lr=0.1)
        outer = nn.ModuleList([store.model, nn.Linear(4, 4)])
        outer[1](torch.ones(1, 4)).sum().backward()
        square(store.model, tokens()).backward()
        outer.zero_grad()
        self.assertIsNone(outer[1].weight.grad)
        models.copy_weights(store, twin)
        for model in (store.model, twin):
            square(model, tokens()).backward()
        optimizer.step()
        self.compare_gradients(twin, store, 0.0)

    def test_zero_grad_of_a_part_of_the_model(self) -> None:
        """If parameters without a gradient are not skipped."""
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        _, store = self.twins(lambda: model, unused="zero")
        store.model[0].zero_grad()
        square(store.model, tokens()).backward()
        with self.assertRaisesRegex(RuntimeError, "zero_grad of a part of a model discards no"):
            store.model[0].zero_grad()
        store.optimizer(lr=0.1).step()
        store.model[0].zero_grad()

    def test_grad_cannot_be_set_after_it_was_handed_in(self) -> None:
        """The daemon would add both. The step goes on without what was set."""
        twin, store = self.twins(lambda: nn.Linear(4, 4), micro_batches=2)
        optimizer, weight = store.optimizer(lr=0.1), store.model.weight
        zeros = torch.zeros(4, 4).to(models.DEVICE, torch.bfloat16)
        for retains in (False, True):
            with self.subTest(retains=retains):
                models.copy_weights(store, twin)
                for n in range(2):
                    for model in (store.model, twin):
                        square(model, tokens()).backward(retain_graph=retains and n == 1)
                    with self.assertRaisesRegex(RuntimeError, "'weight' cannot be set.*add both"):
                        weight.grad = zeros
                optimizer.step()
                self.compare_gradients(twin, store, 0.0)

    def test_grad_that_waits_for_another_backward_pass_can_be_set(self) -> None:
        """As in plain torch, it counts instead of what was computed."""
        twin, store = self.twins(lambda: nn.Linear(4, 4), micro_batches=2)
        for model in (store.model, twin):
            square(model, tokens()).backward(retain_graph=True)
            model.weight.grad = torch.zeros(4, 4).to(models.DEVICE, torch.bfloat16)
            square(model, tokens()).backward()
        store.optimizer(lr=0.1).step()
        self.compare_gradients(twin, store, 0.0)

    def test_a_hook_takes_a_gradient_away_in_the_backward_pass(self) -> None:
        _, store = self.twins(lambda: nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)))

        def forget(parameter: nn.Parameter) -> None:
            parameter.grad = None

        store.model[0].weight.register_post_accumulate_grad_hook(forget)
        square(store.model, tokens()).backward()
        store.optimizer(lr=0.1).step()
        self.assertEqual(store.read("0.weight", State.GRAD).count_nonzero(), 0)
