# SPDX-License-Identifier: Apache-2.0
"""Halves of a micro-batch that take turns at collectives: the bits of halves one after the other."""

import copy
import unittest
from typing import Any
from unittest import mock

import torch
from cistern.torch import parallel
from cistern.torch.parallel import collectives
from cistern.torch.parallel.halves import take_turns
from gloo import run_ranks
from test_parallel_models import BATCH, batch, model_of

Event = tuple[str, int]


def halves() -> list[dict[str, torch.Tensor]]:
    return [
        {k: v[rows] for k, v in batch(0).items()}
        for rows in (slice(0, BATCH // 2), slice(BATCH // 2, BATCH))
    ]


class Recorder:
    """Notes when a collective of a half starts, and when its result is there."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.half = 0
        self._finish = collectives._finish

    def finish(self, *works: Any) -> None:
        half = self.half
        self.events.append(("starts", half))
        self._finish(*works)
        self.half = half
        self.events.append(("ends", half))


def in_mode(mode: str) -> list[Event]:
    ours = parallel.shard(model_of("Llama"), parallel.make_mesh(mode), mode)
    plain = copy.deepcopy(ours)
    parts = halves()
    one_by_one = []
    for part in parts:
        one_by_one.append(plain(**part).loss)
        one_by_one[-1].backward()
    recorder = Recorder()

    def loss_of(part: dict[str, torch.Tensor]) -> torch.Tensor:
        recorder.half = int(part is parts[1])
        loss: torch.Tensor = ours(**part).loss
        return loss

    with mock.patch.object(collectives, "_finish", recorder.finish):
        losses = parallel.in_turns(loss_of, parts)
    assert [x.item() for x in losses] == [x.item() for x in one_by_one], (losses, one_by_one)
    for (name, mine), theirs in zip(ours.named_parameters(), plain.parameters(), strict=True):
        assert torch.equal(mine.grad.to_local(), theirs.grad.to_local()), (mode, name)
    return recorder.events


def in_modes(*modes: str) -> dict[str, list[Event]]:
    return {mode: in_mode(mode) for mode in modes}


def raises() -> str:
    def loss_of(part: int) -> torch.Tensor:
        x = torch.ones(2, requires_grad=True)
        collectives.all_reduce(x.detach(), torch.distributed.group.WORLD)
        if part == 1:
            raise OverflowError("the second half")
        return x.sum()

    try:
        parallel.in_turns(loss_of, [0, 1])
    except OverflowError as error:
        return str(error)
    return "nothing"


class Turns(unittest.TestCase):
    def test_a_collective_of_one_half_runs_while_the_other_computes(self) -> None:
        by_rank = run_ranks(4, in_modes, "1d", "2d", "3d")
        for mode, events in by_rank[0].items():
            with self.subTest(mode=mode):
                self.assertTrue(all(of_rank[mode] == events for of_rank in by_rank))
                halves_of = [half for _, half in events]
                # The first half starts. Each then starts its next one while that of the other runs.
                self.assertEqual(events[:2], [("starts", 0), ("starts", 1)])
                n = len(events) // 4
                expected = [("ends", 0), ("starts", 0), ("ends", 1), ("starts", 1)]
                self.assertEqual(events[2:-2], (n - 1) * expected)
                self.assertEqual(halves_of.count(0), halves_of.count(1))

    def test_what_one_half_raises_is_raised_when_both_have_ended(self) -> None:
        self.assertEqual(run_ranks(2, raises), ["the second half"] * 2)

    def test_threads_have_the_settings_of_the_caller(self) -> None:
        def settings(_: int) -> tuple[bool, int, bool, torch.dtype]:
            return (
                torch.is_grad_enabled(),
                torch.get_num_threads(),
                torch.is_autocast_enabled("cpu"),
                torch.get_autocast_dtype("cpu"),
            )

        with torch.no_grad(), torch.autocast("cpu", torch.float16):
            self.assertEqual(take_turns(settings, [0, 1]), 2 * [settings(0)])

    def test_what_one_part_raises_ends_the_others_at_their_next_collective(self) -> None:
        for failing in (0, 1):
            reached = []

            def compute(part: int, failing: int = failing, reached: Any = reached) -> None:
                for _ in range(3):
                    if part == failing:
                        raise OverflowError(part)
                    reached.append(part)
                    collectives.TURN.wait()

            with self.subTest(failing=failing), self.assertRaisesRegex(OverflowError, str(failing)):
                take_turns(compute, [0, 1])
            self.assertEqual(len(reached), failing)
            self.assertIsNone(collectives.TURN.wait)

    def test_parts_of_unequal_length_take_turns(self) -> None:
        order = []

        def compute(part: int) -> int:
            for _ in range(part):
                order.append(part)
                collectives.TURN.wait()
            return part * part

        self.assertEqual(take_turns(compute, [1, 3, 2]), [1, 9, 4])
        self.assertEqual(order, [1, 3, 2, 3, 2, 3])
        self.assertEqual(take_turns(compute, []), [])


if __name__ == "__main__":
    unittest.main()
