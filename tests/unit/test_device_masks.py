"""Masks are read as CANN reads them, and each of a device's three numbers leads to the others."""

from __future__ import annotations

import pytest

from cluster.devices.masks import Mask, Numbering, read_mask, write_mask
from cluster.errors import ConfigError

# value, devices here: ids taken, tokens ignored, a word of the reason
MASKS = {
    "unset means all": (None, 4, (0, 1, 2, 3), (), ""),
    "all": ("0,1,2,3", 4, (0, 1, 2, 3), (), ""),
    "sparse": ("0,1,2,5", 8, (0, 1, 2, 5), (), ""),
    "ids from 10 up": ("9,10,11", 16, (9, 10, 11), (), ""),
    "empty means none": ("", 8, (), ("",), "decimal"),
    "blank ends it": ("1, 2,3", 8, (1,), (" 2", "3"), "blanks"),
    "out of range ends it": ("1,3,8", 8, (1, 3), ("8",), "not below 8"),
    "host ids in a container": ("4,7", 4, (), ("4", "7"), "not below 4"),
    "descending": ("1,0", 8, (1,), ("0",), "ascend"),
    "MindIE's own example": ("4,0,1,2", 8, (4,), ("0", "1", "2"), "ascend"),
    "twice": ("2,2,3", 8, (2,), ("2", "3"), "ascend"),
    "negative": ("0,-1", 8, (0,), ("-1",), "decimal"),
    "range": ("0-3", 8, (), ("0-3",), "decimal"),
    "other digits": ("٣", 8, (), ("٣",), "decimal"),
}


@pytest.mark.parametrize(("value", "count", "ids", "ignored", "why"), MASKS.values(), ids=MASKS)
def test_a_mask_is_read_as_cann_reads_it(
    value: str | None, count: int, ids: tuple[int, ...], ignored: tuple[str, ...], why: str
) -> None:
    mask = read_mask(value, count)
    assert mask == Mask(ids, ignored, mask.why)
    assert why in mask.why
    assert bool(mask.why) == bool(ignored)


@pytest.mark.parametrize("ids", [[3, 1, 2], [15, 9, 10], [0], []])
def test_a_written_mask_reads_back_ascending(ids: list[int]) -> None:
    assert read_mask(write_mask(ids) if ids else None, 16 if ids else 0).ids == tuple(sorted(ids))


@pytest.mark.parametrize("ids", [[1, 1], [-1, 0]])
def test_a_mask_that_cann_would_cut_is_not_written(ids: list[int]) -> None:
    with pytest.raises(ConfigError, match="each id once"):
        write_mask(ids)


NUMBERINGS = {
    "whole machine": Numbering.of(range(8), None),
    "masked half": Numbering.of(range(8), "4,5,6,7"),
    "container with host's 10, 12, 14, 16": Numbering.of([16, 10, 12, 14], None),
    "container, masked": Numbering.of([10, 12, 14, 16], "1,3"),
}


@pytest.mark.parametrize("numbering", NUMBERINGS.values(), ids=NUMBERINGS)
def test_every_direction_leads_back(numbering: Numbering) -> None:
    for index, logical in enumerate(numbering.visible):
        physical = numbering.physical[logical]
        assert numbering.index_to_logical(index) == logical
        assert numbering.logical_to_index(logical) == index
        assert numbering.logical_to_physical(logical) == physical
        assert numbering.physical_to_logical(physical) == logical
        assert numbering.physical_to_index(physical) == index
        assert numbering.index_to_physical(index) == physical


def test_the_id_that_ray_assigns_becomes_the_index_that_the_runtime_wants() -> None:
    assert NUMBERINGS["masked half"].logical_to_index(5) == 1


def test_in_a_container_with_one_device_its_host_number_is_index_0() -> None:
    assert Numbering.of([3], None).physical_to_index(3) == 0


STRANGERS = {
    "masked twice": (Numbering.of(range(8), "1"), "index_to_logical", 1),
    "outside the mask": (NUMBERINGS["masked half"], "logical_to_index", 0),
    "host id as logical": (NUMBERINGS["container, masked"], "logical_to_physical", 10),
    "not in this container": (NUMBERINGS["container, masked"], "physical_to_logical", 11),
    "negative": (NUMBERINGS["whole machine"], "logical_to_physical", -1),
}


@pytest.mark.parametrize(("numbering", "method", "given"), STRANGERS.values(), ids=STRANGERS)
def test_a_device_that_is_not_there_is_refused(
    numbering: Numbering, method: str, given: int
) -> None:
    with pytest.raises(ConfigError, match=f"id {given}"):
        getattr(numbering, method)(given)
