// Reading and writing safetensors files: 8-byte little-endian header length, JSON header, raw little-endian data.
// Format: https://github.com/huggingface/safetensors (README, "Format").
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "winnow/tensor.h"

namespace winnow {

// A memory-mapped, fully validated, read-only safetensors file.
class SafetensorsFile {
 public:
  // Throws Error naming the file for anything the format does not allow: truncated or oversized header, JSON that is not
  // the header grammar, unknown dtypes, offsets that overlap, leave holes, lie about the size or run past the file,
  // duplicate names, shapes whose product overflows.
  static SafetensorsFile open(const std::string& path);
  // The same on bytes in memory, which have to outlive the object; `name` appears in errors.
  static SafetensorsFile parse(std::span<const std::byte> bytes, const std::string& name);

  SafetensorsFile(SafetensorsFile&&) noexcept;
  SafetensorsFile& operator=(SafetensorsFile&&) noexcept;
  ~SafetensorsFile();

  // Elements of all tensors together, from the header alone, validated as above: works for files that are too large to map.
  static std::uint64_t count_elements(const std::string& path);

  const std::string& name() const;
  const std::vector<std::string>& keys() const;  // sorted
  bool contains(std::string_view key) const;
  // View on the mapped bytes, valid as long as this object. Not to be written to. Possibly unaligned for its dtype only if
  // the file's data section is; copy() is always safe. Throws Error if the key is missing.
  TensorView at(std::string_view key) const;
  // Owned copy converted to `dtype` (between f32, f16, bf16, f64; otherwise the dtypes must agree). Throws Error.
  Tensor copy(std::string_view key, DType dtype) const;
  Tensor copy(std::string_view key) const;
  const std::map<std::string, std::string>& metadata() const;  // "__metadata__"

 private:
  struct Impl;
  explicit SafetensorsFile(std::unique_ptr<Impl> impl);
  static std::unique_ptr<Impl> map(const std::string& path, std::uint64_t most);
  std::unique_ptr<Impl> impl_;
};

struct NamedTensor {
  std::string name;
  TensorView view;  // contiguous
};
// Writes beside `path` and renames, so that a failure (disk full, no permission) leaves nothing behind. Throws Error.
void write_safetensors(const std::string& path, std::span<const NamedTensor> tensors,
                       const std::map<std::string, std::string>& metadata = {});

// Whether convert() takes this dtype.
inline bool is_convertible(DType dtype) {
  return dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16 || dtype == DType::f64;
}
// Element-wise conversion between f32, f16, bf16 and f64, any strides, equal shapes. Throws Error on other dtypes.
void convert(const TensorView& from, const TensorView& to);

}  // namespace winnow
