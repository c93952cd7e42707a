"""The socket that all servers listen on."""

from __future__ import annotations

import asyncio
import socket

from whet.utils.web_server import listen


def test_answers_are_not_held_back_for_more_bytes() -> None:
    """asyncio sets TCP_NODELAY on what such a socket accepts; without it an answer waits 40 ms for its second half."""

    async def accepted_without_delay() -> int:
        found: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            connection = writer.get_extra_info("socket")
            found.set_result(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        listening = listen(0)
        async with await asyncio.start_server(accept, sock=listening):
            _, writer = await asyncio.open_connection(*listening.getsockname())
            without_delay = await found
            writer.close()
            await writer.wait_closed()
        return without_delay

    assert asyncio.run(accepted_without_delay()) != 0
