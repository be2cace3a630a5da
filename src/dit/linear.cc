#include "dit/linear.h"

#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <oneapi/dnnl/dnnl.hpp>
#include <tuple>
#include <utility>
#include <vector>

#include "core/numeric.h"
#include "core/safetensors.h"
#include "core/threads.h"
#include "winnow/error.h"
#include "winnow/threads.h"

namespace winnow::dit {

namespace {

using Clock = std::chrono::steady_clock;
std::int64_t nanoseconds_since(Clock::time_point start) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start).count();
}

// oneDNN's threads are switched off on the calling thread: Winnow's pool does the splitting. Debian's oneDNN uses OpenMP; a
// build without it has no such functions and needs no switching.
class OneThread {
 public:
  OneThread() {
    if (functions().get == nullptr || functions().set == nullptr) return;
    before_ = functions().get();
    if (before_ != 1) functions().set(1);
  }
  ~OneThread() {
    if (before_ > 1) functions().set(before_);
  }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  struct Functions {
    int (*get)();
    void (*set)(int);
  };
  static const Functions& functions() {
    static const Functions found{reinterpret_cast<int (*)()>(::dlsym(RTLD_DEFAULT, "omp_get_max_threads")),
                                 reinterpret_cast<void (*)(int)>(::dlsym(RTLD_DEFAULT, "omp_set_num_threads"))};
    return found;
  }
  int before_ = 1;
};

dnnl::memory::data_type dnnl_type(DType dtype) {
  return dtype == DType::bf16 ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32;
}

struct Key {
  std::int64_t rows, in, out;
  bool bf16;
  auto operator<=>(const Key&) const = default;
};

struct Matmul {
  dnnl::matmul::primitive_desc description;
  dnnl::matmul primitive;
  std::size_t scratch_bytes = 0;
};

// What one worker needs to run a primitive: memory objects whose pointers are set per call.
struct Port {
  dnnl::memory source, destination, scratch;
};

}  // namespace

struct LinearContext::Impl {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  std::vector<dnnl::stream> streams;  // one per worker
  std::map<Key, std::unique_ptr<Matmul>> matmuls;
  Workspace weight_memory;  // of all layers, side by side in huge pages
  bool emulate_bf16 = false;
  double seconds = 0.0;

  // Null if oneDNN has no such primitive for this processor.
  std::unique_ptr<Matmul> make(const Key& key, const dnnl::memory::desc* weights) const {
    using dnnl::memory;
    const OneThread one;
    const auto type = key.bf16 ? memory::data_type::bf16 : memory::data_type::f32;
    const memory::desc x({key.rows, key.in}, type, memory::format_tag::ab);
    const memory::desc w({key.in, key.out}, type, memory::format_tag::any);
    const memory::desc b({1, key.out}, memory::data_type::f32, memory::format_tag::ab);
    const memory::desc y({key.rows, key.out}, type, memory::format_tag::ab);
    dnnl::primitive_attr attributes;
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    auto made = std::make_unique<Matmul>();
    made->description =
        dnnl::matmul::primitive_desc(dnnl::matmul::desc(x, weights == nullptr ? w : *weights, b, y), attributes, engine, true);
    if (!made->description) return nullptr;
    made->primitive = dnnl::matmul(made->description);
    made->scratch_bytes = made->description.scratchpad_desc().get_size();
    return made;
  }
  // oneDNN's portable fallback; correct, and about a thousand times slower.
  static bool is_reference(const Matmul& matmul) { return std::string_view(matmul.description.impl_info_str()).substr(0, 3) == "ref"; }

  const Matmul& matmul(const Key& key, const dnnl::memory::desc* weights) {
    auto& slot = matmuls[key];
    if (!slot) {
      if (weights != nullptr) slot = make(key, weights);
      if (!slot || is_reference(*slot)) slot = make(key, nullptr);
      if (!slot) {
        throw Error("linear", "oneDNN has no matmul for " + std::to_string(key.rows) + "x" + std::to_string(key.in) + "x" +
                                  std::to_string(key.out) + (key.bf16 ? " bf16" : " f32") + " on this processor");
      }
    }
    return *slot;
  }
  void grow(int workers) {
    while (streams.size() < static_cast<std::size_t>(workers)) streams.emplace_back(engine);
  }
};

LinearContext::LinearContext(bool emulate_bf16) : impl_(std::make_unique<Impl>()) {
  impl_->emulate_bf16 = emulate_bf16;
  if (!emulate_bf16) {
    const auto probe = impl_->make({Linear::kRows, 64, 64, true}, nullptr);
    impl_->emulate_bf16 = !probe || Impl::is_reference(*probe);
  }
}
LinearContext::~LinearContext() = default;

double LinearContext::seconds() const { return impl_->seconds; }

std::string LinearContext::implementation(DType compute) const {
  const bool bf16 = compute == DType::bf16 && !impl_->emulate_bf16;
  const auto made = impl_->make({Linear::kRows, 256, 256, bf16}, nullptr);
  return made ? made->description.impl_info_str() : "none";
}

// What a block of some number of rows needs.
struct Linear::Ready {
  std::int64_t rows = 0;
  const Matmul* matmul = nullptr;
  const dnnl::memory* weights = nullptr;
  std::vector<Port> ports;  // one per worker
};

struct Linear::Weights {
  std::vector<std::unique_ptr<dnnl::memory>> layouts;  // of the same weights; a second one only if a row count needs it
  std::vector<std::unique_ptr<Ready>> ready;
  Tensor bias;
  dnnl::memory bias_memory;
};

namespace {

// Copies `from` into the layout `to`.
std::unique_ptr<dnnl::memory> relayout(LinearContext::Impl& context, dnnl::memory from, const dnnl::memory::desc& to) {
  const OneThread one;
  auto memory = std::make_unique<dnnl::memory>(to, context.engine, context.weight_memory.allocate_bytes(to.get_size()));
  context.grow(1);
  dnnl::reorder(from, *memory).execute(context.streams[0], from, *memory);
  context.streams[0].wait();
  return memory;
}

}  // namespace

Linear::Linear(LinearContext& context, const TensorView& weight, const TensorView& bias, DType compute)
    : context_(&context), compute_(compute), weights_(std::make_shared<Weights>()) {
  if (weight.rank != 2 || bias.rank != 1 || bias.size(0) != weight.size(0) || (compute != DType::f32 && compute != DType::bf16)) {
    throw Error("linear", "expected weight [out,in] and bias [out], got " + weight.describe() + " and " + bias.describe());
  }
  out_ = weight.size(0);
  in_ = weight.size(1);
  LinearContext::Impl& impl = *context.impl_;
  const bool bf16 = compute == DType::bf16 && !impl.emulate_bf16;
  // The operands' values are those of the compute dtype, also where they are kept wider.
  Tensor values(compute, {out_, in_});
  convert(weight, values);
  Tensor rounded(compute, {out_});
  convert(bias, rounded);
  weights_->bias = Tensor(DType::f32, {out_});
  convert(rounded, weights_->bias);
  if (compute == DType::bf16 && !bf16) {
    Tensor wide(DType::f32, {out_, in_});
    convert(values, wide);
    values = std::move(wide);
  }
  using dnnl::memory;
  const memory::desc plain({in_, out_}, dnnl_type(bf16 ? DType::bf16 : DType::f32), memory::format_tag::ba);  // [out,in] seen as [in,out]
  const Matmul& main = impl.matmul({kRows, in_, out_, bf16}, nullptr);
  weights_->layouts.push_back(relayout(impl, memory(plain, impl.engine, values.view().data), main.description.weights_desc()));
  weights_->bias_memory = memory({{1, out_}, memory::data_type::f32, memory::format_tag::ab}, impl.engine, weights_->bias.view().data);
  bytes_ = main.description.weights_desc().get_size() + weights_->bias.bytes();
}

void Linear::prepare(std::int64_t rows) const {
  if (rows >= kRows) ready(kRows);
  if (rows % kRows != 0) ready(rows % kRows);
}

bool Linear::widens() const { return compute_ == DType::bf16 && context_->impl_->emulate_bf16; }

Linear::Ready* Linear::find_ready(std::int64_t block_rows, int workers) const {
  for (const auto& made : weights_->ready) {
    if (made->rows == block_rows && made->ports.size() >= static_cast<std::size_t>(workers)) return made.get();
  }
  return nullptr;
}

Linear::Ready* Linear::ready(std::int64_t block_rows) const {
  const int workers = num_threads();
  LinearContext::Impl& impl = *context_->impl_;
  impl.grow(workers);
  if (Ready* const found = find_ready(block_rows, workers)) return found;
  std::erase_if(weights_->ready, [&](const auto& made) { return made->rows == block_rows; });
  const dnnl::memory::desc main = weights_->layouts[0]->get_desc();
  auto made = std::make_unique<Ready>();
  made->rows = block_rows;
  made->matmul = &impl.matmul({block_rows, in_, out_, compute_ == DType::bf16 && !impl.emulate_bf16}, &main);
  const dnnl::memory::desc wanted = made->matmul->description.weights_desc();
  for (const auto& layout : weights_->layouts) {
    if (layout->get_desc() == wanted) made->weights = layout.get();
  }
  if (made->weights == nullptr) {
    weights_->layouts.push_back(relayout(impl, *weights_->layouts[0], wanted));
    made->weights = weights_->layouts.back().get();
  }
  for (int worker = 0; worker < workers; ++worker) {
    const auto& d = made->matmul->description;
    made->ports.push_back({dnnl::memory(d.src_desc(), impl.engine, nullptr), dnnl::memory(d.dst_desc(), impl.engine, nullptr),
                           dnnl::memory(d.scratchpad_desc(), impl.engine, nullptr)});
  }
  weights_->ready.push_back(std::move(made));
  return weights_->ready.back().get();
}

void Linear::check(const TensorView& x, const TensorView& y) const {
  if (x.rank != 2 || y.rank != 2 || x.size(1) != in_ || y.size(1) != out_ || x.size(0) != y.size(0) || x.dtype != compute_ ||
      y.dtype != compute_ || !x.is_contiguous() || !y.is_contiguous()) {
    throw Error("linear", "expected contiguous [M," + std::to_string(in_) + "] and [M," + std::to_string(out_) + "] " +
                              dtype_name(compute_) + ", got " + x.describe() + " and " + y.describe());
  }
}

void RowBlock::run(const Linear& layer, const TensorView& x, const TensorView& y) {
  const auto start = Clock::now();
  layer.check(x, y);
  const std::int64_t n = x.size(0);
  Linear::Ready* const use = layer.find_ready(n, worker_ + 1);
  if (use == nullptr) throw Error("linear", "expected a layer of this pass and its number of rows, got " + x.describe());
  Port& port = use->ports[static_cast<std::size_t>(worker_)];
  void* source = x.data;
  void* destination = y.data;
  if (layer.widens()) {
    source = wide_;
    destination = wide_ + n * layer.in();
    convert(x, TensorView(source, DType::f32, {n, layer.in()}));
  }
  port.source.set_data_handle(source);
  port.destination.set_data_handle(destination);
  port.scratch.set_data_handle(scratch_);
  // The C interface, because the C++ one builds a vector per call.
  const dnnl_exec_arg_t arguments[] = {{DNNL_ARG_SRC, port.source.get()},
                                       {DNNL_ARG_WEIGHTS, use->weights->get()},
                                       {DNNL_ARG_BIAS, layer.weights_->bias_memory.get()},
                                       {DNNL_ARG_DST, port.destination.get()},
                                       {DNNL_ARG_SCRATCHPAD, port.scratch.get()}};
  const OneThread one;
  const dnnl_status_t status =
      dnnl_primitive_execute(use->matmul->primitive.get(), layer.context_->impl_->streams[static_cast<std::size_t>(worker_)].get(),
                             static_cast<int>(std::size(arguments)), arguments);
  if (status != dnnl_success) throw Error("linear", "oneDNN failed with status " + std::to_string(static_cast<int>(status)));
  if (layer.widens()) convert(TensorView(destination, DType::f32, {n, layer.out()}), y);
  linear_nanoseconds_ += nanoseconds_since(start);
}

void Linear::for_blocks(std::span<const Linear* const> layers, std::int64_t rows, Workspace& ws, void (*body)(const void*, RowBlock&),
                        const void* context) {
  const auto start = Clock::now();
  const int workers = num_threads();
  const std::int64_t block_rows = std::min(rows, kRows);
  std::size_t scratch_bytes = 1;
  std::size_t wide_floats = 0;
  for (const Linear* layer : layers) {
    for (const std::int64_t n : {rows / kRows * kRows > 0 ? kRows : 0, rows % kRows}) {
      if (n > 0) scratch_bytes = std::max(scratch_bytes, layer->ready(n)->matmul->scratch_bytes);
    }
    if (layer->widens()) wide_floats = std::max(wide_floats, static_cast<std::size_t>(block_rows * (layer->in_ + layer->out_)));
  }
  scratch_bytes = (scratch_bytes + 63) / 64 * 64;
  const Workspace::Scope scope(ws);
  auto* scratch = ws.allocate<std::byte>(scratch_bytes * static_cast<std::size_t>(workers));
  auto* wide = ws.allocate<float>(wide_floats * static_cast<std::size_t>(workers));

  std::atomic<std::int64_t> linear_nanoseconds{0};  // over all workers
  std::atomic<std::int64_t> nanoseconds{0};
  parallel_for((rows + kRows - 1) / kRows, [&](std::int64_t i, int worker) {
    const auto block_start = Clock::now();
    RowBlock block;
    block.begin_ = i * kRows;
    block.end_ = std::min(rows, block.begin_ + kRows);
    block.worker_ = worker;
    block.scratch_ = scratch + scratch_bytes * static_cast<std::size_t>(worker);
    block.wide_ = wide + wide_floats * static_cast<std::size_t>(worker);
    body(context, block);
    linear_nanoseconds += block.linear_nanoseconds_;
    nanoseconds += nanoseconds_since(block_start);
  });
  // Waits at the end count as what the workers did before.
  const double share = static_cast<double>(linear_nanoseconds.load()) / static_cast<double>(std::max<std::int64_t>(1, nanoseconds.load()));
  layers[0]->context_->impl_->seconds += share * 1e-9 * static_cast<double>(nanoseconds_since(start));
}

void Linear::run(const TensorView& x, const TensorView& y, Workspace& ws) const {
  check(x, y);
  for_blocks({this}, x.size(0), ws, [&](RowBlock& block) { block.run(*this, block.of(x), block.of(y)); });
}

}  // namespace winnow::dit
