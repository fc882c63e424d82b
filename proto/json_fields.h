/* SPDX-License-Identifier: Apache-2.0 */
/* Strict reading of JSON that people write: files of models, rates and plans. CST_EINVAL, with
 * words that name the place: an unknown, repeated or missing key, or a value of another type.
 *
 * A place is the path from the root, for example "tensors[3]"; "" is the root itself. Only
 * cst_json_read, cst_json_parse and cst_json_load(_fd) allocate. */
#ifndef CST_JSON_FIELDS_H
#define CST_JSON_FIELDS_H

#include "cistern/status.h"

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

/* Whether a missing key is an error. */
enum cst_json_need { CST_JSON_OPTIONAL, CST_JSON_REQUIRED };

/* Return the name of the file @path in errors: "standard input" for "-". */
const char *cst_json_name(const char *path);

/* Read the file @path ("-": standard input) up to its first zero byte, which JSON cannot have. The
 * caller frees *text, which has *n bytes, and may be NULL if that is 0. CST_ENOTFOUND: there is no
 * such file; CST_EIO. */
int cst_json_read(char **text, size_t *n, const char *path, struct cst_err *err);

/* Parse the @n bytes of @text. A byte order mark at their beginning is skipped: some editors write
 * one. The caller owns *out. CST_EINVAL: not JSON, "NAME:LINE:COLUMN: ...". A whole number has to
 * be within -2^63 and 2^63 - 1, any other one finite as a double; the error for one that is not
 * names its place. */
int cst_json_parse(json_t **out, const char *text, size_t n, const char *name, struct cst_err *err);

/* Read and parse the file @path. The caller owns *out. The statuses are those of cst_json_read and
 * cst_json_parse. */
int cst_json_load(json_t **out, const char *path, struct cst_err *err);

/* As cst_json_load, of the file that @fd has open. @fd is closed. Errors call the file @name. */
int cst_json_load_fd(json_t **out, int fd, const char *name, struct cst_err *err);

/* Check that @value is an object which has no keys other than @keys, an array that NULL ends. */
int cst_json_object(const json_t *value, const char *place, const char *const *keys,
                    struct cst_err *err);

/* Read @key of @object, an array of @min to @max values. *out is borrowed; NULL if the key is
 * missing. */
int cst_json_array(const json_t *object, const char *place, const char *key,
                   enum cst_json_need need, size_t min, size_t max, const json_t **out,
                   struct cst_err *err);

/* Read @key of @object, a whole number from 0 to @max. *out is unchanged if the key is missing. */
int cst_json_u64(const json_t *object, const char *place, const char *key, enum cst_json_need need,
                 uint64_t max, uint64_t *out, struct cst_err *err);

/* Read @key of @object, a finite number that is not negative. *out is unchanged if the key is
 * missing. */
int cst_json_real(const json_t *object, const char *place, const char *key, enum cst_json_need need,
                  double *out, struct cst_err *err);

/* Read @key of @object, a text of 1 to @n - 1 printable characters, which is copied to @out. @out
 * is unchanged if the key is missing. */
int cst_json_text(const json_t *object, const char *place, const char *key, enum cst_json_need need,
                  char *out, size_t n, struct cst_err *err);

/* Write "PLACE.KEY" (@i < 0) or "PLACE.KEY[i]", the place of a value inside @place. Returns
 * @out. */
#define CST_JSON_PLACE_BYTES 160
const char *cst_json_place(char out[CST_JSON_PLACE_BYTES], const char *place, const char *key,
                           long i);

#endif
