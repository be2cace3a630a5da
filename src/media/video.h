// Frames to a file whose extension says what it is.
#pragma once

#include <cstdint>
#include <string>

#include "winnow/callbacks.h"
#include "winnow/tensor.h"

namespace winnow::media {

enum class VideoFormat {
  y4m,  // uncompressed, written by Winnow: media/y4m.h
  mp4,  // H.264 4:2:0, BT.709, crf 14, by the ffmpeg program in PATH; width and height have to be even
  png,  // a contact sheet
};
// By the extension of `path`, in any case. Throws Error listing the known ones.
VideoFormat video_format(const std::string& path);

// Throws what write_video would throw at once: unknown extension, missing folder, no permission, no ffmpeg. Leaves nothing behind.
void check_video_output(const std::string& path);
// The same for a size in pixels, as soon as it is known.
void check_video_size(const std::string& path, std::int64_t width, std::int64_t height);

// frames: [F,H,W,3] contiguous f32 in [0,1]. fps in [1,1000]. progress: stage "write", once per frame; false throws Cancelled.
// The file appears under `path` only when it is complete. Throws Error.
void write_video(const std::string& path, const TensorView& frames, int fps, const Progress& progress = {});

}  // namespace winnow::media
