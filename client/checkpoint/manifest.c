/* SPDX-License-Identifier: Apache-2.0 */
#include "client/checkpoint/manifest.h"

#include "proto/json_fields.h"
#include "proto/message_json.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

/* Format 2: files have joined tensors. Earlier versions cannot read them, but all others. */
enum { FORMAT = 1, FORMAT_JOINED = 2, READ_BYTES = 4 << 20 };

/* Largest manifest that is read. A tensor or an operator takes about 1 KiB. */
#define MOST_BYTES (INT64_C(1) << 30)

static void hash_text(const struct cstc_file_hash *hash, char out[33])
{
    for (int i = 0; i < 16; i++) {
        (void)snprintf(out + 2 * i, 3, "%02x", hash->bytes[i]);
    }
}

/* Write the checksum of the manifest's own contents, its files and its job, to @out. False: out of
 * memory. */
static bool hash_contents(json_t *files, json_t *job, char out[33])
{
    json_t *all = json_pack("[O, O]", files, job);
    char *text = json_dumps(all, JSON_COMPACT | JSON_SORT_KEYS);
    XXH128_canonical_t canonical;
    struct cstc_file_hash hash;

    json_decref(all);
    if (text == NULL) {
        return false;
    }
    XXH128_canonicalFromHash(&canonical, XXH3_128bits(text, strlen(text)));
    memcpy(hash.bytes, canonical.digest, sizeof hash.bytes);
    hash_text(&hash, out);
    free(text);
    return true;
}

/* -- writing -------------------------------------------------------------------------------- */

int cstc_json_write(const json_t *json, int dirfd, const char *name, uint64_t *bytes,
                    struct cstc_file_hash *hash, struct cst_err *err)
{
    char *text = json_dumps(json, JSON_INDENT(1) | JSON_PRESERVE_ORDER);
    struct cstc_file_writer *writer;
    int rc;

    if (text == NULL) {
        return cst_err_set(err, CST_ENOMEM, "%s: no memory", name);
    }
    rc = cstc_file_writer_open(&writer, dirfd, name, err);
    if (rc == CST_OK) {
        rc = cstc_file_writer_append(writer, text, strlen(text), err);
        if (rc == CST_OK) {
            rc = cstc_file_writer_append(writer, "\n", 1, err);
        }
        if (rc == CST_OK) {
            rc = cstc_file_writer_finish(writer, bytes, hash, err);
        } else {
            cstc_file_writer_abandon(writer);
        }
    }
    free(text);
    return rc;
}

static json_t *files_to_json(const struct cstc_manifest *manifest)
{
    json_t *files = json_array();

    for (uint32_t i = 0; i < manifest->n_files; i++) {
        const struct cstc_manifest_file *file = &manifest->files[i];
        char text[33];

        hash_text(&file->hash, text);
        (void)json_array_append_new(files, json_pack("{s:s, s:I, s:s}", "name", file->name, "bytes",
                                                     (json_int_t)file->bytes, "xxh3_128", text));
    }
    return files;
}

int cstc_manifest_write(const struct cstc_manifest *manifest, int dirfd, uint64_t *bytes,
                        struct cst_err *err)
{
    json_t *files = files_to_json(manifest), *all = NULL,
           *job = cst_message_to_json(&manifest->description->base);
    struct cstc_file_hash hash;
    char text[33];
    int rc;

    if (json_array_size(files) == manifest->n_files && job != NULL &&
        hash_contents(files, job, text)) {
        all = json_pack("{s:i, s:s, s:s, s:O, s:O}", "format",
                        manifest->joined ? FORMAT_JOINED : FORMAT, "cistern", cst_version(),
                        "xxh3_128", text, "files", files, "job", job);
    }
    rc = all != NULL ? cstc_json_write(all, dirfd, CSTC_MANIFEST_NAME, bytes, &hash, err)
                     : cst_err_set(err, CST_ENOMEM, "%s: no memory", CSTC_MANIFEST_NAME);
    json_decref(all);
    json_decref(files);
    json_decref(job);
    return rc;
}

/* -- reading -------------------------------------------------------------------------------- */

/* Read the JSON file of the directory. */
static int load(int dirfd, json_t **out, struct cst_err *err)
{
    /* Nobody may wait for a writer of a FIFO. */
    int fd = openat(dirfd, CSTC_MANIFEST_NAME, O_RDONLY | O_NONBLOCK | O_CLOEXEC), rc = CST_OK;
    struct stat st;

    if (fd < 0) {
        return cst_err_errno(err, errno == ENOENT ? CST_ENOTFOUND : CST_EIO, errno, "%s",
                             CSTC_MANIFEST_NAME);
    }
    if (fstat(fd, &st) != 0) {
        rc = cst_err_errno(err, CST_EIO, errno, "%s", CSTC_MANIFEST_NAME);
    } else if (!S_ISREG(st.st_mode) || st.st_size > MOST_BYTES) {
        rc = cst_err_set(err, CST_EINVAL, "%s is not a file of at most 1 GiB", CSTC_MANIFEST_NAME);
    } else {
        return cst_json_load_fd(out, fd, CSTC_MANIFEST_NAME, err);
    }
    (void)close(fd);
    return rc;
}

static int check_format(const json_t *json, struct cst_err *err)
{
    json_int_t format = json_integer_value(json_object_get(json, "format"));

    if (format < 1) {
        return cst_err_set(err, CST_EINVAL, "%s: it has no format", CSTC_MANIFEST_NAME);
    }
    return format <= FORMAT_JOINED
               ? CST_OK
               : cst_err_set(err, CST_EUNSUPPORTED, "format %lld, this version reads %d",
                             (long long)format, FORMAT_JOINED);
}

/* True if @name is that of a file in the same directory. */
static bool is_plain(const char *name)
{
    return name != NULL && *name != '\0' && *name != '.' && strchr(name, '/') == NULL &&
           strlen(name) < CSTC_CONTENT_FILE_BYTES;
}

static bool parse_hash(const char *text, struct cstc_file_hash *out)
{
    if (text == NULL || strlen(text) != 32 || strspn(text, "0123456789abcdef") != 32) {
        return false;
    }
    for (int i = 0; i < 16; i++) {
        unsigned byte;

        (void)sscanf(text + 2 * i, "%2x", &byte);
        out->bytes[i] = (uint8_t)byte;
    }
    return true;
}

static int parse_files(struct cstc_manifest *manifest, const json_t *files, struct cst_err *err)
{
    size_t n = json_array_size(files);

    manifest->files = calloc(n + 1, sizeof *manifest->files);
    if (manifest->files == NULL) {
        return cst_err_set(err, CST_ENOMEM, "%s: no memory", CSTC_MANIFEST_NAME);
    }
    for (size_t i = 0; i < n; i++) {
        struct cstc_manifest_file *file = &manifest->files[i];
        const json_t *json = json_array_get(files, i), *bytes = json_object_get(json, "bytes");
        const char *name = json_string_value(json_object_get(json, "name"));

        if (!is_plain(name) || !json_is_integer(bytes) || json_integer_value(bytes) < 0 ||
            !parse_hash(json_string_value(json_object_get(json, "xxh3_128")), &file->hash)) {
            return cst_err_set(err, CST_EINVAL,
                               "%s: files[%zu]: a name, bytes and xxh3_128 are expected",
                               CSTC_MANIFEST_NAME, i);
        }
        memcpy(file->name, name, strlen(name) + 1);
        file->bytes = (uint64_t)json_integer_value(bytes);
        manifest->n_files++;
    }
    return n > 0 ? CST_OK
                 : cst_err_set(err, CST_EINVAL, "%s: it lists no files", CSTC_MANIFEST_NAME);
}

static int parse(struct cstc_manifest *manifest, const json_t *json, struct cst_err *err)
{
    json_t *files = json_object_get(json, "files"), *job = json_object_get(json, "job");
    ProtobufCMessage *message;
    const char *wants;
    char has[33];
    int rc;

    rc = check_format(json, err);
    if (rc != CST_OK) {
        return rc;
    }
    wants = json_string_value(json_object_get(json, "xxh3_128"));
    if (!json_is_array(files) || !json_is_object(job) || wants == NULL) {
        return cst_err_set(err, CST_EINVAL, "%s: files, job and xxh3_128 are expected",
                           CSTC_MANIFEST_NAME);
    }
    if (!hash_contents(files, job, has)) {
        return cst_err_set(err, CST_ENOMEM, "%s: no memory", CSTC_MANIFEST_NAME);
    }
    if (strcmp(has, wants) != 0) {
        return cst_err_set(err, CST_EINVAL, "%s was altered: its checksum is %s, not %.32s",
                           CSTC_MANIFEST_NAME, has, wants);
    }
    manifest->joined = json_integer_value(json_object_get(json, "format")) == FORMAT_JOINED;
    rc = parse_files(manifest, files, err);
    if (rc == CST_OK) {
        rc = cst_message_from_json(&message, &cistern__job_description__descriptor, job,
                                   CSTC_MANIFEST_NAME ": job", err);
    }
    if (rc == CST_OK) {
        manifest->description = (Cistern__JobDescription *)message;
    }
    return rc;
}

int cstc_manifest_read(struct cstc_manifest *manifest, int dirfd, struct cst_err *err)
{
    json_t *json = NULL;
    int rc = load(dirfd, &json, err);

    *manifest = (struct cstc_manifest){0};
    if (rc == CST_OK) {
        rc = parse(manifest, json, err);
    }
    json_decref(json);
    if (rc != CST_OK) {
        cstc_manifest_close(manifest);
    }
    return rc;
}

void cstc_manifest_close(struct cstc_manifest *manifest)
{
    if (manifest->description != NULL) {
        cistern__job_description__free_unpacked(manifest->description, NULL);
    }
    free(manifest->files);
    *manifest = (struct cstc_manifest){0};
}

/* -- checks --------------------------------------------------------------------------------- */

/* Compute the checksum of the open file. */
static int hash_file(int fd, const char *name, struct cstc_file_hash *out, struct cst_err *err)
{
    XXH3_state_t *state = XXH3_createState();
    void *buffer = malloc(READ_BYTES);
    XXH128_canonical_t canonical;
    ssize_t n = -1;

    errno = ENOMEM;
    if (state != NULL && buffer != NULL) {
        (void)XXH3_128bits_reset(state);
        (void)posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL);
        while ((n = read(fd, buffer, READ_BYTES)) > 0 || (n < 0 && errno == EINTR)) {
            if (n > 0) {
                (void)XXH3_128bits_update(state, buffer, (size_t)n);
            }
        }
    }
    if (n == 0) {
        XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(state));
        memcpy(out->bytes, canonical.digest, sizeof out->bytes);
    }
    free(buffer);
    XXH3_freeState(state);
    return n == 0 ? CST_OK : cst_err_errno(err, CST_EIO, errno, "%s", name);
}

static int check_file(const struct cstc_manifest_file *file, int dirfd, bool hashes,
                      struct cst_err *err)
{
    int fd = openat(dirfd, file->name, O_RDONLY | O_NONBLOCK | O_CLOEXEC), rc = CST_OK;
    struct cstc_file_hash hash;
    struct stat st;

    if (fd < 0) {
        return cst_err_errno(err, errno == ENOENT ? CST_EINVAL : CST_EIO, errno, "%s", file->name);
    }
    if (fstat(fd, &st) != 0) {
        rc = cst_err_errno(err, CST_EIO, errno, "%s", file->name);
    } else if (!S_ISREG(st.st_mode)) {
        rc = cst_err_set(err, CST_EINVAL, "%s is not a regular file", file->name);
    } else if ((uint64_t)st.st_size != file->bytes) {
        rc = cst_err_set(err, CST_EINVAL, "%s is torn: it has %jd bytes of %" PRIu64, file->name,
                         (intmax_t)st.st_size, file->bytes);
    } else if (hashes) {
        rc = hash_file(fd, file->name, &hash, err);
    }
    if (rc == CST_OK && hashes && memcmp(hash.bytes, file->hash.bytes, sizeof hash.bytes) != 0) {
        char has[33], wants[33];

        hash_text(&hash, has);
        hash_text(&file->hash, wants);
        rc = cst_err_set(err, CST_EINVAL, "%s was altered: its checksum is %s, not %s", file->name,
                         has, wants);
    }
    (void)close(fd);
    return rc;
}

int cstc_manifest_check(const struct cstc_manifest *manifest, int dirfd, bool hashes,
                        struct cst_err *err)
{
    int rc = CST_OK;

    for (uint32_t i = 0; rc == CST_OK && i < manifest->n_files; i++) {
        rc = check_file(&manifest->files[i], dirfd, hashes, err);
    }
    return rc;
}
