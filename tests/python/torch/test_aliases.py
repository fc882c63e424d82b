# SPDX-License-Identifier: Apache-2.0
"""Tensors with the same memory, one kept by a module, one changed in place: gradients are those of torch.

Where they cannot be, RuntimeError says so. No gradient is silently another one.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
import unittest
import weakref
from collections.abc import Callable
from typing import Any
from unittest import mock

import models
import torch
from models import TorchCase
from torch import nn

REFUSED = "cistern: module '.*unit.*' has kept a tensor that it was given, or returns a view of it"
OUTSIDE = "used outside of its module"
_GLOBAL: list[Any] = []

# -- Who keeps what. Each function is given a module, its input and its output, returns what the module
# returns, and stores what it keeps.

Keep = Callable[[Any, torch.Tensor, torch.Tensor], Any]


def _keeps(function: Callable[[torch.Tensor, torch.Tensor], tuple[Any, Any]]) -> Keep:
    """Let an attribute keep the first result of ``function``, and the second one be returned."""

    def keep(module: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        module.kept, output = function(x, y)
        return output

    return keep


def _in_a_list(module: Any, _: torch.Tensor, y: torch.Tensor) -> Any:
    module.many = [y]
    module.kept = module.many[0]
    return y


def _in_a_dict(module: Any, _: torch.Tensor, y: torch.Tensor) -> Any:
    module.many = {"y": (y, y[:2])}
    module.kept = module.many["y"][1]
    return {"out": y}


def _in_a_global(module: Any, _: torch.Tensor, y: torch.Tensor) -> Any:
    _GLOBAL[:] = [y]
    module.kept = None
    return y


def _by_a_hook(module: Any, _: torch.Tensor, y: torch.Tensor) -> Any:
    return y  # The hook of Model keeps it.


OUTPUTS: dict[str, Keep] = {
    "the output": _keeps(lambda _, y: (y, y)),
    "a view of the output": _keeps(lambda _, y: (y[1:], y)),
    "the base of the output": _keeps(lambda _, y: (y, y[:, :3])),
    "a transposed view": _keeps(lambda _, y: (y, y.t())),
    "a view that is returned": _keeps(lambda _, y: (y[1:],) * 2),
    "another view than that returned": _keeps(lambda _, y: (y[1:], y[:2])),
    "the same view, made twice": _keeps(lambda _, y: (y[:], y[:])),
    "an expanded view": _keeps(lambda _, y: (y, y[:1].expand(3, 4))),
    "one of several outputs": _keeps(lambda _, y: (y, (y, y * 2))),
    "another one of several outputs": _keeps(lambda _, y: (y, (y * 2, y[0], y))),
    "the base of a tuple of views": _keeps(lambda _, y: (y, (y[:2], y[1:]))),
    "one of a tuple of views": _keeps(lambda _, y: ((v := (y[:2], y[1:]))[1], v)),
    "the base of chunks": _keeps(lambda _, y: (y, y.chunk(2, 1))),
    "a chunk": _keeps(lambda _, y: ((v := y.chunk(2, 1))[0], v)),
    "the base that is returned, too, and chunks": _keeps(lambda _, y: (y, (*y.chunk(2, 1), y))),
    "a detached output": _keeps(lambda _, y: (y.detach(), y)),
    "an output that is saved": _keeps(lambda _, y: (v := y.tanh(), v)),
    "a view of an output that is saved": _keeps(lambda _, y: ((v := y.tanh()), v[:2])),
    "a list": _in_a_list,
    "a dictionary": _in_a_dict,
    "a global list": _in_a_global,
    "a forward hook": _by_a_hook,
}
# A loss of nothing but these, unchanged, goes past the Leave.
NEED_MORE = {
    name
    for name in OUTPUTS
    if "view" in name or "chunk" in name or "several" in name or "dict" in name
}
INPUTS: dict[str, Keep] = {
    "an input": _keeps(lambda x, y: (x, y)),
    "a view of an input": _keeps(lambda x, y: (x[1:], y)),
    "an input of which it returns a view": _keeps(lambda x, y: (x, (y, x[:2]))),
    "an input that it returns, too": _keeps(lambda x, y: (x, (y, x))),
}
RETURNED_INPUTS: dict[str, Keep] = {
    "its input": _keeps(lambda x, _: (None, x)),
    "its input and an output": _keeps(lambda x, y: (None, (x, y))),
}

# -- How a tensor is changed, given another one with a history of its own.

CHANGES: dict[str, Callable[[torch.Tensor, torch.Tensor], object]] = {
    "mul_": lambda t, _: t.mul_(2),
    "+=": lambda t, other: t.add_(other.flatten()[: t.numel()].view(t.shape), alpha=3),
    "an index": lambda t, _: t.__setitem__(0, 5.0),
    "a view": lambda t, _: t.view_as(t)[..., :2].mul_(3),
    "twice": lambda t, other: t.mul_(2).add_(other.mean()),
    "out=": lambda t, _: torch.mul(t, 2, out=t),
    "no_grad": lambda t, _: t.detach().mul_(2),
}
WHO = ("returned", "kept", "both", "neither")
USES = ("returned", "kept", "both")


class Returns(nn.Linear):
    """A unit that returns what ``run`` does, which is given the unit, its input and its output."""

    def __init__(self, run: Keep) -> None:
        super().__init__(4, 4)
        self.run = run

    def forward(self, x: Any) -> Any:
        x = x[1] if isinstance(x, tuple) else x
        return self.run(self, x, super().forward(x))


class Keeper(nn.Linear):
    """A unit that keeps a tensor. It saves neither its input nor its output for the backward pass."""

    keep: Keep

    def forward(self, x: torch.Tensor) -> Any:
        y = super().forward(2 * x)
        return self.keep(self, x, y)


class Outer(nn.Module):
    """A unit around another one, whose output goes through two Leaves."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((4,), 2.0))
        self.blocks = nn.ModuleList([inner])

    def forward(self, x: torch.Tensor) -> Any:
        return self.blocks[0](x * self.scale)


class Model(nn.Module):
    """Changes what a unit returns and keeps, or was given and keeps, and then computes a loss of it."""

    def __init__(self, keep: Keep, of_input: bool, is_nested: bool = False) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        keeper = Keeper(4, 4)
        keeper.keep = keep  # type: ignore[method-assign]
        self.unit = Outer(keeper) if is_nested else keeper
        if keep is _by_a_hook:
            keeper.register_forward_hook(lambda module, _, output: setattr(module, "kept", output))
        self.of_input = of_input
        self.change = CHANGES["mul_"]
        self.who, self.use = "neither", "both"
        self.drops = False  # What is kept, before the backward pass.

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = self.first(x)
        h = first * 1
        output = self.unit(h)
        outputs = list(_tensors(output))
        keeper: Any = self.unit.blocks[0] if isinstance(self.unit, Outer) else self.unit
        kept = _GLOBAL[0] if keeper.keep is _in_a_global else keeper.kept
        returned = h if self.of_input else outputs[0]
        if kept is None:
            kept = outputs[0]
        for name, tensor in (("returned", returned), ("kept", kept)):
            if self.who in (name, "both"):
                self.change(tensor, first)
        used = {"returned": [returned], "kept": [kept], "both": [returned, kept]}[self.use]
        if self.of_input:
            used.append(outputs[0])
        if self.drops:
            del keeper.kept
        return torch.stack([_number(tensor) for tensor in used]).sum()


def _tensors(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        yield value
    else:
        for item in value.values() if isinstance(value, dict) else value:
            yield from _tensors(item)


def _number(tensor: torch.Tensor) -> torch.Tensor:
    """Return a sum in which each element counts differently, and for which nothing is saved."""
    factors = torch.linspace(-1, 2, tensor.numel(), device=tensor.device).view(tensor.shape)
    return (tensor.float() * factors).sum()


def _backward(model: nn.Module) -> tuple[float, str]:
    """Return the loss and the text of an error."""
    x = torch.linspace(-1, 1, 12).reshape(3, 4).to(torch.bfloat16).to(models.DEVICE)
    try:
        loss = model(x)
        loss.backward()
    except RuntimeError as error:
        return 0.0, str(error)
    return loss.item(), ""


class Aliases(TorchCase):
    def check(
        self, keep: Keep, refuses: Any, tolerance: float, needs_more: bool = False, **options: Any
    ) -> int:
        """Compare all changes and losses with plain torch. Return how many were compared.

        ``refuses(who, use, what)`` says whether an error is required where torch has none. With
        ``needs_more``, what is kept can raise for a loss of nothing else.
        """
        twin, store = self.twins(lambda: Model(keep, **options))
        optimizer = store.optimizer(lr=1e-2)
        n_equal = 0
        for what, who, use in itertools.product(CHANGES, WHO, USES):
            if who == "neither" and what != "mul_":
                continue
            with self.subTest(what, who=who, use=use, **options):
                for model in (twin, store.model):
                    model.change, model.who, model.use = CHANGES[what], who, use
                models.copy_weights(store, twin)
                theirs, error = _backward(twin)
                ours, text = _backward(store.model)
                if error or refuses(who, use, what):
                    self.assertRegex(text, "." if error else REFUSED)
                    optimizer.zero_grad()
                    continue
                if use == "kept" and OUTSIDE in text:
                    self.assertTrue(needs_more)
                    optimizer.zero_grad()
                    continue
                self.assertEqual((ours, text), (theirs, ""))
                optimizer.step()
                self.compare_gradients(twin, store, tolerance)
                n_equal += 1
        store.close(remove=True)
        return n_equal

    def test_what_a_module_has_made(self) -> None:
        """It never raises where torch does not, and has the bits of torch."""
        for (name, keep), is_nested in itertools.product(OUTPUTS.items(), (False, True)):
            with self.subTest(name):
                options = {"of_input": False, "is_nested": is_nested}
                n = self.check(keep, lambda *_: False, 0.0, name in NEED_MORE, **options)
                self.assertGreater(n, 1)

    def test_what_a_module_was_given(self) -> None:
        """The tensor of the caller is another one: a change of one of them is an error for the other."""

        def refuses(who: str, use: str, what: str) -> bool:
            changes_kept = who in ("kept", "both") and what != "no_grad"
            return changes_kept or (who != "neither" and use != "returned")

        for name, keep in INPUTS.items():
            with self.subTest(name):
                n = self.check(keep, refuses, 0.01, of_input=True)
                self.assertGreater(n, 2)

    def test_what_a_module_was_given_and_returns(self) -> None:
        """The caller has its own tensor again."""
        for name, keep in RETURNED_INPUTS.items():
            with self.subTest(name):
                n = self.check(keep, lambda *_: False, 0.01, of_input=True)
                self.assertGreater(n, 2)

    def test_a_kept_input_that_is_let_go(self) -> None:
        """A use that lacks a change is found although nobody has the tensor any more."""
        _, store = self.twins(lambda: Model(INPUTS["an input"], of_input=True))
        model = store.model
        model.drops, model.use = True, "kept"
        self.assertEqual(_backward(model)[1], "")
        store.optimizer(lr=1e-2).step()
        model.who = "returned"
        self.assertRegex(_backward(model)[1], REFUSED)

    def test_an_input_that_nobody_keeps_can_be_changed(self) -> None:
        for use in ("returned", "both"):
            twin, store = self.twins(lambda: Model(_keeps(lambda _, y: (y[:1], y)), of_input=True))
            for model in (twin, store.model):
                model.who, model.use = "returned", use
            models.copy_weights(store, twin)
            self.assertEqual(_backward(store.model), _backward(twin))
            store.optimizer(lr=1e-2).step()
            self.compare_gradients(twin, store, 0.0)
            store.close(remove=True)

    def test_a_run_that_returns_nothing_for_gradients(self) -> None:
        """Its kept input is used for the loss, while other runs of the module have no gradients yet."""

        class Detaches(nn.Module):
            """Each run uses another parameter, which has its gradient when this run has ended."""

            kept: torch.Tensor

            def __init__(self) -> None:
                super().__init__()
                self.scale, self.shift = (nn.Parameter(torch.randn(16)) for _ in range(2))

            def forward(self, x: torch.Tensor, run: int) -> torch.Tensor:
                if run == 1:
                    return x * self.scale
                if run == 3:
                    return x + self.shift
                self.kept = x
                return (x * self.scale).detach()

        class Thrice(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.first, self.inner = nn.Linear(16, 16), Detaches()

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                x = self.first(x)
                runs = [self.inner(x * k, k) for k in (1, 2, 3)]
                result: torch.Tensor = runs[0] * runs[1] + runs[2] + self.inner.kept
                return result

        twin, store = self.twins(Thrice)
        optimizer = store.optimizer(lr=1e-2)
        x = torch.randn(4, 16, dtype=torch.bfloat16)
        operators = store._runner.operators
        for _ in range(2):
            models.copy_weights(store, twin)
            twin.zero_grad()
            with mock.patch.object(operators, "_hand_in", wraps=operators._hand_in) as hand_in:
                for model in (twin, store.model):
                    model(x).float().sum().backward()
            self.assertEqual(hand_in.call_count, 2)  # Once for each unit, with the sum of its runs.
            optimizer.step()
            self.compare_gradients(twin, store, 0.01)


def _under_no_grad(y: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return y[:, 1:]


class WithoutGrad(TorchCase):
    """Views that a unit makes under no_grad are constants: they have no history."""

    def check(self, run: Callable[[Any, torch.Tensor, torch.Tensor], Any]) -> None:
        def loss(model: nn.Module, _: torch.Tensor) -> torch.Tensor:
            y, target = model(torch.linspace(-1, 1, 12).reshape(3, 4).to(models.DEVICE).bfloat16())
            return (y[:, :-1].float() - target.float()).square().sum()

        def make() -> nn.Module:
            return nn.Sequential(nn.Linear(4, 4), Returns(run))

        self.compare_steps(*self.twins(make), loss=loss)

    def test_a_view_beside_its_base(self) -> None:
        self.check(lambda _, x, y: (y, _under_no_grad(y)))

    def test_a_view_of_an_input(self) -> None:
        self.check(lambda _, x, y: (y, _under_no_grad(x)))

    def test_a_view_alone(self) -> None:
        twin, store = self.twins(
            lambda: nn.Sequential(nn.Linear(4, 4), Returns(lambda _, x, y: _under_no_grad(y)))
        )
        for model in (twin, store.model):
            with self.subTest(plain=model is twin):
                view = model(torch.ones(3, 4, dtype=torch.bfloat16, device=models.DEVICE))
                self.assertTrue(view.requires_grad)
                self.assertIsNone(view.grad_fn)


class Memory(TorchCase):
    """The graph of a forward pass without a backward pass is freed by the next step or write."""

    def graphs_after(self, run: Keep, write: bool) -> int:
        """Return how many nodes of the graph of a skipped loss are alive after a step or a write."""
        alive: weakref.WeakSet[Any] = weakref.WeakSet()

        class Noted(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
                alive.add(ctx)
                return x * 1

            @staticmethod
            def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
                return grad

        def in_unit(module: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
            return run(module, x, Noted.apply(y))

        def loss() -> torch.Tensor:
            output = store.model(torch.ones(3, 4, dtype=torch.bfloat16, device=models.DEVICE))
            output = output[1] if isinstance(output, tuple) else output
            return output.float().square().sum()

        def make() -> nn.Module:
            return nn.Sequential(nn.Linear(4, 4), Returns(in_unit), Returns(in_unit))

        store = self.attach(models.bf16(make))
        loss()
        if write:
            store.sync()
            store.write("0.bias", store.read("0.bias"))
        else:
            loss().backward()
            store.optimizer(lr=1e-2).step()
        store.close(remove=True)
        return len(alive)

    def test_a_skipped_loss(self) -> None:
        for write in (False, True):
            for name, run in {
                "the output": lambda _, x, y: y,
                "a view of the output": lambda _, x, y: y[:],
                "an input that is kept": lambda module, x, y: (setattr(module, "kept", x), y)[1],
            }.items():
                with self.subTest(returns=name, write=write):
                    self.assertEqual(self.graphs_after(run, write), 0)

    def test_several_outputs_that_the_unit_has_saved(self) -> None:
        for name, run in {
            "two outputs": lambda _, x, y: (y, y * y),
            "a view and another output": lambda _, x, y: (v := y[:], v * v),
        }.items():
            with self.subTest(returns=name):
                self.assertEqual(self.graphs_after(run, False), 0)

    def test_a_kept_tensor_still_says_that_the_weights_have_changed(self) -> None:
        run = _keeps(lambda x, y: (x, y))
        store = self.attach(models.bf16(lambda: nn.Sequential(nn.Linear(4, 4), Returns(run))))
        models.square(store.model, torch.empty(0))
        kept = store.model[1].kept
        models.square(store.model, torch.empty(0)).backward()
        store.optimizer(lr=1e-2).step()
        with self.assertRaisesRegex(RuntimeError, "the weights of module '1' have changed"):
            kept.float().sum().backward()


class OtherTorch(unittest.TestCase):
    def test_a_private_call_that_is_missing_is_named(self) -> None:
        program = """
import torch
autograd = torch._C._autograd
for name in ("_get_creation_meta", "_set_creation_meta", "_unsafe_set_version_counter"):
    call = getattr(autograd, name)
    delattr(autograd, name)
    try:
        import cistern.torch
    except ImportError as error:
        print(error)
    setattr(autograd, name, call)
autograd._unsafe_set_version_counter = lambda tensors, versions: None
import cistern.torch
"""
        command = [sys.executable, "-c", program]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        self.assertRegex(
            ran.stdout,
            "has no _get_creation_meta\n.*has no _set_creation_meta\n.*has no _unsafe_set_version_counter\n",
        )
        self.assertIn("the version of a tensor cannot be set", ran.stderr)
