/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/job/comm_device.h"

#include "proto/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int check(const Cistern__CommDevice *message, struct cst_err *err)
{
    if (message->has_nccl_id && message->nccl_id.len != CSTD_COMM_DEVICE_ID_BYTES) {
        return cst_err_set(err, CST_EINVAL, "a unique id of NCCL with %zu bytes; it has %d",
                           message->nccl_id.len, CSTD_COMM_DEVICE_ID_BYTES);
    }
    if (message->has_refused && message->refused != CISTERN__COMM_TRANSPORT__COMM_NCCL &&
        message->refused != CISTERN__COMM_TRANSPORT__COMM_PEERS) {
        return cst_err_set(err, CST_EINVAL, "transport %d cannot be refused", message->refused);
    }
    return CST_OK;
}

/* Copy a worker's words, which may be NULL, to @out. They are shown on terminals. */
static void copy_words(const char *words, char out[CSTD_COMM_DEVICE_WORDS])
{
    if (words != NULL) {
        (void)snprintf(out, CSTD_COMM_DEVICE_WORDS, "%s", words);
        cst_text_clean(out, CSTD_COMM_DEVICE_WORDS);
    }
}

/* Add the @n UUIDs @from to the list of @device. */
static int add_gpus(struct cstd_comm_device *device, char *const *from, size_t n,
                    struct cst_err *err)
{
    if (n > CSTD_COMM_DEVICE_MAX_GPUS - device->n_gpus) {
        return cst_err_set(err, CST_EINVAL, "a list of %zu GPUs; it can have %d",
                           n + device->n_gpus, CSTD_COMM_DEVICE_MAX_GPUS);
    }
    for (size_t i = 0; i < n; i++) {
        char *uuid = device->gpus[device->n_gpus++];

        if (strlen(from[i]) >= sizeof device->gpus[0]) {
            return cst_err_set(err, CST_EINVAL, "'%.64s' is not the UUID of a GPU", from[i]);
        }
        (void)strcpy(uuid, from[i]);
    }
    return CST_OK;
}

int cstd_comm_device_copy(const Cistern__CommDevice *message, struct cstd_comm_device **out,
                          struct cst_err *err)
{
    struct cstd_comm_device *device;
    int rc = check(message, err);

    if (rc != CST_OK) {
        return rc;
    }
    device = calloc(1, sizeof *device);
    if (device == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for a rank of a communicator");
    }
    device->nccl_version = message->nccl_version;
    device->has_id = message->has_nccl_id;
    device->reads_peers = message->has_reads_peers && message->reads_peers;
    device->in_order = message->has_in_order && message->in_order;
    device->can_refuse = message->has_can_refuse && message->can_refuse;
    device->refused = message->has_refused ? (enum cst_transport)message->refused : 0;
    if (device->has_id) {
        memcpy(device->id, message->nccl_id.data, sizeof device->id);
    }
    copy_words(message->nccl_error, device->nccl_error);
    copy_words(message->peers_error, device->peers_error);
    rc = add_gpus(device, message->reachable, message->n_reachable, err);
    device->n_reachable = device->n_gpus;
    rc = rc == CST_OK ? add_gpus(device, message->unreachable, message->n_unreachable, err) : rc;
    if (rc != CST_OK) {
        free(device);
        return rc;
    }
    *out = device;
    return CST_OK;
}

struct cst_transport_rank cstd_comm_device_rank(const struct cstd_comm_device *device,
                                                uint32_t name, const char *gpu,
                                                const char *names[CSTD_COMM_DEVICE_MAX_GPUS])
{
    struct cst_transport_rank rank = {.name = name};

    if (device == NULL) {
        return rank;
    }
    rank.gpu = gpu;
    rank.nccl = device->nccl_version;
    rank.reads_peers = device->reads_peers;
    rank.in_order = device->in_order;
    rank.nccl_error = device->nccl_error[0] != '\0' ? device->nccl_error : NULL;
    rank.peers_error = device->peers_error[0] != '\0' ? device->peers_error : NULL;
    for (size_t i = 0; i < device->n_gpus; i++) {
        names[i] = device->gpus[i];
    }
    rank.reachable = names;
    rank.n_reachable = device->n_reachable;
    rank.unreachable = names + device->n_reachable;
    rank.n_unreachable = device->n_gpus - device->n_reachable;
    return rank;
}
