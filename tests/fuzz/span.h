/* SPDX-License-Identifier: Apache-2.0 */
/* The format of an input of the span target, which fuzzes what daemons of other nodes say of jobs
 * on several nodes (proto/span.proto). The daemon is that of daemon_rig.h, with the links of
 * fake_links.h. In addition to what the rig checks, the target aborts if a job that has ended holds
 * a node.
 *
 * The first byte of an input, modulo SPAN_WORLDS, is the number of a script of span_script.c, whose
 * steps come first. Then come those of the input. A step is one of daemon_rig.h, or one of these:
 *
 *   LINK     node u8, up u8                        the link comes up, or goes down
 *   TELL     node u8, type u8, how u8,             the node sends a message: one that a node which
 *            bytes u16, bytes                      works well sends, with fields that replace those
 *                                                  of it, or the bytes alone (enum span_how)
 *   DROP     node u8                               a manager drops the node, or adds it
 */
#ifndef SPAN_H
#define SPAN_H

#include "tests/fuzz/daemon_rig.h"

#include <stddef.h>
#include <stdint.h>

enum { SPAN_LINK = RIG_OPS, SPAN_TELL, SPAN_DROP, SPAN_OPS };

/* Bits of `how`. */
enum span_how {
    SPAN_VALID = 1,    /* The message begins with what a node that works well says. */
    SPAN_MIRROR = 2,   /* ... or else with the last one of the type that the daemon has sent. */
    SPAN_KEY = 4,      /* It names the job, and the life of the node's part in it. */
    SPAN_LATER = 8,    /* ... or another life. */
    SPAN_MINE = 16,    /* ... or the daemon's. */
    SPAN_DECIDES = 32, /* A valid message of a core decides on the step that is under way. */
};

/* Scripts: no steps; first rank 0; first rank 1; a part that takes the place of a lost one. */
enum { SPAN_NONE, SPAN_FIRST, SPAN_SECOND, SPAN_REPLACES, SPAN_WORLDS };

/* Write script @world to @out, and return its length, at most @max. */
size_t span_script(unsigned world, uint8_t *out, size_t max);

#endif
