# SPDX-License-Identifier: Apache-2.0
"""Reinforcement learning and preferences with one copy of the weights.

A policy that one process trains samples tokens in another one, which reads its weights. A frozen
reference is a job that the policy has as its base.
"""

import copy
import json
import subprocess
import warnings
from multiprocessing.connection import Connection
from typing import Any

import cistern.torch as ct
import models
import torch
import torch.nn.functional as F
from models import TorchCase
from processes import CONTEXT, PATIENCE_S
from test_peft import adapted
from test_readers import empty, sampled
from torch import nn

N_STEPS = 3
N_PROMPT, GROUP = 4, 6  # Tokens of a prompt, samples of each.


def prompts(step: int) -> torch.Tensor:
    """Return two prompts, each as often as a group has samples."""
    seeded = torch.Generator().manual_seed(step)
    two = torch.randint(3, models.VOCABULARY, (2, N_PROMPT), generator=seeded)
    return two.repeat_interleave(GROUP, 0)


def log_probabilities(model: nn.Module, rows: torch.Tensor) -> torch.Tensor:
    """Return those of all tokens that were sampled."""
    logits = model(rows).logits.float()[:, N_PROMPT - 1 : -1]
    return F.log_softmax(logits, -1).gather(-1, rows[:, N_PROMPT:, None]).squeeze(-1)


def grpo_loss(model: nn.Module, rows: torch.Tensor, old: torch.Tensor) -> torch.Tensor:
    """The clipped loss of GRPO. The reward of a sample is the share of even tokens."""
    rewards = (rows[:, N_PROMPT:] % 2 == 0).float().mean(-1).reshape(-1, GROUP)
    deviations = rewards.std(-1, keepdim=True) + 1e-4
    advantages = ((rewards - rewards.mean(-1, keepdim=True)) / deviations).reshape(-1, 1)
    ratios = (log_probabilities(model, rows) - old).exp()
    return -torch.min(ratios * advantages, ratios.clamp(0.8, 1.2) * advantages).mean()


def rollout(model: nn.Module, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return tokens that the policy samples, and their log probabilities."""
    rows = sampled(model, prompts(step))
    with torch.no_grad():
        return rows, log_probabilities(model, rows)


def generate(job: str, pipe: Connection, keeps: bool) -> None:
    """Sample from each version of ``job``, and send what comes of it."""
    torch.set_num_threads(1)
    model = empty(models.llama)
    with ct.reader(job) as reader:
        for step in range(N_STEPS):
            after = step - 1 if step > 0 else None
            with reader.next(after, keep=keeps, timeout=PATIENCE_S) as version:
                version.assign(model)
                rows, old = rollout(model, version.step)
                version.check()
            pipe.send((version.step, rows.tolist(), old.tolist()))
            version.release()


class Policies(TorchCase):
    """A trainer and a generator, each in a process of its own, against one process."""

    def learn(self, model: nn.Module, sample: Any, **options: Any) -> list[Any]:
        """Train N_STEPS steps with what ``sample(store)`` samples. Return tokens and losses."""
        store = self.attach(model, **options)
        optimizer = store.optimizer(lr=1e-2, clip_norm=1.0)
        seen = []
        for step in range(N_STEPS):
            rows, old = sample(store)
            loss = grpo_loss(store.model, rows, old)
            loss.backward()
            optimizer.step()
            self.assertEqual(store.step_no, step + 1)
            seen.append((rows.tolist(), loss.item()))
        store.close(remove=True)
        return seen

    def in_two_processes(self, keeps: bool, **options: Any) -> list[Any]:
        ours, theirs = CONTEXT.Pipe()
        process = CONTEXT.Process(target=generate, args=(self.name, theirs, keeps))

        def sample(store: ct.Store) -> tuple[torch.Tensor, torch.Tensor]:
            if process.pid is None:
                process.start()
                theirs.close()
            self.assertTrue(ours.poll(PATIENCE_S))
            step, rows, old = ours.recv()
            self.assertEqual(step, store.step_no)
            return torch.tensor(rows), torch.tensor(old)

        seen = self.learn(copy.deepcopy(self.model), sample, **options)
        process.join()
        self.assertEqual(process.exitcode, 0)
        return seen

    def in_one_process(self) -> list[Any]:
        twin = copy.deepcopy(self.model).eval()

        def sample(store: ct.Store) -> tuple[torch.Tensor, torch.Tensor]:
            models.copy_weights(store, twin)
            return rollout(twin, store.step_no)

        return self.learn(copy.deepcopy(self.model), sample)

    def test_tokens_and_losses_are_those_of_one_process(self) -> None:
        self.model = models.bf16(models.llama)
        plain = self.in_one_process()
        self.assertNotEqual(plain[0][0], plain[1][0])
        for keeps, options in ((True, {}), (False, {}), (False, {"versions": 2})):
            with self.subTest(keeps=keeps, **options):
                self.assertEqual(self.in_two_processes(keeps, **options), plain)


def dpo_loss(policy: nn.Module, reference: nn.Module, pairs: torch.Tensor) -> torch.Tensor:
    """Of ``pairs``, the rows of the first half are preferred to those of the second."""
    with torch.no_grad():
        before = log_probabilities(reference, pairs).sum(-1)
    chosen, rejected = (log_probabilities(policy, pairs).sum(-1) - before).chunk(2)
    return -F.logsigmoid(0.1 * (chosen - rejected)).mean()


class Preferences(TorchCase):
    """DPO: the frozen reference is the base of the policy's job."""

    def charged(self) -> dict[str, int]:
        """Return the bytes of host memory that the daemon has for each job."""
        out = subprocess.run(
            ["cistern", "jobs", "--json"], capture_output=True, text=True, check=True
        ).stdout
        return {job["name"]: job["arena_bytes"] for job in json.loads(out)}

    def test_losses_are_those_of_plain_torch_with_one_base(self) -> None:
        warnings.simplefilter("ignore", UserWarning)
        plain = models.bf16(models.llama).eval()
        self.attach(copy.deepcopy(plain).requires_grad_(False), "base").close()
        self.addCleanup(self.remove, "policy")  # Before its base.
        twin = adapted("lora", copy.deepcopy(plain)).eval()
        store = self.attach(copy.deepcopy(twin), "policy", base="base")
        before = self.charged()
        reader = ct.reader("base")
        self.addCleanup(reader.close)
        reference, version = empty(models.llama), reader.next()
        version.assign(reference)
        optimizer = store.optimizer(lr=1e-2)
        for _ in range(N_STEPS):
            pairs = models.tokens(8)
            models.copy_weights(store, twin)
            ours = dpo_loss(store.model, reference, pairs)
            ours.backward()
            theirs = dpo_loss(twin, plain, pairs)
            self.assertTrue(torch.equal(ours, theirs), f"loss {ours}, plain {theirs}")
            optimizer.step()
            version.check()
        self.assertEqual(self.charged(), before)
        one_base = 2 * sum(p.numel() for p in plain.parameters())
        self.assertLess(sum(before.values()), 2 * one_base)
