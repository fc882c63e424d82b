# SPDX-License-Identifier: Apache-2.0
"""A Trainer in the processes that an agent of torchrun starts."""

import os
import signal
from typing import Any

import cistern.torch as ct
import models
import test_hf
import torch
import transformers
from cistern import State


def train(output_dir: str, dies_in: str) -> dict[str, list[float]]:
    """Train 6 steps of 2 micro-batches. The job has the name of the torchrun job.

    Rank 1 dies once in step ``dies_in``, if any. "plain" means a Trainer with
    DistributedDataParallel. Return the losses, and sums of the master weights.
    """
    torch.set_num_threads(1)
    torch.manual_seed(1)
    args = transformers.TrainingArguments(**test_hf.OPTIONS, output_dir=output_dir, max_steps=6)
    model, data = models.bf16(models.gpt2), test_hf.dataset()
    if dies_in == "plain":
        optimizer = test_hf.MasterAdamW(test_hf.decay_groups(model), lr=args.learning_rate)
        trainer = transformers.Trainer(
            model, args, train_dataset=data, optimizers=(optimizer, None)
        )
        trainer.train()
    else:
        store = ct.attach(model, **ct.hf.options(model, args))
        trainer = transformers.Trainer(model, args, train_dataset=data)
        ct.hf.connect(trainer, store)
        if args.process_index == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            die(trainer, store, int(dies_in))
        trainer.train()
    results = {"losses": test_hf.losses(trainer)}
    if dies_in != "plain":
        names = [name for name, _ in model.named_parameters()]
        results["weights"] = [store.read(name, State.MASTER).sum().item() for name in names]
        store.close()
    return results


def die(trainer: Any, store: ct.Store, dies_in: int) -> None:
    """Let the process die in the second micro-batch of a step."""
    plain = trainer.compute_loss

    def compute_loss(*args: Any, **kwargs: Any) -> torch.Tensor:
        loss = plain(*args, **kwargs)
        if store.step_no == dies_in and trainer.accelerator.sync_gradients:
            loss.register_hook(lambda _: os.kill(os.getpid(), signal.SIGKILL))
        return loss

    trainer.compute_loss = compute_loss
