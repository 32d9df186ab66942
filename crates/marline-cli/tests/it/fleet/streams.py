"""Streams through the SOCKS5 ports of clients, from PORT on: so many ports, so many streams through each.

The service at the other end says first at which member of the fleet it is, and then gives back what it gets. A user
whose stream is lost opens another. `state` tells how it goes, as JSON, several times a second. Nobody here is told that a
member is dead: `lost` are streams that ended by themselves, `silent` those that an application had to give up.
"""
import asyncio, collections, json, os, resource, sys, time

PORT, PORTS, PER_PORT = (int(word) for word in sys.argv[1:])
# A stream that is alive answers sooner on the busiest machine, and a client gives up a member that stays away sooner.
PATIENCE_S = 300
REQUEST = b"\5\1\0\1" + bytes([127, 0, 0, 1]) + (9000).to_bytes(2, "big")

members = {}
answered_at = {}
lost = collections.Counter()
silent = collections.Counter()
refused = 0


async def opened(port):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"\5\1\0")
    await reader.readexactly(2)
    writer.write(REQUEST)
    reply = await reader.readexactly(10)
    if reply[1]:
        writer.close()
        raise ConnectionRefusedError(reply[1])
    return reader, writer, (await reader.readline()).decode().strip()


async def echo(reader, writer, text):
    writer.write(text)
    return await reader.readexactly(len(text))


async def stream(number):
    global refused
    count = 0
    while True:
        try:
            reader, writer, member = await asyncio.wait_for(opened(PORT + number % PORTS), PATIENCE_S)
        except (OSError, EOFError, asyncio.TimeoutError):
            refused += 1
            await asyncio.sleep(0.5)
            continue
        members[number] = member
        try:
            while True:
                count += 1
                begun, text = time.time(), f"{number}:{count};".encode() * 20
                if await asyncio.wait_for(echo(reader, writer, text), PATIENCE_S) != text:
                    raise ValueError("other bytes came back")
                answered_at[number] = begun
                await asyncio.sleep(1)
        except (OSError, EOFError, ValueError, asyncio.TimeoutError) as error:
            print(f"stream {number} at {member}: {error!r}", flush=True)
            # A TimeoutError is an OSError, and the kernel may say ETIMEDOUT, which has a number.
            gave_up = isinstance(error, asyncio.TimeoutError) and not getattr(error, "errno", None)
            (silent if gave_up else lost)[member] += 1
            del members[number]
            writer.close()


async def tell():
    while True:
        state = {
            "open": len(members),
            "members": collections.Counter(members.values()),
            "lost": lost,
            "silent": silent,
            "refused": refused,
            "all_answered_since": min(answered_at.values(), default=0) if len(answered_at) == PORTS * PER_PORT else 0,
        }
        with open("state.new", "w") as file:
            json.dump(state, file)
        os.rename("state.new", "state")
        await asyncio.sleep(0.3)


async def main():
    tasks = [asyncio.ensure_future(tell())]
    for number in range(PORTS * PER_PORT):
        tasks.append(asyncio.ensure_future(stream(number)))
        await asyncio.sleep(0.005)
    print("ready", flush=True)
    await asyncio.gather(*tasks)


limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
asyncio.run(main())
