#!/usr/bin/env python3
"""Counts discontinuities of an MPEG transport stream: continuity.py FILE prints "PACKETS DISCONTINUITIES"."""
import sys

data = open(sys.argv[1], "rb").read()
start = next((at for at in range(188) if data[at::188][:20].count(0x47) == 20), 0)
last, packets, breaks = {}, 0, 0
for at in range(start, len(data) - 187, 188):
    packet = data[at : at + 4]
    packets += 1
    if packet[0] != 0x47:
        breaks += 1
        continue
    pid = (packet[1] & 0x1F) << 8 | packet[2]
    counter = packet[3] & 15
    # Ignores packets without payload, and stuffing.
    if pid == 0x1FFF or not packet[3] & 0x10:
        continue
    if pid in last and counter != (last[pid] + 1) % 16:
        breaks += 1
        print(f"a gap before packet {packets}", file=sys.stderr)
    last[pid] = counter
print(packets, breaks)
