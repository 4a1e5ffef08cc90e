// A TLS server on a free port with a certificate that it signed itself, which answers every request alike.
#pragma once

#include <arpa/inet.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <thread>

#include "base/error.h"

namespace moesaic {

class TlsServer {
 public:
  // `names`: the certificate's, like DNS:localhost or IP:127.0.0.1.
  TlsServer(const std::string& names, std::string answer)
      : answer_(std::move(answer)),
        listener_(socket(AF_INET, SOCK_STREAM, 0)),
        key_(EVP_EC_gen("P-256"), EVP_PKEY_free) {
    certify(names);
    settings_.reset(SSL_CTX_new(TLS_server_method()));
    CHECK(SSL_CTX_use_certificate(settings_.get(), certificate_.get()) == 1);
    CHECK(SSL_CTX_use_PrivateKey(settings_.get(), key_.get()) == 1);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    CHECK(bind(listener_, reinterpret_cast<sockaddr*>(&address), size) == 0);
    CHECK(listen(listener_, 8) == 0);
    CHECK(getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size) == 0);
    port_ = ntohs(address.sin_port);
    serving_ = std::thread([this] { serve(); });
  }
  ~TlsServer() {
    shutdown(listener_, SHUT_RDWR);
    serving_.join();
    close(listener_);
  }
  TlsServer(const TlsServer&) = delete;
  TlsServer& operator=(const TlsServer&) = delete;

  int port() const { return port_; }
  std::string certificate() const {
    const std::unique_ptr<BIO, decltype(&BIO_free)> out(BIO_new(BIO_s_mem()), BIO_free);
    PEM_write_bio_X509(out.get(), certificate_.get());
    char* text = nullptr;
    const auto size = static_cast<size_t>(BIO_get_mem_data(out.get(), &text));
    return {text, size};
  }

 private:
  void certify(const std::string& names) {
    X509* c = certificate_.get();
    X509_set_version(c, 2);
    ASN1_INTEGER_set(X509_get_serialNumber(c), 1);
    X509_gmtime_adj(X509_getm_notBefore(c), -3600);
    X509_gmtime_adj(X509_getm_notAfter(c), 3600);
    X509_set_pubkey(c, key_.get());
    X509_NAME* subject = X509_get_subject_name(c);
    X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC, reinterpret_cast<const unsigned char*>("test"), -1, -1, 0);
    X509_set_issuer_name(c, subject);
    X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, nullptr, NID_subject_alt_name, names.c_str());
    X509_add_ext(c, extension, -1);
    X509_EXTENSION_free(extension);
    CHECK(X509_sign(c, key_.get(), EVP_sha256()) > 0);
  }

  void serve() {
    for (int peer = accept(listener_, nullptr, nullptr); peer >= 0; peer = accept(listener_, nullptr, nullptr)) {
      const std::unique_ptr<SSL, decltype(&SSL_free)> session(SSL_new(settings_.get()), SSL_free);
      SSL_set_fd(session.get(), peer);
      char request[4096];
      if (SSL_accept(session.get()) == 1 && SSL_read(session.get(), request, sizeof request) > 0) {
        SSL_write(session.get(), answer_.data(), static_cast<int>(answer_.size()));
        SSL_shutdown(session.get());
      }
      close(peer);
    }
  }

  std::string answer_;
  int listener_, port_ = 0;
  std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)> key_;
  std::unique_ptr<X509, decltype(&X509_free)> certificate_{X509_new(), X509_free};
  std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> settings_{nullptr, SSL_CTX_free};
  std::thread serving_;
};

}  // namespace moesaic
