# SPDX-License-Identifier: Apache-2.0
"""Tiny models, and a comparison of a store with plain torch."""

from __future__ import annotations

import copy
import os
import unittest
import warnings
from collections.abc import Callable
from typing import Any

import cistern.torch as ct
import torch
import transformers
from cistern import Client, CstError, State, Status
from torch import nn

#: Where models compute: "cuda" on a machine with a GPU (tests/gpu/run, stage torch).
DEVICE = os.environ.get("CISTERN_TEST_DEVICE", "cpu")

VOCABULARY = 101
SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def _config(kind: str, **further: Any) -> Any:
    return getattr(transformers, kind + "Config")(**(SHAPE | further))


def gpt2() -> nn.Module:
    config = transformers.GPT2Config(
        n_layer=3, n_head=2, n_embd=32, vocab_size=VOCABULARY, n_positions=32,
        bos_token_id=1, eos_token_id=2, pad_token_id=0,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config)


def llama(**further: Any) -> nn.Module:
    return transformers.LlamaForCausalLM(_config("Llama", **further))


def opt() -> nn.Module:
    return transformers.OPTForCausalLM(
        _config("OPT", ffn_dim=64, word_embed_proj_dim=32, dropout=0.1)
    )


def qwen2() -> nn.Module:
    return transformers.Qwen2ForCausalLM(_config("Qwen2", tie_word_embeddings=True))


def qwen3() -> nn.Module:
    return transformers.Qwen3ForCausalLM(_config("Qwen3", head_dim=16))


def gemma() -> nn.Module:
    return transformers.GemmaForCausalLM(_config("Gemma", head_dim=16))


def mixtral() -> nn.Module:
    config = _config(
        "Mixtral", num_local_experts=4, num_experts_per_tok=2, output_router_logits=True
    )
    return transformers.MixtralForCausalLM(config)


def bert() -> nn.Module:
    return transformers.BertForMaskedLM(_config("Bert"))


def albert() -> nn.Module:
    return transformers.AlbertForMaskedLM(_config("Albert", embedding_size=16))


def t5() -> nn.Module:
    config = transformers.T5Config(
        vocab_size=VOCABULARY, d_model=32, d_kv=16, d_ff=64, num_layers=2, num_heads=2,
        decoder_start_token_id=0, pad_token_id=0, eos_token_id=1,
    )  # fmt: skip
    return transformers.T5ForConditionalGeneration(config)


def bf16(make: Callable[[], nn.Module]) -> nn.Module:
    """Return a model with bf16 parameters and the buffers that it computes in fp32."""
    model = make()
    for parameter in model.parameters():
        parameter.data = parameter.data.to(torch.bfloat16)
    return model.train().to(DEVICE)


def with_fp32_norms(make: Callable[[], nn.Module]) -> nn.Module:
    """Return a model in bf16 whose layer norms have fp32 weights, and compute in fp32."""
    model = bf16(make)
    for norm in model.modules():
        if isinstance(norm, nn.LayerNorm):
            norm.float()
            norm.register_forward_pre_hook(lambda _, args: (args[0].float(),))
            norm.register_forward_hook(lambda _, args, output: output.bfloat16())
    return model


def tokens(n: int = 2) -> torch.Tensor:
    return torch.randint(3, VOCABULARY, (n, 12)).to(DEVICE)


def loss_of(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = model(input_ids=batch, labels=batch).loss
    return loss


def square(model: nn.Module, _: torch.Tensor) -> torch.Tensor:
    x = torch.linspace(-1, 1, 12).reshape(3, 4).to(DEVICE, torch.bfloat16)
    loss: torch.Tensor = model(x).float().square().sum()
    return loss


def bits(tensor: torch.Tensor) -> bytes:
    """Return the memory of ``tensor``, in the order of its elements."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def copy_weights(store: ct.Store, twin: nn.Module) -> None:
    """Give the plain model the weights of the store, and no gradients."""
    for name, parameter in twin.named_parameters():
        parameter.data.copy_(store.read(name))
        parameter.grad = None


class TorchCase(unittest.TestCase):
    """Each test has jobs of its own, which are removed after it."""

    def setUp(self) -> None:
        torch.manual_seed(1)
        torch.set_num_threads(1)
        warnings.simplefilter("ignore", FutureWarning)
        self.admin = Client()
        self.addCleanup(self.admin.close)
        self.name = self.id().rpartition(".")[2][:60]

    def attach(self, model: nn.Module, name: str = "", **options: Any) -> ct.Store:
        name = name or self.name
        self.addCleanup(self.remove, name)
        store = ct.attach(model, name, **{"device": DEVICE} | options)
        self.addCleanup(store.job.close)
        return store

    def remove(self, name: str) -> None:
        try:
            self.admin.remove_job(name)
        except CstError as error:
            self.assertEqual(error.status, Status.ENOTFOUND)

    def check_alike(self, got: Any, wanted: Any) -> None:
        """Losses and norms by step are equal, but for the order of sums."""
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=0)

    def twins(self, make: Callable[[], nn.Module], **options: Any) -> tuple[nn.Module, ct.Store]:
        """Return a plain model, and the store of an equal one."""
        model = bf16(make)
        twin = copy.deepcopy(model)
        return twin, self.attach(model, **options)

    def least_pool(self, make: Callable[[], nn.Module], chunk_elems: int) -> int:
        """Return the size of the smallest pool with which the model runs."""
        store = self.attach(bf16(make), "least", chunk_elems=chunk_elems)
        store.close(remove=True)
        return sum(2 * c.chunk_elems * c.min_blocks for c in store.plan.classes)

    def compare_steps(
        self,
        twin: nn.Module,
        store: ct.Store,
        n_steps: int = 3,
        micro_batches: int = 1,
        tolerance: float = 0.0,
        loss: Callable[[nn.Module, torch.Tensor], torch.Tensor] = loss_of,
    ) -> None:
        """Train, and compare losses and gradients of all steps with those of plain torch."""
        optimizer = store.optimizer(lr=1e-2, clip_norm=1.0)
        for _ in range(n_steps):
            copy_weights(store, twin)
            for _ in range(micro_batches):
                batch, random = tokens(), store.device.random_state()
                ours = loss(store.model, batch)
                ours.backward()
                store.device.set_random_state(random)
                theirs = loss(twin, batch)
                theirs.backward()
                self.assertTrue(torch.equal(ours, theirs), f"loss {ours}, plain {theirs}")
            optimizer.step()
            if micro_batches == 1:
                self.compare_gradients(twin, store, tolerance)

    def compare_gradients(self, twin: nn.Module, store: ct.Store, tolerance: float) -> None:
        for name, parameter in twin.named_parameters():
            if not parameter.requires_grad:
                continue
            ours = store.read(name, State.GRAD)
            plain = torch.zeros_like(ours) if parameter.grad is None else parameter.grad.cpu()
            if tolerance == 0:
                self.assertTrue(torch.equal(ours, plain), f"gradient of {name}")
            else:
                error = (ours.float() - plain.float()).abs().max()
                self.assertLessEqual(error, tolerance * plain.abs().max(), f"gradient of {name}")
