/* SPDX-License-Identifier: Apache-2.0 */
/* Reading JSON that people write: strict, with the place of what is wrong in words. For files of
 * models and of rates. An unknown or repeated key, a missing one or another type is CST_EINVAL.
 *
 * A place is the way from the root, "tensors[3]"; "" is the root itself. Nothing here allocates but
 * cst_json_load. */
#ifndef CST_JSON_FIELDS_H
#define CST_JSON_FIELDS_H

#include "cistern/status.h"

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

/* What to do without a key. */
enum cst_json_need { CST_JSON_OPTIONAL, CST_JSON_REQUIRED };

/* The value in the file @path ("-": standard input); *out is the caller's. CST_EIO; CST_EINVAL:
 * "FILE:LINE:COLUMN: ...". */
int cst_json_load(json_t **out, const char *path, struct cst_err *err);

/* @value is an object with no keys but @keys (ended by NULL). */
int cst_json_object(const json_t *value, const char *place, const char *const *keys,
                    struct cst_err *err);

/* @object's @key is an array of @min..@max values. *out: borrowed; NULL where the key is missing.
 */
int cst_json_array(const json_t *object, const char *place, const char *key,
                   enum cst_json_need need, size_t min, size_t max, const json_t **out,
                   struct cst_err *err);

/* ... a whole number from 0 to @max. *out stays as it is where the key is missing; so below. */
int cst_json_u64(const json_t *object, const char *place, const char *key, enum cst_json_need need,
                 uint64_t max, uint64_t *out, struct cst_err *err);

/* ... a number that is finite and not negative. */
int cst_json_real(const json_t *object, const char *place, const char *key, enum cst_json_need need,
                  double *out, struct cst_err *err);

/* ... text of 1 to @n - 1 printable characters, copied. */
int cst_json_text(const json_t *object, const char *place, const char *key, enum cst_json_need need,
                  char *out, size_t n, struct cst_err *err);

/* "PLACE.KEY" or "PLACE.KEY[i]", for the place of a value within; i < 0: none. */
#define CST_JSON_PLACE_BYTES 160
const char *cst_json_place(char out[CST_JSON_PLACE_BYTES], const char *place, const char *key,
                           long i);

#endif
