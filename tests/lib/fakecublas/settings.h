/* SPDX-License-Identifier: Apache-2.0 */
/* The environment of the stand-in for cuBLASLt; README.md lists it. What makes no sense ends the
 * process with words. Any thread. */
#ifndef FAKECUBLAS_SETTINGS_H
#define FAKECUBLAS_SETTINGS_H

#include <cublasLt.h>
#include <stdbool.h>

#define SETTINGS_MAX_ALGOS 8

/* The order in which an algorithm adds. */
enum settings_order {
    SETTINGS_FORWARD, /* one place after the other */
    SETTINGS_HALVES,  /* both halves by themselves, and then their sums */
};

struct settings_algo {
    enum settings_order order;
    unsigned delay_us; /* how much longer a product takes */
};

/* Write the algorithms that the heuristic offers, best first. Returns their number. */
unsigned settings_algos(struct settings_algo algos[SETTINGS_MAX_ALGOS]);

/* Returns whether the heuristic has no algorithm for @epilogue (@late false), or whether
 * cublasLtMatmul refuses it although the heuristic has one. */
bool settings_refuses(cublasLtEpilogue_t epilogue, bool late);

/* Count a call of @name, and return the status that it has to fail with; CUBLAS_STATUS_SUCCESS: it
 * goes on. */
cublasStatus_t settings_fault(const char *name);

#endif
