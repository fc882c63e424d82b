# SPDX-License-Identifier: Apache-2.0
"""Several processes: a fork, a rank that is killed, and Ctrl-C in a wait."""

import logging
import os
import queue
import signal
import subprocess
import threading
from unittest import mock

import cistern
from cistern import CstError, Direction, Status
from support import Model, start_rank, start_standby
from test_job import JobCase


class Fork(JobCase):
    def test_a_child_cannot_use_the_job_and_the_parent_still_can(self) -> None:
        model = self.ready()
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                model.job.op_begin(0, Direction.FORWARD)
            except CstError as error:
                status = 0 if error.status == Status.EFORKED else 2
            model.job.close()
            os._exit(status)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), 0)
        self.assertEqual(model.step().step, 1)


class Ranks(JobCase):
    def undisturbed(self) -> list[bytes]:
        job = self.open("undisturbed", world=2)
        other = start_rank("undisturbed", 4)
        self.addCleanup(other.communicate)
        model = Model(job)
        model.write()
        model.train(4)
        masters = model.masters()
        job.leave()
        self.assertEqual(other.wait(), 0)
        return masters

    def begin(self) -> tuple[cistern.Job, Model, subprocess.Popen[str]]:
        """Train two steps with another process, which has begun the third one."""
        job = self.open(world=2)
        victim = start_rank(self.name, 4, 2)
        self.addCleanup(victim.communicate)
        model = Model(job)
        model.write()
        model.train(2)
        self.assertEqual(victim.stdout.readline(), "in the backward pass\n")
        return job, model, victim

    def kill(self, victim: subprocess.Popen[str], model: Model) -> None:
        victim.kill()
        victim.wait()
        with self.assertRaisesRegex(cistern.StepVoid, "rank 1"):
            model.step()

    def test_a_killed_rank_is_replaced_and_the_bits_are_the_same(self) -> None:
        job, model, victim = self.begin()
        self.kill(victim, model)
        other = start_rank(self.name, 4)
        self.addCleanup(other.communicate)
        self.end(job, model, other)

    def test_a_standby_takes_the_place_of_a_killed_rank(self) -> None:
        standby = start_standby(self.name, 4)
        self.addCleanup(standby.communicate)
        self.addCleanup(standby.kill)
        job, model, victim = self.begin()
        self.kill(victim, model)
        self.assertEqual(standby.stdout.readline(), "rank 1\n")
        self.end(job, model, standby)

    def end(self, job: cistern.Job, model: Model, other: subprocess.Popen[str]) -> None:
        """Do the steps that are left with ``other``."""
        self.assertEqual(job.sync(), 2)
        model.train(4)
        masters = model.masters()
        job.leave()
        self.assertEqual(other.wait(), 0)
        self.assertEqual(masters, self.undisturbed())


class Told(logging.Handler):
    """Has the messages of the logger of the package in ``words``."""

    def __init__(self) -> None:
        super().__init__()
        self.words: queue.Queue[str] = queue.Queue()

    def emit(self, record: logging.LogRecord) -> None:
        self.words.put(record.getMessage())

    def until(self, words: str) -> str:
        """Wait for the next message that has ``words``, and return it."""
        while words not in (message := self.words.get(timeout=120)):
            pass
        return message


@mock.patch("cistern.job.MEETING_SECONDS", 0.1)
@mock.patch("cistern.job.STEP_SECONDS", 0.1)
class Waits(JobCase):
    """A rank that waits for others says for which ones."""

    def setUp(self) -> None:
        super().setUp()
        self.told = Told()
        logger = logging.getLogger("cistern")
        logger.addHandler(self.told)
        self.addCleanup(logger.removeHandler, self.told)

    def in_thread(self, call) -> threading.Thread:
        thread = threading.Thread(target=call, daemon=True)  # It waits on if the test fails.
        thread.start()
        return thread

    def test_a_rank_says_for_whom_it_waits_in_commit_and_sync_and_step(self) -> None:
        job = self.open(world=2)

        def rank_0() -> None:
            model = Model(job)
            model.write()
            job.sync()
            model.step()

        first = self.in_thread(rank_0)
        self.assertIn("for rank 1 (absent)", self.told.until("s in commit"))
        with cistern.Job(self.name, rank=1, world=2) as other:
            model = Model(other)
            self.assertIn("for rank 1", self.told.until("s in sync"))
            other.sync()
            self.assertIn("for rank 1", self.told.until("s in step"))
            model.step()
            first.join()
            job.leave()

    def test_a_rank_that_is_alone_says_nothing(self) -> None:
        self.ready().step()
        self.assertTrue(self.told.words.empty())


class Interrupts(JobCase):
    def setUp(self) -> None:
        super().setUp()
        before = signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
        self.addCleanup(signal.signal, signal.SIGALRM, before)

    def interrupted(self, call) -> None:
        """Have ``call``, which waits, end by what Ctrl-C sends."""
        with self.assertRaises(KeyboardInterrupt):
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            call()

    def declared(self, job: cistern.Job) -> cistern.Job:
        job.operator("op", [job.tensor("w", (10,))])
        return job

    def test_ctrl_c_ends_a_wait_which_can_go_on(self) -> None:
        job = self.declared(self.open(world=2))
        self.interrupted(job.commit)
        with self.assertRaises(CstError) as caught:
            job.stat()
        self.assertEqual(caught.exception.status, Status.EBUSY)
        self.assertIn("rank 1", self.admin.job_waits(self.name))
        with cistern.Job(self.name, rank=1, world=2) as other:
            self.declared(other)
            other.commit()
            self.assertEqual(job.commit().n_params, 10)
            self.interrupted(other.sync)
            self.assertEqual(job.sync(), 0)
            self.assertEqual(other.sync(), 0)
            job.leave()

    def test_a_job_is_closed_after_ctrl_c(self) -> None:
        job = self.declared(self.open(world=2))
        self.interrupted(job.commit)
        job.close()
