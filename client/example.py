"""A worker: one tensor, one operator, three steps of a model whose gradient is its weight."""

from array import array

import cistern
from cistern import Direction, HyperParams, State

with cistern.Job("example", world=1) as job:  # At $CISTERN_SOCKET or the default.
    w = job.tensor("w", (10, 100))
    layer = job.operator("layer", [w])
    job.commit()  # The daemon chooses sizes, and maps the pool.
    if not job.initialised:
        job.tensor_write(w, State.MASTER, array("f", [1.0] * 1000))  # fp32 master weights
    job.sync()  # Wait for all ranks.
    for _ in range(3):
        with job.operation(layer, Direction.FORWARD) as (io,):
            pass  # io.weight: 1000 elements in bf16
        with job.operation(layer, Direction.BACKWARD) as (io,):
            io.grad[:] = io.weight
        result = job.step(HyperParams(lr=0.1, clip_norm=1.0))
        print(f"step {result.step}: gradient norm {result.grad_norm:g}")
