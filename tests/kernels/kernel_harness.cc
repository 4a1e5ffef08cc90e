#include "kernels/kernel_harness.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <memory>

#include "kernels/ref/ref.h"
#include "support/mirror.h"
#include "weights/layout.h"

namespace moesaic {
namespace {

constexpr size_t kGuardBytes = 64;
constexpr std::byte kGuard{0xA5};
constexpr int kThreads = 3;

DeviceInfo device_for(Backend backend, int threads) {
  if (backend == Backend::cuda) return test_device(backend).info();
  DeviceInfo device;
  device.backend = backend, device.isa = cpu_isa(), device.threads = threads;
  return device;
}

// Memory with guard bytes on both sides, 64-byte aligned.
class Guarded {
 public:
  Guarded(size_t bytes, std::byte fill) : bytes_(bytes), memory_(bytes + 2 * kGuardBytes + 64, kGuard) {
    const auto address = reinterpret_cast<uintptr_t>(memory_.data());
    start_ = (64 - address % 64) % 64 + kGuardBytes;
    std::fill_n(data(), bytes, fill);
  }
  explicit Guarded(std::span<const std::byte> content) : Guarded(content.size(), std::byte{0}) {
    std::copy(content.begin(), content.end(), data());
  }
  Guarded(const Guarded& other) : Guarded(std::span(other.memory_).subspan(other.start_, other.bytes_)) {}

  std::byte* data() { return memory_.data() + start_; }
  // The content as a kernel is given it; guards and all are copied, so that a write around it is noticed.
  std::byte* in(Mirror& mirror) { return mirror.of(std::span(memory_), true) + start_; }
  std::vector<std::byte> content() {
    std::vector<std::byte> out(bytes_);
    std::copy_n(data(), bytes_, out.data());
    return out;
  }
  bool intact() const {
    const auto clean = [&](size_t begin, size_t end) {
      return std::all_of(memory_.begin() + static_cast<ptrdiff_t>(begin), memory_.begin() + static_cast<ptrdiff_t>(end),
                         [](std::byte b) { return b == kGuard; });
    };
    return clean(0, start_) && clean(start_ + bytes_, memory_.size());
  }

 private:
  size_t bytes_, start_ = 0;
  std::vector<std::byte> memory_;
};

template <typename T>
std::vector<std::byte> bytes_of(const std::vector<T>& values) {
  std::vector<std::byte> out(values.size() * sizeof(T));
  if (!values.empty()) std::memcpy(out.data(), values.data(), out.size());
  return out;
}

int64_t elements_of(const TestOperand& operand) {
  int64_t n = 1;
  for (Dim d : operand.desc.type.dims) n *= d.factor;
  return n;
}

// rows16 bytes of a row_major weight.
std::vector<std::byte> pack(const TestOperand& operand) {
  const ValueType& type = operand.desc.type;
  const int64_t K = type.dim(-1).factor, N = type.dim(-2).factor, count = elements_of(operand) / (N * K);
  std::vector<std::byte> out(operand.stored.size());
  const std::byte* from = operand.stored.data();
  for (int64_t e = 0; e < count; ++e) {
    if (operand.desc.format == Format::mxfp4) {
      const std::byte* matrix = from + e * mxfp4_bytes(N, K);
      const auto bad =
          pack_mxfp4(matrix, matrix + N * K / 2, N, K, 0, row_blocks(N), out.data() + e * mxfp4_bytes(N, K));
      CHECK(!bad);
    } else {
      const int64_t size = dtype_bytes(operand.desc.stored), bytes = dense_bytes(size, N, K);
      pack_dense(from + e * bytes, DenseOrder::rows_first, size, N, K, 0, row_blocks(N), out.data() + e * bytes);
    }
  }
  return out;
}

// What lies in memory for an input on the kernel's backend.
std::vector<std::byte> memory_of(const Kernel& kernel, const OpDesc& desc, int input, const TestOperand& operand) {
  if (!operand.integers.empty() || operand.desc.type.dtype == DType::i32) return bytes_of(operand.integers);
  if (!operand.desc.is_weight && !operand.stored.empty()) return operand.stored;
  const bool vector = operand.desc.is_weight && operand.desc.kind == WeightKind::vector;
  if (operand.desc.is_weight && !vector && !operand.stored.empty()) {
    const bool packed = kernel.layout != nullptr && kernel.layout(desc, input) == Layout::rows16;
    return packed ? pack(operand) : operand.stored;
  }
  if (kernel.backend == Backend::ref) return bytes_of(operand.rounded.empty() ? operand.values : operand.rounded);
  return bytes_of(std::vector<float>(operand.values.begin(), operand.values.end()));
}

CacheSpec cache_spec(const OpDesc& desc) {
  const int64_t state = desc.cache_dtype == DType::f64 ? 8 : 4;  // recurrent state is never rounded
  if (desc.op == Op::short_conv)
    return short_conv_cache(desc.in(0).type.dim(1).factor, desc.in(1).type.dim(2).factor, state);
  if (desc.op == Op::kda)
    return kda_cache(desc.attrs.integer(Attr::heads), desc.attrs.integer(Attr::head_dim),
                     desc.attrs.integer(Attr::v_dim), state);
  const int64_t element = dtype_bytes(desc.cache_dtype);
  if (desc.op == Op::mla || desc.op == Op::mla_attend)
    return mla_cache(desc.in(1).type.dim(1).factor, desc.attrs.integer(Attr::rope_dim), element);
  if (desc.op == Op::compress)
    return compress_cache(desc.attrs.integer(Attr::ratio), desc.in(0).type.dim(1).factor,
                          desc.attrs.integer(Attr::overlap) != 0, state);
  if (desc.op == Op::entry_attend)
    return entry_cache(desc.attrs.integer(Attr::head_dim), desc.attrs.integer(Attr::window),
                       desc.attrs.integer(Attr::ratio, 0), element);
  if (desc.op == Op::index_topk)
    return desc.attrs.has(Attr::hash_bits)
               ? hash_cache(desc.attrs.integer(Attr::hash_bits))
               : index_cache(desc.attrs.integer(Attr::head_dim), element, desc.attrs.integer(Attr::ratio, 1));
  const CacheSpec spec =
      gqa_cache(desc.attrs.integer(Attr::kv_heads), desc.attrs.integer(Attr::head_dim), dtype_bytes(desc.cache_dtype));
  const int64_t window = desc.attrs.integer(Attr::window);
  return window > 0 ? window_cache(spec, window) : spec;
}

// The cache of one layer among others: a gap after each block and slot, which must stay as it was.
struct TestCache {
  static constexpr int64_t kGap = 64;
  std::byte fill;
  int64_t block_bytes = 0, slot_bytes = 0, blocks = 0, slots = 0;
  std::vector<std::byte> block_memory, slot_memory;

  TestCache(const KernelCase& test, const OpDesc& desc, std::byte pattern) : fill(pattern) {
    if (!op_info(desc.op).has_cache) return;
    const CacheSpec spec = cache_spec(desc);
    block_bytes = spec.block_bytes(), slot_bytes = spec.bytes_per_sequence;
    blocks = test.cache_blocks, slots = test.cache_slots;
    block_memory.assign(static_cast<size_t>(blocks * (block_bytes + kGap)), pattern);
    slot_memory.assign(static_cast<size_t>(slots * (slot_bytes + kGap)), pattern);
  }
  CacheView view(Mirror& mirror) {
    return {mirror.of(std::span(block_memory), true), block_bytes + kGap, mirror.of(std::span(slot_memory), true),
            slot_bytes + kGap};
  }
  bool intact() const {
    const auto clean = [&](const std::vector<std::byte>& memory, int64_t count, int64_t bytes) {
      for (int64_t i = 0; i < count; ++i)
        for (int64_t b = 0; b < kGap; ++b)
          if (memory[static_cast<size_t>(i * (bytes + kGap) + bytes + b)] != fill) return false;
      return true;
    };
    return clean(block_memory, blocks, block_bytes) && clean(slot_memory, slots, slot_bytes);
  }
};

// The description as the kernel's backend sees it: the reference computes in f64 and reads vector weights as f64.
OpDesc desc_for(Backend backend, OpDesc desc) {
  if (backend != Backend::ref) return desc;
  desc.cache_dtype = DType::f64;
  for (auto* operands : {&desc.inputs, &desc.outputs}) {
    for (OperandDesc& operand : *operands) {
      if (operand.type.dtype == DType::f32) operand.type.dtype = DType::f64;
      if (operand.is_weight && operand.kind == WeightKind::vector) operand.stored = DType::f64;
    }
  }
  return desc;
}

struct RunPlan {
  const Kernel& kernel;
  OpDesc desc;
  DeviceInfo device;
  Stream stream;
  std::byte fill;
};

void run_step(const RunPlan& plan, const KernelStep& step, TestCache& cache, KernelRun& run) {
  std::vector<Guarded> inputs, outputs;
  for (size_t i = 0; i < step.inputs.size(); ++i)
    inputs.emplace_back(memory_of(plan.kernel, plan.desc, static_cast<int>(i), step.inputs[i]));
  for (const OperandDesc& out : plan.desc.outputs)
    outputs.emplace_back(static_cast<size_t>(out.type.bytes(step.now)), plan.fill);
  const auto& need = plan.kernel.workspace_bytes;
  Guarded workspace(need != nullptr ? static_cast<size_t>(need(plan.desc, plan.device)) : 0, plan.fill);

  std::vector<std::byte*> in, out;
  std::vector<std::vector<std::byte>> before;
  Mirror mirror(plan.kernel.backend);
  for (Guarded& input : inputs) in.push_back(input.in(mirror)), before.push_back(input.content());
  for (Guarded& output : outputs) out.push_back(output.in(mirror));
  const BatchView batch = step.batch.view(plan.kernel.backend, mirror);
  const Args args{.in = in, .out = out, .now = step.now, .batch = &batch, .cache = cache.view(mirror)};
  Stream stream = plan.stream;
  plan.kernel.launch(plan.desc, args, workspace.in(mirror), stream);
  mirror.finish();

  run.outputs.emplace_back();
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!outputs[i].intact()) run.violation += fmt::format("bytes around output {} were written; ", i);
    run.outputs.back().push_back(outputs[i].content());
  }
  for (size_t i = 0; i < inputs.size(); ++i)
    if (inputs[i].content() != before[i]) run.violation += fmt::format("input {} was written; ", i);
  if (!workspace.intact()) run.violation += "bytes around the workspace were written; ";
  if (!cache.intact()) run.violation += "bytes between cache blocks were written; ";
}

Values to_values(const OpDesc& desc, const std::vector<std::vector<std::byte>>& outputs) {
  Values values;
  for (size_t i = 0; i < outputs.size(); ++i) {
    const DType dtype = desc.outputs[i].type.dtype;
    const size_t n = outputs[i].size() / static_cast<size_t>(dtype_bytes(dtype));
    std::vector<double>& v = values.emplace_back(n);
    for (size_t j = 0; j < n; ++j) {
      if (dtype == DType::e4m3) v[j] = std::to_integer<int>(outputs[i][j]);
      if (dtype == DType::i32) v[j] = reinterpret_cast<const int32_t*>(outputs[i].data())[j];
      if (dtype == DType::f32) v[j] = reinterpret_cast<const float*>(outputs[i].data())[j];
      if (dtype == DType::f64) v[j] = reinterpret_cast<const double*>(outputs[i].data())[j];
    }
  }
  return values;
}

const Kernel& reference_kernel(Op op) {
  for (const Kernel* kernel : registry_of(Backend::ref).kernels())
    if (kernel->op == op) return *kernel;
  CHECK(false, "no reference kernel for {}", op_info(op).name);
  std::abort();
}

}  // namespace

BatchView TestBatch::view(Backend backend, Mirror& mirror) const {
  BatchView batch = view(backend);
  const auto copy = [&](auto*& array, const auto& host) {
    array = mirror.of(host.data(), static_cast<int64_t>(host.size()));
  };
  copy(batch.token_ids, token_ids), copy(batch.positions, positions), copy(batch.sequence_of, sequence_of);
  copy(batch.sequence_offsets, sequence_offsets), copy(batch.block_tables, block_tables);
  copy(batch.state_slots, state_slots), copy(batch.output_rows, output_rows), copy(batch.patches, patches);
  copy(batch.hidden_rows, hidden_rows);
  if (backend == Backend::cuda)
    batch.hidden = reinterpret_cast<const std::byte*>(mirror.of(hidden.data(), static_cast<int64_t>(hidden.size())));
  if (image_rows.empty()) return batch;
  device_rows.clear();  // pointers to the images' place on the device
  const float* there = mirror.of(images->data(), static_cast<int64_t>(images->size()));
  for (const float* row : image_rows) device_rows.push_back(row != nullptr ? there + (row - images->data()) : nullptr);
  copy(batch.image_rows, device_rows);
  return batch;
}

BatchView TestBatch::view(Backend backend) const {
  const bool wide = backend == Backend::ref;
  return {.tokens = static_cast<int64_t>(positions.size()),
          .sequences = static_cast<int64_t>(sequence_offsets.size()) - 1,
          .rows = static_cast<int64_t>(output_rows.size()),
          .token_ids = token_ids.data(),
          .positions = positions.data(),
          .sequence_of = sequence_of.data(),
          .sequence_offsets = sequence_offsets.data(),
          .block_tables = block_tables.data(),
          .state_slots = state_slots.data(),
          .output_rows = output_rows.data(),
          .max_blocks = max_blocks,
          .image_rows = image_rows.empty() ? nullptr : image_rows.data(),
          .hidden = wide ? reinterpret_cast<const std::byte*>(hidden_wide.data())
                         : reinterpret_cast<const std::byte*>(hidden.data()),
          .hidden_rows = hidden_rows.data(),
          .patches = patches.data(),
          .grid_rows = grid_rows,
          .grid_columns = grid_columns};
}

KernelCase make_case(std::string name, Op op, Attrs attrs, std::vector<TestOperand> inputs, const Bounds& now,
                     TestBatch batch) {
  KernelCase test;
  test.name = std::move(name);
  test.desc.op = op;
  test.desc.attrs = attrs;
  test.desc.bounds = {now.tokens + 3, now.rows + 2};
  std::vector<ValueType> types;
  for (const TestOperand& input : inputs) {
    test.desc.inputs.push_back(input.desc);
    types.push_back(input.desc.type);
  }
  for (ValueType& type : op_info(op).types({types, attrs, DType::f32})) test.desc.outputs.push_back({.type = type});
  test.steps.push_back({std::move(inputs), now, std::move(batch)});
  return test;
}

std::span<const float> KernelRun::floats(size_t step, int output) const {
  const std::vector<std::byte>& bytes = outputs[step][static_cast<size_t>(output)];
  return {reinterpret_cast<const float*>(bytes.data()), bytes.size() / sizeof(float)};
}

KernelRun run_kernel(const Kernel& kernel, const KernelCase& test, uint8_t fill, int threads) {
  ThreadPool pool(threads);
  RunPlan plan{
      kernel, desc_for(kernel.backend, test.desc), device_for(kernel.backend, threads), {&pool}, std::byte{fill}};
  if (kernel.backend == Backend::cuda) plan.stream = test_device(Backend::cuda).stream();
  TestCache cache(test, plan.desc, plan.fill);
  KernelRun run;
  for (const KernelStep& step : test.steps) run_step(plan, step, cache, run);
  return run;
}

std::vector<Values> reference(const KernelCase& test) {
  const KernelRun run = run_kernel(reference_kernel(test.desc.op), test);
  std::vector<Values> steps;
  for (const auto& outputs : run.outputs) steps.push_back(to_values(desc_for(Backend::ref, test.desc), outputs));
  return steps;
}

Values reference_of_step(const OpDesc& desc, const KernelStep& step) {
  KernelCase test;
  test.desc = desc;
  for (size_t i = 0; i < step.inputs.size(); ++i) test.desc.inputs[i] = step.inputs[i].desc;
  test.steps.push_back(step);
  return reference(test)[0];
}

namespace {

// Of the codes of quantised rows, whose scales are positive.
void clear_signs(TestOperand& rows) {
  const int64_t width = rows.desc.type.dim(-1).factor, codes = width / 132 * 128;
  for (int64_t at = 0; at < std::ssize(rows.stored); ++at)
    if (at % width < codes) rows.stored[static_cast<size_t>(at)] &= std::byte{0x7F};
}

}  // namespace

KernelStep absolute(const KernelStep& step) {
  KernelStep out = step;
  for (TestOperand& input : out.inputs) {
    if (input.desc.type.dtype == DType::i32) continue;
    if (input.desc.type.dtype == DType::e4m3) clear_signs(input);
    if (!input.stored.empty() && input.desc.kind != WeightKind::vector) {
      input.values = decode(input);
      input.stored.clear();
      input.desc.format = Format::plain;
      input.desc.stored = DType::f64;
    }
    for (auto* values : {&input.values, &input.rounded})
      for (double& v : *values) v = std::abs(v);
  }
  return out;
}

const char* refusal(const Kernel& kernel, const KernelCase& test) {
  return kernel.refuse != nullptr ? kernel.refuse(test.desc, device_for(kernel.backend, kThreads)) : nullptr;
}

namespace {

// ---- comparison

double ulp_of(double value) {
  const double magnitude = std::max(std::abs(value), 0x1p-126);
  return std::ldexp(1.0, std::ilogb(magnitude) - 23);
}

// Spoils one output as MOESAIC_BREAK says; returns false where there is nothing to spoil.
bool corrupt(std::string_view how, const OperandDesc& desc, std::vector<double>& got) {
  if (got.empty()) return false;
  const auto less = [](double a, double b) { return std::abs(a) < std::abs(b); };
  const auto largest = static_cast<size_t>(std::max_element(got.begin(), got.end(), less) - got.begin());
  const auto width = static_cast<size_t>(desc.type.rank() > 1 ? desc.type.dim(-1).factor : got.size());
  if (how == "element") {
    got[got.size() / 2] +=
        desc.type.dtype == DType::i32 || desc.type.dtype == DType::e4m3 ? 1 : std::abs(got[largest]) + 1;
  } else if (how == "sign") {
    got[largest] = -got[largest];
  } else {
    CHECK(how == "row", "MOESAIC_BREAK is \"{}\"; expected element, sign or row", how);
    std::fill_n(got.begin() + static_cast<ptrdiff_t>(largest / width * width), width, 0.0);
  }
  return true;
}

void corrupt_one(const OpDesc& desc, Values& got) {
  const char* how = std::getenv("MOESAIC_BREAK");
  if (how == nullptr || *how == 0) return;
  for (size_t i = 0; i < got.size(); ++i)
    if (corrupt(how, desc.outputs[i], got[i])) return;
}

struct Mismatch {
  size_t count = 0, at = 0;
  double excess = 0;
};

bool agrees(double got, double want, double bound) {
  if (std::isnan(want)) return std::isnan(got);
  const double as_float = static_cast<double>(static_cast<float>(want));
  if (std::isinf(as_float)) return got == as_float;
  return std::abs(got - want) <= bound;  // false for a NaN
}

void compare_output(const std::string& where, const Tolerance& tolerance, const std::vector<double>& got,
                    const std::vector<double>& want, const std::vector<double>& magnitude) {
  ASSERT_EQ(got.size(), want.size()) << where;
  ASSERT_EQ(magnitude.size(), want.size()) << where;
  Mismatch bad;
  for (size_t i = 0; i < want.size(); ++i) {
    const double bound = tolerance.ulps * ulp_of(want[i]) + tolerance.per_magnitude * magnitude[i] + tolerance.absolute;
    if (agrees(got[i], want[i], bound)) continue;
    ++bad.count;
    const double excess = std::abs(got[i] - want[i]) / (bound > 0 ? bound : std::numeric_limits<double>::min());
    if (bad.count == 1 || excess > bad.excess) bad.at = i, bad.excess = excess;
  }
  if (bad.count == 0) return;
  ADD_FAILURE() << where
                << fmt::format(": {} of {} elements differ; worst at {}: got {}, want {}, {} bounds away", bad.count,
                               want.size(), bad.at, got[bad.at], want[bad.at], bad.excess);
}

}  // namespace

void expect_matches(const Kernel& kernel, const KernelCase& given) {
  KernelCase exact = given;
  exact.desc.precision = Precision::float32;
  const bool rounds = refusal(kernel, exact) != nullptr;
  const KernelCase test = !rounds                           ? given
                          : kernel.backend == Backend::cuda ? rounded_bf16(given)
                                                            : rounded_experts(given);
  const KernelRun run = run_kernel(kernel, given, 0xFF, kThreads), again = run_kernel(kernel, given, 0x5A, 1);
  EXPECT_EQ(run.violation, "") << kernel.name << " " << test.name;
  EXPECT_EQ(again.violation, "") << kernel.name << " " << test.name;
  EXPECT_TRUE(run.outputs == again.outputs)
      << kernel.name << " " << test.name << ": another fill pattern or thread count changes the result";
  const std::vector<Values> want = reference(test);
  for (size_t s = 0; s < test.steps.size(); ++s) {
    const Values magnitude =
        test.magnitude ? test.magnitude(test, s) : reference_of_step(test.desc, absolute(test.steps[s]));
    Values got = to_values(given.desc, run.outputs[s]);
    corrupt_one(given.desc, got);
    for (size_t i = 0; i < got.size(); ++i) {
      const DType dtype = given.desc.outputs[i].type.dtype;
      const bool integer = dtype == DType::i32 || dtype == DType::e4m3;
      compare_output(fmt::format("{} {} step {} output {}", kernel.name, test.name, s, i),
                     integer ? Tolerance{} : test.tolerance, got[i], want[s][i], magnitude[i]);
    }
  }
}

}  // namespace moesaic
