/* SPDX-License-Identifier: Apache-2.0 */
#include "client/gpt/gpt2.h"

#include "proto/json_fields.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* -- names ------------------------------------------------------------------------------------ */

/* Tensors of a block: the name in the model, and that in files. */
static const char *const in_block[][2] = {
    {"ln1.w", "ln_1.weight"},          {"ln1.b", "ln_1.bias"},
    {"qkv.w", "attn.c_attn.weight"},   {"qkv.b", "attn.c_attn.bias"},
    {"proj.w", "attn.c_proj.weight"},  {"proj.b", "attn.c_proj.bias"},
    {"ln2.w", "ln_2.weight"},          {"ln2.b", "ln_2.bias"},
    {"fc.w", "mlp.c_fc.weight"},       {"fc.b", "mlp.c_fc.bias"},
    {"fcproj.w", "mlp.c_proj.weight"}, {"fcproj.b", "mlp.c_proj.bias"},
};

static const char *const in_block_adapters[][2] = {
    {"qkv.lora_a", "attn.c_attn.lora_A.weight"},   {"qkv.lora_b", "attn.c_attn.lora_B.weight"},
    {"proj.lora_a", "attn.c_proj.lora_A.weight"},  {"proj.lora_b", "attn.c_proj.lora_B.weight"},
    {"fc.lora_a", "mlp.c_fc.lora_A.weight"},       {"fc.lora_b", "mlp.c_fc.lora_B.weight"},
    {"fcproj.lora_a", "mlp.c_proj.lora_A.weight"}, {"fcproj.lora_b", "mlp.c_proj.lora_B.weight"},
};

static const char *const outside[][2] = {
    {"wte", "wte.weight"},
    {"wpe", "wpe.weight"},
    {"lnf.w", "ln_f.weight"},
    {"lnf.b", "ln_f.bias"},
};

/* NULL: @names does not have @name. */
static const char *find(const char *const (*names)[2], size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++) {
        if (strcmp(names[i][0], name) == 0) {
            return names[i][1];
        }
    }
    return NULL;
}

#define FIND(names, name) find(names, sizeof(names) / sizeof *(names), name)

bool gpt_gpt2_is_adapter(const char *name)
{
    return strstr(name, ".lora_") != NULL;
}

bool gpt_gpt2_name(const struct gpt_model *model, const struct gpt_tensor *tensor,
                   char out[GPT_GPT2_NAME_BYTES], bool *transposed)
{
    const bool adapter = gpt_gpt2_is_adapter(tensor->name);
    const char *name = FIND(outside, tensor->name);
    unsigned layer;
    int n = 0;

    *transposed = adapter;
    if (model->experts > 0) {
        return false;
    }
    if (name != NULL) {
        (void)snprintf(out, GPT_GPT2_NAME_BYTES, GPT_GPT2_PREFIX "%s", name);
        return true;
    }
    if (sscanf(tensor->name, "h%u.%n", &layer, &n) < 1 || n == 0) {
        return false;
    }
    name = adapter ? FIND(in_block_adapters, tensor->name + n) : FIND(in_block, tensor->name + n);
    (void)snprintf(out, GPT_GPT2_NAME_BYTES, "%s" GPT_GPT2_PREFIX "h.%u.%s",
                   adapter ? "base_model.model." : "", layer, name != NULL ? name : "");
    return name != NULL;
}

/* -- configurations --------------------------------------------------------------------------- */

static char *text_of(json_t *json)
{
    char *text = json_dumps(json, JSON_INDENT(2) | JSON_PRESERVE_ORDER);

    json_decref(json);
    return text;
}

char *gpt_gpt2_config(const struct gpt_model *m)
{
    if (m->experts > 0) {
        return NULL;
    }
    return text_of(json_pack(
        "{s:[s], s:s, s:s, s:f, s:i, s:i, s:i, s:i, s:n, s:i, s:b, s:b, s:b, s:f, s:f, s:f, s:n, "
        "s:n}",
        "architectures", "GPT2LMHeadModel", "model_type", "gpt2", "activation_function", "gelu_new",
        "layer_norm_epsilon", 1e-5, "n_embd", (int)m->width, "n_head", (int)m->heads, "n_layer",
        (int)m->layers, "n_positions", (int)m->context, "n_inner", "vocab_size", (int)m->vocab,
        "scale_attn_weights", 1, "scale_attn_by_inverse_layer_idx", 0, "tie_word_embeddings", 1,
        "resid_pdrop", 0.0, "embd_pdrop", 0.0, "attn_pdrop", 0.0, "bos_token_id", "eos_token_id"));
}

char *gpt_gpt2_adapter_config(const struct gpt_model *m, const char *base)
{
    if (m->lora == 0) {
        return NULL;
    }
    return text_of(json_pack(
        "{s:s, s:s, s:s?, s:i, s:f, s:f, s:s, s:b, s:[s, s, s], s:b}", "peft_type", "LORA",
        "task_type", "CAUSAL_LM", "base_model_name_or_path", base, "r", (int)m->lora, "lora_alpha",
        (double)m->lora_scale * m->lora, "lora_dropout", 0.0, "bias", "none", "fan_in_fan_out", 1,
        "target_modules", "c_attn", "c_proj", "c_fc", "inference_mode", 1));
}

/* Read the size @key. */
static int read_size(const json_t *config, const char *path, const char *key, uint32_t *out,
                     struct cst_err *err)
{
    const json_t *value = json_object_get(config, key);
    const json_int_t size = json_integer_value(value);

    if (!json_is_integer(value) || size < 1 || size > INT32_MAX) {
        return cst_err_set(err, CST_EINVAL,
                           "%s: %s is missing or not a size: give the files of a GPT-2", path, key);
    }
    *out = (uint32_t)size;
    return 0;
}

/* Check that the key, if it is there, has the only value that the model can have. */
static int check_value(const json_t *config, const char *path, const char *key,
                       const json_t *wanted, struct cst_err *err)
{
    const json_t *value = json_object_get(config, key);
    char *has, *wants;
    bool same = value == NULL || json_equal(value, wanted) == 1;

    if (!same && json_is_real(wanted)) {
        same = fabs(json_number_value(value) - json_real_value(wanted)) < 1e-12;
    }
    if (same) {
        return 0;
    }
    has = json_dumps(value, JSON_ENCODE_ANY);
    wants = json_dumps(wanted, JSON_ENCODE_ANY);
    (void)cst_err_set(err, CST_EINVAL, "%s: %s is %.64s; cistern-gpt computes %s", path, key,
                      has != NULL ? has : "", wants != NULL ? wants : "");
    free(has);
    free(wants);
    return CST_EINVAL;
}

/* Check what cistern-gpt computes in one way only. */
static int check_kind(const json_t *config, const char *path, const struct gpt_gpt2_sizes *sizes,
                      struct cst_err *err)
{
    json_t *inner = json_object_get(config, "n_inner");
    json_t *wanted =
        json_pack("{s:s, s:s, s:f, s:b, s:b, s:b}", "model_type", "gpt2", "activation_function",
                  "gelu_new", "layer_norm_epsilon", 1e-5, "scale_attn_weights", 1,
                  "scale_attn_by_inverse_layer_idx", 0, "tie_word_embeddings", 1);
    const char *key;
    json_t *value;
    int rc = 0;

    json_object_foreach(wanted, key, value)
    {
        rc = rc == 0 ? check_value(config, path, key, value, err) : rc;
    }
    json_decref(wanted);
    if (rc == 0 && json_is_integer(inner) &&
        json_integer_value(inner) != 4 * (json_int_t)sizes->width) {
        rc = cst_err_set(err, CST_EINVAL, "%s: n_inner is %lld; cistern-gpt computes 4 n_embd = %u",
                         path, (long long)json_integer_value(inner), 4 * sizes->width);
    }
    return rc;
}

int gpt_gpt2_read(const char *dir, struct gpt_gpt2_sizes *out, struct cst_err *err)
{
    const struct {
        const char *key;
        uint32_t *to;
    } sizes[] = {{"n_layer", &out->layers},
                 {"n_head", &out->heads},
                 {"n_embd", &out->width},
                 {"n_positions", &out->context},
                 {"vocab_size", &out->vocab}};
    char path[4096];
    json_t *config;
    int rc;

    (void)snprintf(path, sizeof path, "%s/config.json", dir);
    rc = cst_json_load(&config, path, err);
    if (rc == CST_ENOTFOUND) {
        return cst_err_set(err, rc,
                           "--init: there is no %s: name a directory with config.json and "
                           "model.safetensors of a GPT-2",
                           path);
    }
    if (rc != CST_OK) {
        (void)cst_err_prefix(err, "--init");
        return rc;
    }
    for (size_t i = 0; rc == 0 && i < sizeof sizes / sizeof *sizes; i++) {
        rc = read_size(config, path, sizes[i].key, sizes[i].to, err);
    }
    if (rc == 0) {
        rc = check_kind(config, path, out, err);
    }
    json_decref(config);
    return rc;
}
