"""The independent count: from topics and committed offsets alone, what has become of every record that was received.

It shares no code with the workers but the codecs of core, and asks no worker: what it proves does not rest on what they
believe.

* :mod:`bounds` says up to where to look, so that a running system is counted at one moment.
* :mod:`take` reads the topics; :mod:`traces` says what each record of ours tells.
* :mod:`journey` follows one record through its traces, :mod:`count` adds a partition up. Both are pure.
"""

from retryapp.ledger.count import Balance
from retryapp.ledger.journey import Fault, Problem
from retryapp.ledger.take import Ledger, take_ledger

__all__ = ["Balance", "Fault", "Ledger", "Problem", "take_ledger"]
