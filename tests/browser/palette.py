"""Makes a browser's PNG smaller: replaces three bytes per pixel with an index into a palette of the 256
most frequent colours."""
import collections
import struct
import zlib

CHANNELS = {2: 3, 6: 4}  # by colour type: RGB, RGBA


def chunks(data):
    at = 8
    while at < len(data):
        size, kind = struct.unpack(">I4s", data[at : at + 8])
        yield kind, data[at + 8 : at + 8 + size]
        at += 12 + size


def unfilter(raw, width, height, channels):
    """Returns the rows after undoing PNG's filters."""
    above = bytearray(width * channels)
    stride = width * channels + 1
    for y in range(height):
        kind, row = raw[y * stride], bytearray(raw[y * stride + 1 : (y + 1) * stride])
        for i in range(len(row) if kind else 0):
            left = row[i - channels] if i >= channels else 0
            up, corner = above[i], above[i - channels] if i >= channels else 0
            if kind == 4:
                estimate = left + up - corner
                distances = (abs(estimate - left), left), (abs(estimate - up), up), (abs(estimate - corner), corner)
                guess = min(distances, key=lambda one: one[0])[1]
            else:
                guess = (left, up, (left + up) >> 1)[kind - 1]
            row[i] = (row[i] + guess) & 255
        yield row
        above = row


def chunk(kind, body):
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def smaller(data):
    parts = list(chunks(data))
    width, height, depth, colour_type = struct.unpack(">IIBB", parts[0][1][:10])
    assert depth == 8 and colour_type in CHANNELS, "not a browser's PNG"
    channels = CHANNELS[colour_type]
    raw = zlib.decompress(b"".join(body for kind, body in parts if kind == b"IDAT"))
    rows = [[bytes(row[i : i + 3]) for i in range(0, len(row), channels)] for row in unfilter(raw, width, height, channels)]
    counted = collections.Counter(pixel for row in rows for pixel in row)
    palette = [colour for colour, _ in counted.most_common(256)]
    index = {colour: i for i, colour in enumerate(palette)}
    for colour in counted:
        if colour not in index:
            index[colour] = min(range(len(palette)), key=lambda i: sum((a - b) ** 2 for a, b in zip(palette[i], colour)))
    body = b"".join(b"\0" + bytes(map(index.__getitem__, row)) for row in rows)
    head = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    return (data[:8] + chunk(b"IHDR", head) + chunk(b"PLTE", b"".join(palette)) +
            chunk(b"IDAT", zlib.compress(body, 9)) + chunk(b"IEND", b""))  # fmt: skip
