/* SPDX-License-Identifier: Apache-2.0 */
/* The core of machine 1 of a job on two machines, for tests: one rank, one node, and a tensor in
 * each chunk. Tests play machine 0 and the engines. */
#ifndef TESTS_MACHINES_RIG_H
#define TESTS_MACHINES_RIG_H

#include "offload/core/core.h"

#define MACHINES_RIG_CHUNKS 4
#define MACHINES_RIG_ELEMS 8192 /* of each tensor */
#define MACHINES_RIG_ENGINE 9   /* the one that copies from other machines */
#define MACHINES_RIG_TICKETS 256

struct machines_rig {
    struct cst_model model;
    struct cst_layout layout;
    struct cst_core *core;
    struct cst_actions actions;
    struct cst_table_header *table;
    struct cst_core_pool pools[2];
    /* What the core will be opened with; tests change it before. */
    struct cst_core_machines machines;
    struct cst_core_config config;
    struct cst_layout_config how;
    struct cst_err err;
    uint32_t segments[64];
    uint64_t tag;   /* of the last request */
    uint64_t epoch; /* of what machine 0 tells */
    uint64_t now;   /* the time of the next event, ns */
    /* What the last event has made the core do. */
    struct cst_reply replies[8];
    struct cst_machine_message told[16];
    uint32_t n_replies, n_told;
    struct cst_command commands[8]; /* The first ones. */
    uint32_t n_commands;
    uint64_t tickets[MACHINES_RIG_TICKETS]; /* of commands that are not complete */
    uint32_t n_tickets;
};

extern struct machines_rig rig;

/* Declare the model, and fill in what the core is opened with; free all. */
void machines_rig_setup(void);
void machines_rig_teardown(void);

/* Open the core; returns its status, with rig.err. */
int machines_rig_try_open(void);

/* Give @event to the core. */
void machines_rig_feed(struct cst_event event);

/* Complete all commands, and those that follow. */
void machines_rig_complete(void);

/* Machine 0 tells @message, in the epoch rig.epoch. */
void machines_rig_hear(struct cst_machine_message message);

/* Make a request of rank 0 in attempt 1. Returns the first reply. */
struct cst_reply machines_rig_ask(enum cst_event_kind kind, uint32_t chunk, uint64_t generation);

/* Open the core, and bring it to attempt 1. */
void machines_rig_begin(void);

/* The decision that commits step 0. */
struct cst_decision machines_rig_decision(void);

struct cst_core_stats machines_rig_stats(void);

#endif
