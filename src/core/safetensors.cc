#include "core/safetensors.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "core/label.h"
#include "core/numeric.h"
#include "core/partial_file.h"
#include "winnow/error.h"

namespace winnow {

namespace {

constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;  // the format's own limit
constexpr const char* kMetadata = "__metadata__";

struct DTypeName {
  const char* name;
  DType dtype;
};
constexpr DTypeName kDTypes[] = {{"F32", DType::f32}, {"F16", DType::f16}, {"BF16", DType::bf16},
                                 {"F64", DType::f64}, {"I8", DType::i8},   {"U8", DType::u8},
                                 {"I32", DType::i32}, {"I64", DType::i64}, {"BOOL", DType::boolean}};

struct Entry {
  bool has_dtype = false, has_shape = false, has_offsets = false;
  DType dtype = DType::f32;
  std::vector<std::int64_t> shape;
  std::vector<std::uint64_t> offsets;
};

// Streaming reader of the header's grammar, the same for any depth of nesting that a file may try:
//   { "__metadata__": {string: string...}, name: {"dtype": string, "shape": [n...], "data_offsets": [n, n]}, ... }
class HeaderReader final : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit HeaderReader(const std::string& file) : file_(file) {}

  std::map<std::string, Entry> entries;
  std::map<std::string, std::string> metadata;

  bool null() override { return unexpected("null"); }
  bool boolean(bool /*value*/) override { return unexpected("a boolean"); }
  bool number_integer(number_integer_t /*value*/) override { return unexpected("a negative number"); }
  bool number_float(number_float_t /*value*/, const string_t& text) override { return unexpected(text); }
  bool binary(binary_t& /*value*/) override { return unexpected("binary data"); }
  bool number_unsigned(number_unsigned_t value) override {
    if (state_ == State::shape) {
      if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
        return unexpected("an extent of " + std::to_string(value));
      if (entry_->shape.size() == static_cast<std::size_t>(TensorView::kMaxRank)) {
        return fail("rank: expected at most " + std::to_string(TensorView::kMaxRank));
      }
      entry_->shape.push_back(static_cast<std::int64_t>(value));
      return true;
    }
    if (state_ == State::offsets && entry_->offsets.size() < 2) {
      entry_->offsets.push_back(value);
      return true;
    }
    return unexpected("a number");
  }
  bool string(string_t& value) override {
    if (state_ == State::metadata) {
      if (!metadata.emplace(key_, value).second) return fail("appears twice");
      return true;
    }
    if (state_ != State::dtype) return unexpected("a string");
    for (const DTypeName& known : kDTypes) {
      if (value == known.name) {
        entry_->dtype = known.dtype;
        state_ = State::tensor;
        return true;
      }
    }
    return fail("dtype \"" + value + "\" is not supported");
  }
  bool start_object(std::size_t /*elements*/) override {
    if (state_ == State::begin) return go(State::top);
    if (state_ == State::name) return go(name_ == kMetadata ? State::metadata : State::tensor);
    return unexpected("an object");
  }
  bool end_object() override {
    if (state_ == State::top) return go(State::end);
    if (state_ == State::tensor && !(entry_->has_dtype && entry_->has_shape && entry_->has_offsets && entry_->offsets.size() == 2)) {
      return fail("expected dtype, shape and two data_offsets");
    }
    key_.clear();
    return go(State::top);
  }
  bool start_array(std::size_t /*elements*/) override {
    if (state_ == State::shape_begin) return go(State::shape);
    if (state_ == State::offsets_begin) return go(State::offsets);
    return unexpected("an array");
  }
  bool end_array() override { return go(State::tensor); }
  bool key(string_t& value) override {
    if (state_ == State::top) {
      name_ = value;
      if (name_ == kMetadata) {
        if (std::exchange(seen_metadata_, true)) return fail("appears twice");
      } else {
        const auto [at, added] = entries.try_emplace(value);
        if (!added) return fail("appears twice");
        entry_ = &at->second;
      }
      return go(State::name);
    }
    key_ = value;
    if (state_ == State::metadata) return true;
    if (state_ == State::tensor) {
      if (value == "dtype" && !std::exchange(entry_->has_dtype, true)) return go(State::dtype);
      if (value == "shape" && !std::exchange(entry_->has_shape, true)) return go(State::shape_begin);
      if (value == "data_offsets" && !std::exchange(entry_->has_offsets, true)) return go(State::offsets_begin);
      return fail("expected each of dtype, shape, data_offsets once");
    }
    return unexpected("a key");
  }
  bool parse_error(std::size_t position, const std::string& /*token*/, const nlohmann::detail::exception& e) override {
    throw Error("safetensors", file_ + ": header is not valid JSON at byte " + std::to_string(position) + ": " + e.what());
  }

 private:
  enum class State { begin, top, name, metadata, tensor, dtype, shape_begin, shape, offsets_begin, offsets, end };

  bool go(State state) {
    state_ = state;
    return true;
  }
  bool fail(const std::string& what) const {
    std::string where = file_ + ": header";
    if (!name_.empty()) where += ": " + name_;
    if (!key_.empty()) where += ": " + key_;
    throw Error("safetensors", where + ": " + what);
  }
  bool unexpected(const std::string& what) const { return fail("unexpected " + what); }

  std::string file_, name_, key_;
  State state_ = State::begin;
  Entry* entry_ = nullptr;
  bool seen_metadata_ = false;
};

std::string errno_text() { return std::strerror(errno); }

// A file descriptor that closes itself.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

}  // namespace

struct SafetensorsFile::Impl {
  std::string name;
  void* mapping = nullptr;
  std::size_t mapping_bytes = 0;
  std::vector<std::string> keys;
  std::map<std::string, TensorView, std::less<>> tensors;
  std::map<std::string, std::string> metadata;

  Impl() = default;
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  ~Impl() {
    if (mapping != nullptr) ::munmap(mapping, mapping_bytes);
  }

  // `bytes`: the file, or as much of its beginning as a header can take. In that case views have no data.
  void read(std::span<const std::byte> bytes, std::uint64_t file_bytes);
};

void SafetensorsFile::Impl::read(std::span<const std::byte> bytes, std::uint64_t file_bytes) {
  const auto fail = [&](const std::string& what) { throw Error("safetensors", name + ": " + what); };
  if (bytes.size() < 8) fail("expected at least 8 bytes, got " + std::to_string(bytes.size()));
  std::uint64_t header_bytes = 0;
  for (unsigned i = 0; i < 8; ++i) header_bytes |= static_cast<std::uint64_t>(bytes[i]) << (8 * i);
  if (header_bytes > kMaxHeaderBytes) {
    fail("header length: expected at most " + std::to_string(kMaxHeaderBytes) + " bytes, got " + std::to_string(header_bytes));
  }
  if (header_bytes > file_bytes - 8) {
    fail("header of " + std::to_string(header_bytes) + " bytes does not fit a file of " + std::to_string(file_bytes) + " bytes");
  }
  const auto* text = reinterpret_cast<const char*>(bytes.data() + 8);
  if (header_bytes == 0 || text[0] != '{') fail("header: expected '{' first");
  HeaderReader reader(name);
  nlohmann::json::sax_parse(text, text + header_bytes, &reader);

  const std::uint64_t data_bytes = file_bytes - 8 - header_bytes;
  const std::byte* data = bytes.size() == file_bytes ? bytes.data() + 8 + header_bytes : nullptr;
  struct Range {
    std::uint64_t begin, end;
    const std::string* name;
  };
  std::vector<Range> ranges;
  for (const auto& item : reader.entries) {
    const std::string& key = item.first;
    const Entry& entry = item.second;
    const auto reject = [&](const std::string& what) { fail(key + ": " + what); };
    const std::uint64_t begin = entry.offsets[0];
    const std::uint64_t end = entry.offsets[1];
    if (begin > end || end > data_bytes) {
      reject("data_offsets [" + std::to_string(begin) + "," + std::to_string(end) + "] are not within " + std::to_string(data_bytes) +
             " bytes of data");
    }
    std::uint64_t need = dtype_bytes(entry.dtype);
    const bool empty = std::find(entry.shape.begin(), entry.shape.end(), 0) != entry.shape.end();
    for (const std::int64_t extent : entry.shape) {
      if (empty) break;
      if (need > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()) / static_cast<std::uint64_t>(extent)) {
        reject("shape has too many elements");
      }
      need *= static_cast<std::uint64_t>(extent);
    }
    if (empty) need = 0;
    if (end - begin != need) {
      reject("shape needs " + std::to_string(need) + " bytes, data_offsets give " + std::to_string(end - begin));
    }
    auto* start =
        data == nullptr ? nullptr : const_cast<std::byte*>(data + begin);  // NOLINT(cppcoreguidelines-pro-type-const-cast): see TensorView
    try {
      tensors.emplace(key, TensorView(static_cast<void*>(start), entry.dtype, entry.shape.data(), static_cast<int>(entry.shape.size())));
    } catch (const Error& e) {
      reject(e.message());
    }
    keys.push_back(key);
    ranges.push_back({begin, end, &key});
  }
  std::sort(ranges.begin(), ranges.end(),
            [](const Range& a, const Range& b) { return std::pair(a.begin, a.end) < std::pair(b.begin, b.end); });
  std::uint64_t covered = 0;
  for (const Range& range : ranges) {
    if (range.begin != covered) {
      fail(*range.name + ": data_offsets begin at " + std::to_string(range.begin) + ", expected " + std::to_string(covered) +
           (range.begin < covered ? " (overlap)" : " (hole)"));
    }
    covered = range.end;
  }
  if (covered != data_bytes) {
    fail("tensors cover " + std::to_string(covered) + " bytes of data, the file has " + std::to_string(data_bytes));
  }
  metadata = std::move(reader.metadata);
}

// Maps at most `most` bytes from the file's beginning.
std::unique_ptr<SafetensorsFile::Impl> SafetensorsFile::map(const std::string& path, std::uint64_t most) {
  const Descriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (fd.get() < 0) throw Error("safetensors", path + ": cannot open: " + errno_text());
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) throw Error("safetensors", path + ": cannot read its size: " + errno_text());
  if (!S_ISREG(info.st_mode)) throw Error("safetensors", path + ": not a regular file");
  auto impl = std::make_unique<Impl>();
  impl->name = path;
  std::span<const std::byte> bytes;
  const auto file_bytes = static_cast<std::uint64_t>(info.st_size);
  if (file_bytes > 0) {
    const auto size = static_cast<std::size_t>(std::min(file_bytes, most));
    void* mapping = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd.get(), 0);
    if (mapping == MAP_FAILED) throw Error("safetensors", path + ": cannot map: " + errno_text());
    impl->mapping = mapping;
    impl->mapping_bytes = size;
    bytes = {static_cast<const std::byte*>(mapping), size};
  }
  impl->read(bytes, file_bytes);
  return impl;
}

SafetensorsFile SafetensorsFile::open(const std::string& path) {
  return SafetensorsFile(map(path, std::numeric_limits<std::uint64_t>::max()));
}

std::uint64_t SafetensorsFile::count_elements(const std::string& path) {
  const std::unique_ptr<Impl> header = map(path, 8 + kMaxHeaderBytes);
  std::uint64_t count = 0;
  for (const auto& tensor : header->tensors) count += static_cast<std::uint64_t>(tensor.second.numel());
  return count;
}

SafetensorsFile SafetensorsFile::parse(std::span<const std::byte> bytes, const std::string& name) {
  auto impl = std::make_unique<Impl>();
  impl->name = name;
  impl->read(bytes, bytes.size());
  return SafetensorsFile(std::move(impl));
}

SafetensorsFile::SafetensorsFile(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
SafetensorsFile::SafetensorsFile(SafetensorsFile&&) noexcept = default;
SafetensorsFile& SafetensorsFile::operator=(SafetensorsFile&&) noexcept = default;
SafetensorsFile::~SafetensorsFile() = default;

const std::string& SafetensorsFile::name() const { return impl_->name; }
const std::vector<std::string>& SafetensorsFile::keys() const { return impl_->keys; }
bool SafetensorsFile::contains(std::string_view key) const { return impl_->tensors.find(key) != impl_->tensors.end(); }
const std::map<std::string, std::string>& SafetensorsFile::metadata() const { return impl_->metadata; }

TensorView SafetensorsFile::at(std::string_view key) const {
  const auto found = impl_->tensors.find(key);
  if (found == impl_->tensors.end()) throw Error("safetensors", impl_->name + ": no tensor named " + std::string(key));
  return found->second;
}

Tensor SafetensorsFile::copy(std::string_view key) const { return copy(key, at(key).dtype); }

Tensor SafetensorsFile::copy(std::string_view key, DType dtype) const {
  const TensorView view = at(key);
  Tensor out(dtype, view.shape.data(), view.rank);
  if (view.dtype == dtype) {
    if (out.bytes() > 0) std::memcpy(out.view().data, view.data, out.bytes());
    return out;
  }
  with_label("safetensors", impl_->name + ": " + std::string(key), [&] { convert(view, out); });
  return out;
}

namespace {

// Reads and writes through memcpy: mapped data may be unaligned for its dtype.
template <class T>
T read_at(const std::byte* p) {
  T value;
  std::memcpy(&value, p, sizeof value);
  return value;
}
inline double widen(double x) { return x; }
inline float widen(float x) { return x; }
inline float widen(bf16 x) { return to_f32(x); }
inline float widen(f16 x) { return to_f32(x); }
template <class To>
To narrow(double x) {
  if constexpr (std::is_same_v<To, double>) return x;
  if constexpr (std::is_same_v<To, float>) return static_cast<float>(x);
  if constexpr (std::is_same_v<To, bf16>) return to_bf16(static_cast<float>(x));  // f64 sources round twice, through f32
  if constexpr (std::is_same_v<To, f16>) return to_f16(static_cast<float>(x));
}
template <class To>
To narrow(float x) {
  if constexpr (std::is_same_v<To, double>) return static_cast<double>(x);
  if constexpr (std::is_same_v<To, float>) return x;
  if constexpr (std::is_same_v<To, bf16>) return to_bf16(x);
  if constexpr (std::is_same_v<To, f16>) return to_f16(x);
}

template <class From, class To>
void convert_run(const std::byte* from, std::int64_t from_stride, std::byte* to, std::int64_t to_stride, std::int64_t n) {
  const auto from_step = from_stride * static_cast<std::int64_t>(sizeof(From));
  const auto to_step = to_stride * static_cast<std::int64_t>(sizeof(To));
  for (std::int64_t i = 0; i < n; ++i) {
    const To value = narrow<To>(widen(read_at<From>(from + i * from_step)));
    std::memcpy(to + i * to_step, &value, sizeof value);
  }
}

using Run = void (*)(const std::byte*, std::int64_t, std::byte*, std::int64_t, std::int64_t);

template <class From>
Run choose_run(DType to) {
  switch (to) {
    case DType::f32: return convert_run<From, float>;
    case DType::f64: return convert_run<From, double>;
    case DType::f16: return convert_run<From, f16>;
    case DType::bf16: return convert_run<From, bf16>;
    default: return nullptr;
  }
}

Run choose_run(DType from, DType to) {
  switch (from) {
    case DType::f32: return choose_run<float>(to);
    case DType::f64: return choose_run<double>(to);
    case DType::f16: return choose_run<f16>(to);
    case DType::bf16: return choose_run<bf16>(to);
    default: return nullptr;
  }
}

}  // namespace

void convert(const TensorView& from, const TensorView& to) {
  if (from.rank != to.rank || !std::equal(from.shape.begin(), from.shape.begin() + from.rank, to.shape.begin())) {
    throw Error("convert", "to: expected the shape of " + from.describe() + ", got " + to.describe());
  }
  const Run run = choose_run(from.dtype, to.dtype);
  if (run == nullptr) throw Error("convert", std::string("cannot convert ") + dtype_name(from.dtype) + " to " + dtype_name(to.dtype));
  const std::int64_t total = from.numel();
  if (total == 0) return;
  const auto* source = static_cast<const std::byte*>(from.data);
  auto* target = static_cast<std::byte*>(to.data);
  if (from.is_contiguous() && to.is_contiguous()) return run(source, 1, target, 1, total);
  const auto from_bytes = static_cast<std::int64_t>(dtype_bytes(from.dtype));
  const auto to_bytes = static_cast<std::int64_t>(dtype_bytes(to.dtype));
  const int last = from.rank - 1;
  std::array<std::int64_t, TensorView::kMaxRank> index{};
  for (std::int64_t done = 0; done < total; done += from.size(last)) {
    std::int64_t a = 0;
    std::int64_t b = 0;
    for (int axis = 0; axis < last; ++axis) {
      a += index[static_cast<std::size_t>(axis)] * from.stride(axis);
      b += index[static_cast<std::size_t>(axis)] * to.stride(axis);
    }
    run(source + a * from_bytes, from.stride(last), target + b * to_bytes, to.stride(last), from.size(last));
    for (int axis = last - 1; axis >= 0; --axis) {
      if (++index[static_cast<std::size_t>(axis)] < from.size(axis)) break;
      index[static_cast<std::size_t>(axis)] = 0;
    }
  }
}

namespace {

const char* format_name(DType dtype) {
  for (const DTypeName& known : kDTypes) {
    if (known.dtype == dtype) return known.name;
  }
  return "";
}

std::string make_header(const std::vector<const NamedTensor*>& order, const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header[kMetadata] = metadata;
  std::uint64_t offset = 0;
  for (const NamedTensor* tensor : order) {
    const TensorView& view = tensor->view;
    const std::uint64_t end = offset + static_cast<std::uint64_t>(view.numel()) * dtype_bytes(view.dtype);
    nlohmann::ordered_json entry;
    entry["dtype"] = format_name(view.dtype);
    entry["shape"] = std::vector<std::int64_t>(view.shape.begin(), view.shape.begin() + view.rank);
    entry["data_offsets"] = {offset, end};
    header[tensor->name] = std::move(entry);
    offset = end;
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');  // the data section starts aligned
  return text;
}

}  // namespace

void write_safetensors(const std::string& path, std::span<const NamedTensor> tensors, const std::map<std::string, std::string>& metadata) {
  std::vector<const NamedTensor*> order;
  std::set<std::string_view> names;
  for (const NamedTensor& tensor : tensors) {
    if (tensor.name == kMetadata || !names.insert(tensor.name).second) {
      throw Error("safetensors", path + ": " + tensor.name + (tensor.name == kMetadata ? ": reserved name" : ": appears twice"));
    }
    if (!tensor.view.is_contiguous()) throw Error("safetensors", path + ": " + tensor.name + ": expected a contiguous tensor");
    if (tensor.view.device != Device::cpu) throw Error("safetensors", path + ": " + tensor.name + ": expected a CPU tensor");
    order.push_back(&tensor);
  }
  // Widest elements first, then by name: every tensor is aligned, and equal contents give equal files.
  std::sort(order.begin(), order.end(), [](const NamedTensor* a, const NamedTensor* b) {
    return std::pair(-static_cast<int>(dtype_bytes(a->view.dtype)), std::string_view(a->name)) <
           std::pair(-static_cast<int>(dtype_bytes(b->view.dtype)), std::string_view(b->name));
  });
  std::string header;
  try {
    header = make_header(order, metadata);
  } catch (const nlohmann::json::exception& e) {  // a name that is not UTF-8
    throw Error("safetensors", path + ": cannot write the header: " + e.what());
  }
  if (header.size() > kMaxHeaderBytes) throw Error("safetensors", path + ": header is larger than the format allows");

  PartialFile file("safetensors", path);
  std::byte length[8];
  for (unsigned i = 0; i < 8; ++i) length[i] = static_cast<std::byte>(header.size() >> (8 * i) & 0xFFU);
  file.write(length);
  file.write(header);
  for (const NamedTensor* tensor : order) {
    file.write({tensor->view.as<std::byte>(), static_cast<std::size_t>(tensor->view.numel()) * dtype_bytes(tensor->view.dtype)});
  }
  file.commit();
}

}  // namespace winnow
