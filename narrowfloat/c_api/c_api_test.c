/* SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L

#include "narrowfloat/c_api.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kRows = 2, kCols = 32, kMaxBuffers = 7 };

static int failures = 0;

static void Check(int ok, const char* what, int line) {
  if (ok) return;
  ++failures;
  fprintf(stderr, "line %d: %s does not hold; last error: '%s'\n", line, what, nf_last_error());
}
#define CHECK(condition) Check((condition), #condition, __LINE__)

/* Checks the status of a call and its complete message. */
static void CheckStatus(int32_t got, int32_t status, const char* text, int line) {
  if (got == status && strcmp(nf_last_error(), text) == 0) return;
  ++failures;
  fprintf(stderr, "line %d: expected %d '%s'\n     got %d '%s'\n", line, (int)status, text,
          (int)got, nf_last_error());
}
#define CHECK_STATUS(call, status, text) CheckStatus((call), (status), (text), __LINE__)

typedef struct Quantized {
  nf_buffer buffers[kMaxBuffers];
  size_t count;
} Quantized;

static const int64_t kShape[2] = {kRows, kCols};

static nf_tensor TensorOver(float* values) {
  const nf_tensor tensor = {sizeof tensor, values, kShape, NULL, 2, NF_FLOAT32};
  return tensor;
}

/* Allocates every buffer of the plan that has its own storage. */
static Quantized Allocate(const char* spec) {
  Quantized quantized = {{{0}}, 0};
  nf_buffer_plan plan[kMaxBuffers];
  size_t count = kMaxBuffers;
  memset(plan, 0, sizeof plan);
  plan[0].struct_size = sizeof plan[0];
  CHECK_STATUS(nf_plan(spec, kShape, 2, plan, &count), NF_OK, "");
  for (size_t i = 0; i < count; ++i) {
    if (plan[i].storage != plan[i].role) continue;
    nf_buffer* const buffer = &quantized.buffers[quantized.count++];
    buffer->struct_size = sizeof *buffer;
    buffer->role = plan[i].role;
    buffer->bytes = plan[i].bytes;
    buffer->data = malloc(plan[i].bytes);
  }
  return quantized;
}

static void Release(Quantized* quantized) {
  for (size_t i = 0; i < quantized->count; ++i) free(quantized->buffers[i].data);
  quantized->count = 0;
}

static void TestPlan(void) {
  size_t count = 0;
  CHECK_STATUS(nf_plan("mxfp8_e4m3", kShape, 2, NULL, &count), NF_OK, "");
  CHECK(count == 2);

  nf_buffer_plan plan[2];
  memset(plan, 0, sizeof plan);
  plan[0].struct_size = sizeof plan[0];
  CHECK_STATUS(nf_plan("mxfp8_e4m3", kShape, 2, plan, &count), NF_OK, "");
  CHECK(plan[0].role == NF_ROWWISE_DATA && plan[0].storage == NF_ROWWISE_DATA);
  CHECK(plan[0].rank == 2 && plan[0].shape[0] == kRows && plan[0].shape[1] == kCols);
  CHECK(plan[0].dtype == NF_UINT8 && plan[0].bytes == kRows * kCols);
  CHECK(plan[1].role == NF_ROWWISE_SCALE_INV && plan[1].bytes == 512);
  CHECK(plan[1].struct_size == sizeof plan[1]);
}

/* Powers of two are exact in every format, so that dequantization returns the input. */
static void TestRoundTrip(const char* spec) {
  float in[kRows * kCols];
  float out[kRows * kCols] = {0};
  for (int i = 0; i < kRows * kCols; ++i) in[i] = (i % 2 ? -1.0f : 1.0f) / (float)(1 << (i % 4));
  nf_tensor source = TensorOver(in), target = TensorOver(out);
  Quantized quantized = Allocate(spec);
  const nf_execution execution = {sizeof execution, NULL, 1, 0};
  CHECK_STATUS(nf_quantize(spec, &source, quantized.buffers, quantized.count, &execution), NF_OK,
               "");
  CHECK_STATUS(nf_dequantize(spec, quantized.buffers, quantized.count, &target, NULL), NF_OK, "");
  CHECK(memcmp(in, out, sizeof in) == 0);
  Release(&quantized);
}

/* 1.0 with a largest of 448: the scale is 2^ceil(log2(1/448)) = 2^-8, E8M0 code 119, and 256 is
 * 0x78 in E4M3. */
static void TestKnownBytes(void) {
  float in[kRows * kCols];
  for (int i = 0; i < kRows * kCols; ++i) in[i] = 1.0f;
  nf_tensor source = TensorOver(in);
  Quantized quantized = Allocate("mxfp8_e4m3");
  CHECK_STATUS(nf_quantize("mxfp8_e4m3", &source, quantized.buffers, quantized.count, NULL), NF_OK,
               "");
  CHECK(((const uint8_t*)quantized.buffers[0].data)[0] == 0x78);
  CHECK(((const uint8_t*)quantized.buffers[1].data)[0] == 119);
  Release(&quantized);
}

static void TestNoop(void) {
  float in[kRows * kCols] = {1.0f};
  const float noop = 1.0f;
  nf_tensor source = TensorOver(in);
  Quantized quantized = Allocate("mxfp8_e4m3");
  memset(quantized.buffers[0].data, 0x5A, quantized.buffers[0].bytes);
  const nf_execution execution = {sizeof execution, &noop, 0, 0};
  CHECK_STATUS(nf_quantize("mxfp8_e4m3", &source, quantized.buffers, quantized.count, &execution),
               NF_OK, "");
  CHECK(((const uint8_t*)quantized.buffers[0].data)[0] == 0x5A);
  Release(&quantized);
}

static void TestPlanErrors(void) {
  nf_buffer_plan plan[2];
  size_t count = 1;
  memset(plan, 0, sizeof plan);
  plan[0].struct_size = sizeof plan[0];
  CHECK_STATUS(nf_plan(NULL, kShape, 2, plan, &count), NF_INVALID_ARGUMENT,
               "nf_plan: the spec must not be NULL");
  CHECK_STATUS(nf_plan("mxfp8_e4m3", kShape, 2, plan, NULL), NF_INVALID_ARGUMENT,
               "nf_plan: the count must not be NULL");
  CHECK_STATUS(nf_plan("mxfp8_e4m3", NULL, 2, plan, &count), NF_INVALID_ARGUMENT,
               "nf_plan: the shape must not be NULL");
  CHECK_STATUS(nf_plan("mxfp8_e4m3", kShape, 65, plan, &count), NF_INVALID_ARGUMENT,
               "nf_plan: the rank must be from 0 to 64, got 65");
  CHECK_STATUS(nf_plan("mxfp8_e4m3", kShape, -1, plan, &count), NF_INVALID_ARGUMENT,
               "nf_plan: the rank must be from 0 to 64, got -1");
  CHECK_STATUS(nf_plan("mxfp8_e4m3:rowwise=2", kShape, 2, plan, &count), NF_INVALID_ARGUMENT,
               "spec: rowwise must be 0 or 1, got '2'");
  CHECK_STATUS(nf_plan("mxfp8_e4m3", kShape, 2, plan, &count), NF_INVALID_ARGUMENT,
               "nf_plan: the plan needs room for 2 buffers, got 1");
  CHECK(count == 2 && plan[0].bytes == 0);
  plan[0].struct_size = 8;
  CHECK_STATUS(nf_plan("mxfp8_e4m3", kShape, 2, plan, &count), NF_INVALID_ARGUMENT,
               "nf_plan: struct_size of the plan must be from 544 to 4096, got 8");
}

static void TestTensorErrors(void) {
  float in[kRows * kCols] = {0};
  nf_tensor tensor = TensorOver(in);
  Quantized q = Allocate("mxfp8_e4m3");
  CHECK_STATUS(nf_quantize("mxfp8_e4m3", NULL, q.buffers, q.count, NULL), NF_INVALID_ARGUMENT,
               "nf_quantize: the tensor must not be NULL");
  tensor.dtype = 9;
  CHECK_STATUS(nf_quantize("mxfp8_e4m3", &tensor, q.buffers, q.count, NULL), NF_INVALID_ARGUMENT,
               "nf_quantize: the dtype must be from 0 to 3, got 9");
  tensor.dtype = NF_UINT8;
  CHECK_STATUS(nf_quantize("mxfp8_e4m3", &tensor, q.buffers, q.count, NULL), NF_INVALID_ARGUMENT,
               "quantize: the input must be float32, float16 or bfloat16, got uint8");
  tensor = TensorOver(in);
  tensor.struct_size = 4;
  CHECK_STATUS(nf_dequantize("mxfp8_e4m3", q.buffers, q.count, &tensor, NULL), NF_INVALID_ARGUMENT,
               "nf_dequantize: struct_size of the tensor must be from 40 to 4096, got 4");
  Release(&q);
}

static void TestBufferErrors(void) {
  float in[kRows * kCols] = {0};
  nf_tensor tensor = TensorOver(in);
  Quantized q = Allocate("mxfp8_e4m3");
  CHECK_STATUS(nf_quantize("mxfp8_e4m3", &tensor, NULL, 0, NULL), NF_INVALID_ARGUMENT,
               "nf_quantize: a buffer must not be NULL");
  CHECK_STATUS(nf_quantize("mxfp8_e4m3", &tensor, q.buffers, 1, NULL), NF_INVALID_ARGUMENT,
               "quantize: rowwise_scale_inv is missing");
  q.buffers[1].bytes = 3;
  CHECK_STATUS(nf_quantize("mxfp8_e4m3", &tensor, q.buffers, q.count, NULL), NF_INVALID_ARGUMENT,
               "nf_quantize: rowwise_scale_inv must have 512 bytes, got 3");
  q.buffers[1].role = NF_SCALE;
  CHECK_STATUS(nf_quantize("mxfp8_e4m3", &tensor, q.buffers, q.count, NULL), NF_INVALID_ARGUMENT,
               "nf_quantize: buffers must have roles that mxfp8_e4m3 plans, got role 4");
  q.buffers[1].role = NF_ROWWISE_DATA;
  q.buffers[1].bytes = kRows * kCols;
  CHECK_STATUS(nf_quantize("mxfp8_e4m3", &tensor, q.buffers, q.count, NULL), NF_INVALID_ARGUMENT,
               "nf_quantize: rowwise_data must be given once, got two");
  Release(&q);
}

/* Passes a struct of a later version, with added fields that are zero or not. */
static void TestLaterStructs(void) {
  struct Later {
    nf_tensor tensor;
    int64_t added;
  } later;
  float in[kRows * kCols] = {0};
  Quantized q = Allocate("mxfp8_e4m3");
  later.tensor = TensorOver(in);
  later.tensor.struct_size = sizeof later;
  later.added = 0;
  CHECK_STATUS(nf_quantize("mxfp8_e4m3", &later.tensor, q.buffers, q.count, NULL), NF_OK, "");
  later.added = 1;
  CHECK_STATUS(nf_quantize("mxfp8_e4m3", &later.tensor, q.buffers, q.count, NULL), NF_UNSUPPORTED,
               "nf_quantize: fields of the tensor that this version does not know must be 0");
  const nf_execution execution = {sizeof execution, NULL, 0, 1};
  later.added = 0;
  CHECK_STATUS(nf_quantize("mxfp8_e4m3", &later.tensor, q.buffers, q.count, &execution),
               NF_UNSUPPORTED, "nf_quantize: reserved of the execution must be 0, got 1");
  Release(&q);
}

/* Rows at uneven distances need a table of their addresses. A table of 2^56 rows exceeds any
 * memory, and the call fails before it accesses a buffer. */
static void TestFailure(void) {
#ifdef __SANITIZE_ADDRESS__
  puts(
      "c_api_test: TestFailure skipped, the address sanitizer ends a process that asks for so "
      "much");
#else
  static float arena[9]; /* the input reaches the first five */
  const int64_t shape[3] = {(int64_t)1 << 55, 2, 4}, strides[3] = {0, 4, 4};
  const nf_tensor tensor = {sizeof tensor, arena, shape, strides, 3, NF_FLOAT32};
  const nf_buffer buffers[4] = {
      {sizeof buffers[0], &arena[5], sizeof arena[5], NF_ROWWISE_SCALE_INV, 0},
      {sizeof buffers[0], &arena[6], sizeof arena[0], NF_SCALE, 0},
      {sizeof buffers[0], &arena[7], sizeof arena[0], NF_AMAX_ROWWISE, 0},
      {sizeof buffers[0], &arena[8], (uint64_t)1 << 58, NF_ROWWISE_DATA, 0},
  };
  CHECK_STATUS(nf_quantize("fp8_e4m3", &tensor, buffers, 4, NULL), NF_FAILURE, "std::bad_alloc");
#endif
}

int main(void) {
  CHECK(strcmp(nf_version(), NF_EXPECTED_VERSION) == 0);
  TestPlan();
  TestRoundTrip("mxfp8_e4m3");
  TestRoundTrip("mxfp8_e5m2:columnwise=1");
  TestRoundTrip("fp8_e4m3:columnwise=1,scale=2");
  TestKnownBytes();
  TestNoop();
  TestPlanErrors();
  TestTensorErrors();
  TestBufferErrors();
  TestLaterStructs();
  TestFailure();
  if (failures == 0) puts("c_api_test: all held");
  return failures == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
