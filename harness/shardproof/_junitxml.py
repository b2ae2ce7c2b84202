"""What a test records for `--junitxml` beside its report: rank 0's counts."""

from __future__ import annotations

from typing import Any

import pytest
from _pytest.junitxml import xml_key


def take(config: pytest.Config) -> dict[str, Any]:
    """On a rank: return what a test has recorded, or nothing.

    That is the attributes of its element, and properties of the suite.
    """
    xml = config.stash.get(xml_key, None)
    if xml is None or not (xml.node_reporters_ordered or xml.global_properties):
        return {}
    attributes: dict[str, str] = {}
    for reporter in xml.node_reporters_ordered:  # made on ranks by the fixture alone
        attributes |= reporter.attrs
    taken = {"attributes": attributes, "properties": xml.global_properties}
    xml.node_reporters.clear()
    xml.node_reporters_ordered, xml.global_properties = [], []
    return taken


def add(item: pytest.Item, taken: dict[str, Any]) -> None:
    """In the pytest process: record it, before the test's reports come."""
    xml = item.config.stash[xml_key]
    assert xml is not None
    if taken["attributes"]:
        xml.node_reporter(item.nodeid).attrs.update(taken["attributes"])
    xml.global_properties += [(name, value) for name, value in taken["properties"]]
