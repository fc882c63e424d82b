/* SPDX-License-Identifier: Apache-2.0 */
/* What an input of the session target says. It feeds a whole daemon in one process: messages of
 * three connections, completions, deaths of the engine and of connections. The engine is a fake
 * (fake_engine.h). The target aborts where an invariant of a core does not hold, where a request
 * gets no reply or two, and where something is left after all connections and jobs are gone.
 *
 * An input is a list of steps, each a byte (enum fuzz_op) and what the step needs:
 *
 *   FRAME    session u8, type u8, body bytes u16, body     a request with the next id
 *   RAW      session u8, bytes u16, bytes                  whatever the bytes are
 *   ENGINE   how u8                                        the fake engine completes its commands;
 *                                                          every how-th of them fails
 *   KILL                                                   the engine dies
 *   CLOSE    session u8                                    the connection is closed and made anew
 */
#ifndef FUZZ_SESSION_H
#define FUZZ_SESSION_H

enum fuzz_op { FUZZ_FRAME, FUZZ_RAW, FUZZ_ENGINE, FUZZ_KILL, FUZZ_CLOSE, FUZZ_OPS };

#define FUZZ_SESSIONS 3 /* connections 0 and 1 are of one user, connection 2 is of another */

#endif
