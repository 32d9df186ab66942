-- Dissector of Marline's carriers for Wireshark and tshark: frames in UDP (docs/spec/udp-carrier.md), and the same
-- frames in TCP connections where a network lets no UDP through (docs/spec/tcp-carrier.md). What is inside a subflow's
-- frame is given to Wireshark's own TCP dissector, which knows Multipath TCP.
--
--     tshark -X lua_script:marline.lua -r capture.pcapng
--
-- Or copy it to the personal plugins (Help, About, Folders). Frames are recognized by what they look like; where that is
-- ambiguous, `Decode as... MARLINE` names the port.

local marline = Proto("marline", "Marline carrier")
local marline_tcp = Proto("marline_tcp", "Marline TCP carrier")

local types = {
    [0] = "DATA", [1] = "HANDSHAKE", [2] = "CHALLENGE", [3] = "RESPONSE", [4] = "KEEPALIVE",
    [5] = "RESET", [6] = "RETRY", [7] = "VERSIONS", [8] = "LANE",
}

local f = {
    version = ProtoField.uint8("marline.version", "Version", base.DEC),
    type = ProtoField.uint8("marline.type", "Type", base.DEC, types),
    to = ProtoField.uint64("marline.to", "Receiver's id", base.HEX),
    from = ProtoField.uint64("marline.from", "Sender's id", base.HEX),
    key = ProtoField.bytes("marline.key", "Public key (X25519)"),
    commitment = ProtoField.bytes("marline.commitment", "Commitment to the reset token"),
    cookie = ProtoField.bytes("marline.cookie", "Cookie"),
    nonce = ProtoField.bytes("marline.nonce", "Nonce"),
    proof = ProtoField.bytes("marline.proof", "Proof"),
    padding = ProtoField.bytes("marline.padding", "Padding"),
    token = ProtoField.bytes("marline.token", "Reset token"),
    speaks = ProtoField.bytes("marline.speaks", "Versions, the best first"),
    number = ProtoField.uint64("marline.number", "Packet number", base.DEC),
    sealed = ProtoField.bytes("marline.sealed", "Sealed body and tag"),
}
marline.fields = f

local length_field = ProtoField.uint16("marline_tcp.length", "Length of the frame", base.DEC)
local preamble_field = ProtoField.string("marline_tcp.preamble", "Preamble")
marline_tcp.fields = { length_field, preamble_field }

local short = ProtoExpert.new("marline.short", "The frame is too short for its type",
    expert.group.MALFORMED, expert.severity.ERROR)
marline.experts = { short }

local tcp = Dissector.get("tcp")

-- Shortest frame of each type; of CHALLENGE, RESPONSE, KEEPALIVE and RESET there is no other length.
local least = { [0] = 29, [1] = 86, [2] = 25, [3] = 25, [4] = 25, [5] = 25, [6] = 26, [7] = 10, [8] = 34 }
local fixed = { [2] = true, [3] = true, [4] = true, [5] = true, [6] = true }

local function kind_of(buffer)
    local first = buffer(0, 1):uint()
    -- The frame of versions has the same first byte in all of them.
    if first == 0x07 then return 0, 7 end
    return math.floor(first / 16), first % 16
end

-- A TCP header stands there: its length is possible, and what is reserved is zero.
local function is_segment(buffer, at)
    if buffer:len() < at + 20 then return false end
    local header = math.floor(buffer(at + 12, 1):uint() / 16) * 4
    return header >= 20 and at + header <= buffer:len() and buffer(at + 12, 1):uint() % 16 == 0
end

local function looks_right(buffer)
    if buffer:len() < 9 then return false end
    local version, type = kind_of(buffer)
    if (version ~= 2 and type ~= 7) or least[type] == nil then return false end
    if buffer:len() < least[type] then return false end
    if type == 0 then return is_segment(buffer, 9) end
    if type == 1 then
        local cookie = buffer(65, 1):uint()
        return (cookie == 0 or cookie == 17) and is_segment(buffer, 66 + cookie)
    end
    if type == 7 then return buffer:len() <= 32 end
    return type == 8 or buffer:len() == least[type]
end

function marline.dissector(buffer, pinfo, root)
    if buffer:len() < 9 then return 0 end
    local version, type = kind_of(buffer)
    if types[type] == nil then return 0 end
    local tree = root:add(marline, buffer())
    tree:append_text(", " .. types[type])
    tree:add(f.version, buffer(0, 1), version)
    tree:add(f.type, buffer(0, 1), type)
    tree:add(f.to, buffer(1, 8))
    pinfo.cols.protocol = "MARLINE"
    pinfo.cols.info = types[type] .. string.format(" to %s", tostring(buffer(1, 8)))
    if version > 2 or buffer:len() < least[type] then
        tree:add_proto_expert_info(short)
        return buffer:len()
    end
    local rest = buffer:len()
    if type == 0 then
        tcp:call(buffer(9):tvb(), pinfo, root)
    elseif type == 1 then
        tree:add(f.from, buffer(9, 8))
        tree:add(f.key, buffer(17, 32))
        tree:add(f.commitment, buffer(49, 16))
        local cookie = buffer(65, 1):uint()
        local at = 66 + cookie
        if cookie > 0 and at <= rest then tree:add(f.cookie, buffer(66, cookie)) end
        if at + 20 > rest then
            tree:add_proto_expert_info(short)
        else
            tcp:call(buffer(at):tvb(), pinfo, root)
        end
    elseif type == 2 then
        tree:add(f.nonce, buffer(9, 16))
    elseif type == 3 then
        tree:add(f.proof, buffer(9, 16))
    elseif type == 4 then
        tree:add(f.padding, buffer(9, 16))
    elseif type == 5 then
        tree:add(f.token, buffer(9, 16))
    elseif type == 6 then
        tree:add(f.cookie, buffer(9, 17))
    elseif type == 7 then
        tree:add(f.speaks, buffer(9))
    elseif type == 8 then
        tree:add(f.number, buffer(9, 8))
        tree:add(f.sealed, buffer(17))
        pinfo.cols.info = string.format("LANE %s packet %s", tostring(buffer(1, 8)),
            tostring(buffer(9, 8):uint64()))
    end
    return rest
end

marline:register_heuristic("udp", function(buffer, pinfo, root)
    if not looks_right(buffer) then return false end
    -- What is inside must not be taken for the frame's own ports.
    pinfo.conversation = marline
    marline.dissector(buffer, pinfo, root)
    return true
end)
DissectorTable.get("udp.port"):add_for_decode_as(marline)

-- The stream: a preamble, then frames with their length before them.
local PREAMBLE = "Marline\1"

local function begins_stream(buffer)
    return buffer:len() >= #PREAMBLE and buffer(0, #PREAMBLE):raw() == PREAMBLE
end

local function length_of(buffer, _, offset)
    local here = buffer(offset)
    if begins_stream(here:tvb()) then return #PREAMBLE end
    return 2 + buffer(offset, 2):uint()
end

local function one_of(buffer, pinfo, root)
    if begins_stream(buffer) then
        root:add(marline_tcp, buffer()):add(preamble_field, buffer(0, 7))
        pinfo.cols.protocol = "MARLINE"
        pinfo.cols.info = "Preamble"
        return buffer:len()
    end
    root:add(marline_tcp, buffer(0, 2)):add(length_field, buffer(0, 2))
    if buffer:len() > 2 then marline.dissector(buffer(2):tvb(), pinfo, root) end
    return buffer:len()
end

function marline_tcp.dissector(buffer, pinfo, root)
    -- No frame is shorter than nine bytes, and the preamble has eight.
    dissect_tcp_pdus(buffer, root, 8, length_of, one_of)
    return buffer:len()
end

marline_tcp:register_heuristic("tcp", function(buffer, pinfo, root)
    if not begins_stream(buffer) then return false end
    pinfo.conversation = marline_tcp
    marline_tcp.dissector(buffer, pinfo, root)
    return true
end)
DissectorTable.get("tcp.port"):add_for_decode_as(marline_tcp)
