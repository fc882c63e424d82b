/* SPDX-License-Identifier: Apache-2.0 */
/* What the library does for a job's struct cst_sequence: sends, reads replies, and enqueues work on
 * the device. The functions' argument is the struct cst_job. */
#ifndef CST_SEQUENCE_CALLS_H
#define CST_SEQUENCE_CALLS_H

#include "offload/worker/sequence.h"

extern const struct cst_sequence_calls cstc_sequence_calls;

#endif
