# SPDX-License-Identifier: Apache-2.0
"""Every causal language model of transformers that a common tiny configuration builds.

Losses have the bits of plain torch. So have gradients, except in models of ROUNDED: a tensor that
several modules use gets the sum of their gradients in another order.
"""

import copy
import os
import unittest
from typing import Any

import cistern.torch as ct
import models
import numpy as np
import torch
import transformers
from cistern import State
from models import TorchCase
from torch import nn
from transformers import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

ROUNDED = {"xlm"}
SLOW = {"falcon_h1"}
MOST_ELEMENTS = 3_000_000

# Each architecture takes the names that it knows.
LAYERS = (
    "num_hidden_layers",
    "n_layer",
    "num_layers",
    "n_layers",
    "encoder_layers",
    "decoder_layers",
)
HEADS = (
    "num_attention_heads", "num_key_value_heads", "n_head", "num_heads", "n_heads",
    "encoder_attention_heads", "decoder_attention_heads",
)  # fmt: skip
WIDTHS = (
    "hidden_size", "n_embd", "d_model", "word_embed_proj_dim", "emb_dim", "embedding_size",
    "attention_hidden_size", "moe_intermediate_size",
)  # fmt: skip
INNER = ("intermediate_size", "ffn_dim", "encoder_ffn_dim", "decoder_ffn_dim")
EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")
OPTIONS: dict[str, Any] = {
    **dict.fromkeys((*LAYERS, *HEADS), 2),
    **dict.fromkeys(WIDTHS, 32),
    **dict.fromkeys((*INNER, "n_positions", "max_position_embeddings"), 64),
    **dict.fromkeys(EXPERTS, 4),
    "vocab_size": models.VOCABULARY,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "num_experts_per_tok": 2,
    "first_k_dense_replace": 1,
    "head_dim": 16,
    "rotary_dim": 8,
    "state_size": 8,
    "is_decoder": True,
}


def loss_of(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    """Return the loss. Some models draw random numbers from numpy."""
    np.random.seed(1)
    return models.loss_of(model, batch)


def built(kind: str, batch: torch.Tensor) -> nn.Module | None:
    """Return the model, or None if it is too large, or plain torch cannot train it so."""
    make = getattr(transformers, MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[kind])
    try:
        config = CONFIG_MAPPING[kind](**OPTIONS)
        with torch.device("meta"):
            n = sum(p.numel() for p in make(copy.deepcopy(config)).parameters())
        if n > MOST_ELEMENTS:
            return None
        model = models.bf16(lambda: make(config))
        loss = loss_of(copy.deepcopy(model), batch)
        loss.backward()
    except Exception:  # noqa: BLE001 (each model has its own reasons)
        return None
    return model if loss.isfinite() else None


@unittest.skipIf(os.environ.get("CST_TEST_SPARSE"), "a sparse run: this takes minutes")
class Architectures(TorchCase):
    def test_all(self) -> None:
        compared = []
        for kind in sorted(set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES) - SLOW):
            batch = models.tokens()
            model = built(kind, batch)
            if model is None:
                continue
            with self.subTest(kind):
                self.compare(kind, model, batch)
                compared.append(kind)
        print(f"{len(compared)} architectures:", *compared)
        self.assertGreater(len(compared), 80)

    def compare(self, kind: str, model: nn.Module, batch: torch.Tensor) -> None:
        twin = copy.deepcopy(model)
        store = self.attach(model)
        optimizer = store.optimizer(lr=1e-2)
        for _ in range(2):
            models.copy_weights(store, twin)
            random = torch.get_rng_state()
            ours = loss_of(model, batch)
            ours.backward()
            optimizer.step()
            torch.set_rng_state(random)
            plain = loss_of(twin, batch)
            plain.backward()
            self.assertTrue(torch.equal(ours, plain), f"{kind}: loss {ours}, plain {plain}")
            self.compare_all_gradients(twin, store, 0.01 if kind in ROUNDED else 0.0)
        store.close(remove=True)

    def compare_all_gradients(self, twin: nn.Module, store: ct.Store, tolerance: float) -> None:
        """Compare to a part of the largest gradient of the whole model."""
        grads = {n: p.grad.float() for n, p in twin.named_parameters() if p.grad is not None}
        bound = tolerance * max(grad.abs().max() for grad in grads.values())
        for name, grad in grads.items():
            ours = store.read(name, State.GRAD).float()
            self.assertLessEqual((ours - grad).abs().max(), bound, f"gradient of {name}")
