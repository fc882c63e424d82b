# SPDX-License-Identifier: Apache-2.0
"""Workers that run whatever stage is next, where the daemon ends, a checkpoint is not finished, or types are cast."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import tempfile
from typing import Any, NamedTuple

import cistern.torch as ct
import torch
from cistern import State
from cistern.torch.parallel import dispatch
from processes import CONTEXT, PATIENCE_S
from test_dispatch import CLIP, LR, MICRO, N_STEPS, Process, WorkersCase, batch, llama
from test_parallelize import KeptDaemon


class Fault(NamedTuple):
    """What happens in the second step of a worker."""

    where: str = ""  #: Before a "unit", after the "last unit", before the "step" of the optimizer, or in "save".
    pid: int = 0  #: Of the process that is killed; 0: this one.
    folder: str = ""  #: Of checkpoints after each step, which rank 0 writes.
    autocast: bool = False
    socket: str | None = None
    n_steps: int = 0  #: After so many ``went_on`` is set, and what strikes waits for that.
    went_on: Any = None
    back: Any = (
        None  #: An event that is set then, and for which a worker waits that has not struck.
    )


def train(job: str, rank: int, world: int, fault: Fault) -> Any:
    """Train, and return the losses by step, all masters, and what was said of steps that others have done."""
    run, loss, n_units = dispatch.Part._run, dispatch.Part._loss, 0
    cast = torch.autocast("cpu", torch.bfloat16) if fault.autocast else contextlib.nullcontext()
    fired = False

    def strike(where: str, store: ct.Store) -> None:
        nonlocal fired
        if where == fault.where and store.step_no == 1 and not fired:
            fired = True
            os.kill(fault.pid or os.getpid(), signal.SIGKILL)
            if fault.went_on is not None:
                assert fault.went_on.wait(PATIENCE_S)

    def struck(self: dispatch.Part, store: ct.Store, *args: Any) -> float:
        nonlocal n_units
        n_units += store.step_no == 1
        if n_units == 3:
            strike("unit", store)  # With the unit in hand.
        return run(self, store, *args)

    def loss_of(self: dispatch.Part, store: ct.Store) -> torch.Tensor:
        strike("last unit", store)
        return loss(self, store)

    dispatch.Part._run, dispatch.Part._loss = struck, loss_of  # type: ignore[method-assign]
    with cast:
        part = ct.parallelize(llama(), {"micro_batches": MICRO}, batch=batch(0), dispatch=True)
    store = ct.attach(part, job, rank=rank, world=world, socket=fault.socket)
    optimizer = store.optimizer(lr=LR, clip_norm=CLIP)
    losses, said = {}, []
    while store.step_no < N_STEPS:
        step = store.step_no
        try:
            with cast:
                losses[step] = part.step(**batch(step)).item()
        except RuntimeError as error:
            said.append(str(error))
            continue
        if fault.back is not None and math.isnan(losses[step]):
            fault.back.set()
        strike("step", store)
        optimizer.step()
        assert (optimizer.last is None) >= math.isnan(losses[step])
        assert store.step_no == step + 1
        if fault.went_on is not None and not fault.where and store.step_no == fault.n_steps:
            fault.went_on.set()
            if fault.back is not None:
                assert fault.back.wait(PATIENCE_S)
        if fault.folder and rank == 0:
            if fault.where == "save" and step == 1:
                signal.setitimer(
                    signal.ITIMER_REAL, 0.002
                )  # Its signal kills, at any point of the save.
            store.save(fault.folder)
    masters = {n: store.read(n, State.MASTER) for n, _ in part.model.named_parameters()}
    store.close()
    return losses, masters, said


class Faults(WorkersCase):
    def train_all(self, world: int, *, of: int | None = None, **fault: Any) -> list[Any]:
        name = self.job()
        workers = [
            Process(
                train,
                name,
                rank,
                world,
                Fault(**fault) if of in (None, rank) else Fault(socket=fault.get("socket")),
            )
            for rank in range(world)
        ]
        return [worker.result() for worker in workers]

    def equal(self, got: Any, wanted: Any) -> None:
        for step, loss in got[0].items():  # NaN: the others had done the step.
            self.assertIn(loss, (wanted[0][step], loss if math.isnan(loss) else None))
        for name, values in wanted[1].items():
            self.assertTrue(torch.equal(got[1][name], values), name)

    def test_the_daemon_ends(self) -> None:
        wanted = self.train_all(1)[0]
        for where in ("unit", "last unit", "step"):
            for world in (1, 2):
                with self.subTest(where=where, world=world):
                    daemon = KeptDaemon()
                    self.addCleanup(daemon.close)
                    of = None if world == 1 else 1
                    for got in self.train_all(
                        world, of=of, where=where, pid=daemon.pid, socket=daemon.socket
                    ):
                        self.equal(got, wanted)

    def away(self, n_steps: int) -> Any:
        """Return what two workers return if rank 1 comes back when the job has done ``n_steps`` steps."""
        daemon = KeptDaemon()
        self.addCleanup(daemon.close)
        there = Fault(socket=daemon.socket, n_steps=n_steps, went_on=CONTEXT.Event())
        if n_steps < N_STEPS:
            there = there._replace(back=CONTEXT.Event())
        gone = there._replace(where="unit", pid=daemon.pid)
        name = self.job()
        workers = [Process(train, name, rank, 2, fault) for rank, fault in enumerate((there, gone))]
        return [worker.result() for worker in workers]

    def test_the_others_do_a_step_without_a_worker(self) -> None:
        wanted = self.train_all(1)[0]
        other, back = self.away(2)
        for got in (other, back):
            self.equal(got, wanted)
        self.assertEqual((list(other[0]), list(back[0])), ([0, 1, 2], [0, 1, 2]))
        self.assertEqual([step for step, loss in back[0].items() if math.isnan(loss)], [1])
        self.assertFalse(any(map(math.isnan, other[0].values())))

    def test_the_others_do_several_steps_without_a_worker(self) -> None:
        wanted = self.train_all(1)[0]
        other, back = self.away(3)
        for got in (other, back):
            self.equal(got, wanted)
        self.assertRegex(back[2][0], "have gone on from step 1 to step 3 without it.*step_no")
        self.assertEqual((list(back[0]), len(back[2])), ([0], 1))

    def test_autocast(self) -> None:
        wanted = self.train_all(1, autocast=True)[0]
        for got in self.train_all(2, autocast=True):
            self.equal(got, wanted)
        model = llama()
        optimizer = torch.optim.AdamW(model.parameters(), lr=LR)
        for step, loss in wanted[0].items():
            with torch.autocast("cpu", torch.bfloat16):
                of_torch = model(**batch(step)).loss
            self.assertAlmostEqual(loss, of_torch.item(), delta=1e-2 * of_torch.item())
            of_torch.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            optimizer.step()
            optimizer.zero_grad()

    def test_one_is_killed_while_it_saves(self) -> None:
        wanted = self.train_all(1)[0]
        with tempfile.TemporaryDirectory() as folder:
            name = self.job()
            saving = Process(train, name, 0, 2, Fault(where="save", folder=folder))
            other = Process(train, name, 1, 2, Fault())
            with self.assertRaises(EOFError):
                saving.result()
            self.equal(other.result(), wanted)
            part = ct.parallelize(llama(), {"micro_batches": MICRO}, batch=batch(0), dispatch=True)
            store = self.attach(part, name=self.name + "-resumed", resume=folder)
            self.assertIn(store.step_no, (1, 2))
