/* SPDX-License-Identifier: Apache-2.0 */
/* Several machines in one process and one loop, connected over TCP on the loopback interface, and a
 * stranger who can do as he likes. The clock of daemon/links can be advanced: programs that use
 * this are linked with --wrap=uv_hrtime. */
#ifndef CST_TESTS_LINK_RIG_H
#define CST_TESTS_LINK_RIG_H

#include "daemon/links/links_state.h"

#include <stdbool.h>

enum { LINK_RIG_MACHINES = 3, LINK_RIG_TYPE = CSTD_LINK_FIRST_TYPE + 3 };

struct link_machine {
    struct cstd_links_config config;
    struct cstd_links *links; /* NULL: the machine is not running. */
    char fingerprint[CST_FINGERPRINT_BYTES];
    struct cstd_links_watch watch;
    unsigned n_up, n_down, n_drain; /* Events. */
    bool is_up[LINK_RIG_MACHINES];  /* What the events say of each machine. */
    struct cst_err why;             /* Of the last down. */
    uint64_t n_got;                 /* Messages of LINK_RIG_TYPE that have come. */
    bool is_wrong;                  /* They were not the numbers 0, 1, 2 ... */
};

/* What a stranger has of one connection. */
struct link_stranger {
    struct cstd_connection_home home;
    struct cstd_tls_context *context;
    struct cstd_connection *connection; /* NULL: it has ended. */
    struct cstd_hello hello;            /* What he says as soon as he can; instance 0: nothing. */
    bool is_secure;                     /* The handshake is complete on this side. */
    unsigned n_frames;                  /* Frames that have come. */
    bool is_welcome;                    /* A WELCOME has come. */
    char refusal[640];                  /* The words of a REFUSED that has come. */
    struct cst_err why;                 /* Why the connection has ended. */
};

struct link_rig {
    uv_loop_t loop;
    struct cstd_deferred_queue later;
    uv_prepare_t prepare;
    char dir[64];
    struct link_machine machines[LINK_RIG_MACHINES]; /* "a", "b", "c". */
};

extern struct link_rig link_rig; /* The one of the test. */

/* Make directories and keys, no machine runs; free everything. For setup and teardown. */
void link_rig_open(void);
void link_rig_close(void);

/* Let the machine start, as the @instance-th start of its daemon, or stop. */
void link_rig_start(unsigned i, uint64_t instance);
void link_rig_stop(unsigned i);

/* Add machine @j to the list of machine @i; two machines that trust each other are started first.
 */
void link_rig_trust(unsigned i, unsigned j);

/* Return the machine @j in the list of @i. */
struct cstd_machine *link_rig_find(unsigned i, unsigned j);
bool link_rig_is_up(unsigned i, unsigned j);

/* Run the loop until both have a link to each other. */
void link_rig_connect(unsigned i, unsigned j);

/* Run the loop until *@flag, or fail the test after some time. */
void link_rig_until(const bool *flag);
/* Run the loop until @is_so returns true, or fail the test. */
void link_rig_wait(bool (*is_so)(void *arg), void *arg);
/* Run the loop once. */
void link_rig_turn(void);

/* Advance the clock of daemon/links at once, or let time pass for machine @i: until its next tick.
 */
void link_rig_advance(unsigned ms);
void link_rig_pass(unsigned i, unsigned ms);

/* Connect to machine @i as somebody with the files @key and @certificate. */
void link_stranger_dial(struct link_stranger *stranger, unsigned i, const char *key,
                        const char *certificate);
/* Let him have all that a machine has: its key, its name, and the digest of its kernels. */
void link_stranger_pose(struct link_stranger *stranger, unsigned i, unsigned as);
void link_stranger_close(struct link_stranger *stranger);

/* Path of a file of machine @i, in a static buffer that the next call but three overwrites. */
const char *link_rig_path(unsigned i, const char *name);

#endif
