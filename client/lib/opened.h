/* SPDX-License-Identifier: Apache-2.0 */
/* Tells `cistern run`, if it has started this process with standbys (--standby), how far the
 * process is: the program knows which rank a standby has become, and that a rank which dies from
 * now on is given to a standby. */
#ifndef CST_OPENED_H
#define CST_OPENED_H

#include <stdint.h>

/* The environment variable "PLACE INODE PATH": the place of this process in a list of `cistern
 * run`, and a pipe to which the library writes. */
#define CSTC_OPENED "CISTERN_OPENED"

enum cstc_opened_what {
    CSTC_OPENED_JOB,       /* The process has opened a job as a rank. */
    CSTC_OPENED_COMMITTED, /* The job is committed. */
    CSTC_OPENED_LEFT,      /* The process has left the job in good order. */
    CSTC_OPENED_ENDED,     /* The job for which a standby has waited is over. */
};

/* What is written to the pipe, in one piece. */
struct cstc_opened {
    uint32_t place; /* As the variable has it. */
    uint32_t what;  /* enum cstc_opened_what. */
    uint32_t rank;  /* Among the ranks on this node; 0: not known. */
};

/* Write @what of the process, which is @rank, if the variable is set. If the path leads to no such
 * pipe, as in a container with processes of its own, nothing is written. */
void cstc_opened_tell(enum cstc_opened_what what, uint32_t rank);

#endif
