/* SPDX-License-Identifier: Apache-2.0 */
/* Rates (proto/rates.h) as JSON: `cistern probe` writes them to a file, `cistern plan` and
 * the daemon read them. Keys are the names of the fields:
 *
 *   {"fingerprint": "9f...", "devices": [{"name": "host", "up": 9e9, ...}],
 *    "nodes": [{"cores": 2, "pass": 1.5e10, ...}], "disk_read": 2e9, "disk_write": 1e9,
 *    "disk_mixed": 1.2e9, "disk_flush_s": 2e-4, "request_s": 1.1e-5}
 *
 * A field that is missing or 0 is unknown. An engine started with --rates prints one entry of nodes
 * or devices, with additional fields that the file does not keep (kernels/engine/rates.h). */
#ifndef CST_RATES_JSON_H
#define CST_RATES_JSON_H

#include "proto/rates.h"

#include <jansson.h>

/* Add the object @root to @rates. Devices and nodes are appended, numbers replace the present ones.
 * CST_EINVAL: "devices[0].up: ...". */
int cst_rates_add_json(struct cst_rates *rates, const json_t *root, struct cst_err *err);

/* Append what an engine with --rates printed, as a node or as a device. CST_EINVAL: "node.update:
 * ...", or there are too many entries. */
int cst_rates_add_node(struct cst_rates *rates, const json_t *engine, struct cst_err *err);
int cst_rates_add_device(struct cst_rates *rates, const json_t *engine, struct cst_err *err);

/* Read rates from the file @path. CST_ENOTFOUND: there is no such file; CST_EIO; CST_EINVAL:
 * "FILE:LINE:COLUMN: ..." or, as for cst_rates_add_json, with the file's name before the words. On
 * failure @out is unchanged. */
int cst_rates_read(struct cst_rates *out, const char *path, struct cst_err *err);

/* Return a new object, which the caller owns; NULL: out of memory. */
json_t *cst_rates_to_json(const struct cst_rates *rates);

/* Check that rates could be written to the file @path, before the time to measure them is spent.
 * Creates the last directory of @path. CST_EIO; CST_ENOMEM. */
int cst_rates_may_write(const char *path, struct cst_err *err);

/* Write @rates to the file @path. A reader never sees half of it (proto/new_file.h). Creates the
 * last directory of @path. CST_EIO; CST_ENOMEM. */
int cst_rates_write(const struct cst_rates *rates, const char *path, struct cst_err *err);

#endif
