// A stretch of work without the GIL, which ends well even where the interpreter ends first.
#pragma once
#include <Python.h>
#include <cstddef>  // says which C library this is
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

  // Up to Python 3.13 a daemon thread that wants the GIL of an interpreter which is being torn down is unwound, and C++
  // takes that for an exception out of a destructor: the process would abort. It waits for its end here, as it does
  // from 3.14 on.
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
