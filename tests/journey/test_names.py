"""Values that the library returns say what they are when printed or logged."""

import asyncio
from pathlib import Path

from onceward import Agent, AsyncPostbox, Postbox, Run


def test_what_is_handed_out_says_what_it_is(tmp_path: Path) -> None:
    """
    A postbox names its agent and its file, an agent what it handles.

    A session and a channel name themselves.
    """
    agent = Agent("shop")
    agent.on("order")(_take)
    agent.runs("chat.*", mode="queue")(_nothing)

    with Postbox(tmp_path / "shop.db", agent=agent, start=False) as shop:
        said = [
            repr(each) for each in (agent, shop, shop.session("s1"), shop.channels.create("news"))
        ]

    assert said == [
        "<Agent shop: order, sessions chat.*>",
        f"<Postbox of shop: {tmp_path / 'shop.db'}>",
        "<Session s1 of shop>",
        "<Channel news for shop>",
    ]


def test_so_do_the_awaitable_ones(tmp_path: Path) -> None:
    """The same, and one that is not open yet says so."""

    async def main() -> list[str]:
        box = AsyncPostbox(tmp_path / "shop.db", agent="shop", start=False)
        early = repr(box)
        async with box as shop:
            return [
                early,
                *(
                    repr(each)
                    for each in (shop, shop.session("s1"), await shop.channels.create("news"))
                ),
            ]

    assert asyncio.run(main()) == [
        f"<AsyncPostbox, not open: {tmp_path / 'shop.db'}>",
        f"<AsyncPostbox of shop: {tmp_path / 'shop.db'}>",
        "<AsyncSession s1 of shop>",
        "<AsyncChannel news for shop>",
    ]


def _nothing(run: Run) -> None:
    del run


def _take(body: object) -> None:
    del body
