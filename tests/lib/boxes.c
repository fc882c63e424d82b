/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/boxes.h"

#include "tests/lib/job_rig.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct cst_err err;

#define OK(call) ck_assert_msg((call) == CST_OK, "%s: %s", #call, err.text)

const struct boxes_whole boxes_wholes[BOXES_WHOLES] = {
    {.name = "w", .shape = {1, 70, 96}, .n_dims = 2, .dtype = CST_BF16, .cut = true},
    {.name = "qkv",
     .shape = {1, 60, 40},
     .n_dims = 2,
     .dtype = CST_BF16,
     .files = {"q", "k", "v"},
     .rows = {24, 18, 18},
     .cut = true},
    {.name = "up",
     .shape = {1, 40, 36},
     .n_dims = 2,
     .dtype = CST_BF16,
     .files = {"mlp.up"},
     .rows = {36},
     .transposed = true,
     .cut = true},
    {.name = "experts", .shape = {6, 10, 16}, .n_dims = 3, .dtype = CST_FP32, .cut = true},
    {.name = "base",
     .shape = {1, 44, 32},
     .n_dims = 2,
     .dtype = CST_BF16,
     .files = {"base.k", "base.v"},
     .rows = {12, 20},
     .transposed = true,
     .cut = true,
     .frozen = true},
    {.name = "wide",
     .shape = {4, 9, 12},
     .n_dims = 3,
     .dtype = CST_FP32,
     .cut = true,
     .frozen = true},
    {.name = "norm", .shape = {1, 1, 70}, .n_dims = 1, .dtype = CST_FP32},
};

bool boxes_named = true;

int64_t boxes_count(const int64_t *shape)
{
    return shape[0] * shape[1] * shape[2];
}

struct boxes_cutting boxes_grid(int rows, int columns)
{
    struct boxes_cutting out = {0};

    for (int w = 0; w < BOXES_WHOLES; w++) {
        const int64_t *shape = boxes_wholes[w].shape;
        const int n_rows = boxes_wholes[w].cut ? rows : 1,
                  n_columns = boxes_wholes[w].cut ? columns : 1;

        for (int i = 0; i < n_rows * n_columns; i++) {
            struct boxes_part *part = &out.parts[w][out.n[w]++];
            const int64_t r = i / n_columns, c = i % n_columns;

            *part = (struct boxes_part){.shape = {shape[0], shape[1], shape[2]}};
            part->first[1] = shape[1] * r / n_rows;
            part->shape[1] = shape[1] * (r + 1) / n_rows - part->first[1];
            part->first[2] = shape[2] * c / n_columns;
            part->shape[2] = shape[2] * (c + 1) / n_columns - part->first[2];
        }
    }
    return out;
}

struct boxes_cutting boxes_cut_at_random(void)
{
    struct boxes_cutting out = {0};

    for (int w = 0; w < BOXES_WHOLES; w++) {
        const int n = boxes_wholes[w].cut ? 1 + (int)(random() % BOXES_PARTS) : 1;

        out.parts[w][out.n[w]++] =
            (struct boxes_part){.shape = {boxes_wholes[w].shape[0], boxes_wholes[w].shape[1],
                                          boxes_wholes[w].shape[2]}};
        while (out.n[w] < n) {
            struct boxes_part *old = &out.parts[w][random() % out.n[w]],
                              *new = &out.parts[w][out.n[w]];
            const int d = (int)(random() % 3);

            if (old->shape[d] > 1) {
                const int64_t left = 1 + random() % (old->shape[d] - 1);

                *new = *old;
                new->first[d] += left;
                new->shape[d] -= left;
                old->shape[d] = left;
                out.n[w]++;
            }
        }
    }
    return out;
}

/* -- jobs -------------------------------------------------------------------------------------- */

static bool is_part(const struct boxes_cutting *cutting, int w)
{
    return memcmp(cutting->parts[w][0].shape, boxes_wholes[w].shape,
                  sizeof boxes_wholes[w].shape) != 0;
}

/* Declare part @i of whole @w. Dimension 0 of a matrix is left out. */
static void declare(struct cst_job *job, const struct boxes_cutting *cutting, int w, int i,
                    int group)
{
    const struct boxes_whole *whole = &boxes_wholes[w];
    const struct boxes_part *part = &cutting->parts[w][i];
    const uint32_t skip = 3 - whole->n_dims;
    const bool cut = is_part(cutting, w);
    char name[32];
    struct cst_tensor_spec spec = {.name = cut ? name : whole->name,
                                   .dtype = whole->dtype,
                                   .n_dims = whole->n_dims,
                                   .shape = part->shape + skip,
                                   .group = group,
                                   .pattern = whole->frozen ? CST_PATTERN_FROZEN
                                              : cut         ? CST_PATTERN_TENSOR
                                                            : CST_PATTERN_SHARD,
                                   .lr_scale = 1,
                                   .decay_scale = 1,
                                   .whole_name = cut && boxes_named ? whole->name : NULL,
                                   .whole_shape = cut ? whole->shape + skip : NULL,
                                   .first = cut ? part->first + skip : NULL,
                                   .external_names = whole->files,
                                   .external_rows = whole->rows,
                                   .transposed = whole->transposed && boxes_named};
    int t;

    while (boxes_named && spec.n_external < 3 && whole->files[spec.n_external] != NULL) {
        spec.n_external++;
    }
    (void)snprintf(name, sizeof name, "%s.%d", whole->name, i);
    t = cst_tensor_as(job, &spec);
    ck_assert_msg(t >= 0, "%s", cst_job_error(job)->text);
    ck_assert_msg(cst_operator(job, spec.name, &t, 1) >= 0, "%s", cst_job_error(job)->text);
}

/* The group of part @i of whole @w; groups[r] is that of rank r alone. */
static int group_of(const struct boxes_job *j, const int *groups, int w, int i)
{
    const bool own = is_part(j->cutting, w) || (j->cutting->staged && boxes_wholes[w].cut);

    return own ? groups[(uint32_t)(w * j->cutting->n[w] + i) % j->world] : CST_GROUP_ALL;
}

static void open_rank(struct boxes_job *j, const struct cst_job_spec *spec, uint32_t rank)
{
    struct cst_job_spec own = *spec;
    int groups[4] = {0};

    own.rank = rank;
    OK(cst_connect(&j->clients[rank], proc.socket, &err));
    OK(cst_job_open(&j->jobs[rank], j->clients[rank], &own, &err));
    for (uint32_t r = 0; r < j->world; r++) {
        groups[r] = cst_group(j->jobs[rank], &r, 1);
        ck_assert_int_gt(groups[r], 0);
    }
    for (int w = 0; w < BOXES_WHOLES; w++) {
        for (int i = 0; i < j->cutting->n[w]; i++) {
            declare(j->jobs[rank], j->cutting, w, i, group_of(j, groups, w, i));
        }
    }
}

void boxes_await(const struct cst_client *client)
{
    struct pollfd fd = {.fd = cst_client_fd(client), .events = POLLIN};

    (void)poll(&fd, 1, 1);
}

void boxes_all_ranks(struct boxes_job *j, bool sync)
{
    bool done[4] = {false};

    for (uint32_t left = j->world, r = 0; left > 0; r = (r + 1) % j->world) {
        int rc = CST_OK;

        if (!done[r]) {
            rc = sync ? cst_try_sync(j->jobs[r], NULL, &err)
                      : cst_try_commit(j->jobs[r], NULL, &err);
            ck_assert_msg(rc == CST_OK || rc == CST_EAGAIN, "%s", err.text);
            done[r] = rc == CST_OK;
            left -= done[r];
        }
        if (rc == CST_EAGAIN) {
            boxes_await(j->clients[r]);
        }
    }
}

struct boxes_job boxes_open(const struct cst_job_spec *spec, const struct boxes_cutting *cutting)
{
    struct boxes_job j = {.cutting = cutting, .world = spec->world};

    for (uint32_t r = 0; r < spec->world; r++) {
        open_rank(&j, spec, r);
    }
    boxes_all_ranks(&j, false);
    return j;
}

void boxes_leave(struct boxes_job *j)
{
    for (uint32_t r = 0; r < j->world; r++) {
        OK(cst_job_leave(j->jobs[r], &err));
        cst_disconnect(j->clients[r]);
    }
}

/* -- states ------------------------------------------------------------------------------------ */

static const enum cst_state kinds[3] = {CST_STATE_MASTER, CST_STATE_EXP_AVG, CST_STATE_EXP_AVG_SQ};

struct boxes_states *boxes_draw(void)
{
    struct boxes_states *s = calloc(1, sizeof *s);

    ck_assert_ptr_nonnull(s);
    for (int w = 0; w < BOXES_WHOLES; w++) {
        const bool frozen = boxes_wholes[w].frozen;

        for (int64_t e = 0; e < boxes_count(boxes_wholes[w].shape); e++) {
            if (frozen && boxes_wholes[w].dtype == CST_BF16) {
                s->weights[w][e] = (uint16_t)(0x3f00 + random() % 256);
                continue;
            }
            s->values[w][0][e] = (float)random() / 1e9f - 1.0f;
            if (frozen) {
                continue;
            }
            s->values[w][1][e] = ((float)random() / 1e9f - 1.0f) * 1e-3f;
            s->values[w][2][e] = (float)random() / 1e9f * 1e-6f;
        }
    }
    return s;
}

/* Copy the elements of @part between @whole and @own, of @bytes each. */
static void copy(const struct boxes_part *part, const int64_t *shape, char *whole, char *own,
                 int bytes, bool out)
{
    const int64_t n = part->shape[2] * bytes;

    for (int64_t i = 0; i < part->shape[0]; i++) {
        for (int64_t k = 0; k < part->shape[1]; k++, own += n) {
            char *at = whole + (((part->first[0] + i) * shape[1] + part->first[1] + k) * shape[2] +
                                part->first[2]) *
                                   bytes;

            memcpy(out ? own : at, out ? at : own, (size_t)n);
        }
    }
}

/* Write or read @state of part @part of whole @w, of which @whole has all. */
static void transfer(const struct boxes_job *j, int w, int part, int t, enum cst_state state,
                     void *whole, bool write)
{
    const bool brief = state == CST_STATE_WEIGHT && boxes_wholes[w].dtype == CST_BF16;
    const struct boxes_part *p = &j->cutting->parts[w][part];
    const uint64_t n = (uint64_t)boxes_count(p->shape);
    float *own = malloc(BOXES_ELEMS * sizeof *own);

    ck_assert_ptr_nonnull(own);
    if (write) {
        copy(p, boxes_wholes[w].shape, whole, (char *)own, brief ? 2 : 4, true);
        OK(cst_tensor_write(j->jobs[0], t, state, 0, n, own, &err));
    } else {
        OK(cst_tensor_read(j->jobs[0], t, state, 0, n, own, &err));
        copy(p, boxes_wholes[w].shape, whole, (char *)own, brief ? 2 : 4, false);
    }
    free(own);
}

void boxes_transfer(const struct boxes_job *j, struct boxes_states *s, bool write)
{
    int t = 0;

    for (int w = 0; w < BOXES_WHOLES; w++) {
        const bool frozen = boxes_wholes[w].frozen, brief = boxes_wholes[w].dtype == CST_BF16;

        for (int i = 0; i < j->cutting->n[w]; i++, t++) {
            for (int k = 0; k < 3 && !frozen; k++) {
                transfer(j, w, i, t, kinds[k], s->values[w][k], write);
            }
            if (frozen || (!write && brief)) {
                transfer(j, w, i, t, CST_STATE_WEIGHT,
                         brief ? (void *)s->weights[w] : s->values[w][0], write);
            }
        }
    }
}

struct boxes_states *boxes_read(const struct boxes_job *j)
{
    struct boxes_states *s = calloc(1, sizeof *s);

    ck_assert_ptr_nonnull(s);
    boxes_transfer(j, s, false);
    return s;
}

void boxes_assert_same(const struct boxes_states *a, const struct boxes_states *b)
{
    for (int w = 0; w < BOXES_WHOLES; w++) {
        for (int k = 0; k < 3; k++) {
            for (int64_t e = 0; e < boxes_count(boxes_wholes[w].shape); e++) {
                suite_must(memcmp(&a->values[w][k][e], &b->values[w][k][e], 4) == 0,
                           "%s, state %d, element %lld: %a, not %a", boxes_wholes[w].name, k,
                           (long long)e, (double)a->values[w][k][e], (double)b->values[w][k][e]);
            }
        }
        ck_assert_mem_eq(a->weights[w], b->weights[w], sizeof a->weights[w]);
    }
}
