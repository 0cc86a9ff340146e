"""
Test the contract of stores of large bodies; the author of a store inherits the suite.

    class TestMine(LargeBodyStoreConformance):
        def make(self, tmp_path):
            return MyStore(tmp_path)
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import pytest

from onceward.message.body import LargeBodyStore

NAME: Final = f"shop/reader/01990000-0000-7000-8000-00000000000a.{'A' * 43}"
OTHER: Final = f"shop-2/reader/k:1.{'_' * 43}"
LARGE: Final = bytes(range(256)) * 40_000
THREADS: Final = 8


class LargeBodyStoreConformance:
    """Subclass it under a name that pytest collects, and define how to create your store."""

    def make(self, tmp_path: Path) -> LargeBodyStore:
        """Return an empty store."""
        raise NotImplementedError

    @pytest.fixture
    def store(self, tmp_path: Path) -> LargeBodyStore:
        """The store under test."""
        return self.make(tmp_path)

    @pytest.mark.parametrize("data", [b"", b"\0\xff", LARGE], ids=["empty", "bytes", "10 MB"])
    def test_a_body_is_returned_as_it_was_stored(self, store: LargeBodyStore, data: bytes) -> None:
        """An empty body, bytes that are not text, and 10 MB."""
        store.put(NAME, data)

        assert data == store.get(NAME)

    def test_a_body_that_is_stored_again_is_replaced_whole(self, store: LargeBodyStore) -> None:
        """A send that is tried again stores its body once more."""
        store.put(NAME, b"longer")
        store.put(NAME, b"short")

        assert b"short" == store.get(NAME)

    def test_a_missing_body_raises_file_not_found(self, store: LargeBodyStore) -> None:
        """Any other error would make the recipient try again."""
        store.put(OTHER, b"x")

        with pytest.raises(FileNotFoundError):
            store.get(NAME)

    def test_a_deleted_body_is_gone_and_may_be_deleted_again(self, store: LargeBodyStore) -> None:
        """Two processes may delete a body at once; another body stays."""
        store.put(NAME, b"x")
        store.put(OTHER, b"y")
        store.delete(NAME)
        store.delete(NAME)

        assert b"y" == store.get(OTHER)
        with pytest.raises(FileNotFoundError):
            store.get(NAME)

    def test_the_names_of_a_folder_are_listed_with_their_times(self, store: LargeBodyStore) -> None:
        """Those of another folder, whose name begins alike, are not."""
        assert [] == list(store.names("shop"))
        store.put(NAME, b"x")
        store.put(OTHER, b"y")

        [(name, at)] = store.names("shop")
        assert NAME == name
        assert timedelta(days=1) > abs(datetime.now(UTC) - at)

    def test_threads_use_a_store_at_once(self, store: LargeBodyStore) -> None:
        """Each gets what it stored."""
        names = [f"shop/reader/{number}.{'A' * 43}" for number in range(THREADS)]

        def there_and_back(name: str) -> bytes:
            store.put(name, name.encode())
            return store.get(name)

        with ThreadPoolExecutor(THREADS) as pool:
            found = list(pool.map(there_and_back, names))

        assert [name.encode() for name in names] == found
        assert sorted(names) == sorted(name for name, _ in store.names("shop"))
