# SPDX-License-Identifier: Apache-2.0
"""A job is not closed while a module of it runs, whose weights would be unmapped."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import cistern
import models
import torch
from cistern.torch import Store
from models import TorchCase, square, tokens
from processes import Program
from torch import nn

RUNS = "module '[^']*' runs"

WAYS: dict[str, Callable[[Store], Any]] = {
    "store.close": lambda store: store.close(),
    "job.close": lambda store: store.job.close(),
    "job.leave": lambda store: store.job.leave(),
    "job.sync": lambda store: store.job.sync(),
    "client.close": lambda store: store.job.client.close(),
    "end of with": lambda store: store.job.__exit__(None, None, None),
    "end of with, after an error": lambda store: store.job.__exit__(ValueError, None, None),
    "store.sync": lambda store: store.sync(),
}


class Calls(nn.Module):
    """Two units, of which the second one calls ``call`` while it runs, and uses its weight afterwards."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)
        self.second.register_forward_hook(self._meanwhile)
        self.call: Callable[[], Any] | None = None
        self.error: BaseException | None = None

    def _meanwhile(self, module: nn.Module, _: Any, output: torch.Tensor) -> torch.Tensor:
        if self.call is not None:
            try:
                self.call()
            except (RuntimeError, cistern.CstError) as error:
                self.error = error
        return output + 0 * module.weight.sum()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x))


def in_thread(call: Callable[[], Any]) -> Callable[[], Any]:
    """Return what does ``call`` in another thread, and raises what it raises."""

    def run() -> None:
        raised: list[BaseException] = []

        def target() -> None:
            try:
                call()
            except BaseException as error:  # noqa: BLE001 (raised again below)
                raised.append(error)

        thread = threading.Thread(target=target)
        thread.start()
        thread.join()
        if raised:
            raise raised[0]

    return run


def in_handler(call: Callable[[], Any]) -> Callable[[], Any]:
    """Return what does ``call`` in the handler of a signal."""

    def run() -> None:
        before = signal.signal(signal.SIGUSR1, lambda *_: call())
        try:
            signal.raise_signal(signal.SIGUSR1)
        finally:
            signal.signal(signal.SIGUSR1, before)

    return run


CALLERS = {"the thread": lambda call: call, "another thread": in_thread, "a handler": in_handler}


class Closing(TorchCase):
    def setUp(self) -> None:
        super().setUp()
        self.twin, self.store = self.twins(Calls)
        self.optimizer = self.store.optimizer(lr=1e-2)

    def ways(self) -> Iterator[Callable[[], Any]]:
        for who, caller in CALLERS.items():
            for name, way in WAYS.items():
                with self.subTest(who=who, way=name):
                    yield caller(lambda way=way: way(self.store))

    def check_step(self, loss: torch.Tensor) -> None:
        """The step that was to be disturbed has the bits of plain torch."""
        models.copy_weights(self.store, self.twin)
        plain = square(self.twin, tokens())
        self.assertTrue(torch.equal(loss, plain))
        loss.backward()
        plain.backward()
        self.optimizer.step()
        self.compare_gradients(self.twin, self.store, 0.0)

    def check_refused(self, kind: type[BaseException] = RuntimeError, words: str = RUNS) -> None:
        error, self.store.model.error = self.store.model.error, None
        self.assertIsInstance(error, kind)
        self.assertRegex(str(error), words)

    def test_in_a_forward_pass(self) -> None:
        for way in self.ways():
            self.store.model.call = way
            loss = square(self.store.model, tokens())
            self.store.model.call = None
            self.check_refused()
            self.check_step(loss)

    def loss_whose_pass_calls(self, call: Callable[[torch.Tensor], Any]) -> torch.Tensor:
        """A hook of an activation of a unit is called while the unit is open."""
        model = self.store.model
        model.call = None
        seen = model.second.register_forward_hook(
            lambda _, __, output: output.register_hook(call) and None, prepend=True
        )
        loss = square(model, tokens())
        seen.remove()
        return loss

    def test_in_a_backward_pass(self) -> None:
        for way in self.ways():
            loss = self.loss_whose_pass_calls(
                lambda grad, way=way: self._call_in_backward(way, grad)
            )
            self.check_step(loss)
            self.check_refused()

    def test_in_a_backward_pass_after_one_that_raised(self) -> None:
        def fail(_: torch.Tensor) -> None:
            raise ZeroDivisionError

        for way in self.ways():
            first = self.loss_whose_pass_calls(fail)
            second = self.loss_whose_pass_calls(
                lambda grad, way=way: self._call_in_backward(way, grad)
            )
            with self.assertRaises(ZeroDivisionError):
                first.backward()
            second.backward()
            self.check_refused()
            self.store.sync()

    def _call_in_backward(self, way: Callable[[], Any], grad: torch.Tensor) -> torch.Tensor:
        try:
            way()
        except (RuntimeError, cistern.CstError) as error:
            self.store.model.error = error
        return grad

    def test_gradients_are_not_discarded_meanwhile(self) -> None:
        self.store.close(remove=True)  # That of setUp.
        self.twin, self.store = self.twins(Calls, micro_batches=2)
        optimizer = self.store.optimizer(lr=1e-2)
        square(self.store.model, tokens()).backward()
        self.store.model.call = in_thread(optimizer.zero_grad)
        loss = square(self.store.model, tokens())
        self.store.model.call = None
        self.check_refused()
        loss.backward()
        for _ in range(2):
            square(self.twin, tokens()).backward()
        optimizer.step()
        self.compare_gradients(self.twin, self.store, 0.0)

    def test_in_a_compiled_module(self) -> None:
        torch.compiler.reset()
        self.addCleanup(torch.compiler.reset)
        self.store.model.second.compile(backend="eager")
        for way in self.ways():
            self.store.model.call = way
            square(self.store.model, tokens())
            self.store.model.call = None
            self.check_refused()

    def test_in_the_middle_of_a_call(self) -> None:
        """The handler of a signal comes when the weights are there, and are not lent yet."""
        for name, way in WAYS.items():
            with self.subTest(name):
                device, begin_work = self.store.device, self.store.device.begin_work

                def signalled(way: Any = way, begin_work: Any = begin_work) -> None:
                    self.store.device.begin_work = begin_work
                    try:
                        in_handler(lambda: way(self.store))()
                    except cistern.CstError as error:
                        self.store.model.error = error
                    begin_work()

                device.begin_work = signalled
                loss = square(self.store.model, tokens())
                self.check_refused(cistern.CstError, "handler of a signal has interrupted a call")
                self.check_step(loss)

    def test_after_an_exception_it_is_closed(self) -> None:
        """Also in the handler of the exception, and although torch has not told that the module has ended.

        The weights then have no memory any more.
        """
        for error in (KeyboardInterrupt(), SystemExit(), ValueError()):
            for is_backward in (False, True):
                for way in ("store.close", "job.close", "end of with"):
                    with self.subTest(error=error, is_backward=is_backward, way=way):
                        store = self.attach(models.bf16(Calls), self.name + "2")
                        try:
                            self._raise_in(store, error, is_backward)
                        except (KeyboardInterrupt, SystemExit, ValueError):
                            WAYS[way](store)
                        self.assertTrue(store.job.client.is_closed)
                        for parameter in store.model.parameters():
                            with self.assertRaisesRegex(RuntimeError, "used outside of its module"):
                                parameter.sum()
                        self.remove(self.name + "2")

    def test_after_ctrl_c_the_step_is_given_up_by_what_can_unmap(self) -> None:
        """The next step has the bits of plain torch."""
        self.store.model.call = self._raise_ctrl_c
        with self.assertRaises(KeyboardInterrupt):
            square(self.store.model, tokens())
        self.store.model.call = None
        self.store.job.sync()
        self.check_step(square(self.store.model, tokens()))

    def _raise_ctrl_c(self) -> None:
        raise KeyboardInterrupt

    def _raise_in(self, store: Store, error: BaseException, is_backward: bool) -> None:
        def fail(*_: Any) -> Any:
            raise error

        if is_backward:
            store.model.second.register_forward_hook(
                lambda _, __, output: output.register_hook(fail) and None, prepend=True
            )
        else:
            store.model.second.register_forward_hook(fail, prepend=True)
        square(store.model, tokens()).backward()

    def test_a_pass_of_a_thread_that_an_exception_has_ended(self) -> None:
        def fail(*_: Any) -> None:
            raise SystemExit

        self.store.model.call = fail
        thread = threading.Thread(target=lambda: square(self.store.model, tokens()))
        thread.start()
        thread.join()
        self.store.close()
        self.assertTrue(self.store.job.client.is_closed)


PROGRAM = """
import sys, threading
import cistern.torch as ct
import torch

class Runs(torch.nn.Linear):
    def forward(self, x):
        begun.set()
        threading.Event().wait()

begun = threading.Event()
model = Runs(4, 4)
store = ct.attach(model, sys.argv[1], device="cpu")
threading.Thread(target=lambda: model(torch.ones(2, 4)), daemon=True).start()
begun.wait()
"""


class Ending(TorchCase):
    def test_the_program_ends_while_a_thread_runs_a_module(self) -> None:
        """Each way to end it: its own status, and a line that says why the job was not left."""
        self.addCleanup(self.remove, self.name)
        for end, status in (
            ("", 0),
            ("sys.exit(3)", 3),
            ("del store, model", 0),
            ("raise OSError('of the program')", 1),
        ):
            with self.subTest(end):
                ended, said = Program(PROGRAM + end, self.name).end()
                self.assertEqual(ended, status, said)
                self.assertNotIn("Exception ignored", said)
                if status == 1:
                    self.assertIn("OSError: of the program", said)
                else:
                    self.assertRegex(said, f"was not left in good order: .*{RUNS}")
                with contextlib.suppress(cistern.CstError):
                    self.remove(self.name)
