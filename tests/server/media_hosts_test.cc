#include "server/media_hosts.h"

#include <gtest/gtest.h>

namespace moesaic {
namespace {

bool allowed(const std::string& entry, const std::string& url) {
  const auto parsed = parse_media_url(url);
  return parsed && find_media_host({"other.example", entry}, *parsed).has_value();
}

TEST(MediaHosts, AnEntryIsAHostOrWhatIsBelowIt) {
  EXPECT_TRUE(allowed("example.com", "https://example.com/a.png"));
  EXPECT_TRUE(allowed("Example.com", "https://EXAMPLE.com/a.png"));
  EXPECT_FALSE(allowed("example.com", "https://a.example.com/a.png"));
  EXPECT_FALSE(allowed("example.com", "https://badexample.com/a.png"));
  EXPECT_FALSE(allowed("example.com", "https://example.com.evil.org/a.png"));
  EXPECT_TRUE(allowed(".example.com", "https://a.b.example.com/a.png"));
  EXPECT_FALSE(allowed(".example.com", "https://example.com/a.png"));
  EXPECT_FALSE(allowed(".example.com", "https://badexample.com/a.png"));
  EXPECT_TRUE(allowed("[::1]", "http://[0:0::1]/a.png"));
  EXPECT_FALSE(allowed("[::1]", "http://[::2]/a.png"));
}

TEST(MediaHosts, PortsAre80And443OrTheEntrysOwn) {
  EXPECT_TRUE(allowed("example.com", "http://example.com:443/a.png"));
  EXPECT_FALSE(allowed("example.com", "http://example.com:8080/a.png"));
  EXPECT_FALSE(allowed("example.com", "http://example.com:22/a.png"));
  EXPECT_TRUE(allowed("example.com:8080", "http://example.com:8080/a.png"));
  EXPECT_FALSE(allowed("example.com:8080", "http://example.com/a.png"));
  EXPECT_TRUE(allowed("example.com:443", "https://example.com/a.png"));
  EXPECT_TRUE(allowed("[::1]:8080", "http://[::1]:8080/a.png"));
}

TEST(MediaHosts, MalformedEntries) {
  for (const char* entry : {"", ".", "..a", "https://example.com", "example.com/", "*.example.com", "a:0", "a:65536",
                            "a:", "::1", "[::1", "[1.2.3.4]", "[::1]8", "a b", "user@a"})
    EXPECT_FALSE(parse_media_host(entry)) << entry;
}

TEST(MediaHosts, MalformedUrls) {
  for (const char* url :
       {"ftp://a/", "http:/a/", "http://", "http:///a", "http://user@a/", "http://good.example@evil.example/",
        "http://a\\b/", "http://a/ b", "http://a/\r\nHost: b", "http://a:b/", "http://a:99999/", "http://[::1/",
        "http://[fe80::1%25eth0]/", "http://a%2eb/", "http://\xC3\xA4.example/", "http://a/\x7F"})
    EXPECT_FALSE(parse_media_url(url)) << url;
  EXPECT_FALSE(parse_media_url("http://a/" + std::string(9000, 'b')));
}

TEST(MediaHosts, PartsOfAUrl) {
  const auto url = parse_media_url("https://Example.com:8443?a=/b#c");
  ASSERT_TRUE(url);
  EXPECT_TRUE(url->tls);
  EXPECT_EQ(url->origin() + url->target, "https://example.com:8443/?a=/b");
  EXPECT_EQ(parse_media_url("http://[0::1]:80/a")->origin(), "http://[::1]");
}

TEST(MediaHosts, WhereALocationLeads) {
  const MediaUrl base = *parse_media_url("https://a.example/b/c?d");
  EXPECT_EQ(join_url(base, "http://x/y"), "http://x/y");
  EXPECT_EQ(join_url(base, "//x/y"), "https://x/y");
  EXPECT_EQ(join_url(base, "/x"), "https://a.example/x");
  EXPECT_EQ(join_url(base, "x:y"), "x:y");
  EXPECT_EQ(join_url(base, "x?e=f:g"), "https://a.example/b/x?e=f:g");
  EXPECT_EQ(join_url(base, "?e"), "https://a.example/b/c?e");
}

TEST(MediaHosts, ClassesOfAddresses) {
  for (const char* text : {"1.1.1.1",         "9.255.255.255", "11.0.0.0",        "100.63.255.255",   "100.128.0.0",
                           "126.255.255.255", "128.0.0.0",     "169.253.255.255", "172.15.255.255",   "172.32.0.0",
                           "192.167.255.255", "192.169.0.0",   "198.20.0.0",      "223.255.255.255",  "2606:4700::1111",
                           "2a00:1450::1",    "2001:4860::1",  "::ffff:8.8.8.8",  "64:ff9b::8.8.8.8", "2003::1"})
    EXPECT_TRUE(is_public(*parse_address(text))) << text;
  for (const char* text :
       {"0.0.0.0",     "0.1.2.3",         "10.0.0.1",        "10.255.255.255", "100.64.0.1",     "100.127.255.255",
        "127.0.0.1",   "127.255.255.255", "169.254.169.254", "172.16.0.1",     "172.31.255.255", "192.0.0.1",
        "192.0.2.1",   "192.88.99.1",     "192.168.0.1",     "198.18.0.1",     "198.19.255.255", "198.51.100.1",
        "203.0.113.1", "224.0.0.1",       "239.255.255.255", "240.0.0.1",      "255.255.255.255"})
    EXPECT_FALSE(is_public(*parse_address(text))) << text;
  for (const char* text : {"::", "::1", "::1.2.3.4", "::ffff:10.0.0.1", "::ffff:127.0.0.1", "64:ff9b::10.0.0.1",
                           "64:ff9b:1::8.8.8.8", "100::1", "2001::1", "2001:db8::1", "2002:7f00:1::", "3fff::1",
                           "fc00::1", "fd12:3456::1", "fe80::1", "febf::1", "fec0::1", "ff02::1", "4000::1"})
    EXPECT_FALSE(is_public(*parse_address(text))) << text;
}

TEST(MediaHosts, OnlyTheAddressItselfOrLocalhostAdmitsAPrivateAddress) {
  const auto may = [](const char* entry, const char* address) {
    return may_connect(*parse_media_host(entry), *parse_address(address));
  };
  EXPECT_TRUE(may("example.com", "1.1.1.1"));
  EXPECT_FALSE(may("example.com", "10.0.0.1"));
  EXPECT_FALSE(may(".example.com", "::1"));
  EXPECT_TRUE(may("10.0.0.1:80", "10.0.0.1"));
  EXPECT_FALSE(may("10.0.0.1", "10.0.0.2"));
  EXPECT_TRUE(may("[fd00::7]", "fd00::7"));
  EXPECT_TRUE(may("localhost", "127.0.0.1"));
  EXPECT_TRUE(may("localhost", "::1"));
  EXPECT_FALSE(may("localhost", "10.0.0.1"));
  EXPECT_FALSE(may(".localhost", "127.0.0.1"));
}

}  // namespace
}  // namespace moesaic
