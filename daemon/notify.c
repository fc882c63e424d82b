#include "daemon/notify.h"

#include <systemd/sd-daemon.h>

uint64_t cst_notify_watchdog_ms(void)
{
    uint64_t us;

    return sd_watchdog_enabled(0, &us) > 0 ? us / 2000 : 0;
}

void cst_notify_ready(const char *status)
{
    (void)sd_notifyf(0, "READY=1\nSTATUS=%s", status);
}

void cst_notify_status(const char *status)
{
    (void)sd_notifyf(0, "STATUS=%s", status);
}

void cst_notify_alive(void)
{
    (void)sd_notify(0, "WATCHDOG=1");
}

void cst_notify_stopping(void)
{
    (void)sd_notify(0, "STOPPING=1\nSTATUS=going down");
}
