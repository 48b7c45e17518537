"""Checkpoints: checks of states before a loader continues from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any, TypeGuard

from forebay._native import StateError

#: Message for a state with a field of the wrong type or range.
DAMAGED = "the state is not of forebay.DataLoader, or is damaged; use another checkpoint"


def int_field(state: dict[str, Any], name: str) -> int:
    """An integer of a state."""
    value = state.get(name)
    if not is_valid_int(value):
        raise StateError(DAMAGED)
    return value


def is_valid_int(value: Any) -> TypeGuard[int]:
    """Whether a value is an integer that a state may have: the core can count on from it."""
    return isinstance(value, int) and 0 <= value < 1 << 63


def checksum(state: Mapping[str, Any]) -> str:
    """The checksum of all fields of a state except ``checksum``."""
    fields = {name: value for name, value in state.items() if name != "checksum"}
    return blake2b(repr(_canonical(fields)).encode(), digest_size=16).hexdigest()


def _canonical(value: Any) -> Any:
    """The same value for any order of names and any type of sequence."""
    if isinstance(value, Mapping):
        return sorted((str(name), _canonical(one)) for name, one in value.items())
    return [_canonical(one) for one in value] if isinstance(value, list | tuple) else value


def single_state(states: Sequence[dict[str, Any]], message: str) -> dict[str, Any]:
    """The only state; raises ``StateError`` with ``message`` if there are more."""
    if len(states) != 1:
        raise StateError(message)
    return states[0]
