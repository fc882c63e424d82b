/* SPDX-License-Identifier: Apache-2.0 */
/* Tells `cistern run`, if it has started this process, that the job makes steps. Until then the
 * program treats the failure of a rank as one of the start, which would happen again. */
#ifndef CST_STEPPED_H
#define CST_STEPPED_H

/* The environment variable with the path of a file of `cistern run`. A byte in it means that a rank
 * has made a step. */
#define CSTC_STEPPED "CISTERN_STEPPED"

/* The name of the file, which memfd_create makes. */
#define CSTC_STEPPED_NAME "cistern-stepped"

/* Write a byte to the file, if the variable is set. If the path leads to no such file, as in a
 * container with processes of its own or when `cistern run` has ended, nothing is written, and
 * `cistern run` does not hear of steps. */
void cstc_stepped_tell(void);

#endif
