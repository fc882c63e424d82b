/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/net/complaints.h"

#include "proto/clock.h"

#include <inttypes.h>

#define PAUSE_NS 1000000000u

void cste_complaints_init(struct cste_complaints *complaints,
                          void (*warn)(const struct cst_err *what))
{
    *complaints = (struct cste_complaints){.warn = warn};
    (void)pthread_mutex_init(&complaints->mutex, NULL);
}

void cste_complaints_close(struct cste_complaints *complaints)
{
    (void)pthread_mutex_destroy(&complaints->mutex);
}

void cste_complain(struct cste_complaints *complaints, const char *who, const struct cst_err *why)
{
    uint64_t now = cst_clock_ns(), skipped = 0;
    struct cst_err line;
    bool tell;

    (void)pthread_mutex_lock(&complaints->mutex);
    tell = complaints->last_ns == 0 || now - complaints->last_ns >= PAUSE_NS;
    if (tell) {
        skipped = complaints->n_skipped;
        complaints->n_skipped = 0;
        complaints->last_ns = now;
    } else {
        complaints->n_skipped++;
    }
    (void)pthread_mutex_unlock(&complaints->mutex);
    if (!tell || complaints->warn == NULL) {
        return;
    }
    if (skipped > 0) {
        (void)cst_err_set(&line, why->status, "refused %s: %s (and %" PRIu64 " others before)", who,
                          why->text, skipped);
    } else {
        (void)cst_err_set(&line, why->status, "refused %s: %s", who, why->text);
    }
    complaints->warn(&line);
}
