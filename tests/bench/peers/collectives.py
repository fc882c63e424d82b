# SPDX-License-Identifier: Apache-2.0
"""Times of all-reduces of fp32 with gloo, in the form of bench_comm --calls."""

import os
import statistics
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

TURNS = 1 if "BENCH_SMALLEST" in os.environ else 61
LARGE = 1 << 20


def rank_of_two(rank: int, path: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
    for size in (1024, 4096, 65536, LARGE, 16 * LARGE):
        array = torch.zeros(size // 4)
        calls = 2 if size > LARGE else 10 if size == LARGE else 200
        times = []
        for _ in range(TURNS):
            dist.barrier()
            begin = time.perf_counter()
            for _ in range(calls):
                dist.all_reduce(array)
            times.append((time.perf_counter() - begin) * 1e6 / calls)
        if rank == 0:
            print(size, f"{statistics.median(times):.2f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        args = (os.path.join(folder, "store"),)
        # Forked ranks do not import torch again.
        mp.start_processes(rank_of_two, args=args, nprocs=2, start_method="fork")
