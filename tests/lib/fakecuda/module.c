/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/fakecuda/module.h"
#include "tests/lib/cudaemu/cudaemu.h"
#include "tests/lib/fakecuda/fault.h"
#include "tests/lib/fakecuda/stream.h"

#include <stdlib.h>
#include <string.h>

#define FATBIN_MAGIC 0xba55ed50u
#define WRAPPER_MAGIC 0x466243b1u /* begin of a fatbinary as nvcc links it */
#define DEFAULT_SHARED (48u << 10)
#define MAX_SHARED (227u << 10)
#define MAX_THREADS 1024
#define MAX_PARAMS 64
/* Largest size of a kernel's parameters; documented are 32764 for compute capability 9.0. */
#define MAX_PARAM_BYTES 4096

/* A program linked without tests/lib/cudaemu has no kernels. */
extern const struct cst_emu_kernel *cst_emu_find(const char *name) __attribute__((weak));

struct CUfunc_st {
    struct CUfunc_st *next;
    const struct cst_emu_kernel *kernel;
    unsigned max_shared; /* largest dynamic shared memory of a launch */
};

struct CUmod_st {
    struct CUmod_st *next;
    CUcontext context;
    struct CUfunc_st *functions; /* functions that the program has asked for */
};

struct launch {
    struct cst_fake_op op;
    const struct cst_emu_kernel *kernel;
    unsigned grid[3], block[3], shared;
    void **params;            /* `copied`, or the caller's parameters while the caller waits */
    void *copied[MAX_PARAMS]; /* pointers into `values` */
    unsigned char values[];   /* values of the parameters */
};

static struct CUmod_st *modules;

/* -- modules -------------------------------------------------------------------------------- */

size_t cst_fake_n_modules(void)
{
    size_t n = 0;

    for (const struct CUmod_st *m = modules; m != NULL; m = m->next) {
        n++;
    }
    return n;
}

static bool is_module(CUmodule module)
{
    for (const struct CUmod_st *m = modules; m != NULL; m = m->next) {
        if (m == module) {
            return true;
        }
    }
    return false;
}

static void unload(struct CUmod_st *module)
{
    struct CUmod_st **at = &modules;
    struct CUfunc_st *next;

    while (*at != module) {
        at = &(*at)->next;
    }
    *at = module->next;
    for (struct CUfunc_st *f = module->functions; f != NULL; f = next) {
        next = f->next;
        free(f);
    }
    free(module);
}

void cst_fake_modules_end(CUcontext context)
{
    struct CUmod_st *next;

    for (struct CUmod_st *m = modules; m != NULL; m = next) {
        next = m->next;
        if (m->context == context) {
            cst_fake_leak("a module of device %d", context->device);
            unload(m);
        }
    }
}

/* True for a fatbinary, an ELF file or PTX. The content is not checked. */
static bool is_image(const void *image)
{
    uint32_t magic;

    memcpy(&magic, image, sizeof magic);
    return magic == FATBIN_MAGIC || magic == WRAPPER_MAGIC || memcmp(image, "\177ELF", 4) == 0 ||
           memcmp(image, ".ver", 4) == 0 || memcmp(image, "//", 2) == 0;
}

CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
    CUresult result = cst_fake_begin(__func__, CST_FAKE_CONTEXT);
    struct CUmod_st *m;

    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (module == NULL || image == NULL) {
        return cst_fake_end(CUDA_ERROR_INVALID_VALUE);
    }
    if (!is_image(image)) {
        return cst_fake_end(CUDA_ERROR_INVALID_IMAGE);
    }
    m = calloc(1, sizeof *m);
    if (m == NULL) {
        return cst_fake_end(CUDA_ERROR_OUT_OF_MEMORY);
    }
    *m = (struct CUmod_st){.next = modules, .context = cst_fake_context_current()};
    modules = m;
    *module = m;
    return cst_fake_end(CUDA_SUCCESS);
}

CUresult cuModuleUnload(CUmodule hmod)
{
    CUresult result = cst_fake_begin(__func__, CST_FAKE_CONTEXT);

    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (!is_module(hmod)) {
        return cst_fake_end(CUDA_ERROR_INVALID_HANDLE);
    }
    unload(hmod);
    return cst_fake_end(CUDA_SUCCESS);
}

/* -- functions ------------------------------------------------------------------------------ */

static CUresult find_function(CUmodule module, const char *name, CUfunction *out)
{
    const struct cst_emu_kernel *kernel = cst_emu_find != NULL ? cst_emu_find(name) : NULL;
    struct CUfunc_st *f = module->functions;

    if (kernel == NULL) {
        return CUDA_ERROR_NOT_FOUND;
    }
    while (f != NULL && f->kernel != kernel) {
        f = f->next;
    }
    if (f == NULL) {
        f = calloc(1, sizeof *f);
        if (f == NULL) {
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        *f = (struct CUfunc_st){
            .next = module->functions, .kernel = kernel, .max_shared = DEFAULT_SHARED};
        module->functions = f;
    }
    *out = f;
    return CUDA_SUCCESS;
}

CUresult cuModuleGetFunction(CUfunction *hfunc, CUmodule hmod, const char *name)
{
    CUresult result = cst_fake_begin(__func__, CST_FAKE_CONTEXT);

    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (hfunc == NULL || name == NULL) {
        return cst_fake_end(CUDA_ERROR_INVALID_VALUE);
    }
    if (!is_module(hmod)) {
        return cst_fake_end(CUDA_ERROR_INVALID_HANDLE);
    }
    return cst_fake_end(find_function(hmod, name, hfunc));
}

static bool is_function(CUfunction function)
{
    for (const struct CUmod_st *m = modules; m != NULL; m = m->next) {
        for (const struct CUfunc_st *f = m->functions; f != NULL; f = f->next) {
            if (f == function && m->context == cst_fake_context_current()) {
                return true;
            }
        }
    }
    return false;
}

CUresult cuFuncSetAttribute(CUfunction hfunc, CUfunction_attribute attrib, int value)
{
    CUresult result = cst_fake_begin(__func__, CST_FAKE_CONTEXT);

    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (!is_function(hfunc)) {
        return cst_fake_end(CUDA_ERROR_INVALID_HANDLE);
    }
    if (attrib == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) {
        if (value < 0 || (unsigned)value > MAX_SHARED) {
            return cst_fake_end(CUDA_ERROR_INVALID_VALUE);
        }
        hfunc->max_shared = (unsigned)value;
        return cst_fake_end(CUDA_SUCCESS);
    }
    return cst_fake_end(attrib == CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT
                            ? CUDA_SUCCESS
                            : CUDA_ERROR_INVALID_VALUE);
}

/* -- launches ------------------------------------------------------------------------------- */

static CUresult run_launch(struct cst_fake_op *op)
{
    struct launch *launch = (struct launch *)op;

    launch->kernel->run(launch->grid, launch->block, launch->shared, launch->params);
    return CUDA_SUCCESS;
}

static bool can_launch(const struct launch *launch, const struct CUfunc_st *function)
{
    uint64_t n_threads = 1;

    for (int i = 0; i < 3; i++) {
        if (launch->grid[i] == 0 || launch->block[i] == 0 ||
            launch->grid[i] > (i == 0 ? 2147483647u : 65535u) ||
            launch->block[i] > (i == 2 ? 64u : 1024u)) {
            return false;
        }
        n_threads *= launch->block[i];
    }
    return n_threads <= MAX_THREADS && launch->shared <= function->max_shared;
}

/* Copy the parameters as they are at the call. */
static CUresult copy_params(struct launch *launch, void **params)
{
    const unsigned *bytes = launch->kernel->param_bytes;
    size_t at = 0, i;

    for (i = 0; bytes[i] != 0; i++) {
        if (i == MAX_PARAMS || at + bytes[i] > MAX_PARAM_BYTES || params == NULL ||
            params[i] == NULL) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        memcpy(launch->values + at, params[i], bytes[i]);
        launch->copied[i] = launch->values + at;
        at = (at + bytes[i] + 15) & ~(size_t)15;
    }
    launch->params = launch->copied;
    return CUDA_SUCCESS;
}

/* If the sizes of a kernel's parameters are unknown, the kernel reads them while the caller
 * waits. */
static CUresult submit_launch(struct cst_fake_stream *stream, struct launch *launch, bool await)
{
    CUcontext context = stream->context;
    struct cst_fake_point point;
    CUresult result = cst_fake_stream_submit(stream, &launch->op);

    if (result == CUDA_SUCCESS && await) {
        point = cst_fake_stream_point(stream);
        point.progress->refs++;
        (void)cst_fake_point_await(point, context);
        cst_fake_progress_put(point.progress);
    }
    return result;
}

static CUresult start_launch(CUfunction f, struct launch *launch, void **params, CUstream handle)
{
    struct cst_fake_stream *stream;
    CUresult result = cst_fake_stream_find(handle, &stream);

    if (result == CUDA_SUCCESS && stream->context != cst_fake_context_current()) {
        result = CUDA_ERROR_INVALID_HANDLE;
    }
    if (result == CUDA_SUCCESS && !can_launch(launch, f)) {
        result = CUDA_ERROR_INVALID_VALUE;
    }
    launch->kernel = f->kernel;
    launch->params = params;
    if (result == CUDA_SUCCESS && f->kernel->param_bytes != NULL) {
        result = copy_params(launch, params);
    }
    if (result != CUDA_SUCCESS) {
        cst_fake_op_drop(&launch->op);
        return result;
    }
    return submit_launch(stream, launch, f->kernel->param_bytes == NULL);
}

CUresult cuLaunchKernel(CUfunction f, unsigned int gridDimX, unsigned int gridDimY,
                        unsigned int gridDimZ, unsigned int blockDimX, unsigned int blockDimY,
                        unsigned int blockDimZ, unsigned int sharedMemBytes, CUstream hStream,
                        void **kernelParams, void **extra)
{
    CUresult result = cst_fake_begin(__func__, CST_FAKE_CONTEXT);
    struct launch *launch;

    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (!is_function(f)) {
        return cst_fake_end(CUDA_ERROR_INVALID_HANDLE);
    }
    if (extra != NULL) {
        return cst_fake_end(CUDA_ERROR_NOT_SUPPORTED);
    }
    launch =
        (struct launch *)cst_fake_op_new(sizeof *launch + MAX_PARAM_BYTES, "launch", run_launch);
    if (launch == NULL) {
        return cst_fake_end(CUDA_ERROR_OUT_OF_MEMORY);
    }
    launch->op.blind = true;
    launch->shared = sharedMemBytes;
    memcpy(launch->grid, (unsigned[]){gridDimX, gridDimY, gridDimZ}, sizeof launch->grid);
    memcpy(launch->block, (unsigned[]){blockDimX, blockDimY, blockDimZ}, sizeof launch->block);
    return cst_fake_end(start_launch(f, launch, kernelParams, hStream));
}
