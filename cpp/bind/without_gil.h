// Releases the GIL for a scope, and stays safe if the interpreter ends first.
#pragma once
#include <Python.h>
#include <cstddef>  // defines __GLIBC__
#if defined(__GLIBC__)
#include <cxxabi.h>
#include <unistd.h>
#endif

namespace rowgrad {

class WithoutGil {
 public:
  WithoutGil() noexcept : state_(PyEval_SaveThread()) {}
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

  // Up to Python 3.13, a daemon thread that requests the GIL of a finalizing interpreter is unwound, which C++ treats
  // as an exception out of a destructor: the process would abort. So the thread hangs here instead, as it does from
  // 3.14 on.
  ~WithoutGil() {
#if defined(__GLIBC__)
    try {
      PyEval_RestoreThread(state_);
    } catch (abi::__forced_unwind&) {
      for (;;) pause();
    }
#else
    PyEval_RestoreThread(state_);
#endif
  }

 private:
  PyThreadState* state_;
};

}  // namespace rowgrad
