#include "client/gpt/device.h"

#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include <string.h>

#ifndef HAVE_CUDA
int gpt_device_cuda_open(struct gpt_device **out, const struct gpt_options *options,
                         struct cst_err *err)
{
    (void)out;
    return cst_err_set(err, CST_EUNSUPPORTED,
                       "--device %s: this cistern-gpt was built without "
                       "CUDA",
                       options->device);
}
#endif

/* "cuda", "cuda:1", a UUID: everything but the host is a GPU's name. */
int gpt_device_open(struct gpt_device **out, const struct gpt_options *options, struct cst_err *err)
{
    if (strcmp(options->device, "host") == 0) {
        return gpt_device_host_open(out, options, err);
    }
    return gpt_device_cuda_open(out, options, err);
}
