#include "common/net/streams/tls_stream.h"

#include <openssl/err.h>
#include <openssl/x509v3.h>
#include <sys/socket.h>

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/asio/ip/address.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <cstring>
#include <new>
#include <utility>

#include "common/net/frames/frame.h"

namespace cleave {
namespace {

namespace asio = boost::asio;
using asio::use_awaitable;
using boost::system::system_error;

constexpr std::size_t kMinRead = 4 << 10;
// Half of a core's L2 cache, so that data that the kernel has just copied is still in the cache for
// decryption.
constexpr std::size_t kMaxRead = 256 << 10;
constexpr std::size_t kRecordBytes = 16 << 10;
constexpr std::size_t kRecordOverhead = 22;  // header, type, tag
// Maximum bytes read without yielding content: part of a record, and key updates.
constexpr std::size_t kMaxWithoutText = 64 << 10;

// Accepts a TLS handshake record or an alert. Throws "not-tls" for Cleave without TLS, and
// "not-cleave" for anything else.
void checkTlsStart(std::span<const std::byte> start, TlsRole ours) {
  if (start[0] == std::byte{SSL3_RT_HANDSHAKE} || start[0] == std::byte{SSL3_RT_ALERT}) return;
  checkMagic(start);
  if (ours == TlsRole::server) {
    throw NotTls("the client connected without TLS, but this server requires TLS",
                 "set tls.enabled and tls.folder on the client, or give it --tls DIR");
  }
  throw NotTls("the server speaks Cleave without TLS, but this client requires TLS",
               "set tls.enabled in the server's configuration");
}

}  // namespace

// ---- OpenSSL I/O ----

struct TlsStream::Bio {
  static TlsStream& streamOf(BIO* bio) { return *static_cast<TlsStream*>(BIO_get_data(bio)); }

  static int read(BIO* bio, char* place, int size) {
    TlsStream& stream = streamOf(bio);
    BIO_clear_retry_flags(bio);
    const std::size_t bytes =
        std::min(static_cast<std::size_t>(size), stream.inEnd_ - stream.inBegin_);
    if (bytes == 0) {
      BIO_set_retry_read(bio);
      return -1;
    }
    std::memcpy(place, stream.in_.data() + stream.inBegin_, bytes);
    stream.inBegin_ += bytes;
    return static_cast<int>(bytes);
  }

  static int write(BIO* bio, const char* bytes, int size) {
    BIO_clear_retry_flags(bio);
    const auto all = std::as_bytes(std::span(bytes, static_cast<std::size_t>(size)));
    std::vector<std::byte>& out = streamOf(bio).out_;
    out.insert(out.end(), all.begin(), all.end());
    return size;
  }

  static long control(BIO*, int command, long, void*) { return command == BIO_CTRL_FLUSH ? 1 : 0; }

  static BIO_METHOD* method() {
    static BIO_METHOD* const method = [] {
      BIO_METHOD* made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "cleave");
      BIO_meth_set_read(made, read);
      BIO_meth_set_write(made, write);
      BIO_meth_set_ctrl(made, control);
      return made;
    }();
    return method;
  }
};

TlsStream::TlsStream(Socket socket, std::shared_ptr<const TlsContext> context,
                     const std::string& serverName, FrameDeadline deadline)
    : ByteStream(std::move(socket)),
      context_(std::move(context)),
      deadline_(deadline),
      ssl_(SSL_new(context_->native())),
      in_(kMinRead) {
  BIO* bio = BIO_new(Bio::method());
  if (!ssl_ || bio == nullptr) throw std::bad_alloc();
  BIO_set_data(bio, this);
  BIO_set_init(bio, 1);
  SSL_set_bio(ssl_.get(), bio, bio);
  SSL_set_app_data(ssl_.get(), &check_);
  if (context_->role() == TlsRole::server) {
    SSL_set_accept_state(ssl_.get());
    return;
  }
  SSL_set_connect_state(ssl_.get());
  expectServer(serverName);
}

// Requires that the server's certificate matches this name or address. Throws if it cannot set the
// name, because OpenSSL would then check none.
void TlsStream::expectServer(const std::string& name) {
  const std::string plain = name.substr(0, name.find('%'));  // without an IPv6 zone
  boost::system::error_code isName;
  asio::ip::make_address(plain, isName);
  X509_VERIFY_PARAM* check = SSL_get0_param(ssl_.get());
  bool isSet = !plain.empty();
  if (isName) {
    X509_VERIFY_PARAM_set_hostflags(
        check, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS | X509_CHECK_FLAG_NEVER_CHECK_SUBJECT);
    isSet = isSet && X509_VERIFY_PARAM_set1_host(check, plain.c_str(), plain.size()) == 1;
    SSL_set_tlsext_host_name(ssl_.get(), plain.c_str());
  } else {
    isSet = isSet && X509_VERIFY_PARAM_set1_ip_asc(check, plain.c_str()) == 1;
  }
  if (isSet) return;
  throw UsageError("bad-address", "no certificate can have the server name '" + name + "'",
                   "give --server a host name or an IP address");
}

TlsStream::~TlsStream() = default;

void TlsStream::checkPeerAgain(const TlsContext& context) const {
  const bool isSame = &context == context_.get();
  if (!secured_ || isSame) return;
  X509* certificate = SSL_get0_peer_certificate(ssl_.get());
  cleave::checkPeerAgain(context, certificate, SSL_get_peer_cert_chain(ssl_.get()), check_);
}

// ---- Handshake ----

asio::awaitable<void> TlsStream::secure() {
  std::size_t arrivedBytes = 0;
  while (!secured_) {
    ERR_clear_error();
    const int result = SSL_do_handshake(ssl_.get());
    if (result != 1 && SSL_get_error(ssl_.get(), result) != SSL_ERROR_WANT_READ) {
      const std::exception_ptr error = failed();
      endWriting();
      std::rethrow_exception(error);
    }
    co_await flush();
    secured_ = result == 1;
    if (secured_) break;
    if (arrivedBytes > kMaxTlsHandshakeBytes) {
      throw TlsFailed(
          ErrorKind::run,
          "the TLS handshake is longer than " + std::to_string(kMaxTlsHandshakeBytes) + " bytes",
          "");
    }
    co_await readSocket();
    if (arrivedBytes == 0) checkTlsStart(std::span(in_).first(inEnd_), context_->role());
    arrivedBytes += inEnd_;
  }
}

// Sets error_ from OpenSSL's error queue.
std::exception_ptr TlsStream::failed() {
  // A peer that refuses TLS will refuse it again; data that is damaged later may cross next time.
  error_ = tlsError(check_, context_->role(), hasText_ ? ErrorKind::link : ErrorKind::run);
  ERR_clear_error();
  return error_;
}

// ---- Reading ----

// Requires that OpenSSL has consumed all of in_.
asio::awaitable<void> TlsStream::readSocket() {
  if (secured_ && inEnd_ == in_.size() && inEnd_ < kMaxRead) in_.resize(2 * in_.size());
  inBegin_ = inEnd_ = 0;
  inEnd_ = co_await socket().async_read_some(asio::buffer(in_), use_awaitable);
  arrived();
}

asio::awaitable<std::size_t> TlsStream::readSome(std::span<std::byte> place) {
  std::size_t have = 0;
  std::size_t withoutText = 0;
  FrameProgress record(deadline_);
  while (have < place.size()) {
    if (error_ && have == 0) std::rethrow_exception(error_);
    ERR_clear_error();
    std::size_t bytes = 0;
    const int result =
        error_ ? 0 : SSL_read_ex(ssl_.get(), place.data() + have, place.size() - have, &bytes);
    have += bytes;
    hasText_ = hasText_ || bytes > 0;
    if (result == 1) continue;  // one record read
    const int error = error_ ? SSL_ERROR_NONE : SSL_get_error(ssl_.get(), result);
    if (error == SSL_ERROR_ZERO_RETURN && have == 0) throw system_error(asio::error::eof);
    if (error == SSL_ERROR_SSL || error == SSL_ERROR_SYSCALL) failed();
    if (have > 0) break;
    if (error != SSL_ERROR_WANT_READ) continue;
    if (withoutText > kMaxWithoutText) {
      throw ProtocolError("flood", "received too many TLS records without content");
    }
    co_await readSocket();
    withoutText += inEnd_;
    record.isMidFrame() ? record.arrived(inEnd_, now()) : record.begin(now());
  }
  co_return have;
}

// ---- Writing ----

asio::awaitable<void> TlsStream::write(std::span<const std::byte> head,
                                       std::span<const std::byte> payload) {
  const std::size_t bytes = head.size() + payload.size();
  renewKey(bytes);
  out_.reserve(out_.size() + bytes + (bytes / kRecordBytes + 4) * kRecordOverhead);
  encrypt(head);
  encrypt(payload);
  co_await flush();
}

void TlsStream::encrypt(std::span<const std::byte> bytes) {
  if (bytes.empty()) return;
  ERR_clear_error();
  std::size_t written = 0;
  if (!error_ && SSL_write_ex(ssl_.get(), bytes.data(), bytes.size(), &written) == 1) return;
  // The reader reports the reason; the peer receives it as the alert.
  if (!error_) failed();
  sayEnd();
  throw system_error(asio::error::connection_aborted);
}

void TlsStream::renewKey(std::size_t bytes) {
  sinceNewKey_ += bytes;
  if (sinceNewKey_ < context_->bytesPerKey()) return;
  SSL_key_update(ssl_.get(),
                 SSL_KEY_UPDATE_NOT_REQUESTED);  // the key update is sent with the next record
  sinceNewKey_ = 0;
}

asio::awaitable<void> TlsStream::flush() {
  while (!out_.empty()) {
    std::swap(out_, underWay_);
    writing_ = true;
    co_await asio::async_write(socket(), asio::buffer(underWay_), inOneCall(underWay_.size()),
                               use_awaitable);
    writing_ = false;
    underWay_.clear();
  }
  std::swap(out_, underWay_);  // keeps the larger buffer
}

// Sends close_notify, or the alert for a failure. Does nothing if a record was only partly written.
void TlsStream::sayEnd() {
  if (writing_) return;
  ERR_clear_error();
  if (secured_ && !error_ && (SSL_get_shutdown(ssl_.get()) & SSL_SENT_SHUTDOWN) == 0) {
    SSL_shutdown(ssl_.get());
  }
  ERR_clear_error();
  if (out_.empty()) return;
  ::send(socket().native_handle(), out_.data(), out_.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  out_.clear();
}

}  // namespace cleave
