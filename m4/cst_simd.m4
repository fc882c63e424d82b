dnl SPDX-License-Identifier: Apache-2.0
dnl CST_CHECK_SIMD: which SIMD kernels the compiler can build. What the CPU can run is decided at run time.
AC_DEFUN([CST_CHECK_SIMD], [
  cst_simd_names=
  have_x86_simd=no
  cst_save_CFLAGS=$CFLAGS
  AVX2_CFLAGS="-mavx2 -mfma -mf16c"
  AVX512_CFLAGS="-mavx512f -mavx512bw -mavx512vl -mavx512dq -mfma -mavx2"
  CFLAGS="$CFLAGS $AVX512_CFLAGS"
  AC_MSG_CHECKING([whether $CC can build AVX2 and AVX-512 kernels])
  AC_COMPILE_IFELSE([AC_LANG_PROGRAM([[#include <immintrin.h>]],
      [[volatile __m512i a = _mm512_setzero_si512(); (void)a; return 0;]])], [have_x86_simd=yes])
  CFLAGS=$cst_save_CFLAGS
  AC_MSG_RESULT([$have_x86_simd])
  AS_IF([test $have_x86_simd = yes], [
    cst_simd_names=", AVX2, AVX-512"
    AC_DEFINE([HAVE_X86_SIMD], [1], [AVX2 and AVX-512 kernels are built])])
  AC_MSG_CHECKING([whether $CC can build NEON kernels])
  have_neon=no
  AC_COMPILE_IFELSE([AC_LANG_PROGRAM([[#include <arm_neon.h>
      #ifndef __aarch64__
      #error "not AArch64"
      #endif]], [[volatile float64x2_t a = vdupq_n_f64(0.0); (void)a; return 0;]])], [have_neon=yes])
  AC_MSG_RESULT([$have_neon])
  AS_IF([test $have_neon = yes], [
    cst_simd_names=", NEON"
    AC_DEFINE([HAVE_NEON], [1], [NEON kernels are built])])
  AC_SUBST([AVX2_CFLAGS])
  AC_SUBST([AVX512_CFLAGS])
  AM_CONDITIONAL([HAVE_X86_SIMD], [test $have_x86_simd = yes])
  AM_CONDITIONAL([HAVE_NEON], [test $have_neon = yes])
])
