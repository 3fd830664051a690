// x Wᵀ + b in float32 by the micro-kernel that PyTorch's libtorch_cpu brings (oneDNN's brgemm).
//
// Three products are each other's gradients, so gradients of every order are compositions of them:
// a bᵀ (+ bias), a b and aᵀ b, of matrices or of every member of two stacks of them.
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <ATen/autocast_mode.h>
#include <ATen/native/CPUBlas.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/baddbmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/inductor/aoti_torch/utils.h>
#include <fbgemm/Utils.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <optional>
#include <vector>

namespace {
using at::Tensor;
using Bias = std::optional<Tensor>;
constexpr int64_t ROWS = 64, COLUMNS = 256, DEPTH = 256;  // of a block; B's, 256 kB, stays in L2
constexpr int64_t FEW = 4, LONG = 64;  // rows or columns, and their length, of which a product is dot products
constexpr int64_t PER_THREAD = 1 << 20;  // multiply-adds that pay for a thread
// Without AVX-512 MKL multiplies faster what is not narrow: 91 against 80 GFLOP/s on an AMD EPYC (Zen 3).
constexpr int64_t NARROW = 16;
const bool WIDE = at::get_cpu_capability() == "AVX512";

// A matrix with consecutive elements in a row.
struct Matrix {
  const float* data;
  int64_t ld;  // elements from row to row
};

float* room(std::vector<float>& scratch, int64_t size) {
  if (static_cast<int64_t>(scratch.size()) < size) scratch.resize(size);
  return scratch.data();
}

// dst (n × m) = src (m × n) turned over.
void turn(int64_t m, int64_t n, Matrix src, float* dst, int64_t ld) {
  at::parallel_for(0, n, 1 + PER_THREAD / m, [&](int64_t first, int64_t last) {
    fbgemm::transpose_simd(m, last - first, src.data + first, src.ld, dst + first * ld, ld);
  });
}

// c (m × n) = a (m × k) b (k × n), or c plus it. Sums go along k in one order for any number of threads.
void nn(int64_t m, int64_t n, int64_t k, Matrix a, Matrix b, float* c, int64_t ldc, bool add) {
  const int64_t down = (m + ROWS - 1) / ROWS, across = (n + COLUMNS - 1) / COLUMNS;
  const int64_t grain = std::max<int64_t>(1, PER_THREAD / (ROWS * std::min(n, COLUMNS) * k));
  at::parallel_for(0, down * across, grain, [&](int64_t first, int64_t last) {
    for (int64_t l = 0; l < k; l += DEPTH)
      for (int64_t block = first; block < last; block++) {
        const int64_t i = block % down * ROWS, j = block / down * COLUMNS;
        at::native::cpublas::brgemm(
            std::min(ROWS, m - i), std::min(COLUMNS, n - j), std::min(DEPTH, k - l), a.ld, b.ld, ldc,
            add || l > 0, a.data + i * a.ld + l, b.data + l * b.ld + j, c + i * ldc + j);
      }
    at::native::cpublas::brgemm_release(false);
  });
}

// c (m × n) = a (m × k) b (n × k)ᵀ plus the bias, one dot product each, of 16 sums.
void dots(int64_t m, int64_t n, int64_t k, Matrix a, Matrix b, const float* bias, float* c) {
  constexpr int64_t S = 16;
  for (int64_t i = 0; i < m; i++)
    for (int64_t j = 0; j < n; j++) {
      const float *__restrict x = a.data + i * a.ld, *__restrict y = b.data + j * b.ld;
      float sums[S] = {}, sum = bias ? bias[j] : 0;
      int64_t l = 0;
      for (; l + S <= k; l += S)
        for (int64_t s = 0; s < S; s++) sums[s] += x[l + s] * y[l + s];
      for (; l < k; l++) sums[0] += x[l] * y[l];
      for (int64_t s = S / 2; s; s /= 2)
        for (int64_t t = 0; t < s; t++) sums[t] += sums[t + s];
      c[i * n + j] = sum + sums[0];
    }
}

enum Form { NT, NN, TN };  // a bᵀ, a b, aᵀ b

// c (m × n) = a bᵀ plus the bias, or aᵀ b. What is smaller is turned over: one operand, or the other one and c.
void turned(Form form, int64_t m, int64_t n, int64_t k, Matrix a, Matrix b, const float* bias, float* c) {
  thread_local std::vector<float> operand, result;
  const bool nt = form == NT, swap = nt ? m * (k + n) < n * k : n * (k + m) < k * m;
  if (swap) std::swap(m, n), std::swap(a, b);
  const int64_t down = nt ? n : k, across = nt ? k : m;
  const int64_t ld = down + (swap ? 0 : 16);  // rows apart by a power of two would share lines of the cache
  const Matrix t{room(operand, across * ld), ld};
  turn(down, across, nt ? b : a, operand.data(), ld);
  float* y = swap ? room(result, m * n) : c;
  if (bias)
    for (int64_t i = 0; i < m; i++) swap ? std::fill_n(y + i * n, n, bias[i]) : std::copy_n(bias, n, y + i * n);
  nn(m, n, k, nt ? a : t, nt ? t : b, y, n, bias);
  if (swap) turn(m, n, {y, n}, c, m);
}

Tensor in_rows(const Tensor& t) {
  const bool rows = t.stride(-1) == 1 && t.stride(-2) >= t.size(-1);
  return rows ? t : t.contiguous();
}

template <class Size>
std::array<Size, 3> sizes(int64_t form, c10::ArrayRef<Size> a, c10::ArrayRef<Size> b) {
  const size_t row = a.size() - 2, column = row + 1;
  if (form == TN) return {a[column], b[column], a[row]};
  return {a[row], form == NT ? b[row] : b[column], a[column]};
}

Tensor product_cpu(const Tensor& a, const Tensor& b, const Bias& bias, int64_t form) {
  const auto [m, n, k] = sizes(form, a.sizes(), b.sizes());
  const bool stack = a.dim() == 3;
  const int64_t members = stack ? a.size(0) : 1;
  Tensor y = stack ? at::empty({members, m, n}, a.options()) : at::empty({m, n}, a.options());
  if (!y.numel() || !k) return bias ? y.copy_(bias->unsqueeze(-2).expand_as(y)) : y.zero_();
  if (!WIDE && std::min({m, n, k}) > NARROW) {
    y = at::matmul(form == TN ? a.mT() : a, form == NT ? b.mT() : b);
    return bias ? y.add_(bias->unsqueeze(-2)) : y;
  }
  const Tensor rows_a = in_rows(a), rows_b = in_rows(b), biases = bias ? bias->contiguous() : Tensor();
  for (int64_t i = 0; i < members; i++) {
    const Matrix of_a{rows_a.const_data_ptr<float>() + (stack ? i * rows_a.stride(0) : 0), rows_a.stride(-2)};
    const Matrix of_b{rows_b.const_data_ptr<float>() + (stack ? i * rows_b.stride(0) : 0), rows_b.stride(-2)};
    float* of_y = y.mutable_data_ptr<float>() + i * m * n;
    const float* of_bias = bias ? biases.const_data_ptr<float>() + i * n : nullptr;
    if (form == NN) nn(m, n, k, of_a, of_b, of_y, n, false);
    else if (form == NT && std::min(m, n) <= FEW && k >= LONG) dots(m, n, k, of_a, of_b, of_bias, of_y);
    else turned(static_cast<Form>(form), m, n, k, of_a, of_b, of_bias, of_y);
  }
  return y;
}

// The shape alone, for tensors without data.
Tensor product_meta(const Tensor& a, const Tensor& b, const Bias&, int64_t form) {
  const auto [m, n, k] = sizes(form, a.sym_sizes(), b.sym_sizes());
  return a.dim() == 3 ? a.new_empty_symint({a.sym_size(0), m, n}) : a.new_empty_symint({m, n});
}

Tensor multiply(const Tensor& a, const Tensor& b, int64_t form, const Bias& bias = std::nullopt) {
  static const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow("rlplast::product", "").typed<decltype(product_cpu)>();
  return op.call(a, b, bias, form);
}

struct Product : torch::autograd::Function<Product> {
  using Context = torch::autograd::AutogradContext;
  using Tensors = torch::autograd::variable_list;

  static Tensor forward(Context* ctx, const Tensor& a, const Tensor& b, const Bias& bias, int64_t form) {
    ctx->save_for_backward({a, b});
    ctx->saved_data["form"] = form;
    ctx->saved_data["bias"] = bias.has_value();
    at::AutoDispatchBelowADInplaceOrView below;
    return multiply(a, b, form, bias);
  }

  static Tensors backward(Context* ctx, Tensors grads) {
    const auto saved = ctx->get_saved_variables();
    const Tensor &a = saved[0], &b = saved[1], &y = grads[0];
    const auto form = ctx->saved_data["form"].toInt();
    Tensors found(4);
    if (ctx->needs_input_grad(0))
      found[0] = form == TN ? multiply(b, y, NT) : multiply(y, b, form == NT ? NN : NT);
    if (ctx->needs_input_grad(1))
      found[1] = form == NT ? multiply(y, a, TN) : multiply(a, y, form == NN ? TN : NN);
    if (ctx->saved_data["bias"].toBool() && ctx->needs_input_grad(2)) found[2] = y.sum(-2);
    return found;
  }
};

Tensor product_autograd(const Tensor& a, const Tensor& b, const Bias& bias, int64_t form) {
  const bool needed = a.requires_grad() || b.requires_grad() || (bias && bias->requires_grad());
  if (needed && at::GradMode::is_enabled()) return Product::apply(a, b, bias, form);
  at::AutoDispatchBelowADInplaceOrView below;  // without what records gradients, 2 us
  return multiply(a, b, form, bias);
}

bool fits(const Tensor& t, int64_t dims) {
  const bool dual = t._fw_grad(0).defined();  // of forward-mode differentiation
  return t.dim() == dims && t.device().is_cpu() && t.scalar_type() == at::kFloat && t.layout() == at::kStrided && !dual;
}

// The same by PyTorch; a stack's weights are on the left, so that their gradients are laid out as they are.
Tensor plain(const Tensor& x, const Tensor& w, const Bias& bias) {
  if (w.dim() < 3) return at::linear(x, w, bias);
  return (bias ? at::baddbmm(bias->unsqueeze(2), w, x.mT()) : at::bmm(w, x.mT())).mT();
}

// x (..., d_in), w (d_out, d_in), bias (d_out); or stacks, (members, batch, d_in), (members, d_out, d_in),
// (members, d_out). What is not float32 on a CPU is computed by PyTorch, and errors are PyTorch's.
Tensor affine(const Tensor& x, const Tensor& w, const Bias& bias) {
  const auto dims = w.dim();
  const bool ours = (dims == 2 ? x.dim() > 0 : dims == 3 && x.dim() == 3 && x.sym_size(0) == w.sym_size(0)) &&
      fits(x, x.dim()) && fits(w, dims) && x.sym_size(-1) == w.sym_size(-1) &&
      (!bias || (fits(*bias, dims - 1) && bias->sym_sizes().equals(w.sym_sizes().slice(0, dims - 1)))) &&
      !at::autocast::is_autocast_enabled(at::kCPU);
  if (!ours) return plain(x, w, bias);
  if (x.dim() == dims) return multiply(x, w, NT, bias);
  auto shape = x.sym_sizes().vec();
  const auto rows = c10::multiply_integers(shape.begin(), shape.end() - 1);
  const Tensor y = multiply(x.reshape_symint({rows, shape.back()}), w, NT, bias);
  shape.back() = w.sym_size(0);
  return y.view_symint(shape);
}
}  // namespace

// What inductor's code calls, which by PyTorch's dispatcher takes 3 us.
extern "C" AOTITorchError aoti_torch_cpu_product(
    AtenTensorHandle a, AtenTensorHandle b, const AtenTensorHandle* bias, int64_t form, AtenTensorHandle* found) {
  using torch::aot_inductor::tensor_handle_to_tensor_pointer;
  AOTI_TORCH_CONVERT_EXCEPTION_TO_ERROR_CODE({
    const Bias own = bias ? Bias(*tensor_handle_to_tensor_pointer(*bias)) : std::nullopt;
    *found = torch::aot_inductor::new_tensor_handle(
        product_cpu(*tensor_handle_to_tensor_pointer(a), *tensor_handle_to_tensor_pointer(b), own, form));
  });
}

TORCH_LIBRARY(rlplast, m) {
  m.def("product(Tensor a, Tensor b, Tensor? bias, int form) -> Tensor",
        {at::Tag::needs_fixed_stride_order, at::Tag::pt2_compliant_tag});
  m.def("affine(Tensor x, Tensor weight, Tensor? bias) -> Tensor", affine);
}
TORCH_LIBRARY_IMPL(rlplast, CPU, m) { m.impl("product", product_cpu); }
TORCH_LIBRARY_IMPL(rlplast, Meta, m) { m.impl("product", product_meta); }
TORCH_LIBRARY_IMPL(rlplast, Autograd, m) { m.impl("product", product_autograd); }
TORCH_LIBRARY_IMPL(rlplast, FuncTorchDynamicLayerFrontMode, m) { m.impl("affine", plain); }  // `torch.func`
