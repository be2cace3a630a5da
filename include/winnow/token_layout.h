// TokenLayout: which tokens form which tile. Without one, tile t holds tokens [t*tile, (t+1)*tile) of the sequence; with one, tiles
// hold any tokens: a cube of space-time, the tokens of one packed document, text apart from video.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <vector>

namespace winnow {

// Latent token grid of one video: token index = (t*height + y)*width + x.
struct Grid {
  std::int64_t frames = 0;  // T
  std::int64_t height = 0;  // h
  std::int64_t width = 0;   // w
  // 0 unless every side is at least 1; the largest integer if there are more.
  std::int64_t tokens() const {
    constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
    if (frames < 1 || height < 1 || width < 1) return 0;
    if (frames > kMost / height || frames * height > kMost / width) return kMost;
    return frames * height * width;
  }
  bool known() const { return frames > 0; }
  bool operator==(const Grid&) const = default;
};

// Tiles [begin, end), possibly none.
struct TileRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  bool contains(std::int64_t tile) const { return tile >= begin && tile < end; }
  std::int64_t size() const { return end - begin; }
  bool operator==(const TileRange&) const = default;
};

// The tiles of queries, or of keys, of one sequence; the same for all batch entries and heads. Immutable, always valid.
// A position is an index into the list of tokens in tile order.
class TokenLayout {
 public:
  struct Parts {
    std::int64_t num_tokens = 0;                     // of the sequence
    std::vector<std::int32_t> tokens = {};           // [positions] each at most once; a token that is missing takes no part
    std::vector<std::int32_t> tile_begin = {0};      // [tiles+1] positions; tiles hold at least one token
    std::vector<std::int32_t> document_begin = {0};  // [documents+1] tiles; documents may be empty
    // [tiles] 1: as queries, the tile takes every key tile of its document; as keys, every row of its document takes it
    std::vector<std::uint8_t> exact = {};
    bool operator==(const Parts&) const = default;
  };

  explicit TokenLayout(Parts parts);  // throws Error if a rule above does not hold

  const Parts& parts() const { return parts_; }
  std::int64_t num_tokens() const { return parts_.num_tokens; }
  std::int64_t tiles() const { return static_cast<std::int64_t>(parts_.tile_begin.size()) - 1; }
  std::int64_t documents() const { return static_cast<std::int64_t>(parts_.document_begin.size()) - 1; }
  std::int64_t largest_tile() const { return largest_tile_; }  // tokens; 0 without tiles
  const std::int32_t* tokens() const { return parts_.tokens.data(); }
  std::int64_t begin(std::int64_t tile) const { return parts_.tile_begin[static_cast<std::size_t>(tile)]; }  // tile <= tiles()
  bool exact(std::int64_t tile) const { return parts_.exact[static_cast<std::size_t>(tile)] != 0; }
  std::int64_t document(std::int64_t tile) const;
  TileRange document_tiles(std::int64_t document) const;
  std::int64_t exact_tiles(std::int64_t document) const { return exact_tiles_[static_cast<std::size_t>(document)]; }
  // Tokens in no tile, as ascending ranges.
  struct Range {
    std::int64_t begin;
    std::int64_t end;
  };
  std::span<const Range> missing() const { return missing_; }

  bool operator==(const TokenLayout& other) const { return parts_ == other.parts_; }

 private:
  Parts parts_;
  std::int64_t largest_tile_ = 0;
  std::vector<std::int64_t> exact_tiles_;  // [documents]
  std::vector<Range> missing_;
};

// How a sequence is made up.
enum class SpanKind : std::uint8_t {
  video,    // sparse: reference video as well as the one that is generated
  exact,    // text, audio, reference images: attends to everything of its document and is attended to by all of it
  padding,  // takes no part: O = 0, LSE = -inf
};
struct TokenSpan {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  SpanKind kind = SpanKind::video;
  Grid grid = {};  // of a video; unknown: the sequence's, if that has as many tokens
  bool operator==(const TokenSpan&) const = default;
};
struct TokenSequence {
  std::int64_t num_tokens = 0;
  Grid grid = {};
  std::span<const TokenSpan> spans = {};         // ascending, without gaps, each inside one document; none: every document is a video
  std::span<const std::int64_t> documents = {};  // token offsets [documents+1] from 0 to num_tokens (cu_seqlens); none: one document
};

// Throws Error if the documents or spans contradict each other or the number of tokens.
void validate(const TokenSequence& sequence);

enum class TokenOrder : std::uint8_t {
  automatic,  // cubes where the grid is known, else raster
  raster,     // as the sequence has them
  cubes,      // space-time cubes after another
};
// What to do if an order needs positions that are not known (positions_known()).
enum class UnknownPositions : std::uint8_t { dense, error };
// Their names in configurations, in order.
inline constexpr std::array<const char*, 3> kTokenOrderNames = {"auto", "raster", "cubes"};
inline constexpr std::array<const char*, 2> kUnknownPositionsNames = {"dense", "error"};

// The part of an AttentionConfig that says how tiles are made.
struct TokenOptions {
  // Measured on winnow-tiny: see DESIGN.md, "Token layouts".
  TokenOrder token_order = TokenOrder::raster;
  std::array<int, 3> cube = {4, 4, 4};  // frames, rows, columns
  UnknownPositions unknown_positions = UnknownPositions::dense;
  void validate() const;  // throws Error naming the key
  template <class Self, class Visit>
  static void options(Self& self, Visit&& visit) {
    visit("token_order", self.token_order);
    visit("cube", self.cube);
    visit("unknown_positions", self.unknown_positions);
  }
};
struct LayoutOptions {
  TokenOrder order = TokenOrder::automatic;
  std::array<int, 3> cube = {4, 4, 4};  // frames, rows, columns
  std::int64_t min_document = 0;        // documents with fewer tokens (padding not counted) are exact
  bool operator==(const LayoutOptions&) const = default;
};

// Whether every video's positions are known as far as the order needs them. A grid that does not have as many tokens as the sequence
// (and no spans that say why) leaves them unknown in any order.
bool positions_known(const TokenSequence& sequence, TokenOrder order);

// Tiles of at most `tile` tokens that hold tokens of one document and one kind: per document the videos, each in the given order
// and cut into full tiles with a short one at its end, then all exact tokens. Videos of unknown position stay in raster order.
// Null if that is what tiles without a layout are. Throws Error if the sequence contradicts itself or a cube is empty.
std::shared_ptr<const TokenLayout> make_layout(const TokenSequence& sequence, const LayoutOptions& options, int tile);

}  // namespace winnow
