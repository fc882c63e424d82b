# SPDX-License-Identifier: Apache-2.0
"""Layers, and whole models, that the ranks of a mesh divide, in each of the modes of ``modes``.

    from cistern.torch import parallel

    mesh = parallel.make_mesh("3d")  # Of all ranks of torch.distributed.
    model = parallel.shard(model, mesh, "3d")
    loss = model(input_ids=ids, labels=ids).loss  # All ranks of the mesh have the whole batch.

Parameters are DTensors, so that a store, an optimizer, and a checkpoint know which part of which
whole a rank has. Collectives are those of torch.distributed, on any device.
"""

from cistern.torch.parallel.cutting import stage_of
from cistern.torch.parallel.halves import in_turns
from cistern.torch.parallel.linear import Linear
from cistern.torch.parallel.modes import MODES, PRODUCTS, legal_sizes, make_mesh
from cistern.torch.parallel.norms import LayerNorm, RMSNorm
from cistern.torch.parallel.parallelize import parallelize
from cistern.torch.parallel.part import Part
from cistern.torch.parallel.ring import ring_attention
from cistern.torch.parallel.sequences import part_of_batch, share_sequences, ulysses_attention
from cistern.torch.parallel.sharding import shard
from cistern.torch.parallel.tensor import divide
from cistern.torch.parallel.vocabulary import CrossEntropy, Embedding
from cistern.torch.parallel.volumes import Volumes, volumes

__all__ = [
    "MODES",
    "PRODUCTS",
    "CrossEntropy",
    "Embedding",
    "LayerNorm",
    "Linear",
    "Part",
    "RMSNorm",
    "Volumes",
    "divide",
    "in_turns",
    "legal_sizes",
    "make_mesh",
    "parallelize",
    "part_of_batch",
    "ring_attention",
    "shard",
    "share_sequences",
    "stage_of",
    "ulysses_attention",
    "volumes",
]
