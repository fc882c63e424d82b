/* SPDX-License-Identifier: Apache-2.0 */
/* What one user can do to a daemon so that another one suffers: each attack is a process of alice's
 * (user.h), which goes on, round after round, until it is told to stop. It takes refusals, closed
 * connections and silence as they come. */
#ifndef ATTACK_H
#define ATTACK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <sys/types.h>

struct attack {
    const char *name;
    const char *words; /* what it does, a sentence's end */
    unsigned n_rounds; /* after which the attacker holds what it can get, or has begun */
};

extern const struct attack attacks[];
extern const unsigned n_attacks;

/* In memory that the attacker shares with the test. */
struct attack_state {
    atomic_uint n_rounds;  /* done */
    atomic_uint n_refused; /* requests that were answered with an error, or not at all */
    atomic_bool stop;      /* set by the test */
};

/* A new process that makes attack number @attack on the daemon at @socket. It runs at the lowest
 * priority: what it costs others is to be the daemon's time, not the processors'. */
pid_t attack_start(unsigned attack, const char *socket, struct attack_state *state);

/* Wait until it has had @n_rounds. False: it has ended. */
bool attack_await(pid_t attacker, const struct attack_state *state, unsigned n_rounds);

/* Have it stop, with all that it holds given up by its end. Fails the test if it has not ended
 * well. */
void attack_stop(pid_t attacker, struct attack_state *state);

#endif
