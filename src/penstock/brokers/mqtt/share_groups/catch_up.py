"""What a group gives to its members besides live messages: released ones, then those that it reads
from the log. Each stops where no member has room, or a page must be read first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.brokers.mqtt.share_groups.turn import Turn

if TYPE_CHECKING:
    from penstock.brokers.mqtt.deliver.message import Message
    from penstock.brokers.mqtt.deliver.shard_tail import ShardTail
    from penstock.brokers.mqtt.share_groups.group import ShareGroup
    from penstock.brokers.mqtt.share_groups.share_queue import ShareQueue

MESSAGES_PER_PUMP: Final = 500


def pump(group: ShareGroup) -> None:
    context = group.context
    turn = Turn(group, context.now_ms(), MESSAGES_PER_PUMP)
    for tail, queue in list(group.queues.items()):
        if tail.is_gone:
            _drop_shard(group, tail, queue)
        elif _give_released(group, turn, tail, queue) and queue.is_behind:
            _catch_up(group, turn, tail, queue)
        if queue.is_idle:
            group.changed(tail, queue)
        if turn.left <= 0:
            break
    turn.flush()
    if turn.left <= 0:
        context.request_pump(group)


def _drop_shard(group: ShareGroup, tail: ShardTail, queue: ShareQueue) -> None:
    """The topic of a shard was deleted."""
    while queue.released:
        queue.drop_released()
        group.context.counts.dropped_gone += 1
    if queue.is_behind:
        queue.catch_up()
    group.changed(tail, queue)


def _give_released(group: ShareGroup, turn: Turn, tail: ShardTail, queue: ShareQueue) -> bool:
    """Return whether nothing is left to be delivered again."""
    context = group.context
    while queue.released:
        if turn.left <= 0 or not group.ready:
            return False
        offset = queue.released[0]
        page = context.find_page(tail, offset)
        if page is None:
            _read(group, tail, queue, offset)
            return False
        message = page.message_at(offset)
        if message is None or turn.is_expired(message):
            queue.drop_released()
            context.counts.dropped_gone += 1
            group.mark_dirty()
        elif not turn.give_released(tail, message):
            return False
    return True


def _read(group: ShareGroup, tail: ShardTail, queue: ShareQueue, offset: int) -> None:
    if not queue.is_waiting:
        queue.is_waiting = True
        group.context.read_page(tail, offset, group)


def _catch_up(group: ShareGroup, turn: Turn, tail: ShardTail, queue: ShareQueue) -> None:
    while queue.next < tail.known_end:
        if turn.left <= 0 or not group.ready:
            return
        page = group.context.find_page(tail, queue.next)
        if page is None:
            _read(group, tail, queue, queue.next)
            return
        group.mark_dirty()
        first = page.index_of(queue.next)
        if not _give_page(group, turn, tail, queue, page.messages[first:]):
            return
        queue.pass_to(max(queue.next, min(page.end, tail.known_end)))
    queue.catch_up()
    group.mark_dirty()


def _give_page(
    group: ShareGroup, turn: Turn, tail: ShardTail, queue: ShareQueue, messages: list[Message]
) -> bool:
    """Return whether all messages of a page before the end were given or are not wanted."""
    for message in messages:
        offset = message.offset
        if offset >= tail.known_end:
            return True
        if turn.left <= 0:
            return False
        if _is_wanted(group, turn, queue, message) and not turn.give(tail, message, None, 0):
            return False
        queue.claim_exclusion(offset)
        queue.pass_to(offset + 1)
    return True


def _is_wanted(group: ShareGroup, turn: Turn, queue: ShareQueue, message: Message) -> bool:
    context = group.context
    if message.qos == 0 and not context.queues_qos0:
        return False
    if message.offset in queue.excluded:
        return False
    if context.route(message.topic).match_of(group) is None:
        return False
    if turn.is_expired(message):
        context.counts.dropped_expired += 1
        return False
    return True
