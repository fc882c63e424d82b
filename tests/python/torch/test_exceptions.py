# SPDX-License-Identifier: Apache-2.0
"""Exceptions, Ctrl-C, threads and processes in a step, and what goes on after them."""

import os
import signal
import threading
import warnings
from collections.abc import Callable
from typing import Any

import cistern
import cistern.torch as ct
import models
import torch
from cistern import State
from models import TorchCase, square, tokens
from torch import nn


class Failing(nn.Module):
    """Raises in the forward or in the backward pass of its second block, if it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.forward_raises: type[BaseException] | None = None
        self.backward_raises = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for i, block in enumerate(self.blocks):
            x = block(x)
            if i == 1:
                x.register_hook(self.backward_hook)
        return x

    def block_hook(self, *_: object) -> None:
        if self.forward_raises is not None:
            raise self.forward_raises

    def backward_hook(self, grad: torch.Tensor) -> None:
        if self.backward_raises:
            raise OverflowError


class Exceptions(TorchCase):
    def setUp(self) -> None:
        super().setUp()
        self.twin, self.store = self.twins(Failing)
        self.model = self.store.model
        self.model.blocks[1].register_forward_hook(self.model.block_hook)

    def test_a_forward_pass_that_raises_changes_nothing(self) -> None:
        for kind in (OverflowError, KeyboardInterrupt):
            self.model.forward_raises = kind
            with self.assertRaises(kind):
                square(self.model, tokens())
            self.model.forward_raises = None
            with self.assertRaises(RuntimeError):
                self.model.blocks[2].weight.sum()
            self.compare_steps(self.twin, self.store, loss=square)

    def test_a_backward_pass_that_raises_gives_up_the_step(self) -> None:
        optimizer = self.store.optimizer(lr=1e-2)
        self.model.backward_raises = True
        with self.assertRaises(OverflowError):
            square(self.model, tokens()).backward()
        with self.assertRaisesRegex(RuntimeError, "call Store.sync"):
            optimizer.step()
        self.model.backward_raises = False
        self.compare_steps(self.twin, self.store, loss=square)
        self.assertEqual(self.store.step_no, 3)

    def test_an_exception_at_any_call_of_the_job(self) -> None:
        """Each call of libcistern in a step fails once. The next try has the bits of plain torch."""
        operators = self.store._runner.operators
        calls = [0, -1]  # Made so far, and the one that fails.

        def count(call: Callable[..., None]) -> Callable[..., None]:
            def counted(*arguments: Any) -> None:
                calls[0] += 1
                if calls[0] == calls[1]:
                    raise OverflowError
                call(*arguments)

            return counted

        operators._begin, operators._end = count(operators._begin), count(operators._end)
        self.compare_steps(self.twin, self.store, n_steps=1, loss=square)
        n_calls = calls[0]
        self.assertEqual(n_calls, 3 * 3 * 2)
        for failing in range(1, n_calls + 1):
            calls[:] = [0, failing]
            with self.assertRaises(OverflowError):
                square(self.model, tokens()).backward()
            self.store.sync()
            self.compare_steps(self.twin, self.store, n_steps=1, loss=square)

    def test_gradients_that_no_node_announces(self) -> None:
        """The output of the embedding is in an object of its own, and nothing else has weights."""

        class Hidden:
            def __init__(self, value: torch.Tensor) -> None:
                self.value = value

        class Hiding(nn.Embedding):
            def forward(self, x: torch.Tensor) -> Hidden:
                return Hidden(super().forward(x))

        class Model(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.embedding = Hiding(8, 4)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return self.embedding(x).value

        self.store.close(remove=True)
        twin, store = self.twins(Model)
        for model in (twin, store.model):
            for _ in range(2):
                model(torch.tensor([1, 5, 5])).square().sum().backward()
        store.optimizer(lr=0.1).step()
        self.assertTrue(
            torch.equal(store.read("embedding.weight", State.GRAD), twin.embedding.weight.grad)
        )

    def test_gradients_of_gradients_are_refused(self) -> None:
        with self.assertRaisesRegex(RuntimeError, "gradients of gradients"):
            square(self.model, tokens()).backward(create_graph=True)

    def test_gradients_of_inputs_alone_are_those_of_torch(self) -> None:
        grads = []
        for model in (self.twin, self.model):
            x = torch.ones(2, 4, dtype=torch.bfloat16, requires_grad=True)
            grads.append(torch.autograd.grad(model(x).sum(), x)[0])
        self.assertTrue(torch.equal(*grads))
        self.compare_steps(self.twin, self.store, loss=square)

    def test_a_child_process_cannot_use_the_model(self) -> None:
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                square(self.model, tokens())
            except cistern.CstError as error:
                status = 0 if error.status == cistern.Status.EFORKED else 2
            os._exit(status)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), 0)
        self.compare_steps(self.twin, self.store, loss=square)

    def test_loaders_with_processes_work(self) -> None:
        data = torch.utils.data.TensorDataset(torch.arange(8.0).reshape(8, 1))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            loaded = list(torch.utils.data.DataLoader(data, batch_size=2, num_workers=2))
        self.assertEqual(len(loaded), 4)
        self.compare_steps(self.twin, self.store, loss=square)

    def interrupted(self, call: Callable[[], Any]) -> None:
        """Have ``call``, which waits, end by what Ctrl-C sends."""
        before = signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
        self.addCleanup(signal.signal, signal.SIGALRM, before)
        with self.assertRaises(KeyboardInterrupt):
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            call()

    def two_ranks(self) -> tuple[ct.Store, ct.Store]:
        """Return the stores of two ranks of this process."""
        job = self.name + "-two"
        self.addCleanup(self.remove, job)
        stores: list[ct.Store] = []

        def run(rank: int) -> None:
            model = models.bf16(lambda: nn.Sequential(nn.Linear(4, 4)))
            stores.append(ct.attach(model, job, rank=rank, world=2, device="cpu"))
            stores[-1].optimizer(lr=1e-2)

        threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for store in stores:
            self.backward(store)
        return stores[0], stores[1]

    def backward(self, store: ct.Store) -> None:
        store.model(torch.ones(1, 4, dtype=torch.bfloat16)).sum().backward()

    def test_ctrl_c_in_a_step_which_goes_on(self) -> None:
        store, late = self.two_ranks()
        self.interrupted(store.the_optimizer().step)
        self.interrupted(store.the_optimizer().step)
        self.interrupted(lambda: self.backward(store))
        other = threading.Thread(target=late.the_optimizer().step)
        other.start()
        store.the_optimizer().step()
        other.join()
        self.assertEqual((store.step_no, late.step_no), (1, 1))
        self.assertEqual(store.the_optimizer().last, late.the_optimizer().last)
        store.close()
        late.close()

    def test_the_next_forward_pass_goes_on_with_an_interrupted_step(self) -> None:
        store, late = self.two_ranks()
        self.interrupted(store.the_optimizer().step)
        other = threading.Thread(target=late.the_optimizer().step)
        other.start()
        self.backward(store)
        other.join()
        self.assertEqual(store.step_no, 1)
        self.backward(late)
        other = threading.Thread(target=late.the_optimizer().step)
        other.start()
        store.the_optimizer().step()
        other.join()
        self.assertEqual(store.step_no, 2)
        store.close()
        late.close()

    def test_close_gives_an_interrupted_step_up(self) -> None:
        store, late = self.two_ranks()
        self.interrupted(store.the_optimizer().step)
        store.close()
        with self.assertRaises(cistern.StepVoid):
            late.the_optimizer().step()
        late.close(remove=True)
        with self.assertRaises(cistern.CstError):
            self.admin.remove_job(self.name + "-two")

    def test_two_threads_are_refused(self) -> None:
        """The forward pass of a thread while a module runs in another one."""
        raised: list[BaseException] = []

        def run() -> None:
            try:
                square(self.model, tokens())
            except RuntimeError as error:
                raised.append(error)

        def beside(*_: object) -> None:
            handle.remove()
            thread = threading.Thread(target=run)
            thread.start()
            thread.join()

        handle = self.model.blocks[0].register_forward_pre_hook(beside)
        square(self.model, tokens())
        self.assertIn("one thread at a time", str(raised[0]))
        self.store.sync()
        self.compare_steps(self.twin, self.store, loss=square)

    def test_ctrl_c_in_a_forward_pass(self) -> None:
        def interrupt(*_: object) -> None:
            signal.raise_signal(signal.SIGINT)

        handle = self.model.blocks[0].register_forward_hook(interrupt)
        with self.assertRaises(KeyboardInterrupt):
            square(self.model, tokens())
        handle.remove()
        self.compare_steps(self.twin, self.store, loss=square)

    def test_a_job_that_is_closed(self) -> None:
        self.store.job.close()
        with self.assertRaisesRegex(ValueError, "job '.*' is closed"):
            square(self.model, tokens())
