/* SPDX-License-Identifier: Apache-2.0 */
#if __has_include(<cublasLt.h>)

#include "tests/lib/fakecublas/settings.h"

#include "tests/lib/call_count.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static _Noreturn void refuse(const char *name, const char *value)
{
    (void)fprintf(stderr, "fakecublas: %s=%s makes no sense\n", name, value);
    _Exit(2);
}

bool settings_refuses(cublasLtEpilogue_t epilogue, bool late)
{
    static const struct {
        const char *name;
        cublasLtEpilogue_t epilogue;
    } rows[] = {{"default", CUBLASLT_EPILOGUE_DEFAULT},
                {"bias", CUBLASLT_EPILOGUE_BIAS},
                {"gelu", CUBLASLT_EPILOGUE_GELU_AUX_BIAS},
                {"dgelu", CUBLASLT_EPILOGUE_DGELU}};
    const char *name = late ? "CST_FAKECUBLAS_REFUSES" : "CST_FAKECUBLAS_LACKS";
    const char *value = getenv(name);
    char copy[128], *save = NULL;
    bool refuses = false;

    (void)snprintf(copy, sizeof copy, "%s", value != NULL ? value : "");
    for (char *word = strtok_r(copy, ",", &save); word != NULL; word = strtok_r(NULL, ",", &save)) {
        size_t i = 0;

        while (i < sizeof rows / sizeof *rows && strcmp(rows[i].name, word) != 0) {
            i++;
        }
        if (i == sizeof rows / sizeof *rows) {
            refuse(name, value);
        }
        refuses = refuses || rows[i].epilogue == epilogue;
    }
    return refuses;
}

cublasStatus_t settings_fault(const char *name)
{
    const char *value = getenv("CST_FAKECUBLAS_FAIL");
    const unsigned n = call_count(name);
    char failing[64] = "", end;
    unsigned nth = 0, status = 0;

    if (value == NULL) {
        return CUBLAS_STATUS_SUCCESS;
    }
    if (sscanf(value, "%63[A-Za-z]:%u=%u%c", failing, &nth, &status, &end) != 3) {
        refuse("CST_FAKECUBLAS_FAIL", value);
    }
    return nth == n && strcmp(failing, name) == 0 ? (cublasStatus_t)status : CUBLAS_STATUS_SUCCESS;
}

#endif
