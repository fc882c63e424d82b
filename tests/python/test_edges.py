# SPDX-License-Identifier: Apache-2.0
"""Edges and units: arrays pass without loss, and two ranks run what one runs, with the same bits."""

from __future__ import annotations

import threading
import unittest
from array import array

import cistern
from cistern import Direction, HyperParams, State, Status, UnitKind
from support import N

STAGES, MICRO = 3, 4
PARAMS = HyperParams(lr=0.01, clip_norm=1.0)


class TestEdges(unittest.TestCase):
    def setUp(self) -> None:
        self.job = cistern.Job(self.id()[-60:])
        self.addCleanup(self.remove)
        self.own = self.job.edge("own", 64, 2, from_rank=0, to_rank=0)
        self.all = self.job.edge("all", 64, 3)
        self.job.operator("layer", [self.job.tensor("w", (100,))])

    def remove(self) -> None:
        self.job.client.remove_job(self.job.name)
        self.job.close()

    def begin(self) -> None:
        self.job.commit()
        self.job.sync()

    def test_arrays_are_put_and_taken(self) -> None:
        self.begin()
        self.job.put(self.own, 7, b"one")
        self.job.put(self.own, 8, array("d", [1.5, 2.5]))
        floats, three = array("d", [0, 0]), bytearray(3)
        self.job.take(self.own, 8, floats)
        self.job.take(self.own, 7, three)
        self.assertEqual((list(floats), bytes(three)), ([1.5, 2.5], b"one"))
        self.refused(Status.ENOTFOUND, lambda: self.job.take(self.own, 7, three))

    def test_addresses_are_memory(self) -> None:
        self.begin()
        given, got = array("q", [1, 2, 3]), array("q", [0, 0, 0])
        for edge in (self.own, self.all):
            self.job.put(edge, 1, (given.buffer_info()[0], 24))
            self.job.take(edge, 1, (got.buffer_info()[0], 24))
            self.assertEqual(got, given)

    def test_an_edge_of_all_ranks_keeps_arrays(self) -> None:
        self.begin()
        out = bytearray(4)
        for text in (b"this", b"that"):
            self.job.put(self.all, 2, text)
            for _ in range(2):
                self.job.take(self.all, 2, out)
                self.assertEqual(bytes(out), text)
        self.refused(Status.EINVAL, lambda: self.job.put(self.all, 3, b""))

    def test_slots_are_written_and_read_in_place(self) -> None:
        self.begin()
        slot = self.job.put_begin(self.own, 1)
        self.assertFalse(slot.is_on_device or self.job.edge_on_device(self.own))
        self.assertEqual((slot.n_bytes, slot.address % 64), (64, 0))
        slot.view[:5] = b"words"
        self.job.put_end(self.own, 1)
        taken = self.job.take_begin(self.own, 1).view
        self.assertEqual(bytes(taken[:5]), b"words")
        self.assertTrue(taken.readonly)
        part = taken[:2]
        with self.assertRaisesRegex(BufferError, "still in use"):
            self.job.take_end(self.own, 1)
        part.release()
        self.job.take_end(self.own, 1)
        with self.assertRaises(ValueError):
            taken[0]

    def test_copies_go_on_beside_the_program(self) -> None:
        self.begin()
        out = array("f", [0.0] * 16)
        self.job.put_start(self.own, 1, array("f", range(16)))  # Which the job alone refers to.
        self.job.edge_wait(self.own, 1)
        self.job.take_start(self.own, 1, out)
        self.job.edge_wait(self.own, 1)
        self.assertEqual(list(out), list(range(16)))
        self.refused(Status.EINVAL, lambda: self.job.edge_wait(self.own, 1))

    def test_a_sync_loses_arrays(self) -> None:
        self.begin()
        self.job.put(self.all, 0, b"lost")
        self.job.sync()
        self.refused(Status.ENOTFOUND, lambda: self.job.take(self.all, 0, bytearray(4)))

    def test_what_is_wrong_is_refused(self) -> None:
        self.refused(Status.EEXIST, lambda: self.job.edge("own", 1, 1))
        self.refused(Status.EINVAL, lambda: self.job.edge("none", 0, 1))
        self.refused(Status.EINVAL, lambda: self.job.edge("one", 1, 1, from_rank=3, to_rank=0))
        with self.assertRaisesRegex(ValueError, "to_rank"):
            self.job.edge("one", 1, 1, to_rank=-1)
        self.refused(Status.EINVAL, lambda: self.job.stage())  # There is an operator.
        self.begin()
        self.refused(Status.EINVAL, lambda: self.job.put(self.own, 0, bytes(65)))
        self.refused(Status.EINVAL, lambda: self.job.put(9, 0, b""))
        self.refused(Status.EINVAL, lambda: self.job.next())  # There are no stages.
        with self.assertRaisesRegex(ValueError, "can be written"):
            self.job.take(self.own, 0, b"read only")
        with self.assertRaisesRegex(ValueError, "number"):
            self.job.put(self.own, -1, b"")

    def refused(self, status: Status, call: object) -> None:
        with self.assertRaises(cistern.CstError) as caught:
            call()  # type: ignore[operator]
        self.assertIs(caught.exception.status, status)


class Worker:
    """A rank of a model of one layer in each stage. Its activations are one number."""

    def __init__(self, job: cistern.Job) -> None:
        self.job = job
        self.edges = [job.edge(f"e{i}", 8, MICRO) for i in range(2 * STAGES)]
        self.layers = []
        for stage in range(STAGES):
            assert job.stage() == stage
            self.layers.append(job.operator(f"o{stage}", [job.tensor(f"w{stage}", (N,))]))
        self.n_units = 0

    def begin(self) -> None:
        self.job.commit()
        if not self.job.initialised and self.job.rank == 0:
            for tensor in range(STAGES):
                values = array("f", (0.001 * i + tensor for i in range(N)))
                self.job.tensor_write(tensor, State.MASTER, values)
        self.job.sync()

    def taken(self, edge: int, number: int) -> float:
        out = array("d", [0.0])
        self.job.take(edge, number, out)
        return out[0]

    def run(self, unit: cistern.Unit) -> float:
        """Run ``unit``, and return its loss."""
        stage, micro = unit.stage, unit.micro_batch
        x = self.taken(stage - 1, micro) if stage > 0 else 1.0 + micro
        with self.job.operation(self.layers[stage], Direction.FORWARD) as (io,):
            y = x + io.weight[stage] / 7
        if unit.kind is UnitKind.FORWARD:
            self.job.put(stage, micro, array("d", [y]))
            return 0.0
        dy = self.taken(STAGES + stage, micro) if stage + 1 < STAGES else y / 3
        with self.job.operation(self.layers[stage], Direction.BACKWARD) as (io,):
            io.grad[:] = array("H", [0x3F80 + (int(1000 * dy) + i) % 50 for i in range(N)])
        if stage > 0:
            self.job.put(STAGES + stage - 1, micro, array("d", [dy + x / 5]))
        return y

    def step(self) -> cistern.StepResult:
        unit, loss = self.job.next(), 0.0
        while unit.kind is not UnitKind.STEP:
            self.n_units += 1
            loss = self.run(unit)
            unit = self.job.next(loss)
        return self.job.step(PARAMS)


class TestUnits(unittest.TestCase):
    def train(self, world: int) -> tuple[list[float], list[bytes], int]:
        """Return the losses of some steps, the masters, and how many units were run."""
        name = f"units-{world}"
        results: list[list[float]] = [[] for _ in range(world)]
        masters: list[bytes] = []
        n_units = [0] * world

        def rank(number: int) -> None:
            with cistern.Job(name, rank=number, world=world, micro_batches=MICRO) as job:
                worker = Worker(job)
                worker.begin()
                results[number] = [worker.step().loss for _ in range(3)]
                if number == 0:
                    masters.extend(bytes(job.tensor_read(t, State.MASTER)) for t in range(STAGES))
                n_units[number] = worker.n_units

        threads = [threading.Thread(target=rank, args=(number,)) for number in range(world)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        with cistern.Client() as client:
            client.remove_job(name)
        self.assertTrue(all(losses == results[0] for losses in results))
        return results[0], masters, sum(n_units)

    def test_two_ranks_have_the_bits_of_one(self) -> None:
        alone = self.train(1)
        self.assertEqual(len(alone[1]), STAGES)
        self.assertEqual(alone[2], 3 * MICRO * (2 * STAGES - 1))
        self.assertEqual(self.train(2), alone)


if __name__ == "__main__":
    unittest.main()
