# SPDX-License-Identifier: Apache-2.0
"""Two ranks attach a LLaMA model that is on the meta device, from safetensors files.

The files are written tensor by tensor, with random weights. When the job's memory exists, rank 0 reads
the files by read(2) and loads them, in turns, each time after they left the page cache. One read before
these does not count: in a virtual machine it can take several times as long, because the page cache
grows into memory that the host provides only then. The rows are

  attach_memory  bytes per parameter of the daemon's arenas and the pools; with the memory of both
                 workers besides the pool
  attach_worker  bytes of the larger worker besides the pool, and before it had a model
  attach_load    seconds of the load, and of reading the files: medians
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

WORLD = 2
SMALLEST = "BENCH_SMALLEST" in os.environ
ROUNDS = 1 if SMALLEST else 7
WIDTH = 64 if SMALLEST else 1024
BLOCK = 8 << 20


def model_of(layers: int) -> object:
    """Return a model in bf16, whose parameters are on the meta device."""
    import accelerate
    import torch
    import transformers

    config = transformers.LlamaConfig(
        hidden_size=WIDTH, intermediate_size=WIDTH * 11 // 4, num_hidden_layers=layers, vocab_size=8192,
        num_attention_heads=16, num_key_value_heads=4,
    )  # fmt: skip
    with accelerate.init_empty_weights(include_buffers=False):
        return transformers.LlamaForCausalLM(config).to(torch.bfloat16)


def write_files(layers: int, folder: Path) -> int:
    """Write a file for each 512 MiB of random weights. Return the number of parameters."""
    import torch
    from safetensors.torch import save_file

    part: dict[str, torch.Tensor] = {}
    files: dict[str, str] = {}
    n_params = n_files = 0
    parameters = list(model_of(layers).named_parameters())
    for i, (name, parameter) in enumerate(parameters):
        part[name] = torch.empty_like(parameter, device="cpu").normal_(0, 0.02)
        n_params += parameter.numel()
        if i + 1 == len(parameters) or sum(t.nbytes for t in part.values()) > 512 << 20:
            file = f"model-{n_files:05}.safetensors"
            save_file(part, folder / file)
            files |= dict.fromkeys(part, file)
            part.clear()
            n_files += 1
    index = {"metadata": {}, "weight_map": files}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return n_params


def forget(folder: Path) -> None:
    """Write the files to the disk, and remove them from the page cache."""
    for file in folder.iterdir():
        fd = os.open(file, os.O_RDONLY)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def read_files(folder: Path) -> float:
    """Return the seconds that reading the files takes."""
    forget(folder)
    block = bytearray(BLOCK)
    began = time.monotonic()
    for file in folder.iterdir():
        with open(file, "rb", buffering=0) as opened:
            while opened.readinto(block):
                pass
    return time.monotonic() - began


def own_bytes() -> int:
    """Return the proportional size of this process in memory, but for what it shares with the daemon."""
    total, counts = 0, True
    for line in Path("/proc/self/smaps").read_text().splitlines():
        word = line.split()[0]
        if not word.endswith(":"):
            counts = "memfd:" not in line
        elif word == "Pss:" and counts:
            total += 1024 * int(line.split()[1])
    return total


def work(arguments: argparse.Namespace) -> None:
    """Attach as one rank, and print what that took."""
    import cistern
    import cistern.torch as ct

    import_bytes = own_bytes()
    loads, reads = [0.0], [0.0]
    plain = cistern.Job.load_model

    def load_model(*args: object, **kwargs: object) -> object:
        folder = Path(arguments.dir)
        read_files(folder)
        loads.clear()
        reads.clear()
        for _ in range(ROUNDS):
            reads.append(read_files(folder))
            forget(folder)
            began = time.monotonic()
            result = plain(*args, **kwargs)
            loads.append(time.monotonic() - began)
        return result

    cistern.Job.load_model = load_model
    model = model_of(arguments.layers)
    options = {"rank": arguments.rank, "world": WORLD, "device": "cpu", "pool": arguments.pool}
    store = ct.attach(model, "attach", load=arguments.dir, **options)
    result = {
        "load": statistics.median(loads),
        "read": statistics.median(reads),
        "import_bytes": import_bytes,
        "own_bytes": own_bytes(),
        "arena_bytes": store.plan.arena_bytes,
        "pool_bytes": store.plan.pool_bytes,
        "n_params": store.plan.n_params,
    }
    print(json.dumps(result), flush=True)
    sys.stdin.read()  # Until both ranks have measured.
    store.close()


def ranks_of(arguments: argparse.Namespace, folder: Path) -> list[dict[str, float]]:
    command = [sys.executable, __file__, "--layers", str(arguments.layers), "--dir", str(folder)]
    ranks = [
        subprocess.Popen(
            [*command, "--pool", arguments.pool, "--rank", str(rank)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(WORLD)
    ]
    results = [json.loads(rank.stdout.readline()) for rank in ranks]
    for rank in ranks:
        rank.stdin.close()
        if rank.wait() != 0:
            raise SystemExit(f"a rank ended with {rank.returncode}")
    return results


def measure(arguments: argparse.Namespace, folder: Path) -> None:
    n_params = write_files(arguments.layers, folder)
    ranks = ranks_of(arguments, folder)
    states = ranks[0]["arena_bytes"] + sum(rank["pool_bytes"] for rank in ranks)
    workers = sum(rank["own_bytes"] for rank in ranks)
    load, read = (max(rank[key] for rank in ranks) for key in ("load", "read"))
    print(f"{n_params} parameters, pools {[rank['pool_bytes'] for rank in ranks]}, {ranks}")
    print(f"attach_memory {states / n_params:.3f} {(states + workers) / n_params:.3f}")
    print(
        f"attach_worker {max(rank['own_bytes'] for rank in ranks)}"
        f" {max(rank['import_bytes'] for rank in ranks)}"
    )
    print(f"attach_load {load:.3f} {read:.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--layers", type=int, default=88)
    parser.add_argument("--dir", type=Path, help="where to write the model; by default in $TMPDIR")
    parser.add_argument("--pool", default="128M")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank is not None:
        work(arguments)
        return
    with tempfile.TemporaryDirectory(dir=arguments.dir) as folder:
        measure(arguments, Path(folder))


if __name__ == "__main__":
    main()
