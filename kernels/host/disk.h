/* SPDX-License-Identifier: Apache-2.0 */
/* The drive: a device whose own memory is ranges of files that were opened with O_DIRECT. It copies
 * between them and host memory, and does not compute. Each call returns when its bytes are in the
 * file (in the drive's cache, if that is not flushed) or in memory. A flush concerns the whole file
 * of a range. */
#ifndef CST_DISK_H
#define CST_DISK_H

#include "kernels/engine/device.h"
#include "kernels/host/disk_io.h"

/* The table of the device "disk". */
extern const struct cste_device_ops cste_disk_ops;

/* As `open` of that table, with other system calls; @io is borrowed for the life of the device. */
int cste_disk_open(void **state, const struct cste_disk_io *io, const struct cste_device_spec *spec,
                   struct cste_device_about *about, struct cst_err *err);

#endif
