# SPDX-License-Identifier: Apache-2.0
"""The states of a job in a checkpoint of Trainer, which a process that ends at any moment leaves whole."""

import itertools
import os
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

import cistern.torch as ct
import models
import torch
from cistern import CstError, Status
from cistern.torch import hf_states
from models import TorchCase
from torch import nn


class Killed(BaseException):
    """Stands for the end of the process: no handler of errors sees it."""


class Killing:
    """Lets the ``n``-th change of a directory, from 1 on, not happen: the process ends before it."""

    def __init__(self, n: int) -> None:
        self._n = n
        self._calls = itertools.count(1)
        self._patches = ExitStack()

    def __enter__(self) -> None:
        for name in ("rename", "unlink", "rmdir", "fsync"):
            self._patches.enter_context(mock.patch.object(os, name, self._counted(name)))

    def __exit__(self, *_: object) -> None:
        self._patches.close()

    def _counted(self, name: str) -> Any:
        plain = getattr(os, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            if next(self._calls) == self._n:
                raise Killed
            return plain(*args, **kwargs)

        return call


class States(TorchCase):
    def setUp(self) -> None:
        super().setUp()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.checkpoint = folder.name
        self.store = self.attach(self.model())

    def model(self) -> nn.Module:
        return models.bf16(lambda: nn.Linear(4, 4))

    def save(self, value: float) -> None:
        """Save weights of which each is ``value``."""
        self.store.write("weight", torch.full((4, 4), value))
        hf_states.save(self.store, self.checkpoint)

    def saved(self) -> float:
        """Return what each weight of the newest states is."""
        found = self.attach(self.model(), "resumed", resume=hf_states.newest(self.checkpoint))
        values = found.read("weight").float().unique()
        found.close(remove=True)
        self.assertEqual(len(values), 1)
        return float(values)

    def names(self) -> list[str]:
        return sorted(path.name for path in Path(self.checkpoint).iterdir())

    def test_states_replace_those_of_the_same_step(self) -> None:
        for value in (1.0, 2.0, 3.0):
            self.save(value)
            self.assertEqual(self.saved(), value)
            self.assertEqual(self.names(), ["cistern"])

    def test_a_process_that_ends_at_any_moment_leaves_whole_states(self) -> None:
        """The old states, or the new ones once they are whole. The next save goes on from there."""
        self.save(1.0)
        n_kills, seen = 0, set()
        for n in itertools.count(1):
            try:
                with Killing(n):
                    self.save(2.0)
                break
            except Killed:
                n_kills += 1
            seen.add(tuple(self.names()))
            self.assertEqual(self.saved(), 2.0)
            self.save(1.0)
            self.assertEqual(self.saved(), 1.0)
            self.assertEqual(self.names(), ["cistern"])
        self.assertGreater(n_kills, 4)  # Two renames, and the files of the old states.
        self.assertIn(("cistern.new", "cistern.old"), seen)

    def test_states_that_are_not_whole_do_not_count(self) -> None:
        self.save(1.0)
        self.store.write("weight", torch.full((4, 4), 2.0))
        unfinished = Path(self.checkpoint, "cistern.new")
        self.store.save(unfinished)
        next(unfinished.glob("step-*/model*.safetensors")).unlink()
        self.assertEqual(self.saved(), 1.0)
        self.save(3.0)
        self.assertEqual((self.saved(), self.names()), (3.0, ["cistern"]))

    def test_a_checkpoint_without_states(self) -> None:
        with self.assertRaises(CstError) as caught:
            ct.attach(self.model(), "none", resume=hf_states.newest(self.checkpoint))
        self.assertEqual(caught.exception.status, Status.ENOTFOUND)
