"""The independent count: from topics and committed offsets alone, what has become of every record that was received.

It shares no code with the workers but the codecs of core, and asks no worker. `bounds` fixes one moment, `take` reads
the topics, `traces` decodes their records, `journey` follows one record, `count` adds a partition up.
"""

from retryapp.ledger.count import Balance
from retryapp.ledger.journey import Fault, Problem
from retryapp.ledger.take import Ledger, take_ledger

__all__ = ["Balance", "Fault", "Ledger", "Problem", "take_ledger"]
