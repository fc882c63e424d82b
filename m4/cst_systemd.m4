dnl SPDX-License-Identifier: Apache-2.0
dnl CST_SYSTEMD_DIRS: where units go. distcheck passes --with-systemdsystemunitdir under its own prefix.
AC_DEFUN([CST_SYSTEMD_DIRS], [
  AC_ARG_WITH([systemdsystemunitdir],
    [AS_HELP_STRING([--with-systemdsystemunitdir=DIR], [directory of systemd units (default: PREFIX/lib/systemd/system)])],
    [], [with_systemdsystemunitdir='${prefix}/lib/systemd/system'])
  systemdsystemunitdir=$with_systemdsystemunitdir
  systemduserunitdir='${prefix}/lib/systemd/user'
  sysusersdir='${prefix}/lib/sysusers.d'
  tmpfilesdir='${prefix}/lib/tmpfiles.d'
  bashcompletiondir='${datadir}/bash-completion/completions'
  AC_SUBST([systemdsystemunitdir])
  AC_SUBST([systemduserunitdir])
  AC_SUBST([sysusersdir])
  AC_SUBST([tmpfilesdir])
  AC_SUBST([bashcompletiondir])
])
