#include <algorithm>
#include <cmath>

#include "kernels/cpu/activation.h"
#include "kernels/cpu/kda.h"

namespace moesaic::cpu {
namespace {

// One piece of n <= 64 tokens. Decays between two tokens are e to the sum of the log decays between them, added up
// directly: every exponent is <= 0, so nothing overflows however strong the decay, and neither does a small sum come
// out as the difference of two large ones.
struct Piece {
  const KdaTokens& x;
  int64_t first, n;
  float* state;
  float *keys, *queries;  // [r][s], s < r and s <= r: what token s wrote, as the key and the query of token r see it
  float* deltas;          // [n][V]
  float *sums, *decays;   // [D]

  Piece(const KdaTokens& tokens, int64_t begin, float* held, float* scratch)
      : x(tokens), first(begin), n(std::min(kKdaPiece, tokens.n - begin)), state(held), keys(scratch) {
    queries = keys + kKdaPiece * kKdaPiece;
    deltas = queries + kKdaPiece * kKdaPiece;
    sums = deltas + kKdaPiece * x.V;
    decays = sums + x.D;
  }

  const float* k(int64_t r) const { return x.k + (first + r) * x.D; }
  const float* q(int64_t r) const { return x.q + (first + r) * x.D; }
  const float* g(int64_t r) const { return x.g + (first + r) * x.g_stride; }
  float* out(int64_t r) const { return x.out + (first + r) * x.v_stride; }

  void add_decay(int64_t r) const {
    for (int64_t d = 0; d < x.D; ++d) {
      sums[d] += g(r)[d];
      decays[d] = exp_one(sums[d]);
    }
  }
  void clear_decay() const {
    std::fill_n(sums, x.D, 0.0f);
    std::fill_n(decays, x.D, 1.0f);
  }

  void pairs() const {
    for (int64_t s = 0; s < n; ++s) {
      clear_decay();
      for (int64_t r = s; r < n; ++r) {
        if (r > s) add_decay(r);
        float key = 0, query = 0;
        for (int64_t d = 0; d < x.D; ++d) {
          const float written = decays[d] * k(s)[d];
          key = std::fma(k(r)[d], written, key);
          query = std::fma(q(r)[d], written, query);
        }
        keys[r * kKdaPiece + s] = key;
        queries[r * kKdaPiece + s] = query;
      }
    }
  }

  // What token r reads of the state before the piece: v - S^T (k e^sum) and S^T (q e^sum).
  void read_state(int64_t r, float* delta, float* o) const {
    std::copy_n(x.v + (first + r) * x.v_stride, x.V, delta);
    std::fill_n(o, x.V, 0.0f);
    for (int64_t d = 0; d < x.D; ++d) {
      const float key = -k(r)[d] * decays[d], query = q(r)[d] * decays[d];
      for (int64_t i = 0; i < x.V; ++i) {
        delta[i] = std::fma(key, state[d * x.V + i], delta[i]);
        o[i] = std::fma(query, state[d * x.V + i], o[i]);
      }
    }
  }

  // Forward substitution: token r's delta needs those of all before it.
  void solve() const {
    clear_decay();
    for (int64_t r = 0; r < n; ++r) {
      add_decay(r);
      float *delta = deltas + r * x.V, *o = out(r);
      read_state(r, delta, o);
      for (int64_t s = 0; s < r; ++s)
        for (int64_t i = 0; i < x.V; ++i) delta[i] = std::fma(-keys[r * kKdaPiece + s], deltas[s * x.V + i], delta[i]);
      for (int64_t i = 0; i < x.V; ++i) delta[i] *= x.beta[first + r];
      for (int64_t s = 0; s <= r; ++s)
        for (int64_t i = 0; i < x.V; ++i) o[i] = std::fma(queries[r * kKdaPiece + s], deltas[s * x.V + i], o[i]);
    }
  }

  // The state after the piece; `decays` holds those of all its tokens.
  void write_state() const {
    for (int64_t d = 0; d < x.D; ++d)
      for (int64_t i = 0; i < x.V; ++i) state[d * x.V + i] *= decays[d];
    clear_decay();
    for (int64_t s = n - 1; s >= 0; --s) {
      for (int64_t d = 0; d < x.D; ++d) {
        const float key = k(s)[d] * decays[d];
        for (int64_t i = 0; i < x.V; ++i) state[d * x.V + i] = std::fma(key, deltas[s * x.V + i], state[d * x.V + i]);
      }
      add_decay(s);
    }
  }
};

}  // namespace

void kda_chunked(const KdaTokens& tokens, float* state, float* scratch) {
  for (int64_t begin = 0; begin < tokens.n; begin += kKdaPiece) {
    const Piece piece(tokens, begin, state, scratch);
    piece.pairs();
    piece.solve();
    piece.write_state();
  }
}

}  // namespace moesaic::cpu
