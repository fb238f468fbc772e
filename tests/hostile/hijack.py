"""A server that sends the client other gradients than the model's: a proxy in front of an honest cleave-server, without TLS, replaces
gradient/0 of training steps. For codec `none`."""
import socket
import struct
import subprocess
import threading

import wire as w


class Server:
    """An honest cleave-server. `settings`: options of `serve`."""

    def __init__(self, programs, folder, *settings):
        self.process = subprocess.Popen([programs / "cleave-server", "serve", "--set=listen.port=0", f"--set=store={folder}/store", *settings],
                                        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)  # fmt: skip
        self.port = int(self.process.stdout.readline().rsplit(":", 1)[1])

    def stop(self):
        self.process.terminate()
        self.process.wait()


class Hijacker:
    """`gradient(step, micro_batch, activation, payload)`: returns the payload that the client gets instead of `payload`; `activation`: the
    payload of activation/0 of that micro-batch. Called on a thread of the connection."""

    def __init__(self, server_port, gradient):
        self.server_port = server_port
        self.gradient = gradient
        self.changed = 0  # tensors
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self):
        self.listener.close()

    def _accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self.server_port))
            for each in (client, server):
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            activations = {}
            seen = _Direction(client, server, "activation/0", lambda key, payload: activations.__setitem__(key, payload))
            sent = _Direction(server, client, "gradient/0", lambda key, payload: self._replace(key, activations.pop(key), payload))
            for each in (seen, sent):
                threading.Thread(target=each.run, daemon=True).start()

    def _replace(self, key, activation, payload):
        self.changed += 1
        return self.gradient(*key, activation, payload)


class _Direction:
    """Passes one direction's frames on. `on_tensor(key, payload)` gets each tensor of the flow in training, and returns a payload to send
    instead, or None."""

    def __init__(self, source, target, flow, on_tensor):
        self.source, self.target = source, target
        self.flow, self.on_tensor = flow, on_tensor
        self.streams = {}  # by number, the frames of a tensor of the flow that have arrived

    def run(self):
        try:
            while (head := self._read(32)) is not None:
                _, _, kind, _, metadata_bytes, payload_bytes, stream, _ = struct.unpack("<4sBBHIIQQ", head)
                metadata, payload = self._read(metadata_bytes), self._read(payload_bytes)
                if metadata is None or payload is None:
                    break
                if kind in w.TENSOR_DATA and self._belongs(kind, stream, metadata):
                    self._keep(kind, stream, metadata, payload)
                else:
                    self.target.sendall(head + metadata + payload)
        except OSError:
            pass
        for each in (self.source, self.target):
            each.close()

    def _read(self, size):
        data = bytearray()
        while len(data) < size:
            more = self.source.recv(size - len(data))
            if not more:
                return None
            data += more
        return bytes(data)

    def _belongs(self, kind, stream, metadata):
        if kind == w.SEGMENT:
            return stream in self.streams
        key = w.parse(w.parse(metadata)[1])
        return key.get(4, b"").decode() == self.flow and key[1] == b"train"

    def _keep(self, kind, stream, metadata, payload):
        frames = self.streams.setdefault(stream, [])
        frames.append((kind, metadata, payload))
        first = w.parse(frames[0][1])
        whole = b"".join(each for _, _, each in frames)
        if len(whole) < first[4]:
            return
        key = w.parse(first[1])
        replaced = self.on_tensor((key[2], key.get(3, 0)), whole) or whole
        del self.streams[stream]
        for kind, metadata, payload in frames:
            part, replaced = replaced[: len(payload)], replaced[len(payload) :]
            self.target.sendall(w.frame(kind, metadata, part, stream))
