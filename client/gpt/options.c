/* SPDX-License-Identifier: Apache-2.0 */
#include "client/gpt/options.h"

#include "cistern/cistern.h"
#include "client/gpt/layers.h"
#include "client/gpt/model.h"
#include "proto/optimizers.h"
#include "proto/size.h"
#include "proto/usage.h"

#include <ctype.h>
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

enum kind { K_U32, K_U64, K_DOUBLE, K_TEXT, K_FLAG, K_NAME, K_ROOM, K_POOL };

static const char *const store_names[] = {"daemon", "local", NULL};
static const char *const matmul_names[] = {"auto", "bf16", "fp32", "plain", NULL};

struct setting {
    const char *name;         /* without the dashes */
    enum kind kind;           /* type of the value */
    size_t field;             /* offset in struct gpt_options */
    double least, most;       /* range of a number */
    const char *const *names; /* K_NAME: names of the enum's values, NULL at the end */
};

#define FIELD(f) offsetof(struct gpt_options, f)

static const struct setting settings[] = {
    {"layers", K_U32, FIELD(layers), 1, 4096, NULL},
    {"heads", K_U32, FIELD(heads), 1, 4096, NULL},
    {"width", K_U32, FIELD(width), GPT_SIMD_ELEMS, 65536, NULL},
    {"context", K_U32, FIELD(context), 1, 65536, NULL},
    {"experts", K_U32, FIELD(experts), 0, GPT_MAX_EXPERTS, NULL},
    {"top-k", K_U32, FIELD(top_k), 1, GPT_MAX_EXPERTS, NULL},
    {"balance", K_DOUBLE, FIELD(balance), 0, 1e3, NULL},
    {"lora", K_U32, FIELD(lora), 0, 65536, NULL},
    {"lora-alpha", K_DOUBLE, FIELD(lora_alpha), 0, 1e6, NULL},
    {"base", K_TEXT, FIELD(base), 0, 0, NULL},
    {"describe", K_TEXT, FIELD(describe), 0, 0, NULL},
    {"batch", K_U32, FIELD(batch), 1, 65536, NULL},
    {"steps", K_U64, FIELD(steps), 0, 1e15, NULL},
    {"lr", K_DOUBLE, FIELD(lr), 0, 1e3, NULL},
    {"min-lr", K_DOUBLE, FIELD(min_lr), 0, 1e3, NULL},
    {"warmup", K_U64, FIELD(warmup), 0, 1e15, NULL},
    {"weight-decay", K_DOUBLE, FIELD(weight_decay), 0, 1e3, NULL},
    {"clip", K_DOUBLE, FIELD(clip), 0, 1e9, NULL},
    {"beta1", K_DOUBLE, FIELD(beta1), 0, 0.9999999, NULL},
    {"beta2", K_DOUBLE, FIELD(beta2), 1e-6, 0.9999999, NULL},
    {"optimizer", K_NAME, FIELD(optimizer), 0, 0, cst_optimizer_names},
    {"moments", K_NAME, FIELD(moments), 0, 0, cst_moments_names},
    {"rounding", K_NAME, FIELD(rounding), 0, 0, cst_rounding_names},
    {"overlap", K_NAME, FIELD(overlap), 0, 0, cst_overlap_names},
    {"delay-from", K_U64, FIELD(delay_from), 0, 1e15, NULL},
    {"grad-over-weight", K_FLAG, FIELD(grad_over_weight), 0, 0, NULL},
    {"device-update", K_ROOM, FIELD(device_update_bytes), 0, 0, NULL},
    {"device-states", K_ROOM, FIELD(device_states), 0, 0, NULL},
    {"seed", K_U64, FIELD(seed), 0, 1.8446744073709552e19, NULL},
    {"data", K_TEXT, FIELD(data), 0, 0, NULL},
    {"rank", K_U32, FIELD(rank), 0, 63, NULL},
    {"world", K_U32, FIELD(world), 1, 64, NULL},
    {"store", K_NAME, FIELD(store), 0, 0, store_names},
    {"device", K_TEXT, FIELD(device), 0, 0, NULL},
    {"micro-batches", K_U32, FIELD(micro_batches), 1, 65536, NULL},
    {"recompute", K_FLAG, FIELD(recompute), 0, 0, NULL},
    {"measure-matmul", K_FLAG, FIELD(measure_matmul), 0, 0, NULL},
    {"socket", K_TEXT, FIELD(socket), 0, 0, NULL},
    {"job", K_TEXT, FIELD(job), 0, 0, NULL},
    {"pool", K_POOL, FIELD(pool_bytes), 0, 0, NULL},
    {"plan", K_TEXT, FIELD(plan_file), 0, 0, NULL},
    {"chunk", K_U64, FIELD(chunk), 1, 1e15, NULL},
    {"threads", K_U32, FIELD(threads), 1, 1024, NULL},
    {"engine-threads", K_U32, FIELD(engine_threads), 1, 1024, NULL},
    {"matmul", K_NAME, FIELD(matmul), 0, 0, matmul_names},
    {"sample", K_U64, FIELD(sample), 0, 1e9, NULL},
    {"prompt", K_TEXT, FIELD(prompt), 0, 0, NULL},
    {"temperature", K_DOUBLE, FIELD(temperature), 0, 100, NULL},
    {"log-json", K_TEXT, FIELD(log_json), 0, 0, NULL},
    {"dump-weights", K_TEXT, FIELD(dump_weights), 0, 0, NULL},
    {"dump-grads", K_TEXT, FIELD(dump_grads), 0, 0, NULL},
    {"loss-file", K_TEXT, FIELD(loss_file), 0, 0, NULL},
    {"quiet", K_FLAG, FIELD(quiet), 0, 0, NULL},
    {"help", K_FLAG, FIELD(help), 0, 0, NULL},
    {"version", K_FLAG, FIELD(version), 0, 0, NULL},
};

#define N_SETTINGS (sizeof settings / sizeof settings[0])

static int bad_number(const struct setting *s, const char *text, struct cst_err *err)
{
    return cst_err_set(err, CST_EINVAL, "--%s '%s': the value must be a number from %.15g to %.15g",
                       s->name, text, s->least, s->most);
}

static int parse_integer(const struct setting *s, const char *text, uint64_t *out,
                         struct cst_err *err)
{
    char *end;
    uint64_t value;

    errno = 0;
    value = strtoull(text, &end, 10);
    /* strtoull would accept signs and blanks, too. */
    if (!isdigit((unsigned char)text[0]) || *end != '\0' || errno != 0 ||
        (double)value < s->least || (double)value > s->most) {
        return bad_number(s, text, err);
    }
    *out = value;
    return 0;
}

static int parse_double(const struct setting *s, const char *text, double *out, struct cst_err *err)
{
    char *end;
    double value;

    errno = 0;
    value = strtod(text, &end);
    if (end == text || *end != '\0' || !isfinite(value) || value < s->least || value > s->most) {
        return bad_number(s, text, err);
    }
    *out = value;
    return 0;
}

static int parse_room(const struct setting *s, const char *text, uint64_t *out, struct cst_err *err)
{
    int rc = cst_size_parse_or(text, "auto", CST_DEVICE_UPDATE_AUTO, out, err);

    return rc == 0 ? 0 : cst_err_prefix(err, "--%s", s->name);
}

/* Parse a size, or a percentage of the weights. More than 100 % is allowed, because the pool also
 * holds gradients. */
static int parse_pool(const struct setting *s, struct gpt_options *o, const char *text,
                      struct cst_err *err)
{
    uint64_t bytes = 0;
    double percent;
    bool is_percent = cst_size_percent(text, &percent);
    int rc = is_percent ? 0 : cst_size_parse(text, UINT64_MAX, &bytes, err);

    if (rc == 0 && (is_percent ? percent == 0 : bytes == 0)) {
        rc = cst_err_set(err, CST_EINVAL, "'%s' is too small for a pool", text);
    }
    if (rc != 0) {
        return cst_err_prefix(err, "--%s", s->name);
    }
    o->pool_percent = is_percent ? percent : 0;
    o->pool_bytes = bytes;
    return 0;
}

static int parse_name(const struct setting *s, const char *text, uint32_t *out, struct cst_err *err)
{
    uint32_t i = cst_name_find(s->names, text);
    char list[64] = "";

    if (s->names[i] != NULL) {
        *out = i;
        return 0;
    }
    for (i = 0; s->names[i] != NULL; i++) {
        strcat(strcat(list, i == 0 ? "" : ", "), s->names[i]);
    }
    return cst_err_set(err, CST_EINVAL, "--%s '%s': the value must be one of %s", s->name, text,
                       list);
}

static int parse_setting(struct gpt_options *o, const struct setting *s, const char *text,
                         struct cst_err *err)
{
    void *field = (char *)o + s->field;
    uint64_t integer = 0;
    int rc = 0;

    switch (s->kind) {
    case K_U32:
        rc = parse_integer(s, text, &integer, err);
        if (rc == 0) {
            *(uint32_t *)field = (uint32_t)integer;
        }
        break;
    case K_U64:
        rc = parse_integer(s, text, field, err);
        break;
    case K_DOUBLE:
        rc = parse_double(s, text, field, err);
        break;
    case K_TEXT:
        *(const char **)field = text;
        break;
    case K_FLAG:
        *(bool *)field = true;
        break;
    case K_NAME:
        rc = parse_name(s, text, field, err);
        break;
    case K_ROOM:
        rc = parse_room(s, text, field, err);
        break;
    case K_POOL:
        rc = parse_pool(s, o, text, err);
        break;
    }
    return rc;
}

/* Check the options of mixtures and adapters. */
static int check_kinds(const struct gpt_options *o, struct cst_err *err)
{
    if (o->experts > 0 && o->top_k > o->experts) {
        return cst_err_set(err, CST_EINVAL, "--top-k %u is more than --experts %u", o->top_k,
                           o->experts);
    }
    if (o->experts > 0 && o->lora > 0) {
        return cst_err_set(
            err, CST_EINVAL,
            "--lora %u cannot be combined with --experts %u: adapters need a dense model", o->lora,
            o->experts);
    }
    if (o->base != NULL && o->lora == 0) {
        return cst_err_set(err, CST_EINVAL,
                           "--base '%s' needs --lora: without it nothing is frozen", o->base);
    }
    if (o->base != NULL && o->store == GPT_STORE_LOCAL) {
        return cst_err_set(
            err, CST_EINVAL,
            "--base '%s' cannot be combined with --store=local: only the daemon has jobs", o->base);
    }
    return 0;
}

/* Check the optimizer, and the options that only the daemon supports. */
static int check_states(const struct gpt_options *o, struct cst_err *err)
{
    if (o->beta1 == 0 && o->optimizer != CST_OPTIMIZER_SGD) {
        return cst_err_set(err, CST_EINVAL, "--beta1 0: only sgd can do without momentum, not %s",
                           cst_optimizer_names[o->optimizer]);
    }
    if (o->dump_grads != NULL && o->store == GPT_STORE_DAEMON &&
        (o->grad_over_weight || (o->overlap == CST_OVERLAP_EARLY && o->clip == 0))) {
        return cst_err_set(
            err, CST_EINVAL,
            "--dump-grads cannot be combined with %s: the daemon does not keep gradients then",
            o->grad_over_weight ? "--grad-over-weight" : "--overlap early and --clip 0");
    }
    if (o->delay_from > 0 && o->overlap != CST_OVERLAP_DELAYED) {
        return cst_err_set(err, CST_EINVAL, "--delay-from %llu needs --overlap delayed, not %s",
                           (unsigned long long)o->delay_from, cst_overlap_names[o->overlap]);
    }
    if (o->store == GPT_STORE_LOCAL && (o->grad_over_weight || o->device_update_bytes > 0 ||
                                        o->device_states > 0 || o->plan_file != NULL)) {
        return cst_err_set(
            err, CST_EINVAL,
            "--grad-over-weight, --device-update, --device-states and --plan are for "
            "the daemon: they cannot be combined with --store=local");
    }
    return 0;
}

/* Check combinations of options. */
static int check_together(const struct gpt_options *o, struct cst_err *err)
{
    if (o->width % o->heads != 0) {
        return cst_err_set(err, CST_EINVAL, "--width %u is not divisible by --heads %u", o->width,
                           o->heads);
    }
    if (o->width / o->heads % GPT_SIMD_ELEMS != 0) {
        return cst_err_set(
            err, CST_EINVAL,
            "--width %u / --heads %u = %u elements per head: it must be a multiple of %d", o->width,
            o->heads, o->width / o->heads, GPT_SIMD_ELEMS);
    }
    if (o->batch % o->micro_batches != 0) {
        return cst_err_set(err, CST_EINVAL, "--batch %u is not divisible by --micro-batches %u",
                           o->batch, o->micro_batches);
    }
    if (o->rank >= o->world) {
        return cst_err_set(err, CST_EINVAL, "--rank %u with --world %u: ranks are 0..%u", o->rank,
                           o->world, o->world - 1);
    }
    if (o->store == GPT_STORE_LOCAL && o->rank != 0) {
        return cst_err_set(
            err, CST_EINVAL,
            "--rank %u cannot be combined with --store=local: one process is all %u ranks", o->rank,
            o->world);
    }
    if (o->data == NULL && o->describe == NULL) {
        return cst_err_set(err, CST_EINVAL, "--data FILE is missing");
    }
    if (check_states(o, err) != 0) {
        return CST_EINVAL;
    }
    return check_kinds(o, err);
}

int gpt_options_parse(struct gpt_options *options, int argc, char *argv[], struct cst_err *err)
{
    struct option table[N_SETTINGS + 1] = {0};
    struct gpt_options o = {
        .layers = 4,
        .heads = 4,
        .width = 128,
        .context = 128,
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
        .seed = 1,
        .world = 1,
        .device = "host",
        .micro_batches = 1,
        .job = "gpt",
        .prompt = "\n",
        .temperature = 0.8,
    };
    int index = 0, c, rc;

    for (size_t i = 0; i < N_SETTINGS; i++) {
        table[i].name = settings[i].name;
        table[i].has_arg = settings[i].kind == K_FLAG ? no_argument : required_argument;
        table[i].val = (int)i + 256;
    }
    /* 0 restarts the scan, including GNU getopt's internal state. */
    optind = 0;
    opterr = 0;
    while ((c = getopt_long(argc, argv, ":", table, &index)) != -1) {
        if (c < 256) {
            return cst_usage_refused(c, argv, table, err);
        }
        rc = parse_setting(&o, &settings[c - 256], optarg, err);
        if (rc != 0) {
            return rc;
        }
    }
    if (optind < argc) {
        return cst_err_set(err, CST_EINVAL, "'%s' is not an option (see --help)", argv[optind]);
    }
    if (o.top_k == 0) { /* --top-k was not given. */
        o.top_k = o.experts == 1 ? 1 : 2;
    }
    /* --beta2 was not given. The default depends on the optimizer. */
    if (o.beta2 < 0) {
        o.beta2 = o.optimizer == CST_OPTIMIZER_LION ? 0.99 : 0.95;
    }
    /* --help and --version need no other options. */
    rc = o.help || o.version ? 0 : check_together(&o, err);
    if (rc == 0) {
        o.lora_alpha = o.lora_alpha < 0 ? o.lora : o.lora_alpha;
        if (o.min_lr < 0) {
            o.min_lr = o.lr / 10;
        }
        *options = o;
    }
    return rc;
}
