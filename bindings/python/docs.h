// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Signatures and docstrings of the module, in a separate file because they are long.
namespace narrowfloat::python {

inline constexpr char kQuantizedTensorDoc[] =
    R"(A quantized tensor: codes and scales as NumPy arrays, and the spec that made them.

Made by quantize(), from_buffers() and the quantizer classes, never directly.)";

inline constexpr char kBuffersDoc[] =
    R"(The arrays by name, absent when not made; live views, not copies.

The dict is new at every access: an item that is assigned to it does not reach the tensor.

rowwise_data, rowwise_scale_inv, columnwise_data, columnwise_scale_inv: codes and the scales
stored beside them (uint8 for codes, E8M0 and E4M3, float32 for fp32 scales). scale, amax_rowwise:
float32 of one element, for per-tensor FP8. amax_rowwise, amax_columnwise: for NVFP4, of one
element, or of one for each row and column if row_scaled. Per-tensor FP8 has one scale_inv array
under both names.)";

inline constexpr char kQuantizeSignature[] =
    "def quantize(x: object, scheme: str, rowwise: bool = True, columnwise: bool = False, "
    "out: QuantizedTensor | None = None, **options: object) -> QuantizedTensor";
inline constexpr char kQuantizeDoc[] =
    R"(Quantizes `x` by `scheme` to codes and scales, the bytes that TransformerEngine makes.

Shapes:  x is any rank, seen as M x K with K the last dimension; a 0-D array is 1 x 1.
Types:   float32, float16 or ml_dtypes.bfloat16; NumPy arrays and CPU objects with the buffer or
         DLPack protocol, which may be read-only. Rows of contiguous elements are never copied.
out:     a QuantizedTensor of the same plan, filled in place and returned; nothing is allocated.
Options: scale, amax: float or float32 of one element. Given, scale means delayed scaling and
         amax stands in for the measured one; of NVFP4 amax may be a pair for the two directions.
         amax_epsilon, force_pow_2_scales, swizzled, rht, rht_sign_mask, stochastic_rounding, seed,
         offset, row_scaled, four_over_six ("mae" or "mse"), four_over_six_fast_error, e4m3_max:
         as the scheme takes them. rht transforms columnwise data, for which the rows of x must be a
         multiple of 16; rowwise data are not transformed and take any number of rows. noop: 1
         leaves out as it is, or returns zeros. threads: an int, else NF_NUM_THREADS, else the
         affinity mask.
Errors:  TypeError for a wrong type or an unknown option; ValueError for an unknown scheme, an
         option that the scheme does not take, or an out of another plan, not writable, not
         C-contiguous or overlapping x. Nothing is written then.
Source:  TransformerEngine's Float8Quantizer, Float8CurrentScalingQuantizer, MXFP8Quantizer,
         Float8BlockQuantizer and NVFP4Quantizer.)";

inline constexpr char kQuantizeDbiasSignature[] =
    "def quantize_dbias(x: object, scheme: str, rowwise: bool = True, columnwise: bool = False, "
    "out: tuple[QuantizedTensor, numpy.ndarray] | None = None, **options: object) -> "
    "tuple[QuantizedTensor, numpy.ndarray]";
inline constexpr char kQuantizeDbiasDoc[] =
    R"(Returns quantize() and the sum of each column of `x`.

Shapes:  the sums are 1-D of length K, in the type of x, added up in fp32 in an order that depends
         on the shape alone.
out:     a tuple of a QuantizedTensor and an array, both filled in place and returned.
Errors:  as quantize().)";

inline constexpr char kFakeQuantizeSignature[] =
    "def fake_quantize(x: object, scheme: str, out: numpy.ndarray | None = None, **options: "
    "object) -> numpy.ndarray";
inline constexpr char kFakeQuantizeDoc[] =
    R"(Quantizes `x` rowwise, dequantizes it, and returns the values in the type of x.

Shapes:  that of x. `out` is an array of that shape and type, C-contiguous, writable, not
         overlapping x; it is filled in place and returned.
Errors:  as quantize().)";

inline constexpr char kDequantizeSignature[] =
    "def dequantize(q: QuantizedTensor, dtype: object = None, out: numpy.ndarray | None = None, "
    "**options: object) -> numpy.ndarray";
inline constexpr char kDequantizeDoc[] =
    R"(Returns the values of `q`: code times scale_inv in fp32, rounded to `dtype`.

Shapes:  that of the tensor that was quantized. Reads the rowwise buffers if they are there, else
         the columnwise ones.
dtype:   float32, float16 or bfloat16; q.dtype if None. Overflow becomes infinity.
out:     an array of that shape and dtype, C-contiguous, writable; filled in place and returned.
Options: threads, as in quantize().
Errors:  TypeError for another dtype; ValueError for an out that differs or overlaps q.)";

inline constexpr char kFromBuffersSignature[] =
    "def from_buffers(scheme: str, shape: int | collections.abc.Sequence[int], buffers: "
    "collections.abc.Mapping[str, numpy.ndarray], dtype: object = numpy.float32, **options: "
    "object) -> QuantizedTensor";
inline constexpr char kFromBuffersDoc[] =
    R"(Returns a QuantizedTensor over arrays that the caller owns; copies nothing.

Shapes:  `shape` is that of the tensor that was quantized; `buffers` are as QuantizedTensor.buffers
         has them, padding included. Codes and scale_inv of one direction are enough to dequantize
         and to swizzle.
Options: those of quantize() that say how the buffers are to be read, such as swizzled.
Errors:  TypeError for a wrong type; ValueError for an unknown name, a buffer without its partner,
         of a wrong shape, or not C-contiguous.)";

inline constexpr char kSwizzleSignature[] = "def swizzle(q: QuantizedTensor) -> QuantizedTensor";
inline constexpr char kSwizzleDoc[] =
    R"(Copies `q` with its scale_inv bytes in the tiles of 128 x 4 that GEMMs read.

Keys and shapes stay; bytes move. Errors: ValueError if the scheme has no such layout or q has it
already. Source: TransformerEngine's nvte_swizzle_scaling_factors.)";

inline constexpr char kUnswizzleSignature[] =
    "def unswizzle(q: QuantizedTensor) -> QuantizedTensor";
inline constexpr char kUnswizzleDoc[] =
    R"(Copies `q` with its scale_inv bytes in the compact layout, padding included.

Errors: ValueError if q is not swizzled.
Source: TransformerEngine's nvte_unswizzle_scaling_factors.)";

inline constexpr char kGroupedQuantizeSignature[] =
    "def grouped_quantize(x: object, group_sizes: collections.abc.Sequence[int], scheme: str, "
    "rowwise: bool = True, columnwise: bool = False, **options: object) -> list[QuantizedTensor]";
inline constexpr char kGroupedQuantizeDoc[] =
    R"(Quantizes groups of rows that lie one after another in `x`, each as if it were alone.

Shapes:  group_sizes says how many rows of x, flattened to M x K, each group has, 0 included; they
         add up to M. The results are of shape (size, K).
Options: as quantize(); group g counts its random numbers from 0 and adds g to the offset.
Errors:  as quantize(); ValueError if the sizes do not add up.)";

inline constexpr char kPlanGroupedSignature[] =
    "def plan_grouped(shapes: collections.abc.Iterable[int | collections.abc.Sequence[int]], "
    "scheme: str, rowwise: bool = True, columnwise: bool = False, **options: object) -> dict[str, "
    "dict[str, object]]";
inline constexpr char kPlanGroupedDoc[] =
    R"(Returns the places of groups of these shapes in packed buffers.

Shapes:  those of the groups, which may differ in every dimension; empty ones are legal. For each
         buffer: "dtype", "size" of the flat packed array, and "groups", for each group its offset,
         in items, and the shape of its part.
Options: as quantize() takes them of the scheme.
Errors:  as quantize(). Nothing is allocated.
Source:  TransformerEngine's GroupedTensor.)";

inline constexpr char kGroupedQuantizePackedSignature[] =
    "def grouped_quantize_packed(tensors: collections.abc.Iterable[object], scheme: str, rowwise: "
    "bool = True, columnwise: bool = False, **options: object) -> tuple[list[QuantizedTensor], "
    "dict[str, numpy.ndarray]]";
inline constexpr char kGroupedQuantizePackedDoc[] =
    R"(Quantizes each of `tensors` as if it were alone, into packed buffers.

Shapes:  the arrays are flat and as plan_grouped() says; items outside all groups are zero. The
         QuantizedTensors are views of them.
Options: as quantize(); group g counts its random numbers from 0 and adds g to the offset.
Errors:  as quantize().)";

inline constexpr char kRequantizeSignature[] =
    "def requantize(q: QuantizedTensor, scheme: str, rowwise: bool = True, columnwise: bool = "
    "False, between: object = numpy.float32, **options: object) -> QuantizedTensor";
inline constexpr char kRequantizeDoc[] =
    R"(Rounds the values of `q` to `between`, then quantizes by another scheme, direction or layout.

Errors:  as quantize() and dequantize().
Source:  TransformerEngine's chain of dequantize and quantize, whose grouped form goes through
         bfloat16.)";

/// A format string for the default of sign_mask.
inline constexpr char kHadamardSignature[] =
    "def hadamard_transform(x: object, sign_mask: int = {}, out: numpy.ndarray | None = None, "
    "**options: object) -> numpy.ndarray";
inline constexpr char kHadamardDoc[] =
    R"(Returns the random Hadamard transform of each group of 16 rows, which rht=True applies.

With the signs s of sign_mask (bit k set: s_k is -1) and Sylvester's matrix H, row 16 g + j becomes
0.25 * sum over k of s_k H_kj times row 16 g + k; the exact sum is rounded once to the type of x.
Shapes:  that of x, whose flattened rows are a multiple of 16; `out` as in dequantize().
Options: threads, as in quantize().
Errors:  as quantize(); ValueError for a sign_mask of more than 16 bits.
Source:  TransformerEngine's common/hadamard_transform.)";

inline constexpr char kBlockScalesSignature[] =
    "def block_scales_to_mxfp8(q: QuantizedTensor, columnwise: bool = False) -> numpy.ndarray";
inline constexpr char kBlockScalesDoc[] =
    R"(Returns swizzled MXFP8 scales for codes of block-scaled FP8 whose scales are powers of two.

Shapes:  uint8, as MXFP8 has rowwise_scale_inv for the codes of that direction as they are stored.
Errors:  ValueError if q is of another family or lacks the direction, or a scale is not a power of
         two. Source: TransformerEngine's nvte_swizzle_block_scaling_to_mxfp8_scaling_factors.)";

inline constexpr char kEmptySignature[] =
    "def empty(shape: int | collections.abc.Sequence[int], scheme: str, rowwise: bool = True, "
    "columnwise: bool = False, dtype: object = numpy.float32, **options: object) -> "
    "QuantizedTensor";
inline constexpr char kEmptyDoc[] =
    "Returns a QuantizedTensor of zeros, to be filled by quantize(..., out=).";

inline constexpr char kQgemmSignature[] =
    "def qgemm(a: QuantizedTensor, b: QuantizedTensor, *, bias: numpy.ndarray | None = None, out: "
    "numpy.ndarray | None = None, accumulate: bool = False, layout: str = 'TN', dtype: object = "
    "numpy.float32, mode: str | None = None, gelu: bool = False, gelu_in: numpy.ndarray | None = "
    "None, grad: bool = False, **options: object) -> numpy.ndarray";
inline constexpr char kQgemmDoc[] =
    R"(Multiplies two quantized matrices as TransformerEngine's reference GEMMs do.

layout:  "TN": a (M, K) times b (N, K) transposed, rowwise buffers of both (fprop: x, w).
         "NN": a (M, N) rowwise times b (N, K) columnwise (dgrad: dy, w).
         "NT": a (M, N) transposed times b (M, K), columnwise buffers of both (wgrad: dy, x).
Shapes:  the result is 2-D, leading dimensions of a and b flattened. bias has one item per column.
dtype:   of the result: float32, float16 or bfloat16. The bias may be any of them.
out:     an array of that shape and dtype, C-contiguous, writable, not overlapping what is read;
         filled in place and returned. With accumulate the product is added to what it holds.
Sums:    fp32, in an order that depends on the shapes alone: neither threads nor instruction sets
         change a byte. a and b are of one family of schemes, e4m3 beside e5m2 included.
mode:    "reproducible" is the above. "fast": where the machine multiplies bfloat16 and codes times
         scales fit it without loss, oneDNN multiplies, in an order of its own; else reproducible.
         None: the environment's NF_PRODUCT, else "reproducible".
gelu:    the result is GELU, in its tanh form, of the product and its bias, all in fp32 and rounded
         once. gelu_in, an array as out, takes what GELU is applied to. With grad the product is
         instead multiplied by GELU's derivative at gelu_in, of the result's shape and dtype.
Options: threads, as in quantize().
Errors:  TypeError for a wrong type; ValueError for schemes of two families, shapes that do not fit,
         buffers that the layout reads and are missing, columns that went through another Hadamard
         transform (rht) than what they are multiplied with; NotImplementedError if "fast" needs
         oneDNN and it is missing. Nothing is written then.
Source:  TransformerEngine's CurrentScalingQuantizerRef.qgemm, CuBLASRefBlockwiseGemm and
         NVFP4QuantizerRef.qgemm.)";

inline constexpr char kGroupedQgemmSignature[] =
    "def grouped_qgemm(a: collections.abc.Sequence[QuantizedTensor], b: "
    "collections.abc.Sequence[QuantizedTensor], *, bias: collections.abc.Sequence[numpy.ndarray] | "
    "None = None, out: collections.abc.Sequence[numpy.ndarray] | None = None, accumulate: bool = "
    "False, layout: str = 'TN', dtype: object = numpy.float32, mode: str | None = None, **options: "
    "object) -> list[numpy.ndarray]";
inline constexpr char kGroupedQgemmDoc[] =
    R"(Multiplies a[g] and b[g] for every group g, with the bytes that qgemm() gives for each alone.

Shapes:  groups may differ in every dimension and may be empty: ragged rows, one weight for each
         group. bias and out, where given, have one array for each group.
Others:  layout, dtype, accumulate, mode and options are those of qgemm() and hold for every group.
Errors:  as qgemm(), naming the group; ValueError if the counts differ or an output overlaps
         another one or what any group reads. Nothing is written then.)";

inline constexpr char kProductModeDoc[] =
    R"(Returns `name`, or for None the mode of products that NF_PRODUCT names, else "reproducible".

Errors: ValueError if that is not a mode of qgemm().)";

inline constexpr char kExpandProductSignature[] =
    "def expand_product(a: QuantizedTensor, b: QuantizedTensor, layout: str, threads: int = 0) -> "
    "tuple[numpy.ndarray, numpy.ndarray, bool, bool, float] | None";
inline constexpr char kExpandProductDoc[] =
    R"(Expands the operands of qgemm() to bfloat16 without loss.

Returns two matrices, whether the rows of each are the lines that are summed along (else they are
its transpose), and the factor that their product is multiplied by. None: bfloat16 does not hold the
operands, or fp32 not every product of two items or the factor.
Errors:  as qgemm().)";

inline constexpr char kUpdateDelayedScaleSignature[] =
    "def update_delayed_scale(amax_history: numpy.ndarray, scale: numpy.ndarray, fp8_max: float, "
    "margin: float = 0, algo: str = 'max', reduced_amax: numpy.ndarray | None = None) -> "
    "tuple[numpy.ndarray, numpy.ndarray]";
inline constexpr char kUpdateDelayedScaleDoc[] =
    R"(Returns the rolled amax history and the scales of the next step of delayed scaling.

Shapes:  amax_history is float32 (L, n), row 0 the newest amax of each of n tensors; scale and
         reduced_amax are float32 (n,). Both results are new arrays; the inputs stay as they are.
fp8_max: largest value of the codes' format; the scale maps the amax to fp8_max * 2**-margin.
algo:    "max", the largest amax of the history (NaN is passed over), or "most_recent".
reduced_amax: the newest amaxes over all processes; one that is not 0 stands in for row 0.
Special: a newest amax of 0 leaves its column and its scale; an amax that is infinite or NaN keeps
         the scale; an infinite scale, old or new, becomes the largest float.
Errors:  TypeError for another type; ValueError for another shape, an unknown algo, an fp8_max that
         is not positive and finite, a margin that is not finite.
Source:  TransformerEngine's nvte_delayed_scaling_recipe_amax_and_scale_update_after_reduction.)";

inline constexpr char kOpenDoc[] =
    R"(Opens a safetensors file, an index file or a folder of either.

from_:  a convention whose weights are grouped; 'auto': the one that the files tell; None: only
        this library's own.
Errors: ValueError if the path does not exist or is damaged, or for an unknown convention;
        NotImplementedError for a convention that is not read; OSError if it cannot be read.)";

inline constexpr char kConfigFilesSignature[] =
    "def config_files(tensors: collections.abc.Mapping[str, numpy.ndarray | QuantizedTensor], "
    "convention: str, config: str) -> tuple[str, str]";
inline constexpr char kConfigFilesDoc[] =
    R"(Returns the JSON texts beside the tensors that a convention's owner reads.

The first is config.json: `config`, the text of the model's own, with a quantization_config. The
second is hf_quant_config.json, empty if the owner has no such file.
Errors: as save(); ValueError if `config` is damaged or no tensor is quantized.)";

inline constexpr char kSaveSignature[] =
    "def save(path: str | os.PathLike, tensors: collections.abc.Mapping[str, numpy.ndarray | "
    "QuantizedTensor], *, convention: str = 'narrowfloat', beside: "
    "collections.abc.Sequence[tuple[str | os.PathLike, str]] = []) -> None";
inline constexpr char kSaveDoc[] =
    R"(Writes a safetensors file of arrays and quantized tensors, whole or not at all.

beside:  paths and texts of files to write with it: all are on the disk before the first appears.

Types:   any dtype of whole bytes that safetensors names, ml_dtypes' included; a QuantizedTensor is stored as its
         buffers and its spec text, and comes back as one from load(). In another `convention` it is
         the tensors that the convention's owner reads, with the same codes; load(from_=) reads them.
Errors:  TypeError for another dtype or object; ValueError for a tensor without all buffers of its
         plan, an unknown convention, or a path whose folder does not exist; NotImplementedError for
         a tensor that the convention cannot hold; OSError if it cannot be written.)";

inline constexpr char kQuantSpecDoc[] =
    R"(A scheme, directions and options: what a quantized tensor is made by.)";
inline constexpr char kMakeSpecSignature[] =
    "def make_spec(scheme: str, rowwise: bool = True, columnwise: bool = False, **options: object) "
    "-> QuantSpec";
inline constexpr char kPlanSignature[] =
    "def plan(self, shape: object) -> list[tuple[str, str, tuple[int, ...], str]]";
inline constexpr char kPlanDoc[] =
    R"(Returns the buffers of a tensor of `shape`: (role, dtype, shape, role whose memory it is).)";
inline constexpr char kPlanRulesSignature[] =
    "def plan_rules(self, rank: int) -> "
    "list[tuple[str, str, list[tuple[tuple[int, ...], int, int]], str]]";
inline constexpr char kPlanRulesDoc[] =
    R"(Returns the plan of tensors of `rank` dimensions: (role, dtype, sizes, role whose memory it is).

A size is (dimensions, divisor, multiple): the product of those dimensions of the tensor, divided by
divisor (rounded up), then rounded up to a multiple of multiple. For sizes that are symbols.)";
inline constexpr char kTorchTensorsDoc[] =
    R"(The verbs on CPU and CUDA tensors of the module `torch` that is handed in.

Buffers are a tuple with a tensor or None for each of buffer_roles(); they are dense, their rank
may differ from the plan's. `threads`: 0 for NF_NUM_THREADS, else the affinity mask. On CUDA a call
starts work on PyTorch's current stream of the tensors' device and returns; it reads no value.
Tensors with the negative bit are copied to be read.
Errors: TypeError for another dtype, NotImplementedError on another device or without a backend of
it, ValueError for tensors on two devices, for a buffer that is missing or differs from the plan,
and for one with the negative bit that would be written; nothing is written then.)";
inline constexpr char kTorchQuantizeSignature[] =
    "def quantize(self, spec: QuantSpec, x: object, buffers: tuple, noop: object | None = None, "
    "scale: object | None = None, amax: object | None = None, "
    "amax_columnwise: object | None = None, seed: int = 0, offset: int = 0, threads: int = 0) "
    "-> None";
inline constexpr char kTorchQuantizeDoc[] =
    R"(Fills the buffers with codes and scales of `x`. scale and amaxes may be None among them.

scale: float32 of one element; delayed scaling, and the amax buffer is raised to the largest
magnitude. amax, amax_columnwise: stand in for the measured ones. noop: float32 of one element, 1
leaves every byte. An empty `x` leaves every byte too. Rows that are not contiguous are copied.)";
inline constexpr char kTorchDequantizeSignature[] =
    "def dequantize(self, spec: QuantSpec, buffers: tuple, out: object, threads: int = 0) -> None";
inline constexpr char kTorchDeriveSignature[] =
    "def derive_columnwise(self, spec: QuantSpec, shape: object, buffers: tuple, threads: int = 0) "
    "-> None";
inline constexpr char kTorchSwizzleSignature[] =
    "def swizzle(self, spec: QuantSpec, shape: object, buffers: tuple, out: tuple, threads: int = "
    "0) -> None";
inline constexpr char kTorchSwizzleDoc[] =
    R"(Writes the scales of `buffers`, swizzled, to those of `out`.

Other buffers are the same tensors in both, or are copied.)";
inline constexpr char kTorchUpdateDelayedScaleSignature[] =
    "def update_delayed_scale(self, amax_history: object, scale: object, fp8_max: float, "
    "margin: float = 0.0, algo: str = 'max', reduced_amax: object | None = None) -> None";
inline constexpr char kTorchUpdateDelayedScaleDoc[] =
    "Does what narrowfloat.update_delayed_scale does, in place, on dense float32 tensors.";
inline constexpr char kTorchQgemmSignature[] =
    "def qgemm(self, a_spec: QuantSpec, a_shape: object, a: tuple, b_spec: QuantSpec, "
    "b_shape: object, b: tuple, layout: str, out: object, bias: object | None = None, "
    "accumulate: bool = False, threads: int = 0) -> None";
inline constexpr char kTorchQgemmDoc[] =
    R"(Writes the reproducible product of two matrices to `out`, as narrowfloat.qgemm does.

a, b: buffers in the order of buffer_roles(); those that the spec plans and the layout reads must be
there. bias: one item for each column of `out`.)";

}  // namespace narrowfloat::python
