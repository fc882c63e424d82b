# SPDX-License-Identifier: Apache-2.0
"""Backward passes in two parts, and forward passes that are repeated: bits, work and memory."""

from __future__ import annotations

import contextlib
import gc
import unittest
from collections.abc import Callable, Iterator
from typing import Any

import torch
from cistern import State
from cistern.torch.divided_passes import runner_of
from cistern.torch.parallel.recomputation import Recomputed
from cistern.torch.parallel.split_backward import input_gradients, weight_gradients
from cistern.torch.runner import Runner
from models import TorchCase
from torch import nn
from torch.autograd.graph import get_gradient_edge
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

WIDTH = 8


class Products(TorchDispatchMode):
    """Counts products of matrices."""

    def __init__(self) -> None:
        super().__init__()
        self.n = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.n += function.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.addmm)
        return function(*args, **(kwargs or {}))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(3 * WIDTH, WIDTH, bias=False)
        self.dropout = nn.Dropout(0.25)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.up(self.norm(x)).relu()
        out: torch.Tensor = x * x.sigmoid() + self.dropout(self.down(h * h.sigmoid()))
        return out


class Chain(nn.Module):
    """Blocks after a position table, which has no input that needs a gradient."""

    def __init__(self, n: int = 3) -> None:
        super().__init__()
        self.table = nn.Embedding(4, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(n))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.table(torch.arange(4))
        for block in self.blocks:
            x = block(x)
        return x


class Twice(nn.Module):
    """Runs the same block twice, and its weights are used at several places."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block()])
        self.head = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.head(self.blocks[0](self.head(x)))
        result: torch.Tensor = self.head(self.blocks[0](x))
        return result


class Aside(nn.Module):
    """Returns also something that does not depend on its input, and does not use one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.unused = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.bias = nn.Linear(1, WIDTH)
        self.frozen = nn.Linear(WIDTH, WIDTH).requires_grad_(False)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.frozen(self.up(x)).tanh(), self.bias(torch.ones(4, 1))


MODELS: tuple[Callable[[], nn.Module], ...] = (Chain, Twice, Aside)


def made(kind: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(2)
    return kind()


def given(i: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(i)
    return torch.randn(4, WIDTH, generator=generator).requires_grad_()


def outputs_of(model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    found = model(x)
    return list(found) if isinstance(found, tuple) else [found]


def grads_like(outputs: list[torch.Tensor]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(9)
    return [torch.randn(output.shape, generator=generator) for output in outputs]


def split(
    model: nn.Module, outputs: list[Any], inputs: list[torch.Tensor], runner: Runner | None = None
) -> tuple[Any, Any]:
    grads = grads_like(outputs)
    edges = [get_gradient_edge(output) for output in outputs]
    outputs.clear()
    return input_gradients(edges, grads, inputs, model.parameters(), runner)


class Split(TorchCase):
    def test_bits_are_those_of_one_part(self) -> None:
        for kind in MODELS:
            with self.subTest(kind.__name__):
                plain, ours = made(kind), made(kind)
                for i in range(2):  # The second one adds to the first one.
                    x, y = given(i), given(i)
                    torch.manual_seed(i)
                    found = outputs_of(plain, x)
                    torch.autograd.backward(found, grads_like(found))
                    torch.manual_seed(i)
                    (grad,), rest = split(ours, outputs_of(ours, y), [y])
                    self.assertTrue(torch.equal(grad, x.grad))
                    weight_gradients(rest)
                for (name, p), q in zip(plain.named_parameters(), ours.parameters(), strict=True):
                    self.assertEqual(p.grad is None, q.grad is None, name)
                    if p.grad is not None:
                        self.assertTrue(torch.equal(p.grad, q.grad), name)

    def test_no_product_is_computed_twice(self) -> None:
        model, x = made(Chain), given()
        outputs = outputs_of(model, x)
        with Products() as first:
            _, rest = split(model, outputs, [x])
        self.assertTrue(all(p.grad is None for p in model.parameters()))
        with Products() as second:
            weight_gradients(rest)
        self.assertEqual((first.n, second.n), (6, 6))

    def test_inputs_that_need_no_gradient(self) -> None:
        plain, ours, x = made(Chain).eval(), made(Chain).eval(), given().detach()
        found = outputs_of(plain, x)
        torch.autograd.backward(found, grads_like(found))
        grads, rest = split(ours, outputs_of(ours, x), [x])
        self.assertEqual(grads, (None,))
        weight_gradients(rest)
        for p, q in zip(plain.parameters(), ours.parameters(), strict=True):
            self.assertTrue(torch.equal(p.grad, q.grad))

    def test_in_a_store(self) -> None:
        for kind in MODELS:
            with self.subTest(kind.__name__):
                self.in_a_store(kind)

    def in_a_store(self, kind: Callable[[], nn.Module]) -> None:
        """Two micro-batches have their first parts before their second ones."""
        plain, ours = made(kind), made(kind)
        store = self.attach(ours, f"{self.name}-{kind.__name__}", micro_batches=2)
        optimizer = store.optimizer(lr=1e-2)
        store.runner.tell_passes_apart([ours])
        parts = []
        for i in range(2):
            torch.manual_seed(i)
            x, y = given(i), given(i)
            found = outputs_of(plain, x)
            torch.autograd.backward(found, grads_like(found))
            torch.manual_seed(i)
            (grad,), rest = split(ours, outputs_of(ours, y), [y], runner_of(ours))
            self.assertTrue(torch.equal(grad, x.grad))
            parts.append(rest)
        for rest in parts:
            weight_gradients(rest)
        optimizer.step()
        for name, p in plain.named_parameters():
            if p.requires_grad:
                want = torch.zeros_like(p) if p.grad is None else p.grad
                self.assertTrue(torch.equal(store.read(name, State.GRAD), want), name)

    def test_the_graph_is_free_afterwards(self) -> None:
        for with_store in (False, True):
            model, x = made(Chain), given()
            if with_store:
                store = self.attach(model, micro_batches=2)
                store.runner.tell_passes_apart([model])
            kept = watch(
                [module for module in model.modules() if isinstance(module, Block | nn.LayerNorm)]
            )
            with without_gc():
                _, rest = split(model, outputs_of(model, x), [x], runner_of(model))
                self.assertGreater(alive(kept), 0)
                weight_gradients(rest)
                del rest
                self.assertEqual(alive(kept), 0)


class Repeated(TorchCase):
    def grads(self, model: nn.Module, recomputed: list[Recomputed], early: bool) -> list[Any]:
        """Return the gradients of two passes, whose backward passes are in the order of the forward passes."""
        found, inputs = [], [given(0), given(1)]
        torch.manual_seed(5)
        for x in inputs:
            outputs = outputs_of(model, x)
            found.append((outputs, [p for module in recomputed for p in module.take()]))
        random = torch.get_rng_state()
        for outputs, passes in found:
            for made_pass in passes if early else ():
                made_pass().restore()
            self.assertTrue(torch.equal(torch.get_rng_state(), random))
            torch.autograd.backward(outputs, grads_like(outputs))
        return [x.grad for x in inputs]

    def recomputed(self, model: nn.Module, whole: bool) -> list[Recomputed]:
        modules = [model] if whole else list(model.blocks)[:2]
        return [Recomputed(module, "it") for module in modules]

    def test_bits_and_random_numbers_are_those_of_one_run(self) -> None:
        for kind in (Chain, Twice):
            plain = made(kind)
            wanted = self.grads(plain, [], False)
            for whole, early in ((True, False), (True, True), (False, False), (False, True)):
                for with_store in (False, True):
                    name = f"repeated-{kind.__name__}-{whole}-{early}"
                    with self.subTest(name, with_store=with_store):
                        model = made(kind)
                        recomputed = self.recomputed(model, whole)
                        if with_store:
                            store = self.attach(model, name, micro_batches=2)
                            store.runner.tell_passes_apart([model])
                        got = self.grads(model, recomputed, early)
                        for x, y in zip(got, wanted, strict=True):
                            self.assertTrue(torch.equal(x, y))
                        if with_store:
                            store.optimizer(lr=1e-2).step()
                        for (n, p), q in zip(
                            plain.named_parameters(), model.parameters(), strict=True
                        ):
                            grad = store.read(n, State.GRAD) if with_store else q.grad
                            self.assertTrue(torch.equal(grad, p.grad), n)

    def test_only_inputs_are_kept(self) -> None:
        for whole, with_store in ((True, False), (False, False), (True, True), (False, True)):
            with self.subTest(whole=whole, with_store=with_store):
                model, x = made(Chain), given()
                recomputed = self.recomputed(model, whole)
                if with_store:
                    store = self.attach(model, f"{self.name}-{whole}")
                    store.runner.tell_passes_apart([model])
                kept = watch([block.norm for block in list(model.blocks)[:2]])
                with without_gc():
                    outputs = outputs_of(model, x)
                    passes = [made_pass() for m in recomputed for made_pass in m.take()]
                    self.assertEqual(alive(kept), 0)
                    for made_pass in passes:
                        made_pass.restore()
                    self.assertGreater(alive(kept), 0)
                    torch.autograd.backward(outputs, grads_like(outputs))
                    self.assertEqual(alive(kept), 0)
                    # What is never repeated is not kept either.
                    outputs = outputs_of(model, x)
                    passes = [made_pass for m in recomputed for made_pass in m.take()]
                    del outputs
                    if not with_store:
                        self.assertEqual([p() for p in passes if p() is not None], [])

    def test_types_of_autocast_are_those_of_the_first_run(self) -> None:
        found = []
        for repeats in (False, True):
            model, x = made(Chain).eval(), given()
            recomputed = self.recomputed(model, True) if repeats else []
            with torch.autocast("cpu", torch.bfloat16):
                outputs = outputs_of(model, x)
            for made_pass in [made_pass for m in recomputed for made_pass in m.take()]:
                made_pass().restore()
            torch.autograd.backward(outputs, grads_like(outputs))
            found.append(x.grad)
        self.assertTrue(torch.equal(*found))

    def test_it_is_undone(self) -> None:
        model, x = made(Chain), given()
        for _ in range(2):
            for module in (model, model.blocks[0]):
                Recomputed(module, "it")
        for module in model.modules():
            Recomputed.undo(module)
        kept = watch([block.norm for block in model.blocks])
        outputs = outputs_of(model, x)
        self.assertEqual(alive(kept), 3)
        del outputs

    def test_what_cannot_be_repeated_is_refused(self) -> None:
        class Counting(nn.Linear):
            n = 0

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                self.n += 1
                out = super().forward(x)
                return out if self.n == 1 else out.exp().exp()

        class Changing(nn.Linear):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return super().forward(x.add_(1))

        for kind, words in (
            (Counting, "saves other tensors when it is repeated"),
            (Changing, "what it was given was changed in place"),
        ):
            model = kind(WIDTH, WIDTH)
            Recomputed(model, "stage 1")
            output = model(given() * 1)
            with self.assertRaisesRegex(RuntimeError, f"stage 1.*{words}|stage 1 {words}"):
                output.sum().backward()


def watch(modules: list[nn.Module]) -> list[StorageWeakRef]:
    """Return the memory of what ``modules`` return from now on."""
    kept: list[StorageWeakRef] = []

    def note(_: nn.Module, __: Any, y: torch.Tensor) -> None:
        kept.append(StorageWeakRef(y.untyped_storage()))

    for module in modules:
        module.register_forward_hook(note)
    return kept


def alive(kept: list[StorageWeakRef]) -> int:
    return sum(not storage.expired() for storage in kept)


@contextlib.contextmanager
def without_gc() -> Iterator[None]:
    """Let circles of references stay in a block."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


if __name__ == "__main__":
    unittest.main()
