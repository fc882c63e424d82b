/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/rates_json.h"

#include "proto/json_fields.h"
#include "proto/new_file.h"
#include "proto/rates_fields.h"

#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *const device_keys[] = {
    "name",           "memory_bytes", "up",     "down",   "up_both",  "down_both", "peer",
    "copy_latency_s", "flops",        "update", "memory", "products", NULL};
static const char *const node_keys[] = {"cores",  "memory_bytes", "pass",     "update",
                                        "reduce", "copy",         "products", NULL};
static const char *const root_keys[] = {
    "fingerprint",  "devices",   "nodes",  "disk_read",  "disk_write", "disk_mixed",
    "disk_flush_s", "request_s", "spread", "busy_cores", NULL};

static int read_fields(const json_t *object, const char *place,
                       const struct cst_rates_field *fields, void *base, struct cst_err *err)
{
    int rc = CST_OK;

    for (; fields->name != NULL && rc == CST_OK; fields++) {
        rc = cst_json_real(object, place, fields->name, CST_JSON_OPTIONAL,
                           cst_rates_value(base, fields), err);
    }
    return rc;
}

static int read_device(const json_t *object, const char *place, struct cst_rates_device *out,
                       struct cst_err *err)
{
    int rc =
        cst_json_text(object, place, "name", CST_JSON_REQUIRED, out->name, sizeof out->name, err);
    if (rc == CST_OK) {
        rc = cst_json_u64(object, place, "memory_bytes", CST_JSON_OPTIONAL, INT64_MAX,
                          &out->memory_bytes, err);
    }
    return rc == CST_OK ? read_fields(object, place, cst_rates_device_fields, out, err) : rc;
}

static int read_node(const json_t *object, const char *place, struct cst_rates_node *out,
                     struct cst_err *err)
{
    uint64_t cores = 0;
    int rc = cst_json_u64(object, place, "cores", CST_JSON_OPTIONAL, UINT32_MAX, &cores, err);

    if (rc == CST_OK) {
        out->cores = (uint32_t)cores;
        rc = cst_json_u64(object, place, "memory_bytes", CST_JSON_OPTIONAL, INT64_MAX,
                          &out->memory_bytes, err);
    }
    return rc == CST_OK ? read_fields(object, place, cst_rates_node_fields, out, err) : rc;
}

static int append_device(struct cst_rates *rates, const json_t *object, const char *place,
                         struct cst_err *err)
{
    struct cst_rates_device device = {.name = ""};
    int rc = rates->n_devices < CST_RATES_MAX_DEVICES
                 ? read_device(object, place, &device, err)
                 : cst_err_set(err, CST_EINVAL, "more than %d devices", CST_RATES_MAX_DEVICES);

    if (rc == CST_OK) {
        rates->devices[rates->n_devices++] = device;
    }
    return rc;
}

static int append_node(struct cst_rates *rates, const json_t *object, const char *place,
                       struct cst_err *err)
{
    struct cst_rates_node node = {0};
    int rc = rates->n_nodes < CST_RATES_MAX_NODES
                 ? read_node(object, place, &node, err)
                 : cst_err_set(err, CST_EINVAL, "more than %d NUMA nodes", CST_RATES_MAX_NODES);

    if (rc == CST_OK) {
        rates->nodes[rates->n_nodes++] = node;
    }
    return rc;
}

/* Append all entries of the list @name, at most @max. An entry has no other keys than @keys. */
static int append_all(struct cst_rates *rates, const json_t *root, const char *name, size_t max,
                      const char *const *keys,
                      int (*append)(struct cst_rates *rates, const json_t *object,
                                    const char *place, struct cst_err *err),
                      struct cst_err *err)
{
    const json_t *list = NULL;
    char place[CST_JSON_PLACE_BYTES];
    int rc = cst_json_array(root, "", name, CST_JSON_OPTIONAL, 0, max, &list, err);

    for (size_t i = 0; rc == CST_OK && list != NULL && i < json_array_size(list); i++) {
        (void)cst_json_place(place, "", name, (long)i);
        rc = cst_json_object(json_array_get(list, i), place, keys, err);
        if (rc == CST_OK) {
            rc = append(rates, json_array_get(list, i), place, err);
        }
    }
    return rc;
}

/* On failure @rates may be partly filled. */
static int add(struct cst_rates *rates, const json_t *root, struct cst_err *err)
{
    int rc = cst_json_object(root, "", root_keys, err);

    if (rc == CST_OK) {
        rc = cst_json_text(root, "", "fingerprint", CST_JSON_OPTIONAL, rates->fingerprint,
                           sizeof rates->fingerprint, err);
    }
    if (rc == CST_OK) {
        rc = read_fields(root, "", cst_rates_machine_fields, rates, err);
    }
    if (rc == CST_OK) {
        rc = append_all(rates, root, "devices", CST_RATES_MAX_DEVICES - rates->n_devices,
                        device_keys, append_device, err);
    }
    return rc == CST_OK ? append_all(rates, root, "nodes", CST_RATES_MAX_NODES - rates->n_nodes,
                                     node_keys, append_node, err)
                        : rc;
}

int cst_rates_add_json(struct cst_rates *rates, const json_t *root, struct cst_err *err)
{
    struct cst_rates sum = *rates;
    int rc = add(&sum, root, err);

    if (rc == CST_OK) {
        *rates = sum;
    }
    return rc;
}

int cst_rates_add_node(struct cst_rates *rates, const json_t *engine, struct cst_err *err)
{
    return append_node(rates, engine, "node", err);
}

int cst_rates_add_device(struct cst_rates *rates, const json_t *engine, struct cst_err *err)
{
    return append_device(rates, engine, "device", err);
}

/* Make the error for rates @path that do not exist. A name without a directory may be meant as that
 * of a machine. */
static int no_file(const char *path, int status, struct cst_err *err)
{
    return cst_err_set(err, status,
                       strchr(path, '/') == NULL
                           ? "%1$s: No such file or directory, and no machine whose rates are "
                             "known by that name (cistern help plan, at --rates): 'cistern probe "
                             "-o %1$s' measures this one"
                           : "%1$s: No such file or directory: 'cistern probe -o %1$s' measures "
                             "this machine",
                       path);
}

int cst_rates_read(struct cst_rates *out, const char *path, struct cst_err *err)
{
    struct cst_rates rates = {.n_devices = 0};
    json_t *root = NULL;
    int rc = cst_json_load(&root, path, err);

    if (rc != CST_OK) {
        return access(path, F_OK) != 0 ? no_file(path, rc, err) : rc;
    }
    rc = cst_rates_add_json(&rates, root, err);
    json_decref(root);
    if (rc != CST_OK) {
        return cst_err_prefix(err, "%s", path);
    }
    *out = rates;
    return CST_OK;
}

/* -- writing ---------------------------------------------------------------------------------- */

/* Unknown rates are left out. */
static bool put_fields(json_t *object, const struct cst_rates_field *fields, const void *base)
{
    bool good = object != NULL;

    for (; fields->name != NULL && good; fields++) {
        double value = cst_rates_get(base, fields);

        good = value == 0 || json_object_set_new(object, fields->name, json_real(value)) == 0;
    }
    return good;
}

static bool put_u64(json_t *object, const char *key, uint64_t value)
{
    return value == 0 || json_object_set_new(object, key, json_integer((json_int_t)value)) == 0;
}

static bool put_devices(json_t *list, const struct cst_rates *rates)
{
    bool good = list != NULL;

    for (uint32_t i = 0; i < rates->n_devices && good; i++) {
        const struct cst_rates_device *device = &rates->devices[i];
        json_t *object = json_pack("{s:s}", "name", device->name);

        good = object != NULL && put_u64(object, "memory_bytes", device->memory_bytes) &&
               put_fields(object, cst_rates_device_fields, device);
        good = json_array_append_new(list, object) == 0 && good;
    }
    return good;
}

static bool put_nodes(json_t *list, const struct cst_rates *rates)
{
    bool good = list != NULL;

    for (uint32_t i = 0; i < rates->n_nodes && good; i++) {
        const struct cst_rates_node *node = &rates->nodes[i];
        json_t *object = json_object();

        good = object != NULL && put_u64(object, "cores", node->cores) &&
               put_u64(object, "memory_bytes", node->memory_bytes) &&
               put_fields(object, cst_rates_node_fields, node);
        good = json_array_append_new(list, object) == 0 && good;
    }
    return good;
}

json_t *cst_rates_to_json(const struct cst_rates *rates)
{
    json_t *root = json_object(), *devices = json_array(), *nodes = json_array();
    bool good = root != NULL && put_devices(devices, rates) && put_nodes(nodes, rates);

    if (good && rates->fingerprint[0] != '\0') {
        good = json_object_set_new(root, "fingerprint", json_string(rates->fingerprint)) == 0;
    }
    good = good && json_object_set(root, "devices", devices) == 0 &&
           json_object_set(root, "nodes", nodes) == 0 &&
           put_fields(root, cst_rates_machine_fields, rates);
    json_decref(devices);
    json_decref(nodes);
    if (!good) {
        json_decref(root);
        root = NULL;
    }
    return root;
}

/* Make the directory of @path if it does not exist. */
static void make_directory(const char *path)
{
    char *copy = strdup(path);

    if (copy != NULL) {
        /* An error is reported when the file is opened. */
        (void)mkdir(dirname(copy), 0755);
    }
    free(copy);
}

int cst_rates_may_write(const char *path, struct cst_err *err)
{
    make_directory(path);
    return cst_new_file_check(path, err);
}

int cst_rates_write(const struct cst_rates *rates, const char *path, struct cst_err *err)
{
    json_t *root = cst_rates_to_json(rates);
    struct cst_new_file file;
    int rc;

    if (root == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for the rates");
    }
    make_directory(path);
    rc = cst_new_file_open(&file, path, err);
    if (rc == CST_OK) {
        if (json_dumpf(root, file.to, JSON_INDENT(2) | JSON_REAL_PRECISION(6)) != 0) {
            rc = cst_err_set(err, CST_EIO, "%s: the rates could not be written", path);
        }
        (void)fputc('\n', file.to);
        rc = cst_new_file_close(&file, rc, err);
    }
    json_decref(root);
    return rc;
}
