# SPDX-License-Identifier: Apache-2.0
"""A program that ends without closing its store leaves the job, unless an error ends it."""

import gc
import json
import signal
import subprocess
import textwrap

import torch
from models import TorchCase
from processes import Program
from torch import nn

BEGIN = """
import os, signal, sys
import cistern.torch as ct
import torch

def attach(**options):
    return ct.attach(torch.nn.Linear(4, 4), sys.argv[1], device="cpu", **options)

def train(store, n):
    opt = store.optimizer(lr=0.1)
    for _ in range(n):
        store.model(torch.ones(2, 4)).sum().backward()
        opt.step()
"""


class Ending(TorchCase):
    def start(self, end: str) -> Program:
        """Start a program, which does ``end`` with a job of its own."""
        self.addCleanup(self.remove, self.name)
        return Program(BEGIN + textwrap.dedent(end), self.name)

    def state(self) -> str:
        """Return what ``cistern jobs`` shows of the job."""
        shown = subprocess.run(
            ["cistern", "jobs", "--json"], capture_output=True, check=True, text=True
        )
        (state,) = (job["state"] for job in json.loads(shown.stdout) if job["name"] == self.name)
        return state

    def check(self, state: str, status: int, end: str) -> str:
        """Run ``end``, and return what it says on stderr."""
        ended, said = self.start(end).end()
        self.assertEqual((ended, self.state()), (status, state), said)
        return said

    def test_the_end_of_the_program(self) -> None:
        for end, status in (
            ("def main():\n    train(attach(), 2)\nmain()", 0),
            ("store = attach(); train(store, 2); sys.exit(3)", 3),
            # A child has no job to leave, as one of a DataLoader. Later versions of Python warn of
            # a fork beside threads.
            (
                """\
                import warnings
                warnings.simplefilter("ignore", DeprecationWarning)
                store = attach()
                os.fork() or sys.exit()
                os.wait()
                train(store, 2)
                """,
                0,
            ),
        ):
            with self.subTest(end):
                self.assertEqual(self.check("done", status, end), "")
                with self.assertWarnsRegex(UserWarning, "is at step 2"):
                    store = self.attach(nn.Linear(4, 4), device="cpu")
                store.close(remove=True)

    def test_an_error_ends_the_program(self) -> None:
        for end, status in (
            ("store = attach(); train(store, 2); raise OSError", 1),
            ("store = attach(); train(store, 2); store.job.close(); sys.exit(3)", 3),
            (
                "store = attach(); train(store, 2); os.kill(os.getpid(), signal.SIGTERM)",
                -signal.SIGTERM,
            ),
        ):
            with self.subTest(end):
                self.check("interrupted", status, end)
                self.remove(self.name)

    def test_an_error_of_an_interactive_session_does_not_end_it(self) -> None:
        self.check(
            "done", 0, "sys.ps1, sys.last_value = '>>> ', ValueError(); train(store := attach(), 1)"
        )

    def test_a_store_that_nothing_refers_to(self) -> None:
        model = nn.Linear(4, 4)
        store = self.attach(model)
        model.weight.register_hook(lambda grad, model=model: grad)
        store.model(torch.ones(2, 4)).sum().backward()
        store.optimizer(lr=0.1).step()
        self._cleanups.pop()  # It refers to the store.
        del store, model
        gc.collect()
        self.assertEqual(self.state(), "done")

    def test_a_rank_does_not_wait_for_another_one_that_died(self) -> None:
        other = "store = attach(rank=1, world=2); print(flush=True); signal.pause()"
        first, second = self.start("store = attach(rank=0, world=2)\ninput()"), self.start(other)
        second.stdout.readline()
        second.kill()
        second.end()
        self.assertEqual(first.end("\n"), (0, ""))
        self.assertEqual(self.state(), "interrupted")
