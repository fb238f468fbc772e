#include "server/sessions/session_table.h"

#include <cassert>
#include <utility>

namespace cleave {

std::shared_ptr<Session> SessionTable::open(const SessionContext& context,
                                            boost::asio::ip::tcp::socket socket) {
  assert(!isDraining_);
  auto session = std::make_shared<Session>(context, std::move(socket), ++opened_);
  sessions_.insert(session);
  return session;
}

void SessionTable::remove(const std::shared_ptr<Session>& session) {
  if (session->wasAdmitted()) ++ended_[session->kind()];
  assert(sessions_.contains(session));
  sessions_.erase(session);
}

void SessionTable::drain() {
  isDraining_ = true;
  forEach([](Session& session) { session.drain(); });
}

void SessionTable::forEach(const std::function<void(Session&)>& function) const {
  // Iterates over a copy, because a session that has nothing to finish may be removed during the
  // loop.
  const auto sessions = sessions_;
  for (const auto& session : sessions) function(*session);
}

std::map<std::string, SessionTable::Count> SessionTable::counts() const {
  std::map<std::string, Count> counts = {{"run", {}}, {"trial", {}}, {"probe", {}}, {"edge", {}}};
  for (const auto& [kind, ended] : ended_) counts[kind].total = ended;
  for (const auto& session : sessions_) {
    if (!session->wasAdmitted()) continue;
    ++counts[session->kind()].open;
    ++counts[session->kind()].total;
  }
  return counts;
}

}  // namespace cleave
