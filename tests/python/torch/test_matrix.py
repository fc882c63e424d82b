# SPDX-License-Identifier: Apache-2.0
"""Pools, kinds of checkpointing, ranks and micro-batches; and deaths and exceptions at each hook.

Ranks are processes. With the largest pool and without checkpointing, the gradients of each step are
compared with those of plain torch for the batches of all ranks. The losses and final states of all
other cells have the bits of that cell.
"""

import itertools
import os
import re
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import cells
import cistern.torch as ct
from cells import Cell, Fault
from models import TorchCase
from processes import CONTEXT, PATIENCE_S

SPARSE = "CST_TEST_SPARSE" in os.environ  # Every tenth cell.

WORLDS = (1, 2, 3)
MICRO_BATCHES = (1, 3)
RECOMPUTE = (None, True, False)
PLACES = (
    "forward pre-hook",
    "inside forward",
    "forward hook",
    "gradient hook",
    "before Leave.backward",
    "after Leave.backward",
    "before Enter.backward",
    "after Enter.backward",
    "before job.accumulate",
    "after job.accumulate",
    "before job.step",
    "after job.step",
)
# Where a fault is when activations are computed again. Checkpoints that are not reentrant stop the
# module before its hook.
SECOND = {
    (True, "forward pre-hook"),
    (True, "inside forward"),
    (True, "forward hook"),
    (False, "forward pre-hook"),
    (False, "inside forward"),
}


class Rank:
    """A rank in a process of its own."""

    def __init__(self, cell: Cell, rank: int, fault: Fault | None, plain: bool) -> None:
        self.results, theirs = CONTEXT.Pipe(duplex=False)
        arguments = (cell, rank, fault, plain, theirs)
        self.process = CONTEXT.Process(target=cells.train, args=arguments)
        self.process.start()
        theirs.close()

    def result(self) -> Any:
        """Return what the rank has sent, and wait for its end. EOFError: it has died."""
        try:
            return self.results.recv() if self.results.poll(PATIENCE_S) else None
        finally:
            self.process.join(PATIENCE_S)
            self.results.close()

    def end(self) -> None:
        if self.process.is_alive():
            self.process.kill()
        self.process.join()


class Matrix(TorchCase):
    def setUp(self) -> None:
        super().setUp()
        self.weights_bytes = 2 * sum(p.numel() for p in self.model().parameters())
        with self.assertRaises(ct.PoolTooSmall) as raised:
            self.attach_with(1)
        missing = re.search(r"\((\d+) bytes\) short", str(raised.exception))
        self.least = 1 + int(missing[1])
        self.pools = (self.least, int(0.3 * self.weights_bytes), int(1.2 * self.weights_bytes))
        self.reference: dict[tuple[int, int], Any] = {}

    def model(self) -> cells.Model:
        return cells.model_of(Cell("", 1, 0, None, 1))

    def attach_with(self, pool: int) -> None:
        store = self.attach(self.model(), pool=pool, chunk_elems=cells.CHUNK_ELEMS)
        store.close(remove=True)

    def test_the_smallest_pool_is_the_one_that_the_error_names(self) -> None:
        self.attach_with(self.least)
        with self.assertRaises(ct.PoolTooSmall):
            self.attach_with(self.least - 1)

    def run_cell(self, cell: Cell, fault: Fault | None = None, plain: bool = False) -> list[Any]:
        """Return losses and digests of all ranks. The last rank has the fault."""
        self.addCleanup(self.remove, cell.job)
        with ExitStack() as stack:
            ranks = []
            for rank in range(cell.world):
                is_last = rank == cell.world - 1
                ranks.append(Rank(cell, rank, fault if is_last else None, plain and rank == 0))
                stack.callback(ranks[-1].end)
            if fault is not None and fault.kills:
                with self.assertRaises(EOFError):
                    ranks[-1].result()
                self.assertEqual(ranks[-1].process.exitcode, -signal.SIGKILL)
                ranks[-1] = Rank(cell, cell.world - 1, None, False)
                stack.callback(ranks[-1].end)
            results = [rank.result() for rank in ranks]
        self.admin.remove_job(cell.job)
        return results

    def reference_of(self, cell: Cell) -> list[Any]:
        key = (cell.world, cell.micro_batches)
        if key not in self.reference:
            plain = replace(
                cell,
                job=cell.job + "-plain",
                pool=self.pools[-1],
                recompute=None,
                is_reference=True,
            )
            self.reference[key] = self.run_cell(plain, plain=True)
        return self.reference[key]

    def test_all_cells_have_the_same_bits(self) -> None:
        kinds = list(itertools.product(WORLDS, MICRO_BATCHES, self.pools, RECOMPUTE))
        self.assertEqual(len(kinds), 54)
        for i, (world, micro_batches, pool, recompute) in enumerate(kinds[:: 10 if SPARSE else 1]):
            cell = Cell(f"cell{i}", world, pool, recompute, micro_batches)
            with self.subTest(cell):
                self.assertEqual(self.run_cell(cell), self.reference_of(cell))

    def faults(self) -> Iterator[tuple[Cell, Fault]]:
        """Yield each place with each number of ranks. The other properties take turns."""
        pools, kinds = itertools.cycle(self.pools), itertools.cycle(RECOMPUTE)
        for i, (kills, world, place) in enumerate(itertools.product((True, False), WORLDS, PLACES)):
            micro_batches = 3 if "accumulate" in place else MICRO_BATCHES[i // 12 % 2]
            recompute = next(kinds)
            fault = Fault(place, kills, nth=2 if (recompute, place) in SECOND else 1)
            yield Cell(f"fault{i}", world, next(pools), recompute, micro_batches), fault

    def test_a_fault_at_each_place_changes_nothing(self) -> None:
        faults = list(self.faults())
        self.assertEqual(len(faults), 2 * 3 * len(PLACES))
        for cell, fault in faults[:: 10 if SPARSE else 1]:
            with self.subTest(cell=cell, fault=fault):
                digests = [digest for _, digest in self.run_cell(cell, fault)]
                self.assertEqual(digests, [digest for _, digest in self.reference_of(cell)])
