# SPDX-License-Identifier: Apache-2.0
"""The schedules of ``cistern schedule`` are those of torch.distributed.pipelining, which reads them."""

import subprocess
import tempfile
import unittest
from pathlib import Path
from typing import Any
from unittest import mock

from torch.distributed.pipelining import schedules as torch_schedules
from torch.distributed.pipelining.stage import _PipelineStageBase

Lists = dict[int, list[str]]


def made(name: str, stages: int, micro_batches: int, ranks: int = 0) -> str:
    """Return the CSV of a schedule."""
    command = ["cistern", "schedule", name, "--stages", str(stages), "--output", "-"]
    command += ["--micro-batches", str(micro_batches)]
    command += ["--ranks", str(ranks)] if ranks else []
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def lists_of(text: str) -> Lists:
    return {rank: line.split(",") for rank, line in enumerate(text.splitlines())}


def computed(order: Any) -> Lists:
    """Return the computing actions of a schedule of torch, those of an overlap one by one."""
    return {
        rank: [
            str(part)
            for action in actions
            if action is not None
            for part in action.sub_actions or (action,)
            if part.is_compute_op
        ]
        for rank, actions in order.items()
    }


class Stage(_PipelineStageBase):
    """A stage without a model and a process group, which records what it is told to do."""

    def __init__(self, number: int, stages: int, rank: int, ranks: int) -> None:
        self.stage_index, self.num_stages = number, stages
        self.group_rank, self.group_size, self.group = rank, ranks, None
        self.stage_index_to_group_rank = {s: s % ranks for s in range(stages)}
        self.has_backward, self.submod = True, None
        self.done: list[str] = []

    def forward_one_chunk(self, micro: int, *args: Any, **options: Any) -> Any:
        self.done.append(f"{self.stage_index}F{micro}")

    def backward_one_chunk(self, micro: int, *args: Any, **options: Any) -> Any:
        self.done.append(f"{self.stage_index}B{micro}")

    def _nothing(self, *args: Any, **options: Any) -> Any:
        return []

    get_fwd_recv_ops = get_fwd_send_ops = get_bwd_recv_ops = get_bwd_send_ops = _nothing
    perform_reduce_grad = release_fwd_send_outputs = _nothing
    _create_grad_recv_info = _prepare_backward_infra = _prepare_forward_infra = _nothing


def own(stages: int, ranks: int) -> list[Any]:
    """Return the stages of rank 0."""
    return [Stage(s, stages, 0, ranks) for s in range(0, stages, ranks)]


def run(kind: Any, stages: int, micro_batches: int) -> Lists:
    """Return what each rank of a schedule with one stage per rank does."""
    lists = {}
    for rank in range(stages):
        stage = Stage(rank, stages, rank, stages)
        schedule = kind(stage, micro_batches)
        with mock.patch.object(schedule, "_initialize_stage"):
            schedule._step_microbatches([()] * micro_batches, [{}] * micro_batches)
        lists[rank] = stage.done
    return lists


class Schedules(unittest.TestCase):
    def test_lists_are_those_of_torch(self) -> None:
        for stages in range(1, 7):
            for micro_batches in {stages, stages + 1, 2 * stages, 4 * stages + 3}:
                with self.subTest(stages=stages, micro_batches=micro_batches):
                    for name, kind in (
                        ("gpipe", torch_schedules.ScheduleGPipe),
                        ("1f1b", torch_schedules.Schedule1F1B),
                    ):
                        lists = lists_of(made(name, stages, micro_batches))
                        self.assertEqual(lists, run(kind, stages, micro_batches), name)

    def test_lists_of_several_stages_are_those_of_torch(self) -> None:
        for name, kind, most in (
            ("interleaved", torch_schedules.ScheduleInterleaved1F1B, 3),
            ("zb-h1", torch_schedules.ScheduleInterleavedZeroBubble, 3),
        ):
            for ranks, own_stages, micro_batches in (
                (2, 2, 2), (2, 2, 4), (2, most, 6), (4, 2, 8), (4, 1, 8), (3, 2, 5), (4, 2, 10),
            ):  # fmt: skip
                stages = ranks * own_stages
                with self.subTest(name=name, ranks=ranks, stages=stages, micro=micro_batches):
                    theirs = kind(own(stages, ranks), micro_batches, loss_fn=lambda a, b: a)
                    ours = lists_of(made(name, stages, micro_batches, ranks))
                    self.assertEqual(ours, computed(theirs.pipeline_order))

    def test_torch_reads_what_is_written(self) -> None:
        for name, stages, ranks, micro_batches in (
            ("gpipe", 3, 3, 5), ("1f1b", 4, 4, 8), ("interleaved", 8, 4, 8), ("zb-h1", 4, 4, 9),
            ("early", 3, 3, 7), ("shifted", 4, 4, 6), ("shifted", 2, 2, 8),
        ):  # fmt: skip
            with self.subTest(name=name), tempfile.NamedTemporaryFile("w", suffix=".csv") as file:
                text = made(name, stages, micro_batches, ranks)
                file.write(text)
                file.flush()
                runtime = torch_schedules._PipelineScheduleRuntime(
                    own(stages, ranks), micro_batches, loss_fn=lambda a, b: a
                )
                runtime._load_csv(file.name)
                self.assertEqual(computed(runtime.pipeline_order), lists_of(text))
                # It has found a place for each message.
                self.assertEqual(computed(runtime.pipeline_order_with_comms), lists_of(text))

    def test_what_torch_makes_is_legal(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        path = Path(folder.name) / "list.csv"
        for kind, v_shaped in (
            (torch_schedules.ScheduleLoopedBFS, False),
            (torch_schedules.ScheduleInterleaved1F1B, False),
            (torch_schedules.ScheduleInterleavedZeroBubble, False),
            (torch_schedules.ScheduleZBVZeroBubble, True),
            (torch_schedules.ScheduleDualPipeV, True),
        ):
            with self.subTest(kind=kind.__name__):
                stages = [Stage(0, 8, 0, 4), Stage(7 if v_shaped else 4, 8, 0, 4)]
                theirs = kind(stages, 8, loss_fn=lambda a, b: a)
                theirs._dump_csv(path, "compute_only")
                command = ["cistern", "schedule", "check", str(path)]
                checked = subprocess.run(command, capture_output=True, text=True, check=False)
                self.assertEqual(checked.returncode, 0, checked.stderr)


if __name__ == "__main__":
    unittest.main()
