// Products with packed weights: y[m, n] = sum over k of x[m, k] * w[n, k].
//
// Weights are packed in tiles of TILE outputs, [N / TILE, K, TILE], so that a product reads them once, from beginning
// to end, for up to MOST_ROWS_AT_ONCE rows; up to five take the time of reading memory. More rows are multiplied in
// blocks of ROWS_PER_BLOCK. Each output is summed over k in one order, whatever the number of rows, so that a row's
// result does not depend on the rows beside it.

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/util/BFloat16.h>
#include <torch/csrc/inductor/aoti_torch/utils.h>
#include <torch/library.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#if defined(__AVX512F__) || defined(__FMA__)
#include <immintrin.h>
#endif

namespace {

#if defined(__AVX512F__)
constexpr int LANES = 16, VECTORS = 4;
#else
constexpr int LANES = 8, VECTORS = 2;
#endif
constexpr int TILE = LANES * VECTORS;
constexpr int ROWS_PER_BLOCK = 6;  // so that all sums stay in registers
constexpr int MOST_ROWS_AT_ONCE = 8;  // spilling a few sums costs less than a second pass over a tile
constexpr int64_t AHEAD = 1024, LINE = 64;  // bytes: weights are fetched so far ahead of their use, line by line
constexpr int64_t LEAST_WORK = 16384;  // weights per thread; starting a thread takes as long as reading these

typedef float Floats __attribute__((vector_size(LANES * 4), aligned(4)));
typedef uint32_t Words __attribute__((vector_size(LANES * 4), aligned(4)));
typedef int8_t Bytes __attribute__((vector_size(LANES), aligned(1)));

template <typename Vector>
inline Vector loaded(const void* from) {
  Vector vector;
  std::memcpy(&vector, from, sizeof(Vector));
  return vector;
}

inline Floats as_floats(Words words) {
  Floats floats;
  std::memcpy(&floats, &words, sizeof(floats));
  return floats;
}

// Compilers tuned for some processors fuse only a part of the chains that they could; a result may not depend on that. Elsewhere they decide.
inline Floats fused(Floats x, Floats weights, Floats sum) {
#if defined(__AVX512F__)
  return (Floats)_mm512_fmadd_ps((__m512)x, (__m512)weights, (__m512)sum);
#elif defined(__FMA__)
  return (Floats)_mm256_fmadd_ps((__m256)x, (__m256)weights, (__m256)sum);
#else
  return sum + x * weights;
#endif
}

// All lanes equal. A compiler drops the zeros that are subtracted; added ones it must keep, since -0 + 0 is 0.
inline Floats repeated(float value) { return value - Floats{}; }

inline float as_float(float value) { return value; }
inline float as_float(uint16_t value) { return c10::detail::f32_from_bits(value); }

// One step of a sum: DEPTH consecutive k for LANES outputs.

struct Float32 {  // float32 weights
  using Input = float;
  using Weight = float;
  static constexpr int DEPTH = 1;
  static Floats weights(const Weight* from) { return loaded<Floats>(from); }
  static Floats add(Floats sum, const Input* x, Floats weights) { return fused(repeated(*x), weights, sum); }
};

template <typename Number>
struct Int8 {  // int8 weights; inputs and outputs are float32 or bfloat16
  using Input = Number;
  using Weight = int8_t;
  static constexpr int DEPTH = 1;
  static Floats weights(const Weight* from) {
#if defined(__AVX512F__)
    return (Floats)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
#else
    return __builtin_convertvector(loaded<Bytes>(from), Floats);
#endif
  }
  static Floats add(Floats sum, const Input* x, Floats weights) { return fused(repeated(as_float(*x)), weights, sum); }
};

struct BFloat16 {  // bfloat16 weights in pairs of consecutive k, summed in float32
  using Input = uint16_t;
  using Weight = uint16_t;
  static constexpr int DEPTH = 2;
  static Words weights(const Weight* from) { return loaded<Words>(from); }
  static Floats add(Floats sum, const Input* x, Words weights) {
    const Words pair = Words{} + loaded<uint32_t>(x);
#if defined(__AVX512BF16__)
    return (Floats)_mm512_dpbf16_ps((__m512)sum, (__m512bh)pair, (__m512bh)weights);
#else
    sum = fused(as_floats(pair << 16), as_floats(weights << 16), sum);
    return fused(as_floats(pair & 0xffff0000u), as_floats(weights & 0xffff0000u), sum);
#endif
  }
};

inline void store(float* to, float value) { *to = value; }
inline void store(uint16_t* to, float value) { *to = c10::BFloat16(value).x; }

template <typename Kind>
struct Product {
  using Input = typename Kind::Input;
  using Weight = typename Kind::Weight;
  const Input* x;        // [M, K]
  const Weight* packed;  // [tiles, K / DEPTH, TILE, DEPTH]
  Input* y;              // [M, N]
  int64_t num_rows, depth, num_outputs;

  // Outputs [first, first + NV * LANES) of rows [row, row + MB), all in one tile.
  template <int MB, int NV>
  void block(int64_t row, int64_t first) const {
    Floats sums[MB][NV] = {};
    const Weight* w = packed + first / TILE * TILE * depth + first % TILE * Kind::DEPTH;
    const Input* inputs = x + row * depth;
    for (int64_t k = 0; k < depth; k += Kind::DEPTH, w += TILE * Kind::DEPTH) {
      constexpr int64_t STEP = NV * LANES * Kind::DEPTH * sizeof(Weight);
#pragma GCC unroll 8
      for (int64_t byte = 0; byte < STEP; byte += LINE) __builtin_prefetch(reinterpret_cast<const char*>(w) + AHEAD + byte);
      decltype(Kind::weights(w)) weights[NV];
#pragma GCC unroll 8
      for (int v = 0; v < NV; ++v) weights[v] = Kind::weights(w + v * LANES * Kind::DEPTH);
#pragma GCC unroll 8
      for (int m = 0; m < MB; ++m)
#pragma GCC unroll 8
        for (int v = 0; v < NV; ++v) sums[m][v] = Kind::add(sums[m][v], inputs + m * depth + k, weights[v]);
    }
    const int64_t count = std::min<int64_t>(NV * LANES, num_outputs - first);
    for (int m = 0; m < MB; ++m) {
      float values[NV * LANES];
      std::memcpy(values, sums[m], sizeof(values));
      Input* outputs = y + (row + m) * num_outputs + first;
      for (int64_t n = 0; n < count; ++n) store(outputs + n, values[n]);
    }
  }

  template <int NV>
  void rows(int64_t first) const {
    // One block if the rows fit, otherwise blocks whose sums stay in registers; the tile stays in the cache for all.
    const int64_t most = num_rows <= MOST_ROWS_AT_ONCE ? num_rows : ROWS_PER_BLOCK;
    for (int64_t row = 0; row < num_rows;) {
      switch (std::min(num_rows - row, most)) {
        case 1: block<1, NV>(row, first); row += 1; break;
        case 2: block<2, NV>(row, first); row += 2; break;
        case 3: block<3, NV>(row, first); row += 3; break;
        case 4: block<4, NV>(row, first); row += 4; break;
        case 5: block<5, NV>(row, first); row += 5; break;
        case 6: block<6, NV>(row, first); row += 6; break;
        case 7: block<7, NV>(row, first); row += 7; break;
        default: block<8, NV>(row, first); row += 8;
      }
    }
  }

  // Groups of LANES outputs from begin to end.
  void groups(int64_t begin, int64_t end) const {
    for (int64_t group = begin; group < end;) {
      const int64_t in_tile = std::min<int64_t>(VECTORS - group % VECTORS, end - group);
      switch (in_tile) {
        case 1: rows<1>(group * LANES); break;
        case 2: rows<2>(group * LANES); break;
#if defined(__AVX512F__)
        case 3: rows<3>(group * LANES); break;
        default: rows<4>(group * LANES);
#endif
      }
      group += in_tile;
    }
  }

  void run() const {
    const int64_t num_groups = (num_outputs + LANES - 1) / LANES;
    const int64_t grain = std::max<int64_t>(1, LEAST_WORK / (depth * LANES));
    at::parallel_for(0, num_groups, grain, [&](int64_t begin, int64_t end) { groups(begin, end); });
  }
};

template <typename Kind>
void run(const at::Tensor& x, const at::Tensor& packed, at::Tensor& y) {
  using Input = typename Kind::Input;
  using Weight = typename Kind::Weight;
  const int64_t depth = x.size(-1), num_outputs = y.size(-1);
  const Product<Kind> product{
      static_cast<const Input*>(x.const_data_ptr()), static_cast<const Weight*>(packed.const_data_ptr()),
      static_cast<Input*>(y.mutable_data_ptr()), x.numel() / depth, depth, num_outputs};
  product.run();
}

at::Tensor packed_linear(const at::Tensor& x, const at::Tensor& packed, int64_t num_outputs) {
  TORCH_CHECK(
      (x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16) &&
          (packed.scalar_type() == x.scalar_type() || packed.scalar_type() == at::kChar),
      "packed_linear has no kernel for inputs of ", x.scalar_type(), " and weights of ", packed.scalar_type());
  TORCH_CHECK(
      x.dim() > 0 && x.size(-1) > 0 && packed.numel() == (num_outputs + TILE - 1) / TILE * TILE * x.size(-1) &&
          (packed.scalar_type() != at::kBFloat16 || x.size(-1) % 2 == 0),
      "packed_linear: the weights have another number of inputs or outputs");
  auto sizes = x.sizes().vec();
  sizes.back() = num_outputs;
  const at::Tensor inputs = x.contiguous();
  at::Tensor y = at::empty(sizes, inputs.options());
  const bool is_bfloat16 = inputs.scalar_type() == at::kBFloat16;
  if (packed.scalar_type() == at::kChar) {
    is_bfloat16 ? run<Int8<uint16_t>>(inputs, packed, y) : run<Int8<float>>(inputs, packed, y);
  } else if (is_bfloat16) {
    run<BFloat16>(inputs, packed, y);
  } else {
    run<Float32>(inputs, packed, y);
  }
  return y;
}

int64_t tile() { return TILE; }

}  // namespace

// Keep in step with DECLARATIONS in cpp_operators.py.
extern "C" __attribute__((visibility("default"))) AOTITorchError aoti_torch_cpu_packed_linear(
    AtenTensorHandle x, AtenTensorHandle packed, int64_t num_outputs, AtenTensorHandle* result) {
  using namespace torch::aot_inductor;
  AOTI_TORCH_CONVERT_EXCEPTION_TO_ERROR_CODE({
    *result = new_tensor_handle(packed_linear(
        *tensor_handle_to_tensor_pointer(x), *tensor_handle_to_tensor_pointer(packed), num_outputs));
  })
}

TORCH_LIBRARY_FRAGMENT(outrider, library) {
  library.def("packed_linear(Tensor x, Tensor packed, int num_outputs) -> Tensor");
  library.def("tile() -> int", tile);
}

TORCH_LIBRARY_IMPL(outrider, CPU, library) { library.impl("packed_linear", packed_linear); }

// There is no derivative; a fallthrough is quicker than the default, which would refuse to compute one.
TORCH_LIBRARY_IMPL(outrider, Autograd, library) {
  library.impl("packed_linear", torch::CppFunction::makeFallthrough());
}
