"""The stage `session_environment`: one fingerprint for one host, and every clock on the session's axis."""

from aaco_pipeline.lake.store import TraceLake
from tests.sessions import made_by


def test_the_fingerprint_of_the_session_is_that_of_its_environment(lake: TraceLake, session: str) -> None:
    outcome = made_by(lake, session, "session_environment")
    assert outcome.headline["fingerprint"] == lake.read("sessions", session).item(0, "fingerprint")


def test_sessions_of_one_host_are_comparable(lake: TraceLake) -> None:
    assert lake.read("sessions").get_column("fingerprint").n_unique() == 1


def test_every_clock_has_its_place_on_the_axis(lake: TraceLake, session: str) -> None:
    clocks = {row["domain"]: row for row in lake.read("clock_domains", session).rows(named=True)}
    assert set(clocks) == {"monotonic", "realtime", "onnxruntime_profile"}
    assert all(clock["uncertainty_ns"] >= 0 for clock in clocks.values())
