#include "media/png.h"

#include <png.h>

#include <cstddef>
#include <span>
#include <vector>

#include "core/partial_file.h"
#include "winnow/error.h"

namespace winnow::media {

namespace {

// libpng's simplified interface returns its errors instead of jumping over our destructors.
struct PngControl {
  png_image image{};
  PngControl() { image.version = PNG_IMAGE_VERSION; }
  PngControl(const PngControl&) = delete;
  PngControl& operator=(const PngControl&) = delete;
  ~PngControl() { png_image_free(&image); }
};

std::vector<std::byte> encode(const std::string& path, const Image& image) {
  PngControl control;
  control.image.width = static_cast<png_uint_32>(image.width);
  control.image.height = static_cast<png_uint_32>(image.height);
  control.image.format = PNG_FORMAT_RGB;
  png_alloc_size_t size = PNG_IMAGE_PNG_SIZE_MAX(control.image);  // an upper bound: one pass of compression is enough
  std::vector<std::byte> bytes(size);
  if (png_image_write_to_memory(&control.image, bytes.data(), &size, 0, image.rgb.data(), 0, nullptr) == 0) {
    throw Error("png", path + ": " + control.image.message);
  }
  bytes.resize(size);
  return bytes;
}

}  // namespace

void write_png(const std::string& path, const Image& image) {
  if (image.width < 1 || image.height < 1) throw Error("png", path + ": expected a picture of at least one pixel");
  const std::vector<std::byte> bytes = encode(path, image);
  PartialFile file("png", path);
  file.write(bytes);
  file.commit();
}

}  // namespace winnow::media
