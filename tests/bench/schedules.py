# SPDX-License-Identifier: Apache-2.0
"""A step of a pipeline of two ranks with 8 micro-batches: "shifted" against 1F1B that repeats all forward passes.

If a forward pass takes 1, a repeated one 1 and a backward pass 2, a step of 1F1B takes (8 + 1) (1 + 1 + 2)
= 36, and one of "shifted" 4 less, 1.125 times as fast. Each rank has one thread on a processor of its own, and
the two make their steps in turns. Also printed is what a backward pass takes in units of a forward pass, because
the ratio follows from it: 9 (2 + B) over 9 (2 + B) - 4.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from cistern.torch.parallel import schedules
from torch import nn
from torch.distributed import pipelining

SMALLEST = "BENCH_SMALLEST" in os.environ
N_MICRO = 8
WIDTH, ROWS, LAYERS = (32, 4, 2) if SMALLEST else (512, 192, 8)


class Stage(nn.Module):
    """Equal layers. The shift makes the first stage compute the gradient of its input, too."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(WIDTH))
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.shift
        for layer in self.layers:
            x = layer(x).relu()
        return x


def loss_of(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (x - y).square().mean()


def schedule_of(rank: int, kind: str, recompute: Any) -> Any:
    stage = pipelining.PipelineStage(Stage(), rank, 2, torch.device("cpu"))
    return schedules.runtime(kind, stage, N_MICRO, loss_fn=loss_of, recompute=recompute)


def backward_per_forward() -> float:
    """Return how long a backward pass of a stage takes in units of a forward pass."""
    stage, ratios = Stage(), []
    for _ in range(1 if SMALLEST else 9):
        x = torch.randn(ROWS, WIDTH, requires_grad=True)
        began = time.perf_counter()
        y = stage(x)
        middle = time.perf_counter()
        torch.autograd.backward(y, torch.ones_like(y))
        ratios.append((time.perf_counter() - middle) / (middle - began))
    return statistics.median(ratios)


def rank_of_two(rank: int, path: str, rounds: int, json_path: str) -> None:
    processors = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {processors[rank % len(processors)]})
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
    x = torch.randn(N_MICRO * ROWS, WIDTH)
    both = schedule_of(rank, "1f1b", True), schedule_of(rank, "shifted", 0)
    times: tuple[list[float], list[float]] = [], []
    for i in range(rounds + 1):
        for schedule, taken in zip(both, times, strict=True):
            dist.barrier()
            began = time.perf_counter()
            schedule.step(*((x,) if rank == 0 else ()), target=x)
            dist.barrier()
            if i > 0:  # The first one learns shapes.
                taken.append(time.perf_counter() - began)
    backward = backward_per_forward()
    if rank == 0:
        report(*map(statistics.median, times), backward, rounds, json_path)
    dist.destroy_process_group()


def report(plain: float, shifted: float, backward: float, rounds: int, json_path: str) -> None:
    predicted = 9 * (2 + backward) / (9 * (2 + backward) - 4)
    print(f"schedule_shifted {shifted:.4f} {plain:.4f}: {plain / shifted:.3f}, 1.125 is predicted")
    print(
        f"a backward pass takes {backward:.2f} forward passes, with which {predicted:.3f} is predicted"
    )
    if json_path:
        row = {"name": "schedule_shifted", "value": shifted, "unit": "s", "yardstick": plain}
        with open(json_path, "a") as file:
            file.write(json.dumps(row | {"ratio": plain / shifted, "runs": rounds}) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--rounds", type=int, default=1 if SMALLEST else 15)
    parser.add_argument("--json", default="")
    arguments = parser.parse_args()
    if len(os.sched_getaffinity(0)) < 2:
        raise SystemExit("schedules: two ranks need two processors")
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "store")
        args = (path, arguments.rounds, arguments.json)
        # Forked ranks do not import torch again.
        mp.start_processes(rank_of_two, args=args, nprocs=2, start_method="fork")


if __name__ == "__main__":
    main()
