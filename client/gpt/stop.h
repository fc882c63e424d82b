/* SPDX-License-Identifier: Apache-2.0 */
/* Ctrl-C and SIGTERM: the step under way is finished, the job is left in good order. */
#ifndef GPT_STOP_H
#define GPT_STOP_H

/* From now on the first SIGINT or SIGTERM only asks for the end; a second one of the same kind ends
 * the process at once. Calls that wait are interrupted (EINTR). Any thread, once. */
void gpt_stop_catch(void);

/* The signal that asked for the end; 0: none has. Any thread. */
int gpt_stop_asked(void);

#endif
