/* SPDX-License-Identifier: Apache-2.0 */
/* Workers of a job "j" on stand-in GPUs, with collectives by NCCL or edges: processes with a
 * daemon, on tests/lib/fakecuda and tests/lib/fakenccl. Workers are children: they do not use
 * Check, and end with a message and status 1 on an error. */
#ifndef NCCL_RIG_H
#define NCCL_RIG_H

#include "cistern/cuda.h"
#include "cistern/device.h"
#include "kernels/cuda/driver.h"
#include "tests/lib/child.h"
#include "tests/lib/collective.h"
#include "tests/lib/cuda_rig.h"

#include <semaphore.h>

#define NCCL_MAX_WORLD 4
#define NCCL_MOST_ELEMS 60000 /* Elements of the largest array of a call. */

/* A rank of the job, on the GPU with its number unless the order names another device. */
struct nccl_worker {
    struct cst_client *client;
    struct cst_job *job;
    struct cst_cuda *cuda;         /* NULL: the rank is not on a GPU, and has no stream. */
    struct cst_cuda_driver driver; /* The program's own. */
    CUcontext context;
    CUstream stream;
    CUdevice device;
    uint32_t rank;
    int group; /* Number of the group of order->ranks; 0: there is none. */
};

/* What the workers of a test do, in memory that they share. */
struct nccl_order {
    uint64_t seed; /* Printed. */
    uint32_t world;
    uint32_t ranks; /* Ranks of a further group, one bit each; 0: there is none. */
    unsigned n_calls;
    enum cst_comm_op op;   /* What they call; 0: any. Or the operation in which the victim dies. */
    uint32_t victim;       /* The rank that dies. */
    unsigned at;           /* The call in which it dies, or the case of the test. */
    bool waits_for_stream; /* The others wait for their streams first, and then for the call. */
    bool dead;             /* The victim has died: its successor lives on. */
    uint32_t timeout_ms;   /* Of the job. */
    /* Bytes of a slot; 0: there are no edges. Edge r is rank r's to itself, and edge world + r is
     * from rank r to the next one. */
    uint64_t slot_bytes;
    uint32_t n_slots;
    bool on_device; /* The slots are on GPUs, if possible. */
    bool in_order;  /* Sums are in the order of the ranks. */
    const char *devices[NCCL_MAX_WORLD];
    const char *setting;                  /* NULL, or NAME=VALUE in the environment of rank 0, */
    bool setting_for_all;                 /* or of all ranks. */
    const char *settings[NCCL_MAX_WORLD]; /* The same of each rank. */
    const char *words;                    /* In the explanation of the communicator. */
    sem_t begun;                          /* Rank 0 has a call in its stream. */
    sem_t ended;                          /* Rank 1 has got its error, or rank 0 has. */
    unsigned n_arrived;                   /* Ranks that have called nccl_arrive. */
    sem_t arrived;                        /* All have. */
};

typedef void nccl_body(struct nccl_worker *w, struct nccl_order *order);

/* For Check: open the daemon with a GPU for each of 2 or NCCL_MAX_WORLD ranks. The late streams
 * find results that are read too early. */
void nccl_rig_open(void);
void nccl_rig_open_late(void);
void nccl_rig_open_large(void);

/* A new order for @world ranks with a GPU each, in shared memory. Freed with child_unshare. */
struct nccl_order *nccl_order_new(uint32_t world);

/* In a worker: open the job as @rank, declare and commit. The daemon must accept all but the
 * commit. Returns the commit's status. */
int nccl_join(struct nccl_worker *w, const struct nccl_order *order, uint32_t rank,
              struct cst_err *err);

/* Fork @rank, which joins the job, calls @body and leaves. Returns its process id. */
pid_t nccl_fork(nccl_body *body, uint32_t rank, struct nccl_order *order);

/* Fork all ranks, and wait until they have ended well. Removes the job and frees @order. */
void nccl_run(nccl_body *body, struct nccl_order *order);

/* As nccl_run. Rank order->victim is the first that ends, killed by itself, and a new process takes
 * its rank. Does not free @order. */
void nccl_run_one_death(nccl_body *body, struct nccl_order *order);

/* In a worker: wait until all ranks have called this, which is done once. A rank that leaves before
 * the others have done what they wait for makes their step void. */
void nccl_arrive(struct nccl_order *order);

/* In a worker: free what it has. It has left the job, or cannot. */
void nccl_worker_free(struct nccl_worker *w);

/* In a worker: end with a message after a failure. */
void nccl_must(int rc, const struct cst_err *err, const char *what);
void nccl_must_cuda(const struct nccl_worker *w, CUresult result, const char *what);

/* In a worker: `cistern explain` must show @words for the tensor "t". */
void nccl_must_explain(const char *words);

/* Open a communicator of all ranks, as @order has it. */
int nccl_comm_open(const struct nccl_worker *w, const struct nccl_order *order,
                   struct cst_comm **out, struct cst_err *err);

/* The call of a collective with arrays on the GPU. */
struct nccl_arrays {
    CUdeviceptr in, out; /* 0: no elements. */
    CUdeviceptr seen;    /* What the stream has found in `out`. */
    struct cst_comm_call call;
};

/* Copy @bytes at @from to a new array on the GPU, in the stream. */
CUdeviceptr nccl_array_new(const struct nccl_worker *w, const void *from, size_t bytes);

/* Make the arrays and the call of @c. */
void nccl_arrays_make(const struct nccl_worker *w, const struct collective *c,
                      struct nccl_arrays *g);

/* Make call @number of @seed, and check its result, which the stream reads: before the program
 * waits for the call, or after. @op 0: any. @by_stream: the program waits for the stream before it
 * waits for the call. The stream has ended afterwards. Statuses: those of cst_comm_wait;
 * CST_EINTERNAL: the result is wrong. */
int nccl_call(const struct nccl_worker *w, struct cst_comm *comm, uint64_t seed, uint64_t number,
              enum cst_comm_op op, bool by_stream, struct cst_err *err);

/* Work of a rank: open a communicator, let rank 0 find order->words in the explanation, make
 * order->n_calls random calls, and close it. */
void nccl_call_all(struct nccl_worker *w, struct nccl_order *order);

#endif
