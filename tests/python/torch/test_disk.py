# SPDX-License-Identifier: Apache-2.0
"""Models whose states lie in files on a drive train as others, with the same bits."""

import os
import tempfile
import unittest
from pathlib import Path
from typing import Any

import cistern
import torch
from cistern import State
from models import TorchCase
from torch import nn


def on_a_drive() -> str | None:
    """Return a directory whose file system has files with O_DIRECT and O_TMPFILE on a block device."""
    for path in (tempfile.gettempdir(), os.getcwd(), "/var/tmp"):
        try:
            fd = os.open(path, os.O_TMPFILE | os.O_RDWR | os.O_DIRECT, 0o600)
        except OSError:
            continue
        try:
            if os.major(os.fstat(fd).st_dev) != 0:
                return path
        finally:
            os.close(fd)
    return None


DRIVE = on_a_drive()


@unittest.skipIf(DRIVE is None, "no directory on a drive that has O_DIRECT")
class Disk(TorchCase):
    def train(self, job: str, **options: Any) -> list[float]:
        torch.manual_seed(5)
        model = nn.Sequential(nn.Linear(96, 200), nn.GELU(), nn.Linear(200, 96)).bfloat16()
        store = self.attach(model, job, chunk_elems=8192, device="cpu", **options)
        optimizer = store.optimizer(lr=1e-2, clip_norm=1.0)
        losses = []
        for step in range(4):
            x = torch.full((4, 96), 0.1 * step).bfloat16()
            loss = (model(x) - 1).float().square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        self.states[job] = [store.read(name, State.EXP_AVG_SQ) for name in ("0.weight", "2.bias")]
        return losses

    def test_losses_are_those_of_memory(self) -> None:
        self.states: dict[str, list[torch.Tensor]] = {}
        expected = self.train("memory")
        self.assertEqual(self.train("all", disk=DRIVE), expected)
        self.assertEqual(self.train("some", disk=[Path(str(DRIVE))], disk_bytes="100K"), expected)
        for job in ("all", "some"):
            for got, wanted in zip(self.states[job], self.states["memory"], strict=True):
                self.assertTrue(torch.equal(got, wanted))

    def test_durable(self) -> None:
        self.states: dict[str, list[torch.Tensor]] = {}
        expected = self.train("zeros", unused="zero")
        with tempfile.TemporaryDirectory(dir=DRIVE) as there:
            self.assertEqual(self.train("lasts", disk=there, durable=True), expected)
            self.assertEqual(os.listdir(there), ["lasts.0.cistern"])
            with self.assertRaisesRegex(cistern.CstError, "unused skip"):
                self.train("skips", disk=there, durable=True, unused="skip")

    def test_refusals(self) -> None:
        with self.assertRaisesRegex(ValueError, "without a comma in its path"):
            self.train("refused", disk=["/a,b"])
        with self.assertRaisesRegex(TypeError, "disk"):
            self.train("refused", disk=[3])
        with self.assertRaisesRegex(cistern.CstError, "/nowhere-at-all.*No such file"):
            self.train("refused", disk="/nowhere-at-all")


if __name__ == "__main__":
    unittest.main()
