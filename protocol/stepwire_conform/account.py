"""The credit of a session, as a broker keeps it (section 9). A worker returns steps that exceed its credit."""

from .frames import Message
from .stage import Batch


class Account:
    """The account of one session: the steps sent and the credit that is left."""

    def __init__(self, free: int) -> None:
        self.open = 0
        """Steps without result."""
        self._free = free
        self._n = 0
        self._unanswered: dict[str, int] = {}
        """Steps of the batches that no message has named yet: the credit does not count them."""

    @property
    def usable(self) -> int:
        return max(0, self._free - sum(self._unanswered.values()))

    def sent(self, batch: Batch) -> None:
        self.open += len(batch.items)
        self._unanswered[batch.id] = len(batch.items)

    def heard(self, message: Message) -> int:
        """Note the answers and the credit of this message. Returns the number of steps it ends."""
        ended = returned = 0
        match message.kind:
            case "results":
                ended = len(message["results"])
            case "refuse":
                returned = len(message["items"])
        self.open -= ended + returned
        self._unanswered.pop(message.get("batch_id", ""), None)
        free = message.get("free")
        if isinstance(free, dict):
            free = free.get("b1")
        if free is not None and message.get("n", self._n) >= self._n:
            self._free, self._n = free, message.get("n", self._n)
        return ended
