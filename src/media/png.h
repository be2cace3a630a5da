// PNG files, through libpng.
#pragma once

#include <string>

#include "media/image.h"

namespace winnow::media {

// Throws Error; a failure leaves no file.
void write_png(const std::string& path, const Image& image);

}  // namespace winnow::media
