/* SPDX-License-Identifier: Apache-2.0 */
/* Ctrl-C and SIGTERM: the worker finishes the current step and leaves the job properly. */
#ifndef GPT_STOP_H
#define GPT_STOP_H

/* From now on the first SIGINT or SIGTERM only requests the end; a second signal of the same kind
 * ends the process at once. System calls that wait are interrupted (EINTR). Call it once, from any
 * thread. */
void gpt_stop_catch(void);

/* Number of the signal that requested the end; 0: no signal yet. Any thread may call it. */
int gpt_stop_asked(void);

#endif
