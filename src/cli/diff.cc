// moesaic diff: our values against a reference file, or one backend against another.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "cli/commands.h"
#include "cli/output.h"
#include "cli/table.h"
#include "engine/load_options.h"
#include "engine/taps.h"
#include "weights/safetensors.h"
#include "weights/safetensors_writer.h"

namespace moesaic {
namespace {

struct Difference {
  std::string name;
  double relative_l2 = 0, max_abs = 0, cosine = 1;
  bool within = true;
};

Difference compare(const std::string& name, std::span<const double> got, std::span<const double> want, double bound) {
  Difference d{.name = name};
  double difference = 0, square_got = 0, square_want = 0, dot = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    difference += (got[i] - want[i]) * (got[i] - want[i]);
    square_got += got[i] * got[i];
    square_want += want[i] * want[i];
    dot += got[i] * want[i];
    d.max_abs = std::max(d.max_abs, std::abs(got[i] - want[i]));
  }
  d.relative_l2 = std::sqrt(difference / std::max(square_want, 1e-300));
  d.cosine = dot / std::sqrt(std::max(square_got * square_want, 1e-300));
  d.within = d.relative_l2 <= bound;  // false for NaN
  return d;
}

std::vector<std::vector<int32_t>> read_input_ids(const SafetensorsFile& file) {
  const Tensor ids = file.tensor("input_ids");
  if (ids.dtype != DType::i64 || ids.shape.rank() != 2 || ids.shape.elements() == 0)
    fail_data(file.path().string(), "input_ids is {} {}; expected I64 [sequences, tokens]", dtype_name(ids.dtype),
              to_string(ids.shape));
  std::vector<std::vector<int32_t>> rows(static_cast<size_t>(ids.shape[0]));
  for (int64_t i = 0; i < ids.shape.elements(); ++i) {
    int64_t id;
    std::memcpy(&id, ids.data + i * 8, 8);
    if (id < 0 || id > INT32_MAX) fail_data(file.path().string(), "input_ids holds {}; expected a token id", id);
    rows[static_cast<size_t>(i / ids.shape[1])].push_back(static_cast<int32_t>(id));
  }
  return rows;
}

// A reference tensor as float64, checked to have as many elements as ours.
std::vector<double> read_reference(const SafetensorsFile& file, const std::string& name, size_t elements) {
  const Tensor t = file.tensor(name);
  if (t.dtype != DType::f32 || static_cast<size_t>(t.shape.elements()) != elements)
    fail_data(file.path().string(), "{} is {} {}; this model makes F32 with {} elements", name, dtype_name(t.dtype),
              to_string(t.shape), elements);
  std::vector<double> out(elements);
  for (size_t i = 0; i < elements; ++i) {
    float value;
    std::memcpy(&value, t.data + i * 4, 4);
    out[i] = value;
  }
  return out;
}

void check_ids(const std::vector<std::vector<int32_t>>& ids, const Model& model, const std::string& where) {
  for (const auto& row : ids)
    for (int32_t id : row)
      if (id >= model.vocab)
        fail_data(where, "input_ids holds {}; the model's vocabulary has {} tokens", id, model.vocab);
}

void write_values(const std::string& path, const Forward& forward, const std::vector<std::vector<int32_t>>& ids) {
  const auto B = static_cast<int64_t>(ids.size()), T = static_cast<int64_t>(ids[0].size());
  std::vector<std::vector<float>> values;
  std::vector<int64_t> flat_ids;
  for (const auto& row : ids) flat_ids.insert(flat_ids.end(), row.begin(), row.end());
  std::vector<NamedTensor> tensors;
  tensors.push_back({"input_ids", {reinterpret_cast<std::byte*>(flat_ids.data()), DType::i64, {B, T}}});
  values.reserve(forward.named.size());
  for (const auto& [name, tap] : forward.named) {
    values.emplace_back(tap.values.begin(), tap.values.end());
    tensors.push_back(
        {name, {reinterpret_cast<std::byte*>(values.back().data()), DType::f32, {B, T, tap.shape.back()}}});
  }
  write_safetensors(path, tensors);
}

// The first op of two runs that differs by more than the bound; both ran the same graph.
void print_first_op(const Forward& ours, const Forward& other, double bound) {
  for (size_t i = 0; i < std::min(ours.ops.size(), other.ops.size()); ++i) {
    const auto& [label, tap] = ours.ops[i];
    if (other.ops[i].first != label || other.ops[i].second.values.size() != tap.values.size()) continue;
    const Difference d = compare(label, tap.values, other.ops[i].second.values, bound);
    if (d.within) continue;
    fmt::print("first op out of bounds: {} (relative L2 {:.2e})\n", label, d.relative_l2);
    return;
  }
}

LoadedModel load_for(const DiffOptions& options, const std::vector<std::vector<int32_t>>& ids,
                     const std::string& backend) {
  LoadOptions load =
      forward_limits(options.load, static_cast<int64_t>(ids.size()), static_cast<int64_t>(ids[0].size()));
  if (!backend.empty()) load.backend = parse_backend(backend);
  LoadedModel loaded = load_model(load);
  check_ids(ids, loaded.model, options.reference);
  return loaded;
}

// Embeddings of the image in image.safetensors beside the reference, where there is one and the model sees images.
std::vector<float> image_rows(LoadedModel& loaded, const std::string& reference) {
  const std::filesystem::path path = std::filesystem::path(reference).parent_path() / "image.safetensors";
  if (loaded.vision == nullptr || !std::filesystem::exists(path)) return {};
  const SafetensorsFile file = SafetensorsFile::open(path);
  const Tensor pixels = file.tensor("pixel_values"), grid = file.tensor("image_grid_thw");
  if (pixels.dtype != DType::f32 || grid.dtype != DType::i64 || grid.shape.elements() != 3)
    fail_data(path.string(), "expected pixel_values F32 and image_grid_thw I64 [1, 3]");
  const auto* sides = grid.as<int64_t>();
  const int64_t width = 3 * loaded.model.vision->patch * loaded.model.vision->patch, merge = loaded.model.vision->merge;
  if (sides[1] < 1 || sides[2] < 1 || sides[1] % merge != 0 || sides[2] % merge != 0 ||
      pixels.shape.elements() != sides[1] * sides[2] * width)
    fail_data(path.string(), "pixel_values are {}; the grid is {} x {} patches of {} values", to_string(pixels.shape),
              sides[1], sides[2], width);
  return loaded.vision->encode({{pixels.as<float>(), static_cast<size_t>(pixels.shape.elements())}, sides[1], sides[2]},
                               *loaded.device);
}

// A token out of bounds whose entries an index_topk of that layer chose between scores closer than the bound: another
// order of equal scores is as right, and makes the token differ from this layer on.
struct NearTie {
  std::string op;
  size_t sequence, token;
  double gap;  // relative to the largest score
};

struct NearTies {
  std::vector<NearTie> ties;
  int64_t rows = 0;  // tokens out of bounds, tied or not
};

NearTies find_near_ties(LoadedModel& loaded, const std::vector<std::vector<int32_t>>& ids,
                        std::span<const float> images, size_t value, std::span<const double> got,
                        std::span<const double> want, double bound) {
  const size_t tokens = ids[0].size(), rows = ids.size() * tokens, width = got.size() / rows;
  const std::vector<IndexGaps> ops = index_gaps(loaded, ids, value, images);
  NearTies out;
  for (size_t row = 0; row < rows; ++row) {
    if (compare("", got.subspan(row * width, width), want.subspan(row * width, width), bound).within) continue;
    ++out.rows;
    for (const IndexGaps& op : ops)
      if (op.of_token[row] <= bound) out.ties.push_back({op.label, row / tokens, row % tokens, op.of_token[row]});
  }
  return out;
}

void print_near_ties(const NearTies& near) {
  if (near.ties.empty()) return;
  const NearTie& first = near.ties.front();
  fmt::print(
      "near-ties explain {} of the {} tokens out of bounds in this layer: {} chose for token {} of sequence {} between "
      "scores {:.1e} apart (relative to the largest), and the reference may have chosen otherwise\n",
      near.ties.size(), near.rows, first.op, first.token, first.sequence, first.gap);
}

JsonArray to_json(const std::vector<NearTie>& ties) {
  JsonArray out;
  for (const NearTie& tie : ties)
    out.push_back({{"op", tie.op},
                   {"sequence", static_cast<int64_t>(tie.sequence)},
                   {"token", static_cast<int64_t>(tie.token)},
                   {"gap", tie.gap}});
  return out;
}

void print_differences(const std::vector<Difference>& rows, const std::vector<NearTie>& ties, double bound, bool json) {
  Table table({"value", "rel L2", "max abs", "1 - cosine", ""});
  for (const Difference& d : rows)
    table.add({d.name, fmt::format("{:.2e}", d.relative_l2), fmt::format("{:.2e}", d.max_abs),
               fmt::format("{:.1e}", 1 - d.cosine), d.within ? "ok" : "OUT OF BOUNDS"});
  if (!json) return table.print();
  JsonArray out;
  for (const Difference& d : rows)
    out.push_back({{"value", d.name},
                   {"relative_l2", finite_or_null(d.relative_l2)},
                   {"max_abs", finite_or_null(d.max_abs)},
                   {"cosine", finite_or_null(d.cosine)},
                   {"within", d.within}});
  fmt::print("{}\n",
             write_json(JsonObject{{"bound", bound}, {"values", out}, {"near_ties", to_json(ties)}}, {.indent = 2}));
}

// What our values are compared with: those of another backend, or those of the file that it has.
std::vector<std::vector<double>> wanted_values(const Forward& ours, const Forward* other, const SafetensorsFile& file) {
  std::vector<std::vector<double>> out;
  for (size_t i = 0; i < ours.named.size(); ++i) {
    const auto& [name, tap] = ours.named[i];
    if (other != nullptr) out.push_back(other->named[i].second.values);
    else out.push_back(file.find(name) ? read_reference(file, name, tap.values.size()) : std::vector<double>{});
  }
  return out;
}

// Rows that rest on a choice which rounding made otherwise, for each value; found by a float32 run on the CPU.
std::vector<std::vector<bool>> rows_of_other_choices(const DiffOptions& options, const Forward& ours,
                                                     const std::vector<std::vector<int32_t>>& ids) {
  DiffOptions exact = options;
  exact.load.precision = Precision::float32;
  exact.load.cache_dtype = DType::f32;
  LoadedModel loaded = load_for(exact, ids, backend_name(Backend::cpu));
  const Forward theirs = forward(loaded, ids, false, image_rows(loaded, options.reference));
  return diverged_rows(ours, theirs, static_cast<int64_t>(ids[0].size()));
}

}  // namespace

int run_diff(const DiffOptions& options) {
  const SafetensorsFile reference = SafetensorsFile::open(options.reference);
  const auto ids = read_input_ids(reference);
  LoadedModel loaded = load_for(options, ids, "");
  const std::vector<float> images = image_rows(loaded, options.reference);
  const bool against = !options.against.empty();
  const Forward ours = forward(loaded, ids, against, images);
  if (!options.write.empty()) write_values(options.write, ours, ids);
  const bool exact = options.load.precision == Precision::float32 || options.load.backend == Backend::ref;
  const double rounding = options.load.precision == Precision::fp8 ? 1e-1 : 3e-2;
  const double bound = options.bound > 0 ? options.bound : exact ? 1e-5 : rounding;
  Forward other;
  if (against) {  // the yardstick rounds as little as it can
    DiffOptions exactly = options;
    exactly.load.precision = Precision::float32;
    LoadedModel second = load_for(exactly, ids, options.against);
    other = forward(second, ids, true, image_rows(second, options.reference));
  }
  const auto wanted = wanted_values(ours, against ? &other : nullptr, reference);
  std::vector<Difference> rows;
  NearTies near;
  const Difference* bad = nullptr;
  rows.reserve(wanted.size());
  std::vector<std::vector<bool>> left_out;  // of each value, once one is out of bounds in a mode that rounds
  int64_t most_left_out = 0;
  for (size_t i = 0; i < wanted.size(); ++i) {
    const auto& [name, tap] = ours.named[i];
    if (wanted[i].empty()) continue;
    rows.push_back(compare(name, tap.values, wanted[i], bound));
    if (!rows.back().within && !exact) {
      if (left_out.empty())
        left_out = against ? diverged_rows(ours, other, std::ssize(ids[0])) : rows_of_other_choices(options, ours, ids);
      rows.back() = compare(name, rows_without(tap.values, left_out[i]), rows_without(wanted[i], left_out[i]), bound);
      most_left_out = std::max<int64_t>(most_left_out, std::count(left_out[i].begin(), left_out[i].end(), true));
    }
    if (rows.back().within || bad != nullptr) continue;
    bad = &rows.back();
    near = find_near_ties(loaded, ids, images, i, tap.values, wanted[i], bound);
  }
  if (rows.empty()) fail_data(options.reference, "has none of the values hidden.<i> and logits to compare with");
  print_differences(rows, near.ties, bound, options.json);
  if (most_left_out > 0 && !options.json)
    fmt::print(
        "up to {} of {} rows are left out: rounding chose other experts or entries for them, or for tokens before "
        "them, than float32 does\n",
        most_left_out, ids.size() * ids[0].size());
  if (bad == nullptr) return 0;
  if (!options.json) {
    fmt::print("first value out of bounds: {} (relative L2 {:.2e}, allowed {:.0e})\n", bad->name, bad->relative_l2,
               bound);
    print_near_ties(near);
    if (against) print_first_op(ours, other, bound);
  }
  return 1;
}

}  // namespace moesaic
