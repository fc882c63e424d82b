#include "client/gpt/options.h"

#include "client/gpt/layers.h"

#include <ctype.h>
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

static const char help[] =
    "usage: cistern-gpt --data FILE [options]\n"
    "\n"
    "Trains a GPT-2 style decoder on the bytes of FILE; its weights, gradients and optimizer "
    "states live in\n"
    "the memory daemon, cisternd. Start one worker per rank.\n"
    "\n"
    "model:\n"
    "  --layers N          blocks (default 4)\n"
    "  --heads N           attention heads per block (4); width / heads must be a multiple of 16\n"
    "  --width N           elements of the residual stream (128), a multiple of 16\n"
    "  --context N         bytes of a sequence (128)\n"
    "training:\n"
    "  --data FILE         text to learn, read as bytes\n"
    "  --batch N           sequences per rank and step (8)\n"
    "  --micro-batches N   parts of the batch, one after the other within each operator (1; only "
    "on "
    "a GPU)\n"
    "  --recompute         keep a block's input alone and compute the rest again on the way back "
    "(GPU)\n"
    "  --steps N           steps in the life of the job (100)\n"
    "  --lr X              highest learning rate (0.001)\n"
    "  --min-lr X          learning rate at the end of the cosine (a tenth of --lr)\n"
    "  --warmup N          steps of linear rise (10)\n"
    "  --weight-decay X    of matrices; biases, norms and embeddings have none (0.1)\n"
    "  --clip X            global gradient norm; 0: no clipping (1)\n"
    "  --beta1 X, --beta2 X  of AdamW (0.9, 0.95)\n"
    "  --seed N            of weights, data order and sample (1)\n"
    "ranks and states:\n"
    "  --rank N            this worker, 0..world-1 (0)\n"
    "  --world N           workers (1)\n"
    "  --store WHAT        daemon (default); local: all ranks as threads of this process, states "
    "in it\n"
    "  --device WHAT       host (default), cuda, cuda:N or a GPU's UUID: where the model is "
    "computed\n"
    "  --socket PATH       of the daemon ($CISTERN_SOCKET, /run/cistern/cistern.sock)\n"
    "  --job NAME          (gpt)\n"
    "  --pool SIZE|P%      memory of this rank for weights and gradients: bytes with K, M or G "
    "behind,\n"
    "                      or a part of the bf16 weights (what can be used)\n"
    "  --chunk N           chunk capacity in elements (the daemon chooses)\n"
    "  --threads N         compute threads of this rank (cores / world, at least 1)\n"
    "  --engine-threads N  of the local store (all cores)\n"
    "  --matmul WHAT       bf16, fp32 or auto: bf16 where the CPU multiplies it in hardware "
    "(auto);\n"
    "                      on a GPU auto is cuBLASLt, plain a slow product without it\n"
    "  --measure-matmul    measure the GPU's bf16 matrix product first; tell the share of it that "
    "is "
    "used\n"
    "output:\n"
    "  --sample N          bytes that rank 0 generates at the end (0); the same for all ranks, "
    "which wait\n"
    "                      for it\n"
    "  --prompt TEXT       to start the sample with (a new line)\n"
    "  --temperature X     of the sample; 0: always the likeliest byte (0.8)\n"
    "  --log-json FILE     one object per step\n"
    "  --loss-file FILE    one line per step, the loss in hexadecimal\n"
    "  --dump-weights FILE master weights in fp32, then weights in bf16, in order of declaration\n"
    "  --dump-grads FILE   the reduced gradients of step 1 in bf16, in order of declaration\n"
    "  --quiet             errors only\n"
    "  --help, --version\n";

const char *gpt_options_help(void)
{
    return help;
}

enum kind { K_U32, K_U64, K_DOUBLE, K_TEXT, K_FLAG, K_STORE, K_MATMUL, K_POOL };

struct setting {
    const char *name;   /* without the dashes */
    enum kind kind;     /* of the value */
    size_t field;       /* offset in struct gpt_options */
    double least, most; /* allowed numbers */
};

#define FIELD(f) offsetof(struct gpt_options, f)

static const struct setting settings[] = {
    {"layers", K_U32, FIELD(layers), 1, 4096},
    {"heads", K_U32, FIELD(heads), 1, 4096},
    {"width", K_U32, FIELD(width), GPT_SIMD_ELEMS, 65536},
    {"context", K_U32, FIELD(context), 1, 65536},
    {"batch", K_U32, FIELD(batch), 1, 65536},
    {"steps", K_U64, FIELD(steps), 0, 1e15},
    {"lr", K_DOUBLE, FIELD(lr), 0, 1e3},
    {"min-lr", K_DOUBLE, FIELD(min_lr), 0, 1e3},
    {"warmup", K_U64, FIELD(warmup), 0, 1e15},
    {"weight-decay", K_DOUBLE, FIELD(weight_decay), 0, 1e3},
    {"clip", K_DOUBLE, FIELD(clip), 0, 1e9},
    {"beta1", K_DOUBLE, FIELD(beta1), 1e-6, 0.9999999},
    {"beta2", K_DOUBLE, FIELD(beta2), 1e-6, 0.9999999},
    {"seed", K_U64, FIELD(seed), 0, 1.8446744073709552e19},
    {"data", K_TEXT, FIELD(data), 0, 0},
    {"rank", K_U32, FIELD(rank), 0, 63},
    {"world", K_U32, FIELD(world), 1, 64},
    {"store", K_STORE, FIELD(store), 0, 0},
    {"device", K_TEXT, FIELD(device), 0, 0},
    {"micro-batches", K_U32, FIELD(micro_batches), 1, 65536},
    {"recompute", K_FLAG, FIELD(recompute), 0, 0},
    {"measure-matmul", K_FLAG, FIELD(measure_matmul), 0, 0},
    {"socket", K_TEXT, FIELD(socket), 0, 0},
    {"job", K_TEXT, FIELD(job), 0, 0},
    {"pool", K_POOL, FIELD(pool_bytes), 0, 0},
    {"chunk", K_U64, FIELD(chunk), 1, 1e15},
    {"threads", K_U32, FIELD(threads), 1, 1024},
    {"engine-threads", K_U32, FIELD(engine_threads), 1, 1024},
    {"matmul", K_MATMUL, FIELD(matmul), 0, 0},
    {"sample", K_U64, FIELD(sample), 0, 1e9},
    {"prompt", K_TEXT, FIELD(prompt), 0, 0},
    {"temperature", K_DOUBLE, FIELD(temperature), 0, 100},
    {"log-json", K_TEXT, FIELD(log_json), 0, 0},
    {"dump-weights", K_TEXT, FIELD(dump_weights), 0, 0},
    {"dump-grads", K_TEXT, FIELD(dump_grads), 0, 0},
    {"loss-file", K_TEXT, FIELD(loss_file), 0, 0},
    {"quiet", K_FLAG, FIELD(quiet), 0, 0},
    {"help", K_FLAG, FIELD(help), 0, 0},
    {"version", K_FLAG, FIELD(version), 0, 0},
};

#define N_SETTINGS (sizeof settings / sizeof settings[0])

static int bad_number(const struct setting *s, const char *text, struct cst_err *err)
{
    return cst_err_set(err, CST_EINVAL, "--%s '%s': a number from %.15g to %.15g is wanted",
                       s->name, text, s->least, s->most);
}

static int parse_integer(const struct setting *s, const char *text, uint64_t *out,
                         struct cst_err *err)
{
    char *end;
    uint64_t value;

    errno = 0;
    value = strtoull(text, &end, 10);
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

/* "25%", "4096", "10M". */
static int parse_pool(struct gpt_options *o, const char *text, struct cst_err *err)
{
    static const char units[] = "KMG";
    const char *unit;
    char *end;
    double value;

    errno = 0;
    value = strtod(text, &end);
    if (end == text || !(value > 0) || value > 1e15) {
        goto bad;
    }
    if (strcmp(end, "%") == 0) {
        o->pool_percent = value;
        o->pool_bytes = 0;
        return 0;
    }
    if (end[0] != '\0') {
        unit = strchr(units, toupper((unsigned char)end[0]));
        if (unit == NULL || end[1] != '\0') {
            goto bad;
        }
        value *= (double)(1ull << (10 * (unit - units + 1)));
    }
    if (value < 1 || value > 1e18) {
        goto bad;
    }
    o->pool_bytes = (uint64_t)value;
    o->pool_percent = 0;
    return 0;
bad:
    return cst_err_set(err, CST_EINVAL,
                       "--pool '%s': bytes (with K, M or G behind) or a percentage such as 25%% "
                       "is wanted",
                       text);
}

static int parse_word(const char *name, const char *text, const char *const *words, size_t n,
                      unsigned *out, struct cst_err *err)
{
    char list[64] = "";

    for (unsigned i = 0; i < n; i++) {
        if (strcmp(text, words[i]) == 0) {
            *out = i;
            return 0;
        }
        strcat(strcat(list, i == 0 ? "" : ", "), words[i]);
    }
    return cst_err_set(err, CST_EINVAL, "--%s '%s': one of %s is wanted", name, text, list);
}

static int parse_setting(struct gpt_options *o, const struct setting *s, const char *text,
                         struct cst_err *err)
{
    static const char *const stores[] = {"daemon", "local"};
    static const char *const matmuls[] = {"auto", "bf16", "fp32", "plain"};
    void *field = (char *)o + s->field;
    uint64_t integer = 0;
    unsigned word = 0;
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
    case K_STORE:
        rc = parse_word(s->name, text, stores, 2, &word, err);
        o->store = (enum gpt_store_choice)word;
        break;
    case K_MATMUL:
        rc = parse_word(s->name, text, matmuls, 4, &word, err);
        o->matmul = (enum gpt_matmul_choice)word;
        break;
    case K_POOL:
        rc = parse_pool(o, text, err);
        break;
    }
    return rc;
}

/* What no value alone can tell. */
static int check_together(const struct gpt_options *o, struct cst_err *err)
{
    if (o->width % o->heads != 0) {
        return cst_err_set(err, CST_EINVAL, "--width %u is not divisible by --heads %u", o->width,
                           o->heads);
    }
    if (o->width / o->heads % GPT_SIMD_ELEMS != 0) {
        return cst_err_set(err, CST_EINVAL,
                           "--width %u / --heads %u = %u elements per head: a multiple of %d is "
                           "wanted",
                           o->width, o->heads, o->width / o->heads, GPT_SIMD_ELEMS);
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
        return cst_err_set(err, CST_EINVAL,
                           "--rank %u with --store=local: that process is all %u ranks", o->rank,
                           o->world);
    }
    if (o->data == NULL) {
        return cst_err_set(err, CST_EINVAL, "--data FILE is missing");
    }
    return 0;
}

/* What getopt_long does not know: its '?'. */
static int unknown_option(char *const argv[], struct cst_err *err)
{
    if (optopt >= 256) {
        return cst_err_set(err, CST_EINVAL, "--%s takes no value", settings[optopt - 256].name);
    }
    if (optopt > 0) {
        return cst_err_set(err, CST_EINVAL, "-%c: no such option (see --help)", optopt);
    }
    return cst_err_set(err, CST_EINVAL, "%s: no such option (see --help)", argv[optind - 1]);
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
        .steps = 100,
        .lr = 1e-3,
        .min_lr = -1,
        .warmup = 10,
        .weight_decay = 0.1,
        .clip = 1,
        .beta1 = 0.9,
        .beta2 = 0.95,
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
    optind = 0;
    opterr = 0;
    while ((c = getopt_long(argc, argv, ":", table, &index)) != -1) {
        if (c == ':') {
            return cst_err_set(err, CST_EINVAL, "%s: a value is missing", argv[optind - 1]);
        }
        if (c < 256) {
            return unknown_option(argv, err);
        }
        rc = parse_setting(&o, &settings[c - 256], optarg, err);
        if (rc != 0) {
            return rc;
        }
    }
    if (optind < argc) {
        return cst_err_set(err, CST_EINVAL, "'%s': options only, please (see --help)",
                           argv[optind]);
    }
    rc = o.help || o.version ? 0 : check_together(&o, err);
    if (rc == 0) {
        if (o.min_lr < 0) {
            o.min_lr = o.lr / 10;
        }
        *options = o;
    }
    return rc;
}
