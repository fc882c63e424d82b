/* SPDX-License-Identifier: Apache-2.0 */
#include "client/gpt/cuda/cublas.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if __has_include(<cublasLt.h>)

#include <cublasLt.h>

/* NVIDIA advises at least 32 MiB for Hopper. */
#define GPT_CUBLAS_WORKSPACE (64u << 20)
/* Shapes whose plans are kept. A dense model uses about 20, and one with adapters about 50. A
 * mixture uses about 10 for each number of rows of an expert. */
#define GPT_CUBLAS_SHAPES 256
/* Algorithms that the library is asked for, for each shape. */
#define GPT_CUBLAS_ALGOS 8

/* The library's functions that are used. CALL(name) is expanded for each of them. */
#define GPT_CUBLAS_CALLS(CALL)                                                                     \
    CALL(cublasLtCreate)                                                                           \
    CALL(cublasLtDestroy)                                                                          \
    CALL(cublasLtGetVersion)                                                                       \
    CALL(cublasLtGetStatusString)                                                                  \
    CALL(cublasLtMatmul)                                                                           \
    CALL(cublasLtMatmulAlgoGetHeuristic)                                                           \
    CALL(cublasLtMatmulDescCreate)                                                                 \
    CALL(cublasLtMatmulDescDestroy)                                                                \
    CALL(cublasLtMatmulDescSetAttribute)                                                           \
    CALL(cublasLtMatmulPreferenceCreate)                                                           \
    CALL(cublasLtMatmulPreferenceDestroy)                                                          \
    CALL(cublasLtMatmulPreferenceSetAttribute)                                                     \
    CALL(cublasLtMatrixLayoutCreate)                                                               \
    CALL(cublasLtMatrixLayoutDestroy)

/* A shape that was requested, with the library's choices. The library's matrices are column-major.
 * Therefore it computes c^T (n x m) = b^T a^T: its A is our b, and its B our a. */
struct gpt_cublas_plan {
    struct gpt_product like; /* shape, transpositions, fp32 and epilogue */
    bool supported;          /* false: no field below is valid */
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, c; /* layouts of the library's A, of its B, and of its C and D */
    /* Algorithms, in the library's order. One after the first is used only if those before it are
     * refused. */
    cublasLtMatmulAlgo_t algos[GPT_CUBLAS_ALGOS];
    unsigned n_algos;
};

struct gpt_cublas {
    const struct cst_cuda_driver *driver; /* borrowed */
    void *library;                        /* handle of dlopen */
#define GPT_CUBLAS_FIELD(name) __typeof__(&name) name;
    GPT_CUBLAS_CALLS(GPT_CUBLAS_FIELD)
#undef GPT_CUBLAS_FIELD
    cublasLtHandle_t handle;
    CUdeviceptr workspace; /* GPT_CUBLAS_WORKSPACE bytes of device memory */
    char words[32];        /* name and version */
    size_t n_made;         /* number of plans made so far */
    /* The newest plans: plan number i is at index i modulo GPT_CUBLAS_SHAPES. */
    struct gpt_cublas_plan plans[GPT_CUBLAS_SHAPES];
};

/* Bytes; all operands have at least this alignment. */
#define ALIGNMENT 16

/* Set @err to the words of @status. Returns the status that it stands for. */
static int fault(const struct gpt_cublas *b, cublasStatus_t status, const char *what,
                 struct cst_err *err)
{
    int rc = CST_EINTERNAL;

    if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_NOT_INITIALIZED ||
        status == CUBLAS_STATUS_ARCH_MISMATCH) {
        rc = CST_EUNSUPPORTED;
    } else if (status == CUBLAS_STATUS_ALLOC_FAILED) {
        rc = CST_ENOMEM;
    } else if (status == CUBLAS_STATUS_EXECUTION_FAILED) {
        rc = CST_EGPU;
    }
    return cst_err_set(err, rc, "%s: %s", what, b->cublasLtGetStatusString(status));
}

/* -- opening ---------------------------------------------------------------------------------- */

static int find_library(struct gpt_cublas *b, struct cst_err *err)
{
    static const char *const names[] = {"libcublasLt.so.13", "libcublasLt.so.12"};

    for (size_t i = 0; b->library == NULL && i < sizeof names / sizeof names[0]; i++) {
        b->library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    }
    if (b->library == NULL) {
        return cst_err_set(err, CST_EUNSUPPORTED, "no cuBLASLt: %s", dlerror());
    }
#define FIND(name)                                                                                 \
    *(void **)(void *)&b->name = dlsym(b->library, #name);                                         \
    if (b->name == NULL) {                                                                         \
        return cst_err_set(err, CST_EUNSUPPORTED, "cuBLASLt is too old: it has no %s", #name);     \
    }
    GPT_CUBLAS_CALLS(FIND)
#undef FIND
    return 0;
}

int gpt_cublas_open(struct gpt_cublas **out, const struct cst_cuda_driver *driver,
                    struct cst_err *err)
{
    struct gpt_cublas *b = calloc(1, sizeof *b);
    cublasStatus_t status;
    size_t version;
    int rc;

    if (b == NULL) {
        return cst_err_set(err, CST_ENOMEM, "out of memory");
    }
    b->driver = driver;
    rc = find_library(b, err);
    if (rc != 0) {
        goto err_close;
    }
    status = b->cublasLtCreate(&b->handle);
    if (status != CUBLAS_STATUS_SUCCESS) {
        b->handle = NULL;
        rc = fault(b, status, "cublasLtCreate", err);
        goto err_close;
    }
    rc = cst_cuda_check(driver, driver->cuMemAlloc(&b->workspace, GPT_CUBLAS_WORKSPACE), err,
                        "a workspace of %u bytes for cuBLASLt", GPT_CUBLAS_WORKSPACE);
    if (rc != 0) {
        b->workspace = 0;
        goto err_close;
    }
    version = b->cublasLtGetVersion();
    (void)snprintf(b->words, sizeof b->words, "cuBLASLt %zu.%zu.%zu", version / 10000,
                   version / 100 % 100, version % 100);
    *out = b;
    return 0;
err_close:
    gpt_cublas_close(b);
    return rc;
}

static void plan_close(const struct gpt_cublas *b, const struct gpt_cublas_plan *plan)
{
    if (plan->a != NULL) {
        (void)b->cublasLtMatrixLayoutDestroy(plan->a);
    }
    if (plan->b != NULL) {
        (void)b->cublasLtMatrixLayoutDestroy(plan->b);
    }
    if (plan->c != NULL) {
        (void)b->cublasLtMatrixLayoutDestroy(plan->c);
    }
    if (plan->desc != NULL) {
        (void)b->cublasLtMatmulDescDestroy(plan->desc);
    }
}

/* Mark the shape as one that the library cannot compute. The plan stays, so that the library is not
 * asked again. */
static void give_up(const struct gpt_cublas *b, struct gpt_cublas_plan *plan)
{
    plan_close(b, plan);
    *plan = (struct gpt_cublas_plan){.like = plan->like};
}

static size_t n_plans(const struct gpt_cublas *b)
{
    return b->n_made < GPT_CUBLAS_SHAPES ? b->n_made : GPT_CUBLAS_SHAPES;
}

void gpt_cublas_close(struct gpt_cublas *cublas)
{
    if (cublas == NULL) {
        return;
    }
    for (size_t i = 0; i < n_plans(cublas); i++) {
        plan_close(cublas, &cublas->plans[i]);
    }
    if (cublas->handle != NULL) {
        (void)cublas->cublasLtDestroy(cublas->handle);
    }
    if (cublas->workspace != 0) {
        (void)cublas->driver->cuMemFree(cublas->workspace);
    }
    free(cublas); /* The library stays loaded, as the driver does. */
}

const char *gpt_cublas_name(const struct gpt_cublas *cublas)
{
    return cublas->words;
}

/* -- plans ------------------------------------------------------------------------------------ */

static cublasLtEpilogue_t epilogue_of(const struct gpt_product *p)
{
    static const cublasLtEpilogue_t epilogues[] = {
        [GPT_EPILOGUE_NONE] = CUBLASLT_EPILOGUE_DEFAULT,
        [GPT_EPILOGUE_BIAS] = CUBLASLT_EPILOGUE_BIAS,
        [GPT_EPILOGUE_BIAS_GELU] = CUBLASLT_EPILOGUE_GELU_AUX_BIAS,
        [GPT_EPILOGUE_GELU_BACKWARD] = CUBLASLT_EPILOGUE_DGELU,
    };

    return epilogues[p->epilogue];
}

/* Set the pointers that the epilogue of @p reads or writes. */
static cublasStatus_t set_pointers(const struct gpt_cublas *b, cublasLtMatmulDesc_t desc,
                                   const struct gpt_product *p)
{
    cublasStatus_t status = CUBLAS_STATUS_SUCCESS;

    if (p->epilogue == GPT_EPILOGUE_BIAS || p->epilogue == GPT_EPILOGUE_BIAS_GELU) {
        status = b->cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER,
                                                   &p->bias, sizeof p->bias);
    }
    if (status == CUBLAS_STATUS_SUCCESS &&
        (p->epilogue == GPT_EPILOGUE_BIAS_GELU || p->epilogue == GPT_EPILOGUE_GELU_BACKWARD)) {
        status = b->cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER,
                                                   &p->pre, sizeof p->pre);
    }
    return status;
}

static cublasStatus_t make_desc(const struct gpt_cublas *b, const struct gpt_product *p,
                                cublasLtMatmulDesc_t *desc)
{
    const cublasOperation_t turn_a = p->turn_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasOperation_t turn_b = p->turn_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasLtEpilogue_t epilogue = epilogue_of(p);
    const int32_t bias_type = CUDA_R_16BF;
    const int64_t pre_pitch = (int64_t)p->n;
    const struct {
        cublasLtMatmulDescAttributes_t name;
        const void *value;
        size_t bytes;
        bool set;
    } attributes[] = {
        {CUBLASLT_MATMUL_DESC_TRANSA, &turn_a, sizeof turn_a, true},
        {CUBLASLT_MATMUL_DESC_TRANSB, &turn_b, sizeof turn_b, true},
        {CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue, true},
        {CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &bias_type, sizeof bias_type,
         p->epilogue == GPT_EPILOGUE_BIAS || p->epilogue == GPT_EPILOGUE_BIAS_GELU},
        {CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &pre_pitch, sizeof pre_pitch,
         p->epilogue == GPT_EPILOGUE_BIAS_GELU || p->epilogue == GPT_EPILOGUE_GELU_BACKWARD},
    };
    cublasStatus_t status = b->cublasLtMatmulDescCreate(desc, CUBLAS_COMPUTE_32F, CUDA_R_32F);

    for (size_t i = 0;
         status == CUBLAS_STATUS_SUCCESS && i < sizeof attributes / sizeof attributes[0]; i++) {
        if (attributes[i].set) {
            status = b->cublasLtMatmulDescSetAttribute(*desc, attributes[i].name,
                                                       attributes[i].value, attributes[i].bytes);
        }
    }
    return status == CUBLAS_STATUS_SUCCESS ? set_pointers(b, *desc, p) : status;
}

static cublasStatus_t make_layouts(const struct gpt_cublas *b, const struct gpt_product *p,
                                   struct gpt_cublas_plan *plan)
{
    const uint64_t m = p->m, n = p->n, k = p->k;
    cublasStatus_t status = b->cublasLtMatrixLayoutCreate(
        &plan->a, CUDA_R_16BF, p->turn_b ? k : n, p->turn_b ? n : k, (int64_t)(p->turn_b ? k : n));

    if (status == CUBLAS_STATUS_SUCCESS) {
        status = b->cublasLtMatrixLayoutCreate(&plan->b, CUDA_R_16BF, p->turn_a ? m : k,
                                               p->turn_a ? k : m, (int64_t)(p->turn_a ? m : k));
    }
    if (status == CUBLAS_STATUS_SUCCESS) {
        status = b->cublasLtMatrixLayoutCreate(&plan->c, p->fp32 ? CUDA_R_32F : CUDA_R_16BF, n, m,
                                               (int64_t)n);
    }
    return status;
}

/* Get the library's choices, best first, for the alignment and workspace that all products have. */
static cublasStatus_t choose(const struct gpt_cublas *b, struct gpt_cublas_plan *plan)
{
    static const cublasLtMatmulPreferenceAttributes_t alignments[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    const uint64_t workspace = GPT_CUBLAS_WORKSPACE;
    const uint32_t alignment = ALIGNMENT;
    cublasLtMatmulHeuristicResult_t best[GPT_CUBLAS_ALGOS] = {0};
    cublasLtMatmulPreference_t wish;
    int n = 0;
    cublasStatus_t status = b->cublasLtMatmulPreferenceCreate(&wish);

    if (status != CUBLAS_STATUS_SUCCESS) {
        return status;
    }
    status = b->cublasLtMatmulPreferenceSetAttribute(wish, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                     &workspace, sizeof workspace);
    for (size_t i = 0; status == CUBLAS_STATUS_SUCCESS && i < 4; i++) {
        status = b->cublasLtMatmulPreferenceSetAttribute(wish, alignments[i], &alignment,
                                                         sizeof alignment);
    }
    if (status == CUBLAS_STATUS_SUCCESS) {
        status = b->cublasLtMatmulAlgoGetHeuristic(b->handle, plan->desc, plan->a, plan->b, plan->c,
                                                   plan->c, wish, GPT_CUBLAS_ALGOS, best, &n);
    }
    (void)b->cublasLtMatmulPreferenceDestroy(wish);
    for (int i = 0; status == CUBLAS_STATUS_SUCCESS && i < n; i++) {
        if (best[i].state == CUBLAS_STATUS_SUCCESS) {
            plan->algos[plan->n_algos++] = best[i].algo;
        }
    }
    return status == CUBLAS_STATUS_SUCCESS && plan->n_algos == 0 ? CUBLAS_STATUS_NOT_SUPPORTED
                                                                 : status;
}

static bool same_shape(const struct gpt_product *p, const struct gpt_product *q)
{
    return p->m == q->m && p->n == q->n && p->k == q->k && p->turn_a == q->turn_a &&
           p->turn_b == q->turn_b && p->fp32 == q->fp32 && p->epilogue == q->epilogue;
}

/* Find the plan of the shape, or make it. If there are too many plans it replaces the oldest. A
 * plan that is made again is equal to the first one. */
static int find_plan(struct gpt_cublas *b, const struct gpt_product *p,
                     struct gpt_cublas_plan **out, struct cst_err *err)
{
    struct gpt_cublas_plan plan = {.like = *p}, *place;
    cublasStatus_t status;

    for (size_t i = 0; i < n_plans(b); i++) {
        if (same_shape(&b->plans[i].like, p)) {
            *out = &b->plans[i];
            return 0;
        }
    }
    status = make_desc(b, p, &plan.desc);
    if (status == CUBLAS_STATUS_SUCCESS) {
        status = make_layouts(b, p, &plan);
    }
    if (status == CUBLAS_STATUS_SUCCESS) {
        status = choose(b, &plan);
    }
    plan.supported = status == CUBLAS_STATUS_SUCCESS;
    if (!plan.supported) {
        give_up(b, &plan);
        if (status != CUBLAS_STATUS_NOT_SUPPORTED && status != CUBLAS_STATUS_INVALID_VALUE) {
            return fault(b, status, "cuBLASLt's choice", err);
        }
    }
    place = &b->plans[b->n_made % GPT_CUBLAS_SHAPES];
    if (b->n_made >= GPT_CUBLAS_SHAPES) {
        plan_close(b, place);
    }
    *place = plan;
    b->n_made++;
    *out = place;
    return 0;
}

/* -- products --------------------------------------------------------------------------------- */

static void *address(CUdeviceptr p)
{
    return (void *)(uintptr_t)p;
}

/* Returns whether @status says that the library cannot compute the product in this way. Nothing was
 * enqueued then. */
static bool refuses(cublasStatus_t status)
{
    return status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_ARCH_MISMATCH;
}

static cublasStatus_t enqueue_by(const struct gpt_cublas *b, const struct gpt_cublas_plan *plan,
                                 const cublasLtMatmulAlgo_t *algo, const struct gpt_product *p,
                                 CUstream stream)
{
    const float alpha = p->scale == 0.0f ? 1.0f : p->scale, beta = p->accumulate ? 1.0f : 0.0f;
    cublasStatus_t status = set_pointers(b, plan->desc, p);

    return status != CUBLAS_STATUS_SUCCESS
               ? status
               : b->cublasLtMatmul(b->handle, plan->desc, &alpha, address(p->b), plan->a,
                                   address(p->a), plan->b, &beta, address(p->c), plan->c,
                                   address(p->c), plan->c, algo, address(b->workspace),
                                   GPT_CUBLAS_WORKSPACE, stream);
}

/* Enqueue @p by the first algorithm of @plan that the library does not refuse. Those that it
 * refuses are not tried again: what the library takes depends on the shape, not on the run. */
static cublasStatus_t enqueue(struct gpt_cublas *b, struct gpt_cublas_plan *plan,
                              const struct gpt_product *p, CUstream stream)
{
    cublasStatus_t status = CUBLAS_STATUS_NOT_SUPPORTED;

    while (plan->n_algos > 0 && refuses(status)) {
        status = enqueue_by(b, plan, &plan->algos[0], p, stream);
        if (refuses(status)) {
            plan->n_algos--;
            memmove(plan->algos, plan->algos + 1, plan->n_algos * sizeof *plan->algos);
        }
    }
    return status;
}

int gpt_cublas_run(struct gpt_cublas *b, CUstream stream, const struct gpt_product *p,
                   struct cst_err *err)
{
    struct gpt_cublas_plan *plan;
    cublasStatus_t status = CUBLAS_STATUS_NOT_SUPPORTED;
    int rc = find_plan(b, p, &plan, err);

    if (rc != 0) {
        return rc;
    }
    if (plan->supported) {
        status = enqueue(b, plan, p, stream);
        if (refuses(status)) {
            give_up(b, plan);
        }
    }
    if (refuses(status)) {
        return cst_err_set(err, CST_EUNSUPPORTED,
                           "%s has no product of %zu x %zu x %zu with epilogue %d", b->words, p->m,
                           p->n, p->k, (int)epilogue_of(p));
    }
    return status == CUBLAS_STATUS_SUCCESS ? 0 : fault(b, status, "cublasLtMatmul", err);
}

#else

int gpt_cublas_open(struct gpt_cublas **out, const struct cst_cuda_driver *driver,
                    struct cst_err *err)
{
    (void)out;
    (void)driver;
    return cst_err_set(err, CST_EUNSUPPORTED, "built without cuBLASLt's header");
}

void gpt_cublas_close(struct gpt_cublas *cublas)
{
    (void)cublas;
}

int gpt_cublas_run(struct gpt_cublas *cublas, CUstream stream, const struct gpt_product *p,
                   struct cst_err *err)
{
    (void)cublas;
    (void)stream;
    (void)p;
    return cst_err_set(err, CST_EUNSUPPORTED, "built without cuBLASLt's header");
}

const char *gpt_cublas_name(const struct gpt_cublas *cublas)
{
    (void)cublas;
    return "none";
}

#endif
