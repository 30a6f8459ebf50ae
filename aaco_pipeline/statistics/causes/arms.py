"""The sessions of one side of a comparison together: their accounts and their facts."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import polars as pl

from aaco_pipeline.statistics.causes.accounts import Account, Tables, account

#: What an arm is made from besides.
FACTS: Final = ("sessions", "environment", "devices")


@dataclass(frozen=True)
class Arm:
    """Sessions that are compared as one side: their accounts, and their facts with session_id.

    `sessions` and `environment` are rows of these tables; `left_out` says by session why it has no account. `blocks`
    holds the block of each account, null outside a campaign.
    """

    accounts: tuple[Account, ...]
    blocks: tuple[int | None, ...]
    sessions: pl.DataFrame
    environment: pl.DataFrame
    devices: pl.DataFrame
    left_out: Mapping[str, str]


def arm(sessions: Mapping[str, Tables]) -> Arm:
    """One side of a comparison from the tables (`ACCOUNTED_FROM` and `FACTS`) of its sessions, by session id."""
    made = {session: account(tables) for session, tables in sessions.items()}
    kept = {session: one for session, one in made.items() if isinstance(one, Account)}
    facts = {
        name: pl.concat(
            [tables[name].with_columns(session_id=pl.lit(session)) for session, tables in sessions.items()],
            how="diagonal_relaxed",
        )
        for name in FACTS
    }
    blocks = {session: tables["sessions"].item(0, "block") for session, tables in sessions.items()}
    return Arm(
        accounts=tuple(kept.values()),
        blocks=tuple(blocks[session] for session in kept),
        sessions=facts["sessions"],
        environment=facts["environment"],
        devices=facts["devices"],
        left_out={session: one for session, one in made.items() if isinstance(one, str)},
    )
