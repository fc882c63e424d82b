# SPDX-License-Identifier: Apache-2.0
"""Rank 1 of 2 of the job argv[1], or a standby: trains up to argv[2] steps.

If there is an argv[3], it stops inside of the backward pass of that step, says so, and waits.
"""

import os
import signal
import sys

import cistern
from cistern import Direction
from support import Model

name, n_steps = sys.argv[1], int(sys.argv[2])
rank = 1
if "CISTERN_STANDBY" in os.environ:
    rank = cistern.standby(name)
    print(f"rank {rank}", flush=True)
with cistern.Job(name, rank=rank, world=2) as job:
    model = Model(job)
    if len(sys.argv) > 3:
        model.train(int(sys.argv[3]))
        model.forward()
        job.op_begin(model.layers[1], Direction.BACKWARD)
        print("in the backward pass", flush=True)
        signal.pause()
    model.train(n_steps)
