# SPDX-License-Identifier: Apache-2.0
"""Models whose stages are run by whichever worker asks next: the same bits with any workers."""

from __future__ import annotations

import itertools
import os
import pickle
import signal
import tempfile
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, NamedTuple
from unittest import mock

import cistern
import cistern.torch as ct
import models
import torch
from cistern import State
from cistern.torch.parallel import dispatch
from models import TorchCase
from processes import CONTEXT, PATIENCE_S
from torch import nn

N_STEPS, ROWS, MICRO = 3, 8, 4
LR, CLIP = 1e-2, 0.5


def llama() -> nn.Module:
    torch.manual_seed(7)
    return models.llama(num_hidden_layers=4)


def gpt2() -> nn.Module:
    torch.manual_seed(7)
    return models.gpt2()  # With dropout.


def no_dropout() -> nn.Module:
    model = gpt2()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    for block in model.transformer.h:  # type: ignore[union-attr]
        block.attn.config.attn_pdrop = 0.0  # type: ignore[union-attr]
    return model


def on_meta() -> nn.Module:
    model = llama()
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                module._parameters[name] = nn.Parameter(parameter.to("meta"))
    return model


MODELS = {"llama": llama, "gpt2": gpt2, "no_dropout": no_dropout}


def batch(step: int, rows: int = ROWS) -> dict[str, torch.Tensor]:
    """Return a batch whose rows have different numbers of labels, and whose second micro-batch has none."""
    generator = torch.Generator().manual_seed(step)
    tokens = torch.randint(3, models.VOCABULARY, (rows, 12), generator=generator)
    labels = tokens.clone()
    for row in range(rows):
        labels[row, : row % 5] = -100
    labels[2:4] = -100
    return {"input_ids": tokens, "labels": labels, "attention_mask": torch.ones_like(tokens)}


class Gates(NamedTuple):
    """What happens to a worker. It is in the middle of a unit before it puts an array."""

    came: Any = None  #: An event that is set when it has a unit.
    awaited: Any = None  #: An event for which it waits with its second unit in hand.
    dies: int = 0  #: Number of the array before which it is killed.
    raises: int = 0  #: Number of that before which an exception comes.
    hangs_up: int = 0  #: Number of that before which its connection ends, and the process goes on.


def train(job: str, kind: str, rank: int, world: int, n_stages: int | None, gates: Gates) -> Any:
    """Train as ``rank``.

    Return the losses by step, all states, the number of units that it has run, and the bytes of weights that
    were loaded for it.
    """
    n_units, n_put = 0, 0
    run, put = dispatch.Part._run, dispatch.Part._put

    def counted(*args: Any) -> float:
        nonlocal n_units
        n_units += 1
        if n_units == 2 and gates.awaited is not None:
            assert gates.awaited.wait(PATIENCE_S)
        if gates.came is not None:
            gates.came.set()
        return run(*args)

    def ended(self: dispatch.Part, store: ct.Store, *args: Any) -> None:
        nonlocal n_put
        n_put += 1
        if n_put == gates.dies:
            os.kill(os.getpid(), signal.SIGKILL)
        if n_put == gates.raises:
            raise ArithmeticError("in the middle of a unit")
        if n_put == gates.hangs_up:
            store.job.close()
            signal.pause()
        put(self, store, *args)

    dispatch.Part._run, dispatch.Part._put = counted, ended  # type: ignore[method-assign]
    how = {"stages": n_stages, "micro_batches": MICRO}
    part = ct.parallelize(MODELS[kind](), how, batch=batch(0), dispatch=True)
    store = ct.attach(part, job, rank=rank, world=world)
    optimizer = store.optimizer(lr=LR, clip_norm=CLIP)
    losses = {}
    before = torch.get_rng_state()
    for inputs in itertools.islice(map(batch, range(N_STEPS)), store.step_no, None):
        step = store.step_no
        try:
            losses[step] = part.step(**inputs).item()
        except ArithmeticError:
            losses[step] = part.step(**inputs).item()
        optimizer.step()
        assert optimizer.last is not None
        assert abs(optimizer.last.loss - losses[step]) < 1e-6
    assert torch.equal(before, torch.get_rng_state())
    states = {
        (name, state): store.read(name, state)
        for name, _ in part.model.named_parameters()
        for state in (State.WEIGHT, State.MASTER, State.EXP_AVG, State.EXP_AVG_SQ)
    }
    bytes_up = store.stat().bytes_up
    store.close()
    return losses, states, n_units, bytes_up


def _process(results: Connection, target: Callable[..., Any], *args: Any) -> None:
    torch.set_num_threads(1)
    results.send_bytes(pickle.dumps(target(*args)))  # With the memory of tensors.


class Process:
    """A process that calls ``target`` with ``args``."""

    def __init__(self, target: Callable[..., Any], *args: Any) -> None:
        self._results, theirs = CONTEXT.Pipe(duplex=False)
        self.process = CONTEXT.Process(target=_process, args=(theirs, target, *args))
        self.process.start()
        theirs.close()

    def result(self) -> Any:
        """Return what ``target`` returns. EOFError: the process has ended before."""
        if not self._results.poll(PATIENCE_S):
            raise AssertionError("a worker says nothing")
        found = pickle.loads(self._results.recv_bytes())
        self.process.join()
        return found

    def kill(self) -> None:
        self.process.kill()
        self.process.join()

    def await_death(self) -> None:
        self.process.join(PATIENCE_S)
        assert self.process.exitcode == -signal.SIGKILL, self.process.exitcode


class Worker(Process):
    """A process that trains. The arguments are those of ``train``."""

    def __init__(self, *args: Any, **gates: Any) -> None:
        super().__init__(train, *args, Gates(**gates))


def of_torch(kind: str) -> list[float]:
    """Return the losses of one process without a store."""
    model = MODELS[kind]()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR)
    losses = []
    for step in range(N_STEPS):
        loss = model(**batch(step)).loss
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


class WorkersCase(TorchCase):
    def job(self) -> str:
        self.n_jobs = getattr(self, "n_jobs", 0) + 1
        name = f"{self.name}-{self.n_jobs}"
        self.addCleanup(self.remove, name)
        return name

    def train(self, kind: str, world: int, n_stages: int | None = None) -> Any:
        """Return losses and states of ``world`` workers, which are alike on all of them."""
        name = self.job()
        workers = [Worker(name, kind, rank, world, n_stages) for rank in range(world)]
        results = [worker.result() for worker in workers]
        for result in results:
            self.same(result, results[0])
        n_layers = 4 if kind == "llama" else 3
        n_passes = 2 * (n_layers if n_stages is None else n_stages) - 1
        self.assertEqual(sum(result[2] for result in results), N_STEPS * MICRO * n_passes)
        self.bytes_up = sum(result[3] for result in results)
        return results[0][:2]

    def same(self, got: Any, wanted: Any) -> None:
        """Compare losses and states, bit for bit."""
        for step, loss in got[0].items():
            self.assertEqual(loss, wanted[0][step])
        for key, values in wanted[1].items():
            self.assertTrue(torch.equal(got[1][key], values), key)


class Bits(WorkersCase):
    def test_llama_has_the_bits_of_one_worker(self) -> None:
        wanted, bytes_up = self.train("llama", 1), self.bytes_up
        for loss, of_torch_loss in zip(wanted[0].values(), of_torch("llama"), strict=True):
            self.assertAlmostEqual(loss, of_torch_loss, delta=1e-4 * of_torch_loss)
        for world in (2, 3, 4):
            self.same(self.train("llama", world), wanted)
            self.assertEqual(self.bytes_up, bytes_up)  # Whoever loads the weights of a pass.
        self.same(self.train("llama", 2, n_stages=2), wanted)

    def test_gpt2_with_tied_weights_and_dropout(self) -> None:
        wanted = self.train("gpt2", 1)
        for world in (2, 3, 4):
            self.same(self.train("gpt2", world), wanted)
        self.same(self.train("gpt2", 2, n_stages=2), wanted)

    def test_gpt2_has_the_losses_of_one_process(self) -> None:
        got = self.train("no_dropout", 2)[0].values()
        for loss, wanted in zip(got, of_torch("no_dropout"), strict=True):
            self.assertAlmostEqual(loss, wanted, delta=1e-4 * wanted)


class Ends(WorkersCase):
    def test_one_is_killed_and_another_comes_in_the_middle_of_a_step(self) -> None:
        wanted = self.train("llama", 1)
        for dies in (
            1,
            6,
            12,
        ):  # In forward passes of a stage, in backward passes, in a later step.
            name, came = self.job(), CONTEXT.Event()
            first = Worker(name, "llama", 0, 2, None, awaited=came)
            killed = Worker(name, "llama", 1, 2, None, dies=1)
            killed.await_death()
            other = Worker(name, "llama", 1, 2, None, came=came, dies=dies)
            other.await_death()
            last = Worker(name, "llama", 1, 2, None)
            self.same(first.result(), wanted)
            self.same(last.result(), wanted)

    def test_one_is_killed_and_no_other_comes(self) -> None:
        wanted = self.train("gpt2", 1)
        name, killed = self.job(), CONTEXT.Event()
        dying = Worker(name, "gpt2", 2, 3, None, dies=1)
        others = [Worker(name, "gpt2", rank, 3, None, awaited=killed) for rank in range(2)]
        dying.await_death()
        killed.set()
        for worker in others:
            self.same(worker.result(), wanted)

    def test_an_exception_ends_a_unit(self) -> None:
        wanted = self.train("gpt2", 1)
        for raises in (1, 20):
            name = self.job()
            workers = [Worker(name, "gpt2", rank, 2, None, raises=raises) for rank in range(2)]
            for worker in workers:
                self.same(worker.result(), wanted)

    def test_a_worker_loses_its_connection_and_goes_on(self) -> None:
        wanted = self.train("gpt2", 1)
        name, came = self.job(), CONTEXT.Event()
        lost = Worker(name, "gpt2", 1, 2, None, hangs_up=2, came=came)
        other = Worker(name, "gpt2", 0, 2, None, awaited=came)
        self.addCleanup(lost.kill)
        self.same(other.result(), wanted)


class OneWorker(TorchCase):
    """Calls of one worker, in this process."""

    def part(self, make: Any = llama, **how: Any) -> Any:
        return ct.parallelize(make(), how or "auto", batch=batch(0), dispatch=True)

    def begin(self, part: Any, **options: Any) -> ct.Store:
        store = self.attach(part, **options)
        store.optimizer(lr=LR)
        return store

    def test_the_model_is_evaluated_between_steps(self) -> None:
        part = self.part()
        self.assertEqual((part.n_stages, part.micro_batches), (4, 8))
        store = self.begin(part)
        for step in range(2):
            part.step(**batch(step))
            store.the_optimizer().step()
            twin = llama()
            twin.load_state_dict(store.state_dict())
            with torch.no_grad():
                got, wanted = part(**batch(9)).logits, twin(**batch(9)).logits
            self.assertTrue(torch.equal(got, wanted))

    def test_batches_can_be_shorter_than_the_example(self) -> None:
        part = self.part(micro_batches=4)
        store = self.begin(part)
        short = {k: v[:4, :7] for k, v in batch(1).items()}
        loss = part.step(**short).item()
        wanted = llama()(**short).loss.item()
        self.assertAlmostEqual(loss, wanted, delta=1e-4 * wanted)
        store.the_optimizer().step()
        with self.assertRaisesRegex(ValueError, "a micro-batch has 48 tokens, and .* had 24"):
            part.step(**batch(1, rows=16))
        with self.assertRaisesRegex(ValueError, "does not divide into 4 micro-batches"):
            part.step(**batch(1, rows=6))

    def test_a_small_pool(self) -> None:
        def deep() -> nn.Module:
            torch.manual_seed(7)
            return models.llama(num_hidden_layers=12)

        wanted = self.states(self.part(deep), name=self.name + "-large")
        self.assertEqual(self.states(self.part(deep), pool="30%"), wanted)

    def states(self, part: Any, **options: Any) -> list[bytes]:
        """Train, and return the masters."""
        store = self.begin(part, **options)
        for step in range(2):
            part.step(**batch(step))
            store.the_optimizer().step()
        return self.masters(store, part)

    def masters(self, store: ct.Store, part: Any) -> list[bytes]:
        names = [name for name, _ in part.model.named_parameters()]
        return [store.read(name, State.MASTER).numpy().tobytes() for name in names]

    def test_a_model_without_values(self) -> None:
        wanted = self.states(self.part(), name=self.name + "-values")
        with tempfile.TemporaryDirectory() as folder:
            llama().save_pretrained(folder)
            self.assertEqual(self.states(self.part(on_meta), load=folder), wanted)

    def test_frozen_layers(self) -> None:
        def frozen() -> nn.Module:
            model = llama()
            for name, parameter in model.named_parameters():
                parameter.requires_grad_("layers.2" in name)
            return model

        part, twin = self.part(frozen), frozen()
        store = self.begin(part)
        optimizer = torch.optim.AdamW([p for p in twin.parameters() if p.requires_grad], lr=LR)
        for step in range(3):
            got, wanted = part.step(**batch(step)), twin(**batch(step)).loss
            self.assertAlmostEqual(got.item(), wanted.item(), delta=1e-4 * wanted.item())
            wanted.backward()
            optimizer.step()
            optimizer.zero_grad()
            store.the_optimizer().step()

    def test_a_step_is_computed_once(self) -> None:
        part = self.part()
        with self.assertRaisesRegex(RuntimeError, "in no store: call attach"):
            part.step(**batch(0))
        store = self.begin(part)
        with self.assertRaisesRegex(RuntimeError, r"computed by part.step\(\*\*batch\)"):
            part(**batch(0)).loss.backward()
        first = part.step(**batch(0))
        with self.assertRaisesRegex(
            RuntimeError, "computed already: call the step of the optimizer"
        ):
            part.step(**batch(0))
        with self.assertRaisesRegex(RuntimeError, "cannot be discarded, because other workers"):
            store.the_optimizer().zero_grad()
        store.the_optimizer().step()
        store.the_optimizer().zero_grad()
        self.assertLess(part.step(**batch(0)).item(), first.item())

    def test_another_batch_after_an_exception(self) -> None:
        """What was done with the first batch counts, so that the step is not that of the second one."""
        for how, at in (({"micro_batches": 4}, 3), ({"micro_batches": 4, "stages": 1}, 1)):
            name = f"{self.name}-{at}"
            wanted = self.states(self.part(**how), name=name + "-undisturbed")
            part = self.part(**how)
            store = self.begin(part, name=name)
            ends, end_unit = itertools.count(1), store.runner.end_unit

            def ended(
                ends: Any = ends, end_unit: Any = end_unit, at: int = at
            ) -> None:  # Gradients are handed in.
                if next(ends) == at:
                    raise ArithmeticError("in the middle of a unit")
                end_unit()

            with mock.patch.object(store.runner, "end_unit", ended):
                with self.assertRaises(ArithmeticError):
                    part.step(**batch(0))
                with self.assertRaisesRegex(ValueError, "What differs: 'input_ids', 'labels'"):
                    part.step(**batch(1))
                with self.assertRaisesRegex(cistern.CstError, "before all its units are done"):
                    store.the_optimizer().step()
                part.step(**batch(0))
            store.the_optimizer().step()
            part.step(**batch(1))
            store.the_optimizer().step()
            self.assertEqual(self.masters(store, part), wanted)

    def test_gradients_are_recorded(self) -> None:
        part = self.part()
        store = self.begin(part)
        for context in (torch.no_grad(), torch.inference_mode()):
            with context, self.assertRaisesRegex(RuntimeError, "under torch.no_grad"):
                part.step(**batch(0))
        part.step(**batch(0))
        store.the_optimizer().step()

    def test_what_cannot_be_is_refused(self) -> None:
        for how, words in (
            ({"tp": 2}, "no key 'tp': keys are stages, borders, micro_batches, seed"),
            ({"stages": 5}, "4 layers cannot be cut into 5 stages: 1 to 4"),
            ({"stages": 2, "borders": [1, 2]}, "do not cut 4 layers into 2 stages"),
            ({"micro_batches": 1}, "micro_batches is 1: an integer from 2"),
            ({"micro_batches": 3}, "does not divide into 3 micro-batches"),
        ):
            with self.assertRaisesRegex(ValueError, words):
                self.part(**how)
        with self.assertRaisesRegex(ValueError, "a batch of 1 rows"):
            ct.parallelize(llama(), batch=batch(0, rows=1), dispatch=True)
        with self.assertRaisesRegex(ValueError, "runs in several stages"):
            self.attach(self.part(), units=["model"])
        with self.assertRaisesRegex(ValueError, "cannot be skipped"):
            self.attach(self.part(), unused="skip")
        with self.assertRaisesRegex(cistern.CstError, "early updates are not possible"):
            self.attach(self.part(), overlap="early")
        others = {"RANK": "0", "WORLD_SIZE": "4", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}
        with (
            mock.patch.dict(os.environ, others),
            self.assertRaisesRegex(ValueError, "4 ranks of the job are on several, 2 of them here"),
        ):
            self.attach(self.part())
        with self.assertRaisesRegex(ValueError, "block_ranks is 1, but the 2 workers"):
            self.attach(self.part(), world=2, block_ranks=1)
        with self.assertRaisesRegex(
            ValueError, "steps have 8 micro-batches, as parallelize was told"
        ):
            self.attach(self.part(), micro_batches=2)
        with self.assertRaisesRegex(
            ValueError, "cannot compute another term, such as that of routers"
        ):
            self.part(models.mixtral)
