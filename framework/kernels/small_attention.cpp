// Attention of few tokens: every output is a mean of values, weighted by the softmax of its query's scores.
//
// Query heads that share keys are rows of one problem. Keys are transposed in tiles, which then serve all rows. Sums run
// over slots and sizes in one order, whatever the number of rows or slots, so that a row's result does not depend on the
// rows beside it, nor on slots that its mask excludes.

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/cpu/vec/functional.h>
#include <ATen/cpu/vec/vec.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/inductor/aoti_torch/utils.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

namespace {

constexpr int ROWS_PER_BLOCK = 6;
#if defined(CPU_CAPABILITY_AVX512)
constexpr int MOST_SUMS = 24;  // vectors of sums that stay in registers
#else
constexpr int MOST_SUMS = 12;
#endif
constexpr int MOST_VECTORS = 8;
constexpr int64_t LEAST_WORK = 32768;  // multiplications per thread; starting a thread takes as long

// Number: type of queries, keys and values. Sum: type of all arithmetic.
template <typename Number, typename Sum>
struct Attention {
  using Vector = at::vec::Vectorized<Sum>;
  static constexpr int LANES = Vector::size();
  static constexpr int TILE = LANES * MOST_VECTORS;

  template <typename Element>
  struct Strided {
    Element* data;
    int64_t batch, head, token;
  };

  Strided<const Number> query, key, value;
  Strided<Number> output;
  Strided<const Sum> mask;  // data null: none
  const Sum* sinks;  // [heads], or null
  int64_t num_tokens, num_shared, num_slots, size, value_size;  // num_shared: query heads for each key-value head
  Sum scale, softcap;                                           // softcap 0: none
  static constexpr Sum EXCLUDED = std::numeric_limits<Sum>::lowest() / 2;  // masks add this or less, those in float16 more

  static Vector load(const Number* from) {
    if constexpr (std::is_same_v<Number, Sum>) {
      return Vector::loadu(from);
    } else {
      Vector vector;
      at::vec::load_to_float(from, vector);
      return vector;
    }
  }

  int64_t padded_slots() const { return (num_slots + TILE - 1) / TILE * TILE; }

  // sums[r][v] += sum over i < depth of x[r, i] * w[i, v]
  template <int R, int V, typename Weight>
  static void add_products(
      Vector (&sums)[R][V], const Sum* x, int64_t x_stride, const Weight* w, int64_t w_stride, int64_t depth) {
    for (int64_t i = 0; i < depth; ++i, w += w_stride) {
      Vector weights[V];
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) {
        if constexpr (std::is_same_v<Weight, Sum>) {
          weights[v] = Vector::loadu(w + v * LANES);
        } else {
          weights[v] = load(w + v * LANES);
        }
      }
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const Vector factor(x[r * x_stride + i]);
#pragma GCC unroll 8
        for (int v = 0; v < V; ++v) sums[r][v] = at::vec::fmadd(factor, weights[v], sums[r][v]);
      }
    }
  }

  // Vectors beside each other for R rows: few rows need several, since a sum waits for its last addition.
  template <int R>
  static constexpr int vectors() {
    int vectors = MOST_VECTORS;
    while (R * vectors > MOST_SUMS) vectors /= 2;
    return vectors;
  }

  // Calls each(R, first) for blocks of R <= ROWS_PER_BLOCK rows of about equal size.
  template <typename Each>
  static void in_blocks(int64_t num_rows, const Each& each) {
    const int64_t num_blocks = (num_rows + ROWS_PER_BLOCK - 1) / ROWS_PER_BLOCK;
    for (int64_t block = 0, row = 0; block < num_blocks; ++block) {
      switch ((num_rows - row + num_blocks - block - 1) / (num_blocks - block)) {
        case 1: each(std::integral_constant<int, 1>{}, row); row += 1; break;
        case 2: each(std::integral_constant<int, 2>{}, row); row += 2; break;
        case 3: each(std::integral_constant<int, 3>{}, row); row += 3; break;
        case 4: each(std::integral_constant<int, 4>{}, row); row += 4; break;
        case 5: each(std::integral_constant<int, 5>{}, row); row += 5; break;
        default: each(std::integral_constant<int, 6>{}, row); row += 6;
      }
    }
  }

  // tile[d, s] = keys[s, d] for slots s < count; rows of the tile are TILE long, and meaningless beyond count.
  void transpose(const Number* keys, int64_t count, Sum* tile) const {
    const int64_t whole = count / LANES * LANES, even = size / LANES * LANES;
    Sum rows[LANES * LANES];
    for (int64_t slot = 0; slot < whole; slot += LANES) {
      for (int64_t d = 0; d < even; d += LANES) {
        const Number* from = keys + slot * key.token + d;
        if constexpr (std::is_same_v<Number, Sum>) {
          at::vec::transpose_mxn<Sum, LANES, LANES>(from, key.token, tile + d * TILE + slot, TILE);
        } else {
          for (int s = 0; s < LANES; ++s) load(from + s * key.token).store(rows + s * LANES);
          at::vec::transpose_mxn<Sum, LANES, LANES>(rows, LANES, tile + d * TILE + slot, TILE);
        }
      }
      for (int64_t d = even; d < size; ++d)
        for (int64_t s = slot; s < slot + LANES; ++s) tile[d * TILE + s] = static_cast<Sum>(keys[s * key.token + d]);
    }
    for (int64_t s = whole; s < count; ++s)
      for (int64_t d = 0; d < size; ++d) tile[d * TILE + s] = static_cast<Sum>(keys[s * key.token + d]);
  }

  // Rows [first, first + num_rows) of the heads that share one key-value head.
  struct Rows {
    int64_t batch, shared_head, first, num_rows;
  };

  int64_t head_of(const Rows& rows, int64_t row) const {
    return rows.shared_head * num_shared + (rows.first + row) / num_tokens;
  }

  int64_t token_of(const Rows& rows, int64_t row) const { return (rows.first + row) % num_tokens; }

  void scores(const Rows& rows, const Sum* queries, Sum* tile, Sum* scores) const {
    const Number* keys = key.data + rows.batch * key.batch + rows.shared_head * key.head;
    const int64_t width = padded_slots();
    for (int64_t slot = 0; slot < num_slots; slot += TILE) {
      const int64_t count = std::min<int64_t>(TILE, num_slots - slot);
      transpose(keys + slot * key.token, count, tile);
      in_blocks(rows.num_rows, [&](auto block, int64_t row) {
        constexpr int R = decltype(block)::value, V = vectors<R>();
        for (int64_t column = 0; column < count; column += V * LANES) {
          Vector sums[R][V];
          for (int r = 0; r < R; ++r)
            for (int v = 0; v < V; ++v) sums[r][v] = Vector(0);
          add_products<R, V>(sums, queries + row * size, size, tile + column, TILE, size);
          for (int r = 0; r < R; ++r)
            for (int v = 0; v < V; ++v) sums[r][v].store(scores + (row + r) * width + slot + column + v * LANES);
        }
      });
    }
  }

  // Replaces the scores [padded_slots] of a row by weights that are not normalised; returns their sum.
  Sum softmax(Sum* row, const Sum* added, const Sum* sink) const {
    const Vector factor(scale);
    Vector highest(-std::numeric_limits<Sum>::infinity());
    for (int64_t slot = 0; slot < num_slots; slot += LANES) {
      const int64_t count = std::min<int64_t>(LANES, num_slots - slot);
      Vector score = Vector::loadu(row + slot) * factor;
      if (softcap != 0) score = (score / Vector(softcap)).tanh() * Vector(softcap);
      if (added != nullptr) score = score + Vector::loadu(added + slot, count);
      score = Vector::set(Vector(-std::numeric_limits<Sum>::infinity()), score, count);
      score.store(row + slot);
      highest = at::vec::maximum(highest, score);
    }
    const auto larger = [](const Vector& a, const Vector& b) { return at::vec::maximum(a, b); };
    Sum most = at::vec::vec_reduce_all<Sum>(larger, highest);
    if (sink != nullptr) most = std::max(most, *sink);
    Vector sums(0);
    for (int64_t slot = 0; slot < num_slots; slot += LANES) {
      const Vector weight = (Vector::loadu(row + slot) - Vector(most)).exp();
      weight.store(row + slot);
      sums = sums + weight;
    }
    const Sum total = at::vec::vec_reduce_all<Sum>([](const Vector& a, const Vector& b) { return a + b; }, sums);
    return sink == nullptr ? total : total + std::exp(*sink - most);
  }

  // Columns from `column` on of the means of a block of rows, as many as fit whole vectors; returns the next column.
  template <int R, int V>
  int64_t whole_means(const Rows& rows, int64_t row, int64_t column, const Sum* weights, const Sum* totals) const {
    for (; column + V * LANES <= value_size; column += V * LANES) means<R, V>(rows, row, column, weights, totals);
    if constexpr (V > 1) column = whole_means<R, V / 2>(rows, row, column, weights, totals);
    return column;
  }

  // Columns [column, column + V * LANES) of the means of a block of rows.
  template <int R, int V>
  void means(const Rows& rows, int64_t row, int64_t column, const Sum* weights, const Sum* totals) const {
    const Number* values = value.data + rows.batch * value.batch + rows.shared_head * value.head + column;
    Vector sums[R][V];
    for (int r = 0; r < R; ++r)
      for (int v = 0; v < V; ++v) sums[r][v] = Vector(0);
    add_products<R, V>(sums, weights + row * padded_slots(), padded_slots(), values, value.token, num_slots);
    for (int r = 0; r < R; ++r) {
      Number* to = at_output(rows, row + r) + column;
      for (int v = 0; v < V; ++v) {
        Sum mean[LANES];
        (sums[r][v] / Vector(totals[row + r])).store(mean);
        for (int lane = 0; lane < LANES; ++lane) to[v * LANES + lane] = static_cast<Number>(mean[lane]);
      }
    }
  }

  Number* at_output(const Rows& rows, int64_t row) const {
    return output.data + rows.batch * output.batch + head_of(rows, row) * output.head +
        token_of(rows, row) * output.token;
  }

  void mix(const Rows& rows, const Sum* weights, const Sum* totals) const {
    in_blocks(rows.num_rows, [&](auto block, int64_t row) {
      constexpr int R = decltype(block)::value;
      int64_t column = whole_means<R, vectors<R>()>(rows, row, 0, weights, totals);
      for (; column < value_size; ++column) {
        const Number* values = value.data + rows.batch * value.batch + rows.shared_head * value.head + column;
        for (int r = 0; r < R; ++r) {
          Sum sum = 0;
          for (int64_t slot = 0; slot < num_slots; ++slot)
            sum = std::fma(
                weights[(row + r) * padded_slots() + slot], static_cast<Sum>(values[slot * value.token]), sum);
          at_output(rows, row + r)[column] = static_cast<Number>(sum / totals[row + r]);
        }
      }
    });
  }

  // The first and the last slot that a row sees, the latter plus 1; all slots if the mask excludes every one.
  std::pair<int64_t, int64_t> seen_slots(const Rows& rows, int64_t row) const {
    const Sum* added = mask_of(rows, row);
    if (added == nullptr) return {0, num_slots};
    const auto sees = [](Sum value) { return value > EXCLUDED; };
    const Sum* first = std::find_if(added, added + num_slots, sees);
    if (first == added + num_slots) return {0, num_slots};
    const Sum* last = added + num_slots;
    while (!sees(last[-1])) --last;
    return {first - added, last - added};
  }

  // The same problem without the slots before the first and after the last one that any row sees. Sums stay equal, since
  // the weights of these slots are zero, and the others keep their places in vectors.
  Attention over_seen_slots(const Rows& rows) const {
    int64_t first = num_slots, last = 0;
    const int64_t num_masks = mask.head == 0 ? std::min(num_tokens, rows.num_rows) : rows.num_rows;
    for (int64_t row = 0; row < num_masks && (first > 0 || last < num_slots); ++row) {
      const auto [begin, end] = seen_slots(rows, row);
      first = std::min(first, begin / LANES * LANES);
      last = std::max(last, end);
    }
    Attention seen = *this;
    seen.key.data += first * key.token;
    seen.value.data += first * value.token;
    if (mask.data != nullptr) seen.mask.data += first;
    seen.num_slots = last - first;
    return seen;
  }

  const Sum* mask_of(const Rows& rows, int64_t row) const {
    if (mask.data == nullptr) return nullptr;
    return mask.data + rows.batch * mask.batch + head_of(rows, row) * mask.head + token_of(rows, row) * mask.token;
  }

  void run(const Rows& rows) const {
    const int64_t width = padded_slots();
    thread_local std::vector<Sum> space;  // kept: an allocation of this size takes as long as some products
    space.resize(std::max<size_t>(space.size(), rows.num_rows * (size + width + 1) + TILE * size));
    Sum* queries = space.data();
    Sum* weights = queries + rows.num_rows * size;
    Sum* totals = weights + rows.num_rows * width;
    Sum* tile = totals + rows.num_rows;
    for (int64_t row = 0; row < rows.num_rows; ++row) {
      const Number* from = query.data + rows.batch * query.batch + head_of(rows, row) * query.head +
          token_of(rows, row) * query.token;
      for (int64_t d = 0; d < size; ++d) queries[row * size + d] = static_cast<Sum>(from[d]);
    }
    scores(rows, queries, tile, weights);
    for (int64_t row = 0; row < rows.num_rows; ++row) {
      const Sum* sink = sinks == nullptr ? nullptr : sinks + head_of(rows, row);
      totals[row] = softmax(weights + row * width, mask_of(rows, row), sink);
    }
    mix(rows, weights, totals);
  }

  void run(int64_t batch, int64_t num_shared_heads) const {
    const int64_t num_rows = num_shared * num_tokens, problems = batch * num_shared_heads;
    const int64_t work = num_rows * num_slots * (size + value_size);
    const int64_t threads = std::clamp<int64_t>(problems * work / LEAST_WORK, 1, at::get_num_threads());
    const int64_t parts = std::min((threads + problems - 1) / problems, (num_rows + 1) / 2);
    const int64_t length = (num_rows + parts - 1) / parts;
    const int64_t units = problems * parts;
    // Threads get heads of several sequences, whose lengths may differ.
    at::parallel_for(0, units, (units + threads - 1) / threads, [&](int64_t begin, int64_t end) {
      for (int64_t unit = begin; unit < end; ++unit) {
        const int64_t problem = unit / parts, first = unit % parts * length;
        if (first >= num_rows) continue;
        const Rows rows{problem % batch, problem / batch, first, std::min(length, num_rows - first)};
        over_seen_slots(rows).run(rows);
      }
    });
  }
};

at::Tensor with_dense_rows(const at::Tensor& tensor) { return tensor.stride(-1) == 1 ? tensor : tensor.contiguous(); }

template <typename Number, typename Sum>
void attend(
    const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, const std::optional<at::Tensor>& mask,
    const std::optional<at::Tensor>& sinks, double scale, double softcap, at::Tensor& output) {
  const at::Tensor q = with_dense_rows(query), k = with_dense_rows(key), v = with_dense_rows(value);
  const auto strided = [](auto* data, const at::Tensor& tensor) {
    using Strided = typename Attention<Number, Sum>::template Strided<std::remove_pointer_t<decltype(data)>>;
    return Strided{data, tensor.stride(0), tensor.stride(1), tensor.stride(2)};
  };
  Attention<Number, Sum> attention{};
  attention.query = strided(q.const_data_ptr<Number>(), q);
  attention.key = strided(k.const_data_ptr<Number>(), k);
  attention.value = strided(v.const_data_ptr<Number>(), v);
  attention.output = strided(output.mutable_data_ptr<Number>(), output.transpose(1, 2));
  attention.num_tokens = q.size(2);
  attention.num_shared = q.size(1) / k.size(1);
  attention.num_slots = k.size(2);
  attention.size = q.size(3);
  attention.value_size = v.size(3);
  attention.scale = static_cast<Sum>(scale);
  attention.softcap = static_cast<Sum>(softcap);
  at::Tensor added, logits;
  if (mask.has_value()) {
    const at::Tensor converted = mask->to(c10::CppTypeToScalarType<Sum>::value);
    added = with_dense_rows(converted.expand({q.size(0), q.size(1), q.size(2), k.size(2)}));
    attention.mask = strided(added.const_data_ptr<Sum>(), added);
  }
  if (sinks.has_value()) {
    logits = sinks->to(c10::CppTypeToScalarType<Sum>::value).contiguous();
    attention.sinks = logits.const_data_ptr<Sum>();
  }
  attention.run(q.size(0), k.size(1));
}

// As `attend` in small_attention.py.
at::Tensor small_attention(
    const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, const std::optional<at::Tensor>& mask,
    const std::optional<at::Tensor>& sinks, double scale, double softcap) {
  TORCH_CHECK(
      key.scalar_type() == query.scalar_type() && value.scalar_type() == query.scalar_type(),
      "small_attention: query, key and value differ in dtype");
  TORCH_CHECK(!mask || mask->scalar_type() != at::kBool, "small_attention: the mask is added to scores, and is bool");
  TORCH_CHECK(
      key.size(1) > 0 && query.size(1) % key.size(1) == 0 && key.size(2) > 0,
      "small_attention: there is no slot, or the heads of queries cannot share those of keys");
  at::Tensor output = at::empty({query.size(0), query.size(2), query.size(1), value.size(3)}, query.options());
  if (output.numel() == 0) return output;
  switch (query.scalar_type()) {
    case at::kFloat: attend<float, float>(query, key, value, mask, sinks, scale, softcap, output); break;
    case at::kDouble: attend<double, double>(query, key, value, mask, sinks, scale, softcap, output); break;
    case at::kBFloat16: attend<at::BFloat16, float>(query, key, value, mask, sinks, scale, softcap, output); break;
    case at::kHalf: attend<at::Half, float>(query, key, value, mask, sinks, scale, softcap, output); break;
    default: TORCH_CHECK(false, "small_attention has no kernel for ", query.scalar_type());
  }
  return output;
}

std::optional<at::Tensor> optional_tensor(const AtenTensorHandle* handle) {
  if (handle == nullptr) return std::nullopt;
  return *torch::aot_inductor::tensor_handle_to_tensor_pointer(*handle);
}

}  // namespace

// Keep in step with DECLARATIONS in cpp_operators.py.
extern "C" __attribute__((visibility("default"))) AOTITorchError aoti_torch_cpu_small_attention(
    AtenTensorHandle query, AtenTensorHandle key, AtenTensorHandle value, const AtenTensorHandle* mask,
    const AtenTensorHandle* sinks, double scale, double softcap, AtenTensorHandle* result) {
  using namespace torch::aot_inductor;
  AOTI_TORCH_CONVERT_EXCEPTION_TO_ERROR_CODE({
    *result = new_tensor_handle(small_attention(
        *tensor_handle_to_tensor_pointer(query), *tensor_handle_to_tensor_pointer(key),
        *tensor_handle_to_tensor_pointer(value), optional_tensor(mask), optional_tensor(sinks), scale, softcap));
  })
}

TORCH_LIBRARY_FRAGMENT(outrider, library) {
  library.def(
      "small_attention(Tensor query, Tensor key, Tensor value, Tensor? mask, Tensor? sinks, float scale, "
      "float softcap) -> Tensor");
}

TORCH_LIBRARY_IMPL(outrider, CPU, library) { library.impl("small_attention", small_attention); }

// There is no derivative; a fallthrough is quicker than the default, which would refuse to compute one.
TORCH_LIBRARY_IMPL(outrider, Autograd, library) {
  library.impl("small_attention", torch::CppFunction::makeFallthrough());
}
