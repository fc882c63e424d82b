#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""GPT-2 in numpy, as in the files of Hugging Face, for tests/e2e/gpt2.sh: an implementation that shares nothing with cistern.

  gpt2.py make DIR PREFIX   write a small model with random weights to DIR: config.json, two model files with their index, and
                            tokens (uint16). The names begin with PREFIX.
  gpt2.py logits DIR TOKENS LOGITS TOLERANCE
                            compare the logits of the model in DIR for the first tokens with the file LOGITS (fp32); if DIR has
                            adapters in PEFT's layout, they are applied
"""
import glob
import json
import os
import struct
import sys

import numpy as np

LAYERS, HEADS, WIDTH, CONTEXT, VOCAB = 2, 4, 64, 32, 777
TYPES = {"F32": "<f4", "F16": "<f2"}


def write_file(path, tensors):
    header, data = {}, b""
    for name, value in tensors.items():
        kind = {"<f4": "F32", "<f2": "F16"}[value.dtype.str]
        header[name] = {"dtype": kind, "shape": list(value.shape), "data_offsets": [len(data), len(data) + value.nbytes]}
        data += value.tobytes()
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


def read_file(path):
    with open(path, "rb") as file:
        data = file.read()
    n, = struct.unpack("<Q", data[:8])
    tensors = {}
    for name, entry in json.loads(data[8:8 + n]).items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            raw = data[8 + n + begin:8 + n + end]
            if entry["dtype"] == "BF16":
                value = (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32)
            else:
                value = np.frombuffer(raw, TYPES[entry["dtype"]]).astype(np.float32)
            tensors[name.removeprefix("base_model.model.").removeprefix("transformer.")] = value.reshape(entry["shape"])
    return tensors


def shapes():
    d = WIDTH
    out = {"wte.weight": (VOCAB, d), "wpe.weight": (CONTEXT, d)}
    for i in range(LAYERS):
        for name, shape in (("ln_1.weight", (d,)), ("ln_1.bias", (d,)), ("attn.c_attn.weight", (d, 3 * d)), ("attn.c_attn.bias", (3 * d,)),
                            ("attn.c_proj.weight", (d, d)), ("attn.c_proj.bias", (d,)), ("ln_2.weight", (d,)), ("ln_2.bias", (d,)),
                            ("mlp.c_fc.weight", (d, 4 * d)), ("mlp.c_fc.bias", (4 * d,)), ("mlp.c_proj.weight", (4 * d, d)),
                            ("mlp.c_proj.bias", (d,))):
            out[f"h.{i}.{name}"] = shape
    return out | {"ln_f.weight": (d,), "ln_f.bias": (d,)}


def make(directory, prefix):
    rng = np.random.default_rng(7)
    tensors, half = {}, len(shapes()) // 2
    for name, shape in shapes().items():
        value = rng.standard_normal(shape) * (0.3 if len(shape) == 1 else 0.15) + ("ln" in name and "weight" in name)
        # Numbers that bf16 has, so that the weights in training are those of the file.
        value = (value.astype("<f4").view("<u4") & 0xFFFF0000).view("<f4")
        tensors[prefix + name] = value.astype("<f2") if name.endswith("c_fc.bias") else value
    tensors["lm_head.weight"] = tensors[prefix + "wte.weight"]
    tensors[prefix + "h.0.attn.bias"] = np.tril(np.ones((1, 1, CONTEXT, CONTEXT), "<f4"))
    names = list(tensors)
    files = {"model-00001-of-00002.safetensors": names[:half], "model-00002-of-00002.safetensors": names[half:]}
    for file, part in files.items():
        write_file(f"{directory}/{file}", {name: tensors[name] for name in part})
    with open(f"{directory}/model.safetensors.index.json", "w") as file:
        json.dump({"metadata": {}, "weight_map": {name: f for f, part in files.items() for name in part}}, file)
    with open(f"{directory}/config.json", "w") as file:
        json.dump({"model_type": "gpt2", "activation_function": "gelu_new", "layer_norm_epsilon": 1e-05, "n_embd": WIDTH, "n_head": HEADS,
                   "n_inner": None, "n_layer": LAYERS, "n_positions": CONTEXT, "vocab_size": VOCAB, "resid_pdrop": 0.1}, file)
    # A text with something to learn: each token often follows from the one before it.
    text = [1]
    for _ in range(20000):
        text.append((text[-1] * 31 + 7) % VOCAB if rng.random() < 0.8 else int(rng.integers(VOCAB)))
    np.array(text, "<u2").tofile(f"{directory}/tokens")


def norm(x, w, b):
    mean, var = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) / np.sqrt(var + 1e-5) * w + b


def logits(w, tokens, scale):
    w = {name: value.astype(np.float64) for name, value in w.items()}
    n, d = len(tokens), WIDTH // HEADS
    x = w["wte.weight"][tokens] + w["wpe.weight"][:n]
    for i in range(LAYERS):
        def linear(x, name, at=f"h.{i}."):
            y = x @ w[f"{at}{name}.weight"] + w[f"{at}{name}.bias"]
            if f"{at}{name}.lora_A.weight" in w:
                y = y + scale * (x @ w[f"{at}{name}.lora_A.weight"].T @ w[f"{at}{name}.lora_B.weight"].T)
            return y
        y = linear(norm(x, w[f"h.{i}.ln_1.weight"], w[f"h.{i}.ln_1.bias"]), "attn.c_attn")
        q, k, v = (part.reshape(n, HEADS, d).transpose(1, 0, 2) for part in np.split(y, 3, axis=1))
        scores = q @ k.transpose(0, 2, 1) / np.sqrt(d) + np.triu(np.full((n, n), -np.inf), 1)
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        attention = (scores / scores.sum(-1, keepdims=True) @ v).transpose(1, 0, 2).reshape(n, WIDTH)
        x = x + linear(attention, "attn.c_proj")
        y = linear(norm(x, w[f"h.{i}.ln_2.weight"], w[f"h.{i}.ln_2.bias"]), "mlp.c_fc")
        y = 0.5 * y * (1 + np.tanh(np.sqrt(2 / np.pi) * (y + 0.044715 * y ** 3)))
        x = x + linear(y, "mlp.c_proj")
    return norm(x, w["ln_f.weight"], w["ln_f.bias"]) @ w["wte.weight"].T


def compare(directory, tokens, file, tolerance):
    weights, scale = {}, 0.0
    for path in glob.glob(f"{directory}/model*.safetensors"):
        weights |= read_file(path)
    if os.path.exists(f"{directory}/adapter_config.json"):
        with open(f"{directory}/adapter_config.json", encoding="ascii") as config:
            adapter = json.load(config)
        scale = adapter["lora_alpha"] / adapter["r"]
        weights |= read_file(f"{directory}/adapter_model.safetensors")
    want = logits(weights, np.fromfile(tokens, "<u2")[:CONTEXT].astype(int), scale)
    has = np.fromfile(file, "<f4").reshape(want.shape)
    worst = np.abs(has - want).max() / np.abs(want).max()
    print(f"{directory}: the logits differ by {worst:.2e} of the largest, {tolerance} are allowed")
    sys.exit(0 if worst <= float(tolerance) else 1)


if __name__ == "__main__":
    {"make": make, "logits": compare}[sys.argv[1]](*sys.argv[2:])
