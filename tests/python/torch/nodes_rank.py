# SPDX-License-Identifier: Apache-2.0
"""A rank of a job on any number of nodes, whose ranks use different layers in each step, as torchrun starts it.

python3 nodes_rank.py JOB STEPS CONFIG
"""

import os
import sys

import cistern.torch as ct
import torch

LAYERS = 4


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(1)
    rank = int(os.environ["RANK"])
    first = torch.nn.Linear(48, 48)
    layers = torch.nn.ModuleList(torch.nn.Linear(48, 48) for _ in range(LAYERS))
    model = torch.nn.ModuleList([first, layers]).bfloat16()
    store = ct.attach(model, sys.argv[1], device="cpu", config=sys.argv[3])
    opt = store.optimizer(lr=1e-2, weight_decay=0.1)
    for step in range(int(sys.argv[2])):
        torch.manual_seed(1000 * step + rank)
        x = first(torch.randn(8, 48).bfloat16())
        # In some steps all ranks use the same layer, or none any.
        chosen = step + rank * (step % 2)
        if chosen % (LAYERS + 1) < LAYERS:
            x = layers[chosen % (LAYERS + 1)](x)
        opt.zero_grad()
        x.float().square().mean().backward()
        opt.step()
    store.close()


if __name__ == "__main__":
    main()
