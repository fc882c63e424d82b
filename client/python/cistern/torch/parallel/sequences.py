# SPDX-License-Identifier: Apache-2.0
"""Models of transformers whose ranks share each sequence: their attention, and their batches.

    group = dist.new_group(...)
    parallel.share_sequences(model, group, "ring")
    loss = model(**parallel.part_of_batch(batch, group, "ring")).loss

All layers but attention see tokens one by one, so that each rank computes them for its own. A loss is
this rank's part of that of the batch: the sum of the ranks is the loss, and their gradients are summed,
as a store does with the gradients of data-parallel ranks (``grad_scale=1``).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from cistern.torch.parallel.collectives import all_to_all
from cistern.torch.parallel.ring import positions, ring_attention

KINDS = ("ring", "ulysses")
_NAME = "cistern_"  # With which names of attentions begin.
_numbers = itertools.count()


class _Exchange(torch.autograd.Function):
    """Gives each rank the part of dimension ``cut`` that is its own, with all of dimension ``joined``."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, cut: int, joined: int, group: Any) -> torch.Tensor:
        ctx.rest = cut, joined, group
        return _exchange(x, cut, joined, group)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        cut, joined, group = ctx.rest
        return _exchange(grad, joined, cut, group), None, None, None


def _exchange(x: torch.Tensor, cut: int, joined: int, group: dist.ProcessGroup) -> torch.Tensor:
    parts = torch.stack(x.chunk(group.size(), cut))
    return torch.cat(list(all_to_all(parts, group)), joined)


def ulysses_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    group: dist.ProcessGroup,
    *,
    scale: float | None = None,
    causal: bool = True,
) -> torch.Tensor:
    """Return the attention of this rank's queries, [batch, heads, rows, d], to all keys.

    Rank i has the i-th part of the sequence. Each has some of the heads while they attend, so that q,
    k, v and the result travel, and their gradients: 8 (P - 1) / P^2 M h elements. Heads of keys that
    are fewer than the ranks travel as copies. ValueError: heads do not divide.
    """
    n = group.size()
    n_heads, n_keys = q.shape[1], k.shape[1]
    if n_keys < n and n % n_keys == 0:
        k, v = (x.repeat_interleave(n // n_keys, 1) for x in (k, v))
    if n_heads % n or k.shape[1] % n:
        raise ValueError(
            f"cistern: {n_heads} heads of queries and {n_keys} of keys cannot be shared by {n} ranks:"
            " both must be multiples of the number of ranks; 'ring' has no such rule"
        )
    q, k, v = (_Exchange.apply(x, 1, 2, group) for x in (q, k, v))
    out = nn.functional.scaled_dot_product_attention(
        q, k, v, is_causal=causal, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
    )
    result: torch.Tensor = _Exchange.apply(out, 2, 1, group)
    return result


def share_sequences(model: Any, group: dist.ProcessGroup, kind: str) -> None:
    """Let the attention of ``model`` be that of sequences which the ranks of ``group`` share.

    ValueError: ``kind`` is none of ``KINDS``. NotImplementedError, when the model runs: its attention
    has dropout, a window, or another thing that only one rank could compute.
    """
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    _check_kind(kind)
    attend: Callable[..., torch.Tensor] = {"ring": ring_attention, "ulysses": ulysses_attention}[
        kind
    ]

    def attention(
        module: nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        dropout: float = 0.0,
        scaling: float | None = None,
        is_causal: bool | None = None,
        **more: Any,
    ) -> tuple[torch.Tensor, None]:
        _check(module, attention_mask, dropout, more)
        causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
        out = attend(query, key, value, group, scale=scaling, causal=causal)
        return out.transpose(1, 2).contiguous(), None

    name = f"{_NAME}{kind}_{next(_numbers)}"
    ALL_ATTENTION_FUNCTIONS.register(name, attention)
    model.config._attn_implementation = name


def is_shared(attention: Any) -> bool:
    """Return whether the implementation ``attention`` of a model is one of ``share_sequences``."""
    return isinstance(attention, str) and attention.startswith(_NAME)


def _check_kind(kind: str) -> None:
    if kind not in KINDS:
        raise ValueError(f"cistern: sequences are shared by {' or '.join(KINDS)}, not '{kind}'")


def _check(module: nn.Module, mask: torch.Tensor | None, dropout: float, more: Any) -> None:
    asked = [
        name for name in ("sliding_window", "softcap", "s_aux", "position_bias") if _has(more, name)
    ]
    asked += ["dropout"] if dropout else []
    asked += ["attention_mask"] if mask is not None else []
    if asked:
        raise NotImplementedError(
            f"cistern: {type(module).__name__} asks for {', '.join(asked)}, which attention over"
            " sequences that ranks share does not have"
        )


def _has(more: Mapping[str, Any], name: str) -> bool:
    return more.get(name) is not None


def part_of_batch(
    batch: Mapping[str, torch.Tensor], group: dist.ProcessGroup, kind: str
) -> dict[str, Any]:
    """Return this rank's part of ``batch``: of ``input_ids``, ``labels``, and where they are.

    All ranks have the same batch. Labels are shifted here, since the next token can be another
    rank's. ValueError: sequences are padded, have a length that the ranks cannot share, or ``kind`` is
    none of ``KINDS``.
    """
    _check_kind(kind)
    mask = batch.get("attention_mask")
    if mask is not None and not bool(mask.all()):
        raise ValueError("cistern: sequences that ranks share cannot be padded")
    ids = batch["input_ids"]
    at = _own(group, kind, ids.shape[1]).to(ids.device)
    part: dict[str, Any] = {
        "input_ids": ids[:, at],
        "position_ids": at.unsqueeze(0),
        "use_cache": False,
    }
    if "labels" in batch:
        shifted = nn.functional.pad(batch["labels"], (0, 1), value=-100)[:, 1:]
        part["labels"] = part["shift_labels"] = shifted[:, at].contiguous()
        part["num_items_in_batch"] = (shifted != -100).sum()
    return part


def _own(group: dist.ProcessGroup, kind: str, length: int) -> torch.Tensor:
    """Return the positions of this rank's tokens."""
    n, rank = group.size(), group.rank()
    if kind == "ring":
        return positions(rank, n, length)
    if length % n:
        raise ValueError(
            f"cistern: a sequence of {length} tokens cannot be shared by {n} ranks: give a multiple of {n}"
        )
    return torch.arange(rank * (length // n), (rank + 1) * (length // n))
