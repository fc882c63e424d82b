# SPDX-License-Identifier: Apache-2.0
"""Rank 1 of a job whose rank 0 is a Trainer of test_hf.py."""

import os
import signal

import cistern.torch as ct
import models
import torch
import transformers


def train(name: str, dies_in: int) -> None:
    """Train up to step 4. In the last backward pass of the step ``dies_in`` the process dies."""
    torch.set_num_threads(1)
    args = transformers.TrainingArguments(
        use_cpu=True, report_to=[], gradient_accumulation_steps=2, output_dir=os.devnull
    )
    model = models.bf16(models.gpt2)
    store = ct.attach(model, name, rank=1, world=2, device="cpu", **ct.hf.options(model, args))
    optimizer = store.optimizer(
        lr=3e-3, weight_decay=0.1, clip_norm=1.0, groups=[{}, {"weight_decay": 0.0}]
    )
    while store.step_no < 4:
        step = store.step_no
        torch.manual_seed(step)

        def closure(step: int = step) -> None:
            for micro_batch in range(2):
                loss = models.loss_of(model, models.tokens())
                if (step, micro_batch) == (dies_in, 1):
                    loss.register_hook(lambda _: os.kill(os.getpid(), signal.SIGKILL))
                loss.backward()

        optimizer.step(closure)
    store.close()
