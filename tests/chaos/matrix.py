"""The fault matrix: F1 to F24, each with how it is done here."""

from __future__ import annotations

from chaos.crashes import die_in_turn
from chaos.plan import Fault

LIVES = 8

FAULTS: tuple[Fault, ...] = (
    Fault(
        id="F1",
        title="kill -9 at named crash points",
        how="the worker sends itself SIGKILL at a named call; a chain of lives, a fifth of them without a store",
        run=lambda act, n: die_in_turn(act, LIVES, n // 2),
        rounds=100,
    ),
)
