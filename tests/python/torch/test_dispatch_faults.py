# SPDX-License-Identifier: Apache-2.0
"""Workers that run whatever stage is next, where the daemon ends, a checkpoint is not finished, or types are cast."""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
from typing import Any, NamedTuple

import cistern.torch as ct
import torch
from cistern import State
from cistern.torch.parallel import dispatch
from test_dispatch import CLIP, LR, MICRO, N_STEPS, Process, WorkersCase, batch, llama
from test_parallelize import KeptDaemon


class Fault(NamedTuple):
    """What happens in the second step of a worker."""

    where: str = ""  #: Before a "unit", after the "last unit", before the "step" of the optimizer, or in "save".
    pid: int = 0  #: Of the process that is killed; 0: this one.
    folder: str = ""  #: Of checkpoints after each step, which rank 0 writes.
    autocast: bool = False
    socket: str | None = None


def train(job: str, rank: int, world: int, fault: Fault) -> Any:
    """Train, and return the losses by step, and all masters."""
    run, loss, n_units = dispatch.Part._run, dispatch.Part._loss, 0
    cast = torch.autocast("cpu", torch.bfloat16) if fault.autocast else contextlib.nullcontext()
    fired = False

    def strike(where: str, store: ct.Store) -> None:
        nonlocal fired
        if where == fault.where and store.step_no == 1 and not fired:
            fired = True
            os.kill(fault.pid or os.getpid(), signal.SIGKILL)

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
    losses = {}
    while store.step_no < N_STEPS:
        step = store.step_no
        with cast:
            losses[step] = part.step(**batch(step)).item()
        strike("step", store)
        optimizer.step()
        if fault.folder and rank == 0:
            if fault.where == "save" and step == 1:
                signal.setitimer(
                    signal.ITIMER_REAL, 0.002
                )  # Its signal kills, at any point of the save.
            store.save(fault.folder)
    masters = {n: store.read(n, State.MASTER) for n, _ in part.model.named_parameters()}
    store.close()
    return losses, masters


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
        for step, loss in got[0].items():
            self.assertEqual(loss, wanted[0][step])
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
