/* SPDX-License-Identifier: Apache-2.0 */
/* Exchange of a mixture's rows: all-to-all calls of a communicator carry rows to the ranks of the
 * experts that they chose, and results back. The rows are in host memory or in the memory of a GPU,
 * and their numbers always in host memory. A row that chose several experts is sent to each of
 * them. The order of the rows in the arrays of a rank:
 *
 *   sent rows       by the rank of their expert, then by expert, then as the caller likes
 *   received rows   by the rank that sent them, then by expert, then as they were sent
 *
 * A result has the place of its row. All ranks make the same calls in the same order. The calls
 * return the statuses of cst_comm_wait. */
#ifndef GPT_EXCHANGE_H
#define GPT_EXCHANGE_H

#include "cistern/comm.h"

#define GPT_EXCHANGE_MAX_RANKS CST_COMM_MAX_THREADS
#define GPT_EXCHANGE_WORDS 64

/* The communicators of all ranks of a mixture. */
struct gpt_exchange_comms {
    struct cst_comm *host; /* for arrays in host memory; NULL: this rank has no peers */
    struct cst_comm *rows; /* for arrays in the memory that has the rows; may be `host` */
};

struct gpt_exchange {
    struct gpt_exchange_comms comms; /* borrowed; NULL: this rank has all experts and no peers */
    uint32_t rank, world;            /* 0 of 1 without peers */
    uint32_t experts;                /* experts of all ranks */
    uint64_t call;                   /* last call that carries rows; 0: all have ended */
    /* Rows for the sender's own experts are neither sent nor received. Without peers no row is. */
    bool skips_own;
};

/* Begin to use @comms, which are borrowed. */
void gpt_exchange_begin(struct gpt_exchange *x, struct gpt_exchange_comms comms, uint32_t experts,
                        bool skips_own);

/* Compare @words of all ranks: the form of the rows, in at most GPT_EXCHANGE_WORDS bytes with the
 * NUL. CST_EMISMATCH: they differ, and the error names two ranks. */
int gpt_exchange_agree(struct cst_comm *comm, const char *words, struct cst_err *err);

#define GPT_EXCHANGE_MAX_ROWS INT32_MAX /* most rows of all ranks together in an exchange */

/* Gather into @all the numbers of rows of all ranks: all[r * experts + e] rows of rank r chose
 * expert e. @own: those of this rank, not in @all. CST_EMISMATCH: together they are more than
 * GPT_EXCHANGE_MAX_ROWS. Therefore no sum of them is too large for 32 bits, whatever other ranks
 * write. */
int gpt_exchange_counts(const struct gpt_exchange *x, const uint32_t *own, uint32_t *all,
                        struct cst_err *err);

/* The functions below have as @all what gpt_exchange_counts has filled in. Numbers of rows that
 * this rank sends and receives. */
size_t gpt_exchange_n_sent(const struct gpt_exchange *x, const uint32_t *all);
size_t gpt_exchange_n_received(const struct gpt_exchange *x, const uint32_t *all);

/* Place of this rank's first row for @expert among the sent rows. */
size_t gpt_exchange_sent_at(const struct gpt_exchange *x, const uint32_t *all, uint32_t expert);

/* Place of the first row of rank @from for @expert, an expert of this rank, among the received
 * rows. */
size_t gpt_exchange_received_at(const struct gpt_exchange *x, const uint32_t *all, uint32_t from,
                                uint32_t expert);

/* Begin to carry the rows @sent of all ranks to @received. The arrays do not overlap. The function
 * waits for the call before this one. What follows in the stream of a GPU finds the rows in place;
 * on the host they are in place after gpt_exchange_wait. */
int gpt_exchange_send(struct gpt_exchange *x, const uint32_t *all, const void *sent, void *received,
                      size_t row_bytes, struct cst_err *err);

/* Begin to carry @results, in the order of the received rows, back to @returned, in the order of
 * the sent rows. Otherwise as gpt_exchange_send. */
int gpt_exchange_return(struct gpt_exchange *x, const uint32_t *all, const void *results,
                        void *returned, size_t row_bytes, struct cst_err *err);

/* Wait until the last call that was begun has ended. */
int gpt_exchange_wait(struct gpt_exchange *x, struct cst_err *err);

#endif
