# SPDX-License-Identifier: Apache-2.0
"""Halves of a micro-batch that take turns at collectives: the bits of halves one after the other."""

import copy
import unittest
from typing import Any
from unittest import mock

import torch
from cistern.torch import parallel
from cistern.torch.parallel import collectives
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


if __name__ == "__main__":
    unittest.main()
