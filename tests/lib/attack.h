/* SPDX-License-Identifier: Apache-2.0 */
/* Attacks with which one user could harm another user's jobs on a daemon. Each attack is a process
 * of USER_ALICE (user.h). It works in rounds until the test stops it, and goes on after refusals,
 * closed connections and missing replies. */
#ifndef ATTACK_H
#define ATTACK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <sys/types.h>

/* A kind of attack. */
struct attack {
    const char *name;
    const char *words; /* what the attack does, as the end of a sentence */
    /* Number of rounds after which the attack has begun, or holds all that it can obtain. */
    unsigned n_rounds;
};

/* All attacks; n_attacks is their number. */
extern const struct attack attacks[];
extern const unsigned n_attacks;

/* Memory that the attacker shares with the test. */
struct attack_state {
    atomic_uint n_rounds;  /* rounds that are done */
    atomic_uint n_refused; /* requests that were answered with an error, or not at all */
    atomic_bool stop;      /* set by the test; the attacker then ends */
};

/* Start a process that makes the attack number @attack on the daemon at @socket. The process has
 * the lowest priority, so that it costs others only the daemon's time, not the processors'. Returns
 * the process id. The test ends it with attack_stop. */
pid_t attack_start(unsigned attack, const char *socket, struct attack_state *state);

/* Wait until the attacker has done @n_rounds. False if the attacker has ended. */
bool attack_await(pid_t attacker, const struct attack_state *state, unsigned n_rounds);

/* Stop the attacker, whose end releases all that it holds. Fails the test if the attacker did not
 * end with status 0. */
void attack_stop(pid_t attacker, struct attack_state *state);

#endif
