# SPDX-License-Identifier: Apache-2.0
"""Models that are nearly LLaMA: what ranks compute is what one computes, or the model is refused in words."""

import copy
import unittest
from typing import Any

import torch
import transformers
from cistern.torch import parallel
from gloo import run_ranks
from test_parallel_models import batch, compare, config, model_of
from torch import nn


def same_as_one_rank(modes: list[str], further: dict[str, Any]) -> None:
    for mode in modes:
        compare("Llama", mode, parallel.make_mesh(mode), {}, **further)


def with_checkpoints() -> None:
    """Compare the gradients of a model that recomputes its blocks."""
    for mode in ("sequence", "3d"):
        ours = parallel.shard(model_of("Llama"), parallel.make_mesh(mode), mode)
        again = copy.deepcopy(ours)
        again.gradient_checkpointing_enable()
        again.train()
        for model in (ours, again):
            model(**batch(0)).loss.backward()
        for (name, mine), theirs in zip(ours.named_parameters(), again.parameters(), strict=True):
            assert torch.equal(mine.grad.to_local(), theirs.grad.to_local()), (mode, name)


def said_by(call: Any, *arguments: Any, **options: Any) -> str:
    try:
        call(*arguments, **options)
    except (TypeError, ValueError, IndexError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def refused(kind: str, mode: str, further: dict[str, Any]) -> str:
    model = getattr(transformers, kind + "ForCausalLM")(config(kind, **further))
    return said_by(parallel.shard, model, parallel.make_mesh(mode), mode)


def wrong_ids() -> list[str]:
    model = parallel.shard(model_of("Llama"), parallel.make_mesh("1d"), "1d")
    said = []
    for name, value in (("input_ids", 56), ("input_ids", -1), ("labels", 56), ("labels", -1)):
        changed = {key: x.clone() for key, x in batch(0).items()}
        changed[name][0, 5] = value
        said.append(said_by(model, **changed))
    return said


class Kinds(unittest.TestCase):
    def test_the_row_of_padding_has_no_gradient(self) -> None:
        run_ranks(4, same_as_one_rank, ["1d", "zero3", "3d"], {"pad_token_id": 7})

    def test_blocks_that_are_recomputed(self) -> None:
        run_ranks(4, with_checkpoints)

    def test_ids_and_labels_that_the_vocabulary_does_not_have_raise_in_all_ranks(self) -> None:
        for said in run_ranks(2, wrong_ids):
            for text in said:
                self.assertRegex(text, "(Index|Runtime)Error: .*index.* out of (range|bounds)")

    def test_norms_tables_and_plans_of_other_kinds_are_refused(self) -> None:
        norm = run_ranks(1, refused, "Qwen3Next", "1d", {})[0]
        self.assertRegex(norm, "TypeError: cistern: .* no (mode can divide|linear layer)")
        table = run_ranks(1, refused, "Gemma", "1d", {})[0]
        self.assertRegex(table, "TypeError: cistern: .* no mode can divide")
        packed = run_ranks(1, refused, "Glm4", "1d", {"pad_token_id": 0})[0]
        self.assertIn("TypeError: cistern: the plan of the model has no linear layer", packed)

    def test_norms_are_tried_not_known_by_their_names(self) -> None:
        from cistern.torch.parallel.kinds import eps_of_rms_norm
        from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
        from transformers.models.llama.modeling_llama import LlamaRMSNorm

        for device in ("cpu", "meta"):
            with torch.device(device):
                self.assertEqual(eps_of_rms_norm("n", LlamaRMSNorm(8, 1e-3)), 1e-3)
                with self.assertRaisesRegex(TypeError, "'n' is a GemmaRMSNorm, which does not"):
                    eps_of_rms_norm("n", GemmaRMSNorm(8, 1e-3))
        self.assertEqual(eps_of_rms_norm("n", nn.RMSNorm(8, eps=1e-3)), 1e-3)


if __name__ == "__main__":
    unittest.main()
