"""A TCP service at port 9000 of loopback that sends its name and then echoes all data."""
import asyncio, resource, sys


async def serve(reader, writer):
    writer.write(sys.argv[1].encode() + b"\n")
    try:
        while data := await reader.read(4096):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    writer.close()


async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", 9000, backlog=1024)
    print("ready", flush=True)
    await server.serve_forever()


limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
asyncio.run(main())
