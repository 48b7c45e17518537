"""Nodes of BLAKE3's tree, written from the BLAKE3 paper (sections 2.1 to 2.4).

The ``blake3`` package computes roots only. Hash trees of digests are lists of inner nodes, so this
is BLAKE3's compression function in Python: slow, for small inputs.
"""

from __future__ import annotations

import struct

CHUNK = 1024
BLOCK = 64
CHUNK_START, CHUNK_END, PARENT, ROOT, KEYED_HASH = 1, 2, 4, 8, 16
IV = (
    *(0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A),
    *(0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19),
)
PERMUTATION = (2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8)
MASK = 0xFFFFFFFF


def words(data: bytes) -> list[int]:
    """Little-endian words of 32 bits."""
    return list(struct.unpack(f"<{len(data) // 4}I", data))


def mix(state: list[int], a: int, b: int, c: int, d: int, x: int, y: int) -> None:
    """The quarter round."""
    for word, (first, second) in ((x, (16, 12)), (y, (8, 7))):
        state[a] = (state[a] + state[b] + word) & MASK
        state[d] ^= state[a]
        state[d] = (state[d] >> first | state[d] << (32 - first)) & MASK
        state[c] = (state[c] + state[d]) & MASK
        state[b] ^= state[c]
        state[b] = (state[b] >> second | state[b] << (32 - second)) & MASK


def compress(chain: list[int], block: bytes, counter: int, flags: int) -> list[int]:
    """The chaining value after one block of at most 64 bytes."""
    message = words(block.ljust(BLOCK, b"\0"))
    state = [*chain, *IV[:4], counter & MASK, counter >> 32, len(block), flags]
    for _ in range(7):
        for at in range(4):
            mix(state, at, at + 4, at + 8, at + 12, message[2 * at], message[2 * at + 1])
        for at in range(4):
            b, c, d = 4 + (at + 1) % 4, 8 + (at + 2) % 4, 12 + (at + 3) % 4
            mix(state, at, b, c, d, message[8 + 2 * at], message[9 + 2 * at])
        message = [message[at] for at in PERMUTATION]
    return [low ^ high for low, high in zip(state[:8], state[8:], strict=True)]


def chunk_node(key: bytes, data: bytes, counter: int) -> bytes:
    """The chaining value of one chunk."""
    chain = words(key)
    blocks = [data[at : at + BLOCK] for at in range(0, len(data), BLOCK)]
    for at, block in enumerate(blocks):
        flags = KEYED_HASH | (CHUNK_START if at == 0 else 0)
        flags |= CHUNK_END if at == len(blocks) - 1 else 0
        chain = compress(chain, block, counter, flags)
    return struct.pack("<8I", *chain)


def merge(key: bytes, nodes: list[bytes], root: int = 0) -> bytes:
    """The node above some nodes; their root with ``ROOT``."""
    if len(nodes) == 1:
        return nodes[0]
    left = 1 << ((len(nodes) - 1).bit_length() - 1)
    both = merge(key, nodes[:left]) + merge(key, nodes[left:])
    return struct.pack("<8I", *compress(words(key), both, 0, PARENT | KEYED_HASH | root))


def leaf_node(key: bytes, data: bytes, offset: int) -> bytes:
    """The node of the leaf that begins at this byte of its blob."""
    starts = range(0, len(data), CHUNK)
    return merge(
        key, [chunk_node(key, data[at : at + CHUNK], (offset + at) // CHUNK) for at in starts]
    )
