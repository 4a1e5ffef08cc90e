#include "engine/step_timer.h"

#include <algorithm>

namespace moesaic {
namespace {

int64_t count_reached(Device& device, std::byte* there, int64_t experts) {
  Buffer scratch;
  const auto* offsets =
      reinterpret_cast<const int32_t*>(on_host(device, there, (experts + 1) * int64_t{sizeof(int32_t)}, scratch));
  int64_t reached = 0;
  for (int64_t e = 0; e < experts; ++e) reached += offsets[e + 1] > offsets[e] ? 1 : 0;
  return reached;
}

double stored_bytes(const OperandDesc& weight) {
  double elements = 1;
  for (Dim d : weight.type.dims) elements *= static_cast<double>(d.factor);
  return weight.format == Format::mxfp4 ? elements * 17 / 32  // 16 bytes of codes and a scale for 32 elements
                                        : elements * static_cast<double>(dtype_bytes(weight.stored));
}

// Weights and biases of the experts that have rows.
double expert_bytes(Device& device, const OpDesc& desc, const Args& args) {
  const int64_t experts = desc.in(3).type.dim(0).factor;
  double bytes = 0;
  for (const OperandDesc& in : desc.inputs) bytes += in.is_weight ? stored_bytes(in) : 0;
  return bytes * static_cast<double>(count_reached(device, args.in[2], experts)) / static_cast<double>(experts);
}

void count_attention(const OpDesc& desc, const BatchView& batch, Work& work) {
  const int64_t window = desc.attrs.integer(Attr::window), head_dim = desc.attrs.integer(Attr::head_dim);
  const auto seen_from = [&](int64_t position) { return window > 0 ? std::max<int64_t>(0, position + 1 - window) : 0; };
  int64_t entries = 0, pairs = 0;
  for (int64_t s = 0; s < batch.sequences; ++s) {
    const int32_t begin = batch.sequence_offsets[s], end = batch.sequence_offsets[s + 1];
    entries += batch.positions[end - 1] + 1 - seen_from(batch.positions[begin]);
    for (int32_t t = begin; t < end; ++t) pairs += batch.positions[t] + 1 - seen_from(batch.positions[t]);
  }
  const int64_t entry_bytes = 2 * desc.attrs.integer(Attr::kv_heads) * head_dim * dtype_bytes(desc.cache_dtype);
  work.cache_bytes += static_cast<double>(entries * entry_bytes);
  work.flops = 4 * static_cast<double>(pairs * desc.attrs.integer(Attr::heads) * head_dim);  // q.k and p.v
}

// Attention on latents: each row is read once for all heads, at most by as many positions as were chosen.
void count_latents(const OpDesc& desc, const BatchView& batch, Work& work) {
  const int64_t L = desc.in(1).type.dim(1).factor, width = L + desc.attrs.integer(Attr::rope_dim);
  const int64_t chosen = desc.inputs.size() > 3 ? desc.in(3).type.dim(1).factor : INT32_MAX;
  int64_t entries = 0, pairs = 0;
  for (int64_t s = 0; s < batch.sequences; ++s) {
    const int32_t begin = batch.sequence_offsets[s], end = batch.sequence_offsets[s + 1];
    int64_t of_sequence = 0;
    for (int32_t t = begin; t < end; ++t) of_sequence += std::min<int64_t>(chosen, batch.positions[t] + 1);
    entries += std::min<int64_t>(of_sequence, batch.positions[end - 1] + 1);
    pairs += of_sequence;
  }
  work.cache_bytes += static_cast<double>(entries * width * dtype_bytes(desc.cache_dtype));
  work.flops = 2 * static_cast<double>(pairs * desc.attrs.integer(Attr::heads) * (width + L));  // q.k and p.c
}

}  // namespace

Work& Work::operator+=(const Work& other) {
  weight_bytes += other.weight_bytes, cache_bytes += other.cache_bytes, activation_bytes += other.activation_bytes;
  flops += other.flops, routings += other.routings, experts_reached += other.experts_reached;
  return *this;
}

Work step_work(Device& device, const Step& step, const Args& args) {
  const OpDesc& desc = step.desc;
  const Cost cost = op_cost(desc, args.now);
  Work work{.weight_bytes = cost.weight_bytes, .activation_bytes = cost.activation_bytes, .flops = cost.flops};
  if (desc.op == Op::gqa) count_attention(desc, *args.batch, work);
  if (desc.op == Op::mla_attend) count_latents(desc, *args.batch, work);
  if (desc.op == Op::expert_linear || desc.op == Op::expert_swiglu)
    work.weight_bytes = expert_bytes(device, desc, args);
  if (desc.op == Op::dispatch) {
    work.routings = 1;
    work.experts_reached = count_reached(device, args.out[1], desc.attrs.integer(Attr::experts));
  }
  return work;
}

StepTimer::StepTimer(Device& device, bool count) : device_(device), count_(count) {}

void StepTimer::mark() {
  marks_.push_back(device_.make_mark());
  marks_.back()->record();
}

void StepTimer::start() {
  mark();
}

void StepTimer::record(const Step& step, const Args& args) {
  mark();
  launches_.push_back({step.label, step.desc.op, marks_.size() - 1});
  if (!count_) return;
  work_[static_cast<size_t>(step.desc.op)] += step_work(device_, step, args);
  mark();  // the counting is not part of the next launch
}

std::vector<StepTimer::Span> StepTimer::spans() const {
  device_.synchronize();
  std::vector<Span> out;
  for (const Launch& launch : launches_) {
    const Mark& begin = *marks_[launch.end - 1];
    out.push_back({launch.label, launch.op, begin.seconds_after(*marks_[0]), marks_[launch.end]->seconds_after(begin)});
  }
  return out;
}

std::vector<StepTimer::Row> StepTimer::rows() const {
  std::array<Row, kOpCount> all;
  for (const Span& span : spans()) {
    Row& row = all[static_cast<size_t>(span.op)];
    row.op = span.op;
    ++row.calls;
    row.seconds += span.seconds;
    row.work = work_of(span.op);
  }
  std::vector<Row> out;
  std::copy_if(all.begin(), all.end(), std::back_inserter(out), [](const Row& row) { return row.calls > 0; });
  std::sort(out.begin(), out.end(), [](const Row& a, const Row& b) { return a.seconds > b.seconds; });
  return out;
}

Work StepTimer::total() const {
  Work total;
  for (const Work& work : work_) total += work;
  return total;
}

}  // namespace moesaic
