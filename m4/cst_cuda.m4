dnl SPDX-License-Identifier: Apache-2.0
dnl CST_CHECK_CUDA: --with-cuda=guess|DIR|yes|no. Finds nvcc and the toolkit's headers, and has nvcc compile a kernel for the GPUs that
dnl the engine is built for; an explicit request that fails is an error. Sets HAVE_CUDA (conditional), NVCC, NVCCFLAGS, CUDA_DIR,
dnl CUDA_GENCODE, cst_cuda_summary. Nothing is ever linked with libcuda.
AC_DEFUN([CST_CHECK_CUDA], [
  AC_ARG_WITH([cuda],
    [AS_HELP_STRING([--with-cuda=guess|DIR|yes|no], [CUDA Toolkit for GPU engines (default: guess)])],
    [], [with_cuda=guess])
  AC_ARG_VAR([NVCC], [CUDA compiler])
  AC_ARG_VAR([NVCCFLAGS], [flags for it, such as -ccbin=g++-12])
  CUDA_GENCODE="-gencode=arch=compute_80,code=sm_80 -gencode=arch=compute_90,code=[[sm_90,compute_90]]"
  have_cuda=no
  cst_cuda_summary="no (--without-cuda)"
  AS_IF([test "x$with_cuda" != xno], [
    AS_CASE([$with_cuda],
      [yes|guess], [cst_cuda_path="$PATH:/usr/local/cuda/bin:/opt/cuda/bin"],
      [cst_cuda_path="$with_cuda/bin"])
    AC_PATH_PROG([NVCC], [nvcc], [], [$cst_cuda_path])
    AS_IF([test -z "$NVCC"], [cst_cuda_why="nvcc not found in $cst_cuda_path"], [CST_CHECK_TOOLKIT])
    AS_IF([test $have_cuda = yes],
            [cst_cuda_version=`"$NVCC" --version | $SED -n 's/.*release \([[0-9.]]*\).*/\1/p'`
             cst_cuda_summary="toolkit $cst_cuda_version in $CUDA_DIR: kernels for sm_80, sm_90, PTX"],
          [test "x$with_cuda" != xguess], [AC_MSG_ERROR([--with-cuda=$with_cuda: $cst_cuda_why])],
          [cst_cuda_summary="no ($cst_cuda_why)"])
  ])
  AC_SUBST([CUDA_DIR])
  AC_SUBST([CUDA_GENCODE])
  AM_CONDITIONAL([HAVE_CUDA], [test $have_cuda = yes])
  AS_IF([test $have_cuda = yes], [AC_DEFINE([HAVE_CUDA], [1], [The CUDA Toolkit was found])])
])

dnl With NVCC set: have_cuda=yes, or cst_cuda_why.
AC_DEFUN([CST_CHECK_TOOLKIT], [
  cst_nvcc_real=`readlink -f "$NVCC"`
  CUDA_DIR=`AS_DIRNAME(["$cst_nvcc_real"])`
  CUDA_DIR=`AS_DIRNAME(["$CUDA_DIR"])`
  cst_save_CPPFLAGS=$CPPFLAGS
  CPPFLAGS="$CPPFLAGS -I$CUDA_DIR/include"
  AC_CHECK_HEADER([cuda.h], [cst_cuda_h=yes], [cst_cuda_h=no])
  CPPFLAGS=$cst_save_CPPFLAGS
  AS_IF([test $cst_cuda_h = no], [cst_cuda_why="nvcc is at $NVCC, cuda.h is not in $CUDA_DIR/include"], [
    AC_MSG_CHECKING([whether $NVCC compiles for sm_80 and sm_90])
    AS_ECHO(['extern "C" __global__ void f(float *p) { *p = __fmaf_rn(*p, *p, 1.0f); }']) >conftest.cu
    AS_IF([$NVCC $NVCCFLAGS -std=c++17 $CUDA_GENCODE -fatbin -o conftest.fatbin conftest.cu >conftest.out 2>&1],
      [have_cuda=yes],
      [cat conftest.out >&AS_MESSAGE_LOG_FD
       cst_cuda_why="$NVCC cannot compile: `$SED -n '/error/{p;q;}' conftest.out`"])
    rm -f conftest.cu conftest.fatbin conftest.out
    AC_MSG_RESULT([$have_cuda])])
])
