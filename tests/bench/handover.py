# SPDX-License-Identifier: Apache-2.0
"""The weights of a committed step come to another process: by a reader, and by a file, in turns.

A LLaMA model of 1.0e8 parameters in bf16 trains. Times begin when the call of the step has returned, and
end when a model in the other process has the weights. Its updates run after the commit. With a reader, the
other process waits for the version and assigns it. With a file, the trainer writes what state_dict()
returns to a file of safetensors, which the other process maps and assigns. The file stays in the page
cache. The rows, medians, are

  handover         seconds by a reader; by a file
  handover_assign  seconds of that in which the reader's process assigns; in which the other one loads
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
from typing import Any

SMALLEST = "BENCH_SMALLEST" in os.environ
ROUNDS = 1 if SMALLEST else 9
WIDTH = 64 if SMALLEST else 1024


def model_of(layers: int) -> Any:
    import torch
    import transformers

    torch.set_num_threads(1)
    config = transformers.LlamaConfig(
        hidden_size=WIDTH, intermediate_size=WIDTH * 11 // 4, num_hidden_layers=layers, vocab_size=8192,
        num_attention_heads=16, num_key_value_heads=4,
    )  # fmt: skip
    return transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)


def receive(arguments: argparse.Namespace) -> None:
    """Do what each line says, and print when the model has the weights, and how long that took."""
    import cistern.torch as ct
    import torch
    from safetensors.torch import load_file

    with torch.device("meta"):
        model = model_of(arguments.layers)
    with ct.reader("handover") as reader:
        for line in sys.stdin:
            how, _, what = line.rstrip("\n").partition(" ")
            if how == "reader":
                version = reader.next(after=int(what))
                began = time.monotonic()
                version.assign(model)
            else:
                began = time.monotonic()
                model.load_state_dict(load_file(what), assign=True)
            print(json.dumps([time.monotonic(), time.monotonic() - began]), flush=True)
            if how == "reader":
                version.check()
                version.release()


def measure(arguments: argparse.Namespace, folder: Path) -> None:
    import cistern.torch as ct
    import torch
    from safetensors.torch import save_file

    store = ct.attach(model_of(arguments.layers), "handover", device="cpu")
    optimizer = store.optimizer(lr=1e-4)
    command = [sys.executable, __file__, "--receive", "--layers", str(arguments.layers)]
    peer = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    times: dict[str, list[tuple[float, float]]] = {"reader": [], "file": []}
    for i in range(2 * (ROUNDS + 1)):
        how = ("reader", "file")[i % 2]
        batch = torch.randint(0, 8192, (1, 16))
        store.model(input_ids=batch, labels=batch).loss.backward()
        if how == "reader":
            print("reader", store.step_no, file=peer.stdin, flush=True)
            time.sleep(0.1)  # It waits then.
        optimizer.step()
        began = time.monotonic()
        if how == "file":
            path = folder / "model.safetensors"
            save_file(store.state_dict(), path)
            print("file", path, file=peer.stdin, flush=True)
        ended, took = json.loads(peer.stdout.readline())
        if i >= 2:  # The first ones are not counted.
            times[how].append((ended - began, took))
    peer.stdin.close()
    if peer.wait() != 0:
        raise SystemExit(f"the other process ended with {peer.returncode}")
    print(f"{store.plan.n_params} parameters, {times}")
    store.close(remove=True)
    for row, column in (("handover", 0), ("handover_assign", 1)):
        medians = [statistics.median(t[column] for t in times[how]) for how in ("reader", "file")]
        print(f"{row} {medians[0]:.6f} {medians[1]:.6f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--dir", type=Path, help="where to write the file; by default in $TMPDIR")
    parser.add_argument("--receive", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.receive:
        receive(arguments)
        return
    with tempfile.TemporaryDirectory(dir=arguments.dir) as folder:
        measure(arguments, Path(folder))


if __name__ == "__main__":
    main()
