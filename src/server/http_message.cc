#include "server/http_message.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <random>

#include "text/unicode.h"

namespace moesaic::http {
namespace {

namespace beast = boost::beast::http;

constexpr size_t kLongestId = 128;
// "0\r\n\r\n": a chunked body has at least these bytes to come until it is complete. Beast 1.81's parser must not see
// fewer: given "0\r\n" and then one byte more it aborts the process.
constexpr size_t kLeastOfChunks = 5;

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  c = static_cast<char>(c | 0x20);
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

bool percent_decode(std::string_view text, std::string& out) {
  out.clear();
  for (size_t i = 0; i < text.size(); ++i) {
    char c = text[i];
    if (c == '%') {
      if (i + 2 >= text.size() || hex_digit(text[i + 1]) < 0 || hex_digit(text[i + 2]) < 0) return false;
      c = static_cast<char>(hex_digit(text[i + 1]) << 4 | hex_digit(text[i + 2]));
      if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) return false;
      i += 2;
    }
    out += c;
  }
  return true;
}

std::string text_of(boost::beast::string_view text) {
  return {text.data(), text.size()};
}

ReadError describe(const boost::system::error_code& error, const ReadLimits& limits) {
  if (error == beast::error::body_limit)
    return {413, "request_too_large",
            fmt::format("the request's body is larger than {} bytes; send less, or start the server with a larger "
                        "--max-body-bytes",
                        limits.body_bytes)};
  if (error == beast::error::header_limit)
    return {431, "headers_too_large",
            fmt::format("the request's headers or trailers are larger than {} bytes; send fewer or shorter ones",
                        limits.header_bytes)};
  if (error == beast::error::bad_version)
    return {400, "malformed_http",
            "only HTTP/1.1 and HTTP/1.0 are spoken here; the request's first line names neither"};
  return {400, "malformed_http", fmt::format("this is no HTTP/1.1 request: {}", error.message())};
}

}  // namespace

struct RequestReader::State {
  explicit State(const ReadLimits& given) : limits(given) {
    parser.header_limit(static_cast<uint32_t>(limits.header_bytes));
    parser.body_limit(limits.body_bytes);
  }

  ReadLimits limits;
  beast::request_parser<beast::string_body> parser;
  bool head_checked = false;
};

RequestReader::RequestReader(const ReadLimits& limits) : state_(std::make_unique<State>(limits)) {}
RequestReader::~RequestReader() = default;
RequestReader::RequestReader(RequestReader&&) noexcept = default;

size_t RequestReader::feed(std::string_view bytes) {
  size_t used = 0;
  // The parser stops at the end of the head and after each piece of the body.
  while (!error_ && !done() && used < bytes.size()) {
    const size_t left = bytes.size() - used;
    if (state_->head_checked && state_->parser.chunked() && left < kLeastOfChunks) break;
    boost::system::error_code error;
    const size_t taken = state_->parser.put(boost::asio::buffer(bytes.data() + used, left), error);
    used += taken;
    if (error && error != beast::error::need_more) error_ = describe(error, state_->limits);
    else if (state_->parser.is_header_done() && !state_->head_checked) check_head();
    // A chunk's size with its extensions, or all trailers, wait here for their end.
    else if (state_->parser.chunked() && error == beast::error::need_more &&
             bytes.size() - used > state_->limits.header_bytes)
      error_ = describe(beast::error::header_limit, state_->limits);
    if (error == beast::error::need_more || taken == 0) break;
  }
  return used;
}

void RequestReader::check_head() {
  state_->head_checked = true;
  const auto& head = state_->parser.get();
  std::string path, query;
  if (head.version() == 11 && head.count(beast::field::host) != 1)
    error_ = {400, "malformed_http", "an HTTP/1.1 request has one Host header; this one has none or several"};
  // Two readings of where the body ends would let a proxy and this server see different requests.
  else if (head.count(beast::field::transfer_encoding) > 0 && (!state_->parser.chunked() || head.version() == 10))
    error_ = {501, "unsupported_transfer_encoding", "the only Transfer-Encoding understood here is chunked"};
  else if (!split_target(text_of(head.target()), path, query))
    error_ = {
        400, "malformed_http",
        "the request's target is no path; expected one that starts with / and has %XX, of UTF-8, for odd characters"};
}

bool RequestReader::head_done() const {
  return state_->parser.is_header_done();
}
bool RequestReader::done() const {
  return state_->parser.is_done() && state_->head_checked;
}
bool RequestReader::expects_continue() const {
  const auto& head = state_->parser.get();
  return head.version() == 11 && boost::beast::iequals(head[beast::field::expect], "100-continue");
}
bool RequestReader::keep_alive() const {
  return state_->parser.keep_alive();
}
bool RequestReader::http_1_0() const {
  return state_->parser.get().version() == 10;
}

Request RequestReader::take() {
  auto message = state_->parser.release();
  Request request;
  request.method = text_of(message.method_string());
  split_target(text_of(message.target()), request.path, request.query);
  for (const auto& field : message) request.headers.emplace_back(text_of(field.name_string()), text_of(field.value()));
  request.body = std::move(message.body());
  const std::string_view id = request.header("X-Request-Id");
  request.request_id = usable_request_id(id) ? std::string(id) : fresh_request_id();
  return request;
}

std::string_view Request::header(std::string_view name) const {
  for (const auto& [key, value] : headers)
    if (boost::beast::iequals({key.data(), key.size()}, {name.data(), name.size()})) return value;
  return {};
}

bool split_target(std::string_view target, std::string& path, std::string& query) {
  for (std::string_view scheme : {"http://", "https://"}) {
    if (!target.starts_with(scheme)) continue;
    const size_t slash = target.find('/', scheme.size());
    target = slash == std::string_view::npos ? "/" : target.substr(slash);
  }
  target = target.substr(0, target.find('#'));
  const size_t mark = target.find('?');
  query = mark == std::string_view::npos ? "" : std::string(target.substr(mark + 1));
  const std::string_view raw = target.substr(0, mark);
  if (raw != "*" && !raw.starts_with('/')) return false;
  // Paths come back in error bodies and in the log, which are UTF-8.
  return percent_decode(raw, path) && replace_invalid_utf8(path) == path;
}

bool usable_request_id(std::string_view id) {
  return !id.empty() && id.size() <= kLongestId &&
         std::all_of(id.begin(), id.end(), [](char c) { return c >= 0x20 && c < 0x7f; });
}

std::string fresh_request_id() {
  thread_local std::mt19937_64 random(std::random_device{}());
  return fmt::format("req-{:016x}{:08x}", random(), random() & 0xffffffff);
}

std::string reply_head(int status, const Headers& headers) {
  const auto reason = beast::obsolete_reason(beast::int_to_status(static_cast<unsigned>(status)));
  std::string head = fmt::format("HTTP/1.1 {} {}\r\n", status, std::string_view(reason.data(), reason.size()));
  for (const auto& [name, value] : headers) {
    const size_t begin = head.size() + name.size() + 2;
    head.append(name).append(": ").append(value);
    std::replace_if(
        head.begin() + static_cast<ptrdiff_t>(begin), head.end(), [](char c) { return c == '\r' || c == '\n'; }, ' ');
    head += "\r\n";
  }
  return head += "\r\n";
}

std::string http_date(time_t when) {
  tm parts{};
  gmtime_r(&when, &parts);
  char text[32];
  const size_t length = std::strftime(text, sizeof text, "%a, %d %b %Y %H:%M:%S GMT", &parts);
  return {text, length};
}

}  // namespace moesaic::http
