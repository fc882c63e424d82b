/* SPDX-License-Identifier: Apache-2.0 */
/* Lines for people about what came over the network and was refused. Strangers cause them, so that
 * there is at most one line a second; it tells how many were left out before. Any thread. */
#ifndef CST_NET_COMPLAINTS_H
#define CST_NET_COMPLAINTS_H

#include "cistern/status.h"

#include <pthread.h>
#include <stdint.h>

struct cste_complaints {
    void (*warn)(const struct cst_err *what); /* NULL: nobody is told. */
    pthread_mutex_t mutex;
    uint64_t last_ns;   /* When the last line was written; 0: there was none. */
    uint64_t n_skipped; /* Lines that were left out since. */
};

void cste_complaints_init(struct cste_complaints *complaints,
                          void (*warn)(const struct cst_err *what));
void cste_complaints_close(struct cste_complaints *complaints);

/* Tell that what came from @who (an address) was refused because of @why. */
void cste_complain(struct cste_complaints *complaints, const char *who, const struct cst_err *why);

#endif
