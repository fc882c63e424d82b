/* A whole daemon in one process, fed with what a hostile input says: messages of three connections,
 * completions, deaths of the engine and of connections. The engine is a fake (fake_engine.h).
 * Aborts where an invariant of a core does not hold, a request has no answer or two, or something
 * is left when all connections and jobs are gone.
 *
 * An input is a list of steps, each a byte (enum fuzz_op) and what it needs:
 *
 *   FRAME    session u8, type u8, body bytes u16, body     a request with the next id
 *   RAW      session u8, bytes u16, bytes                  whatever it is
 *   ENGINE   how u8                                        the fake engine does what it has; fails
 *                                                          every how-th command
 *   KILL                                                   it dies
 *   CLOSE    session u8                                    the connection is closed and made anew
 */
#ifndef FUZZ_SESSION_H
#define FUZZ_SESSION_H

#include <stddef.h>
#include <stdint.h>

enum fuzz_op { FUZZ_FRAME, FUZZ_RAW, FUZZ_ENGINE, FUZZ_KILL, FUZZ_CLOSE, FUZZ_OPS };

#define FUZZ_SESSIONS 3 /* 0 and 1: one user; 2: another */

/* Do what @data says, from an empty daemon to an empty daemon. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

#endif
