/* SPDX-License-Identifier: Apache-2.0 */
/* The format of an input of the session target. The target runs a whole daemon in one process. An
 * input determines messages of three connections, completions of commands, and deaths of the engine
 * and of connections. The engine is that of fake_engine.h. The target aborts in these cases:
 *
 * - an invariant of a core does not hold;
 * - a request gets no reply, or two;
 * - something of a connection or a job, such as memory, is left after all of them have ended.
 *
 * An input is a list of steps. A step is a byte (enum fuzz_op), followed by its arguments:
 *
 *   FRAME    session u8, type u8, body bytes u16, body     sends a request with the next id
 *   RAW      session u8, bytes u16, bytes                  sends the bytes
 *   ENGINE   how u8                                        the fake engine completes its commands;
 *                                                          every how-th command fails
 *   KILL                                                   the engine dies
 *   CLOSE    session u8                                    the connection is closed, and another
 *                                                          one is opened
 */
#ifndef FUZZ_SESSION_H
#define FUZZ_SESSION_H

/* The kinds of steps. */
enum fuzz_op { FUZZ_FRAME, FUZZ_RAW, FUZZ_ENGINE, FUZZ_KILL, FUZZ_CLOSE, FUZZ_OPS };

/* The number of connections. Connections 0 and 1 belong to one user, connection 2 to another. */
#define FUZZ_SESSIONS 3

#endif
