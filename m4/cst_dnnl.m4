dnl SPDX-License-Identifier: Apache-2.0
dnl CST_CHECK_DNNL: oneDNN for the reference worker. --without-gpt leaves the worker out.
AC_DEFUN([CST_CHECK_DNNL], [
  AC_ARG_WITH([gpt], [AS_HELP_STRING([--without-gpt], [do not build cistern-gpt, the reference worker (needs oneDNN)])],
    [], [with_gpt=guess])
  have_gpt=no
  cst_dnnl_summary="no (--without-gpt)"
  AS_IF([test "x$with_gpt" != xno], [
    AC_CHECK_HEADER([dnnl.h], [
      AC_CHECK_LIB([dnnl], [dnnl_engine_create], [have_gpt=yes; DNNL_LIBS=-ldnnl])])
    AS_IF([test $have_gpt = yes], [cst_dnnl_summary="cistern-gpt (oneDNN)"],
          [test "x$with_gpt" = xyes], [AC_MSG_ERROR([--with-gpt: oneDNN not found (Debian: libdnnl-dev)])],
          [cst_dnnl_summary="no (oneDNN not found; Debian: libdnnl-dev)"])
  ])
  AC_SUBST([DNNL_LIBS])
  AM_CONDITIONAL([HAVE_GPT], [test $have_gpt = yes])
  AC_OPENMP
])
