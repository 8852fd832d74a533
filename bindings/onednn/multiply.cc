// SPDX-License-Identifier: Apache-2.0
// The module that wraps oneDNN in one function, so that the library itself does not depend on it.
#include <omp.h>

#include <exception>
#include <oneapi/dnnl/dnnl.hpp>
#include <string>

#include "narrowfloat/ops/cpu/bfloat16_multiply.h"

namespace {

using narrowfloat::BFloat16Product;

dnnl::memory::dim Dim(std::size_t size) {
  return static_cast<dnnl::memory::dim>(size);
}

dnnl::memory::desc Matrix(std::size_t rows, std::size_t cols, dnnl::memory::data_type type,
                          std::size_t row_step, std::size_t col_step) {
  return {{Dim(rows), Dim(cols)}, type, {Dim(row_step), Dim(col_step)}};
}

/// Restricts OpenMP to the calling thread: narrowfloat's own threads divide the work.
class OneThread {
 public:
  OneThread() : before_(omp_get_max_threads()) { omp_set_num_threads(1); }
  ~OneThread() { omp_set_num_threads(before_); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  const int before_;
};

void Multiply(const BFloat16Product& product) {
  using Type = dnnl::memory::data_type;
  static const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  const OneThread one_thread;
  const dnnl::memory::desc a =
      Matrix(product.rows, product.length, Type::bf16, product.a_row_step, product.a_along_step);
  const dnnl::memory::desc b =
      Matrix(product.length, product.cols, Type::bf16, product.b_along_step, product.b_col_step);
  const dnnl::memory::desc out =
      Matrix(product.rows, product.cols, Type::f32, product.out_row_step, 1);
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
#if DNNL_VERSION_MAJOR >= 3
  const dnnl::matmul::primitive_desc description(engine, a, b, out, attributes);
#else
  const dnnl::matmul::primitive_desc description({a, b, out}, attributes, engine);
#endif
  dnnl::stream stream(engine);
  const dnnl::memory scratchpad(description.scratchpad_desc(), engine);
  dnnl::matmul(description)
      .execute(stream, {{DNNL_ARG_SRC, {a, engine, const_cast<void*>(product.a)}},
                        {DNNL_ARG_WEIGHTS, {b, engine, const_cast<void*>(product.b)}},
                        {DNNL_ARG_DST, {out, engine, product.out}},
                        {DNNL_ARG_SCRATCHPAD, scratchpad}});
  stream.wait();
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const char* narrowfloat_multiply_bfloat16(
    const BFloat16Product* product) {
  thread_local std::string message;
  try {
    Multiply(*product);
    return nullptr;
  } catch (const std::exception& error) {
    message = error.what();
    return message.c_str();
  }
}
