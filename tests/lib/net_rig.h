/* SPDX-License-Identifier: Apache-2.0 */
/* Engines of networks (cistern-engine-net) that read from each other, each as the one of a machine.
 * For tests and benchmarks. An error that must not occur in them ends the program with abort(). */
#ifndef NET_RIG_H
#define NET_RIG_H

#include "tests/lib/engine_proc.h"

#include <stdbool.h>

/* Segments of each machine. */
enum {
    NET_SERVED = 1, /* host memory that peers may read */
    NET_OWN = 2,    /* host memory that they may not */
    NET_REMOTE = 3, /* the first segment of another machine */
};

#define NET_BYTES (((uint64_t)8 << 20) + 100) /* of NET_SERVED and NET_OWN */

struct net_machine {
    struct engine_proc proc;
    uint32_t number;
    char *served, *own; /* the memory of NET_SERVED and NET_OWN */
    uint64_t ticket;    /* of the last command */
};

/* The token of a job and epoch, for net_peer. Two of different seeds differ. */
struct net_token {
    uint8_t bytes[16];
};
struct net_token net_token(uint8_t seed);

/* Start machine @number with @transport, listening at @listen, with @lanes lanes. Its memory has
 * random bytes of @seed, but for NET_OWN, which is zeroed. Standard error goes to @stderr_fd (-1:
 * not redirected). */
void net_start(struct net_machine *machine, uint32_t number, const char *transport,
               const char *listen, unsigned lanes, uint64_t seed);

/* Close the engine; it must end without an error. */
void net_stop(struct net_machine *machine);

/* The engine's answer to PEER_ADD and PEER_DROP. */
struct net_peer_done {
    int status;
    char text[640];
};

/* Add the machine @number, reached at @end, as a peer of @machine. */
struct net_peer_done net_add(struct net_machine *machine, uint32_t number, Engine__NetEnd *end,
                             struct net_token token);

/* Make two machines peers of each other. */
void net_meet(struct net_machine *a, struct net_machine *b, struct net_token token);

struct net_peer_done net_drop(struct net_machine *machine, uint32_t number, const char *cause);

/* Add segment @there of machine @number, of @bytes, as segment @id of @machine. */
struct engine_segment_done net_add_remote(struct net_machine *machine, uint32_t id, uint32_t number,
                                          uint32_t there, uint64_t bytes);

/* Submit a COPY, or submit it and wait. Net_copy returns NULL if the engine ended. */
uint64_t net_submit(struct net_machine *machine, struct cst_place dst, struct cst_place src,
                    uint64_t bytes);
const struct engine_completion *net_copy(struct net_machine *machine, struct cst_place dst,
                                         struct cst_place src, uint64_t bytes);

/* What went between @machine and machine @number. All 0: it was never a peer. */
struct net_traffic {
    uint64_t pulled_bytes, pulled, served_bytes, served, damaged;
};
struct net_traffic net_traffic(struct net_machine *machine, uint32_t number);

#endif
