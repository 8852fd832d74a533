"""
The compiled half of narrowfloat; use the names that narrowfloat exports.
"""

from typing import Unpack

from narrowfloat._options import QuantizeOptions, SpecOptions, ThreadOptions
from collections.abc import Iterable, Mapping, Sequence
import os
import pathlib
from typing import NoReturn

import numpy


E2M1_MAX: float = 6.0

E4M3_MAX: float = 448.0

E5M2_MAX: float = 57344.0

def schemes() -> list[str]:
    """Returns the names of all schemes, as quantize() takes them."""

def backends() -> list[str]:
    """
    Returns the kernel tables that this machine can run, best first; NF_FORCE_BACKEND picks one.
    """

class QuantizedTensor:
    """
    A quantized tensor: codes and scales as NumPy arrays, and the spec that made them.

    Made by quantize(), from_buffers() and the quantizer classes, never directly.
    """

    @property
    def scheme(self) -> str:
        """Name of the scheme, one of schemes()."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the tensor that was quantized."""

    @property
    def dtype(self) -> numpy.dtype:
        """Nominal dtype: what dequantize() returns."""

    @property
    def spec(self) -> str:
        """Text form of scheme, directions and options, defaults left out."""

    @property
    def buffers(self) -> dict[str, numpy.ndarray]:
        """
        The arrays by name, absent when not made; live views, not copies.

        The dict is new at every access: an item that is assigned to it does not reach the tensor.

        rowwise_data, rowwise_scale_inv, columnwise_data, columnwise_scale_inv: codes and the scales
        stored beside them (uint8 for codes, E8M0 and E4M3, float32 for fp32 scales). scale, amax_rowwise:
        float32 of one element, for per-tensor FP8. amax_rowwise, amax_columnwise: for NVFP4, of one
        element, or of one for each row and column if row_scaled. Per-tensor FP8 has one scale_inv array
        under both names.
        """

    def dequantize(self, dtype: object = None, out: object = None, **options: Unpack[ThreadOptions]) -> numpy.ndarray:
        """narrowfloat.dequantize(self, dtype, out)."""

    def __array__(self, *args: object, **kwargs: object) -> NoReturn:
        """Refuses NumPy's conversion, which would make an array of objects."""

    def __getstate__(self) -> tuple: ...

    def __setstate__(self, arg: tuple, /) -> None: ...

    def __reduce__(self) -> tuple: ...

    def __repr__(self) -> str: ...

def quantize(x: object, scheme: str, rowwise: bool = True, columnwise: bool = False, out: QuantizedTensor | None = None, **options: Unpack[QuantizeOptions]) -> QuantizedTensor:
    """
    Quantizes `x` by `scheme` to codes and scales, the bytes that TransformerEngine makes.

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
             Float8BlockQuantizer and NVFP4Quantizer.
    """

def quantize_dbias(x: object, scheme: str, rowwise: bool = True, columnwise: bool = False, out: tuple[QuantizedTensor, numpy.ndarray] | None = None, **options: Unpack[QuantizeOptions]) -> tuple[QuantizedTensor, numpy.ndarray]:
    """
    Returns quantize() and the sum of each column of `x`.

    Shapes:  the sums are 1-D of length K, in the type of x, added up in fp32 in an order that depends
             on the shape alone.
    out:     a tuple of a QuantizedTensor and an array, both filled in place and returned.
    Errors:  as quantize().
    """

def fake_quantize(x: object, scheme: str, out: numpy.ndarray | None = None, **options: Unpack[QuantizeOptions]) -> numpy.ndarray:
    """
    Quantizes `x` rowwise, dequantizes it, and returns the values in the type of x.

    Shapes:  that of x. `out` is an array of that shape and type, C-contiguous, writable, not
             overlapping x; it is filled in place and returned.
    Errors:  as quantize().
    """

def dequantize(q: QuantizedTensor, dtype: object = None, out: numpy.ndarray | None = None, **options: Unpack[ThreadOptions]) -> numpy.ndarray:
    """
    Returns the values of `q`: code times scale_inv in fp32, rounded to `dtype`.

    Shapes:  that of the tensor that was quantized. Reads the rowwise buffers if they are there, else
             the columnwise ones.
    dtype:   float32, float16 or bfloat16; q.dtype if None. Overflow becomes infinity.
    out:     an array of that shape and dtype, C-contiguous, writable; filled in place and returned.
    Options: threads, as in quantize().
    Errors:  TypeError for another dtype; ValueError for an out that differs or overlaps q.
    """

def from_buffers(scheme: str, shape: int | Sequence[int], buffers: Mapping[str, numpy.ndarray], dtype: object = numpy.float32, **options: Unpack[SpecOptions]) -> QuantizedTensor:
    """
    Returns a QuantizedTensor over arrays that the caller owns; copies nothing.

    Shapes:  `shape` is that of the tensor that was quantized; `buffers` are as QuantizedTensor.buffers
             has them, padding included. Codes and scale_inv of one direction are enough to dequantize
             and to swizzle.
    Options: those of quantize() that say how the buffers are to be read, such as swizzled.
    Errors:  TypeError for a wrong type; ValueError for an unknown name, a buffer without its partner,
             of a wrong shape, or not C-contiguous.
    """

def swizzle(q: QuantizedTensor) -> QuantizedTensor:
    """
    Copies `q` with its scale_inv bytes in the tiles of 128 x 4 that GEMMs read.

    Keys and shapes stay; bytes move. Errors: ValueError if the scheme has no such layout or q has it
    already. Source: TransformerEngine's nvte_swizzle_scaling_factors.
    """

def unswizzle(q: QuantizedTensor) -> QuantizedTensor:
    """
    Copies `q` with its scale_inv bytes in the compact layout, padding included.

    Errors: ValueError if q is not swizzled.
    Source: TransformerEngine's nvte_unswizzle_scaling_factors.
    """

def requantize(q: QuantizedTensor, scheme: str, rowwise: bool = True, columnwise: bool = False, between: object = numpy.float32, **options: Unpack[QuantizeOptions]) -> QuantizedTensor:
    """
    Rounds the values of `q` to `between`, then quantizes by another scheme, direction or layout.

    Errors:  as quantize() and dequantize().
    Source:  TransformerEngine's chain of dequantize and quantize, whose grouped form goes through
             bfloat16.
    """

def hadamard_transform(x: object, sign_mask: int = 55272, out: numpy.ndarray | None = None, **options: Unpack[ThreadOptions]) -> numpy.ndarray:
    """
    Returns the random Hadamard transform of each group of 16 rows, which rht=True applies.

    With the signs s of sign_mask (bit k set: s_k is -1) and Sylvester's matrix H, row 16 g + j becomes
    0.25 * sum over k of s_k H_kj times row 16 g + k; the exact sum is rounded once to the type of x.
    Shapes:  that of x, whose flattened rows are a multiple of 16; `out` as in dequantize().
    Options: threads, as in quantize().
    Errors:  as quantize(); ValueError for a sign_mask of more than 16 bits.
    Source:  TransformerEngine's common/hadamard_transform.
    """

def block_scales_to_mxfp8(q: QuantizedTensor, columnwise: bool = False) -> numpy.ndarray:
    """
    Returns swizzled MXFP8 scales for codes of block-scaled FP8 whose scales are powers of two.

    Shapes:  uint8, as MXFP8 has rowwise_scale_inv for the codes of that direction as they are stored.
    Errors:  ValueError if q is of another family or lacks the direction, or a scale is not a power of
             two. Source: TransformerEngine's nvte_swizzle_block_scaling_to_mxfp8_scaling_factors.
    """

def empty(shape: int | Sequence[int], scheme: str, rowwise: bool = True, columnwise: bool = False, dtype: object = numpy.float32, **options: Unpack[SpecOptions]) -> QuantizedTensor:
    """
    Returns a QuantizedTensor of zeros, to be filled by quantize(..., out=).
    """

def grouped_quantize(x: object, group_sizes: Sequence[int], scheme: str, rowwise: bool = True, columnwise: bool = False, **options: Unpack[QuantizeOptions]) -> list[QuantizedTensor]:
    """
    Quantizes groups of rows that lie one after another in `x`, each as if it were alone.

    Shapes:  group_sizes says how many rows of x, flattened to M x K, each group has, 0 included; they
             add up to M. The results are of shape (size, K).
    Options: as quantize(); group g counts its random numbers from 0 and adds g to the offset.
    Errors:  as quantize(); ValueError if the sizes do not add up.
    """

def plan_grouped(shapes: Iterable[int | Sequence[int]], scheme: str, rowwise: bool = True, columnwise: bool = False, **options: Unpack[SpecOptions]) -> dict[str, dict[str, object]]:
    """
    Returns the places of groups of these shapes in packed buffers.

    Shapes:  those of the groups, which may differ in every dimension; empty ones are legal. For each
             buffer: "dtype", "size" of the flat packed array, and "groups", for each group its offset,
             in items, and the shape of its part.
    Options: as quantize() takes them of the scheme.
    Errors:  as quantize(). Nothing is allocated.
    Source:  TransformerEngine's GroupedTensor.
    """

def grouped_quantize_packed(tensors: Iterable[object], scheme: str, rowwise: bool = True, columnwise: bool = False, **options: Unpack[QuantizeOptions]) -> tuple[list[QuantizedTensor], dict[str, numpy.ndarray]]:
    """
    Quantizes each of `tensors` as if it were alone, into packed buffers.

    Shapes:  the arrays are flat and as plan_grouped() says; items outside all groups are zero. The
             QuantizedTensors are views of them.
    Options: as quantize(); group g counts its random numbers from 0 and adds g to the offset.
    Errors:  as quantize().
    """

def update_delayed_scale(amax_history: numpy.ndarray, scale: numpy.ndarray, fp8_max: float, margin: float = 0, algo: str = 'max', reduced_amax: numpy.ndarray | None = None) -> tuple[numpy.ndarray, numpy.ndarray]:
    """
    Returns the rolled amax history and the scales of the next step of delayed scaling.

    Shapes:  amax_history is float32 (L, n), row 0 the newest amax of each of n tensors; scale and
             reduced_amax are float32 (n,). Both results are new arrays; the inputs stay as they are.
    fp8_max: largest value of the codes' format; the scale maps the amax to fp8_max * 2**-margin.
    algo:    "max", the largest amax of the history (NaN is passed over), or "most_recent".
    reduced_amax: the newest amaxes over all processes; one that is not 0 stands in for row 0.
    Special: a newest amax of 0 leaves its column and its scale; an amax that is infinite or NaN keeps
             the scale; an infinite scale, old or new, becomes the largest float.
    Errors:  TypeError for another type; ValueError for another shape, an unknown algo, an fp8_max that
             is not positive and finite, a margin that is not finite.
    Source:  TransformerEngine's nvte_delayed_scaling_recipe_amax_and_scale_update_after_reduction.
    """

def qgemm(a: QuantizedTensor, b: QuantizedTensor, *, bias: numpy.ndarray | None = None, out: numpy.ndarray | None = None, accumulate: bool = False, layout: str = 'TN', dtype: object = numpy.float32, mode: str | None = None, gelu: bool = False, gelu_in: numpy.ndarray | None = None, grad: bool = False, **options: Unpack[ThreadOptions]) -> numpy.ndarray:
    """
    Multiplies two quantized matrices as TransformerEngine's reference GEMMs do.

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
             NVFP4QuantizerRef.qgemm.
    """

def grouped_qgemm(a: Sequence[QuantizedTensor], b: Sequence[QuantizedTensor], *, bias: Sequence[numpy.ndarray] | None = None, out: Sequence[numpy.ndarray] | None = None, accumulate: bool = False, layout: str = 'TN', dtype: object = numpy.float32, mode: str | None = None, **options: Unpack[ThreadOptions]) -> list[numpy.ndarray]:
    """
    Multiplies a[g] and b[g] for every group g, with the bytes that qgemm() gives for each alone.

    Shapes:  groups may differ in every dimension and may be empty: ragged rows, one weight for each
             group. bias and out, where given, have one array for each group.
    Others:  layout, dtype, accumulate, mode and options are those of qgemm() and hold for every group.
    Errors:  as qgemm(), naming the group; ValueError if the counts differ or an output overlaps
             another one or what any group reads. Nothing is written then.
    """

def product_mode(name: str | None = None) -> str:
    """
    Returns `name`, or for None the mode of products that NF_PRODUCT names, else "reproducible".

    Errors: ValueError if that is not a mode of qgemm().
    """

def has_bfloat16_products() -> bool:
    """
    Returns whether this machine has instructions for dot products of bfloat16.
    """

def expand_product(a: QuantizedTensor, b: QuantizedTensor, layout: str, threads: int = 0) -> tuple[numpy.ndarray, numpy.ndarray, bool, bool, float] | None:
    """
    Expands the operands of qgemm() to bfloat16 without loss.

    Returns two matrices, whether the rows of each are the lines that are summed along (else they are
    its transpose), and the factor that their product is multiplied by. None: bfloat16 does not hold the
    operands, or fp32 not every product of two items or the factor.
    Errors:  as qgemm().
    """

def per_tensor_scheme(fp8_dtype: object) -> str:
    """
    Returns the name of the per-tensor scheme whose elements are of fp8_dtype.
    """

def mx_scheme(fp8_dtype: object, with_2d_quantization: bool) -> str:
    """Returns the name of the MXFP8 scheme whose elements are of fp8_dtype."""

def fp8_block_scheme(fp8_dtype: object, tiles: bool) -> str:
    """
    Returns the name of the block-scaled FP8 scheme whose elements are of fp8_dtype.
    """

def nvfp4_scheme(fp4_dtype: object, tiles: bool) -> str:
    """Returns the name of the NVFP4 scheme whose elements are of fp4_dtype."""

def check_whole_blocks(quantizer: str, scheme: str, shape: object) -> None:
    """
    Raises ValueError unless rows and columns of shape are multiples of the scheme's block.
    """

class Checkpoint:
    """A checkpoint on disk, its headers read and checked."""

    def __init__(self, path: str | os.PathLike, from_: str | None = None) -> None:
        """
        Opens a safetensors file, an index file or a folder of either.

        from_:  a convention whose weights are grouped; 'auto': the one that the files tell; None: only
                this library's own.
        Errors: ValueError if the path does not exist or is damaged, or for an unknown convention;
                NotImplementedError for a convention that is not read; OSError if it cannot be read.
        """

    def names(self) -> list[str]:
        """Returns the names of all tensors, sorted."""

    def read(self, name: str, dtype: object = None) -> numpy.ndarray | QuantizedTensor:
        """
        Reads and returns the tensor of that name; a weight of another convention as values of `dtype` if that is given. Errors: KeyError, NotImplementedError, OSError.
        """

def check_load_dtype(dtype: object) -> None:
    """
    Checks the type of the values that are read. Errors: TypeError for another than a wide float type.
    """

def find_unfinished_mark(path: str | os.PathLike) -> pathlib.Path | None:
    """
    Returns the path of the mark that a folder has while a job fills it, or None.
    """

def check_convention(convention: str) -> None:
    """
    Checks a convention to write. Errors: ValueError if it is unknown, NotImplementedError if it is only read.
    """

def write_in_convention(name: str, tensor: QuantizedTensor, convention: str) -> list[tuple[str, str, tuple[int, ...], numpy.ndarray]]:
    """
    Returns the tensors that a weight is in a convention: name, dtype, shape and bytes.
    """

def config_files(tensors: Mapping[str, numpy.ndarray | QuantizedTensor], convention: str, config: str) -> tuple[str, str]:
    """
    Returns the JSON texts beside the tensors that a convention's owner reads.

    The first is config.json: `config`, the text of the model's own, with a quantization_config. The
    second is hf_quant_config.json, empty if the owner has no such file.
    Errors: as save(); ValueError if `config` is damaged or no tensor is quantized.
    """

def save(path: str | os.PathLike, tensors: Mapping[str, numpy.ndarray | QuantizedTensor], *, convention: str = 'narrowfloat', beside: Sequence[tuple[str | os.PathLike, str]] = []) -> None:
    """
    Writes a safetensors file of arrays and quantized tensors, whole or not at all.

    beside:  paths and texts of files to write with it: all are on the disk before the first appears.

    Types:   any dtype of whole bytes that safetensors names, ml_dtypes' included; a QuantizedTensor is stored as its
             buffers and its spec text, and comes back as one from load(). In another `convention` it is
             the tensors that the convention's owner reads, with the same codes; load(from_=) reads them.
    Errors:  TypeError for another dtype or object; ValueError for a tensor without all buffers of its
             plan, an unknown convention, or a path whose folder does not exist; NotImplementedError for
             a tensor that the convention cannot hold; OSError if it cannot be written.
    """

JAXX_Scaling_Mode: dict = ...

JAXX_Quantize_Layout: dict = ...

ELEMENT_DTYPES: dict = ...

HADAMARD_SIZE: int = 16

HADAMARD_SIGN_MASK: int = 55272

def dtypes_of_mode(scaling_mode: int) -> list[str]:
    """
    Returns the names of the dtypes of codes that a scaling mode makes; none for NO_SCALING.
    """

def scheme_of_mode(scaling_mode: int, dtype: str) -> str:
    """
    Returns the name of the scheme of a scaling mode whose codes are of that dtype.
    """

def block_of(scheme: str) -> tuple[int, int]:
    """
    Returns rows and columns of a scheme's block; zeros where it is the whole tensor.
    """

def scale_dtype_of(scheme: str) -> str:
    """Returns the name of the dtype of a scheme's stored scales."""

def are_of_one_family(first: str, second: str) -> bool:
    """Returns whether tensors of two schemes can be multiplied as codes."""

def is_columnwise_transposed(scheme: str) -> bool:
    """Returns whether columnwise codes lie transposed."""

def scale_shapes(scheme: str, rows: int, cols: int, columnwise: bool) -> tuple[tuple[int, int], tuple[int, int]]:
    """
    Returns the shapes of the scales of a rows x cols matrix: with content, and stored.
    """

def get_dbias_quantize_workspace_sizes(batch_size: int, hidden_size: int, in_dtype: int, out_dtype: int, scale_dtype: int, scaling_mode: int, q_layout: int) -> tuple:
    """
    Returns ((shape, dtype),) of the workspace that te_dbias_quantize_ffi is best given.
    """

def buffer_roles() -> list[str]:
    """Returns the roles of buffers, in the order that calls take them."""

class QuantSpec:
    """A scheme, directions and options: what a quantized tensor is made by."""

    @property
    def text(self) -> str:
        """Text form, defaults left out."""

    @property
    def scheme(self) -> str:
        """Name of the scheme."""

    @property
    def block_length(self) -> int:
        """Elements along a line that share a scale; 0 if the whole tensor does."""

    @property
    def derives_columnwise(self) -> bool:
        """Whether columnwise codes can be made of the rowwise ones."""

    @property
    def columnwise_transposed(self) -> bool:
        """Whether columnwise codes lie last dimension first."""

    @property
    def codes_per_byte(self) -> int:
        """Codes that share a byte."""

    def plan(self, shape: object) -> list[tuple[str, str, tuple[int, ...], str]]:
        """
        Returns the buffers of a tensor of `shape`: (role, dtype, shape, role whose memory it is).
        """

    def plan_rules(self, rank: int) -> list[tuple[str, str, list[tuple[tuple[int, ...], int, int]], str]]:
        """
        Returns the plan of tensors of `rank` dimensions: (role, dtype, sizes, role whose memory it is).

        A size is (dimensions, divisor, multiple): the product of those dimensions of the tensor, divided by
        divisor (rounded up), then rounded up to a multiple of multiple. For sizes that are symbols.
        """

    def scale_content_shape(self, shape: object, columnwise: bool) -> tuple[int, int]:
        """
        Returns the shape of the stored scales of a direction without their padding.
        """

    def has_whole_blocks(self, shape: object) -> bool:
        """Returns whether rows and columns of shape are multiples of the block."""

def make_spec(scheme: str, rowwise: bool = True, columnwise: bool = False, **options: Unpack[SpecOptions]) -> QuantSpec:
    """
    Returns the QuantSpec of a scheme, directions and the options of quantize().
    """

def parse_spec(text: str) -> QuantSpec:
    """Returns the QuantSpec of a text form."""

class TorchTensors:
    """
    The verbs on CPU and CUDA tensors of the module `torch` that is handed in.

    Buffers are a tuple with a tensor or None for each of buffer_roles(); they are dense, their rank
    may differ from the plan's. `threads`: 0 for NF_NUM_THREADS, else the affinity mask. On CUDA a call
    starts work on PyTorch's current stream of the tensors' device and returns; it reads no value.
    Tensors with the negative bit are copied to be read.
    Errors: TypeError for another dtype, NotImplementedError on another device or without a backend of
    it, ValueError for tensors on two devices, for a buffer that is missing or differs from the plan,
    and for one with the negative bit that would be written; nothing is written then.
    """

    def __init__(self, torch: object) -> None: ...

    def quantize(self, spec: QuantSpec, x: object, buffers: tuple, noop: object | None = None, scale: object | None = None, amax: object | None = None, amax_columnwise: object | None = None, seed: int = 0, offset: int = 0, threads: int = 0) -> None:
        """
        Fills the buffers with codes and scales of `x`. scale and amaxes may be None among them.

        scale: float32 of one element; delayed scaling, and the amax buffer is raised to the largest
        magnitude. amax, amax_columnwise: stand in for the measured ones. noop: float32 of one element, 1
        leaves every byte. An empty `x` leaves every byte too. Rows that are not contiguous are copied.
        """

    def dequantize(self, spec: QuantSpec, buffers: tuple, out: object, threads: int = 0) -> None:
        """
        Writes the values of the buffers to out, whose shape is that of the tensor.
        """

    def derive_columnwise(self, spec: QuantSpec, shape: object, buffers: tuple, threads: int = 0) -> None:
        """Fills the columnwise buffers from the rowwise ones."""

    def swizzle(self, spec: QuantSpec, shape: object, buffers: tuple, out: tuple, threads: int = 0) -> None:
        """
        Writes the scales of `buffers`, swizzled, to those of `out`.

        Other buffers are the same tensors in both, or are copied.
        """

    def qgemm(self, a_spec: QuantSpec, a_shape: object, a: tuple, b_spec: QuantSpec, b_shape: object, b: tuple, layout: str, out: object, bias: object | None = None, accumulate: bool = False, threads: int = 0) -> None:
        """
        Writes the reproducible product of two matrices to `out`, as narrowfloat.qgemm does.

        a, b: buffers in the order of buffer_roles(); those that the spec plans and the layout reads must be
        there. bias: one item for each column of `out`.
        """

    def amax(self, x: object, out: object, threads: int = 0) -> None:
        """Writes the largest magnitude of x to out, float32 of one element."""

    def column_sums(self, x: object, out: object, threads: int = 0) -> None:
        """
        Writes the sums of the columns of x, flattened, to out, float32 of one element each.
        """

    def update_delayed_scale(self, amax_history: object, scale: object, fp8_max: float, margin: float = 0.0, algo: str = 'max', reduced_amax: object | None = None) -> None:
        """
        Does what narrowfloat.update_delayed_scale does, in place, on dense float32 tensors.
        """
