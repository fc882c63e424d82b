# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C at any moment of a step: the next forward pass goes on, with the bits of plain torch."""

import os
import random
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

import cistern
import models
import safetensors.torch
import torch
from cistern import Direction, Status
from models import TorchCase, square, tokens
from torch import nn

FOLDER = os.path.dirname(cistern.__file__) + os.sep
SEED = int(os.environ.get("CISTERN_TEST_SEED", "1"))
N_MOMENTS = int(os.environ.get("CISTERN_TEST_MOMENTS", "150"))


class Interrupter:
    """Raises KeyboardInterrupt before the instruction number ``at`` of the package's Python code."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.n = 0
        self.place = ""

    def trace(self, frame: FrameType, event: str, _: Any) -> Any:
        if not frame.f_code.co_filename.startswith(FOLDER):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode":
            self.n += 1
            if self.n == self.at:
                name = frame.f_code.co_name
                self.place = f"{name}, line {frame.f_lineno}, instruction {frame.f_lasti}"
                raise KeyboardInterrupt
        return self.trace

    def run(self, call: Callable[[], Any]) -> None:
        before = sys.gettrace()
        sys.settrace(self.trace)
        try:
            call()
        finally:
            sys.settrace(before)


class Interruptions(TorchCase):
    def setUp(self) -> None:
        super().setUp()
        self.twin, self.store = self.twins(
            lambda: nn.Sequential(*(nn.Linear(4, 4) for _ in range(3)))
        )
        self.optimizer = self.store.optimizer(lr=1e-2)

    def step(self) -> None:
        square(self.store.model, tokens()).backward()
        self.optimizer.step()

    def check_next_step(self, discards: bool) -> None:
        """Do a step, with ``zero_grad`` before it or with none, unless there are gradients."""
        if discards:
            self.optimizer.zero_grad()
        models.copy_weights(self.store, self.twin)
        try:
            square(self.store.model, tokens()).backward()
        except cistern.CstError as error:  # The pass before this one had ended.
            self.assertIn("with zero_grad", error.text)
            self.optimizer.zero_grad()
            square(self.store.model, tokens()).backward()
        square(self.twin, tokens()).backward()
        self.optimizer.step()
        self.compare_gradients(self.twin, self.store, 0.0)

    def check_no_thread_is_inside(self) -> None:
        thread = threading.Thread(target=self.store.stat)
        raised: list[Any] = []
        hook, threading.excepthook = threading.excepthook, raised.append
        thread.start()
        thread.join()
        threading.excepthook = hook
        self.assertEqual(raised, [])

    def test_ctrl_c_at_any_moment(self) -> None:
        self.step()
        whole = Interrupter(0)
        whole.run(self.step)
        self.assertGreater(whole.n, 1000)
        print(f"seed {SEED}, {whole.n} instructions")
        choose = random.Random(SEED)
        moments = sorted(choose.sample(range(1, whole.n + 1), min(N_MOMENTS, whole.n)))
        for i, at in enumerate(moments):
            interrupter = Interrupter(at)
            try:
                interrupter.run(self.step)
            except KeyboardInterrupt:
                pass
            with self.subTest(at=at, place=interrupter.place):
                self.check_next_step(discards=i % 2 == 0)
                self.check_no_thread_is_inside()

    def test_ctrl_c_while_the_weights_are_fetched(self) -> None:
        """The call of libcistern has to be made again, by whoever goes on."""
        calls = self.store._runner.units[0].calls.begin
        begin = calls[Direction.FORWARD]

        def interrupted() -> int:
            begin()
            raise KeyboardInterrupt

        for discards in (False, True):
            calls[Direction.FORWARD] = interrupted
            with self.assertRaises(KeyboardInterrupt):
                square(self.store.model, tokens())
            calls[Direction.FORWARD] = begin
            self.check_next_step(discards)


class Handlers(TorchCase):
    """The handler of a signal uses the store in the middle of a call of the training code."""

    def setUp(self) -> None:
        super().setUp()
        self.store = self.attach(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)))
        self.optimizer = self.store.optimizer(lr=1e-2)

    def step(self, handle: Callable[[], Any]) -> list[Any]:
        """Do a step, with ``handle`` in a signal's handler in its first call. Return the results."""
        results: list[Any] = []

        def handler(*_: object) -> None:
            try:
                results.append(handle())
            except cistern.CstError as error:
                results.append(error)

        before = signal.signal(signal.SIGUSR1, handler)
        self.addCleanup(signal.signal, signal.SIGUSR1, before)
        device, begin_work = self.store.device, self.store.device.begin_work

        def signalled() -> None:
            device.begin_work = begin_work
            signal.raise_signal(signal.SIGUSR1)
            begin_work()

        device.begin_work = signalled
        self.store.model(torch.ones(2, 4, device=models.DEVICE)).square().sum().backward()
        self.optimizer.step()
        return results

    def test_what_reads_does_not_disturb_the_call(self) -> None:
        reads = {
            "read": lambda: self.store.read("0.weight"),
            "state_dict": self.store.state_dict,
            "settle": self.store._settle,
            "finish": self.store.job.client.finish,
        }
        for name, handle in reads.items():
            with self.subTest(name):
                step = self.store.step_no
                results = self.step(handle)
                self.assertEqual(len(results), 1)
                self.assertNotIsInstance(results[0], cistern.CstError)
                self.assertEqual(self.store.step_no, step + 1)

    def test_another_thread_stays_outside(self) -> None:
        def stat() -> None:
            self.store._settle()
            thread = threading.Thread(target=lambda: errors.append(self.stat()))
            thread.start()
            thread.join()

        errors: list[Any] = []
        self.step(stat)
        self.assertIn("another thread is in a call", errors[0])

    def stat(self) -> str:
        try:
            return str(self.store.stat())
        except cistern.CstError as error:
            return error.text

    def test_the_step_cannot_be_given_up(self) -> None:
        for handle in (
            self.store.sync,
            lambda: self.store.model(torch.ones(2, 4, device=models.DEVICE)),
        ):
            step = self.store.step_no
            results = self.step(handle)
            self.assertIn("handler of a signal has interrupted a call", results[0].text)
            self.assertEqual(self.store.step_no, step + 1)


class Waits(nn.Linear):
    """A unit that waits in the thread that is to be the first one."""

    def __init__(self) -> None:
        super().__init__(4, 4)
        self.begun, self.goes_on = threading.Event(), threading.Event()
        self.first: threading.Thread | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if threading.current_thread() is self.first:
            self.begun.set()
            self.goes_on.wait()
        return super().forward(x)


class Threads(TorchCase):
    def test_a_second_thread_in_a_unit_is_refused(self) -> None:
        """In the same unit and in another one. The first thread goes on."""
        twin = models.bf16(lambda: nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)))
        model = nn.Sequential(nn.Linear(4, 4), Waits()).to(models.DEVICE, torch.bfloat16)
        model.load_state_dict(twin.state_dict())
        store = self.attach(model)
        optimizer = store.optimizer(lr=1e-2)
        losses: list[torch.Tensor] = []
        unit = model[1]
        unit.first = threading.Thread(target=lambda: losses.append(square(model, tokens())))
        unit.first.start()
        unit.begun.wait()
        x = torch.ones(2, 4, device=models.DEVICE, dtype=torch.bfloat16)
        for module in (unit, model[0], model):
            for is_recording in (True, False):
                with (
                    torch.set_grad_enabled(is_recording),
                    self.assertRaisesRegex(RuntimeError, "another thread runs module '1'"),
                ):
                    module(x)
        unit.goes_on.set()
        unit.first.join()
        losses[0].backward()
        square(twin, tokens()).backward()
        optimizer.step()
        self.compare_gradients(twin, store, 0.0)


class Fragile(nn.Module):
    """Blocks, of which the second one raises what ``error`` is."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.error: BaseException | None = None
        self.catches = False
        self.blocks[1].register_forward_hook(self.fail)

    def fail(self, *_: object) -> None:
        if self.error is not None:
            raise self.error

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            try:
                x = block(x)
            except ValueError:
                if not self.catches:
                    raise
        return x


class MicroBatches(TorchCase):
    """A forward pass that an exception ends when the step has gradients of earlier micro-batches."""

    def setUp(self) -> None:
        super().setUp()
        self.twin, self.store = self.twins(Fragile, micro_batches=4)
        self.optimizer = self.store.optimizer(lr=1e-2)

    def micro_batch(self, model: nn.Module) -> None:
        square(model, tokens()).backward()

    def interrupt(self, error: BaseException) -> None:
        self.store.model.error = error
        with self.assertRaises(type(error)):
            square(self.store.model, tokens())
        self.store.model.error = None

    def check_step(self, n_micro_batches: int) -> None:
        for _ in range(n_micro_batches):
            self.micro_batch(self.twin)
        self.optimizer.step()
        self.compare_gradients(self.twin, self.store, 0.0)
        models.copy_weights(self.store, self.twin)

    def test_the_step_does_not_go_on_by_itself(self) -> None:
        for error in (ValueError(), KeyboardInterrupt()):
            with self.subTest(kind=type(error)):
                self.micro_batch(self.store.model)
                self.interrupt(error)
                for _ in range(2):
                    with self.assertRaisesRegex(
                        RuntimeError, r"zero_grad\(\) .*keep_gradients\(\)"
                    ):
                        square(self.store.model, tokens())
                with torch.no_grad():
                    square(self.store.model, tokens())
                self.optimizer.zero_grad()
                self.micro_batch(self.store.model)
                self.micro_batch(self.store.model)
                self.check_step(2)

    def test_the_step_goes_on_if_its_gradients_are_kept(self) -> None:
        for error in (ValueError(), KeyboardInterrupt()):
            with self.subTest(kind=type(error)):
                self.micro_batch(self.store.model)
                self.interrupt(error)
                self.store.keep_gradients()
                self.micro_batch(self.store.model)
                self.check_step(2)

    def test_the_next_step_is_another_one(self) -> None:
        self.micro_batch(self.store.model)
        self.interrupt(ValueError())
        self.check_step(1)
        self.micro_batch(self.store.model)
        self.check_step(1)
        self.micro_batch(self.store.model)
        self.interrupt(KeyboardInterrupt())
        self.store.sync()
        self.micro_batch(self.store.model)
        self.check_step(1)

    def test_one_backward_pass_too_many(self) -> None:
        """The error says what helps: the gradients are discarded, and the step is done again."""
        for _ in range(4):
            self.micro_batch(self.store.model)
        with self.assertRaisesRegex(cistern.CstError, "had all its backward passes.*zero_grad"):
            self.micro_batch(self.store.model)
        with self.assertRaisesRegex(RuntimeError, "the last backward pass has raised"):
            self.optimizer.step()
        self.optimizer.zero_grad()
        self.micro_batch(self.store.model)
        self.check_step(1)

    def test_exceptions_that_mix_nothing(self) -> None:
        """Before the first gradients, without gradients, in the model alone, and around it."""
        self.interrupt(ValueError())
        self.micro_batch(self.store.model)
        with torch.no_grad():
            self.interrupt(ValueError())
            self.interrupt(KeyboardInterrupt())
        self.store.model.error, self.store.model.catches = ValueError(), True
        square(self.store.model, tokens())
        self.store.model.error = None
        try:
            raise OverflowError
        except OverflowError:
            self.micro_batch(self.store.model)
        self.check_step(2)


class Saving(TorchCase):
    """A checkpoint is whole with the buffers of the model, or is none."""

    def setUp(self) -> None:
        super().setUp()
        self.store = self.attach(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)))
        self.optimizer = self.store.optimizer(lr=1e-2)
        self.step()
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)

    def step(self) -> None:
        self.store.model(torch.ones(2, 4)).sum().backward()
        self.optimizer.step()

    def interrupt(self, comes: Callable[[int], bool]) -> None:
        """Save, and have Ctrl-C when ``comes`` returns True for the status of cst_try_save."""
        client = self.store.job.client
        library = client._lib

        class Interrupted:
            """libcistern with another cst_try_save."""

            def __getattr__(self, name: str) -> Any:
                return getattr(library, name)

            def cst_try_save(self, *arguments: Any) -> int:
                status: int = library.cst_try_save(*arguments)
                if comes(status):
                    raise KeyboardInterrupt
                return status

        client._lib = Interrupted()
        with self.assertRaises(KeyboardInterrupt):
            self.store.save(self.folder)
        client._lib = library

    def check_saved(self, step: int) -> None:
        found = {c.step: c for c in cistern.checkpoints(self.folder, check=True)}
        self.assertTrue(found[step].whole, found[step].why)
        buffers = os.path.join(self.folder, found[step].name, "buffers.safetensors")
        mean = safetensors.torch.load_file(buffers)["1.running_mean"]
        self.assertTrue(torch.equal(mean, self.store.model[1].running_mean))

    def test_the_same_call_goes_on(self) -> None:
        self.interrupt(lambda _: True)
        self.assertTrue(self.store.job.client.is_pending)
        self.assertEqual(cistern.checkpoints(self.folder), [])
        self.assertEqual(self.store.save(self.folder).step, 1)
        self.check_saved(1)

    def test_a_forward_pass_goes_on(self) -> None:
        self.interrupt(lambda status: status == Status.EAGAIN)
        self.store.model.eval()(torch.ones(2, 4))
        self.check_saved(1)

    def test_ctrl_c_when_the_save_has_ended(self) -> None:
        self.interrupt(lambda status: status == Status.OK)
        self.check_saved(1)
        with self.assertRaisesRegex(cistern.CstError, "EEXIST"):
            self.store.save(self.folder)

    def test_ctrl_c_at_any_moment(self) -> None:
        whole = Interrupter(0)
        whole.run(lambda: self.store.save(self.folder))
        choose = random.Random(SEED)
        for at in sorted(choose.sample(range(1, whole.n + 1), min(40, whole.n))):
            self.step()
            interrupter = Interrupter(at)
            try:
                interrupter.run(lambda: self.store.save(self.folder))
            except KeyboardInterrupt:
                pass
            with self.subTest(at=at, place=interrupter.place):
                try:
                    self.store.save(self.folder)
                except cistern.CstError as error:
                    self.assertEqual(error.status, Status.EEXIST)
                self.check_saved(self.store.step_no)


class PartOfTheInputs(TorchCase):
    """Backward passes that compute gradients of some weights alone."""

    def test_the_others_have_zeros(self) -> None:
        twin, store = self.twins(lambda: nn.Sequential(*(nn.Linear(4, 4) for _ in range(3))))
        optimizer = store.optimizer(lr=1e-2)
        for wanted in ((1,), (2,), (0, 2), (0, 1, 2)):
            models.copy_weights(store, twin)
            for model in (twin, store.model):
                inputs = [model[number].weight for number in wanted]
                square(model, tokens()).backward(inputs=inputs)
            optimizer.step()
            self.compare_gradients(twin, store, 0.0)
        self.compare_steps(twin, store, loss=square)

    def test_autograd_grad_of_a_weight(self) -> None:
        twin, store = self.twins(lambda: nn.Sequential(*(nn.Linear(4, 4) for _ in range(3))))
        grads = [
            torch.autograd.grad(square(model, tokens()), model[1].weight)[0]
            for model in (twin, store.model)
        ]
        self.assertTrue(torch.equal(*grads))
        self.compare_steps(twin, store, loss=square)
