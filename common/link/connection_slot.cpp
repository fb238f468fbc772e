#include "common/link/connection_slot.h"

#include <boost/asio/post.hpp>

namespace cleave {

void ConnectionSlot::post(std::function<void()> task) { boost::asio::post(io_, std::move(task)); }

void ConnectionSlot::fail(std::exception_ptr error) {
  onIo([connection = connection_, error = std::move(error)] { connection->fail(error); });
}

void ConnectionSlot::sendControl(FrameKind kind, std::string metadata) {
  onIo([connection = connection_, kind, metadata = std::move(metadata)]() mutable {
    connection->outbox().pushControl(kind, std::move(metadata));
    connection->wake();
  });
}

void ConnectionSlot::sendTensor(OutgoingTensor tensor) {
  connection_->outbox().pushTensor(std::move(tensor));
  connection_->wake();
}

}  // namespace cleave
