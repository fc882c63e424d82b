#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The peer: the GPT of cistern-gpt in PyTorch with DeepSpeed ZeRO-3, weights and optimizer states in pinned host memory. Same shapes, tokens
a step, accumulation and precision (bf16 weights and gradients, fp32 master weights and moments). One process, all cores bound to it.

Writes one JSON object: {"seconds": median of a step, "tokens_per_s", "steps", "loss", "n_params", "optimizer", "versions", ...}. Ends with
status 77 and a sentence where DeepSpeed, PyTorch or a GPU is not there."""

import argparse
import json
import os
import statistics
import sys
import time

VOCABULARY = 256
NOT_HERE = 77


def skip(words):
    print(f"skipped: {words}")
    sys.exit(NOT_HERE)


def parse():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--layers", type=int, default=26)
    p.add_argument("--heads", type=int, default=16)
    p.add_argument("--width", type=int, default=2048)
    p.add_argument("--context", type=int, default=1024)
    p.add_argument("--micro-batch", type=int, default=4, help="sequences")
    p.add_argument("--micro-batches", type=int, default=4, help="a step")
    p.add_argument("--steps", type=int, default=5)
    p.add_argument("--warmup", type=int, default=2, help="steps that do not count")
    p.add_argument("--seconds", type=float, default=45, help="no further step is begun after that")
    p.add_argument("--data", help="text, read as bytes; random bytes without it")
    p.add_argument("--json", help="file for the result")
    return p.parse_args()


def bind_cores():
    """Before PyTorch is loaded: its OpenMP reads these once."""
    cores = sorted(os.sched_getaffinity(0))
    os.environ.setdefault("OMP_NUM_THREADS", str(len(cores)))
    os.environ.setdefault("OMP_PROC_BIND", "close")
    os.environ.setdefault("OMP_PLACES", "cores")
    os.environ.setdefault("DS_SKIP_CUDA_CHECK", "1")
    for name, value in {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 1, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 29577}.items():
        os.environ.setdefault(name, str(value))
    return cores


def load():
    try:
        import torch
    except ImportError as e:
        skip(f"no PyTorch: {e}")
    if not torch.cuda.is_available():
        skip("PyTorch sees no GPU")
    try:
        import deepspeed
    except Exception as e:  # whatever of its needs is not there
        skip(f"no DeepSpeed: {e}")
    return torch, deepspeed


def make_model(torch, o):
    nn, functional = torch.nn, torch.nn.functional

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.ln1, self.ln2 = nn.LayerNorm(o.width), nn.LayerNorm(o.width)
            self.qkv, self.proj = nn.Linear(o.width, 3 * o.width), nn.Linear(o.width, o.width)
            self.fc, self.fcproj = nn.Linear(o.width, 4 * o.width), nn.Linear(4 * o.width, o.width)

        def forward(self, x):
            n, t, w = x.shape
            q, k, v = self.qkv(self.ln1(x)).view(n, t, 3, o.heads, w // o.heads).permute(2, 0, 3, 1, 4)
            a = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.proj(a.transpose(1, 2).reshape(n, t, w))
            return x + self.fcproj(functional.gelu(self.fc(self.ln2(x)), approximate="tanh"))

    class Gpt(nn.Module):
        def __init__(self):
            super().__init__()
            self.wte, self.wpe = nn.Embedding(VOCABULARY, o.width), nn.Embedding(o.context, o.width)
            self.blocks = nn.ModuleList(Block() for _ in range(o.layers))
            self.lnf = nn.LayerNorm(o.width)
            self.head = nn.Linear(o.width, VOCABULARY, bias=False)  # not tied: ZeRO-3 would gather it twice for half a million parameters

        def forward(self, tokens, targets):
            x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1], device=tokens.device))
            for block in self.blocks:
                x = block(x)
            logits = self.head(self.lnf(x))
            return functional.cross_entropy(logits.float().view(-1, VOCABULARY), targets.reshape(-1))

    return Gpt


def config(o, own_adam):
    return {
        "train_micro_batch_size_per_gpu": o.micro_batch,
        "gradient_accumulation_steps": o.micro_batches,
        "gradient_clipping": 1.0,
        "bf16": {"enabled": True},
        "zero_force_ds_cpu_optimizer": own_adam,
        "zero_optimization": {
            "stage": 3,
            "overlap_comm": True,
            "contiguous_gradients": True,
            "offload_optimizer": {"device": "cpu", "pin_memory": True},
            "offload_param": {"device": "cpu", "pin_memory": True},
        },
        "steps_per_print": 1000000,
        "wall_clock_breakdown": False,
    }


def make_optimizer(torch, deepspeed, parameters):
    """DeepSpeed's own AdamW for the processor where it is built or can be; else PyTorch's."""
    hyper = {"lr": 1e-4, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}
    try:
        return deepspeed.ops.adam.DeepSpeedCPUAdam(parameters, adamw_mode=True, **hyper), "DeepSpeedCPUAdam"
    except Exception as e:
        print(f"DeepSpeedCPUAdam is not built and cannot be: {e}")
        return torch.optim.AdamW(parameters, fused=True, **hyper), "torch.optim.AdamW (fused, on the processor)"


class Data:
    def __init__(self, torch, o):
        self.torch, self.o = torch, o
        self.generator = torch.Generator().manual_seed(1)
        if o.data:
            with open(o.data, "rb") as f:
                self.text = torch.frombuffer(bytearray(f.read()), dtype=torch.uint8)
        else:
            self.text = torch.randint(0, VOCABULARY, (1 << 20,), dtype=torch.uint8, generator=self.generator)

    def batch(self):
        o, torch = self.o, self.torch
        at = torch.randint(0, len(self.text) - o.context - 1, (o.micro_batch,), generator=self.generator)
        rows = torch.stack([self.text[i : i + o.context + 1] for i in at.tolist()]).long().cuda()
        return rows[:, :-1], rows[:, 1:]


def train(torch, engine, data, o):
    """Seconds of each step, and the last loss."""
    seconds, began = [], time.monotonic()
    loss = None
    for step in range(o.warmup + o.steps):
        if time.monotonic() - began > o.seconds and len(seconds) > o.warmup:
            break
        torch.cuda.synchronize()
        start = time.monotonic()
        for _ in range(o.micro_batches):
            loss = engine(*data.batch())
            engine.backward(loss)
            engine.step()
        torch.cuda.synchronize()
        seconds.append(time.monotonic() - start)
        print(f"step {step + 1}: {seconds[-1]:.3f} s, loss {loss.item():.4f}", flush=True)
    return seconds, loss.item()


def main():
    o = parse()
    cores = bind_cores()
    torch, deepspeed = load()
    torch.manual_seed(1)
    torch.set_num_threads(len(cores))
    deepspeed.init_distributed()
    settings = config(o, True)
    with deepspeed.zero.Init(config_dict_or_path=settings, dtype=torch.bfloat16):
        model = make_model(torch, o)()
    n_params = sum(getattr(p, "ds_numel", p.numel()) for p in model.parameters())
    optimizer, name = make_optimizer(torch, deepspeed, model.parameters())
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config(o, name == "DeepSpeedCPUAdam"))
    seconds, loss = train(torch, engine, Data(torch, o), o)
    median = statistics.median(seconds[o.warmup :] or seconds[-1:])
    result = {
        "name": "peer_deepspeed",
        "seconds": round(median, 4),
        "tokens_per_s": round(o.micro_batch * o.micro_batches * o.context / median, 1),
        "steps": len(seconds),
        "loss": round(loss, 4),
        "n_params": n_params,
        "optimizer": name,
        "cores": len(cores),
        "gpu_bytes": torch.cuda.max_memory_allocated(),
        "versions": f"deepspeed {deepspeed.__version__}, torch {torch.__version__}",
    }
    print(json.dumps(result))
    if o.json:
        with open(o.json, "a", encoding="utf-8") as f:
            f.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
