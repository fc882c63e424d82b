/* SPDX-License-Identifier: Apache-2.0 */
#ifdef HAVE_CONFIG_H
#include <config.h>
#endif
#include "daemon/links/hello.h"

#include "proto/link.pb-c.h"
#include "proto/text.h"

#include <stdio.h>
#include <string.h>

void cstd_hello_init(struct cstd_hello *mine, const char *name, uint64_t instance)
{
    *mine = (struct cstd_hello){
        .min_version = CSTD_LINK_PROTOCOL, .max_version = CSTD_LINK_PROTOCOL, .instance = instance};
    (void)snprintf(mine->name, sizeof mine->name, "%s", name);
    (void)snprintf(mine->program, sizeof mine->program, "%s", PACKAGE_VERSION);
    (void)snprintf(mine->isa, sizeof mine->isa, "%s", cstd_kernel_digest(NULL, mine->digest));
}

size_t cstd_hello_write(const struct cstd_hello *hello, uint8_t *out)
{
    Link__Hello message = LINK__HELLO__INIT;

    message.min_version = hello->min_version;
    message.max_version = hello->max_version;
    message.name = (char *)(uintptr_t)hello->name;
    message.instance = hello->instance;
    message.kernel_digest.data = (uint8_t *)(uintptr_t)hello->digest;
    message.kernel_digest.len = sizeof hello->digest;
    message.program = (char *)(uintptr_t)hello->program;
    message.isa = (char *)(uintptr_t)hello->isa;
    return link__hello__pack(&message, out);
}

/* Copy a word of another machine. False: it is too long, or has characters that cannot be shown. */
static bool copy_word(char *out, size_t size, const char *word)
{
    return cst_text_is_clean(word) && (size_t)snprintf(out, size, "%s", word) < size;
}

int cstd_hello_read(struct cstd_hello *out, const uint8_t *body, size_t n, struct cst_err *err)
{
    Link__Hello *message = n <= CSTD_HELLO_MAX_BYTES ? link__hello__unpack(NULL, n, body) : NULL;
    struct cstd_hello hello = {0};
    bool good = message != NULL && message->instance != 0 &&
                message->kernel_digest.len == sizeof hello.digest &&
                cst_job_name_is_valid(message->name) &&
                copy_word(hello.name, sizeof hello.name, message->name) &&
                copy_word(hello.program, sizeof hello.program, message->program) &&
                copy_word(hello.isa, sizeof hello.isa, message->isa);

    if (good) {
        hello.min_version = message->min_version;
        hello.max_version = message->max_version;
        hello.instance = message->instance;
        memcpy(hello.digest, message->kernel_digest.data, sizeof hello.digest);
        *out = hello;
    }
    if (message != NULL) {
        link__hello__free_unpacked(message, NULL);
    }
    return good ? CST_OK
                : cst_err_set(err, CST_EPROTO, "the first message, of %zu bytes, is no Hello", n);
}

/* Write the first bytes of a digest, which are enough to compare two. */
static const char *digest_text(const uint8_t *digest, char out[17])
{
    for (unsigned i = 0; i < 8; i++) {
        (void)snprintf(out + 2 * i, 3, "%02x", digest[i]);
    }
    return out;
}

int cstd_hello_check(const struct cstd_hello *mine, const struct cstd_hello *theirs,
                     const char *name, struct cst_err *err)
{
    char here[17], there[17];

    if (theirs->min_version > mine->max_version || theirs->max_version < mine->min_version) {
        return cst_err_set(
            err, CST_EVERSION,
            "%s (cistern %s) speaks versions %u to %u of the protocol between nodes, "
            "%s (cistern %s) speaks %u to %u: install one version of cistern on both",
            name, theirs->program, theirs->min_version, theirs->max_version, mine->name,
            mine->program, mine->min_version, mine->max_version);
    }
    if (strcmp(theirs->name, mine->name) == 0) {
        return cst_err_set(err, CST_EMISMATCH,
                           "two nodes have the name '%s': set another 'name' in [node] of one of "
                           "them",
                           mine->name);
    }
    if (strcmp(theirs->name, name) != 0) {
        return cst_err_set(err, CST_EMISMATCH,
                           "the node that %s calls '%s' calls itself '%s': add it by that name, or "
                           "set 'name' in [node] there",
                           mine->name, name, theirs->name);
    }
    if (memcmp(theirs->digest, mine->digest, sizeof mine->digest) != 0) {
        return cst_err_set(
            err, CST_EMISMATCH,
            "the kernels of %s and %s compute different bits: digest %s of %s "
            "(cistern %s, %s), digest %s of %s (cistern %s, %s). Install one build of "
            "cistern on both; if both have it, a processor is faulty",
            name, mine->name, digest_text(theirs->digest, there), name, theirs->program,
            theirs->isa, digest_text(mine->digest, here), mine->name, mine->program, mine->isa);
    }
    return CST_OK;
}
