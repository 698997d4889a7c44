"""The words in which ranks are named."""

from pretrain.doctor import verdict


def test_ranks_are_named_by_host() -> None:
    hosts = {**dict.fromkeys(range(8), "a"), **dict.fromkeys(range(8, 11), "b")}
    assert verdict.name_ranks([3], hosts) == "rank 3 (a)"
    assert verdict.name_ranks([0, 1, 2, 5, 8, 10, 12], hosts) == "ranks 0-2, 5 (a), 8, 10 (b) and 12 (not seen yet)"
    assert verdict.describe_difference(["x", "x"], hosts) == ""
    assert verdict.describe_difference(["y", *["x"] * 9], hosts) == "x on ranks 1-7 (a) and 8-9 (b), y on rank 0 (a)"
