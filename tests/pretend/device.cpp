// A pretended CUDA device for CPU builds of PyTorch. Memory and arithmetic are the CPU's, but
// tensors say "cuda:0": a fallback for the CUDA dispatch key runs every operator on the CPU kernel
// over the same memory. What a device would launch, and what the host would wait for, is counted.
// CUDA graphs are tapes of operators. See device.py, which builds and loads this file.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/native/ForeachUtils.h>
#include <ATen/native/Resize.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <atomic>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

using at::Tensor;
using c10::Device;
using c10::DeviceIndex;
using c10::DispatchKey;
using c10::IValue;
using c10::Storage;
using c10::Stream;
using torch::jit::Stack;

const Device GPU(c10::DeviceType::CUDA, 0), HOST(c10::DeviceType::CPU);
const c10::DispatchKeySet ON_GPU(DispatchKey::CUDA), ON_HOST(DispatchKey::CPU);

std::mutex LOCK;  // of COUNTS and PINNED: autograd runs in a thread of its own
std::map<std::string, long> COUNTS;  // "launch aten::mul" and the like → how often

void count(const std::string& what) {
  std::lock_guard<std::mutex> guard(LOCK);
  COUNTS[what]++;
}

// --- Streams and captures -----------------------------------------------------------------------

thread_local int64_t STREAM = 0;  // the current one; autograd sets that of the forward pass
std::atomic<int64_t> STREAMS{0};  // how many were made besides the default one

// The capture that is going on. A device runs nothing meanwhile. Here operators have to run, as
// their results have shapes; what they write is put back at the end.
struct Capture {
  int64_t tape = 0;  // 0: none is going on
  std::thread::id thread;
  int64_t stream = 0;
  std::map<const void*, std::pair<Storage, std::string>> memory;  // as it was before
  std::vector<std::pair<at::Generator, Tensor>> generators;  // and their states before
} CAPTURE;
std::map<int64_t, std::vector<std::function<void()>>> TAPES;
int64_t TAPES_MADE = 0;
bool WAITS_RAISE = false;  // torch.cuda.set_sync_debug_mode("error")

bool capturing() {
  return CAPTURE.tape && CAPTURE.stream == STREAM;
}

void wait(const std::string& what) {
  count("wait " + what);
  TORCH_CHECK(!WAITS_RAISE, "called a synchronizing CUDA operation (", what, ")");
  const bool mine = capturing() || CAPTURE.thread == std::this_thread::get_id();
  TORCH_CHECK(!CAPTURE.tape || !mine,
              "CUDA error: operation not permitted when stream is capturing (", what, ")");
}

void remember(const Tensor& tensor) {
  if (!capturing()) return;
  const Storage& storage = tensor.storage();
  const auto* bytes = static_cast<const char*>(storage.data());
  if (bytes && !CAPTURE.memory.count(bytes))
    CAPTURE.memory.emplace(bytes, std::pair(storage, std::string(bytes, storage.nbytes())));
}

Tensor state_of(const at::Generator& generator) {
  return Tensor::wrap_tensor_impl(generator.unsafeGetGeneratorImpl()->get_state());
}

void remember(const at::Generator& generator) {
  if (!capturing()) return;
  for (const auto& known : CAPTURE.generators)
    if (known.first == generator) return;
  CAPTURE.generators.emplace_back(generator, state_of(generator));
}

int64_t begin_capture() {
  TORCH_CHECK(!CAPTURE.tape, "a capture is going on already");
  CAPTURE = Capture{++TAPES_MADE, std::this_thread::get_id(), STREAM};
  TAPES[CAPTURE.tape];
  return CAPTURE.tape;
}

void end_capture() {
  for (auto& [address, was] : CAPTURE.memory)
    std::copy(was.second.begin(), was.second.end(), static_cast<char*>(was.first.mutable_data()));
  for (auto& [generator, state] : CAPTURE.generators) generator.set_state(state);
  CAPTURE = Capture();
}

void replay(int64_t tape) {
  TORCH_CHECK(TAPES.count(tape), "replay of a CUDA graph without a capture");
  TORCH_CHECK(!capturing(), "replay of a CUDA graph inside a capture is not pretended");
  count("graph");
  at::AutoDispatchBelowADInplaceOrView below;
  for (const auto& operation : TAPES[tape]) operation();
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return GPU.type(); }
  Device exchangeDevice(Device) const override { return GPU; }
  Device getDevice() const override { return GPU; }
  void setDevice(Device) const override {}
  void uncheckedSetDevice(Device) const noexcept override {}
  DeviceIndex deviceCount() const noexcept override { return 1; }

  static Stream of(int64_t id) { return Stream(Stream::UNSAFE, GPU, id); }
  Stream getStream(Device) const noexcept override { return of(STREAM); }
  Stream getDefaultStream(Device) const override { return of(0); }
  Stream getStreamFromGlobalPool(Device, bool) const override { return of(++STREAMS); }
  Stream getNewStream(Device, int) const override { return of(++STREAMS); }
  Stream exchangeStream(Stream next) const noexcept override {
    return of(std::exchange(STREAM, next.id()));
  }
  bool queryStream(const Stream&) const override { return true; }
  bool isStreamCapturing(const Stream& s) const override {
    return CAPTURE.tape && CAPTURE.stream == s.id();
  }
  void synchronizeStream(const Stream&) const override { wait("stream.synchronize"); }
  void synchronizeDevice(const DeviceIndex) const override { wait("device.synchronize"); }
  void recordDataPtrOnStream(const c10::DataPtr&, const Stream&) const override {}

  // Events between streams: everything is done at once, so there is nothing to keep.
  void record(void**, const Stream&, DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void destroyEvent(void*, const DeviceIndex) const noexcept override {}
  void synchronizeEvent(void*) const override { count("event wait"); }
};
C10_REGISTER_GUARD_IMPL(CUDA, Guard);

// --- Memory: the CPU's, with an owner that knows what it stands for -----------------------------

std::atomic<int64_t> ALLOCATED{0};  // bytes
std::map<const void*, size_t> PINNED;  // address → bytes

struct Owner {
  Owner(Storage kept, bool pinned) : storage(std::move(kept)), pinned(pinned) {
    std::lock_guard<std::mutex> guard(LOCK);
    if (pinned) PINNED[storage.data()] = storage.nbytes();
    else ALLOCATED += storage.nbytes();
  }
  ~Owner() {
    std::lock_guard<std::mutex> guard(LOCK);
    if (pinned) PINNED.erase(storage.data());
    else ALLOCATED -= storage.nbytes();
  }
  Storage storage;
  bool pinned;
};

at::DataPtr owned(const Storage& storage, bool pinned = false) {
  auto* owner = new Owner(storage, pinned);
  const auto end = [](void* o) { delete static_cast<Owner*>(o); };
  return {const_cast<void*>(storage.data()), owner, end, pinned ? HOST : GPU};
}

struct Memory final : c10::Allocator {
  explicit Memory(bool pinned) : pinned(pinned) {}
  at::DataPtr allocate(size_t bytes) override {
    return owned(Storage(Storage::use_byte_size_t(), bytes, c10::GetCPUAllocator()), pinned);
  }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
  bool pinned;
};
Memory MEMORY(false), PINNED_MEMORY(true);
REGISTER_ALLOCATOR(c10::DeviceType::CUDA, &MEMORY);

bool is_pinned(const void* address) {
  std::lock_guard<std::mutex> guard(LOCK);
  auto after = PINNED.upper_bound(address);
  if (after == PINNED.begin()) return false;
  const auto& [start, bytes] = *--after;
  return static_cast<const char*>(address) < static_cast<const char*>(start) + bytes;
}

// --- Random numbers -----------------------------------------------------------------------------

// A CPU generator that says it is the device's: the same numbers as on a CPU, not as on CUDA.
struct Generator final : c10::GeneratorImpl {
  Generator() : c10::GeneratorImpl(GPU, ON_GPU) {}
  at::Generator inner = at::detail::createCPUGenerator();

  static void refuse(const char* what) {
    TORCH_CHECK(!capturing(), "Cannot call CUDAGeneratorImpl::", what, " during a graph capture");
  }
  void set_current_seed(uint64_t seed) override {
    refuse("set_current_seed");
    inner.set_current_seed(seed);
  }
  uint64_t current_seed() const override { return inner.current_seed(); }
  uint64_t seed() override {
    refuse("seed");
    return inner.seed();
  }
  void set_offset(uint64_t) override { TORCH_CHECK(false, "offsets are not pretended"); }
  uint64_t get_offset() const override { TORCH_CHECK(false, "offsets are not pretended"); }
  void set_state(const c10::TensorImpl& state) override {
    refuse("set_state");
    inner.unsafeGetGeneratorImpl()->set_state(state);
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    refuse("get_state");
    return inner.unsafeGetGeneratorImpl()->get_state();
  }
  Generator* clone_impl() const override {
    auto* copy = new Generator();
    copy->inner = inner.clone();
    return copy;
  }
};

const at::Generator& default_generator() {
  static const at::Generator generator = at::make_generator<Generator>();
  return generator;
}

at::Generator& inner_of(const at::Generator& generator) {
  return static_cast<Generator*>(generator.unsafeGetGeneratorImpl())->inner;
}

// Let CPU kernels that take no generator draw from the device's: between two calls of this.
void swap_generators() {
  at::Generator host = at::detail::getDefaultCPUGenerator(), gpu = inner_of(default_generator());
  const Tensor states[] = {state_of(host), state_of(gpu)};
  host.set_state(states[1]);
  gpu.set_state(states[0]);
}

struct CUDAHooks final : at::CUDAHooksInterface {  // torch looks for it by this name
  explicit CUDAHooks(at::CUDAHooksArgs) {}
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool hasCUDART() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  DeviceIndex deviceCount() const override { return 1; }
  int getNumGPUs() const override { return 1; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex current_device() const override { return 0; }
  void setCurrentDevice(DeviceIndex) const override {}
  DeviceIndex getCurrentDevice() const override { return 0; }
  DeviceIndex exchangeDevice(DeviceIndex) const override { return 0; }
  DeviceIndex maybeExchangeDevice(DeviceIndex) const override { return 0; }
  Device getDeviceFromPtr(void*) const override { return GPU; }
  bool isPinnedPtr(const void* address) const override { return is_pinned(address); }
  at::Allocator* getPinnedMemoryAllocator() const override { return &PINNED_MEMORY; }
  void deviceSynchronize(DeviceIndex) const override { wait("device.synchronize"); }
  const at::Generator& getDefaultGenerator(DeviceIndex) const override {
    return default_generator();
  }
  // The first one asked for is the default one, which Python has no other way to.
  at::Generator getNewGenerator(DeviceIndex) const override {
    static bool asked = false;
    return std::exchange(asked, true) ? at::make_generator<Generator>() : default_generator();
  }
};
using at::CUDAHooksArgs;
using at::CUDAHooksRegistry;
using at::RegistererCUDAHooksRegistry;
REGISTER_CUDA_HOOKS(CUDAHooks);

// --- The same memory as a tensor of the host and of the device ----------------------------------

bool on_gpu(const Tensor& tensor) {
  return tensor.defined() && tensor.device().is_cuda();
}

bool same_memory(const Tensor& a, const Tensor& b) {
  return a.storage().data() == b.storage().data();
}

Tensor like(const Tensor& tensor, Storage storage, c10::DispatchKeySet keys) {
  Tensor made = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), keys, tensor.dtype());
  auto* impl = made.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  made._set_conj(tensor.is_conj());
  made._set_neg(tensor.is_neg());
  return made;
}

Storage seen_as(at::DataPtr data, size_t bytes, c10::Allocator* allocator) {
  return Storage(Storage::use_byte_size_t(), bytes, std::move(data), allocator, /*resizable=*/true);
}

// A CPU tensor that sees the memory and does not own it.
Tensor as_cpu(const Tensor& tensor) {
  const Storage& storage = tensor.storage();
  at::DataPtr data(const_cast<void*>(storage.data()), HOST);
  return like(tensor, seen_as(std::move(data), storage.nbytes(), c10::GetCPUAllocator()), ON_HOST);
}

Storage gpu_storage(const Tensor& cpu) {
  return seen_as(owned(cpu.storage()), cpu.storage().nbytes(), &MEMORY);
}

// --- Any operator -------------------------------------------------------------------------------

// Operators whose result, its shape or its status the host has to know.
const std::set<std::string> READING = {
    "aten::_local_scalar_dense", "aten::equal", "aten::is_nonzero", "aten::masked_select",
    "aten::nonzero", "aten::_unique", "aten::_unique2", "aten::unique_dim",
    "aten::unique_consecutive", "aten::bincount", "aten::repeat_interleave", "aten::_linalg_svd",
    "aten::_linalg_eigh", "aten::linalg_eig", "aten::linalg_lstsq"};
using Names = std::set<std::string>;
const Names FREE = {"aten::_pin_memory", "aten::alias", "aten::unfold", "aten::view"};
const Names INDEXING = {"aten::index", "aten::index_put_", "aten::_index_put_impl_"};
const Names DRAWING = {"aten::native_dropout", "aten::rrelu_with_noise"};  // without a generator
const Names FUSED = {"aten::_fused_adam_", "aten::_fused_adamw_", "aten::_fused_sgd_"};

template <typename Change>
IValue changed_tensors(const IValue& value, const Change& change) {
  if (value.isTensor()) return change(value.toTensor());
  if (value.isTensorList()) {
    c10::List<Tensor> list;
    for (const Tensor& tensor : value.toTensorVector()) list.push_back(change(tensor));
    return list;
  }
  if (!value.isOptionalTensorList()) return value;
  c10::List<std::optional<Tensor>> list;
  for (const std::optional<Tensor>& tensor : value.toOptionalTensorList())
    list.push_back(tensor ? std::optional<Tensor>(change(*tensor)) : std::nullopt);
  return list;
}

// One call of an operator by the boxed convention: arguments on a stack are replaced by results.
class Call {
 public:
  Call(const c10::OperatorHandle& op, Stack& stack)
      : op_(op), stack_(stack), name_(op.schema().name()) {}

  void run() {
    const auto& arguments = op_.schema().arguments();
    const size_t first = stack_.size() - arguments.size();
    if (INDEXING.count(name_)) look_at_masks(first);
    for (size_t i = first; i < stack_.size(); i++) {
      const bool draws = stack_[i].isNone() && is_generator(arguments[i - first]);
      stack_[i] = argument(draws ? IValue(default_generator()) : stack_[i]);
    }
    if (DRAWING.count(name_)) remember(inner_of(default_generator()));
    refuse_mixtures();
    if (FUSED.count(name_)) refuse_strides(first);
    count_it();
    const Stack given(stack_.begin() + first, stack_.end());
    on_host(op_, stack_);
    const size_t start = stack_.size() - op_.schema().returns().size();
    if (capturing()) record(given, Stack(stack_.begin() + start, stack_.end()));
    take_over_resized();
    for (size_t i = start; i < stack_.size(); i++)
      stack_[i] = changed_tensors(stack_[i], [this](const Tensor& t) { return result(t); });
  }

 private:
  static void on_host(const c10::OperatorHandle& op, Stack& stack) {
    const bool draws = DRAWING.count(op.schema().name());
    if (draws) swap_generators();
    op.redispatchBoxed(ON_HOST, &stack);
    if (draws) swap_generators();
  }

  static bool is_generator(const c10::Argument& argument) {
    const auto* optional = argument.type()->castRaw<c10::OptionalType>();
    return optional && optional->getElementType()->kind() == c10::TypeKind::GeneratorType;
  }

  // A boolean index makes the host count; filling with a number of the host does not need to.
  void look_at_masks(size_t first) {
    for (const std::optional<Tensor>& index : stack_[first + 1].toOptionalTensorList())
      masks_ |= index && index->defined() && at::isIntegralType(index->scalar_type(), true) &&
                index->element_size() == 1;
    if (name_ == "aten::index") return;
    const Tensor& value = stack_[first + 2].toTensor();
    masks_ &= on_gpu(value) || value.numel() != 1 || stack_[first + 3].toBool();
  }

  IValue argument(const IValue& value) {
    if (value.isDevice() && value.toDevice().is_cuda()) {
      makes_here_ = true;
      return HOST;
    }
    if (!value.isGenerator())
      return changed_tensors(value, [this](const Tensor& t) { return as_host(t); });
    const auto generator = value.toGenerator();
    cpu_generator_ = generator.device().is_cpu();
    if (cpu_generator_) return value;
    remember(inner_of(generator));
    return inner_of(generator);
  }

  Tensor as_host(const Tensor& tensor) {
    if (!tensor.defined()) return tensor;
    if (!on_gpu(tensor)) {
      if (tensor.dim() > 0) stranger_ = c10::str(tensor.dtype(), tensor.sizes());
      return tensor;
    }
    for (size_t i = 0; i < mine_.size(); i++)
      if (mine_[i].is_same(tensor)) return seen_[i];
    remember(tensor);
    mine_.push_back(tensor);
    seen_.push_back(as_cpu(tensor));
    return seen_.back();
  }

  void refuse_mixtures() const {
    if (mine_.empty() && !makes_here_) return;
    TORCH_CHECK(!cpu_generator_, "Expected a 'cuda' device type for generator but found 'cpu' (",
                name_, ")");
    if (stranger_.empty()) return;
    if (INDEXING.count(name_)) return wait(name_ + " with an index of the host");
    TORCH_CHECK(false, "Expected all tensors to be on the same device, but found at least two ",
                "devices, cuda:0 and cpu! (", name_, " with ", stranger_, " on the CPU)");
  }

  // CUDA's fused optimizers want parameters, gradients and moments in one order in memory.
  void refuse_strides(size_t first) const {
    std::vector<std::vector<Tensor>> lists;
    for (size_t i = first; i < first + 4 && stack_[i].isTensorList(); i++)
      lists.push_back(stack_[i].toTensorVector());
    std::vector<at::TensorList> compared;
    for (const auto& list : lists)
      if (!list.empty()) compared.push_back(list);
    TORCH_CHECK(at::native::can_use_fast_route(compared),
                "params, grads, exp_avgs, and exp_avg_sqs must have same dtype, device, and layout");
  }

  void count_it() const {
    if (READING.count(name_)) wait(name_);
    else if (masks_) wait(name_ + " with a boolean index");
    else if (!FREE.count(name_)) count("launch " + name_);
  }

  // A replay calls the operator again, and puts new results where those of the capture lie.
  void record(const Stack& given, const Stack& results) const {
    std::vector<Storage> kept;
    for (const Tensor& tensor : mine_) kept.push_back(tensor.storage());
    TAPES[CAPTURE.tape].push_back([op = op_, given, results, kept] {
      Stack stack = given;
      on_host(op, stack);
      for (size_t i = 0; i < results.size(); i++) put(results[i], stack[i]);
    });
  }

  static void put(const IValue& place, const IValue& value) {
    if (place.isTensor()) return put(place.toTensor(), value.toTensor());
    if (!place.isTensorList()) return;
    const auto places = place.toTensorVector(), values = value.toTensorVector();
    for (size_t i = 0; i < places.size(); i++) put(places[i], values[i]);
  }

  static void put(const Tensor& place, const Tensor& value) {
    if (!place.defined() || same_memory(place, value)) return;
    TORCH_CHECK(place.sizes() == value.sizes(), "a replay gives another shape than the capture");
    place.copy_(value);
  }

  // An operator may have resized what it was given to write to.
  void take_over_resized() const {
    for (size_t i = 0; i < mine_.size(); i++) {
      const Tensor& seen = seen_[i];
      auto* impl = mine_[i].unsafeGetTensorImpl();
      if (!same_memory(mine_[i], seen)) impl->set_storage_keep_dtype(gpu_storage(seen));
      impl->set_sizes_and_strides(seen.sizes(), seen.strides(), seen.storage_offset());
    }
  }

  Tensor result(const Tensor& tensor) const {
    if (!tensor.defined()) return tensor;
    for (size_t i = 0; i < seen_.size(); i++)
      if (seen_[i].is_same(tensor)) return mine_[i];
    for (size_t i = 0; i < seen_.size(); i++)
      if (tensor.storage().data() && same_memory(tensor, seen_[i]))
        return like(tensor, mine_[i].storage(), ON_GPU);
    return like(tensor, gpu_storage(tensor), ON_GPU);
  }

  const c10::OperatorHandle& op_;
  Stack& stack_;
  const std::string& name_;
  std::vector<Tensor> mine_, seen_;  // tensors of the device, and the same as the CPU's
  bool makes_here_ = false, cpu_generator_ = false, masks_ = false;
  std::string stranger_;  // a tensor of the host that is no number
};

void fallback(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
  Call(op, *stack).run();
}

// --- Operators that make or move memory ---------------------------------------------------------

using Type = std::optional<at::ScalarType>;
using Layout = std::optional<at::Layout>;
using Format = std::optional<at::MemoryFormat>;
using Where = std::optional<Device>;
using Pin = std::optional<bool>;

at::ScalarType chosen(Type type) {
  return type.value_or(c10::get_default_dtype_as_scalartype());
}

Tensor empty(at::IntArrayRef size, Type type, Layout, Where, Pin, Format format) {
  return at::detail::empty_generic(size, &MEMORY, ON_GPU, chosen(type), format);
}

Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, Type type, Layout, Where, Pin) {
  return at::detail::empty_strided_generic(size, stride, &MEMORY, ON_GPU, chosen(type));
}

// Zeros without memory, which second gradients are full of.
Tensor no_memory(at::IntArrayRef size, Type type, Layout, Where, Pin) {
  static at::native::ZeroTensorAllocator nothing(GPU);
  const auto keys = ON_GPU.add(DispatchKey::ZeroTensor);
  return at::detail::empty_generic(size, &nothing, keys, chosen(type), std::nullopt);
}

// What a copy between host and device costs depends on the host's memory: only a copy of pinned
// memory can go on while the host does something else.
void count_copy(const Tensor& to, const Tensor& from, bool non_blocking) {
  if (on_gpu(to) && on_gpu(from)) return count("launch aten::copy_");
  const bool pinned = is_pinned((on_gpu(to) ? from : to).storage().data());
  const std::string way = on_gpu(to) ? "copy to the device" : "copy to the host";
  if (non_blocking && pinned) count(way);
  else wait("blocking " + way + (pinned ? ", pinned" : ", pageable"));
  const bool as_it_is = to.dtype() == from.dtype() && to.is_contiguous() == from.is_contiguous();
  if (!as_it_is) count("launch aten::copy_");  // from or to memory that can be copied
}

void copy_bytes(Tensor to, const Tensor& from) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("aten::copy_", "")
                             .typed<Tensor&(Tensor&, const Tensor&, bool)>();
  at::AutoDispatchBelowADInplaceOrView below;
  op.redispatch(ON_HOST, to, from, false);
}

Tensor& copy_(Tensor& self, const Tensor& from, bool non_blocking) {
  count_copy(self, from, non_blocking);
  remember(self);
  const Tensor to = on_gpu(self) ? as_cpu(self) : self, what = on_gpu(from) ? as_cpu(from) : from;
  copy_bytes(to, what);
  const auto kept = std::pair(self.storage(), from.storage());
  if (capturing()) TAPES[CAPTURE.tape].push_back([to, what, kept] { copy_bytes(to, what); });
  return self;
}

void record_stream(Tensor&, Stream) {}

// Attention is made of its parts: the CPU's fused kernel is another operator than CUDA's.
int64_t attention(const Tensor&, const Tensor&, const Tensor&, const std::optional<Tensor>&, double,
                  bool, std::optional<double>, bool) {
  return 0;
}

// Operators that would fall apart into others without a kernel here, though CUDA has one or few.
bool stays_whole(const c10::OperatorName& name) {
  static const std::set<std::string> own = {
      "empty.memory_format", "empty_strided", "_efficientzerotensor", "as_strided", "view",
      "_reshape_alias", "resize_", "set_.source_Storage", "set_.source_Storage_storage_offset",
      "set_.source_Tensor", "copy_", "record_stream", "_fused_sdp_choice",
      "_foreach_copy_"};  // whose parts tell host from device
  const std::string full = c10::toString(name);
  if (full.rfind("aten::", 0) != 0 || own.count(full.substr(6))) return false;
  if (full.rfind("aten::_foreach_", 0) == 0) return true;
  if (full == "aten::convolution" || full == "aten::convolution_backward") return true;
  return c10::Dispatcher::singleton().findOp(name)->hasKernelForDispatchKey(DispatchKey::CPU);
}

TORCH_LIBRARY_IMPL(_, CUDA, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("_efficientzerotensor", no_memory);
  m.impl("as_strided", at::native::as_strided_tensorimpl);
  m.impl("view", at::native::view);
  m.impl("_reshape_alias", at::native::_reshape_alias);
  m.impl("resize_", at::native::resize_);
  m.impl("set_.source_Storage", static_cast<Tensor& (*)(Tensor&, Storage)>(at::native::set_));
  m.impl("set_.source_Storage_storage_offset", at::native::set_storage_cpu_);
  m.impl("set_.source_Tensor", at::native::set_tensor_);
  m.impl("copy_", copy_);
  m.impl("record_stream", record_stream);
  m.impl("_fused_sdp_choice", attention);
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames())
    if (stays_whole(name))
      m.impl(c10::toString(name).c_str(), torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

// Run what may raise; return the message, or null.
const char* guarded(const std::function<void()>& what) {
  static thread_local std::string message;
  try {
    what();
    return nullptr;
  } catch (const c10::Error& error) {
    message = error.what_without_backtrace();
  } catch (const std::exception& error) {
    message = error.what();
  }
  return message.c_str();
}

}  // namespace

// --- What device.py calls; functions that may raise return a message instead --------------------

extern "C" {

// Return all counts since the last call, as JSON.
const char* pretend_counts() {
  static std::string text;
  std::lock_guard<std::mutex> guard(LOCK);
  text.clear();
  for (const auto& [what, number] : COUNTS)
    text += (text.empty() ? "\"" : ", \"") + what + "\": " + std::to_string(number);
  text = "{" + text + "}";
  COUNTS.clear();
  return text.c_str();
}

void pretend_count(const char* what) { count(what); }
const char* pretend_wait(const char* what) { return guarded([&] { wait(what); }); }
void pretend_waits_raise(int raise) { WAITS_RAISE = raise; }
int64_t pretend_allocated() { return ALLOCATED; }

int64_t pretend_stream() { return STREAM; }
int64_t pretend_new_stream() { return ++STREAMS; }
void pretend_set_stream(int64_t stream) { STREAM = stream; }

int pretend_capturing() { return capturing(); }
const char* pretend_begin(int64_t* tape) {
  return guarded([&] { *tape = begin_capture(); });
}
const char* pretend_end() { return guarded(end_capture); }
const char* pretend_replay(int64_t tape) { return guarded([&] { replay(tape); }); }
void pretend_forget(int64_t tape) { TAPES.erase(tape); }
}
