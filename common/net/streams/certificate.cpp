#include "common/net/streams/certificate.h"

#include <arpa/inet.h>

#include <array>

namespace cleave {
namespace {

std::string textOf(const ASN1_STRING* text) {
  return {reinterpret_cast<const char*>(ASN1_STRING_get0_data(text)),
          static_cast<std::size_t>(ASN1_STRING_length(text))};
}

// Returns "" if the length is not that of an IP address.
std::string addressText(const ASN1_OCTET_STRING* address) {
  constexpr int kIpv4Bytes = 4;
  constexpr int kIpv6Bytes = 16;
  const int bytes = ASN1_STRING_length(address);
  if (bytes != kIpv4Bytes && bytes != kIpv6Bytes) return {};
  std::array<char, INET6_ADDRSTRLEN> text{};
  ::inet_ntop(bytes == kIpv4Bytes ? AF_INET : AF_INET6, ASN1_STRING_get0_data(address), text.data(),
              text.size());
  return text.data();
}

}  // namespace

std::optional<std::time_t> timeOf(const ASN1_TIME* time) {
  std::tm utc{};
  if (ASN1_TIME_to_tm(time, &utc) != 1) return std::nullopt;
  return ::timegm(&utc);
}

AlternativeNames alternativeNamesOf(const X509* certificate) {
  const Owned<GENERAL_NAMES> names(static_cast<GENERAL_NAMES*>(
      X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr)));
  AlternativeNames all;
  for (int j = 0; names && j < sk_GENERAL_NAME_num(names.get()); ++j) {
    const GENERAL_NAME* name = sk_GENERAL_NAME_value(names.get(), j);
    if (name->type == GEN_URI) all.uris.push_back(textOf(name->d.uniformResourceIdentifier));
    if (name->type == GEN_DNS) all.hosts.push_back(textOf(name->d.dNSName));
    if (name->type == GEN_IPADD) all.hosts.push_back(addressText(name->d.iPAddress));
  }
  return all;
}

}  // namespace cleave
