"""Keeps streams open through the clients' SOCKS5 ports. Arguments: first port, number of ports, streams per port.

The service at the other end first sends the name of its member, and then echoes all data. A lost stream is replaced by
another. The file `state` contains the current state as JSON, written several times a second. This program is not
notified that a member is dead: `lost` counts streams that ended by themselves, `silent` those that reached the time
limit.
"""
import asyncio, collections, json, os, resource, sys, time

PORT, PORTS, PER_PORT = (int(word) for word in sys.argv[1:])
# A working stream answers sooner even on a busy machine, and a client gives up an absent member sooner.
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
                    raise ValueError("wrong bytes came back")
                answered_at[number] = begun
                await asyncio.sleep(1)
        except (OSError, EOFError, ValueError, asyncio.TimeoutError) as error:
            print(f"stream {number} at {member}: {error!r}", flush=True)
            # A TimeoutError is an OSError. The kernel's ETIMEDOUT has an error number, the time limit has none.
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
