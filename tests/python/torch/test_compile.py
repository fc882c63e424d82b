# SPDX-License-Identifier: Apache-2.0
"""torch.compile has the bits of compiled plain torch. Activations that are saved on the host."""

import contextlib
import shutil
import unittest
from collections.abc import Callable, Iterator
from unittest import mock

import cistern.torch as ct
import models
import torch
from cistern.torch.storage import LentStorage, is_lent
from models import TorchCase
from torch import nn

CHUNK_ELEMS = 4096


def blocks(model: nn.Module) -> nn.ModuleList:
    return model.transformer.h if hasattr(model, "transformer") else model.model.layers


def compile_forward(model: nn.Module, backend: str) -> None:
    for block in blocks(model):
        block.forward = torch.compile(block.forward, backend=backend)


def compile_blocks(model: nn.Module, backend: str) -> None:
    for block in blocks(model):
        block.compile(backend=backend)


def compile_whole(model: nn.Module, backend: str) -> None:
    model.compile(backend=backend)


class Compiled(TorchCase):
    """The pool is too small for all weights, so that they change their places."""

    def setUp(self) -> None:
        super().setUp()
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()

    def check(
        self,
        make: Callable[[], nn.Module],
        compiles: Callable[[nn.Module, str], None],
        backend: str = "aot_eager",
    ) -> None:
        pool = self.least_pool(make, CHUNK_ELEMS)
        twin, store = self.twins(make, chunk_elems=CHUNK_ELEMS, pool=pool)
        for model in (twin, store.model):
            compiles(model, backend)
        self.compare_steps(twin, store)
        self.assertGreater(store.stat().evictions, 0)
        self.assertGreater(torch._dynamo.utils.counters["stats"]["unique_graphs"], 0)

    def test_forward_functions_of_blocks(self) -> None:
        for make in (models.llama, models.gpt2):
            self.check(make, compile_forward)
            self.assertFalse(torch._dynamo.utils.counters["graph_break"])
            self.doCleanups()
            self.setUp()

    def test_blocks(self) -> None:
        self.check(models.llama, compile_blocks)

    def test_a_whole_model(self) -> None:
        self.check(models.llama, compile_whole)

    @unittest.skipUnless(shutil.which("g++"), "inductor needs a compiler")
    def test_blocks_with_inductor(self) -> None:
        # Otherwise inductor first compiles a program for each instruction set, and starts processes that import torch.
        with torch._inductor.config.patch({"cpp.vec_isa_ok": True, "compile_threads": 1}):
            self.check(models.llama, compile_forward, "inductor")


class OfScripts(nn.Module):
    """The modules in it are compiled by torch.jit.script."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        layers = [nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(2)]
        self.layers = nn.ModuleList(map(torch.jit.script, layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class Scripts(TorchCase):
    def test_modules_inside_of_a_unit(self) -> None:
        store = self.attach(models.bf16(OfScripts), units=[""])
        self.compare_steps(models.bf16(OfScripts), store, loss=models.square, tolerance=0.02)

    def test_a_unit_is_refused(self) -> None:
        with self.assertRaisesRegex(TypeError, "'layers.0' was compiled by torch.jit.script"):
            self.attach(models.bf16(OfScripts))


class SaveOnCpu(TorchCase):
    @contextlib.contextmanager
    def counted(self) -> Iterator[list[bool]]:
        """Yield a list that gets an item for each tensor that is copied: whether it is a weight."""
        found: list[bool] = []
        plain = torch.Tensor.cpu

        def cpu(tensor: torch.Tensor) -> torch.Tensor:
            found.append(is_lent(tensor))
            return plain(tensor).clone()

        with mock.patch.object(torch.Tensor, "cpu", cpu):
            yield found

    def check(self, context: Callable[[], contextlib.AbstractContextManager]) -> list[bool]:
        """Compare gradients with plain torch. Return which copied tensors are weights."""

        def loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
            with context() if model is store.model else contextlib.nullcontext():
                return models.loss_of(model, batch)

        pool = self.least_pool(models.gpt2, CHUNK_ELEMS)
        twin, store = self.twins(models.gpt2, chunk_elems=CHUNK_ELEMS, pool=pool)
        with self.counted() as found:
            self.compare_steps(twin, store, loss=loss)
        self.assertGreater(store.stat().evictions, 0)
        store.close(remove=True)
        return found

    def test_activations_are_copied_and_weights_are_not(self) -> None:
        found = self.check(ct.save_on_cpu)
        self.assertGreater(found.count(False), 0)
        self.assertEqual(found.count(True), 0)
        plain = self.check(torch.autograd.graph.save_on_cpu)
        self.assertEqual(plain.count(False), found.count(False))
        self.assertGreater(plain.count(True), 0)

    def test_storages_are_forgotten_with_their_owner(self) -> None:
        before = torch.zeros(2, 2, dtype=torch.bfloat16)
        lent = LentStorage((2, 2), torch.bfloat16, torch.device("cpu"), "message", before)
        tensor = lent.tensor
        self.assertTrue(is_lent(tensor) and is_lent(tensor.t()))
        del lent
        self.assertFalse(is_lent(tensor))
