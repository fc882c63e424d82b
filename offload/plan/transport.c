/* SPDX-License-Identifier: Apache-2.0 */
#include "offload/plan/transport.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* As NCCL counts: 22703 is 2.27.3. Versions below 2.9 count otherwise, and are too old anyway. */
#define MAJOR(version) ((version) / 10000)
#define MINOR(version) ((version) / 100 % 100)
#define PATCH(version) ((version) % 100)

const char *cst_transport_name(enum cst_transport transport)
{
    switch (transport) {
    case CST_TRANSPORT_HOST:
        return "host memory";
    case CST_TRANSPORT_NCCL:
        return "NCCL";
    case CST_TRANSPORT_STAGED:
        return "staging in host memory";
    case CST_TRANSPORT_PEERS:
        return "memory of the GPUs";
    }
    return "unknown";
}

static size_t count_on_gpus(const struct cst_transport_rank *ranks, size_t n)
{
    size_t n_on_gpus = 0;

    for (size_t i = 0; i < n; i++) {
        n_on_gpus += ranks[i].gpu != NULL;
    }
    return n_on_gpus;
}

/* Return whether @rank has its arrays in host memory, with words for that. */
static bool is_on_host(const struct cst_transport_rank *rank, char why[CST_TRANSPORT_WORDS])
{
    if (rank->gpu == NULL) {
        (void)snprintf(why, CST_TRANSPORT_WORDS, "rank %" PRIu32 " has its arrays in host memory",
                       rank->name);
    }
    return rank->gpu == NULL;
}

/* Return whether @rank alone rules out NCCL, with the reason. */
static bool lacks(const struct cst_transport_rank *rank, char why[CST_TRANSPORT_WORDS])
{
    if (rank->in_order) {
        (void)snprintf(why, CST_TRANSPORT_WORDS,
                       "rank %" PRIu32 " wants sums in the order of the ranks", rank->name);
        return true;
    }
    if (rank->nccl == 0) {
        (void)snprintf(why, CST_TRANSPORT_WORDS, "rank %" PRIu32 " cannot use NCCL: %.320s",
                       rank->name,
                       rank->nccl_error != NULL ? rank->nccl_error : "the cause is not known");
        return true;
    }
    return false;
}

static bool has(const char *const *list, size_t n, const char *gpu)
{
    for (size_t i = 0; i < n; i++) {
        if (strcmp(list[i], gpu) == 0) {
            return true;
        }
    }
    return false;
}

/* Return whether nothing is known that prevents @from from accessing the memory of @to's GPU. */
static bool reaches(const struct cst_transport_rank *from, const struct cst_transport_rank *to)
{
    return !has(from->unreachable, from->n_unreachable, to->gpu);
}

/* Return whether one of @a and @b, which are on GPUs, cannot access the other's memory, with the
 * reason. */
static bool are_apart(const struct cst_transport_rank *a, const struct cst_transport_rank *b,
                      char why[CST_TRANSPORT_WORDS])
{
    if (reaches(a, b) && reaches(b, a)) {
        return false;
    }
    (void)snprintf(why, CST_TRANSPORT_WORDS,
                   "%.64s of rank %" PRIu32 " and %.64s of rank %" PRIu32
                   " cannot access each other's memory",
                   a->gpu, a->name, b->gpu, b->name);
    return true;
}

/* Return whether the pair @a, @b, each of which has NCCL, rules it out, with the reason. */
static bool conflict(const struct cst_transport_rank *a, const struct cst_transport_rank *b,
                     char why[CST_TRANSPORT_WORDS])
{
    if (a->nccl != b->nccl) {
        (void)snprintf(why, CST_TRANSPORT_WORDS,
                       "rank %" PRIu32 " has NCCL %" PRIu32 ".%" PRIu32 ".%" PRIu32
                       ", and rank %" PRIu32 " has NCCL %" PRIu32 ".%" PRIu32 ".%" PRIu32,
                       a->name, MAJOR(a->nccl), MINOR(a->nccl), PATCH(a->nccl), b->name,
                       MAJOR(b->nccl), MINOR(b->nccl), PATCH(b->nccl));
        return true;
    }
    if (strcmp(a->gpu, b->gpu) == 0) {
        (void)snprintf(why, CST_TRANSPORT_WORDS,
                       "ranks %" PRIu32 " and %" PRIu32
                       " are both on %.64s, and NCCL needs a GPU for each rank",
                       a->name, b->name, a->gpu);
        return true;
    }
    return are_apart(a, b, why);
}

typedef bool (*rank_fn)(const struct cst_transport_rank *rank, char why[CST_TRANSPORT_WORDS]);
typedef bool (*pair_fn)(const struct cst_transport_rank *a, const struct cst_transport_rank *b,
                        char why[CST_TRANSPORT_WORDS]);

/* Return whether @alone is true of a rank, or @together of a pair, with the reason of the first. */
static bool rules_out(const struct cst_transport_rank *ranks, size_t n, rank_fn alone,
                      pair_fn together, char why[CST_TRANSPORT_WORDS])
{
    for (size_t i = 0; i < n; i++) {
        if (alone(&ranks[i], why)) {
            return true;
        }
    }
    for (size_t i = 0; i < n; i++) {
        for (size_t j = i + 1; j < n; j++) {
            if (together(&ranks[i], &ranks[j], why)) {
                return true;
            }
        }
    }
    return false;
}

/* Return whether @rank alone rules out slots on GPUs, with the reason. */
static bool reads_none(const struct cst_transport_rank *rank, char why[CST_TRANSPORT_WORDS])
{
    if (!rank->reads_peers && rank->peers_error != NULL) {
        (void)snprintf(why, CST_TRANSPORT_WORDS,
                       "rank %" PRIu32 " cannot use memory of the GPUs: %.320s", rank->name,
                       rank->peers_error);
    } else if (!rank->reads_peers) {
        (void)snprintf(why, CST_TRANSPORT_WORDS,
                       "the library of rank %" PRIu32 " does not read memory of other ranks",
                       rank->name);
    }
    return !rank->reads_peers;
}

/* Return whether @from does not see the GPU of @to, with the reason. */
static bool is_hidden(const struct cst_transport_rank *from, const struct cst_transport_rank *to,
                      char why[CST_TRANSPORT_WORDS])
{
    if (strcmp(from->gpu, to->gpu) == 0 || has(from->reachable, from->n_reachable, to->gpu)) {
        return false;
    }
    (void)snprintf(why, CST_TRANSPORT_WORDS, "rank %" PRIu32 " does not see %.64s of rank %" PRIu32,
                   from->name, to->gpu, to->name);
    return true;
}

/* Return whether the pair @a, @b rules out slots on GPUs, with the reason. */
static bool cannot_read(const struct cst_transport_rank *a, const struct cst_transport_rank *b,
                        char why[CST_TRANSPORT_WORDS])
{
    return are_apart(a, b, why) || is_hidden(a, b, why) || is_hidden(b, a, why);
}

void cst_transport_add_reason(char why[CST_TRANSPORT_WORDS], const char *more)
{
    const size_t n = strlen(why);

    if (strcmp(why, more) != 0) {
        (void)snprintf(why + n, CST_TRANSPORT_WORDS - n, "; %s", more);
    }
}

enum cst_transport cst_transport_choose(const struct cst_transport_rank *ranks, size_t n,
                                        char why[CST_TRANSPORT_WORDS])
{
    char not_peers[CST_TRANSPORT_WORDS];

    if (count_on_gpus(ranks, n) == 0) {
        (void)snprintf(why, CST_TRANSPORT_WORDS, "all ranks have their arrays in host memory");
        return CST_TRANSPORT_HOST;
    }
    for (size_t i = 0; i < n; i++) {
        if (is_on_host(&ranks[i], why)) {
            return CST_TRANSPORT_STAGED;
        }
    }
    if (!rules_out(ranks, n, lacks, conflict, why)) {
        (void)snprintf(why, CST_TRANSPORT_WORDS,
                       "each rank has a GPU and NCCL %" PRIu32 ".%" PRIu32 ".%" PRIu32,
                       MAJOR(ranks[0].nccl), MINOR(ranks[0].nccl), PATCH(ranks[0].nccl));
        return CST_TRANSPORT_NCCL;
    }
    if (n > CST_TRANSPORT_MAX_PEERS) {
        (void)snprintf(not_peers, sizeof not_peers,
                       "memory of GPUs is for at most %d ranks, and these are %zu",
                       CST_TRANSPORT_MAX_PEERS, n);
    } else if (!rules_out(ranks, n, reads_none, cannot_read, not_peers)) {
        return CST_TRANSPORT_PEERS;
    }
    cst_transport_add_reason(why, not_peers);
    return CST_TRANSPORT_STAGED;
}
