dnl SPDX-License-Identifier: Apache-2.0
dnl CST_SANITIZERS: --enable-sanitizers=address,undefined | thread
AC_DEFUN([CST_SANITIZERS], [
  AC_ARG_ENABLE([sanitizers],
    [AS_HELP_STRING([--enable-sanitizers=LIST], [build with -fsanitize=LIST (address,undefined by default, or thread)])],
    [], [enable_sanitizers=no])
  AS_CASE([$enable_sanitizers], [yes], [enable_sanitizers=address,undefined])
  cst_sanitizers=$enable_sanitizers
  AS_IF([test "x$enable_sanitizers" != xno], [
    CST_SAN_CFLAGS="-fsanitize=$enable_sanitizers -fno-omit-frame-pointer -fno-sanitize-recover=undefined"
    # The checks of each access by UBSan double the time in which the kernels compile. AddressSanitizer
    # sees wrong accesses there all the same.
    AS_CASE([$enable_sanitizers], [*undefined*],
      [CST_SAN_KERNEL_CFLAGS="-fno-sanitize=null,alignment,pointer-overflow,object-size"])
  ])
  AC_SUBST([CST_SAN_CFLAGS])
  AC_SUBST([CST_SAN_KERNEL_CFLAGS])
])
