# SPDX-License-Identifier: Apache-2.0
"""A rank of a job whose other ranks can be those of tests/lib/mixed_rank.c, with the option model=linear.

python3 linear_rank.py JOB STEPS CONFIG
"""

import os
import sys

import cistern.torch as ct
import torch


def main() -> None:
    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Linear(40, 48), torch.nn.Linear(48, 40))
    with torch.no_grad():
        for t, parameter in enumerate(model.parameters()):
            values = (torch.arange(parameter.numel()) * 7 + t * 31) % 1021 / 1024 - 0.5
            parameter.copy_(values.reshape(parameter.shape))
    model.bfloat16()
    store = ct.attach(model, sys.argv[1], device="cpu", config=sys.argv[3])
    opt = store.optimizer(lr=0.01, weight_decay=0.1)
    for step in range(int(sys.argv[2])):
        torch.manual_seed(1000 * step + int(os.environ["RANK"]))
        opt.zero_grad()
        model(torch.randn(8, 40).bfloat16()).float().square().mean().backward()
        opt.step()
    store.close()


if __name__ == "__main__":
    main()
