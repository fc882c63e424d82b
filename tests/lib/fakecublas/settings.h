/* SPDX-License-Identifier: Apache-2.0 */
/* The environment of the stand-in for cuBLASLt; README.md lists it. What makes no sense ends the
 * process with words. Any thread. */
#ifndef FAKECUBLAS_SETTINGS_H
#define FAKECUBLAS_SETTINGS_H

#include <cublasLt.h>
#include <stdbool.h>

/* Returns whether the heuristic has no algorithm for @epilogue (@late false), or whether
 * cublasLtMatmul refuses it although the heuristic has one. */
bool settings_refuses(cublasLtEpilogue_t epilogue, bool late);

/* Count a call of @name, and return the status that it has to fail with; CUBLAS_STATUS_SUCCESS: it
 * goes on. */
cublasStatus_t settings_fault(const char *name);

#endif
