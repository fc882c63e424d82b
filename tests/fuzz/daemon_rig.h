/* SPDX-License-Identifier: Apache-2.0 */
/* A whole daemon in one process, for fuzz targets. An input determines messages of three
 * connections, completions of commands, and deaths of the engines and of connections. The engines
 * are those of fake_engine.h. The rig aborts in these cases:
 *
 * - an invariant of a core does not hold;
 * - a request gets no reply, or two;
 * - something of a connection or a job, such as memory, is left after all of them have ended.
 *
 * An input is a list of steps. A step is a byte (enum rig_op), followed by its arguments:
 *
 *   FRAME    session u8, type u8, body bytes u16, body     sends a request with the next id
 *   RAW      session u8, bytes u16, bytes                  sends the bytes
 *   ENGINE   how u8                                        the fake engine completes its commands;
 *                                                          every how-th command fails
 *   KILL                                                   the engines die
 *   CLOSE    session u8                                    the connection is closed, and another
 *                                                          one is opened
 */
#ifndef DAEMON_RIG_H
#define DAEMON_RIG_H

#include "daemon/base/daemon_state.h"

#include <stddef.h>
#include <stdint.h>

/* The kinds of steps. */
enum rig_op { RIG_FRAME, RIG_RAW, RIG_ENGINE, RIG_KILL, RIG_CLOSE, RIG_OPS };

/* The number of connections. Connections 0 and 1 belong to user RIG_UID, connection 2 to another.
 */
enum { RIG_SESSIONS = 3, RIG_UID = 4710 };

/* What is left of an input; borrowed. */
struct rig_input {
    const uint8_t *at, *end;
};

extern struct cstd_daemon rig_daemon;

/* Start the daemon, once. @adjust may change its settings; NULL: it does not. */
void rig_start(void (*adjust)(struct cstd_settings *));

/* Open connection @i, or close it if it is open. */
void rig_open(unsigned i);
void rig_close(unsigned i);

/* Let the daemon do all that it can do now, read the replies, and check the cores. */
void rig_turn(void);

/* Let the engines and the daemon work until they rest. */
void rig_settle(void);

/* Take a byte, or a length of two bytes with as many bytes as it says, from @in. What is missing at
 * its end is 0, or left out. */
unsigned rig_take_byte(struct rig_input *in);
const uint8_t *rig_take_bytes(struct rig_input *in, size_t *n);

/* Do the step @op, whose arguments are next in @in. */
void rig_step(enum rig_op op, struct rig_input *in);

/* End all jobs and connections, and check that nothing is left. */
void rig_end(void);

#endif
