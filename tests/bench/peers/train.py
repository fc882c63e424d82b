# SPDX-License-Identifier: Apache-2.0
"""Whole training steps of one model with cistern.torch, plain torch, FSDP2 and DeepSpeed, in turns.

torch      bf16 weights, fp32 masters, torch.optim.AdamW(fused=True), clip_grad_norm_
cistern    cistern.torch with pools of 1.2 and 0.5 times the weights, on a daemon of its own
fsdp       fully_shard of each layer with CPUOffloadPolicy: fp32 parameters, products in bf16
deepspeed  ZeRO stage 3 with parameters and optimizer offloaded to the CPU

With --disk DIR, fp32 masters and moments are in files in DIR: all of cistern's, and DeepSpeed's with
its offload to NVMe (NVME below has its settings). Torch alone keeps them in memory.

All have the same model, tokens, precision, clipping norm and number of threads, and begin with the
same weights. Each is a process of its own, which does a few steps when it is its turn. The first step
of a turn is not counted: caches are cold, and the update of whoever came before can still run. The
others are as in a long run, each with one update. The rows are

  train_torch_1.2, train_torch_0.5  seconds of a step with cistern; of one with torch
  train_deepspeed, train_fsdp       seconds of a step with the peer; of one with cistern at 1.2
  memory_deepspeed, memory_fsdp     bytes of worker, daemon and engine with cistern at 0.5; of the
                                    peer
  train_disk_*, memory_disk_*       the same with --disk, where cistern has a pool of 1.2 alone
  unit_bracket                      microseconds in which a unit with 12 tensors in the pool is
                                    opened and closed; goal
  unit_python                       microseconds that a unit with 12 tensors adds to a forward and a
                                    backward pass; goal

Memory is the sum of the proportional set sizes (Pss) of processes in host memory, at its largest.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

VOCABULARY = 1024
CLIP_NORM = 1.0
HYPER = {"lr": 1e-4, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}
SMALLEST = "BENCH_SMALLEST" in os.environ  # The shortest run, whose figures mean nothing.
POOLS = (1.2,) if SMALLEST else (1.2, 0.5)

# DeepSpeed's offload to NVMe, with reads and writes beside the updates. Tensors smaller than a block
# of AIO are not written: with these blocks all gradients stay in memory, and states do not.
NVME = {
    "device": "nvme",
    "pipeline_read": True,
    "pipeline_write": True,
    "pin_memory": True,
    "buffer_count": 12,  # Those of three groups: one is read, one updated, one written.
}
NVME_GROUP = 4 << 20  # Parameters that are read, updated and written together.
AIO = {"block_size": 8 << 20, "queue_depth": 16, "intra_op_parallelism": 1}


class Layer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm_2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, -1).transpose(1, 2)
            for part in self.qkv(self.norm_1(x)).split(width, dim=2)
        )
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(functional.gelu(self.up(self.norm_2(x))))


class Gpt(nn.Module):
    """A GPT that returns the loss of predicting each token from those before."""

    def __init__(self, layers: int, width: int, length: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.places = nn.Embedding(length, width)
        self.layers = nn.ModuleList(Layer(width, width // 64) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for layer in self.layers:
            x = layer(x)
        logits = self.head(self.norm(x))[:, :-1].flatten(0, 1)
        return functional.cross_entropy(logits.float(), tokens[:, 1:].flatten())


Step = Callable[[torch.Tensor], torch.Tensor]


def torch_step(model: nn.Module, _: argparse.Namespace) -> Step:
    """Weights are bf16. The optimizer has fp32 masters of them."""
    weights = list(model.parameters())
    masters = [nn.Parameter(weight.detach().float()) for weight in weights]
    optimizer = torch.optim.AdamW(masters, fused=True, **HYPER)

    def step(tokens: torch.Tensor) -> torch.Tensor:
        loss = model(tokens)
        loss.backward()
        for weight, master in zip(weights, masters):
            master.grad, weight.grad = weight.grad.float(), None
        nn.utils.clip_grad_norm_(masters, CLIP_NORM)
        optimizer.step()
        with torch.no_grad():
            torch._foreach_copy_(weights, masters)
        return loss

    return step


def cistern_step(model: nn.Module, options: argparse.Namespace) -> Step:
    import cistern.torch as ct

    n_bytes = 2 * sum(p.numel() for p in model.parameters())
    pool = int(options.pool * n_bytes)
    where = {"device": options.device, "disk": options.disk}
    store = ct.attach(model, f"train-{options.pool}", pool=pool, ttl_s=1, **where)
    optimizer = store.optimizer(clip_norm=CLIP_NORM, **HYPER)

    def step(tokens: torch.Tensor) -> torch.Tensor:
        loss = model(tokens)
        loss.backward()
        optimizer.step()
        return loss

    return step


def make_group(options: argparse.Namespace) -> None:
    """Make the process group of this process alone, without a port."""
    os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    backend = "cpu:gloo,cuda:nccl" if options.device == "cuda" else "gloo"
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group(backend, store=store, rank=0, world_size=1)


def fsdp_step(model: nn.Module, options: argparse.Namespace) -> Step:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

    make_group(options)
    on_gpu = options.device == "cuda"
    how = {
        "mesh": init_device_mesh(options.device, (1,)),
        "mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16),
        "offload_policy": CPUOffloadPolicy(pin_memory=on_gpu),
    }
    model = model.float().cpu()
    for layer in model.layers:
        fully_shard(layer, **how)
    fully_shard(model, **how)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True, **HYPER)

    def step(tokens: torch.Tensor) -> torch.Tensor:
        loss = model(tokens)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


def deepspeed_step(model: nn.Module, options: argparse.Namespace) -> Step:
    make_group(options)
    import deepspeed

    offload = {"device": "cpu"}
    config = {
        "train_micro_batch_size_per_gpu": options.batch,
        "bf16": {"enabled": True},
        "gradient_clipping": CLIP_NORM,
        "optimizer": {"type": "AdamW", "params": HYPER},
        "zero_optimization": {"stage": 3, "offload_optimizer": offload, "offload_param": offload},
    }
    if options.disk:
        offload = NVME | {"nvme_path": options.disk}
        config["zero_optimization"] |= {"offload_optimizer": offload, "sub_group_size": NVME_GROUP}
        config["aio"] = AIO
    engine, *_ = deepspeed.initialize(model=model, config=config)

    def step(tokens: torch.Tensor) -> torch.Tensor:
        loss = engine(tokens)
        engine.backward(loss)
        engine.step()
        return loss

    return step


STEPS = {
    "torch": torch_step,
    "cistern": cistern_step,
    "fsdp": fsdp_step,
    "deepspeed": deepspeed_step,
}


def work(options: argparse.Namespace) -> None:
    """Do options.steps steps for each line of the standard input; answer with seconds and loss."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # What libraries print is no answer.
    torch.manual_seed(1)
    model = Gpt(options.layers, options.width, options.length).to(torch.bfloat16)
    if options.work != "cistern":
        model.to(options.device)
    step = STEPS[options.work](model, options)
    data = torch.Generator().manual_seed(options.seed)
    for _ in sys.stdin:
        seconds = []
        for _ in range(options.steps + 1):
            tokens = torch.randint(VOCABULARY, (options.batch, options.length), generator=data)
            tokens = tokens.to(options.device)
            begin = time.perf_counter()
            loss = float(step(tokens).detach())
            seconds.append(time.perf_counter() - begin)
        print(json.dumps({"seconds": seconds[1:], "loss": loss}), file=answers, flush=True)


def pss(pid: int) -> int:
    """Return the memory of a process and those that it has started, in bytes."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    own = next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))
    return 1024 * own + sum(pss(int(child)) for child in children)


class Peer:
    """A process that does steps of one kind."""

    def __init__(self, name: str, arguments: list[str], daemon: int) -> None:
        self.name = name
        self.daemon = daemon  # The process that has its states, or 0.
        self.seconds: list[float] = []
        self.n_bytes = 0
        self.loss = 0.0
        command = [sys.executable, __file__, *sys.argv[1:], *arguments]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(self, warm: bool) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"train: {self.name} has ended with status {self.process.wait()}")
        answer = json.loads(line)
        self.loss = answer["loss"]
        if warm:
            self.seconds += answer["seconds"]
        own = pss(self.process.pid)
        self.n_bytes = max(self.n_bytes, own + (pss(self.daemon) if self.daemon else 0))

    def close(self) -> None:
        self.process.communicate()


def of_units() -> dict[str, float]:
    """Return the microseconds of unit_bracket and unit_python."""
    import cistern.torch as ct

    n_units, width = 8, 16

    class Unit(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            random = (torch.randn(width, width, dtype=torch.bfloat16) for _ in range(12))
            self.weights = nn.ParameterList(nn.Parameter(values) for values in random)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for weight in self.weights:
                x = x * weight
            return x

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.units = nn.ModuleList(Unit() for _ in range(n_units))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for unit in self.units:
                x = unit(x)
            return x

    torch.set_num_threads(1)
    plain, model = Model(), Model()
    # Many micro-batches, so that nearly all passes find their weights in the pool.
    store = ct.attach(model, "units", pool="64M", micro_batches=50, ttl_s=1)
    optimizer = store.optimizer(lr=1e-3)
    x = torch.ones(width, width, dtype=torch.bfloat16, requires_grad=True)

    def seconds(net: nn.Module) -> float:
        begin = time.perf_counter()
        net(x).float().sum().backward()
        return time.perf_counter() - begin

    def bracket() -> float:
        begin = time.perf_counter()
        operators.push(unit, lambda: True)
        operators.pop()
        return time.perf_counter() - begin

    ours, torchs = [], []
    for _ in range(1 if SMALLEST else 8):
        for _ in range(50):
            ours.append(seconds(model))
            torchs.append(seconds(plain))
            plain.zero_grad()
        optimizer.step()
    operators, unit = store._runner.operators, store._runner.units[0]
    brackets = [bracket() for _ in range(30 if SMALLEST else 3000)]
    store.close(remove=True)
    extra = statistics.median(ours) - statistics.median(torchs)
    return {"unit_bracket": 1e6 * statistics.median(brackets), "unit_python": 1e6 * extra / n_units}


def row_of(name: str, value: float, unit: str, yardstick: float) -> dict[str, Any]:
    """Return a row of results, of which the ratio of value and yardstick counts."""
    ratio = value / yardstick
    return {"name": name, "value": value, "unit": unit, "yardstick": yardstick, "ratio": ratio}


def compare(options: argparse.Namespace) -> None:
    rows = []
    goals = {"unit_bracket": 10.0, "unit_python": 150.0}
    for name, value in ({} if options.disk else of_units()).items():
        rows.append(row_of(name, value, "us", goals[name]))
    pools, where = (POOLS[:1], "disk_") if options.disk else (POOLS, "")
    ours = {
        pool: Peer(f"cistern {pool}", ["--work", "cistern", "--pool", str(pool)], options.daemon)
        for pool in pools
    }
    plain = Peer("torch", ["--work", "torch"], 0)
    rivals = [Peer(name, ["--work", name], 0) for name in options.rivals.split(",") if name]
    peers = [*ours.values(), plain, *rivals]
    for i in range(options.rounds + 1):  # The first one warms up.
        for peer in peers:
            peer.run(warm=i > 0)
    for peer in peers:
        peer.close()
    step = {peer.name: statistics.median(peer.seconds) for peer in peers}
    for pool, peer in ours.items():
        rows.append(row_of(f"train_{where}torch_{pool}", step[peer.name], "s", step["torch"]))
    for peer in rivals:
        own = step[f"cistern {pools[0]}"]
        n_bytes = ours[pools[-1]].n_bytes
        rows.append(row_of(f"train_{where}{peer.name}", step[peer.name], "s", own))
        rows.append(row_of(f"memory_{where}{peer.name}", n_bytes, "B", peer.n_bytes))
    for peer in peers:
        print(
            f"{peer.name:12} {step[peer.name]:8.4f} s   {peer.n_bytes / 1e6:7.0f} MB   loss {peer.loss:.4f}"
        )
    for row in rows:
        row["runs"] = options.rounds
        print(f"{row['name']:16} {row['value']:12.4f} {row['unit']:3} {row['ratio']:6.3f}")
    if options.json:
        with open(options.json, "a", encoding="utf-8") as out:
            out.writelines(json.dumps(row) + "\n" for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--steps", type=int, default=5, help="that are counted in a turn")
    parser.add_argument("--rounds", type=int, default=9, help="turns that are counted")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", help="file to which rows are added")
    parser.add_argument("--rivals", default="fsdp,deepspeed", help="peers besides plain torch")
    parser.add_argument("--disk", help="directory on a drive, which has the states")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="of the model")
    parser.add_argument("--daemon", type=int, default=0, help="process of the daemon")
    parser.add_argument(
        "--work", choices=list(STEPS), help="for the processes that this one starts"
    )
    parser.add_argument("--pool", type=float, default=0.0, help="as a part of the weights")
    options = parser.parse_args()
    if options.work:
        work(options)
    else:
        compare(options)


if __name__ == "__main__":
    main()
