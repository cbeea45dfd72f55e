"""The names of the package, for type checkers; `__init__.py` loads each with its first use."""

from penstock.adapter.locations import Message as Message
from penstock.api import Consumer as Consumer
from penstock.api import Store as Store
from penstock.api import TieringPolicy as TieringPolicy
from penstock.api import Topic as Topic
from penstock.api import TopicInfo as TopicInfo
from penstock.engine.contract import Acks as Acks
from penstock.errors import AlreadyExistsError as AlreadyExistsError
from penstock.errors import GroupFencedError as GroupFencedError
from penstock.errors import GroupNotEmptyError as GroupNotEmptyError
from penstock.errors import PartialWriteError as PartialWriteError
from penstock.errors import StoreError as StoreError
from penstock.errors import UnknownTopicError as UnknownTopicError
from penstock.node.connect_store import connect as connect
from penstock.node.open_store import open as open  # noqa: A004 - the verb of the package
from penstock.record import Location as Location
from penstock.record import Producer as Producer
from penstock.record import Record as Record
from penstock.record import StoredRecord as StoredRecord
