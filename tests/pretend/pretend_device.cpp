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
#include <functional>
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

enum Event { kOperation, kWait, kToDevice, kToDeviceFromPageable, kToDeviceBlocking, kToCpu, kToCpuBlocking, kPin, kEventWait, kEventRecord, kRace };
std::atomic<int (*)(int, const char*)> listener{nullptr};  // returns whether the event is rejected

void report(Event event, const char* operation) {
  auto listen = listener.load();
  TORCH_CHECK(!listen || !listen(event, operation), "operation not permitted when stream is capturing: ", operation);
}

// ---- memory ----

thread_local c10::StreamId current_stream = 0;

struct Memory {
  Storage cpu;  // kept alive
  c10::StreamId stream;  // whose work may use the memory again as soon as it is freed
  bool is_recorded = false;  // for work on other streams, too
};

struct Allocator final : c10::DeviceAllocator {
  c10::DataPtr allocate(size_t n_bytes) override {
    return of_device(Storage(Storage::use_byte_size_t(), n_bytes, c10::GetCPUAllocator()->allocate(n_bytes)));
  }
  static c10::DataPtr of_device(const Storage& cpu) {
    return {cpu.mutable_data(), new Memory{cpu, current_stream}, [](void* kept) { delete static_cast<Memory*>(kept); }, kDevice};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, size_t n_bytes) const override { default_copy_data(to, from, n_bytes); }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr& data, c10::Stream) override { static_cast<Memory*>(data.get_context())->is_recorded = true; }
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
  void set_offset(uint64_t) override {}  // which the state includes
  uint64_t get_offset() const override { return 0; }
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

// ---- copies that take until the CPU waits for them ----
//
// All other work is done at once. A delayed copy to the CPU reads the device's memory as late as its stream allows: when
// the stream has other work, or another stream or the CPU waits for it. It writes when the CPU waits. A delayed copy to
// the device is made at once; its source is compared when the CPU waits, and must not have changed.

using Clock = std::map<c10::StreamId, uint64_t>;  // of each stream, the last copy that is done

struct Copy {
  c10::StreamId stream;
  uint64_t number;
  std::function<void()> read, finish;
  bool was_read = false;
};

class Delays {
 public:
  int start_or_end(bool is_start) {  // blocks may be nested
    wait_for_all();
    n_blocks_ += is_start ? 1 : -1;
    return n_to_device_;
  }
  bool is_on() const { return n_blocks_; }

  void add(std::function<void()> read, std::function<void()> finish) {
    std::lock_guard<std::mutex> lock(mutex_);
    copies_.push_back({current_stream, streams_[current_stream][current_stream] = ++n_copies_, std::move(read), std::move(finish)});
  }
  int count_to_device() { return n_to_device_++; }

  void start_work() {  // on the current stream
    if (is_on()) read([](const Copy& copy) { return copy.stream == current_stream; });
  }
  Clock of(c10::StreamId stream) {
    std::lock_guard<std::mutex> lock(mutex_);
    return streams_[stream];
  }
  void order(const Clock& event, c10::StreamId stream) {  // the stream's next work comes after the event
    if (!is_on()) return;
    read([&](const Copy& copy) { return is_before(copy, event); });
    std::lock_guard<std::mutex> lock(mutex_);
    for (auto [other, number] : event) streams_[stream][other] = std::max(streams_[stream][other], number);
  }
  void wait(const Clock& event) {
    if (is_on()) finish([&](const Copy& copy) { return is_before(copy, event); });
  }
  void wait(c10::StreamId stream) { wait(of(stream)); }
  void wait_for_all() { finish([](const Copy&) { return true; }); }

 private:
  static bool is_before(const Copy& copy, const Clock& event) {
    auto found = event.find(copy.stream);
    return found != event.end() && copy.number <= found->second;
  }
  template <typename F>
  void read(F applies) {
    std::lock_guard<std::mutex> lock(mutex_);
    for (auto& copy : copies_) {
      if (!std::exchange(copy.was_read, copy.was_read || applies(copy)) && copy.was_read) copy.read();
    }
  }
  template <typename F>
  void finish(F applies) {
    read(applies);
    std::vector<Copy> left, done;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      for (auto& copy : copies_) (applies(copy) ? done : left).push_back(std::move(copy));
      copies_ = std::move(left);
    }
    for (auto& copy : done) copy.finish();
  }

  std::mutex mutex_;
  std::atomic<int> n_blocks_{0}, n_to_device_{0};
  uint64_t n_copies_ = 0;
  std::map<c10::StreamId, Clock> streams_;  // what the next work of each comes after
  std::vector<Copy> copies_;
};
Delays& delays = *new Delays;  // never destroyed: tensors may be, when the process ends

void wait(const char* operation) {
  report(kWait, operation);
  delays.wait(current_stream);
}

// ---- the device, its streams and events ----

struct DeviceEvent {
  uint64_t number;
  Clock copies;
  std::string name() const { return "event " + std::to_string(number); }
};

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
  bool queryStream(const c10::Stream& stream) const override { return delays.wait(stream.id()), true; }
  void synchronizeStream(const c10::Stream& stream) const override {
    report(kWait, "synchronize");
    delays.wait(stream.id());
  }
  void synchronizeDevice(c10::DeviceIndex) const override {
    report(kWait, "synchronize");
    delays.wait_for_all();
  }
  void record(void** event, const c10::Stream& stream, c10::DeviceIndex, c10::EventFlag) const override {
    static std::atomic<uint64_t> n_records{0};
    if (!*event) *event = new DeviceEvent;
    auto& own = *static_cast<DeviceEvent*>(*event);
    own = {++n_records, delays.of(stream.id())};
    report(kEventRecord, own.name().c_str());
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event) delays.order(static_cast<DeviceEvent*>(event)->copies, stream.id());
  }
  bool queryEvent(void* event) const override {
    if (event) delays.wait(static_cast<DeviceEvent*>(event)->copies);
    return true;
  }
  void synchronizeEvent(void* event) const override {
    if (!event) return;  // it was never recorded
    auto& own = *static_cast<DeviceEvent*>(event);
    report(kEventWait, own.name().c_str());
    delays.wait(own.copies);
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override { delete static_cast<DeviceEvent*>(event); }
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
  delays.start_work();
  if (kWaiting.count(name)) wait(name.c_str());
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
        delays.wait(current_stream);
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
  delays.start_work();
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
  delays.start_work();
  report(kOperation, "aten::convolution_backward");
  Lending lending;
  const int64_t bias_sizes[] = {transposed ? weight.size(1) * groups : weight.size(0)};
  auto [to_input, to_weight, to_bias] = at::convolution_backward(lending.to_cpu(grad), lending.to_cpu(input), lending.to_cpu(weight),
      bias_sizes, stride, padding, dilation, transposed,
      output_padding, groups, mask);
  auto back = [&](const Tensor& tensor) { return tensor.defined() ? lending.to_device(tensor) : tensor; };
  return {back(to_input), back(to_weight), back(to_bias)};
}

void copy_now(const Tensor& from, const Tensor& to) {
  Lending lending;
  auto cpu = [&](const Tensor& tensor) { return is_ours(tensor) ? lending.to_cpu(tensor) : tensor; };
  cpu(to).copy_(cpu(from));
}

Tensor detached(const Tensor& tensor) { return tensor_in(tensor.storage(), DispatchKey::CPU, tensor); }

void delay_to_cpu(const Tensor& from, const Tensor& to) {
  struct Source {
    c10::weak_intrusive_ptr<c10::StorageImpl> memory;
    Storage kept;  // for as long as torch keeps it
    Tensor like;
  };
  auto& memory = *static_cast<Memory*>(from.storage().data_ptr().get_context());
  const bool is_kept = memory.stream == current_stream || memory.is_recorded;
  auto source = std::make_shared<Source>(Source{from.storage().getWeakStorageImpl(), is_kept ? from.storage() : Storage(), {}});
  source->like = tensor_in(Storage(Storage::use_byte_size_t(), 0, c10::DataPtr(nullptr, at::kCPU)), DispatchKey::CPU, from);
  auto target = detached(to), value = target.clone(at::MemoryFormat::Contiguous);
  auto invalidate = [](const Tensor& tensor) {
    if (tensor.is_non_overlapping_and_dense()) std::memset(tensor.mutable_data_ptr(), tensor.scalar_type() == at::kBool ? 1 : 0xff, tensor.nbytes());
  };
  invalidate(target);
  invalidate(value);
  auto read = [source, value]() {
    at::AutoDispatchBelowADInplaceOrView guard;
    if (auto memory = source->memory.lock()) {  // else another tensor may have its memory by now
      copy_now(tensor_in(Storage(std::move(memory)), DispatchKey::PrivateUse1, source->like), value);
    }
    source->kept = Storage();
  };
  auto finish = [target, value]() {
    at::AutoDispatchBelowADInplaceOrView guard;
    target.copy_(value);
  };
  delays.add(std::move(read), std::move(finish));
}

void delay_to_device(const Tensor& from) {
  auto source = detached(from), before = source.clone();
  delays.add([] {}, [source, before, index = std::to_string(delays.count_to_device())]() {
    at::AutoDispatchBelowADInplaceOrView guard;
    if (source.nbytes() && std::memcmp(source.contiguous().const_data_ptr(), before.contiguous().const_data_ptr(), before.nbytes())) {
      report(kRace, index.c_str());
    }
  });
}

Tensor copy_from(const Tensor& from, const Tensor& to, bool non_blocking) {
  const bool to_device = is_ours(to), is_asynchronous = non_blocking && is_pinned((to_device ? from : to).const_data_ptr());
  delays.start_work();
  if (to_device && is_ours(from)) {
    report(kOperation, "aten::copy_");
  } else if (to_device) {
    report(!non_blocking ? kToDeviceBlocking : is_asynchronous ? kToDevice : kToDeviceFromPageable, "aten::copy_");
  } else {
    report(is_asynchronous ? kToCpu : kToCpuBlocking, "aten::copy_");
  }
  if (is_asynchronous && delays.is_on() && is_ours(to) != is_ours(from)) {
    if (!to_device) return delay_to_cpu(from, to), to;
    delay_to_device(from);
  }
  copy_now(from, to);
  if (is_ours(to) != is_ours(from) && !(to_device && non_blocking)) delays.wait(current_stream);  // it blocked
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

// The CPU has no fused LSTM cell: its equations, through which autograd differentiates.
std::tuple<Tensor, Tensor, Tensor> lstm_cell(const Tensor& input_gates, const Tensor& hidden_gates, const Tensor& cell,
                                             const std::optional<Tensor>& input_bias, const std::optional<Tensor>& hidden_bias) {
  auto sum = input_gates.add(hidden_gates);
  if (input_bias) sum = sum.add(*input_bias);
  if (hidden_bias) sum = sum.add(*hidden_bias);
  auto gates = sum.chunk(4, 1);
  auto next = gates[1].sigmoid().mul(cell).add(gates[0].sigmoid().mul(gates[2].tanh()));
  return {gates[3].sigmoid().mul(next.tanh()), next, sum};
}

// One operation within the device, as on CUDA; a copy for each tensor from or to the CPU.
void copy_each(at::TensorList own, at::TensorList given, bool non_blocking) {
  const auto is_here = [](const Tensor& tensor) { return is_ours(tensor); };
  if (!std::all_of(own.begin(), own.end(), is_here) || !std::all_of(given.begin(), given.end(), is_here)) {
    for (size_t i = 0; i < own.size(); i++) own[i].copy_(given[i], non_blocking);
    return;
  }
  static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::_foreach_copy_", "");
  torch::jit::Stack stack{own, given, non_blocking};
  run(op, &stack);
}

TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, m) { m.impl("_thnn_fused_lstm_cell", lstm_cell); }

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&run>()); }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_copy_from", copy_from);
  m.impl("set_.source_Storage_storage_offset", set_storage);
  m.impl("set_.source_Storage", set_whole_storage);
  m.impl("set_.source_Tensor", set_tensor);
  m.impl("convolution_overrideable", convolution);
  m.impl("convolution_backward_overrideable", convolution_backward);
  // Torch's defaults call `out=` with a shape that it warns of, or need channels first.
  for (auto name : {"mse_loss", "smooth_l1_loss", "native_group_norm"}) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&run>());
  }
  // One operation on CUDA too; torch's default is one for each tensor.
  m.impl("_foreach_copy_", copy_each);
  for (auto name : {"_foreach_norm.Scalar", "_foreach_lerp_.Scalar", "_foreach_zero_", "_foreach_div_.Tensor",
                    "_foreach_clamp_max_.Scalar", "_foreach_clamp_min_.Scalar"}) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&run>());
  }
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
extern "C" int pretend_delay(int is_start) { return delays.start_or_end(is_start); }
