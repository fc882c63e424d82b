dnl SPDX-License-Identifier: Apache-2.0
dnl CST_CHECK_UCX: the headers of UCX, for the transport "ucx" of cistern-engine-net, which loads the library when it is used.
dnl --without-ucx leaves it out. Sets HAVE_UCX (conditional), UCX_CFLAGS, cst_ucx_summary.
AC_DEFUN([CST_CHECK_UCX], [
  AC_ARG_WITH([ucx], [AS_HELP_STRING([--without-ucx], [do not build the transport "ucx" between machines])],
    [], [with_ucx=guess])
  have_ucx=no
  cst_ucx_summary=" (--without-ucx)"
  AS_IF([test "x$with_ucx" != xno], [
    PKG_CHECK_MODULES([UCX], [ucx >= 1.13], [have_ucx=yes], [have_ucx=no])
    AS_IF([test $have_ucx = yes], [cst_ucx_summary=", UCX"],
          [test "x$with_ucx" = xyes], [AC_MSG_ERROR([--with-ucx: UCX 1.13 or later not found (Debian: libucx-dev)])],
          [cst_ucx_summary=" (UCX 1.13 or later not found; Debian: libucx-dev)"])
  ])
  AM_CONDITIONAL([HAVE_UCX], [test $have_ucx = yes])
  AS_IF([test $have_ucx = yes], [AC_DEFINE([HAVE_UCX], [1], [The headers of UCX were found])])
])
