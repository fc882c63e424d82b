/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs of a few wholes that are cut into parts, one after the other to the ranks, for tests of
 * checkpoints and of jobs that are opened again: uneven parts, external names, a transposed tensor,
 * experts, fp32, frozen tensors, and a tensor that is not cut. All ranks of a job are in this
 * process. Failures fail the test. job_rig.h has the daemon. */
#ifndef BOXES_H
#define BOXES_H

#include "cistern/cistern.h"

#include <stdbool.h>
#include <stdint.h>

enum {
    BOXES_WHOLES = 7,
    BOXES_PARTS = 8,       /* Most parts of a whole. */
    BOXES_ELEMS = 70 * 96, /* Most elements of a whole. */
    BOXES_TENSORS = BOXES_WHOLES * BOXES_PARTS,
    BOXES_RANKS = 4,
};

/* A whole of three dimensions; those of matrices have one plane, which is not declared. */
struct boxes_whole {
    const char *name;
    int64_t shape[3];
    uint32_t n_dims;
    enum cst_dtype dtype;
    const char *files[3]; /* External names; NULL: none. */
    int64_t rows[3];
    bool transposed;
    bool cut;    /* Otherwise it is held by all ranks. */
    bool frozen; /* It has weights alone. */
};

extern const struct boxes_whole boxes_wholes[BOXES_WHOLES];

/* Parts say the name of their whole, and its external names. Default: they do. */
extern bool boxes_named;

struct boxes_part {
    int64_t first[3], shape[3];
};

/* How all wholes are cut. */
struct boxes_cutting {
    struct boxes_part parts[BOXES_WHOLES][BOXES_PARTS];
    int n[BOXES_WHOLES];
    /* Stages of a pipeline: wholes that are not cut are held by one rank each, in turn. Otherwise
     * all ranks hold them. The last whole is held by all ranks in any case. */
    bool staged;
};

/* Cut each whole into @rows x @columns parts at uneven borders. */
struct boxes_cutting boxes_grid(int rows, int columns);

/* Cut each whole at random, with random(): a random part at a random place, again and again. */
struct boxes_cutting boxes_cut_at_random(void);

int64_t boxes_count(const int64_t *shape);

struct boxes_job {
    const struct boxes_cutting *cutting; /* Borrowed. */
    struct cst_client *clients[BOXES_RANKS];
    struct cst_job *jobs[BOXES_RANKS];
    uint32_t world;
};

/* Open the job of @spec, cut as @cutting says, in all its ranks, and commit it. Part i of whole w,
 * which has n parts, is held by rank (w * n + i) % world. */
struct boxes_job boxes_open(const struct cst_job_spec *spec, const struct boxes_cutting *cutting);

/* Let all ranks commit or, if @sync, synchronise. */
void boxes_all_ranks(struct boxes_job *j, bool sync);

/* Let all ranks leave and disconnect. */
void boxes_leave(struct boxes_job *j);

/* Wait a moment for an answer to @client. */
void boxes_await(const struct cst_client *client);

/* Master weights and both moments of all wholes, and the weights of those in bf16. Frozen ones have
 * weights alone: those in fp32 are in the place of master weights. */
struct boxes_states {
    float values[BOXES_WHOLES][3][BOXES_ELEMS];
    uint16_t weights[BOXES_WHOLES][BOXES_ELEMS];
};

/* States drawn with random(), of weights only those of frozen wholes. The caller frees them. */
struct boxes_states *boxes_draw(void);

/* Write the states @s to the job, or read them: one rank does either for all. */
void boxes_transfer(const struct boxes_job *j, struct boxes_states *s, bool write);

/* Read all states. The caller frees them. */
struct boxes_states *boxes_read(const struct boxes_job *j);

/* Check that both have the same bits. */
void boxes_assert_same(const struct boxes_states *a, const struct boxes_states *b);

#endif
