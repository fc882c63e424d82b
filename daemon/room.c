#include "daemon/room.h"

#include "daemon/daemon.h"

struct cst_gpu *cst_room_accelerator(struct cst_daemon *daemon, struct cst_gpu *gpu, uint32_t rank)
{
    struct cst_gpu_list *paced = &daemon->gpus.paced;

    return gpu != NULL || paced->n == 0 ? gpu : &paced->v[rank % paced->n];
}

/* The room on @gpu, a new one of no bytes if need be; NULL: no room for more. */
static struct cst_room *find(struct cst_room *rooms, uint32_t *n, struct cst_gpu *gpu)
{
    for (uint32_t i = 0; i < *n; i++) {
        if (rooms[i].gpu == gpu) {
            return &rooms[i];
        }
    }
    if (*n == CST_CORE_MAX_ROOMS) {
        return NULL;
    }
    rooms[*n] = (struct cst_room){.gpu = gpu};
    return &rooms[(*n)++];
}

uint32_t cst_room_list(const struct cst_job *job, struct cst_room rooms[CST_CORE_MAX_ROOMS])
{
    uint32_t n = 0, kept = 0;

    for (uint32_t r = 0; r < job->world; r++) {
        const struct cst_worker *worker = &job->workers[r];
        struct cst_room *room =
            worker->accelerator != NULL ? find(rooms, &n, worker->accelerator) : NULL;

        if (room != NULL) {
            room->bytes += worker->update_room;
        }
    }
    for (uint32_t i = 0; i < n; i++) {
        uint64_t grain = cst_memory_grain(job->daemon, rooms[i].gpu);

        rooms[i].bytes -= rooms[i].bytes % grain;
        if (rooms[i].bytes > 0) {
            rooms[kept++] = rooms[i];
        }
    }
    return kept;
}

uint64_t cst_room_bytes(const struct cst_job *job, const struct cst_gpu *gpu)
{
    struct cst_room rooms[CST_CORE_MAX_ROOMS];
    uint32_t n = cst_room_list(job, rooms);
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < n; i++) {
        bytes += rooms[i].gpu == gpu ? rooms[i].bytes : 0;
    }
    return bytes;
}
