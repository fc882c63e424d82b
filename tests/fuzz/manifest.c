/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzes cistern.json of a checkpoint, and what follows from its description of the job. An input
 * is the file; its checksum is made right, so that mutations get behind it. */
#include "client/checkpoint/manifest.h"
#include "client/checkpoint/wholes.h"

#include "tests/fuzz/file.h"

#include <fcntl.h>
#include <xxhash.h>

const char fuzz_name[] = "manifest";

/* Data of a file, and of a piece of an entry. */
enum { FILE_BYTES = 1 << 20, PIECE_BYTES = 1 << 16 };

size_t fuzz_seed(uint8_t *out, size_t max)
{
    return fuzz_seed_text(
        "{\"format\":2,\"cistern\":\"1\",\"xxh3_128\":\"\",\"files\":[{\"name\":"
        "\"states-00001.safetensors\",\"bytes\":100,\"xxh3_128\":"
        "\"00000000000000000000000000000000\"}],\"job\":{\"format\":1,\"name\":\"j\",\"world\":2,"
        "\"micro_batches\":1,\"optimizer\":0,\"moments\":0,\"rounding\":0,\"seed\":1,\"overlap\":0,"
        "\"delay_from\":0,\"grad_over_weight\":false,\"groups\":[{\"ranks\":[0]}],\"tensors\":["
        "{\"name\":\"a\",\"dtype\":1,\"shape\":[8,16],\"lr_scale\":1,\"decay_scale\":1,\"group\":0,"
        "\"pattern\":0,\"external_name\":[\"x\",\"y\"],\"external_rows\":[4,4]},"
        "{\"name\":\"b\",\"dtype\":2,\"shape\":[100],\"lr_scale\":1,\"decay_scale\":1,\"group\":0,"
        "\"pattern\":3},{\"name\":\"c.0\",\"dtype\":1,\"shape\":[1,2],\"pattern\":2,\"whole_"
        "shape\":"
        "[3,2],\"box_first\":[0,0],\"whole_name\":\"c\"},{\"name\":\"c.1\",\"dtype\":1,\"shape\":["
        "2,2],"
        "\"pattern\":2,\"whole_shape\":[3,2],\"box_first\":[1,0],\"whole_name\":\"c\"}],"
        "\"operators\":[{\"name\":\"o\",\"tensors\":[0,1]}],\"chunk\":[0,1,1,1],"
        "\"n_chunks\":2,\"step\":3,\"adam_step\":3,\"n_skipped\":0,\"n_overflows\":0,"
        "\"last_loss\":1.5,\"last_grad_norm\":2}}",
        out, max);
}

/* Replace the checksum of @all by that of its contents. */
static void correct(json_t *all)
{
    json_t *contents =
        json_pack("[O, O]", json_object_get(all, "files"), json_object_get(all, "job"));
    char *text = json_dumps(contents, JSON_COMPACT | JSON_SORT_KEYS), digest[33];
    XXH128_canonical_t canonical;

    if (text != NULL) {
        XXH128_canonicalFromHash(&canonical, XXH3_128bits(text, strlen(text)));
        for (int i = 0; i < 16; i++) {
            (void)snprintf(digest + 2 * i, 3, "%02x", canonical.digest[i]);
        }
        (void)json_object_set_new(all, "xxh3_128", json_string(digest));
    }
    free(text);
    json_decref(contents);
}

/* Write the input to the directory. Returns its descriptor. */
static int write_input(const uint8_t *data, size_t n)
{
    json_t *all = json_loadb((const char *)data, n, JSON_REJECT_DUPLICATES, NULL);
    const char *path;
    char *text = NULL;

    if (json_is_array(json_object_get(all, "files")) &&
        json_is_object(json_object_get(all, "job"))) {
        correct(all);
        text = json_dumps(all, JSON_COMPACT);
    }
    path = text != NULL ? fuzz_dir(CSTC_MANIFEST_NAME, text, strlen(text))
                        : fuzz_dir(CSTC_MANIFEST_NAME, data, n);
    free(text);
    json_decref(all);
    return open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

/* Check that each entry is of a file and of a tensor, and that its pieces cover it. */
static void check_content(const struct cstc_content *content,
                          const Cistern__JobDescription *description)
{
    for (uint32_t i = 0; i < content->n_entries; i++) {
        const struct cstc_content_entry *entry = &content->entries[i];
        struct cstc_state_piece piece = cstc_content_piece(entry, 0, PIECE_BYTES);

        fuzz_must(entry->tensor < description->n_tensors && entry->file < content->n_files,
                  "an entry is of a tensor and of a file");
        fuzz_must(entry->n_dims <= CSTC_TENSOR_MAX_DIMS && entry->dtype < CSTC_DTYPE_OTHER,
                  "an entry has a form that files have");
        fuzz_must(entry->n_elems > 0 && piece.n_elems > 0 && piece.n_elems <= entry->n_elems,
                  "a piece is not empty");
        fuzz_must(cstc_content_bytes(entry, entry->n_elems) == entry->bytes,
                  "an entry has the bytes of its elements");
    }
}

/* Check that the first elements of each tensor of the files are elements of a part. */
static void check_way(const struct cstc_wholes *wholes)
{
    for (uint32_t t = 0; t < wholes->files.n_tensors; t++) {
        const uint64_t n = wholes->files.tensors[t].n_elems;
        const struct cst_reshard_run run = cst_reshard_run(&wholes->way, t, 0, n);

        fuzz_must(run.tensor < wholes->parts.n_tensors && run.n_elems > 0 && run.n_elems <= n &&
                      run.first + run.n_elems <= wholes->parts.tensors[run.tensor].n_elems,
                  "a run is of a part");
    }
}

static void use(const Cistern__JobDescription *description, bool joined)
{
    struct cstc_wholes wholes;
    struct cst_err err = {0};

    if (cstc_wholes_open(&wholes, description, joined, &err) != CST_OK) {
        fuzz_must(err.status != CST_OK && err.text[0] != '\0', "a refusal has a cause");
        return;
    }
    check_way(&wholes);
    for (int fp32 = 0; fp32 < 2; fp32++) {
        struct cstc_content content = {0};
        int rc = cstc_content_make(&content, &wholes.description, FILE_BYTES, fp32 != 0, &err);

        if (rc == CST_OK) {
            check_content(&content, &wholes.description);
            cstc_content_close(&content);
        } else {
            fuzz_must((rc == CST_EINVAL || rc == CST_ENOMEM) && err.status == rc,
                      "a refusal has a cause");
        }
    }
    cstc_wholes_close(&wholes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct cstc_manifest manifest;
    struct cst_err err = {0};
    int dir = write_input(data, n), rc;

    fuzz_must(dir >= 0, "a directory");
    rc = cstc_manifest_read(&manifest, dir, &err);
    if (rc == CST_OK) {
        if (cstc_content_check(manifest.description, &err) == CST_OK) {
            use(manifest.description, manifest.joined);
            use(manifest.description, !manifest.joined);
        }
        (void)cstc_manifest_check(&manifest, dir, true, &err);
        cstc_manifest_close(&manifest);
    } else {
        fuzz_must((rc == CST_EINVAL || rc == CST_EUNSUPPORTED) && err.status == rc &&
                      err.text[0] != '\0',
                  "a refusal is of the file, and has words");
    }
    (void)close(dir);
    return 0;
}
