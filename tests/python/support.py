# SPDX-License-Identifier: Apache-2.0
"""A small model for tests of the Python client, and processes that train it."""

from __future__ import annotations

import os
import subprocess
import sys
from array import array
from pathlib import Path

import cistern
from cistern import Direction, HyperParams, State

N = 1000
PARAMS = HyperParams(lr=0.01, beta1=0.9, beta2=0.95, weight_decay=0.1, clip_norm=1.0)
RANK_PROGRAM = Path(__file__).with_name("rank.py")


class Model:
    """Two layers. The gradient of a layer is its weight, in every rank."""

    def __init__(self, job: cistern.Job) -> None:
        self.job = job
        self.tensors = [job.tensor(f"w{i}", (10, N // 10)) for i in range(2)]
        self.layers = [job.operator(f"layer{i}", [self.tensors[i]]) for i in range(2)]
        self.plan = job.commit()

    def write(self) -> None:
        """Write the first weights, unless the job has weights."""
        if not self.job.initialised:
            for tensor in self.tensors:
                values = array("f", (0.001 * i for i in range(N)))
                self.job.tensor_write(tensor, State.MASTER, values)

    def forward(self) -> None:
        for layer in self.layers:
            with self.job.operation(layer, Direction.FORWARD):
                pass

    def backward(self) -> None:
        for layer in reversed(self.layers):
            with self.job.operation(layer, Direction.BACKWARD) as (io,):
                io.grad[:] = io.weight

    def step(self) -> cistern.StepResult:
        self.forward()
        self.backward()
        return self.job.step(PARAMS)

    def train(self, n_steps: int) -> None:
        """Train up to ``n_steps`` committed steps. Void steps are done again."""
        step = self.job.sync()
        while step < n_steps:
            try:
                step = self.step().step
            except cistern.StepVoid:
                step = self.job.sync()

    def masters(self) -> list[bytes]:
        return [bytes(self.job.tensor_read(t, State.MASTER)) for t in self.tensors]


def start_standby(job: str, n_steps: int) -> subprocess.Popen[str]:
    """Start a process that takes the place of a rank, and says so."""
    return subprocess.Popen(
        [sys.executable, RANK_PROGRAM, job, str(n_steps)],
        env=os.environ | {"CISTERN_STANDBY": "1"},
        stdout=subprocess.PIPE,
        text=True,
    )


def start_rank(job: str, *arguments: object) -> subprocess.Popen[str]:
    """Start rank 1 of 2 of the job in a process of its own, which does what ``arguments`` say."""
    return subprocess.Popen(
        [sys.executable, RANK_PROGRAM, job, *map(str, arguments)],
        stdout=subprocess.PIPE,
        text=True,
    )
