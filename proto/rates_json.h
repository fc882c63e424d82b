/* SPDX-License-Identifier: Apache-2.0 */
/* Rates (offload/plan/rates.h) as JSON: what `cistern probe` writes to a file, what `cistern plan`
 * and the daemon read. Keys are the names of the fields:
 *
 *   {"fingerprint": "9f...", "devices": [{"name": "host", "up": 9e9, ...}],
 *    "nodes": [{"cores": 2, "pass": 1.5e10, ...}], "disk_read": 2e9, "disk_write": 1e9,
 *    "request_s": 1.1e-5}
 *
 * A field that is missing or 0 is not known. One entry of nodes or devices is what an engine's
 * --rates prints, which says more than the file keeps (kernels/rates.h). */
#ifndef CST_RATES_JSON_H
#define CST_RATES_JSON_H

#include "offload/plan/rates.h"

#include <jansson.h>

/* Add what the object says to @rates: devices and nodes behind those that are there, numbers in the
 * place of what was there. CST_EINVAL: "devices[0].up: ...". */
int cst_rates_add_json(struct cst_rates *rates, const json_t *root, struct cst_err *err);

/* Add what an engine's --rates printed as one more node, or device. CST_EINVAL: "node.update: ...",
 * or there is no room for more. */
int cst_rates_add_node(struct cst_rates *rates, const json_t *engine, struct cst_err *err);
int cst_rates_add_device(struct cst_rates *rates, const json_t *engine, struct cst_err *err);

/* Rates out of the file @path. As cst_rates_add_json, with the file's name before the words;
 * CST_ENOTFOUND: it is not there; CST_EIO; CST_EINVAL: "FILE:LINE:COLUMN: ...". */
int cst_rates_read(struct cst_rates *out, const char *path, struct cst_err *err);

/* A new object, or NULL: out of memory. */
json_t *cst_rates_to_json(const struct cst_rates *rates);

/* Write the file, by way of another one beside it, so that a reader never sees half of it. Makes
 * the last directory of @path. CST_EIO. */
int cst_rates_write(const struct cst_rates *rates, const char *path, struct cst_err *err);

#endif
