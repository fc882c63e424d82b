# SPDX-License-Identifier: Apache-2.0
"""What each rank has of a batch, which all ranks are given alike.

The loss of a batch is the mean over its labels that count, and so the sum of the losses of its parts, each
times the part of these labels that it has. All ranks see all labels, and need not ask each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from cistern.torch.parallel.sequences import part_of_batch

_IGNORED = -100  #: A label that does not count.
_OF_STAGES = ("input_ids", "attention_mask", "position_ids", "labels")
_OF_CALLS = ("use_cache", "return_dict")  # Which say nothing of the loss.

#: Why the parts of a batch do not have its loss, which is that of a model.
ROUTERS = (
    "cistern: the loss of {0} has a term of its routers (output_router_logits), which is no mean over rows and layers:"
    " set output_router_logits = False, in model.config and in batches, or give tp alone and micro_batches=1"
)


class Share(NamedTuple):
    """What one rank has of a batch."""

    inputs: dict[str, Any]  #: Of the model; tensors have the rows of this rank.
    rows: int  #: Of a micro-batch.
    weights: torch.Tensor  #: What the loss of each micro-batch is multiplied with; fp32.

    def micro_batch(self, i: int) -> dict[str, Any]:
        """Return what the model is given in micro-batch ``i``."""
        rows = slice(i * self.rows, (i + 1) * self.rows)
        return {k: v[rows] if _is_tensor(v) else v for k, v in self.inputs.items()}


class Shares:
    """Divides batches among ``n_data`` ranks, of which this is ``data_rank``, and those of a group.

    ``shifts``: the model predicts the next token, and ignores the first label of each row.
    ``sequence_group`` and ``sequence`` are the ranks that share sequences, and how; None: each has whole ones.
    ``is_pipeline``: there are stages that have no tokens.
    """

    def __init__(
        self,
        n_data: int,
        data_rank: int,
        *,
        shifts: bool,
        is_pipeline: bool = False,
        sequence_group: dist.ProcessGroup | None = None,
        sequence: str = "ring",
    ) -> None:
        self._n_data, self._data_rank = n_data, data_rank
        self._shifts, self._is_pipeline = shifts, is_pipeline
        self._group, self._sequence = sequence_group, sequence

    def of(self, batch: Mapping[str, Any], n: int) -> Share:
        """Return what this rank has of ``batch`` in ``n`` micro-batches.

        If ``batch`` has ``num_items_in_batch``, the labels that count in a larger batch, of which it is a part,
        the loss is its part of that of the larger one.

        ValueError: its rows do not divide, an input has none, or a kind of ranks cannot have it.
        """
        inputs = {k: v for k, v in batch.items() if v is not None and k not in _OF_CALLS}
        said = inputs.pop("num_items_in_batch", None)
        rows = _rows_of(inputs)
        self._check(inputs, rows, n)
        of_micro_batches = self._counts(inputs, rows).reshape(self._n_data, n, -1).sum(-1)
        mine = of_micro_batches[self._data_rank]
        total = float(of_micro_batches.sum() if said is None else said)
        own = slice(
            self._data_rank * rows // self._n_data, (self._data_rank + 1) * rows // self._n_data
        )
        inputs = {k: _with_rows(k, v, rows)[own] if _is_tensor(v) else v for k, v in inputs.items()}
        rows_of_micro = rows // self._n_data // n
        weights = mine.double() / (total or 1.0)  # Of a batch without labels all are 0.
        if self._group is not None:
            inputs = self._tokens(inputs)
            if "labels" in inputs:  # The loss is then a sum.
                weights = torch.full((n,), 1 / total if total else 0.0, dtype=torch.float64)
        for name in ("labels", "shift_labels"):
            if self._group is None and name in inputs:
                inputs[name] = _some_label(inputs[name], mine, rows_of_micro)
        return Share(inputs, rows_of_micro, weights.float())

    def _check(self, inputs: Mapping[str, Any], rows: int, n: int) -> None:
        if rows % (self._n_data * n):
            fits = [k for k in range(1, rows + 1) if rows % (self._n_data * k) == 0]
            other = f", or micro_batches={' or '.join(map(str, fits))}" if fits else ""
            raise ValueError(
                f"cistern: a batch of {rows} rows does not divide into {n} micro-batches of each of"
                f" {self._n_data} data ranks: give a multiple of {self._n_data * n} rows (drop_last=True of a"
                f" loader leaves a smaller last batch out){other}"
            )
        parts = self._n_data * n
        if inputs.get("output_router_logits") and (parts > 1 or self._is_pipeline or self._group):
            raise ValueError(ROUTERS.format("the model"))
        tensors = [name for name, value in inputs.items() if _is_tensor(value)]
        cannot = [name for name in tensors if name not in _OF_STAGES]
        if self._is_pipeline and (cannot or "input_ids" not in tensors or "labels" not in tensors):
            what = f"cannot have '{cannot[0]}'" if cannot else "needs input_ids and labels"
            raise ValueError(
                f"cistern: a pipeline {what}: its stages are given {', '.join(_OF_STAGES)} of a batch"
            )
        odd = [name for name in tensors if name not in ("input_ids", "labels", "attention_mask")]
        if self._group is not None and odd:
            raise ValueError(
                f"cistern: ranks that share sequences (cp) cannot have '{odd[0]}': they are given input_ids,"
                " labels, and an attention_mask without zeros, and say positions themselves"
            )

    def _counts(self, inputs: Mapping[str, Any], rows: int) -> torch.Tensor:
        """Return how many labels of each row count; 1 for each row if there are no labels that can be ignored."""
        shifted: Any = inputs.get("shift_labels")  # Which the model takes in place of labels.
        labels: Any = inputs.get("labels") if shifted is None else shifted
        if not _is_tensor(labels) or labels.is_floating_point():
            return torch.ones(rows, dtype=torch.int64)
        if self._shifts and shifted is None:
            labels = labels[..., 1:]
        counts: torch.Tensor = (labels != _IGNORED).reshape(rows, -1).sum(-1)
        return counts.cpu()

    def _tokens(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Return this rank's tokens of the rows of ``inputs``, with which the loss is a sum."""
        assert self._group is not None
        part = part_of_batch(inputs, self._group, self._sequence)
        rows = part["input_ids"].shape[0]
        part["position_ids"] = part["position_ids"].expand(rows, -1)
        if "labels" in part:
            part["num_items_in_batch"] = 1
        del part["use_cache"]
        others = {k: v for k, v in inputs.items() if not _is_tensor(v)}
        return others | part


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.ndim > 0


def _rows_of(inputs: Mapping[str, Any]) -> int:
    """Return the number of rows of a batch. ValueError: it has none."""
    tensors = {k: v for k, v in inputs.items() if _is_tensor(v)}
    if not tensors:
        raise ValueError(
            "cistern: the batch has no tensors: give input_ids=..., labels=... as to the model"
        )
    first = tensors.get("input_ids", next(iter(tensors.values())))
    return int(first.shape[0])


def _with_rows(name: str, value: torch.Tensor, rows: int) -> torch.Tensor:
    """Return ``value`` with as many rows as the batch. ValueError: it has others."""
    if value.shape[0] == rows:
        return value
    if name == "position_ids" and value.shape[0] == 1:  # Those of each row.
        return value.expand(rows, *value.shape[1:])
    raise ValueError(
        f"cistern: '{name}' has the shape {tuple(value.shape)}, and the batch has {rows} rows: each tensor of a"
        " batch has as many rows"
    )


def _some_label(labels: torch.Tensor, counts: torch.Tensor, rows: int) -> torch.Tensor:
    """Return ``labels`` with one that counts in each micro-batch, since a mean of none is no number.

    Its weight is 0.
    """
    empty = [i for i, n in enumerate(counts.tolist()) if n == 0]
    if not empty or labels.is_floating_point():
        return labels
    labels = labels.clone(memory_format=torch.contiguous_format)
    for i in empty:
        labels[i * rows].reshape(-1)[-1] = 0
    return labels
