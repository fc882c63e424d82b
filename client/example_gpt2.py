# SPDX-License-Identifier: Apache-2.0
"""Train a small GPT-2 of transformers on a text, with its states in the cistern daemon.

    torchrun --standalone --nproc-per-node 2 example_gpt2.py TEXT [--steps N] [--pool SIZE]

A token is a byte. Each process is a rank and learns other parts of the text. If it is started
again, it goes on after the last step. With --unused zero, it also runs on several machines.
"""

import argparse
from functools import partial
from pathlib import Path

import cistern.torch as ct
import torch
from transformers import AutoModelForCausalLM, GPT2Config

BATCH, CONTEXT = 8, 128


def batch_of(text: torch.Tensor, step: int, rank: int) -> torch.Tensor:
    """Return the sequences that ``rank`` learns in ``step``, from places drawn with these numbers."""
    random = torch.Generator().manual_seed(1000 * step + rank)
    places = torch.randint(len(text) - CONTEXT, (BATCH, 1), generator=random)
    return text[places + torch.arange(CONTEXT)].long()


def learn(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
    """Compute the loss and the gradients of a batch."""
    loss = model(input_ids=batch, labels=batch).loss
    loss.backward()
    return loss


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small GPT-2 in the cistern daemon.")
    parser.add_argument("text", type=Path, help="file to learn")
    parser.add_argument("--job", default="example-gpt2")
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--pool", default=0, help="memory for weights in use, such as 2M")
    parser.add_argument("--unused", help="zero: for ranks on several machines")
    args = parser.parse_args()

    text = torch.frombuffer(bytearray(args.text.read_bytes()), dtype=torch.uint8)
    config = GPT2Config(
        vocab_size=256, n_positions=CONTEXT, n_embd=128, n_layer=12, n_head=4,
        resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)

    store = ct.attach(model, args.job, pool=args.pool, device="cpu", unused=args.unused)
    opt = store.optimizer(lr=2e-3, betas=(0.9, 0.95), weight_decay=0.1, clip_norm=1.0)
    warm_up = torch.optim.lr_scheduler.LambdaLR(opt, lambda _: min(1.0, (store.step_no + 1) / 20))
    rank = store.job.global_rank

    if rank == 0:
        print(f"pool of {store.plan.pool_bytes} bytes")
    model.train()
    for step in range(store.step_no, args.steps):
        # If another rank dies in this step, the optimizer calls this function again.
        loss = opt.step(partial(learn, model, batch_of(text, step, rank)))
        warm_up.step()
        if rank == 0:
            print(f"step {step + 1}: loss {loss.item():.4f}", flush=True)

    if rank == 0:
        trained = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
        trained.load_state_dict(store.state_dict())
        start = torch.tensor([list(b"And God said")])
        written = trained.eval().generate(start, max_new_tokens=100, do_sample=True, pad_token_id=0)
        print(bytes(written[0].tolist()).decode(errors="replace"))
    store.close()


if __name__ == "__main__":
    main()
