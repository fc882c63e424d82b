/* SPDX-License-Identifier: Apache-2.0 */
/* Events: points in streams. */
#ifndef CST_FAKE_EVENT_H
#define CST_FAKE_EVENT_H

#include <cuda.h>
#include <stddef.h>

/* End the events of @context, which ends, and name them on stderr. Called with the lock. */
void cst_fake_events_end(CUcontext context);

/* Number of events that were created and not destroyed. */
size_t cst_fake_n_events(void);

#endif
