// Which hosts and which addresses images may be fetched from. Names decide first, then the addresses that they stand
// for: a name can be made to point anywhere.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace moesaic {

// An entry of --allowed-media-domains: example.com, .example.com (what is below it), 127.0.0.1:8080, [::1]:8080.
struct MediaHost {
  std::string host;    // lower case; an IPv6 address without brackets; without the dot of `below`
  int port = 0;        // 0: 80 and 443
  bool below = false;  // hosts below it, not itself
};

struct MediaUrl {
  bool tls = false;
  std::string host;  // as in MediaHost
  int port = 80;
  std::string target;  // path and query

  // http://host:port, the port where it is not the scheme's; IPv6 addresses stand in brackets.
  std::string origin() const;
};

// Network order; IPv4 is mapped into IPv6 (::ffff:1.2.3.4).
using Address = std::array<unsigned char, 16>;

std::optional<MediaHost> parse_media_host(std::string_view entry);
// http:// and https:// of at most 8 KiB, in ASCII, without user, blanks, control characters and backslashes; the
// fragment is dropped.
std::optional<MediaUrl> parse_media_url(std::string_view text);
// What a Location header says, as a whole URL.
std::string join_url(const MediaUrl& base, std::string_view location);
// The entry that admits the URL's host and port.
std::optional<MediaHost> find_media_host(const std::vector<std::string>& allowed, const MediaUrl& url);

// Dotted IPv4 with four numbers, or IPv6 without brackets.
std::optional<Address> parse_address(const std::string& text);
// On the public internet: none of the private, loopback, link-local, multicast, unspecified, documentation, test and
// tunnel blocks of IANA's special-purpose registries (RFC 6890).
bool is_public(const Address& address);
// Public ones, and those that the entry names: the address itself, or loopback ones for `localhost`.
bool may_connect(const MediaHost& entry, const Address& address);

}  // namespace moesaic
