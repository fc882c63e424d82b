/* SPDX-License-Identifier: Apache-2.0 */
/* One value that people type, on a command line or in the configuration: its kind, its limits, and
 * the field of a struct that it sets. Pure; any thread. */
#ifndef CST_VALUE_H
#define CST_VALUE_H

#include "cistern/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum cst_value_kind {
    CST_VALUE_FLAG, /* An option without a value. Sets a bool to true. */
    CST_VALUE_YES,  /* "yes" or "no". Sets a bool. */
    CST_VALUE_TEXT, /* Any text. Sets a const char *, which is borrowed. */
    CST_VALUE_PATH, /* An absolute path. Copied to an array of @most chars. */
    CST_VALUE_U32,  /* A number from @least to @most. Sets a uint32_t. */
    CST_VALUE_U64,  /* A number from @least to @most. Sets a uint64_t. */
    CST_VALUE_REAL, /* A number from @least to @most, which may have a fraction. Sets a double. */
    CST_VALUE_NAME, /* One of @names. Sets an enum to @least plus the number of the name. */
    CST_VALUE_SIZE, /* A size (proto/size.h), or one of @words. Sets a uint64_t. */
    CST_VALUE_SECONDS, /* A time (proto/size.h) from @least to @most. Sets a uint32_t. */
    /* Whole numbers from @least to @most, separated by commas: "2,4". Sets a struct cst_value_list.
     * With the word words[0], one number stands for all of a list, too, and the word, or no value,
     * for as much as there is; in files this is true, and false is the number 0. */
    CST_VALUE_LIST,
    CST_VALUE_OTHER, /* What @read accepts. */
};

enum { CST_VALUE_LIST_MAX = 64 };

struct cst_value_list {
    uint32_t n;  /* Numbers in v; 0: none are given. */
    bool is_one; /* v[0] stands for all. */
    bool is_all; /* The word was given, and n is 0. */
    uint32_t v[CST_VALUE_LIST_MAX];
};

struct cst_value {
    enum cst_value_kind kind;
    size_t field;             /* Offset of the field in the struct. */
    double least, most;       /* Limits of a number. A size is at least @least. */
    const char *const *names; /* CST_VALUE_NAME: names in the order of the enum, then NULL. */
    /* CST_VALUE_SIZE, CST_VALUE_LIST: what may be written instead; NULL: nothing else. */
    const char *words[2];
    uint64_t words_mean[2]; /* Value of the field if this one of @words is written. */
    /* CST_VALUE_OTHER: sets the field of @base. CST_EINVAL: @text is not allowed. */
    int (*read)(void *base, const char *text, void *field, struct cst_err *err);
    /* CST_VALUE_OTHER of an option that files have (proto/options_file.h): write what @read would
     * accept. False: nothing is set. */
    bool (*write)(const void *base, const void *field, char *out, size_t size);
};

/* Initializers of struct cst_value, for tables. @at is the offset of the field. */
/* clang-format off */
#define CST_FLAG(at) {CST_VALUE_FLAG, .field = (at)}
#define CST_YES(at) {CST_VALUE_YES, .field = (at)}
#define CST_TEXT(at) {CST_VALUE_TEXT, .field = (at)}
#define CST_PATH(at, chars) {CST_VALUE_PATH, .field = (at), .most = (chars)}
#define CST_U32(at, first, last) {CST_VALUE_U32, .field = (at), .least = (first), .most = (last)}
#define CST_U64(at, first, last) {CST_VALUE_U64, .field = (at), .least = (first), .most = (last)}
#define CST_REAL(at, first, last) {CST_VALUE_REAL, .field = (at), .least = (first), .most = (last)}
#define CST_NAME(at, first, list) {CST_VALUE_NAME, .field = (at), .least = (first), .names = (list)}
#define CST_SIZE(at) {CST_VALUE_SIZE, .field = (at)}
#define CST_SIZE_OR(at, first, text, means) \
    {CST_VALUE_SIZE, .field = (at), .least = (first), .words = {(text)}, .words_mean = {(means)}}
#define CST_SIZE_OR_EITHER(at, first, text, means, text2, means2) \
    {CST_VALUE_SIZE, .field = (at), .least = (first), .words = {(text), (text2)}, \
     .words_mean = {(means), (means2)}}
#define CST_SECONDS(at, first, last) {CST_VALUE_SECONDS, .field = (at), .least = (first), .most = (last)}
#define CST_LIST(at, first, last) {CST_VALUE_LIST, .field = (at), .least = (first), .most = (last)}
#define CST_LIST_OR_ALL(at, first, last) \
    {CST_VALUE_LIST, .field = (at), .least = (first), .most = (last), .words = {"true"}}
#define CST_OTHER(at, function) {CST_VALUE_OTHER, .field = (at), .read = (function)}
#define CST_OTHER_SAVED(at, reader, writer) \
    {CST_VALUE_OTHER, .field = (at), .read = (reader), .write = (writer)}
/* clang-format on */

/* Set the field of @base from @text; CST_VALUE_FLAG ignores @text. CST_EINVAL: @text is not
 * allowed; @err quotes it and says what is allowed, and the field is unchanged. */
int cst_value_read(const struct cst_value *value, void *base, const char *text,
                   struct cst_err *err);

#define CST_VALUE_RANGE_BYTES 80
/* Write "a number from LEAST to MOST" for @value, whose kind is that of a number. The limits of
 * whole numbers are exact. Returns @out. */
const char *cst_value_range(const struct cst_value *value, char out[CST_VALUE_RANGE_BYTES]);

#endif
