# SPDX-License-Identifier: Apache-2.0
"""Makes a model of transformers one that the ranks of a mesh divide."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from cistern.torch.parallel.collectives import Grid, gathered
from cistern.torch.parallel.kinds import eps_of_rms_norm, is_plain_table
from cistern.torch.parallel.linear import Linear
from cistern.torch.parallel.modes import Mode, cuts, lines_of, mode_of
from cistern.torch.parallel.norms import LayerNorm, RMSNorm
from cistern.torch.parallel.vocabulary import CrossEntropy, Embedding

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

#: What the plan of a model (``base_model_tp_plan`` of its config) calls the layers of a pair.
_FIRST, _SECOND = "colwise", "rowwise"


def shard(
    model: Any, mesh: DeviceMesh, mode: str, *, panels: int = 1, sequence: bool = False
) -> Any:
    """Divide ``model``, a causal language model as LLaMA is, in place, and return it.

    All ranks of ``mesh`` have the whole model, and the same one, or one on the meta device. They
    call the result alike, with the token ids and labels of the whole batch, and all get the loss of
    the batch. Ranks share the sequences of a batch; with ``sequence``, for the mode "sequence", each
    sequence. Logits, if they are wanted, are this rank's block.

    TypeError: the model has a layer that no mode can divide, or no plan that says which linear layers
    are pairs. ValueError: the mesh is not one of ``mode``, or the numbers of heads do not divide.
    """
    rows = mode_of(mode)
    if sequence and mode != "sequence":
        raise ValueError(
            f"cistern: sequence=True is for the mode 'sequence', not '{mode}', whose attention wants"
            " whole sequences"
        )
    return _Sharding(model, Grid(mesh, rows.axes), rows, panels, int(sequence)).run()


class _Sharding:
    def __init__(self, model: Any, grid: Grid, mode: Mode, panels: int, tokens: int) -> None:
        self.model, self.grid, self.mode = model, grid, mode
        self.panels, self.tokens = panels, tokens
        between = cuts(lines_of(mode.first), "X")
        inside = cuts(lines_of(mode.first), "Y")
        self.rows, self.width = between["M"], between["K"]
        self.inner_rows, self.inner_width = inside["M"], inside["N"]
        self.hidden = model.config.hidden_size
        self._gathers = mode.first == "sequence_column"

    def run(self) -> Any:
        self._check_heads()
        plan = self._plan()
        is_tied = self._is_tied()
        modules = [(name, module) for name, module in self.model.named_modules() if name]
        for name, module in modules:
            made = self._divided(name, module, plan)
            if made is not None:
                self.model.set_submodule(name, made)
        if is_tied:
            self.model.get_output_embeddings().weight = self.model.get_input_embeddings().weight
        left = [n for n, p in self.model.named_parameters() if type(p.data) is torch.Tensor]
        if left:
            raise TypeError(f"cistern: no mode can divide parameter '{left[0]}' of the model")
        self._take_loss()
        self._gather_inputs()
        self.model.register_forward_pre_hook(self._with_positions, with_kwargs=True)
        return self.model

    def _is_tied(self) -> bool:
        """Return whether one tensor is the embedding and the head. TypeError: they would be cut differently."""
        head = self.model.get_output_embeddings()
        if head is None or head.weight is not self.model.get_input_embeddings().weight:
            return False
        of_head, of_table = (cuts(x, "W") for x in (lines_of(self.mode.first), self.mode.embedding))
        if [*of_head.values()] != [of_table["K"], of_table["N"]]:
            raise TypeError(
                "cistern: the embedding and the head of the model are one tensor, which this mode"
                " would cut in two ways: load the model with tie_word_embeddings=False, or use"
                " mode '1d', 'sequence' or 'zero3'"
            )
        return True

    def _check_heads(self) -> None:
        if self.grid.size(*self.rows) != self.grid.size(*self.inner_rows) and not self._gathers:
            raise ValueError(
                f"cistern: the mesh {' x '.join(self.grid.axes)} is"
                f" {' x '.join(map(str, self.grid.mesh.shape))}, and a model wants as many ranks along"
                f" {self.rows[-1]} as along {self.inner_rows[-1]}"
            )
        n = self.grid.size(*self.inner_width)
        config = self.model.config
        for name in ("num_attention_heads", "num_key_value_heads"):
            heads = getattr(config, name, n)
            if heads % n:
                legal = [k for k in range(1, heads + 1) if heads % k == 0]
                raise ValueError(
                    f"cistern: the model has {heads} {name}, which {n} ranks along"
                    f" {' x '.join(self.inner_width)} of the mesh cannot share:"
                    f" {', '.join(map(str, legal))} can"
                )

    def _plan(self) -> Mapping[str, str]:
        """Return the styles of linear layers, by patterns of their names in the base model."""
        base = getattr(self.model.config, "base_model_tp_plan", None)
        if not base:
            raise TypeError(
                f"cistern: {type(self.model).__name__} has no plan (base_model_tp_plan of its config)"
                " that says which linear layers are pairs: make its layers those of"
                " cistern.torch.parallel by hand"
            )
        prefix = self.model.base_model_prefix
        return {f"{prefix}.{name}": style for name, style in base.items()}

    def _style(self, name: str, plan: Mapping[str, str]) -> str | None:
        return plan.get(re.sub(r"\.\d+(?=\.|$)", ".*", name))

    def _divided(self, name: str, module: nn.Module, plan: Mapping[str, str]) -> nn.Module | None:
        """Return what takes the place of ``module``; None: it stays, or its parts are divided."""
        if type(module) is nn.Linear:
            return self._linear(name, module, self._style(name, plan))
        if type(module) is nn.Embedding and is_plain_table(module):
            return Embedding(
                module.weight,
                self.grid,
                self.mode.embedding,
                tokens=self.tokens,
                padding_idx=module.padding_idx,
            )
        if type(module) is nn.LayerNorm and module.weight is not None:
            rows, width = self._places(module.weight)
            return LayerNorm(module.weight, module.bias, self.grid, width, rows, module.eps)
        if type(module).__name__.endswith("RMSNorm"):
            norm: Any = module
            eps = eps_of_rms_norm(name, norm)
            rows, width = self._places(norm.weight)
            return RMSNorm(norm.weight, self.grid, width, rows, eps)
        return None

    def _linear(self, name: str, module: nn.Linear, style: str | None) -> nn.Module:
        is_head = module is self.model.get_output_embeddings()
        if style == _FIRST and self._is_gathered(self.model.get_submodule(name.rpartition(".")[0])):
            product = "gathered_column"
        elif is_head or style == _FIRST:
            product = self.mode.first
        elif style == _SECOND:
            product = self.mode.second
        else:
            raise TypeError(f"cistern: the plan of the model has no linear layer '{name}'")
        return Linear.of(module, self.grid.mesh, product, panels=self.panels, tokens=self.tokens)

    def _is_gathered(self, parent: nn.Module) -> bool:
        """Return whether ``parent`` gathers the rows of its input, of which its own shapes are made.

        Attention does: of its input, transformers takes the shape of queries, keys and values.
        """
        return self._gathers and hasattr(parent, "head_dim")

    def _gather_inputs(self) -> None:
        for module in self.model.modules():
            if self._is_gathered(module):
                module.register_forward_pre_hook(self._gather_rows, with_kwargs=True)

    def _gather_rows(self, _: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, Any]:
        def whole(x: torch.Tensor) -> torch.Tensor:
            n = self.grid.size("p")
            return gathered(x, self.tokens, self.grid, "p", n * x.shape[self.tokens])

        if args:
            return (whole(args[0]), *args[1:]), kwargs
        return args, kwargs | {"hidden_states": whole(kwargs["hidden_states"])}

    def _places(self, weight: torch.Tensor) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the axes along which ranks have other rows, and those that cut the width, of a norm."""
        if weight.shape[-1] == self.hidden:
            return self.rows, self.width
        return self.inner_rows + self.inner_width, ()  # Of each head.

    def _take_loss(self) -> None:
        loss = CrossEntropy(
            self.model.config.vocab_size,
            self.grid,
            self.inner_width,
            self.inner_rows,
            tokens=self.tokens,
        )

        def of_labels(
            logits: torch.Tensor,
            labels: torch.Tensor,
            num_items_in_batch: Any = None,
            shift_labels: torch.Tensor | None = None,
            **_: Any,
        ) -> torch.Tensor:
            if shift_labels is None:
                shift_labels = nn.functional.pad(labels, (0, 1), value=-100)[..., 1:]
            result: torch.Tensor = loss(logits, shift_labels, num_items_in_batch)
            return result

        self.model.loss_function = of_labels

    def _with_positions(self, _: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, Any]:
        """Say the positions of whole sequences. ValueError: some of the batch are shorter."""
        mask = kwargs.pop("attention_mask", None)
        if mask is not None and not bool(mask.all()):
            raise ValueError(
                "cistern: a model that ranks divide takes no padded sequences: the attention_mask"
                " has zeros"
            )
        ids = kwargs.get("input_ids", args[0] if args else None)
        if ids is not None and kwargs.get("position_ids") is None:
            kwargs["position_ids"] = torch.arange(ids.shape[1], device=ids.device).unsqueeze(0)
        kwargs["use_cache"] = False
        return args, kwargs
