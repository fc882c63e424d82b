#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""GPT-2 by transformers, and adapters by peft, for tests/outside/check.sh.

  transformers_gpt2.py make DIR          save a small model with random weights, which bf16 has exactly, and tokens (uint16)
  transformers_gpt2.py logits DIR TOKENS LOGITS TOLERANCE [ADAPTERS]
                                         compare the logits of the model in DIR, opened by AutoModelForCausalLM, with the file
                                         LOGITS (fp32); ADAPTERS: a directory that PeftModel opens
"""
import sys
import warnings

import numpy as np
import torch
import transformers

warnings.filterwarnings("ignore")
CONTEXT, VOCAB = 32, 777


def make(directory):
    torch.manual_seed(5)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=VOCAB, n_positions=CONTEXT, n_embd=64, n_layer=2, n_head=4,
                                                                 initializer_range=0.2, bos_token_id=None, eos_token_id=None))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter)).copy_(parameter.bfloat16().float())
    model.save_pretrained(directory)
    text = [1]
    rng = np.random.default_rng(7)
    for _ in range(20000):
        text.append((text[-1] * 31 + 7) % VOCAB if rng.random() < 0.8 else int(rng.integers(VOCAB)))
    np.array(text, "<u2").tofile(f"{directory}/tokens")


def compare(directory, tokens, file, tolerance, adapters=None):
    model = transformers.AutoModelForCausalLM.from_pretrained(directory).float()
    if adapters is not None:
        import peft
        model = peft.PeftModel.from_pretrained(model, adapters)
    model.eval()
    text = torch.tensor(np.fromfile(tokens, "<u2")[:CONTEXT].astype(int))[None]
    with torch.no_grad():
        want = model(text).logits[0].numpy()
    has = np.fromfile(file, "<f4").reshape(want.shape)
    worst = np.abs(has - want).max() / np.abs(want).max()
    print(f"{adapters or directory}: the logits differ by {worst:.2e} of the largest, {tolerance} are allowed")
    sys.exit(0 if worst <= float(tolerance) else 1)


if __name__ == "__main__":
    {"make": make, "logits": compare}[sys.argv[1]](*sys.argv[2:])
