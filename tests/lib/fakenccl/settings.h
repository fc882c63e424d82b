/* SPDX-License-Identifier: Apache-2.0 */
/* The settings in CST_FAKENCCL_*, which are read once. An invalid value is a mistake of the test
 * and ends the process. */
#ifndef FAKENCCL_SETTINGS_H
#define FAKENCCL_SETTINGS_H

#include "client/cuda/nccl.h"

/* What ncclGetVersion says: CST_FAKENCCL_VERSION, or 22809. */
int settings_version(void);

/* The result that the test wants of this call of @name: an entry point, or "work", the part of a
 * call that runs in the stream. CST_FAKENCCL_FAIL is a list as "ncclAllReduce:3=1,work:5=6": the
 * third ncclAllReduce of the process answers 1, and the fifth work fails with 6. ncclSuccess: none.
 * CST_FAKENCCL_STOP, as "work:5", names a call in which the process stops itself with SIGSTOP. */
ncclResult_t settings_fault(const char *name);

#endif
