/* SPDX-License-Identifier: Apache-2.0 */
/* Measures a drive for `cistern-engine-host --rates --directory DIR` (kernels/engine/rates.h), with
 * the device that a drive's engine has (kernels/host/disk.c). */
#ifndef CST_DISK_RATES_H
#define CST_DISK_RATES_H

#include "kernels/engine/rates.h"

/* Bytes of the file that is measured by default. Many small drives acknowledge fewer bytes before
 * they are stored. */
#define CSTE_DISK_RATES_BYTES (UINT64_C(4) << 30)
/* The default takes at most this part of the free space. */
#define CSTE_DISK_RATES_SHARE 4
/* Least bytes that can be measured. */
#define CSTE_DISK_RATES_LEAST (UINT64_C(64) << 20)

/* Measure the drive of options->directory, and write the JSON object to @to. The file has no name,
 * so nothing is left when the program ends, and is written once before anything is measured.
 * CST_EINVAL: options->directory is no directory, or its file system has no files with O_DIRECT;
 * CST_ENOMEM: the file system has too little space, or there is no memory; CST_EIO. */
int cste_disk_rates(const struct cste_engine_rates_options *options, FILE *to, struct cst_err *err);

#endif
