# SPDX-License-Identifier: Apache-2.0
"""Training steps of one model on two nodes with cistern.torch and FSDP2 over gloo, in turns.

cistern    cistern.torch with a pool of 1.2 times the weights, on the daemons of both nodes
fsdp       fully_shard of each layer, which gathers weights again in the backward pass (ZeRO-3):
           fp32 parameters, products and exchanged gradients in bf16
fsdp-keep  the same with reshard_after_forward=False: weights are gathered once in a step (ZeRO-2)

All have the model, precision, clipping norm and optimizer of train.py, one rank on each node with
one processor, and the same tokens. For each of them there is a process on each node, which does a
few steps when it is its turn. The first step of a turn is not counted. The rows are

  nodes_NAME[_LINK]        seconds of a step with cistern; of one with NAME
  nodes_NAME_bytes[_LINK]  bytes that a node receives in a step with cistern; with NAME

Bytes are those of the network interface, with headers and acknowledgements. nodes_step.sh makes the
nodes, which are network namespaces.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from typing import Any

import torch
from torch import nn
from train import CLIP_NORM, HYPER, SMALLEST, VOCABULARY, Gpt, Step

PORT = 29533  # Of the first rank's store; each kind has one of its own from there on.
HEARTBEATS = 5000  # Bytes that daemons exchange in a part of a second without training.
KINDS = ("cistern", "fsdp", "fsdp-keep")


def cistern_step(model: nn.Module, options: argparse.Namespace) -> Step:
    import cistern.torch as ct

    pool = int(1.2 * 2 * sum(p.numel() for p in model.parameters()))
    store = ct.attach(model, f"nodes-{options.seed}", pool=pool, ttl_s=1)
    optimizer = store.optimizer(clip_norm=CLIP_NORM, **HYPER)

    def step(tokens: torch.Tensor) -> torch.Tensor:
        loss = model(tokens)
        loss.backward()
        optimizer.step()
        return loss

    return step


def fsdp_step(model: nn.Module, options: argparse.Namespace) -> Step:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    torch.distributed.init_process_group("gloo")
    how = {
        "mesh": init_device_mesh("cpu", (2,)),
        "mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16),
        "reshard_after_forward": options.work == "fsdp",
    }
    model = model.float()
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


def work(options: argparse.Namespace) -> None:
    """Do options.steps steps for each line of the standard input; answer with seconds and loss."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # What libraries print is no answer.
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = Gpt(options.layers, options.width, options.length).to(torch.bfloat16)
    step = (cistern_step if options.work == "cistern" else fsdp_step)(model, options)
    data = torch.Generator().manual_seed(2 * options.seed + options.rank)
    for _ in sys.stdin:
        seconds = []
        for _ in range(options.steps + 1):
            tokens = torch.randint(VOCABULARY, (options.batch, options.length), generator=data)
            begin = time.perf_counter()
            loss = float(step(tokens).detach())
            seconds.append(time.perf_counter() - begin)
        print(json.dumps({"seconds": seconds[1:], "loss": loss}), file=answers, flush=True)


class Node:
    """A network namespace with a processor and a daemon, and the interface to the other one."""

    def __init__(self, text: str) -> None:
        self.namespace, self.processor, self.interface, self.address, self.socket = text.split(",")

    def command(self) -> list[str]:
        return ["ip", "netns", "exec", self.namespace, "taskset", "-c", self.processor]

    def received(self) -> int:
        """Return the bytes that the node has received so far."""
        path = f"/sys/class/net/{self.interface}/statistics/rx_bytes"
        return int(subprocess.check_output([*self.command(), "cat", path]))


def settled(nodes: list[Node]) -> list[int]:
    """Return the bytes received, once the weights of the last step have come, too: when heartbeats
    alone go over the link."""
    received = [node.received() for node in nodes]
    while True:
        time.sleep(0.2)
        before, received = received, [node.received() for node in nodes]
        if sum(received) - sum(before) < HEARTBEATS:
            return received


class Peer:
    """Two processes, one on each node, that do steps of one kind."""

    def __init__(self, kind: str, nodes: list[Node]) -> None:
        self.kind, self.nodes = kind, nodes
        self.seconds: list[float] = []
        self.received: list[float] = []
        self.losses: list[float] = []
        self.processes = []
        for rank, node in enumerate(nodes):
            of_rank = {
                "RANK": str(rank),
                "WORLD_SIZE": "2",
                "LOCAL_RANK": "0",
                "LOCAL_WORLD_SIZE": "1",
                "MASTER_ADDR": nodes[0].address,
                "MASTER_PORT": str(PORT + KINDS.index(kind)),
                "GLOO_SOCKET_IFNAME": node.interface,
                "CISTERN_SOCKET": node.socket,
            }
            command = [*node.command(), sys.executable, __file__, *sys.argv[1:]]
            self.processes.append(
                subprocess.Popen(
                    [*command, "--work", kind, "--rank", str(rank)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    env=os.environ | of_rank,
                )
            )

    def run(self, n_steps: int, warm: bool) -> None:
        before = [node.received() for node in self.nodes]
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        answers = []
        for process in self.processes:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                sys.exit(f"nodes: {self.kind} has ended with status {process.wait()}")
            answers.append(json.loads(line))
        after = settled(self.nodes)
        if warm:
            self.seconds += answers[0]["seconds"]
            bytes_in = [a - b for a, b in zip(after, before)]
            self.received.append(max(bytes_in) / (n_steps + 1))
        self.losses = [answer["loss"] for answer in answers]

    def close(self) -> None:
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.close()
        for process in self.processes:
            if process.wait() != 0:
                sys.exit(f"nodes: {self.kind} has ended with status {process.returncode}")

    def kill(self) -> None:
        """End the processes that have not ended."""
        for process in self.processes:
            if process.poll() is None:
                process.kill()
                process.wait()


def row_of(name: str, value: float, unit: str, yardstick: float, runs: int) -> dict[str, Any]:
    ratio = value / yardstick
    return {
        "name": name,
        "value": value,
        "unit": unit,
        "yardstick": yardstick,
        "ratio": ratio,
        "runs": runs,
    }


def compare(options: argparse.Namespace) -> None:
    nodes = [Node(text) for text in options.node]
    peers: list[Peer] = []
    try:
        peers += [Peer(kind, nodes) for kind in KINDS]
        for i in range(options.rounds + 1):  # The first one warms up.
            for peer in peers:
                peer.run(options.steps, warm=i > 0)
        for peer in peers:
            peer.close()
    finally:
        for peer in peers:
            peer.kill()
    n_params = sum(
        p.numel() for p in Gpt(options.layers, options.width, options.length).parameters()
    )
    step = {peer.kind: statistics.median(peer.seconds) for peer in peers}
    n_bytes = {peer.kind: statistics.median(peer.received) for peer in peers}
    for peer in peers:
        loss = sum(peer.losses) / len(peer.losses)
        each = n_bytes[peer.kind] / n_params
        print(
            f"{options.link or 'unlimited':10} {peer.kind:10} {step[peer.kind]:8.4f} s   {n_bytes[peer.kind] / 1e6:8.3f} MB "
            f"({each:.3f} bytes for each of {n_params} parameters)   loss {loss:.4f}",
            file=sys.stderr,
        )
    rows = []
    where = f"_{options.link}" if options.link else ""
    for kind in KINDS[1:]:
        name = f"nodes_{kind.replace('-', '_')}"
        n_steps = len(peers[0].seconds)
        rows.append(row_of(f"{name}{where}", step["cistern"], "s", step[kind], n_steps))
        rows.append(
            row_of(f"{name}_bytes{where}", n_bytes["cistern"], "B", n_bytes[kind], options.rounds)
        )
    with open(options.json, "a", encoding="utf-8") as out:
        out.writelines(json.dumps(row) + "\n" for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=int, default=12 if SMALLEST else 8)
    parser.add_argument("--width", type=int, default=64 if SMALLEST else 384)
    parser.add_argument("--length", type=int, default=16 if SMALLEST else 128)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--steps", type=int, default=1 if SMALLEST else 4, help="counted in a turn")
    parser.add_argument(
        "--rounds", type=int, default=1 if SMALLEST else 7, help="turns that are counted"
    )
    parser.add_argument(
        "--seed", type=int, default=1, help="of the tokens, and in the name of the job"
    )
    parser.add_argument("--link", default="", help="what the names of rows have of the link")
    parser.add_argument(
        "--node",
        action="append",
        default=[],
        help="NAMESPACE,PROCESSOR,INTERFACE,ADDRESS,SOCKET; twice",
    )
    parser.add_argument("--json", default="/dev/stdout", help="file to which rows are added")
    parser.add_argument("--work", choices=KINDS, help="for the processes that this one starts")
    parser.add_argument(
        "--rank", type=int, default=0, help="for the processes that this one starts"
    )
    options = parser.parse_args()
    if options.work:
        work(options)
    else:
        compare(options)


if __name__ == "__main__":
    main()
