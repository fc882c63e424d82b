/* SPDX-License-Identifier: Apache-2.0 */
#include "client/comm/compare.h"

#include "client/comm/transfer.h"

#include <inttypes.h>

void cstc_compare_read_numbers(uint64_t *out, const uint64_t *from, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        out[i] = __atomic_load_n(&from[i], __ATOMIC_ACQUIRE);
    }
}

struct cst_comm_header cstc_compare_read(const struct cst_comm_header *from)
{
    struct cst_comm_header header = {0};

    cstc_compare_read_numbers(&header.op, &from->op, 1);
    cstc_compare_read_numbers(&header.type, &from->type, 1);
    cstc_compare_read_numbers(&header.root, &from->root, 1);
    cstc_compare_read_numbers(&header.n_elems, &from->n_elems, 1);
    cstc_compare_read_numbers(&header.counts, &from->counts, 1);
    return header;
}

static bool same(const struct cst_comm_header *a, const struct cst_comm_header *b)
{
    return a->op == b->op && a->type == b->type && a->root == b->root && a->n_elems == b->n_elems &&
           a->counts == b->counts;
}

int cstc_compare_headers(uint64_t number, const struct cstc_compare_side *a,
                         const struct cstc_compare_side *b, struct cst_err *err)
{
    const struct cstc_compare_side *first = a->name < b->name ? a : b;
    const struct cstc_compare_side *second = a->name < b->name ? b : a;
    char words[2][CSTC_TRANSFER_WORDS];

    if (same(&a->header, &b->header)) {
        return CST_OK;
    }
    cstc_transfer_words(&first->header, words[0], sizeof words[0]);
    cstc_transfer_words(&second->header, words[1], sizeof words[1]);
    return cst_err_set(err, CST_EMISMATCH,
                       "collective %" PRIu64 ": rank %" PRIu32 " calls %s, rank %" PRIu32
                       " calls %s%s",
                       number, first->name, words[0], second->name, words[1],
                       a->header.op == b->header.op && a->header.counts != b->header.counts
                           ? " (with other numbers of elements for the ranks)"
                           : "");
}

int cstc_compare_counts(uint64_t number, uint32_t from, uint64_t sent, uint32_t to,
                        uint64_t received, struct cst_err *err)
{
    if (sent == received) {
        return CST_OK;
    }
    return cst_err_set(err, CST_EMISMATCH,
                       "collective %" PRIu64 ": rank %" PRIu32
                       " calls all_to_all and sends %" PRIu64 " bytes to rank %" PRIu32
                       ", which calls all_to_all and receives %" PRIu64 " bytes",
                       number, from, sent, to, received);
}
