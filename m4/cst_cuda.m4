dnl CST_CHECK_CUDA: --with-cuda=guess|DIR|yes|no. Finds nvcc and the toolkit's headers; an explicit request that fails is an error.
dnl Sets HAVE_CUDA (conditional), NVCC, CUDA_DIR, cst_cuda_summary. Nothing is ever linked with libcuda.
AC_DEFUN([CST_CHECK_CUDA], [
  AC_ARG_WITH([cuda],
    [AS_HELP_STRING([--with-cuda=guess|DIR|yes|no], [CUDA Toolkit for GPU engines (default: guess)])],
    [], [with_cuda=guess])
  have_cuda=no
  cst_cuda_summary="no (--without-cuda)"
  AS_IF([test "x$with_cuda" != xno], [
    AS_CASE([$with_cuda],
      [yes|guess], [cst_cuda_path="$PATH:/usr/local/cuda/bin:/opt/cuda/bin"],
      [cst_cuda_path="$with_cuda/bin"])
    AC_PATH_PROG([NVCC], [nvcc], [], [$cst_cuda_path])
    AS_IF([test -n "$NVCC"], [
      cst_nvcc_real=`readlink -f "$NVCC"`
      CUDA_DIR=`AS_DIRNAME(["$cst_nvcc_real"])`
      CUDA_DIR=`AS_DIRNAME(["$CUDA_DIR"])`
      cst_save_CPPFLAGS=$CPPFLAGS
      CPPFLAGS="$CPPFLAGS -I$CUDA_DIR/include"
      AC_CHECK_HEADER([cuda.h], [have_cuda=yes], [cst_cuda_why="nvcc is at $NVCC, cuda.h is not in $CUDA_DIR/include"])
      CPPFLAGS=$cst_save_CPPFLAGS
    ], [cst_cuda_why="nvcc not found in $cst_cuda_path"])
    AS_IF([test $have_cuda = yes],
            [cst_cuda_version=`"$NVCC" --version | $SED -n 's/.*release \([[0-9.]]*\).*/\1/p'`
             cst_cuda_summary="toolkit $cst_cuda_version in $CUDA_DIR (GPU engine: not in this version)"],
          [test "x$with_cuda" != xguess], [AC_MSG_ERROR([--with-cuda=$with_cuda: $cst_cuda_why])],
          [cst_cuda_summary="no ($cst_cuda_why)"])
  ])
  AC_SUBST([NVCC])
  AC_SUBST([CUDA_DIR])
  AM_CONDITIONAL([HAVE_CUDA], [test $have_cuda = yes])
  AS_IF([test $have_cuda = yes], [AC_DEFINE([HAVE_CUDA], [1], [The CUDA Toolkit was found])])
])
