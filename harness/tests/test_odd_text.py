"""Text that no encoding knows comes through, in whatever a rank says or prints."""

from __future__ import annotations

import pytest

from ._inner import Inner

SURROGATES = r"""
@ranks(2)
def test_prints(world):
    sys.stdout.reconfigure(errors="surrogateescape")
    print("out \udc80 end")
    print("error \udc81 end", file=sys.stderr)
    assert world.rank == 2

@ranks(2)
def test_dies(world):
    sys.stdout.reconfigure(errors="surrogateescape")
    print("last \udc80 words")
    sys.stdout.flush()
    if world.rank:
        os._exit(3)
    reduce()

@ranks(2)
def test_asserts():
    assert "\udc80" == "one", "because \udcff"

@ranks(2)
def test_raises(world):
    if world.rank:
        raise ValueError("raised \ud800")
    reduce()

@ranks(2)
@pytest.mark.parametrize("value", [1], ids=["id-\udc90"])
def test_id(value):
    reduce()

@ranks(2)
def test_records(record_property):
    record_property("key \udc80", "value \udc80")
    reduce()

@ranks(2)
def test_warns():
    warnings.warn("warned \udc80")

@ranks(2)
def test_skips():
    pytest.skip("skipped \udc80")

def raises():
    raise ValueError("launched \udc80")

def test_launch(launch):
    launch(raises, world_size=1)

@ranks(2)
def test_healthy(world):
    assert world.gather("\udc80") == ["\udc80"] * 2
"""


@pytest.mark.parametrize(
    ("encoding", "options"),
    [
        ("ascii:strict", ()),
        ("utf-8:strict", ("--junitxml=report.xml", "-o", "junit_family=legacy")),
        ("utf-8:strict", ("-n1",)),
        ("utf-8:strict", ("-s", "--ranks-log=logs")),
    ],
)
def test_surrogates(
    inner: Inner, monkeypatch: pytest.MonkeyPatch, encoding: str, options: tuple[str, ...]
) -> None:
    # What pytest writes to can't take them: neither what it prints nor, with -n1, what it sends.
    monkeypatch.setenv("PYTHONIOENCODING", encoding)
    session = inner.run(SURROGATES, "-v", *options)
    assert session.ret == pytest.ExitCode.TESTS_FAILED
    session.result.assert_outcomes(passed=4, failed=5, skipped=1, warnings=1)
    session.match_failure("test_dies", "*rank 1 ended with exit code 3*")
    session.match_failure("test_raises", "*test_raises (rank 1 of 2)*", "E *ValueError: raised *")
    session.match_failure(
        "test_asserts", r"E       AssertionError: because \udcff", r"*'\udc80' == *"
    )
    session.match_failure("test_launch", r"E *ValueError: launched \udc80")
    session.stdout.fnmatch_lines([r"*UserWarning: warned \udc80"])
    assert "INTERNALERROR" not in session.text
