#include "core/npy.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "core/json.h"
#include "winnow/error.h"

namespace winnow {

namespace {

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr std::size_t kMaxBytes = std::size_t{1} << 30U;

// {'descr': '|b1', 'fortran_order': False, 'shape': (2, 3), }: exactly these keys, in any order.
class Header {
 public:
  Header(std::string_view text, const std::string& name) : text_(text), name_(name) {
    expect('{');
    while (!take('}')) {
      const std::string key = quoted();
      expect(':');
      read(key);
      if (take('}')) break;
      expect(',');
    }
    skip_spaces();
    if (!text_.empty()) fail("nothing after the header's }", text_);
    if (!descr_ || !c_order_ || !shape_) fail("the keys descr, fortran_order and shape", "fewer");
  }

  DType dtype() const {
    if (*descr_ == "|b1" || *descr_ == "?") return DType::boolean;
    if (*descr_ == "|u1") return DType::u8;
    fail("descr '|b1' (bool) or '|u1' (uint8)", *descr_);
  }
  const std::vector<std::int64_t>& shape() const {
    if (!*c_order_) fail("fortran_order False", "True: save numpy.ascontiguousarray(mask)");
    return *shape_;
  }
  [[noreturn]] void fail(const std::string& expected, std::string_view found) const {
    throw Error("npy", name_ + ": expected " + expected + ", got " + std::string(found.substr(0, 60)));
  }

 private:
  void read(const std::string& key) {
    if (key == "descr" && !descr_) {
      descr_ = quoted();
    } else if (key == "fortran_order" && !c_order_) {
      c_order_ = !boolean();
    } else if (key == "shape" && !shape_) {
      shape_ = tuple();
    } else {
      fail("the keys descr, fortran_order and shape, once each", key);
    }
  }
  void skip_spaces() {
    while (!text_.empty() && (text_.front() == ' ' || text_.front() == '\n')) text_.remove_prefix(1);
  }
  bool take(char c) {
    skip_spaces();
    if (text_.empty() || text_.front() != c) return false;
    text_.remove_prefix(1);
    return true;
  }
  void expect(char c) {
    if (!take(c)) fail(std::string("'") + c + "' in the header", text_.empty() ? "its end" : text_);
  }
  std::string quoted() {
    const char mark = take('"') ? '"' : '\'';
    if (mark == '\'') expect('\'');
    const std::size_t end = text_.find(mark);
    if (end == std::string_view::npos) fail("a closing quote in the header", text_);
    std::string value(text_.substr(0, end));
    text_.remove_prefix(end + 1);
    return value;
  }
  bool boolean() {
    skip_spaces();
    for (const std::string_view word : {"True", "False"}) {
      if (!text_.starts_with(word)) continue;
      text_.remove_prefix(word.size());
      return word == "True";
    }
    fail("True or False in the header", text_);
  }
  std::vector<std::int64_t> tuple() {
    std::vector<std::int64_t> extents;
    expect('(');
    while (!take(')')) {
      skip_spaces();
      std::int64_t extent = -1;
      const auto [end, status] = std::from_chars(text_.data(), text_.data() + text_.size(), extent);
      if (status != std::errc() || extent < 0) fail("sizes in the header's shape", text_);
      text_.remove_prefix(static_cast<std::size_t>(end - text_.data()));
      extents.push_back(extent);
      if (take(')')) break;
      expect(',');
    }
    return extents;
  }

  std::string_view text_;
  const std::string& name_;
  std::optional<std::string> descr_;
  std::optional<bool> c_order_;
  std::optional<std::vector<std::int64_t>> shape_;
};

// The file's header, and what follows it.
std::pair<std::string_view, std::string_view> split(std::string_view file, const std::string& name) {
  const auto fail = [&](const std::string& what) { throw Error("npy", name + ": " + what); };
  if (!file.starts_with(kMagic) || file.size() < kMagic.size() + 4) fail("expected an .npy file");
  const auto byte = [&](std::size_t i) { return std::size_t{static_cast<unsigned char>(file[kMagic.size() + i])}; };
  const std::size_t version = byte(0);
  if (version < 1 || version > 3) fail("expected format 1 to 3, got " + std::to_string(version));
  const std::size_t width = version == 1 ? 2 : 4;
  std::size_t length = 0;
  file.remove_prefix(kMagic.size() + 2);
  if (file.size() < width) fail("the header is cut off");
  for (std::size_t i = 0; i < width; ++i) length |= std::size_t{static_cast<unsigned char>(file[i])} << (8 * i);
  file.remove_prefix(width);
  if (file.size() < length) fail("the header is cut off");
  return {file.substr(0, length), file.substr(length)};
}

std::string_view text_of(std::span<const std::byte> bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

}  // namespace

bool is_npy_file(const std::string& path) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rbe"), &std::fclose);
  char start[kMagic.size()];
  return file && std::fread(start, 1, sizeof start, file.get()) == sizeof start && std::string_view(start, sizeof start) == kMagic;
}

Tensor read_npy(const std::string& path) {
  const std::string bytes = read_text_file(path, "npy", kMaxBytes);
  return parse_npy(std::as_bytes(std::span(bytes)), path);
}

Tensor parse_npy(std::span<const std::byte> bytes, const std::string& name) {
  const auto [text, data] = split(text_of(bytes), name);
  const Header header(text, name);
  const DType dtype = header.dtype();
  const std::vector<std::int64_t>& shape = header.shape();
  if (shape.size() > TensorView::kMaxRank) header.fail("at most " + std::to_string(TensorView::kMaxRank) + " axes", "more");
  std::size_t count = 1;
  std::size_t largest = 1;  // with empty axes taken as 1: strides are products of these
  bool overflows = false;
  for (const std::int64_t extent : shape) {
    count *= static_cast<std::size_t>(extent);
    overflows = __builtin_mul_overflow(largest, static_cast<std::size_t>(std::max<std::int64_t>(extent, 1)), &largest) || overflows;
  }
  if (overflows || largest > kMaxBytes) header.fail("at most 2^30 elements", "more");
  if (count != data.size()) header.fail(std::to_string(count) + " bytes of data", std::to_string(data.size()));
  Tensor tensor(dtype, shape.data(), static_cast<int>(shape.size()));
  if (count > 0) std::memcpy(tensor.as<void>(), data.data(), count);
  return tensor;
}

}  // namespace winnow
