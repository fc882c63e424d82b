/* SPDX-License-Identifier: Apache-2.0 */
/* cistern-gpt: the reference worker. */
#include "client/gpt/describe.h"
#include "client/gpt/options.h"
#include "client/gpt/run.h"
#include "client/gpt/stop.h"
#include "proto/isa.h"
#include "proto/options_file.h"
#include "proto/program.h"

#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include <signal.h>
#include <stdio.h>

/* Print the error. Returns the exit status. */
static int fail(int rc, const struct cst_err *err)
{
    (void)fprintf(stderr, "cistern-gpt: %s\n",
                  err->text[0] != '\0' ? err->text : cst_status_words(rc));
    return gpt_stop_asked() != 0 ? 128 + gpt_stop_asked() : rc == CST_EINVAL ? 2 : 1;
}

/* Do what the options ask for. */
static int work(const struct gpt_options *options, struct cst_err *err)
{
    int rc;

    if (options->help) {
        gpt_options_help(stdout);
        return CST_OK;
    }
    if (options->version) {
        (void)puts("cistern-gpt " PACKAGE_VERSION);
        return CST_OK;
    }
    if (options->print_config) {
        return cst_options_save(gpt_options_table, options, stdout, err);
    }
    rc = cst_isa_check(err);
    if (rc != CST_OK) {
        return rc;
    }
    if (options->store == GPT_STORE_DAEMON) {
        rc = gpt_stop_catch(err); /* With the local store the states would be lost anyway. */
    }
    if (rc != CST_OK) {
        return rc;
    }
    return options->describe != NULL ? gpt_describe(options, err) : gpt_run(options, err);
}

int main(int argc, char *argv[])
{
    struct gpt_options options = {.texts = NULL};
    struct cst_err err = {0};
    int rc;

    /* A write to a closed terminal or socket shall fail with an error code, not kill the process.
     */
    (void)signal(SIGPIPE, SIG_IGN);
    rc = cst_program_open_standard_files(&err);
    if (rc == CST_OK) {
        rc = gpt_options_parse(&options, argc, argv, &err);
    }
    if (rc == CST_OK) {
        rc = work(&options, &err);
    }
    gpt_options_release(&options);
    return rc == CST_OK ? 0 : fail(rc, &err);
}
