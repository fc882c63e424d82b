/* SPDX-License-Identifier: Apache-2.0 */
/* Ctrl-C and SIGTERM: the worker finishes the current step and leaves the job properly. */
#ifndef GPT_STOP_H
#define GPT_STOP_H

#include "cistern/status.h"

/* From now on the first SIGINT or SIGTERM only requests the end; a second signal of the same kind
 * ends the process at once. A thread that computes is never interrupted: a thread of this module
 * takes the signals, and all others block them. Call it once, before other threads are started:
 * they inherit the caller's mask. CST_EIO: no descriptor. CST_ENOMEM: no thread. */
int gpt_stop_catch(struct cst_err *err);

/* Number of the signal that requested the end; 0: no signal yet. Any thread may call it. */
int gpt_stop_asked(void);

/* A descriptor that polls readable once a signal has requested the end, and from then on; -1:
 * gpt_stop_catch was not called. Any thread may poll it; nobody else reads or closes it. */
int gpt_stop_fd(void);

#endif
