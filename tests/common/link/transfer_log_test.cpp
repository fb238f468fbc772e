// Records and totals of the tensors that crossed a link, and the tensors that are not settled yet.
#include "common/link/transfer_log.h"

#include <catch2/catch.hpp>
#include <vector>

#include "common/link/wire_messages.h"
#include "tests/support/error_code.h"

using namespace cleave;

namespace {

Key keyOf(Flow flow, std::uint32_t i = 0) { return {Phase::train, 1, i, flow}; }

struct Client {
  void queue(const Key& key) {
    TransferRecord record;
    record.key = key;
    record.rawBytes = 1000;
    record.encodeSeconds = 0.25;
    log.queued(std::move(record));
  }
  std::string acknowledge(const Key& key) {
    return errorCode([&] { log.acknowledged(ReceivedReport{key, 2, 0.5}); });
  }
  LinkTotals totals() const { return log.totals({10, 20, 30, 40}, 5, 6); }

  std::vector<TransferRecord> records;
  TransferLog log{Role::client, 2,
                  [this](const TransferRecord& record) { records.push_back(record); }};
};

}  // namespace

TEST_CASE("a sent tensor is settled once it is both written and acknowledged, in either order") {
  Client client;
  const Key key = keyOf(activationAt(0));
  client.queue(key);
  client.log.begun(key, 0.125);
  SECTION("written first") {
    CHECK(!client.log.written(key, 600));
    CHECK(client.log.acknowledged(ReceivedReport{key, 2, 0.5}));
  }
  SECTION("acknowledged first, by a peer that does not read") {
    CHECK(!client.log.acknowledged(ReceivedReport{key, 2, 0.5}));
    CHECK(client.log.written(key, 600));
  }
  CHECK(client.records.empty());
  client.log.settle(key, LinkInfo{});
  REQUIRE(client.records.size() == 1);
  const TransferRecord& record = client.records[0];
  CHECK(record.sent);
  CHECK(record.key == key);
  CHECK(record.wireBytes == 600);
  CHECK(record.encodeSeconds == 0.25);
  CHECK(record.queueSeconds == 0.125);
  CHECK(record.wireSeconds == 2.0);
  CHECK(record.decodeSeconds == 0.5);
  CHECK(record.link.has_value());
}

TEST_CASE("an acknowledgement is refused if the tensor was not sent or is already acknowledged") {
  Client client;
  const Key key = keyOf(activationAt(0));
  CHECK(client.acknowledge(key) == "bad-key");
  client.queue(key);
  CHECK(client.acknowledge(keyOf(activationAt(0), 1)) == "bad-key");
  CHECK(client.acknowledge(key).empty());
  CHECK(client.acknowledge(key) == "bad-key");
  client.log.written(key, 600);
  client.log.settle(key, LinkInfo{});
  CHECK(client.acknowledge(key) == "bad-key");
}

TEST_CASE("a peer that never acknowledges is refused") {
  Client client;
  std::uint32_t i = 0;
  while (i < 8 * 2 + 64) client.queue(keyOf(activationAt(0), i++));
  CHECK(errorCode([&] { client.queue(keyOf(activationAt(0), i)); }) == "too-many-in-flight");
  CHECK(client.acknowledge(keyOf(activationAt(0), i)) == "bad-key");  // this tensor was not kept
}

TEST_CASE("tensors that were written but not acknowledged are recorded at the end") {
  Client client;
  client.queue(keyOf(activationAt(0), 0));
  client.queue(keyOf(activationAt(0), 1));
  client.log.written(keyOf(activationAt(0), 0), 600);
  client.log.recordUnacknowledged();
  client.log.recordUnacknowledged();
  REQUIRE(client.records.size() == 1);
  CHECK(client.records[0].wireBytes == 600);
  CHECK(!client.records[0].wireSeconds);
  CHECK(!client.records[0].link);
}

TEST_CASE("totals are sums per direction, and codec seconds are those of this side") {
  Client client;
  const Key key = keyOf(activationAt(0));
  client.queue(key);
  client.log.encoded(0.25);
  client.log.written(key, 600);
  client.acknowledge(key);  // 0.5 s of decoding at the peer
  client.log.settle(key, LinkInfo{});
  CHECK(client.log.takeCodecSeconds() == 0.25);
  CHECK(client.log.takeCodecSeconds() == 0);

  TransferRecord received;
  received.key = keyOf(gradientAt(0));
  received.rawBytes = 2000;
  received.wireBytes = 700;
  received.decodeSeconds = 1;
  client.log.received(received);
  received.key = keyOf(kWeightsBody);
  received.wireBytes = 50;
  received.decodeSeconds = 0;
  client.log.received(received);
  CHECK(client.log.takeCodecSeconds() == 1);

  const LinkTotals totals = client.totals();
  CHECK(totals.transfers == 3);
  CHECK(totals.rawUp == 1000);
  CHECK(totals.rawDown == 2000);
  CHECK(totals.wireUp == 600);
  CHECK(totals.wireDown == 700);
  CHECK(totals.blobUp == 0);
  CHECK(totals.blobDown == 50);
  CHECK(totals.controlUp == 10);
  CHECK(totals.controlDown == 20);
  CHECK(totals.peakUp == 5);
  CHECK(totals.peakDown == 6);
  CHECK(totals.encodeSeconds == 0.25);
  CHECK(totals.decodeSeconds == 1);
}

TEST_CASE("tensors that a server sends count as down") {
  TransferLog log(Role::server, 2, [](const TransferRecord&) {});
  TransferRecord record;
  record.key = keyOf(activationAt(1));
  record.rawBytes = 1000;
  log.queued(record);
  log.written(record.key, 600);
  log.acknowledged(ReceivedReport{record.key, 0, 0});
  log.settle(record.key, LinkInfo{});
  const LinkTotals totals = log.totals({10, 20, 30, 40}, 5, 6);
  CHECK(totals.wireDown == 600);
  CHECK(totals.wireUp == 0);
  CHECK(totals.controlDown == 10);
  CHECK(totals.peakUp == 6);
}
