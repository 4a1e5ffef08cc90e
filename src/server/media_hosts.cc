#include "server/media_hosts.h"

#include <arpa/inet.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstring>

namespace moesaic {
namespace {

constexpr size_t kMaxUrlBytes = 8192;
constexpr int kHttpPort = 80, kHttpsPort = 443;

struct Block {
  uint32_t first;  // of the address's first 32 bits
  int bits;
};

constexpr Block kNotPublic4[] = {
    {0x00000000, 8},   // this network
    {0x0A000000, 8},   // private
    {0x64400000, 10},  // carriers' own
    {0x7F000000, 8},   // loopback
    {0xA9FE0000, 16},  // link-local, where clouds keep their metadata
    {0xAC100000, 12},  // private
    {0xC0000000, 24},  // IETF protocols
    {0xC0000200, 24},  // documentation
    {0xC0586300, 24},  // 6to4 relays
    {0xC0A80000, 16},  // private
    {0xC6120000, 15},  // benchmarks
    {0xC6336400, 24},  // documentation
    {0xCB007100, 24},  // documentation
    {0xE0000000, 4},   // multicast
    {0xF0000000, 4},   // reserved, broadcast
};

// Within 2000::/3; what lies outside it is not public at all.
constexpr Block kNotPublic6[] = {
    {0x20010000, 23},  // IETF protocols, Teredo, benchmarks
    {0x20010DB8, 32},  // documentation
    {0x20020000, 16},  // 6to4, which can hold a private IPv4 address
    {0x3FFF0000, 20},  // documentation
};

bool lies_in(uint32_t bits, const Block& block) {
  return (bits ^ block.first) >> (32 - block.bits) == 0;
}

uint32_t word(const Address& address, size_t at) {
  return uint32_t{address[at]} << 24 | uint32_t{address[at + 1]} << 16 | uint32_t{address[at + 2]} << 8 |
         uint32_t{address[at + 3]};
}

// ::ffff:0:0/96 is IPv4 itself, 64:ff9b::/96 is IPv4 behind a translator.
bool holds_ipv4(const Address& a) {
  const bool mapped = word(a, 0) == 0 && word(a, 4) == 0 && word(a, 8) == 0xFFFF;
  return mapped || (word(a, 0) == 0x0064FF9B && word(a, 4) == 0 && word(a, 8) == 0);
}

bool is_loopback(const Address& a) {
  static constexpr Address kLoopback6 = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1};
  return a == kLoopback6 || (word(a, 0) == 0 && word(a, 4) == 0 && word(a, 8) == 0xFFFF && a[12] == 127);
}

bool is_name(std::string_view text) {
  return !text.empty() && text.size() <= 253 && !text.starts_with('.') &&
         text.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789.-_") == std::string_view::npos;
}

// Each address has many spellings; this is the one that is compared.
std::optional<std::string> plain_ipv6(std::string_view text) {
  in6_addr bytes{};
  char out[INET6_ADDRSTRLEN];
  if (inet_pton(AF_INET6, std::string(text).c_str(), &bytes) != 1) return std::nullopt;
  return inet_ntop(AF_INET6, &bytes, out, sizeof out);
}

std::optional<int> parse_port(std::string_view text) {
  int port = 0;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), port);
  if (failed != std::errc() || end != text.data() + text.size() || port < 1 || port > 65535) return std::nullopt;
  return port;
}

// host, host:port, [IPv6], [IPv6]:port
std::optional<MediaHost> parse_authority(std::string_view text) {
  const bool bracketed = text.starts_with('[');
  const size_t end = bracketed ? text.find(']') : std::min(text.find(':'), text.size());
  if (end == std::string_view::npos) return std::nullopt;
  MediaHost out{.host = std::string(text.substr(0, end))};
  std::ranges::transform(out.host, out.host.begin(),
                         [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c | 0x20) : c; });
  if (bracketed) {
    const auto address = plain_ipv6(text.substr(1, end - 1));
    if (!address) return std::nullopt;
    out.host = *address;
  } else if (!is_name(out.host)) {
    return std::nullopt;
  }
  const std::string_view rest = text.substr(bracketed ? end + 1 : end);
  if (rest.empty()) return out;
  const auto port = rest.starts_with(':') ? parse_port(rest.substr(1)) : std::nullopt;
  if (!port) return std::nullopt;
  out.port = *port;
  return out;
}

bool is_plain(std::string_view url) {
  return url.size() <= kMaxUrlBytes &&
         std::ranges::all_of(url, [](char c) { return c > ' ' && c < 0x7F && c != '\\'; });
}

bool admits(const MediaHost& entry, const MediaUrl& url) {
  if (entry.port != 0 ? url.port != entry.port : url.port != kHttpPort && url.port != kHttpsPort) return false;
  return entry.below ? url.host.ends_with("." + entry.host) : url.host == entry.host;
}

}  // namespace

std::string MediaUrl::origin() const {
  const bool bare = port == (tls ? kHttpsPort : kHttpPort);
  const std::string name = host.find(':') == std::string::npos ? host : "[" + host + "]";
  return fmt::format("{}://{}{}", tls ? "https" : "http", name, bare ? "" : fmt::format(":{}", port));
}

std::optional<MediaHost> parse_media_host(std::string_view entry) {
  const bool below = entry.starts_with('.');
  auto out = parse_authority(entry.substr(below ? 1 : 0));
  if (out) out->below = below;
  return out;
}

std::optional<MediaUrl> parse_media_url(std::string_view text) {
  MediaUrl out;
  out.tls = text.starts_with("https://");
  if (!is_plain(text) || (!out.tls && !text.starts_with("http://"))) return std::nullopt;
  text.remove_prefix(out.tls ? 8 : 7);
  text = text.substr(0, text.find('#'));
  const size_t end = std::min(text.find_first_of("/?"), text.size());
  const auto authority = parse_authority(text.substr(0, end));
  if (!authority) return std::nullopt;
  out.host = authority->host;
  out.port = authority->port != 0 ? authority->port : out.tls ? kHttpsPort : kHttpPort;
  out.target = text.substr(end);
  if (!out.target.starts_with('/')) out.target.insert(0, "/");
  return out;
}

std::string join_url(const MediaUrl& base, std::string_view location) {
  const size_t colon = location.find(':');
  if (colon < location.find_first_of("/?#")) return std::string(location);  // it has a scheme
  if (location.starts_with("//")) return (base.tls ? "https:" : "http:") + std::string(location);
  if (location.starts_with('/')) return base.origin() + std::string(location);
  const std::string path = base.target.substr(0, base.target.find('?'));
  const bool same_path = location.empty() || location.starts_with('?') || location.starts_with('#');
  return base.origin() + (same_path ? path : path.substr(0, path.rfind('/') + 1)) + std::string(location);
}

std::optional<MediaHost> find_media_host(const std::vector<std::string>& allowed, const MediaUrl& url) {
  for (const std::string& text : allowed) {
    auto entry = parse_media_host(text);
    if (entry && admits(*entry, url)) return entry;
  }
  return std::nullopt;
}

std::optional<Address> parse_address(const std::string& text) {
  Address out{};
  if (inet_pton(AF_INET6, text.c_str(), out.data()) == 1) return out;
  out[10] = out[11] = 0xFF;
  if (inet_pton(AF_INET, text.c_str(), out.data() + 12) == 1) return out;
  return std::nullopt;
}

bool is_public(const Address& address) {
  const bool ipv4 = holds_ipv4(address);
  const uint32_t bits = word(address, ipv4 ? 12 : 0);
  const auto holds = [&](const Block& block) { return lies_in(bits, block); };
  if (ipv4) return std::ranges::none_of(kNotPublic4, holds);
  return lies_in(bits, {0x20000000, 3}) && std::ranges::none_of(kNotPublic6, holds);
}

bool may_connect(const MediaHost& entry, const Address& address) {
  if (is_public(address)) return true;
  if (entry.below) return false;
  return entry.host == "localhost" ? is_loopback(address) : parse_address(entry.host) == address;
}

}  // namespace moesaic
