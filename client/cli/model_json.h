/* SPDX-License-Identifier: Apache-2.0 */
/* A model as a JSON file: what a worker would declare. `cistern plan` then needs no model program,
 * no GPU and no daemon. `cistern-gpt --describe` and people write such files; `cistern plan` reads
 * them.
 *
 *   {
 *     "name": "gpt2-124m",             1 to 255 printable characters
 *     "world": 2,                      ranks, 1 to 512; default 1; `cistern plan --ranks` overrides
 *     "tokens": 4096,                  per micro-batch and rank; default 0: unknown
 *     "groups": [[0], [1]],            ranks of group 1, 2, ...; group 0: all ranks; default none
 *     "heads": 12,                     degrees of tensor parallelism divide this number; default 0:
 *                                      the model cannot be divided
 *     "tensors": [{                    in the order of declaration
 *       "name": "wte",
 *       "shape": [50304, 768],         the part that one rank holds
 *       "group": 0,                    default 0
 *       "pattern": "shard",            cistern/pattern.h; default shard
 *       "whole": [100608, 768],        pattern tensor: shape of the larger tensor,
 *       "first": [0, 0],               and index of this box's first element in it
 *       "lr_scale": 1,                 default 1
 *       "decay_scale": 0,              default 1
 *       "update": "adamw",             in a job of Muon: auto, adamw or muon; default auto
 *       "dtype": "fp32"                bf16 or fp32; default bf16
 *     }],
 *     "operators": [{                  in the order of the forward pass
 *       "name": "embed",
 *       "tensors": ["wte"],
 *       "flops": 0,                    forward pass, per micro-batch and rank; default 0: unknown
 *       "activation_bytes": 3145728,   kept from forward to backward, per micro-batch and rank;
 *                                      default 0
 *       "expected_uses": 1             forward passes per micro-batch: the share of micro-batches
 *                                      that use it; above 1 counts as 1; default 1
 *       "out_bytes": 1572864,          that the next operators get, all from this one, per
 * micro-batch and rank; default 0: a pipeline is not cut after it "tp_bytes": 1572864, that tensor
 * parallelism sums in the forward pass, and again in the backward pass; default 0 "stage": 0 in a
 * model that is cut into stages (cst_stage): 0 for the first operators, then 1, ...; default: no
 * stages
 *     }]
 *   }
 *
 * Errors, which name the place: an unknown or repeated key, a missing key without a default, and a
 * value of another type. */
#ifndef CLI_MODEL_JSON_H
#define CLI_MODEL_JSON_H

#include "offload/layout/layout.h"

#include <jansson.h>

struct cli_model {
    char name[CST_LAYOUT_NAME_BYTES];
    uint32_t world;  /* Number of ranks. */
    uint64_t tokens; /* Tokens per micro-batch and rank; 0: unknown. */
    uint32_t heads;  /* Degrees of tensor parallelism divide it; 0: the model cannot be divided. */
    struct cst_model model;
};

/* Read the file @path ("-": standard input) into @out, which the caller closes with
 * cli_model_close. Statuses:
 *   - CST_EIO: the file cannot be read.
 *   - CST_EINVAL: the file is not JSON ("FILE:LINE:COLUMN: ...") or not a model ("FILE:
 *     tensors[3].shape: ...").
 *   - CST_EEXIST: two tensors have the same name.
 *   - CST_ENOMEM. */
int cli_model_read(struct cli_model *out, const char *path, struct cst_err *err);

/* Read a model from the JSON value @root, which is borrowed. CST_EINVAL: "tensors[3].shape: ...";
 * CST_EEXIST and CST_ENOMEM as for cli_model_read. */
int cli_model_from_json(struct cli_model *out, const json_t *root, struct cst_err *err);

/* Return a new object, without the keys that have their default value; NULL: out of memory. */
json_t *cli_model_to_json(const struct cli_model *model);

/* Change the number of ranks to @world. CST_EINVAL: it is not in 1 to 512, or a group has a higher
 * rank. */
int cli_model_set_world(struct cli_model *model, uint64_t world, struct cst_err *err);

void cli_model_close(struct cli_model *model);

#endif
