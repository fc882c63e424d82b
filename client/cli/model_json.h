/* SPDX-License-Identifier: Apache-2.0 */
/* A model as a file, so that a plan needs no model, no GPU and no daemon: what a worker declares,
 * as JSON. Written by `cistern-gpt --describe`, by presets and by people; read by `cistern plan`.
 *
 *   {
 *     "name": "gpt2-124m",             1..63 printable characters
 *     "world": 2,                      ranks, 1..64; default 1; `cistern plan --ranks` goes before
 *     "tokens": 4096,                  of a micro-batch and rank; default 0: not known
 *     "groups": [[0], [1]],            ranks of group 1, 2, ...; group 0 is everybody; default none
 *     "tensors": [{                    in order of declaration
 *       "name": "wte",
 *       "shape": [50304, 768],         of what one rank holds
 *       "group": 0,                    default 0
 *       "pattern": "shard",            cistern/pattern.h; default shard
 *       "whole": [100608, 768],        pattern tensor: of which this is a box,
 *       "first": [0, 0],               and where it begins in it
 *       "lr_scale": 1,                 default 1
 *       "decay_scale": 0               default 1
 *     }],
 *     "operators": [{                  in order of the forward pass
 *       "name": "embed",
 *       "tensors": ["wte"],
 *       "flops": 0,                    forward, per micro-batch and rank; default 0: not known
 *       "activation_bytes": 3145728,   kept from forward to backward, same; default 0
 *       "expected_uses": 1             forward passes per micro-batch, the share of micro-batches
 *                                      in which it comes; more counts as 1; default 1
 *     }]
 *   }
 *
 * Strict: an unknown or repeated key, a missing one without a default, or a value of another type
 * is an error that names the place. */
#ifndef CLI_MODEL_JSON_H
#define CLI_MODEL_JSON_H

#include "offload/layout.h"

#include <jansson.h>

struct cli_model {
    char name[CST_LAYOUT_NAME_BYTES];
    uint32_t world;  /* ranks */
    uint64_t tokens; /* of a micro-batch and rank; 0: not known */
    struct cst_model model;
};

/* Read the file @path ("-": standard input) into @out, to be closed. CST_EIO: it cannot be read;
 * CST_EINVAL: "FILE:LINE:COLUMN: ..." where it is not JSON, "FILE: tensors[3].shape: ..." where it
 * is no model; CST_EEXIST: two tensors have one name; CST_ENOMEM. */
int cli_model_read(struct cli_model *out, const char *path, struct cst_err *err);

/* The same out of parsed JSON, borrowed. CST_EINVAL: "tensors[3].shape: ..."; CST_EEXIST: two
 * tensors have one name; CST_ENOMEM. */
int cli_model_from_json(struct cli_model *out, const json_t *root, struct cst_err *err);

/* A new object, what is default left out; NULL: out of memory. */
json_t *cli_model_to_json(const struct cli_model *model);

/* The job has @world ranks instead. CST_EINVAL: not 1..64, or a group names a rank beyond. */
int cli_model_set_world(struct cli_model *model, uint64_t world, struct cst_err *err);

void cli_model_close(struct cli_model *model);

#endif
