/* SPDX-License-Identifier: Apache-2.0 */
#include "client/gpt/exchange.h"

#include "client/gpt/model.h"

#include <inttypes.h>
#include <string.h>

void gpt_exchange_begin(struct gpt_exchange *x, struct gpt_exchange_comms comms, uint32_t experts,
                        bool skips_own)
{
    *x = (struct gpt_exchange){.comms = comms,
                               .rank = comms.host != NULL ? cst_comm_rank(comms.host) : 0,
                               .world = comms.host != NULL ? cst_comm_size(comms.host) : 1,
                               .experts = experts,
                               .skips_own = skips_own};
}

int gpt_exchange_agree(struct cst_comm *comm, const char *words, struct cst_err *err)
{
    const uint32_t world = cst_comm_size(comm);
    char own[GPT_EXCHANGE_WORDS] = "", all[GPT_EXCHANGE_MAX_RANKS][GPT_EXCHANGE_WORDS];
    size_t counts[GPT_EXCHANGE_MAX_RANKS];
    int rc;

    strncpy(own, words, sizeof own - 1);
    for (uint32_t r = 0; r < world; r++) {
        counts[r] = sizeof own;
    }
    rc = cst_comm_all_gather(comm, own, all, counts, CST_COMM_BYTE, err);
    for (uint32_t r = 1; rc == 0 && r < world; r++) {
        if (memcmp(all[r], all[0], sizeof all[r]) != 0) {
            rc = cst_err_set(err, CST_EMISMATCH, "rank %u exchanges %.63s, but rank 0 %.63s", r,
                             all[r], all[0]);
        }
    }
    return rc;
}

static int check_counts(const struct gpt_exchange *x, const uint32_t *all, struct cst_err *err)
{
    uint64_t n = 0;

    for (uint32_t r = 0; r < x->world; r++) {
        const uint64_t before = n;

        for (uint32_t e = 0; e < x->experts; e++) {
            n += all[r * x->experts + e];
        }
        if (n > GPT_EXCHANGE_MAX_ROWS) {
            return cst_err_set(err, CST_EMISMATCH,
                               "rank %" PRIu32 " sends %" PRIu64
                               " rows to experts, and the ranks before it %" PRIu64
                               ": %d together are the most",
                               r, n - before, before, GPT_EXCHANGE_MAX_ROWS);
        }
    }
    return 0;
}

int gpt_exchange_counts(const struct gpt_exchange *x, const uint32_t *own, uint32_t *all,
                        struct cst_err *err)
{
    size_t counts[GPT_EXCHANGE_MAX_RANKS];
    int rc;

    if (x->comms.host == NULL) {
        memcpy(all, own, x->experts * sizeof *own);
        return check_counts(x, all, err);
    }
    for (uint32_t r = 0; r < x->world; r++) {
        counts[r] = x->experts * sizeof *own;
    }
    rc = cst_comm_all_gather(x->comms.host, own, all, counts, CST_COMM_BYTE, err);
    return rc == 0 ? check_counts(x, all, err) : rc;
}

/* Number of rows that rank @from sends to rank @to for the experts before @expert. */
static size_t rows_before(const struct gpt_exchange *x, const uint32_t *all, uint32_t from,
                          uint32_t to, uint32_t expert)
{
    const bool skipped = from == to && x->skips_own;
    size_t n = 0;

    for (uint32_t e = 0; e < expert && !skipped; e++) {
        n += gpt_model_expert_rank(e, x->world) == to ? all[from * x->experts + e] : 0;
    }
    return n;
}

/* Number of rows that rank @from sends to rank @to. */
static size_t rows_of(const struct gpt_exchange *x, const uint32_t *all, uint32_t from, uint32_t to)
{
    return rows_before(x, all, from, to, x->experts);
}

size_t gpt_exchange_n_sent(const struct gpt_exchange *x, const uint32_t *all)
{
    size_t n = 0;

    for (uint32_t r = 0; r < x->world; r++) {
        n += rows_of(x, all, x->rank, r);
    }
    return n;
}

size_t gpt_exchange_n_received(const struct gpt_exchange *x, const uint32_t *all)
{
    size_t n = 0;

    for (uint32_t r = 0; r < x->world; r++) {
        n += rows_of(x, all, r, x->rank);
    }
    return n;
}

size_t gpt_exchange_sent_at(const struct gpt_exchange *x, const uint32_t *all, uint32_t expert)
{
    const uint32_t to = gpt_model_expert_rank(expert, x->world);
    size_t at = rows_before(x, all, x->rank, to, expert);

    for (uint32_t r = 0; r < to; r++) {
        at += rows_of(x, all, x->rank, r);
    }
    return at;
}

size_t gpt_exchange_received_at(const struct gpt_exchange *x, const uint32_t *all, uint32_t from,
                                uint32_t expert)
{
    size_t at = rows_before(x, all, from, x->rank, expert);

    for (uint32_t r = 0; r < from; r++) {
        at += rows_of(x, all, r, x->rank);
    }
    return at;
}

/* Begin to carry rows, in the direction of the rows or, if @back, in that of the results. */
static int carry(struct gpt_exchange *x, const uint32_t *all, bool back, const void *in, void *out,
                 size_t row_bytes, struct cst_err *err)
{
    size_t to[GPT_EXCHANGE_MAX_RANKS], from[GPT_EXCHANGE_MAX_RANKS];
    const struct cst_comm_call call = {.op = CST_COMM_ALL_TO_ALL,
                                       .type = CST_COMM_BYTE,
                                       .in = in,
                                       .out = out,
                                       .counts = back ? from : to,
                                       .recv_counts = back ? to : from};
    int rc;

    for (uint32_t r = 0; r < x->world; r++) {
        to[r] = rows_of(x, all, x->rank, r) * row_bytes;
        from[r] = rows_of(x, all, r, x->rank) * row_bytes;
    }
    if (x->comms.host == NULL) {
        if (to[0] > 0) {
            memcpy(out, in, to[0]);
        }
        return 0;
    }
    rc = gpt_exchange_wait(x, err);
    return rc == 0 ? cst_comm_start(x->comms.rows, &call, &x->call, err) : rc;
}

int gpt_exchange_send(struct gpt_exchange *x, const uint32_t *all, const void *sent, void *received,
                      size_t row_bytes, struct cst_err *err)
{
    return carry(x, all, false, sent, received, row_bytes, err);
}

int gpt_exchange_return(struct gpt_exchange *x, const uint32_t *all, const void *results,
                        void *returned, size_t row_bytes, struct cst_err *err)
{
    return carry(x, all, true, results, returned, row_bytes, err);
}

int gpt_exchange_wait(struct gpt_exchange *x, struct cst_err *err)
{
    const uint64_t call = x->call;

    x->call = 0;
    return call != 0 ? cst_comm_wait(x->comms.rows, call, err) : 0;
}
