/* SPDX-License-Identifier: Apache-2.0 */
#include "offload/books/interleave.h"

#include <math.h>
#include <string.h>

/* Maximum number of simulated chunks: the pipeline is steady long before. */
#define MOST_CHUNKS 1024u
#define MOST_BUFFERS 8u
#define MOST_NODES 8u

/* State of an accelerator and its link. Times in seconds. */
struct link {
    /* When each direction is free; if they share the link, up_free holds for both. */
    double up_free, down_free;
    /* When the accelerator is free. */
    double device_free;
    double left[MOST_BUFFERS];   /* Per buffer: when the previous chunk has left it. */
    uint32_t next;               /* Next buffer to use. */
    double fetches[MOST_CHUNKS]; /* When weights are ready to be copied up, in this order. */
    uint32_t n_fetches, first_fetch;
};

static double later(double a, double b)
{
    return a > b ? a : b;
}

static double *down_lane(const struct cst_interleave *m, struct link *l)
{
    return m->shared ? &l->up_free : &l->down_free;
}

/* Copy up the weights that are ready before a copy of states could begin at @at. */
static void serve_fetches(const struct cst_interleave *m, struct link *l, double at)
{
    while (l->first_fetch < l->n_fetches && l->fetches[l->first_fetch] <= later(l->up_free, at)) {
        l->up_free = later(l->up_free, l->fetches[l->first_fetch++]) +
                     m->chunk_elems * m->fetch_bytes / m->up;
    }
}

/* Simulate the update of a chunk on the accelerator. Returns the time when all of it is copied
 * back. */
static double go_through(const struct cst_interleave *m, struct link *l)
{
    double *lane = down_lane(m, l);
    double at;

    serve_fetches(m, l, l->left[l->next]);
    at = later(l->up_free, l->left[l->next]) + m->chunk_elems * m->up_bytes / m->up;
    l->up_free = at;
    at = later(at, l->device_free) + m->chunk_elems / m->device_elems;
    l->device_free = at;
    at = later(at, *lane) + m->chunk_elems * m->down_bytes / m->down;
    *lane = at;
    l->left[l->next] = at;
    l->next = (l->next + 1) % m->buffers;
    return at;
}

static bool has_rates(const struct cst_interleave *m)
{
    return m->n_links > 0 && m->buffers > 0 && m->node_elems > 0 && m->device_elems > 0 &&
           m->up > 0 && m->down > 0;
}

double cst_interleave_seconds(const struct cst_interleave *machine, uint32_t k)
{
    struct cst_interleave m = *machine;
    struct link links[CST_INTERLEAVE_MAX_LINKS];
    uint32_t n = m.n_chunks < MOST_CHUNKS ? m.n_chunks : MOST_CHUNKS;
    double node[MOST_NODES] = {0}; /* When each node has finished its updates. */
    double node_chunk;             /* Seconds per chunk of a node's engine. */
    uint32_t turn = 0;
    double end = 0;

    m.n_nodes = m.n_nodes == 0 ? 1 : m.n_nodes < MOST_NODES ? m.n_nodes : MOST_NODES;
    node_chunk = m.chunk_elems * m.n_nodes / m.node_elems;
    if (k == CST_INTERLEAVE_NEVER || !has_rates(&m)) {
        return (m.n_chunks + m.n_nodes - 1) / m.n_nodes * node_chunk;
    }
    m.n_links = m.n_links < CST_INTERLEAVE_MAX_LINKS ? m.n_links : CST_INTERLEAVE_MAX_LINKS;
    m.buffers = m.buffers < MOST_BUFFERS ? m.buffers : MOST_BUFFERS;
    for (uint32_t i = 0; i < m.n_links; i++) {
        links[i].n_fetches = links[i].first_fetch = links[i].next = 0;
        links[i].up_free = links[i].down_free = links[i].device_free = 0;
        memset(links[i].left, 0, sizeof links[i].left);
    }
    for (uint32_t i = 0; i < n; i++) {
        struct link *l = &links[turn % m.n_links];
        double *own = &node[i % m.n_nodes];

        if ((i / m.n_nodes + 1) % k != 0) {
            *own += node_chunk;
            end = later(end, *own);
            l->fetches[l->n_fetches++] = *own;
        } else {
            end = later(end, go_through(&m, l));
            turn++;
        }
    }
    /* Scale the time if not all chunks were simulated. */
    return n == 0 ? 0 : end * m.n_chunks / n;
}

uint32_t cst_interleave_choose(const struct cst_interleave *machine)
{
    uint32_t most =
        machine->n_chunks < CST_INTERLEAVE_MOST ? machine->n_chunks : CST_INTERLEAVE_MOST;
    uint32_t best = CST_INTERLEAVE_NEVER;
    double least;

    if (!has_rates(machine)) {
        return CST_INTERLEAVE_NEVER;
    }
    least = (1 - CST_INTERLEAVE_MARGIN) * cst_interleave_seconds(machine, CST_INTERLEAVE_NEVER);
    for (uint32_t k = most; k > 0; k--) {
        double seconds = cst_interleave_seconds(machine, k);

        /* The tolerance keeps rounding errors from preferring a smaller k that is not faster. */
        if (seconds < least * (1 - 1e-9)) {
            least = seconds;
            best = k;
        }
    }
    return best;
}
