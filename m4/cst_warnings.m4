dnl SPDX-License-Identifier: Apache-2.0
dnl CST_WARNINGS: the house's warnings in CST_WARN_CFLAGS, each tried first. Whether they are errors is in CST_WERROR, which make can also be told: users
dnl build without it, and `make CST_WERROR=-Werror` in the same tree compiles nothing twice. `make CST_WARN_CFLAGS=` takes less time. Flags that
dnl change the code are in CST_CODE_CFLAGS.
AC_DEFUN([CST_WARNINGS], [
  AC_ARG_ENABLE([werror], [AS_HELP_STRING([--enable-werror], [treat warnings as errors])], [], [enable_werror=no])
  CST_WARN_CFLAGS=
  CST_CODE_CFLAGS=
  cst_save_CFLAGS=$CFLAGS
  for cst_flag in -Wall -Wextra -Wshadow -Wconversion -Wstrict-prototypes -Wmissing-prototypes -Wvla \
                  -Wformat=2 -Wundef -Wnull-dereference -Wswitch-enum -fno-common -fno-math-errno -ffp-contract=off; do
    AC_MSG_CHECKING([whether $CC takes $cst_flag])
    CFLAGS="$cst_save_CFLAGS -Werror $cst_flag"
    AC_COMPILE_IFELSE([AC_LANG_PROGRAM([], [])],
      [AC_MSG_RESULT([yes])
      AS_CASE([$cst_flag], [-W*], [CST_WARN_CFLAGS="$CST_WARN_CFLAGS $cst_flag"], [CST_CODE_CFLAGS="$CST_CODE_CFLAGS $cst_flag"])],
      [AC_MSG_RESULT([no])])
  done
  CFLAGS=$cst_save_CFLAGS
  AS_IF([test "x$enable_werror" = xyes], [CST_WERROR=-Werror], [CST_WERROR=])
  AC_SUBST([CST_WARN_CFLAGS])
  AC_SUBST([CST_CODE_CFLAGS])
  AC_SUBST([CST_WERROR])
])
