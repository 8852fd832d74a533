/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * The C face of narrowfloat: libnarrowfloat.so.0. Quantizes by a spec in text form
 * ("mxfp8_e4m3:columnwise=1") into buffers that the caller owns.
 *
 * nf_plan, nf_quantize and nf_dequantize return an nf_status. If it is not NF_OK, nf_last_error()
 * returns the reason, and no buffer was written, except that NF_FAILURE leaves unspecified bytes in
 * outputs. Every struct begins with its size, at most 4096; the caller sets it to sizeof. Later
 * versions add fields at the end; a field outside the caller's struct reads as zero.
 */

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define NF_API __attribute__((visibility("default")))

enum nf_status {
  NF_OK = 0,
  NF_INVALID_ARGUMENT = 2, /* the caller's values are wrong */
  NF_UNSUPPORTED = 3,      /* valid, but not supported by this build or machine */
  NF_FAILURE = 4           /* device, file system or memory failed */
};

enum nf_dtype { NF_FLOAT32 = 0, NF_FLOAT16 = 1, NF_BFLOAT16 = 2, NF_UINT8 = 3 };

enum nf_role {
  NF_ROWWISE_DATA = 0,
  NF_ROWWISE_SCALE_INV = 1,
  NF_COLUMNWISE_DATA = 2,
  NF_COLUMNWISE_SCALE_INV = 3,
  NF_SCALE = 4,
  NF_AMAX_ROWWISE = 5,
  NF_AMAX_COLUMNWISE = 6
};

#define NF_MAX_RANK 64

/* NOLINTBEGIN(modernize-use-using): C has none */
/* A tensor of floats. Strides are in bytes; the items of the last dimension are adjacent. */
typedef struct nf_tensor {
  size_t struct_size;
  void* data; /* nf_quantize does not write it */
  const int64_t* shape;
  const int64_t* strides; /* NULL: C-contiguous */
  int32_t rank;
  int32_t dtype; /* nf_dtype */
} nf_tensor;

/* One buffer of a quantized tensor, C-contiguous. */
typedef struct nf_buffer_plan {
  size_t struct_size;
  int32_t role;    /* nf_role */
  int32_t storage; /* role of the memory that holds it: its own, or another role's if shared */
  int32_t dtype;   /* nf_dtype */
  int32_t rank;
  int64_t shape[NF_MAX_RANK];
  uint64_t bytes;
} nf_buffer_plan;

/* The memory of one buffer; `bytes` as in the plan. */
typedef struct nf_buffer {
  size_t struct_size;
  void* data; /* nf_dequantize does not write it */
  uint64_t bytes;
  int32_t role;     /* nf_role */
  int32_t reserved; /* 0 */
} nf_buffer;

/* Options of a call's execution. */
typedef struct nf_execution {
  size_t struct_size;
  const float* noop; /* NULL, or the address of a flag: if it is 1, nothing is written */
  int32_t threads;   /* 0: NF_NUM_THREADS, else the affinity mask */
  int32_t reserved;  /* 0 */
} nf_execution;
/* NOLINTEND(modernize-use-using) */

/* Returns "major.minor.patch". */
NF_API const char* nf_version(void);

/* Returns the message of this thread's last call, empty after NF_OK. Valid until the thread's next
 * call. */
NF_API const char* nf_last_error(void);

/*
 * Lists the buffers of a tensor of `shape` quantized by `spec`. `*count` is the number of entries
 * of `plan`, and on return the number of buffers. With too few entries, writes none and returns
 * NF_INVALID_ARGUMENT; if `plan` is NULL, sets only `*count`. plan[0].struct_size is the size of
 * every entry.
 */
NF_API int32_t nf_plan(const char* spec, const int64_t* shape, int32_t rank, nf_buffer_plan* plan,
                       size_t* count);

/*
 * Quantizes `in` into `buffers`: one for each entry of the plan with a `storage` equal to `role`.
 * buffers[0].struct_size is the size of every entry. `execution` may be NULL.
 */
NF_API int32_t nf_quantize(const char* spec, const nf_tensor* in, const nf_buffer* buffers,
                           size_t count, const nf_execution* execution);

/*
 * Dequantizes `buffers` into `out`, which has the shape of the unquantized tensor. Requires the
 * codes and scale_inv of one direction of the spec; the other buffers may be missing.
 */
NF_API int32_t nf_dequantize(const char* spec, const nf_buffer* buffers, size_t count,
                             const nf_tensor* out, const nf_execution* execution);

#ifdef __cplusplus
}
#endif
