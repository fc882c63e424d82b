/* SPDX-License-Identifier: Apache-2.0 */
/* The command `cistern reader`: reads versions of a job's weights, and prints a digest of each. */
#include "cistern/reader.h"

#include "client/cli/cli.h"
#include "client/cli/json.h"

#include <inttypes.h>
#include <stdio.h>
#include <xxhash.h>

/* A digest of all weights of @version, in the order of declaration. It is unusable if the version
 * is lost meanwhile. */
static uint64_t digest_of(const struct cst_reader *reader, const struct cst_reader_version *version,
                          XXH3_state_t *state)
{
    (void)XXH3_64bits_reset(state);
    for (uint32_t i = 0; i < cst_reader_count(reader); i++) {
        (void)XXH3_64bits_update(state, cst_reader_weights(reader, version, i),
                                 cst_reader_tensor(reader, i)->bytes);
    }
    return XXH3_64bits_digest(state);
}

static bool print(const struct cli *cli, uint64_t step, bool lost, uint64_t digest)
{
    char text[24];

    (void)snprintf(text, sizeof text, "%016" PRIx64, digest);
    if (cli->json) {
        return cli_json_print(lost ? json_pack("{s:I, s:b}", "step", (json_int_t)step, "lost", 1)
                                   : json_pack("{s:I, s:b, s:s}", "step", (json_int_t)step, "lost",
                                               0, "digest", text));
    }
    (void)printf("step %" PRIu64 "  %s\n", step, lost ? "lost while it was read" : text);
    (void)fflush(stdout);
    return true;
}

/* Read the next version after *wish and print its digest. */
static bool read_one(const struct cli *cli, struct cst_reader *reader, struct cst_reader_wish *wish,
                     XXH3_state_t *state, struct cst_err *err)
{
    struct cst_reader_version version;
    uint64_t digest;
    int rc;

    if (cst_reader_next(reader, wish, -1, &version, err) != CST_OK) {
        return false;
    }
    digest = digest_of(reader, &version, state);
    rc = cst_reader_check(reader, &version, err);
    wish->any = false;
    wish->after = version.step;
    return (rc == CST_OK || rc == CST_ESTALE) &&
           print(cli, version.step, rc == CST_ESTALE, digest) &&
           cst_reader_release(reader, &version, err) == CST_OK;
}

int cli_reader(struct cli *cli)
{
    struct cst_reader_wish wish = {.any = true, .keep = cli->keep_version};
    struct cst_reader *reader = NULL;
    XXH3_state_t *state = XXH3_createState();
    struct cst_err err = {0};
    bool ok = state != NULL;

    if (!ok) {
        (void)cst_err_set(&err, CST_ENOMEM, "no memory for a digest");
    }
    ok = ok && cst_reader_open(&reader, cli->path, cli->args[0], &err) == CST_OK;
    for (uint64_t i = 0; ok && i < cli->steps; i++) {
        ok = read_one(cli, reader, &wish, state, &err);
    }
    cst_reader_close(reader);
    (void)XXH3_freeState(state);
    return ok ? CLI_EXIT_OK : err.status != CST_OK ? cli_fail(&err) : CLI_EXIT_FAILURE;
}
