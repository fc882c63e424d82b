# SPDX-License-Identifier: Apache-2.0
"""A rank that trains until SIGINT, ends the step that it is in, and leaves the job.

python3 stopped_rank.py JOB
"""

import signal
import sys

import cistern.torch as ct
import torch


def main() -> None:
    asked: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: asked.append(number))
    torch.manual_seed(1)
    model = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(4)))
    store = ct.attach(model, sys.argv[1], device="cpu", pool="4M")
    opt = store.optimizer(lr=1e-3)
    print("ready", flush=True)
    while not asked:
        opt.zero_grad()
        model(torch.randn(128, 256)).square().mean().backward()
        opt.step()
    store.close()


if __name__ == "__main__":
    main()
