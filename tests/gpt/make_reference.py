#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Writes reference_tiny.bin: the results of PyTorch for the tiny model of reference.c.

The model is that of client/gpt/model.h in float32. Its weights are rounded to bf16, as in the store. Gradients are rounded
to bf16 before AdamW, which keeps fp32 master weights. Initial weights, text and batches come from the counter-based generator
of client/gpt/rng.h, which is implemented here again. It uses integers until the last step, so that the bits are the same.

The file is little-endian: 8 bytes "GPTREF1\\0", u64 number of parameters, 20 float64 losses, then all gradients of step 1
as bf16, tensors in order of declaration. Run this program with PyTorch 1.13 (Debian: python3-torch), without arguments.
"""
import math
import os
import struct

import numpy as np
import torch
import torch.nn.functional as F

LAYERS, HEADS, WIDTH, CONTEXT, BATCH, VOCAB = 2, 4, 64, 32, 4, 256
STEPS, LR, MIN_LR, WARMUP, DECAY, CLIP = 20, 3e-3, 3e-4, 5, 0.1, 1.0
BETAS, EPS, SEED, TEXT_BYTES = (0.9, 0.95), 1e-8, 1234, 4096
M64 = (1 << 64) - 1


def mix(x):
    x &= M64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & M64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & M64
    return x ^ (x >> 31)


def u64(seed, stream, counter):
    key = mix(seed ^ mix(stream + 0x9E3779B97F4A7C15))
    return mix(key + (counter + 1) * 0x9E3779B97F4A7C15)


def normal(seed, stream, counter):
    words = (u64(seed, stream, 2 * counter), u64(seed, stream, 2 * counter + 1))
    total = sum((w >> s) & 0xFFFF for w in words for s in range(0, 64, 16))
    return np.float32((total - 262140) / 53509.91992145008)


def initial(stream, shape, mean, deviation):
    n = int(np.prod(shape))
    out = np.full(n, np.float32(mean), dtype=np.float32)
    if deviation > 0:
        d = np.float32(deviation)
        for i in range(n):
            out[i] += d * normal(SEED, stream, i)
    return torch.from_numpy(out.reshape(shape))


def bf16(t):
    return t.to(torch.bfloat16).to(torch.float32)


def text():
    """A text with something to learn: words of a small alphabet in a random order."""
    words = [b"chunk ", b"lease ", b"block ", b"arena ", b"trace ", b"grad\n"]
    out = b""
    i = 0
    while len(out) < TEXT_BYTES:
        out += words[u64(99, 7, i) % len(words)]
        i += 1
    return out[:TEXT_BYTES]


def batch(data, step):
    places = len(data) - CONTEXT
    at = [u64(SEED, 1 << 40, step * BATCH + i) % places for i in range(BATCH)]
    x = torch.tensor([list(data[a:a + CONTEXT]) for a in at])
    y = torch.tensor([list(data[a + 1:a + 1 + CONTEXT]) for a in at])
    return x, y


def declare():
    """name -> (shape, mean, deviation, decays), in order of declaration."""
    residual = float(np.float32(0.02 / math.sqrt(2 * LAYERS)))
    d = WIDTH
    t = {"wte": ((VOCAB, d), 0, 0.02, False), "wpe": ((CONTEXT, d), 0, 0.01, False)}
    for i in range(LAYERS):
        p = f"h{i}."
        t[p + "ln1.w"], t[p + "ln1.b"] = ((d,), 1, 0, False), ((d,), 0, 0, False)
        t[p + "qkv.w"], t[p + "qkv.b"] = ((d, 3 * d), 0, 0.02, True), ((3 * d,), 0, 0, False)
        t[p + "proj.w"], t[p + "proj.b"] = ((d, d), 0, residual, True), ((d,), 0, 0, False)
        t[p + "ln2.w"], t[p + "ln2.b"] = ((d,), 1, 0, False), ((d,), 0, 0, False)
        t[p + "fc.w"], t[p + "fc.b"] = ((d, 4 * d), 0, 0.02, True), ((4 * d,), 0, 0, False)
        t[p + "fcproj.w"], t[p + "fcproj.b"] = ((4 * d, d), 0, residual, True), ((d,), 0, 0, False)
    t["lnf.w"], t["lnf.b"] = ((d,), 1, 0, False), ((d,), 0, 0, False)
    return t


def forward(w, x, y):
    d = WIDTH
    mask = torch.full((CONTEXT, CONTEXT), float("-inf")).triu(1)
    h = w["wte"][x] + w["wpe"]
    for i in range(LAYERS):
        p = f"h{i}."
        n = F.layer_norm(h, (d,), w[p + "ln1.w"], w[p + "ln1.b"])
        q, k, v = (n @ w[p + "qkv.w"] + w[p + "qkv.b"]).split(d, dim=2)
        q, k, v = (t.view(BATCH, CONTEXT, HEADS, d // HEADS).transpose(1, 2) for t in (q, k, v))
        a = (q @ k.transpose(2, 3) / math.sqrt(d // HEADS) + mask).softmax(3) @ v
        a = a.transpose(1, 2).reshape(BATCH, CONTEXT, d)
        h = h + (a @ w[p + "proj.w"] + w[p + "proj.b"])
        n = F.layer_norm(h, (d,), w[p + "ln2.w"], w[p + "ln2.b"])
        f = F.gelu(n @ w[p + "fc.w"] + w[p + "fc.b"], approximate="tanh")
        h = h + (f @ w[p + "fcproj.w"] + w[p + "fcproj.b"])
    logits = F.layer_norm(h, (d,), w["lnf.w"], w["lnf.b"]) @ w["wte"].t()
    return F.cross_entropy(logits.reshape(-1, VOCAB), y.reshape(-1))


def rate(step):
    if step < WARMUP:
        return LR * (step + 1) / WARMUP
    part = (step - WARMUP) / (STEPS - WARMUP)
    return MIN_LR + 0.5 * (LR - MIN_LR) * (1 + math.cos(part * math.pi))


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    tensors = declare()
    master = {}
    for number, (name, (shape, mean, deviation, _)) in enumerate(tensors.items()):
        master[name] = initial(number, shape, mean, deviation)
    groups = [{"params": [master[n] for n in tensors if tensors[n][3] == decays],
               "weight_decay": DECAY if decays else 0.0} for decays in (True, False)]
    optimizer = torch.optim.AdamW(groups, lr=LR, betas=BETAS, eps=EPS)
    data = text()
    losses, first = [], None
    for step in range(STEPS):
        weights = {n: bf16(m.detach()).requires_grad_() for n, m in master.items()}
        loss = forward(weights, *batch(data, step))
        loss.backward()
        losses.append(float(loss))
        grads = {n: bf16(weights[n].grad) for n in tensors}
        if step == 0:
            first = grads
        norm = math.sqrt(sum(float((g.double() ** 2).sum()) for g in grads.values()))
        clip = min(1.0, CLIP / (norm + 1e-6))
        for n, m in master.items():
            m.grad = grads[n] * clip
        for g in optimizer.param_groups:
            g["lr"] = rate(step)
        with torch.no_grad():
            optimizer.step()
    n_params = sum(m.numel() for m in master.values())
    bits = np.concatenate([(g.numpy().reshape(-1).view(np.uint32) >> 16).astype("<u2") for g in first.values()])
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "reference_tiny.bin")
    with open(path, "wb") as f:
        f.write(b"GPTREF1\0" + struct.pack("<Q", n_params))
        f.write(struct.pack(f"<{STEPS}d", *losses))
        f.write(bits.tobytes())
    print(f"{path}: {n_params} parameters, loss {losses[0]:.6f} -> {losses[-1]:.6f}")


if __name__ == "__main__":
    main()
