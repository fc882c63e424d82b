# SPDX-License-Identifier: Apache-2.0
"""AdamW on N parameters, bf16 gradient in, bf16 weight out, three ways, in turns.

cistern    tests/bench/bench_update: one pass, 28 bytes per parameter, or 26 with split master weights
torch      torch.optim.AdamW(fused=True) on fp32: the step alone, and with upcast and downcast
deepspeed  DeepSpeedCPUAdam: upcast, step, downcast, as its offloaded optimizer does; and with the
           gradients scaled in place before the step, as it does where clipping or a loss scale asks
           for it (cistern's one pass always does)

All keep their memory during the whole run, and each makes one step when it is its turn. Memory of
virtual machines changes its speed within seconds, so steps that follow each other are compared.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import time

parser = argparse.ArgumentParser()
parser.add_argument("--params", type=int, default=100_000_000)
parser.add_argument("--rounds", type=int, default=31)
parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
parser.add_argument("--rivals", default="deepspeed", help="peers besides torch")
parser.add_argument("--json")
options = parser.parse_args()
os.environ["OMP_NUM_THREADS"] = str(options.threads)

try:
    import torch

    if options.rivals:
        import deepspeed
        from deepspeed.ops.adam import DeepSpeedCPUAdam
except ImportError as why:
    sys.exit(f"peers: {why}")

torch.set_num_threads(options.threads)
HYPER = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01}
PAUSE = 0.02  # Seconds in which OpenMP's threads stop spinning.


class Peer:
    """Flat fp32 states, a bf16 gradient that is read and a bf16 weight that is written."""

    def __init__(self, make):
        generator = torch.Generator().manual_seed(1)
        self.grad = (torch.randn(options.params, generator=generator) * 0.02).bfloat16()
        self.master = torch.nn.Parameter(torch.randn(options.params, generator=generator) * 0.02)
        self.master.grad = torch.zeros(options.params)
        self.weight = torch.zeros(options.params, dtype=torch.bfloat16)
        self.optimizer = make([self.master])
        self.pipeline()  # States are made, pages touched, kernels loaded.

    @torch.no_grad()
    def pipeline(self):
        self.master.grad.copy_(self.grad)
        self.optimizer.step()
        self.weight.copy_(self.master)

    @torch.no_grad()
    def scaled(self):
        self.master.grad.copy_(self.grad)
        self.master.grad.mul_(0.5)
        self.optimizer.step()
        self.weight.copy_(self.master)

    def step(self):
        self.optimizer.step()


class Cistern:
    """bench_update, which makes updates when it is asked."""

    def __init__(self):
        command = ["tests/bench/bench_update", "--turns"]
        command += ["--params", str(options.params), "--threads", str(options.threads)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.turn()

    def turn(self):
        """Return the nanoseconds per parameter with whole and with split master weights."""
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"peers: bench_update ended with status {self.process.wait()}")
        return [float(word) for word in line.split()]


def ns_per_param(fn):
    begin = time.perf_counter()
    fn()
    return (time.perf_counter() - begin) / options.params * 1e9


cistern = Cistern()
torchs = Peer(lambda params: torch.optim.AdamW(params, fused=True, **HYPER))
steps = {"torch step": torchs.step, "torch pipeline": torchs.pipeline}
rows = [("update_vs_torch", "torch pipeline", "cistern"), ("update_vs_torch_step", "torch step", "cistern")]
versions = f"torch {torch.__version__}"
if options.rivals:
    deepspeeds = Peer(lambda params: DeepSpeedCPUAdam(params, adamw_mode=True, **HYPER))
    steps |= {"deepspeed pipeline": deepspeeds.pipeline, "deepspeed scaled": deepspeeds.scaled}
    rows += [("update_vs_deepspeed", "deepspeed pipeline", "cistern"), ("update_split_vs_deepspeed", "deepspeed pipeline", "cistern split")]
    versions += f", deepspeed {deepspeed.__version__}"
names = ("cistern", "cistern split", *steps)
figures = {name: [] for name in names}
for _ in range(options.rounds):
    turn = cistern.turn()
    for fn in steps.values():
        turn.append(ns_per_param(fn))
        time.sleep(PAUSE)
    for name, value in zip(names, turn):
        figures[name].append(value)
cistern.process.communicate()

medians = {name: statistics.median(values) for name, values in figures.items()}
ours = medians["cistern"]
print(f"{options.params} parameters, {options.threads} threads, {options.rounds} rounds; {versions}")
for name, value in medians.items():
    print(f"{name:20} {value:7.3f} ns per parameter   {value / ours:5.2f} x cistern   ({min(figures[name]):.3f} to {max(figures[name]):.3f})")
if options.json:
    with open(options.json, "a", encoding="utf-8") as out:
        for row, peer, own in rows:
            out.write(json.dumps({"name": row, "value": round(medians[peer], 4), "unit": "ns", "yardstick": round(medians[own], 4),
                                  "ratio": round(medians[peer] / medians[own], 4), "runs": options.rounds}) + "\n")
