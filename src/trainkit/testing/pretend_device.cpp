// A device in ordinary memory: PyTorch's PrivateUse1 backend, whose operations the CPU's kernels execute.
//
// A tensor of the device shares its memory with a CPU tensor for the duration of each operation. Every operation, copy
// and wait is reported to a listener, which may reject it. `pretend_device.py` builds this file and listens.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Tensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <c10/core/AutogradState.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <atomic>
#include <map>
#include <set>

namespace at::autocast {
TORCH_API at::ScalarType get_autocast_dtype(c10::DeviceType device_type);
}

namespace {

using at::Tensor;
using c10::DispatchKey, c10::DispatchKeySet, c10::Storage;
const c10::Device kDevice(c10::DeviceType::PrivateUse1, 0);

// ---- what is reported ----

enum Event { kOperation, kWait, kToDevice, kToDeviceFromPageable, kToDeviceBlocking, kToCpu, kToCpuBlocking, kPin, kEventWait };
std::atomic<int (*)(int, const char*)> listener{nullptr};  // returns whether the event is rejected

void report(Event event, const char* operation) {
  auto listen = listener.load();
  TORCH_CHECK(!listen || !listen(event, operation), "operation not permitted when stream is capturing: ", operation);
}

// ---- memory ----

struct Allocator final : c10::DeviceAllocator {
  c10::DataPtr allocate(size_t n_bytes) override {
    return of_device(Storage(Storage::use_byte_size_t(), n_bytes, c10::GetCPUAllocator()->allocate(n_bytes)));
  }
  static c10::DataPtr of_device(const Storage& cpu) {  // keeps the CPU's storage alive
    return {cpu.mutable_data(), new Storage(cpu), [](void* kept) { delete static_cast<Storage*>(kept); }, kDevice};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, size_t n_bytes) const override { default_copy_data(to, from, n_bytes); }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex) override { return {}; }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex) override {}
};
Allocator allocator;
REGISTER_ALLOCATOR(c10::DeviceType::PrivateUse1, &allocator)

std::mutex pinned_mutex;
std::map<const char*, size_t> pinned;  // {start: size}

bool is_pinned(const void* data) {
  std::lock_guard<std::mutex> lock(pinned_mutex);
  auto after = pinned.upper_bound(static_cast<const char*>(data));
  return after != pinned.begin() && data < std::prev(after)->first + std::prev(after)->second;
}

struct PinnedAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t n_bytes) override {
    report(kPin, "pinned memory");
    auto memory = new c10::DataPtr(c10::GetCPUAllocator()->allocate(std::max<size_t>(n_bytes, 1)));
    std::lock_guard<std::mutex> lock(pinned_mutex);
    pinned[static_cast<const char*>(memory->get())] = std::max<size_t>(n_bytes, 1);
    return {memory->get(), memory, free, c10::Device(c10::DeviceType::CPU)};
  }
  static void free(void* context) {
    auto memory = static_cast<c10::DataPtr*>(context);
    std::lock_guard<std::mutex> lock(pinned_mutex);
    pinned.erase(static_cast<const char*>(memory->get()));
    delete memory;
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, size_t n_bytes) const override { default_copy_data(to, from, n_bytes); }
};
PinnedAllocator pinned_allocator;

// ---- random numbers: the CPU's, from a stream of the device's own ----

struct Generator final : c10::GeneratorImpl {
  at::Generator cpu;
  explicit Generator(at::Generator cpu = at::detail::createCPUGenerator())
      : GeneratorImpl(kDevice, DispatchKeySet(DispatchKey::PrivateUse1)), cpu(std::move(cpu)) {}
  void set_current_seed(uint64_t seed) override { cpu.set_current_seed(seed); }
  void set_offset(uint64_t offset) override { cpu.set_offset(offset); }
  uint64_t get_offset() const override { return cpu.get_offset(); }
  uint64_t current_seed() const override { return cpu.current_seed(); }
  uint64_t seed() override { return cpu.seed(); }
  void set_state(const c10::TensorImpl& state) override { cpu.unsafeGetGeneratorImpl()->set_state(state); }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override { return cpu.unsafeGetGeneratorImpl()->get_state(); }
  Generator* clone_impl() const override { return new Generator(cpu.clone()); }
};

at::Generator& default_generator() {
  static at::Generator generator = at::make_generator<Generator>();
  return generator;
}

TORCH_LIBRARY(pretend, m) {
  m.def("get_rng_state() -> Tensor", [] { return default_generator().get_state(); });
  m.def("set_rng_state(Tensor state) -> ()", [](const Tensor& state) { default_generator().set_state(state); });
  m.def("manual_seed(int seed) -> ()", [](int64_t seed) { default_generator().set_current_seed(seed); });
}

// ---- the device, its streams and events ----

thread_local c10::StreamId current_stream = 0;

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kDevice.type(); }
  c10::Device exchangeDevice(c10::Device) const override { return kDevice; }
  c10::Device getDevice() const override { return kDevice; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  static c10::Stream stream(c10::StreamId id) { return c10::Stream(c10::Stream::UNSAFE, kDevice, id); }
  c10::Stream getStream(c10::Device) const override { return stream(current_stream); }
  c10::Stream getDefaultStream(c10::Device) const override { return stream(0); }
  c10::Stream getNewStream(c10::Device, int) const override {
    static std::atomic<c10::StreamId> n_streams{0};
    return stream(++n_streams);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override { return getNewStream(device, 0); }
  c10::Stream exchangeStream(c10::Stream next) const override {
    return stream(std::exchange(current_stream, next.id()));
  }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override { report(kWait, "synchronize"); }
  void synchronizeDevice(c10::DeviceIndex) const override { report(kWait, "synchronize"); }
  void record(void** event, const c10::Stream&, c10::DeviceIndex, c10::EventFlag) const override {
    *event = const_cast<c10::Device*>(&kDevice);  // the work is done already
  }
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void synchronizeEvent(void*) const override { report(kEventWait, "Event.synchronize"); }
  void destroyEvent(void*, c10::DeviceIndex) const noexcept override {}
  double elapsedTime(void*, void*, c10::DeviceIndex) const override { return 0.0; }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  void setCurrentDevice(c10::DeviceIndex) const override {}
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex) const override { return 0; }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex) const override { return 0; }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override { return default_generator(); }
  at::Generator getNewGenerator(c10::DeviceIndex) const override { return at::make_generator<Generator>(); }
  bool isPinnedPtr(const void* data) const override { return is_pinned(data); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &pinned_allocator; }
  c10::Device getDeviceFromPtr(void*) const override { return kDevice; }
  void resizePrivateUse1Bytes(const Storage& storage, size_t n_bytes) const override {
    auto memory = allocator.allocate(n_bytes);
    std::memcpy(memory.get(), storage.data(), std::min(n_bytes, storage.nbytes()));
    storage.unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(memory));
    storage.unsafeGetStorageImpl()->set_nbytes(n_bytes);
  }
};
Hooks hooks;
const bool is_registered = (at::RegisterPrivateUse1HooksInterface(&hooks), true);

// ---- operations ----

bool is_ours(const Tensor& tensor) { return tensor.defined() && tensor.device().type() == kDevice.type(); }

Tensor tensor_in(const Storage& storage, DispatchKey key, const Tensor& like) {
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(Storage(storage), DispatchKeySet(key), like.dtype());
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
  return tensor;
}

// The tensors of one operation on the device, each with the CPU tensor in the same memory.
class Lending {
 public:
  Tensor to_cpu(const Tensor& own) {
    for (const auto& [ours, cpu] : tensors_) {
      if (ours.is_same(own)) return cpu;
    }
    Storage memory = counterpart(own.storage(), true);
    if (!memory) {
      auto& storage = own.storage();
      c10::DataPtr data(storage.mutable_data(), new Storage(storage), [](void* kept) { delete static_cast<Storage*>(kept); }, at::kCPU);
      memory = Storage(Storage::use_byte_size_t(), storage.nbytes(), std::move(data), c10::GetCPUAllocator(), true);
      storages_.emplace_back(storage, memory);
    }
    tensors_.emplace_back(own, tensor_in(memory, DispatchKey::CPU, own));
    return tensors_.back().second;
  }
  Tensor to_device(const Tensor& cpu) {
    for (const auto& [own, lent] : tensors_) {
      if (lent.is_same(cpu)) return own;
    }
    TORCH_CHECK(cpu.layout() == at::kStrided, "the pretend device has strided tensors only, got ", cpu.layout());
    Storage memory = counterpart(cpu.storage(), false);
    if (!memory) {
      auto data = Allocator::of_device(cpu.storage());
      memory = Storage(Storage::use_byte_size_t(), cpu.storage().nbytes(), std::move(data), &allocator, true);
      storages_.emplace_back(memory, cpu.storage());
    }
    return tensor_in(memory, DispatchKey::PrivateUse1, cpu);
  }
  void follow_changes() {  // of sizes and of memory, which operations with `out=` make
    for (const auto& [own, cpu] : storages_) {
      if (own.data() == cpu.data() && own.nbytes() == cpu.nbytes()) continue;
      own.unsafeGetStorageImpl()->set_data_ptr_noswap(Allocator::of_device(cpu));
      own.unsafeGetStorageImpl()->set_nbytes(cpu.nbytes());
    }
    for (const auto& [own, cpu] : tensors_) {
      if (own.sizes() == cpu.sizes() && own.strides() == cpu.strides() && own.storage_offset() == cpu.storage_offset()) continue;
      own.unsafeGetTensorImpl()->set_sizes_and_strides(cpu.sizes(), cpu.strides(), cpu.storage_offset());
    }
  }

 private:
  Storage counterpart(const Storage& storage, bool is_own) const {
    for (const auto& [own, cpu] : storages_) {
      if ((is_own ? own : cpu).unsafeGetStorageImpl() == storage.unsafeGetStorageImpl()) return is_own ? cpu : own;
    }
    return {};
  }
  std::vector<std::pair<Tensor, Tensor>> tensors_;  // ours, the CPU's
  std::vector<std::pair<Storage, Storage>> storages_;
};

template <typename F>
c10::IValue map_tensors(const c10::IValue& value, F map) {
  if (value.isTensor()) return value.toTensor().defined() ? c10::IValue(map(value.toTensor())) : value;
  if (value.isTensorList()) {
    c10::List<Tensor> mapped;
    for (const Tensor& tensor : value.toTensorVector()) mapped.push_back(tensor.defined() ? map(tensor) : tensor);
    return mapped;
  }
  if (value.isList() && value.toListRef().size() && value.type()->kind() == c10::TypeKind::ListType) {
    auto element = value.type()->castRaw<c10::ListType>()->getElementType();
    if (element->kind() == c10::TypeKind::OptionalType && element->castRaw<c10::OptionalType>()->getElementType()->kind() == c10::TypeKind::TensorType) {
      c10::List<std::optional<Tensor>> mapped;
      for (const c10::IValue& one : value.toListRef()) {
        mapped.push_back(one.isTensor() && one.toTensor().defined() ? std::optional<Tensor>(map(one.toTensor())) : std::nullopt);
      }
      return mapped;
    }
  }
  return value;
}

const std::set<std::string> kWaiting{"aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::equal",
    "aten::_unique", "aten::_unique2", "aten::unique_dim", "aten::unique_consecutive", "aten::repeat_interleave", "aten::bincount"};
const std::set<std::string> kFree{"aten::empty", "aten::empty_strided", "aten::resize_"};
const std::set<std::string> kIndexing{"aten::_index_put_impl_", "aten::index_put_", "aten::index"};  // CPU indices are copied

void run(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  // Backward passes stay in their caller's thread: torch starts the threads of devices at the process's first backward
  // pass, which may have been before this device was loaded.
  c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
  const auto& schema = op.schema();
  const auto& name = schema.name();
  const size_t start = stack->size() - schema.arguments().size();
  const auto& returns = schema.returns();
  const bool is_view = returns.size() && returns[0].alias_info() && !returns[0].alias_info()->isWrite();
  if (kWaiting.count(name)) report(kWait, name.c_str());
  if (!is_view && !kFree.count(name) && name != "aten::_local_scalar_dense") report(kOperation, name.c_str());

  Lending lending;
  for (size_t i = 0; i < schema.arguments().size(); i++) {
    auto& value = (*stack)[start + i];
    const auto& argument = schema.arguments()[i];
    const bool is_written = argument.alias_info() && argument.alias_info()->isWrite();
    if (value.isDevice()) value = c10::Device(at::kCPU);
    if (value.isGenerator() && value.toGenerator().device() == kDevice) {
      value = static_cast<Generator*>(value.toGenerator().unsafeGetGeneratorImpl())->cpu;
    } else if (value.isNone() && argument.type()->str() == "Generator?") {
      value = static_cast<Generator*>(default_generator().unsafeGetGeneratorImpl())->cpu;
    }
    value = map_tensors(value, [&](const Tensor& tensor) {
      if (is_ours(tensor)) return lending.to_cpu(tensor);
      if (kIndexing.count(name) && argument.name() == "indices") {
        report(kToDeviceBlocking, name.c_str());
      } else {
        TORCH_CHECK(tensor.dim() == 0 && !is_written,
            "Expected all tensors to be on the same device, but found at least two devices, pretend:0 and ", tensor.device(), "! (",
            name, ", argument ", argument.name(), ")");
      }
      return tensor;
    });
  }
  op.redispatchBoxed(DispatchKeySet(DispatchKey::CPU), stack);
  lending.follow_changes();
  for (size_t i = stack->size() - returns.size(); i < stack->size(); i++) {
    (*stack)[i] = map_tensors((*stack)[i], [&](const Tensor& tensor) { return lending.to_device(tensor); });
  }
}

void require_ours(const Tensor& tensor, const char* operation) {
  TORCH_CHECK(!tensor.defined() || is_ours(tensor), "Expected all tensors to be on the same device, but found at least two devices, pretend:0 and ",
      tensor.device(), "! (", operation, ")");
}

// Other backends override `convolution` by these; ours calls the CPU's.
Tensor convolution(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias, at::IntArrayRef stride, at::IntArrayRef padding,
                   at::IntArrayRef dilation, bool transposed, at::IntArrayRef output_padding, int64_t groups) {
  const char* name = "aten::convolution";
  report(kOperation, name);
  for (const auto& tensor : {input, weight, bias.value_or(Tensor())}) require_ours(tensor, name);
  Lending lending;
  std::optional<Tensor> cpu_bias = bias && bias->defined() ? std::optional<Tensor>(lending.to_cpu(*bias)) : std::nullopt;
  return lending.to_device(at::convolution(
      lending.to_cpu(input), lending.to_cpu(weight), cpu_bias, stride, padding, dilation, transposed, output_padding, groups));
}

std::tuple<Tensor, Tensor, Tensor> convolution_backward(
    const Tensor& grad, const Tensor& input, const Tensor& weight, at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation,
    bool transposed, at::IntArrayRef output_padding, int64_t groups, std::array<bool, 3> mask) {
  report(kOperation, "aten::convolution_backward");
  Lending lending;
  const int64_t bias_sizes[] = {transposed ? weight.size(1) * groups : weight.size(0)};
  auto [to_input, to_weight, to_bias] = at::convolution_backward(lending.to_cpu(grad), lending.to_cpu(input), lending.to_cpu(weight),
      bias_sizes, stride, padding, dilation, transposed,
      output_padding, groups, mask);
  auto back = [&](const Tensor& tensor) { return tensor.defined() ? lending.to_device(tensor) : tensor; };
  return {back(to_input), back(to_weight), back(to_bias)};
}

Tensor copy_from(const Tensor& from, const Tensor& to, bool non_blocking) {
  const bool to_device = is_ours(to), is_pinned_copy = is_pinned((to_device ? from : to).const_data_ptr());
  if (to_device && is_ours(from)) {
    report(kOperation, "aten::copy_");
  } else if (to_device) {
    report(!non_blocking ? kToDeviceBlocking : is_pinned_copy ? kToDevice : kToDeviceFromPageable, "aten::copy_");
  } else {
    report(non_blocking && is_pinned_copy ? kToCpu : kToCpuBlocking, "aten::copy_");
  }
  Lending lending;
  auto cpu = [&](const Tensor& tensor) { return is_ours(tensor) ? lending.to_cpu(tensor) : tensor; };
  cpu(to).copy_(cpu(from));
  return to;
}

Tensor& set_storage(Tensor& self, Storage source, int64_t offset, at::IntArrayRef size, at::IntArrayRef stride) {
  auto tensor = self.unsafeGetTensorImpl();
  tensor->set_storage_keep_dtype(std::move(source));
  if (stride.size() == size.size()) {
    tensor->set_sizes_and_strides(size, stride, offset);
  } else {  // none were given
    tensor->set_sizes_contiguous(size);
    tensor->set_storage_offset(offset);
  }
  return self;
}

Tensor& set_whole_storage(Tensor& self, Storage source) {
  const int64_t size = source.nbytes() / self.itemsize();
  return set_storage(self, std::move(source), 0, size, 1);
}

Tensor& set_tensor(Tensor& self, const Tensor& source) {
  return set_storage(self, source.storage(), source.storage_offset(), source.sizes(), source.strides());
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&run>()); }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_copy_from", copy_from);
  m.impl("set_.source_Storage_storage_offset", set_storage);
  m.impl("set_.source_Storage", set_whole_storage);
  m.impl("set_.source_Tensor", set_tensor);
  m.impl("convolution_overrideable", convolution);
  m.impl("convolution_backward_overrideable", convolution_backward);
}

// ---- autocast: matrix products in the lower precision, sums, losses and exponentials in float32, as on CUDA ----

template <bool is_lower>
void autocast(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  c10::impl::ExcludeDispatchKeyGuard inside(DispatchKey::AutocastPrivateUse1);
  const auto dtype = is_lower ? at::autocast::get_autocast_dtype(kDevice.type()) : at::kFloat;
  for (size_t i = stack->size() - op.schema().arguments().size(); i < stack->size(); i++) {
    (*stack)[i] = map_tensors((*stack)[i], [&](const Tensor& tensor) {
      const bool is_cast = is_ours(tensor) && tensor.is_floating_point() && tensor.scalar_type() != at::kDouble;
      return is_cast ? tensor.to(dtype) : tensor;
    });
  }
  op.callBoxed(stack);
}

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
  for (auto name : {"linear", "matmul", "mm", "mv", "addmm", "addmv", "bmm", "baddbmm", "convolution", "conv1d", "conv2d", "conv3d"}) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&autocast<true>>());
  }
  for (auto name : {"exp", "log", "log1p", "expm1", "pow.Tensor_Scalar", "pow.Tensor_Tensor", "softplus", "layer_norm", "mse_loss",
                    "smooth_l1_loss", "huber_loss", "l1_loss", "nll_loss", "softmax.int", "log_softmax.int", "cumsum", "cumprod", "sum",
                    "sum.dim_IntList", "prod", "prod.dim_int", "norm.Scalar", "reciprocal", "rsqrt", "acos", "asin", "cosh", "sinh", "tan"}) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&autocast<false>>());
  }
}

}  // namespace

extern "C" void pretend_listen(int (*listen)(int, const char*)) { listener.store(listen); }
