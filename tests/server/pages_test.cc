// Pages that are part of the program.
#include "server/pages.h"

#include <gmock/gmock.h>

#include <filesystem>

#include "base/mapped_file.h"

namespace moesaic {
namespace {

using ::testing::HasSubstr;

TEST(Pages, AreTheFilesOfTheSourceTree) {
  for (const char* name : {"chat", "dashboard"}) {
    const std::string file = std::string(MOESAIC_SOURCE_DIR "/web/") + name + ".html";
    EXPECT_EQ(embedded_page(name), std::filesystem::exists(file) ? read_text_file(file) : "") << name;
  }
  EXPECT_EQ(embedded_page("other"), "");
}

TEST(Pages, MayRunTheirOwnScriptsAndTalkToThisServerAlone) {
  const http::Response page = page_response("<p>hello</p>");
  EXPECT_EQ(page.status, 200);
  EXPECT_EQ(page.body, "<p>hello</p>");
  EXPECT_EQ(page.content_type, "text/html; charset=utf-8");
  ASSERT_EQ(page.headers.at(0).first, "Content-Security-Policy");
  EXPECT_THAT(page.headers[0].second, HasSubstr("default-src 'none'"));
  EXPECT_THAT(page.headers[0].second, HasSubstr("connect-src 'self'"));
  EXPECT_THAT(page.headers[0].second, HasSubstr("frame-ancestors 'none'"));
  const http::Response none = page_response("");
  EXPECT_EQ(none.status, 404);
  EXPECT_THAT(none.body, HasSubstr("\"error\""));
}

}  // namespace
}  // namespace moesaic
