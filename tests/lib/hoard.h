/* SPDX-License-Identifier: Apache-2.0 */
/* What a user can hold (tests/BUDGETS.md): USER_ALICE takes as much as she can of one thing until
 * she is refused, on a daemon of user_rig.h. One hoard at a time in a process. All functions fail
 * the running test on an error. */
#ifndef HOARD_H
#define HOARD_H

#include "tests/lib/raw_client.h"

#include <sys/types.h>

/* One thing that a user can hold. */
struct hoard {
    const char *name;
    const char *config;      /* The daemon's configuration. */
    const char *host, *pool; /* The daemon's options with its budgets. */
    bool keeps;              /* The daemon's jobs are kept, as a service manager does. */
    bool cleared;            /* The daemon clears what is charged, again and again. */
    void (*begin)(void);     /* Done once, before the first piece; NULL: nothing. */
    int (*take)(unsigned n); /* Take piece @n. Returns the status. */
    int status;              /* Status of the refusal. */
    const char *words;       /* What the refusal says: limit and key. */
    /* Bytes of each piece at most, of which the limit is a number: twice what was measured. 0: the
     * limit is in bytes, and budgets say what the daemon has. */
    uint64_t most_bytes;
};

extern const struct hoard hoards[];
extern const unsigned n_hoards;

/* Start the daemon of @hoard. */
void hoard_start(const struct hoard *hoard);

/* Let alice take pieces until she is refused as @hoard says. Returns the number of pieces. */
unsigned hoard_fill(const struct hoard *hoard);

/* Let alice, who holds @n pieces, ask for one more, which is refused as before. */
void hoard_ask_again(const struct hoard *hoard, unsigned n);

/* Close all that alice has. */
void hoard_drop(void);

/* The text of the last refusal. */
const char *hoard_refusal(void);

/* Declare tensor number @i of @client's job with many long names, and an operator that uses it.
 * Returns the status. */
int hoard_declare(struct raw_client *client, uint32_t i);

/* Bytes of memory that process @daemon has: its own, and its files in memory with those that
 * process @keeper keeps (0: none does). */
uint64_t hoard_memory(pid_t daemon, pid_t keeper);

/* Bytes that the daemon says are in use, of all its budgets. */
uint64_t hoard_budgeted(void);

#endif
