/* SPDX-License-Identifier: Apache-2.0 */
#include "client/gpt/options.h"

#include "cistern/launch.h"
#include "client/gpt/gpt2.h"
#include "client/gpt/layers.h"
#include "client/gpt/model.h"
#include "client/gpt/options_parallel.h"
#include "proto/job_options.h"
#include "proto/optimizers.h"
#include "proto/options_file.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define AT(name) offsetof(struct gpt_options, name)

void gpt_options_help(FILE *out)
{
    (void)fputs("Usage: cistern-gpt --data FILE [OPTION]...\n"
                "Trains a GPT-2 on the text in FILE. Its weights, gradients and\n"
                "optimizer states are in the memory daemon, cisternd. Start one worker per rank.\n"
                "Defaults are in parentheses.\n",
                out);
    cst_options_print(gpt_options_table, 0, out);
}

/* Check the options of mixtures and adapters. */
static int check_kinds(const struct gpt_options *o, struct cst_err *err)
{
    if (o->experts > 0 && o->top_k > o->experts) {
        return cst_err_set(err, CST_EINVAL,
                           "--top-k %u is more than --experts %u: at most --top-k %u", o->top_k,
                           o->experts, o->experts);
    }
    if (o->experts > 0 && o->lora > 0) {
        return cst_err_set(
            err, CST_EINVAL,
            "--lora %u cannot be combined with --experts %u: adapters need a dense model", o->lora,
            o->experts);
    }
    if (o->job.model.base != NULL && o->lora == 0) {
        return cst_err_set(err, CST_EINVAL,
                           "--base '%s' needs --lora R: without it nothing is frozen",
                           o->job.model.base);
    }
    if (o->job.model.base != NULL && o->store == GPT_STORE_LOCAL) {
        return cst_err_set(
            err, CST_EINVAL,
            "--base '%s' cannot be combined with --store=local: only the daemon has jobs",
            o->job.model.base);
    }
    return 0;
}

/* Check the optimizer, and the options that only the daemon supports. */
static int check_states(const struct gpt_options *o, struct cst_err *err)
{
    if (o->beta1 == 0 && !cst_optimizer_rows[o->job.states.optimizer].beta1_may_be_0) {
        return cst_err_set(err, CST_EINVAL, "--beta1 0: only sgd can do without momentum, not %s",
                           cst_optimizer_names[o->job.states.optimizer]);
    }
    if (o->dump_grads != NULL && o->store == GPT_STORE_DAEMON &&
        (o->job.states.grad_over_weight ||
         (o->job.updates.overlap == CST_OVERLAP_EARLY && o->clip == 0))) {
        return cst_err_set(
            err, CST_EINVAL,
            "--dump-grads cannot be combined with %s: the daemon does not keep gradients then",
            o->job.states.grad_over_weight ? "--grad-over-weight" : "--overlap early and --clip 0");
    }
    if (o->store == GPT_STORE_LOCAL && o->job.updates.unused != CST_UNUSED_ZERO) {
        return cst_err_set(err, CST_EINVAL,
                           "--unused skip is for the daemon: it cannot be combined with "
                           "--store=local");
    }
    if (o->store == GPT_STORE_LOCAL && cst_optimizer_of_matrices(o->job.states.optimizer)) {
        return cst_err_set(err, CST_EINVAL,
                           "--optimizer muon is for the daemon: it cannot be combined with "
                           "--store=local");
    }
    if (o->store == GPT_STORE_LOCAL &&
        (o->job.states.grad_over_weight || o->job.memory.device_update_bytes > 0 ||
         o->job.memory.device_states > 0 || o->job.planning.plan_file != NULL || o->job.reshape ||
         o->job.states.disk != NULL || o->job.states.durable)) {
        return cst_err_set(
            err, CST_EINVAL,
            "--grad-over-weight, --device-update, --device-states, --plan, --reshape, --disk and "
            "--durable are for the daemon: they cannot be combined with --store=local");
    }
    return 0;
}

/* Check the options of checkpoints. */
static int check_checkpoints(const struct gpt_options *o, struct cst_err *err)
{
    const bool any = o->save_every > 0 || o->resume != NULL;

    if (any && o->store == GPT_STORE_LOCAL) {
        return cst_err_set(err, CST_EINVAL,
                           "--save-every and --resume are for the daemon: they cannot be combined "
                           "with --store=local");
    }
    if (o->save_dir == NULL &&
        (o->save_every > 0 || (o->resume != NULL && strcmp(o->resume, "auto") == 0))) {
        return cst_err_set(err, CST_EINVAL, "%s needs --save-dir DIR",
                           o->save_every > 0 ? "--save-every" : "--resume auto");
    }
    return 0;
}

/* Check the options of the text, and of weights from elsewhere. */
static int check_text(const struct gpt_options *o, struct cst_err *err)
{
    if (o->sample > 0 && o->vocab != GPT_VOCAB) {
        return cst_err_set(err, CST_EINVAL,
                           "--sample cannot be combined with a vocabulary of %u: only tokens that "
                           "are bytes are text",
                           o->vocab);
    }
    if (o->validate_every > 0 && o->validate == NULL) {
        return cst_err_set(err, CST_EINVAL, "--validate-every %llu needs --validate FILE or P%%",
                           (unsigned long long)o->validate_every);
    }
    if (o->init != NULL &&
        (o->store == GPT_STORE_LOCAL || o->experts > 0 || o->job.model.base != NULL)) {
        return cst_err_set(err, CST_EINVAL,
                           "--init '%s' cannot be combined with --store=local, --experts or --base",
                           o->init);
    }
    return 0;
}

/* True if the command line has the option @name. */
static bool is_given(const struct cst_options_given *given, const char *name)
{
    for (size_t i = 0; gpt_options_table[i].help != NULL; i++) {
        if (gpt_options_table[i].name != NULL && strcmp(gpt_options_table[i].name, name) == 0) {
            return given->rows[i];
        }
    }
    return false;
}

/* Return the number that the command line has given under the name @name, which is @number. */
static uint32_t given_number(const struct cst_options_given *given, const char *name,
                             uint32_t number)
{
    return is_given(given, name) ? number : CST_LAUNCH_UNKNOWN;
}

static void take_number(uint32_t *to, uint32_t number)
{
    *to = number != CST_LAUNCH_UNKNOWN ? number : *to;
}

/* Take the numbers of the rank that `cistern run`, torchrun or another launcher has given it. */
static int take_launch(struct gpt_options *o, const struct gpt_options *typed,
                       const struct cst_options_given *given, struct cst_err *err)
{
    const struct cst_job_nodes *nodes = &typed->job.nodes;
    struct cst_launch launch = {
        .rank = given_number(given, "rank", typed->job.rank),
        .world = given_number(given, "world", typed->job.world),
        .first_rank = given_number(given, "first-rank", nodes->first_rank),
        .all_ranks = given_number(given, "all-ranks", nodes->all_ranks),
    };
    const char *const standby = getenv("CISTERN_STANDBY");
    int rc;

    o->standby = standby != NULL && strcmp(standby, "1") == 0;
    if (o->standby && launch.rank != CST_LAUNCH_UNKNOWN) {
        return cst_err_set(err, CST_EINVAL,
                           "--rank %u: a standby (CISTERN_STANDBY=1) has no rank yet: leave --rank "
                           "out",
                           launch.rank);
    }
    launch.rank = o->standby ? 0 : launch.rank; /* Stands for the one that it gets. */
    rc = cst_launch_find(&launch, err);
    if (rc == CST_OK) {
        take_number(&o->job.rank, launch.rank);
        take_number(&o->job.world, launch.world);
        take_number(&o->job.nodes.first_rank, launch.first_rank);
        take_number(&o->job.nodes.all_ranks, launch.all_ranks);
    }
    return rc;
}

/* Fill @o from the environment and from the file of --config. @typed and @given are what the
 * command line has. The numbers that a launcher gives to ranks are more special than the file,
 * which all ranks share; the number of threads is a default. */
static int take_config(struct gpt_options *o, const struct gpt_options *typed,
                       const struct cst_options_given *given, struct cst_options_given *in_file,
                       struct cst_err *err)
{
    static const struct cst_value threads = CST_U32(AT(threads), 1, 1024);
    const char *path = typed->config, *n_threads = getenv("OMP_NUM_THREADS");
    int rc = CST_OK;

    if (n_threads != NULL && cst_value_read(&threads, o, n_threads, err) != CST_OK) {
        return cst_err_prefix(err, "environment variable OMP_NUM_THREADS");
    }
    if (path != NULL) {
        rc = cst_options_load(gpt_options_table, o, path, in_file, &o->texts, err);
        rc = rc == CST_ENOTFOUND ? cst_err_set(err, rc,
                                               "--config %.200s: no such file: 'cistern-gpt "
                                               "--print-config' writes one",
                                               path)
                                 : rc;
    }
    return rc == CST_OK ? take_launch(o, typed, given, err) : rc;
}

/* Take the sizes from the configuration in --init. A size that was given must be the same. */
static int take_sizes(struct gpt_options *o, const struct cst_options_given *given,
                      struct cst_err *err)
{
    struct gpt_gpt2_sizes sizes;
    const struct {
        const char *name;
        uint32_t *field;
        const uint32_t *size;
    } rows[] = {{"layers", &o->layers, &sizes.layers},
                {"heads", &o->heads, &sizes.heads},
                {"width", &o->width, &sizes.width},
                {"context", &o->context, &sizes.context},
                {"vocab", &o->vocab, &sizes.vocab}};
    int rc = gpt_gpt2_read(o->init, &sizes, err);

    for (size_t i = 0; rc == 0 && i < sizeof rows / sizeof *rows; i++) {
        if (is_given(given, rows[i].name) && *rows[i].field != *rows[i].size) {
            rc = cst_err_set(err, CST_EINVAL, "--%s %u: --init '%s' has %u", rows[i].name,
                             *rows[i].field, o->init, *rows[i].size);
        }
        *rows[i].field = *rows[i].size;
    }
    return rc;
}

/* Return the least multiple of @of that is @n or more. */
static unsigned long long next_multiple(uint64_t n, uint64_t of)
{
    return (n + of - 1) / of * of;
}

/* Check combinations of options. */
static int check_together(const struct gpt_options *o, struct cst_err *err)
{
    if (o->width % o->heads != 0) {
        return cst_err_set(err, CST_EINVAL,
                           "--width %u is not divisible by --heads %u: --width %llu is", o->width,
                           o->heads, next_multiple(o->width, (uint64_t)GPT_SIMD_ELEMS * o->heads));
    }
    if (o->width / o->heads % GPT_SIMD_ELEMS != 0) {
        return cst_err_set(
            err, CST_EINVAL,
            "--width %u / --heads %u = %u elements per head: it must be a multiple of %d, as with "
            "--width %llu",
            o->width, o->heads, o->width / o->heads, GPT_SIMD_ELEMS,
            next_multiple(o->width, (uint64_t)GPT_SIMD_ELEMS * o->heads));
    }
    if (o->batch % o->job.updates.micro_batches != 0) {
        return cst_err_set(err, CST_EINVAL,
                           "--batch %u is not divisible by --micro-batches %u: --batch %llu is",
                           o->batch, o->job.updates.micro_batches,
                           next_multiple(o->batch, o->job.updates.micro_batches));
    }
    if (o->job.rank >= o->job.world) {
        return cst_err_set(err, CST_EINVAL,
                           "--rank %u with --world %u: the ranks are 0 to %u; for more, --world %u",
                           o->job.rank, o->job.world, o->job.world - 1, o->job.rank + 1);
    }
    if (o->store == GPT_STORE_LOCAL && o->job.rank != 0) {
        return cst_err_set(
            err, CST_EINVAL,
            "--rank %u cannot be combined with --store=local: one process is all %u ranks",
            o->job.rank, o->job.world);
    }
    if (o->activation_memory > 0 && (o->store == GPT_STORE_LOCAL || o->experts > 0)) {
        return cst_err_set(
            err, CST_EINVAL,
            "--activation-memory cannot be combined with --store=local or --experts");
    }
    if (o->data == NULL && o->describe == NULL && !o->print_config) {
        return cst_err_set(err, CST_EINVAL, "--data FILE is missing: name a text to learn");
    }
    if (cst_job_options_check(&o->job, err) != CST_OK) {
        return CST_EINVAL;
    }
    if (check_states(o, err) != 0 || check_checkpoints(o, err) != 0 || check_text(o, err) != 0) {
        return CST_EINVAL;
    }
    return gpt_options_check_parallel(o, err) == 0 ? check_kinds(o, err) : CST_EINVAL;
}

/* Choose the options that depend on others and were not given. */
static void choose_defaults(struct gpt_options *o)
{
    if (o->top_k == 0) {
        o->top_k = o->experts == 1 ? 1 : 2;
    }
    if (o->beta2 < 0) {
        o->beta2 = cst_optimizer_rows[o->job.states.optimizer].beta2;
        o->beta2 = o->beta2 != 0 ? o->beta2 : 0.95; /* 0.999 is long for a language model. */
    }
    if (o->lora > 0 && o->lora_alpha < 0) {
        o->lora_alpha = o->lora;
    }
    if (o->min_lr < 0) {
        o->min_lr = o->lr / 10;
    }
    gpt_options_choose_parallel(o);
}

/* Fill @o, which has the defaults, from all places. */
static int take_options(struct gpt_options *o, int argc, char *argv[], struct cst_err *err)
{
    struct gpt_options typed = {.job.world = 1};
    struct cst_options_given given, in_file = {.first = 0};
    /* The command line is read for --config first, and then again, because it overrides the file.
     */
    int rc = cst_options_read(gpt_options_table, &typed, argc, argv, &given, err);

    if (rc == 0) {
        rc = take_config(o, &typed, &given, &in_file, err);
    }
    if (rc == 0) {
        rc = cst_options_read(gpt_options_table, o, argc, argv, &given, err);
    }
    if (rc == 0 && given.first < argc) {
        rc = cst_err_set(err, CST_EINVAL, "unexpected argument '%s' (see --help)",
                         argv[given.first]);
    }
    for (size_t i = 0; rc == 0 && i < CST_OPTIONS_MAX; i++) {
        given.rows[i] = given.rows[i] || in_file.rows[i];
    }
    if (rc == 0 && o->init != NULL) {
        rc = take_sizes(o, &given, err);
    }
    return rc;
}

int gpt_options_parse(struct gpt_options *options, int argc, char *argv[], struct cst_err *err)
{
    struct gpt_options o = {
        .layers = 4,
        .heads = 4,
        .width = 128,
        .context = 128,
        .vocab = GPT_VOCAB,
        .batch = 8,
        .balance = 0.01,
        .lora_alpha = -1,
        .steps = 100,
        .lr = 1e-3,
        .min_lr = -1,
        .warmup = 10,
        .weight_decay = 0.1,
        .clip = 1,
        .beta1 = 0.9,
        .beta2 = -1,
        .job = {.name = "gpt",
                .world = 1,
                .device = "host",
                .states.seed = 1,
                .updates.micro_batches = 1},
        .prompt = "\n",
        .temperature = 0.8,
    };
    int rc = take_options(&o, argc, argv, err);

    if (rc == 0) {
        choose_defaults(&o);
        /* --help and --version need no other options. */
        rc = o.help || o.version ? 0 : check_together(&o, err);
    }
    if (rc != 0) {
        gpt_options_release(&o);
        return rc;
    }
    *options = o;
    return 0;
}

void gpt_options_release(struct gpt_options *options)
{
    json_decref(options->texts);
    options->texts = NULL;
}
