# SPDX-License-Identifier: Apache-2.0
"""Standbys: processes that take the place of a rank that dies."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import cistern
import cistern.torch as ct
import torch
from models import TorchCase

PATIENCE_S = 240
SCRIPT = str(Path(__file__).with_name("standby_rank.py"))


def poll(what: Callable[[], object]) -> None:
    """Wait until ``what`` returns something true."""
    end = time.monotonic() + PATIENCE_S
    while not what():
        if time.monotonic() > end:
            raise AssertionError(f"not within {PATIENCE_S} s")
        time.sleep(0.01)


def small() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(4, 4)).bfloat16()


class Standby(TorchCase):
    N_STEPS = 60

    def setUp(self) -> None:
        super().setUp()
        self.addCleanup(self.remove, self.name)
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.top = Path(folder.name)

    def begin(
        self, command: list[str], name: str, order: str, **environment: str
    ) -> tuple[Path, subprocess.Popen[str]]:
        """Start the script as job ``name``, after the words ``command``."""
        folder = self.top / name
        folder.mkdir(exist_ok=True)
        words = [*command, sys.executable, SCRIPT, name, str(self.N_STEPS), str(folder), order]
        process = subprocess.Popen(
            words,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | environment,
        )
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return folder, process

    def end(self, process: subprocess.Popen[str]) -> str:
        """Wait for a process, which succeeds, and return its output."""
        output = process.communicate(timeout=PATIENCE_S)[0]
        self.assertEqual(process.returncode, 0, output)
        return output

    def kill_rank(self, folder: Path, rank: int) -> int:
        """Kill ``rank`` after some steps, when a process more than ranks asks. Return its pid."""
        losses = folder / f"losses.{rank}"
        poll(lambda: losses.exists() and losses.read_text().count("\n") >= 5)
        pid = int((folder / f"pid.{rank}").read_text())
        os.kill(pid, signal.SIGKILL)
        return pid

    def losses(self, folder: Path, rank: int) -> dict[int, str]:
        """Return the losses of ``rank`` by step. A step that was done again has the same one."""
        found: dict[int, str] = {}
        for line in (folder / f"losses.{rank}").read_text().splitlines():
            step, loss, _ = line.split()
            self.assertEqual(found.setdefault(int(step), loss), loss)
        return found

    def assert_same(self, first: Path, second: Path, world: int) -> None:
        for rank in range(world):
            want, got = self.losses(first, rank), self.losses(second, rank)
            self.assertEqual(len(want), self.N_STEPS)
            # The process that was killed may have ended before it wrote the loss of its last step.
            self.assertGreaterEqual(len(got), self.N_STEPS - 1)
            self.assertEqual(got, {step: want[step] for step in got})
            weights = torch.load(first / f"weights.{rank}"), torch.load(second / f"weights.{rank}")
            self.assertEqual(weights[0].keys(), weights[1].keys())
            for name, weight in weights[0].items():
                self.assertTrue(torch.equal(weight, weights[1][name]), name)

    def test_a_run_with_a_death_has_the_same_losses(self) -> None:
        calm, process = self.begin(["cistern", "run", "-n", "2", "--"], f"{self.name}-calm", "late")
        self.addCleanup(self.remove, f"{self.name}-calm")
        self.end(process)
        for order in "early", "late":
            name = f"{self.name}-{order}"
            self.addCleanup(self.remove, name)
            folder, process = self.begin(
                ["cistern", "run", "-n", "2", "--standby", "1", "--"], name, order
            )
            poll(lambda folder=folder: len(list(folder.glob("asks.*"))) >= 3)  # type: ignore[misc]
            pid = self.kill_rank(folder, 1)
            output = self.end(process)
            self.assertIn("a standby is rank 1 now", output)
            self.assertNotIn("it is started again", output)
            self.assertNotEqual(int((folder / "pid.1").read_text()), pid)
            self.assert_same(calm, folder, 2)

    def test_the_end_of_a_job_ends_its_standbys(self) -> None:
        folder, process = self.begin([], self.name, "late", CISTERN_STANDBY="1")
        poll(lambda: list(folder.glob("asks.*")))

        def ends() -> bool:
            """Make the job and remove it: the standby, which has loaded torch, waits soon."""
            store = ct.attach(small(), self.name, device="cpu")
            self.admin.remove_job(self.name)
            store.job.close()
            time.sleep(0.2)
            return process.poll() is not None

        poll(ends)
        self.assertIn(f"cistern: job '{self.name}' has ended: ", self.end(process))

    def test_a_standby_has_no_rank(self) -> None:
        with (
            mock.patch.dict(os.environ, CISTERN_STANDBY="1"),
            self.assertRaisesRegex(ValueError, "rank is 0, but this process is a standby"),
        ):
            self.attach(small(), rank=0, world=1)
        with mock.patch.dict(
            os.environ, LOCAL_RANK="1", LOCAL_WORLD_SIZE="2", RANK="1", WORLD_SIZE="2"
        ):
            self.assertEqual(ct.standby(self.name), 1)
        self.assertEqual(ct.standby(self.name), 0)

    def test_wrong_arguments_are_refused(self) -> None:
        with cistern.Client() as client:
            for seconds in 0, -1, 601, float("nan"):
                with self.assertRaises(ValueError):
                    client.standby(self.name, hold_s=seconds)
            with self.assertRaisesRegex(ct.CstError, "the name of a job has"):
                client.standby("a b")
            with self.assertRaises(TypeError):
                client.standby(3)  # type: ignore[arg-type]
