"""Real faults: workers and brokers are killed, stopped, cut off, filled up and lied to; a verifier judges what is left.

``python -m chaos`` runs a campaign of rounds. A round is one group with fresh topics on a real broker, real `faust
worker` processes, a service that writes every delivery down, and one kind of fault done to it many times. At rest a
process of its own, which shares no code with retryapp, reads input, deliveries and topics and says what it found.
"""
