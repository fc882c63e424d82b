# SPDX-License-Identifier: Apache-2.0
"""A rank or a standby of a job: it writes its losses, and its weights at the end, to files in a folder.

python3 standby_rank.py JOB STEPS FOLDER early|late

"early": it asks for its number before it makes the model; "late": attach waits.
"""

import os
import sys
import time
from functools import partial
from pathlib import Path

import cistern.torch as ct
import torch


def learn(model: torch.nn.Module, step: int, rank: int) -> torch.Tensor:
    """Compute the loss and the gradients of a batch that depends on the step and the rank."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    loss = model(torch.randn(8, 40, generator=generator).bfloat16()).float().square().mean()
    loss.backward()
    time.sleep(0.02)
    return loss


def main() -> None:
    job, n_steps, folder, order = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4]
    torch.set_num_threads(1)
    if order == "early":
        (folder / f"asks.{os.getpid()}").touch()
        early = ct.standby(job)
        assert int(os.environ["RANK"]) == int(os.environ["LOCAL_RANK"]) == early
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(40, 48), torch.nn.Linear(48, 40)).bfloat16()
    (folder / f"asks.{os.getpid()}").touch()
    store = ct.attach(model, job, device="cpu")
    rank = store.job.rank
    assert order == "late" or rank == early
    (folder / f"pid.{rank}").write_text(str(os.getpid()))
    opt = store.optimizer(lr=0.01, weight_decay=0.1)
    with (folder / f"losses.{rank}").open("a", buffering=1) as losses:
        for step in range(store.step_no, n_steps):
            loss = opt.step(partial(learn, model, step, rank))
            print(step, loss.item().hex(), time.time(), file=losses)
    torch.save(store.state_dict(), folder / f"weights.{rank}")
    store.close()


if __name__ == "__main__":
    main()
