# SPDX-License-Identifier: Apache-2.0
"""Divides a model among the ranks of torch.distributed, as is said in a dictionary or a file.

part = ct.parallelize(model, dict(tp=2, pp=2), batch=example)
store = ct.attach(part, "run7")
optimizer = store.optimizer(lr=3e-4)
for batch in loader:
    loss = part.step(**batch)
    optimizer.step()
"""

from __future__ import annotations

import atexit
import copy
import os
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from cistern import checks
from cistern.torch import ending
from cistern.torch.owners import store_of
from cistern.torch.parallel import auto
from cistern.torch.parallel.batches import ROUTERS, Shares
from cistern.torch.parallel.cuts import layers_of
from cistern.torch.parallel.cutting import stage_of
from cistern.torch.parallel.degrees import Degrees, of_file, parse
from cistern.torch.parallel.dispatch import part as dispatched
from cistern.torch.parallel.modes import axes_of, legal_sizes
from cistern.torch.parallel.part import Part, Place, loss_of
from cistern.torch.parallel.recomputation import Recomputed
from cistern.torch.parallel.sequences import is_shared, share_sequences
from cistern.torch.parallel.sharding import shard
from cistern.torch.parallel.tensor import divide
from cistern.torch.parts import from_rank_0
from cistern.torch.shards import is_shard
from cistern.torch.stages import Absent, Divided

_N_TRIED = 16  # Tokens of each of the rows that are tried, at most.


def parallelize(
    model: nn.Module,
    how: str | os.PathLike[str] | Mapping[str, Any] = "auto",
    *,
    batch: Mapping[str, Any],
    dispatch: bool = False,
) -> Any:
    """Divide ``model`` among the ranks of torch.distributed, and return this rank's ``Part``. The model changes.

    All ranks have the same model, and give the same arguments. ``how`` is "auto", a file (a plan, or a job
    file with the section ``parallel``), or a dictionary with these keys:

    - ``dp``, ``pp``, ``cp``, ``tp``: degrees, whose product is the number of ranks; by default 1, and ``dp``
      what is left. Rank ((d pp + p) cp + c) tp + t has part t of the tensors, of stage p, for tokens c of rows d.
    - ``tensor``: how tp ranks divide tensors: a mode of ``MODES``. "1d": as ``divide`` does.
    - ``sequence``: how cp ranks share sequences: "ring" or "ulysses".
    - ``schedule``: one of ``cistern schedule``, such as "1f1b", the default, or "interleaved", in which each
      rank has two stages; or the path of a file that has one.
    - ``micro_batches``: of each data rank in a step; by default 1, or as many as ranks of a pipeline.
    - ``borders``: the numbers of layers before which stages 1, 2, ... begin; by default they have equally many.
    - ``recompute``: of how many layers each stage, in its first ones, repeats the forward pass in the backward
      pass: a number, a list by stage, or True for all.

    ``batch`` is an example of what one process would give the model. Two rows of it are tried, with few
    tokens: the loss of the parts has to be that of the model. ``dispatch``: stages are run by
    whichever worker asks next, without torch.distributed, and ``how`` is what ``dispatch.part`` takes.

    ValueError: the degrees do not fit the ranks or the model, the parts have another loss, or the model is
    divided already, or in a store. RuntimeError:
    torch.distributed is not initialised. Raises what ``stage_of``, ``divide``, ``shard``, ``share_sequences``
    and ``schedules.runtime`` raise.
    """
    checks.instance("model", model, nn.Module, "a torch.nn.Module")
    checks.instance("batch", batch, Mapping, "what one process gives the model, by name,")
    _check_whole(model)
    if dispatch:
        return dispatched(model, how, batch=batch)
    if not (dist.is_available() and dist.is_initialized()):
        raise RuntimeError(
            "cistern: parallelize divides a model among the ranks of torch.distributed: call"
            " torch.distributed.init_process_group() before, under torchrun"
        )
    degrees = parse(_said(model, how, batch), dist.get_world_size())
    atexit.register(_end_groups)
    return _Division(model, degrees, batch).run()


def _check_whole(model: Any) -> None:
    """Raise ValueError if ``model`` is divided already, or in a store."""
    attention = getattr(getattr(model, "config", None), "_attn_implementation", None)
    if (
        isinstance(model, Divided)
        or any(isinstance(module, Absent) for module in model.modules())
        or any(is_shard(parameter) for parameter in model.parameters())
        or is_shared(attention)
    ):
        raise ValueError(
            "cistern: parallelize is given a model that is divided already, or of which an attempt to divide it has"
            " left parts: give it a whole model, made anew, and all degrees in one call"
        )
    store = next((s for p in model.parameters() if (s := store_of(p)) is not None), None)
    if store is not None:
        raise ValueError(
            f"cistern: parallelize is given a model that is in the store of job '{store.job.name}': divide it before"
            " attach, which is given what parallelize returns"
        )


def _end_groups() -> None:
    """End the threads of torch.distributed before Python: one that still frees tensors then aborts the process."""
    if dist.is_initialized() and not ending.has_failed():  # Else other ranks may not answer.
        dist.destroy_process_group()


def _said(model: nn.Module, how: Any, batch: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the keys and values that ``how`` stands for."""
    if isinstance(how, Mapping):
        return how
    checks.instance("how", how, (str, os.PathLike), "'auto', a file or a dictionary")
    found = None if how == "auto" else of_file(how)
    if found is not None:
        return found
    n_ranks = dist.get_world_size()
    chosen: Mapping[str, Any] = from_rank_0(
        dist.get_rank() == 0, lambda: auto.choose(model, batch, n_ranks)
    )
    return chosen


class _Division:
    def __init__(self, model: Any, degrees: Degrees, batch: Mapping[str, Any]) -> None:
        self.model, self.degrees, self.batch = model, degrees, batch
        self.shifts = _shifts(model)
        self.axes = axes_of(degrees.tensor)
        self._check()
        self.place = self._place()
        self._shares().of(batch, degrees.micro_batches)  # Raises what the batches will raise.
        n_rows = 2 if degrees.tensor == "1d" else 2 * degrees.tp
        self.sample = _sample(batch, n_rows, 2 * degrees.cp, self.shifts)
        self.tries = not any(p.is_meta for p in model.parameters())
        self.wanted = _loss(model, self.sample) if self.tries else 0.0

    def run(self) -> Part:
        """Cut stages before tensors, since a stage is tried with values."""
        degrees, model = self.degrees, self.model
        hidden = _hidden(model) if degrees.pp > 1 else (0, torch.float32)
        if self.tries and degrees.dp * degrees.micro_batches > 1:
            self._try_rows()
        if degrees.cp > 1:
            self._share_sequences()
        stages = self._stages()
        for stage in stages.values():
            if self.tries:  # What is on the meta device stays there.
                stage.to(self.place.device)
            if degrees.tp > 1:
                _divide(stage, self.place.tensor_mesh, degrees.tensor)
        if self.tries and degrees.pp == 1 and degrees.tp > 1:
            self._compare("of tensors", self._loss_of_group())
        if degrees.tp > 1:
            self._draw_alike()
        part = Part(stages, degrees, self.place, self._shares(), hidden)
        if degrees.pp > 1:
            part.prepare(self.batch)
        return part

    def _check(self) -> None:
        """Raise ValueError if degrees exclude each other, or the model."""
        d = self.degrees
        if d.tensor != "1d" and d.tp > 1 and (d.pp > 1 or d.cp > 1):
            raise ValueError(
                f"cistern: tensor='{d.tensor}' divides the tokens between layers too, and goes with dp alone:"
                f" leave pp={d.pp} and cp={d.cp} out, or give tensor='1d'"
            )
        if d.cp > 1 and not self.shifts:
            raise ValueError(
                f"cistern: ranks share sequences (cp={d.cp}) of causal language models, which predict the next"
                f" token, and {type(self.model).__name__} is none"
            )

        has_routers = getattr(getattr(self.model, "config", None), "output_router_logits", False)
        if has_routers and d.dp * d.pp * d.cp * d.micro_batches > 1:
            raise ValueError(ROUTERS.format(type(self.model).__name__))

    def _place(self) -> Place:
        d = self.degrees
        device = torch.device("cpu")
        if torch.cuda.is_available() and dist.get_backend() != dist.Backend.GLOO:
            device = torch.device("cuda", torch.cuda.current_device())
        sizes = legal_sizes(d.tensor, d.tp)[0]
        mesh = init_device_mesh(
            device.type, (d.dp, d.pp, d.cp, *sizes), mesh_dim_names=("dp", "pp", "cp", *self.axes)
        )
        return Place(mesh, self.axes, device)

    def _shares(self, n_data: int | None = None) -> Shares:
        d = self.degrees
        return Shares(
            d.dp if n_data is None else n_data,
            self.place.dp if n_data is None else 0,
            shifts=self.shifts,
            is_pipeline=d.pp > 1,
            sequence_group=self.place.cp_group if d.cp > 1 else None,
            sequence=d.sequence,
        )

    def _draw_alike(self) -> None:
        """Let ranks that divide tensors have the same random numbers, such as of a dropout between their layers."""
        for axis in self.axes:
            group = self.place.tensor_mesh.get_group(axis)
            state = [torch.get_rng_state()]
            if self.place.device.type == "cuda":
                state.append(torch.cuda.get_rng_state(self.place.device))
            dist.broadcast_object_list(state, group=group, group_src=0)
            torch.set_rng_state(state[0])
            if self.place.device.type == "cuda":
                torch.cuda.set_rng_state(state[1], self.place.device)

    def _try_rows(self) -> None:
        """Compare the loss of two micro-batches with what follows from the losses of each."""
        share = Shares(1, 0, shifts=self.shifts).of(self.sample, 2)
        losses = [_loss(self.model, share.micro_batch(i)) for i in range(2)]
        got = sum(w * loss for w, loss in zip(share.weights.tolist(), losses, strict=True))
        self._compare("of rows", got)

    def _compare(self, what: str, got: float) -> None:
        """Raise ValueError if the loss ``got`` is not that of the model."""
        is_exact = all(p.dtype == torch.float32 for p in self.model.parameters())
        if not abs(got - self.wanted) <= (1e-4 if is_exact else 1e-2) * abs(self.wanted):
            raise ValueError(
                f"cistern: parts {what} have the loss {got:.6g}, and the model has {self.wanted:.6g}, as tried with"
                f" few tokens: {type(self.model).__name__} cannot be divided so. Its loss has to be the mean over"
                " labels, without another term, and its attention that of"
                " transformers' registry (AttentionInterface)"
            )

    def _share_sequences(self) -> None:
        """Let cp ranks share sequences, and try that with the whole model."""
        config = self.model.config
        self.plain_attention = config._attn_implementation
        share_sequences(self.model, self.place.cp_group, self.degrees.sequence)
        self.shared_attention = config._attn_implementation
        if self.tries:
            self._compare("of sequences", self._loss_of_group())

    def _loss_of_group(self) -> float:
        """Return the loss of the sample, as the ranks compute it that share sequences or tensors."""
        share = self._shares(n_data=1).of(self.sample, 1)
        inputs = {k: _on(self.place.device, v) for k, v in share.micro_batch(0).items()}
        own = torch.tensor(_loss(self.model, inputs) * float(share.weights[0]))
        own = own.to(self.place.device)
        if self.degrees.cp > 1:
            dist.all_reduce(own, group=self.place.cp_group)
        return float(own)

    def _stages(self) -> dict[int, nn.Module]:
        """Return the stages of this rank by their numbers."""
        mine = range(self.place.pp, self.degrees.n_stages, self.degrees.pp)
        whole = {n: self.model if n == mine[-1] else _twin(self.model) for n in mine}
        return {number: self._stage(model, number) for number, model in whole.items()}

    def _stage(self, model: Any, number: int) -> nn.Module:
        """Return stage ``number`` of ``model``, which changes."""
        d = self.degrees
        if d.pp > 1:
            if d.cp > 1:  # A stage is tried with whole sequences.
                model.config._attn_implementation = self.plain_attention
            stage_of(model, number, d.n_stages, borders=d.borders)
            if d.cp > 1:
                model.config._attn_implementation = self.shared_attention
        elif d.recompute:
            _recompute(model, d.recompute)
        stage: nn.Module = model
        return stage


def _divide(stage: Any, mesh: Any, mode: str) -> None:
    """Divide the tensors of ``stage`` among the ranks of ``mesh``. Raises what ``divide`` and ``shard`` raise."""
    if mode == "1d":
        divide(stage, mesh)
    else:
        shard(stage, mesh, mode)


def _twin(model: nn.Module) -> nn.Module:
    """Return modules like those of ``model`` that have the same parameters and buffers."""
    kept = {id(t): t for t in (*model.parameters(), *model.buffers())}
    return copy.deepcopy(model, kept)


def _recompute(model: Any, n: tuple[int, ...] | int | bool) -> None:
    """Let the first ``n`` layers keep their inputs alone, and repeat their forward pass in the backward pass."""
    layers = list(layers_of(model))
    if n is not True:
        layers = layers[: n if isinstance(n, int) else n[0]]
    if hasattr(model.config, "use_cache"):
        model.config.use_cache = False  # A second forward pass would add to it.
    for i, layer in enumerate(layers):
        Recomputed(layer, f"layer {i}")


def _shifts(model: Any) -> bool:
    """Return whether ``model`` predicts the next token: the first label of each row does not count."""
    kind = getattr(model, "loss_type", "")  # None: as of GPT2LMHeadModel, whose name says nothing.
    config = getattr(model, "config", None)
    return kind in (None, "ForCausalLM") and not getattr(config, "is_encoder_decoder", False)


def _hidden(model: Any) -> tuple[int, torch.dtype]:
    """Return the width and the type of hidden states."""
    config = model.config.get_text_config()
    return config.hidden_size, model.get_input_embeddings().weight.dtype


def _sample(batch: Mapping[str, Any], n_rows: int, multiple: int, shifts: bool) -> dict[str, Any]:
    """Return ``n_rows`` rows of ``batch`` with few tokens, a multiple of ``multiple``, and uneven labels."""
    ids = batch.get("input_ids")
    found = dict(batch)
    found.pop("num_items_in_batch", None)
    tensors = {k: v for k, v in batch.items() if isinstance(v, torch.Tensor) and v.ndim > 0}
    rows = next(iter(tensors.values())).shape[0] if ids is None else ids.shape[0]
    picked = torch.arange(n_rows) % rows
    found |= {k: v[picked.to(v.device)] for k, v in tensors.items() if v.shape[0] == rows}
    labels = found.get("labels")
    if not shifts and isinstance(labels, torch.Tensor) and not labels.is_floating_point():
        found["labels"] = labels.where(labels != -100, 0)  # Any class: some have to count.
    if ids is None or ids.ndim != 2:
        return found
    n = max(multiple, min(_N_TRIED, ids.shape[1]) // multiple * multiple)
    for name, value in found.items():
        if name in tensors and value.ndim == 2 and value.shape[1] == ids.shape[1]:
            found[name] = value[:, :n]
    mask = found.get("attention_mask")
    if isinstance(mask, torch.Tensor) and mask.ndim == 2:
        found["attention_mask"] = torch.ones_like(mask)
    elif mask is not None:
        del found["attention_mask"]
    if "labels" in found and shifts:
        found["labels"] = found["input_ids"].clone()
        found["labels"][: n_rows // 2, : n // 2] = -100
    return found


def _loss(model: Any, inputs: Mapping[str, Any]) -> float:
    """Return the loss of ``inputs``, without dropout. TypeError: the model returns none."""
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad(), torch.random.fork_rng():
            output = model(**inputs)
    finally:
        model.train(was_training)
    return float(loss_of(output, type(model)))


def _on(device: torch.device, value: Any) -> Any:
    return value.to(device) if isinstance(value, torch.Tensor) else value
