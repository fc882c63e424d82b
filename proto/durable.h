/* SPDX-License-Identifier: Apache-2.0 */
/* The files of a durable job, as they lie on drives. Numbers have the byte order of the machine,
 * and `order` tells a machine of another one.
 *
 *   file 0      head | head | seal 0 | seal 1 | segments of rows | description
 *   file 1...   head | head | (unused)        | segments of rows
 *
 * Both heads are the same. They are written once, after the description. The description is the
 * packed JobDescription of the job and, behind it, the packed DurableLayout (proto/cistern.proto).
 * The seal of step t is written to place t mod 2 when all states of the step are on the drives.
 *
 * Each row of states has two places, `twin` bytes apart (DurableLayout). The seal says which place
 * has the states of its step. Weights are made of master weights in fp32. Weights that cannot be
 * made, because they are (a part of) the master weights, or because there are none, are a row of
 * their own, CST_ROW_WEIGHT_OTHER. Those of frozen tensors have one place, and were written before
 * the description.
 *
 * The daemon has the engines of the drives write the files (daemon/job/durable.h), and
 * client/checkpoint/adopt.c reads them. Anybody may have changed them: whoever reads a value checks
 * it. */
#ifndef CST_DURABLE_H
#define CST_DURABLE_H

#include "proto/round_up.h"
#include "proto/table.h"

#include <stdint.h>

#define CST_DURABLE_BLOCK 4096 /* All parts begin and end at multiples of this. */
#define CST_DURABLE_MAGIC UINT64_C(0x31657461747343ff) /* "\xffCstate1" */
#define CST_DURABLE_SEAL_MAGIC UINT64_C(0x316c6165537443ff)
#define CST_DURABLE_ORDER 0x01020304
#define CST_DURABLE_FORMAT 2
#define CST_DURABLE_ID_BYTES 16
#define CST_DURABLE_HEADS 2
#define CST_DURABLE_SEALS (CST_DURABLE_HEADS * CST_DURABLE_BLOCK)
/* Rows of a chunk in files, from CST_ROW_MASTER on: master weights, moments, and weights. */
#define CST_DURABLE_ROWS (CST_ROW_WEIGHT_OTHER + 1 - CST_ROW_MASTER)

struct cst_durable_head {
    uint64_t magic; /* CST_DURABLE_MAGIC */
    uint32_t order, format;
    uint8_t id[CST_DURABLE_ID_BYTES]; /* Random: all files of the job have it. */
    uint32_t file, n_files;           /* Number of this file, and of all. */
    uint32_t n_chunks, n_rows;        /* Chunks; CST_DURABLE_ROWS. */
    uint64_t seal_bytes; /* Bytes of a seal's place; the first is at CST_DURABLE_SEALS. */
    /* Of the description, in file 0: its offset and the bytes of its two parts, and the XXH3 (64
     * bits) of both. */
    uint64_t description, job_bytes, layout_bytes, description_sum;
    uint64_t sum; /* XXH3 (64 bits) of all before. */
};

struct cst_durable_seal {
    uint64_t magic; /* CST_DURABLE_SEAL_MAGIC */
    uint8_t id[CST_DURABLE_ID_BYTES];
    uint64_t step, adam_step, n_skipped, n_overflows; /* As in JobDescription. */
    double last_loss, last_grad_norm;
    double lr, beta1, beta2, eps, weight_decay, clip_norm, grad_scale; /* Of the last step. */
    uint32_t has_hyper;                                                /* 1: there was a step. */
    uint32_t place; /* 0 or 1: which place of each row has the states. */
    uint64_t sum;   /* XXH3 (64 bits) of the seal and its checksums, as if this field were 0. */
    /* n_chunks x n_rows: checksums of rows (proto/row_sum.h); 0: not known, or the description has
     * it. */
    uint64_t sums[];
};

/* Bytes of a seal and its checksums. */
static inline uint64_t cst_durable_sealed_bytes(uint32_t n_chunks)
{
    return sizeof(struct cst_durable_seal) + (uint64_t)n_chunks * CST_DURABLE_ROWS * 8;
}

/* Bytes of a seal's place. */
static inline uint64_t cst_durable_seal_bytes(uint32_t n_chunks)
{
    return cst_round_up(cst_durable_sealed_bytes(n_chunks), CST_DURABLE_BLOCK);
}

/* Bytes at the beginning of each file that no segment has. */
static inline uint64_t cst_durable_reserve(uint32_t n_chunks)
{
    return CST_DURABLE_SEALS + 2 * cst_durable_seal_bytes(n_chunks);
}

#endif
