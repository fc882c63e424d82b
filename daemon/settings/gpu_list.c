/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/settings/gpu_list.h"

#include "proto/size.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define NUMBERS "0123456789"

/* -- output of the probe ---------------------------------------------------------------------- */

/* @from: NULL if every GPU is accessible. */
static int parse_unreachable(const json_t *from, struct cstd_gpu *out, struct cst_err *err)
{
    const json_t *number;
    size_t i;

    json_array_foreach(from, i, number)
    {
        json_int_t n = json_integer_value(number);

        if (!json_is_integer(number) || n < 0) {
            return cst_err_set(err, CST_EPROTO, "GPU %s: what it cannot access is no GPU",
                               out->uuid);
        }
        /* More GPUs than the list can hold are ignored. */
        if (n < CSTD_GPU_MAX) {
            cst_set_add(&out->unreachable, (uint32_t)n);
        }
    }
    return CST_OK;
}

static int parse_gpu(const json_t *from, struct cstd_gpu *out, struct cst_err *err)
{
    const char *uuid = json_string_value(json_object_get(from, "uuid"));
    const char *name = json_string_value(json_object_get(from, "name"));
    const json_t *node = json_object_get(from, "node");
    json_int_t bytes = json_integer_value(json_object_get(from, "memory_bytes"));

    if (uuid == NULL || *uuid == '\0' || strlen(uuid) >= sizeof out->uuid || name == NULL ||
        bytes <= 0) {
        return cst_err_set(err, CST_EPROTO, "a GPU without uuid, name or memory_bytes");
    }
    (void)snprintf(out->uuid, sizeof out->uuid, "%s", uuid);
    (void)snprintf(out->name, sizeof out->name, "%s", name);
    out->memory_bytes = (uint64_t)bytes;
    out->mps = json_is_true(json_object_get(from, "mps"));
    out->os_node = json_is_integer(node) ? (int)json_integer_value(node) : -1;
    return parse_unreachable(json_object_get(from, "unreachable"), out, err);
}

static int parse_list(const json_t *root, struct cstd_gpu_list *list, struct cst_err *err)
{
    const json_t *gpus = json_object_get(root, "gpus");
    const char *sentence = json_string_value(json_object_get(root, "error"));
    size_t n = json_array_size(gpus);
    int rc = CST_OK;

    if (sentence != NULL) {
        return cst_err_set(err, CST_EUNSUPPORTED, "%s", sentence);
    }
    if (n == 0) {
        return cst_err_set(err, CST_EPROTO, "neither GPUs nor an error in it");
    }
    /* More GPUs than the list can hold are ignored. */
    for (size_t i = 0; i < n && i < CSTD_GPU_MAX && rc == CST_OK; i++) {
        rc = parse_gpu(json_array_get(gpus, i), &list->v[i], err);
        list->v[i].index = (unsigned)i;
        list->n++;
    }
    list->driver = (uint32_t)json_integer_value(json_object_get(root, "driver"));
    return rc;
}

int cstd_gpu_list_parse(const char *text, size_t n, struct cstd_gpu_list *out, struct cst_err *err)
{
    struct cstd_gpu_list list = {.n = 0};
    json_error_t error;
    json_t *root = json_loadb(text, n, 0, &error);
    int rc;

    if (root == NULL) {
        return cst_err_set(err, CST_EPROTO, "not JSON: %s", error.text);
    }
    rc = parse_list(root, &list, err);
    json_decref(root);
    if (rc == CST_OK) {
        *out = list;
    }
    return rc;
}

/* -- messages --------------------------------------------------------------------------------- */

static void describe(const struct cstd_gpu_list *list, char *out, size_t n)
{
    size_t used = 0;

    out[0] = '\0';
    for (unsigned i = 0; i < list->n && used < n; i++) {
        int more = snprintf(out + used, n - used, "%scuda:%u %s", i > 0 ? ", " : "",
                            list->v[i].index, list->v[i].uuid);

        used += more > 0 ? (size_t)more : 0;
    }
}

static int not_there(const struct cstd_gpu_list *list, const char *what, struct cst_err *err)
{
    char known[256];

    describe(list, known, sizeof known);
    return cst_err_set(err, CST_ENOTFOUND, "there is no GPU '%.63s' (available: %s)", what, known);
}

/* -- lookup ----------------------------------------------------------------------------------- */

static bool is_number(const char *word)
{
    return *word != '\0' && strlen(word) < 6 && strspn(word, NUMBERS) == strlen(word);
}

static int find_number(struct cstd_gpu_list *list, const char *what, const char *number,
                       struct cstd_gpu **out, struct cst_err *err)
{
    unsigned long n = strtoul(number, NULL, 10);

    if (n >= list->n) {
        return not_there(list, what, err);
    }
    *out = &list->v[n];
    return CST_OK;
}

/* Find a GPU by its UUID or the beginning of one. A complete match is preferred to a GPU whose UUID
 * only begins with @uuid. */
static int find_uuid(struct cstd_gpu_list *list, const char *uuid, struct cstd_gpu **out,
                     struct cst_err *err)
{
    struct cstd_gpu *found = NULL;

    for (unsigned i = 0; i < list->n; i++) {
        struct cstd_gpu *gpu = &list->v[i];

        if (strcasecmp(gpu->uuid, uuid) == 0) {
            *out = gpu;
            return CST_OK;
        }
        /* The prefix alone names no GPU. */
        if (strncasecmp(gpu->uuid, uuid, strlen(uuid)) == 0 && strlen(uuid) > strlen("GPU-")) {
            if (found != NULL) {
                return cst_err_set(
                    err, CST_EINVAL,
                    "'%.63s' is the beginning of %s and of %s: write more of the UUID", uuid,
                    found->uuid, gpu->uuid);
            }
            found = gpu;
        }
    }
    if (found == NULL) {
        return not_there(list, uuid, err);
    }
    *out = found;
    return CST_OK;
}

int cstd_gpu_list_find(struct cstd_gpu_list *list, const char *device, uint32_t rank,
                       struct cstd_gpu **out, struct cst_err *err)
{
    if (strcmp(device, "cuda") == 0 && list->n > 0) {
        *out = &list->v[rank % list->n];
        return CST_OK;
    }
    if (strncmp(device, "cuda:", 5) == 0 && is_number(device + 5)) {
        return find_number(list, device, device + 5, out, err);
    }
    return find_uuid(list, device, out, err);
}

/* -- selection -------------------------------------------------------------------------------- */

static int set_budget(struct cstd_gpu *gpu, const char *pool, struct cst_err *err)
{
    /* A separate buffer, because gcc warns of a snprintf from and to the same struct. */
    char name[sizeof gpu->pool_name];
    uint64_t bytes = gpu->memory_bytes;
    struct cst_card card;
    int rc = CST_OK;

    gpu->pool_auto = strcmp(pool, "auto") == 0;
    if (!gpu->pool_auto) {
        rc = cst_size_parse(pool, gpu->memory_bytes, &bytes, err);
    }

    (void)snprintf(name, sizeof name, "pools of cuda:%u (%s, %s)", gpu->index, gpu->uuid,
                   gpu->name);
    memcpy(gpu->pool_name, name, sizeof name);
    gpu->pool = (struct cstd_budget){.name = gpu->pool_name,
                                     .key = "pool in [gpu]",
                                     .limit = bytes < gpu->memory_bytes ? bytes : gpu->memory_bytes,
                                     .set_aside_words = gpu->set_aside_words};
    if (gpu->pool_auto) { /* There are no workers yet. */
        cst_card_init(&card, gpu->memory_bytes);
        gpu->pool.set_aside = cst_card_bytes(&card);
    }
    return rc;
}

/* Append the GPU of @from that the configured @word selects to @to. */
static int keep(struct cstd_gpu_list *from, const char *word, struct cstd_gpu_list *to,
                struct cst_err *err)
{
    struct cstd_gpu *gpu = NULL;
    int rc = is_number(word) ? find_number(from, word, word, &gpu, err)
                             : find_uuid(from, word, &gpu, err);

    for (unsigned i = 0; rc == CST_OK && i < to->n; i++) {
        if (strcmp(to->v[i].uuid, gpu->uuid) == 0) {
            return CST_OK; /* The configuration names this GPU twice. */
        }
    }
    if (rc == CST_OK) {
        to->v[to->n] = *gpu;
        to->v[to->n].index = to->n;
        to->n++;
    }
    return rc;
}

/* Change the numbers in `unreachable`, which are places in @from, to places in @to. */
static void renumber(const struct cstd_gpu_list *from, struct cstd_gpu_list *to)
{
    unsigned place[CSTD_GPU_MAX] = {0};

    for (unsigned i = 0; i < to->n; i++) {
        for (unsigned k = 0; k < from->n; k++) {
            place[i] = strcmp(from->v[k].uuid, to->v[i].uuid) == 0 ? k : place[i];
        }
    }
    for (unsigned i = 0; i < to->n; i++) {
        const struct cst_set was = to->v[i].unreachable;

        to->v[i].unreachable = (struct cst_set){{0}};
        for (unsigned other = 0; other < to->n; other++) {
            if (cst_set_has(&was, place[other])) {
                cst_set_add(&to->v[i].unreachable, other);
            }
        }
    }
}

void cstd_gpu_list_separate(struct cstd_gpu_list *list)
{
    for (unsigned i = 0; i < list->n; i++) {
        list->v[i].unreachable = cst_set_range(0, list->n);
        cst_set_drop(&list->v[i].unreachable, i);
    }
}

int cstd_gpu_list_select(struct cstd_gpu_list *list, const char *devices, const char *pool,
                         struct cst_err *err)
{
    struct cstd_gpu_list kept = {.driver = list->driver};
    char copy[512], *save = NULL;
    int rc = CST_OK;

    (void)snprintf(copy, sizeof copy, "%s", devices);
    if (strcmp(devices, "all") == 0) {
        kept = *list;
    } else {
        for (char *word = strtok_r(copy, ", ", &save); word != NULL;
             word = strtok_r(NULL, ", ", &save)) {
            struct cst_err why = {0};

            /* Go on with the other GPUs, and report the first error. */
            if (keep(list, word, &kept, &why) != CST_OK && rc == CST_OK) {
                *err = why;
                rc = why.status;
            }
        }
        renumber(list, &kept);
    }
    *list = kept;
    /* Budgets are set last, because their names point into the final list. */
    for (unsigned i = 0; i < list->n; i++) {
        struct cst_err why = {0};

        if (set_budget(&list->v[i], pool, &why) != CST_OK && rc == CST_OK) {
            *err = why;
            rc = why.status;
        }
    }
    return rc;
}

static bool is_device(const char *word)
{
    return is_number(word) ||
           ((strncasecmp(word, "GPU-", 4) == 0 || strncasecmp(word, "MIG-", 4) == 0) &&
            strlen(word) > 4 && strlen(word) < CSTD_GPU_UUID_BYTES);
}

int cstd_gpu_list_check(const char *devices, struct cst_err *err)
{
    char copy[512], *save = NULL;
    unsigned n = 0, n_good = 0;

    if (strcmp(devices, "all") == 0 || strcmp(devices, "none") == 0) {
        return CST_OK;
    }
    if (strlen(devices) < sizeof copy) {
        (void)snprintf(copy, sizeof copy, "%s", devices);
        for (char *word = strtok_r(copy, ", ", &save); word != NULL;
             word = strtok_r(NULL, ", ", &save)) {
            n++;
            n_good += is_device(word);
        }
    }
    if (n == 0 || n != n_good || n > CSTD_GPU_MAX) {
        return cst_err_set(err, CST_EINVAL,
                           "'%.200s' is neither 'all' nor 'none' nor a list of at most %d numbers "
                           "and UUIDs (GPU-..., MIG-...)",
                           devices, CSTD_GPU_MAX);
    }
    return CST_OK;
}
