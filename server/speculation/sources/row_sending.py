"""Send the target's hidden rows (hidden states, a row per committed token) to drafters with a head."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from server.llama.backend import RowGiver
from server.speculation.sources.drafter_record import DrafterRecord
from server.speculation.speculated import Speculated
from server.speculation.wire.bus import Bus
from server.speculation.wire.messages import MAX_ROWS_BYTES, Rows


def meet_readers(target: RowGiver | None, used: Sequence[DrafterRecord]) -> RowGiver | None:
    """Make the target keep the hidden rows that drafters read. Return the target, None if none are read."""
    if target is not None:
        target.keep_rows({one.presence.rows.layers for one in used if one.presence.rows})
    return target if any(one.presence.rows for one in used) else None


def send_rows(
    bus: Bus,
    target: RowGiver,
    speculated: Speculated,
    drafters: Mapping[str, DrafterRecord],
    ids: Iterable[str],
) -> None:
    """Send the session's hidden rows of tokens evaluated since the last call.

    Args:
        bus: Where the drafters are.
        target: Gives the rows.
        speculated: The session; its n_rows_sent is updated.
        drafters: All drafters, by id.
        ids: The drafters to send rows to; those that read no rows are skipped.
    """
    for id in ids:
        if (card := drafters[id].presence.rows) is None:
            continue
        seq, n_evaluated = speculated.session.evaluated()
        first, rows = target.recent_rows(card.layers, seq, speculated.n_rows_sent.get(id, 0), n_evaluated)
        if not len(rows):
            continue
        speculated.n_rows_sent[id] = n_evaluated
        width = rows.shape[1]
        at_once = max(1, MAX_ROWS_BYTES // (rows.itemsize * width))
        for start in range(0, len(rows), at_once):
            part = rows[start : start + at_once].tobytes()
            bus.send(id, Rows(speculated.wire_id, first + start, width, part))
