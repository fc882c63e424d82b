dnl SPDX-License-Identifier: Apache-2.0
dnl CST_CHECK_CXX: a C++17 compiler for tests/lib/cudaemu, where CUDA kernels run on the processor. Nothing that is installed is C++.
dnl Sets HAVE_CXX (conditional), CST_CXXFLAGS, cst_cxx_summary.
AC_DEFUN([CST_CHECK_CXX], [
  AC_REQUIRE([AC_PROG_CXX])
  CST_CXXFLAGS="-std=gnu++17 -fno-exceptions -fno-rtti -fno-threadsafe-statics -fno-math-errno -ffp-contract=off"
  CST_CXXFLAGS="$CST_CXXFLAGS -Wall -Wextra -Wno-unknown-pragmas"
  AC_MSG_CHECKING([whether $CXX compiles C++17])
  AC_LANG_PUSH([C++])
  cst_save_CXXFLAGS=$CXXFLAGS
  CXXFLAGS="$CXXFLAGS $CST_CXXFLAGS"
  AC_COMPILE_IFELSE([AC_LANG_PROGRAM([[#include <utility>]],
      [[auto f = [](auto x) { return x; }; return f(std::index_sequence_for<int>().size() == 1 ? 0 : 1);]])],
    [have_cxx=yes; cst_cxx_summary="on the processor, with $CXX"],
    [have_cxx=no; cst_cxx_summary="no (no C++17 compiler; Debian: g++)"])
  CXXFLAGS=$cst_save_CXXFLAGS
  AC_LANG_POP([C++])
  AC_MSG_RESULT([$have_cxx])
  AC_SUBST([CST_CXXFLAGS])
  AM_CONDITIONAL([HAVE_CXX], [test $have_cxx = yes])
])
