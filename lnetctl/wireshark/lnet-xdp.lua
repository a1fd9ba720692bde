-- A dissector for frames of LNet's xdp LND, for Wireshark and tshark 3 and later. docs/xdp-lnd.md has the fields.
--
-- Copy it to a directory of plugins (Help, About, Folders), or: tshark -X lua_script:lnet-xdp.lua -r FILE

local proto = Proto("lnetxdp", "LNet over xdp")

local KINDS = {
  [1] = "DATA", [2] = "ACK", [3] = "HELLO", [4] = "WELCOME", [5] = "RESET", [6] = "DEFERRED",
  [7] = "PULL", [8] = "DISCARD", [9] = "PING", [10] = "GONE", [11] = "LOST",
}
local TYPES = { [0] = "ACK", [1] = "PUT", [2] = "GET", [3] = "REPLY" }
local DATA, HELLO, WELCOME = 1, 3, 4
local ACK, PUT, GET, REPLY = 0, 1, 2, 3
local FRAME_BYTES, LNET_BYTES, HANDSHAKE_BYTES, RECORD_BYTES = 88, 96, 616, 16
local FLAG_ACK, FLAG_RECORDS, FLAG_CHECKSUM, FLAG_TICKET, FLAG_SHORT = 1, 2, 4, 8, 32

local f = {
  magic = ProtoField.string("lnetxdp.magic", "Magic"),
  version = ProtoField.uint8("lnetxdp.version", "Version"),
  kind = ProtoField.uint8("lnetxdp.kind", "Kind", base.DEC, KINDS),
  type = ProtoField.uint8("lnetxdp.type", "Message type", base.DEC, TYPES),
  portal = ProtoField.uint8("lnetxdp.portal", "Portal"),
  key = ProtoField.uint64("lnetxdp.key", "Steering key", base.HEX),
  id = ProtoField.uint64("lnetxdp.id", "Message id", base.HEX),
  initiator = ProtoField.uint32("lnetxdp.initiator", "Hash of the initiator", base.HEX),
  offset = ProtoField.uint32("lnetxdp.offset", "Fragment offset"),
  total = ProtoField.uint32("lnetxdp.total", "Payload of the message"),
  number = ProtoField.uint32("lnetxdp.number", "Frame number"),
  incarnation = ProtoField.uint64("lnetxdp.incarnation", "Incarnation", base.HEX),
  session = ProtoField.uint64("lnetxdp.session", "Session", base.HEX),
  oldest = ProtoField.uint16("lnetxdp.oldest", "Distance to the oldest id"),
  shard = ProtoField.uint8("lnetxdp.shard", "Sending shard"),
  flags = ProtoField.uint8("lnetxdp.flags", "Flags", base.HEX),
  has_ack = ProtoField.bool("lnetxdp.flags.ack", "Acknowledgement", 8, nil, 0x01),
  has_records = ProtoField.bool("lnetxdp.flags.records", "Records follow", 8, nil, 0x02),
  has_checksum = ProtoField.bool("lnetxdp.flags.checksum", "Payload checksum", 8, nil, 0x04),
  has_ticket = ProtoField.bool("lnetxdp.flags.ticket", "Ticket", 8, nil, 0x08),
  ack_now = ProtoField.bool("lnetxdp.flags.ack_now", "Acknowledge now", 8, nil, 0x10),
  short = ProtoField.bool("lnetxdp.flags.short", "Short", 8, nil, 0x20),
  delayed = ProtoField.bool("lnetxdp.flags.delayed", "Delayed", 8, nil, 0x40),
  crc = ProtoField.uint32("lnetxdp.crc", "CRC32C of the headers", base.HEX),
  acked = ProtoField.uint32("lnetxdp.acked", "Highest frame received"),
  grant = ProtoField.uint32("lnetxdp.grant", "Granted bytes"),
  below = ProtoField.uint64("lnetxdp.below", "Frames below the highest", base.HEX),
  payload_crc = ProtoField.uint32("lnetxdp.payload_crc", "CRC32C of the payload", base.HEX),
  ticket = ProtoField.uint32("lnetxdp.ticket", "Ticket", base.HEX),
  hdr_data = ProtoField.uint64("lnetxdp.hdr_data", "Header data", base.HEX),
  put_offset = ProtoField.uint32("lnetxdp.put_offset", "Offset at the target"),
  destination = ProtoField.string("lnetxdp.destination", "Destination"),
  source = ProtoField.string("lnetxdp.source", "Source"),
  destination_pid = ProtoField.uint32("lnetxdp.destination_pid", "Destination process"),
  source_pid = ProtoField.uint32("lnetxdp.source_pid", "Source process"),
  lnet_type = ProtoField.uint32("lnetxdp.lnet_type", "Message type", base.DEC, TYPES),
  length = ProtoField.uint32("lnetxdp.length", "Payload of the message"),
  interface_cookie = ProtoField.uint64("lnetxdp.interface_cookie", "Interface cookie", base.HEX),
  object_cookie = ProtoField.uint64("lnetxdp.object_cookie", "Object cookie", base.HEX),
  match_bits = ProtoField.uint64("lnetxdp.match_bits", "Match bits", base.HEX),
  taken = ProtoField.uint32("lnetxdp.taken", "Bytes that the target took"),
  lnet_portal = ProtoField.uint32("lnetxdp.lnet_portal", "Portal"),
  sink = ProtoField.uint32("lnetxdp.sink", "Bytes that the initiator can take"),
  record_id = ProtoField.uint16("lnetxdp.record.id", "Message id less that of the frame"),
  record_length = ProtoField.uint32("lnetxdp.record.length", "Bytes of payload"),
  record_crc = ProtoField.uint32("lnetxdp.record.crc", "CRC32C of the headers", base.HEX),
  record_payload_crc = ProtoField.uint32("lnetxdp.record.payload_crc", "CRC32C of the payload", base.HEX),
  handshake = ProtoField.bytes("lnetxdp.handshake", "Body of the handshake"),
  payload = ProtoField.bytes("lnetxdp.payload", "Payload"),
}
proto.fields = f

local cut = ProtoExpert.new("lnetxdp.cut", "Fewer bytes than the headers say", expert.group.MALFORMED, expert.severity.ERROR)
proto.experts = { cut }

-- Names of net types.
local NETS = { [2] = "tcp", [5] = "o2ib", [9] = "lo", [88] = "xdp" }

-- A NID in its large form, as text.
local function nid(range)
  local extra, net_type, number = range(0, 1):uint(), range(1, 1):uint(), range(2, 2):uint()
  if net_type == 255 then return "<?>" end
  local net = NETS[net_type] or string.format("net%d.", net_type)
  local suffix = (number == 0 and NETS[net_type]) and net or net .. number
  local address
  if extra == 0 then
    address = tostring(range(4, 4):ipv4())
  elseif extra == 12 then
    address = tostring(range(4, 16):ipv6())
  else
    address = tostring(range(4, 16):bytes())
  end
  return address .. "@" .. suffix
end

-- The LNet header; its type, destination and source.
local function lnet_header(range, tree)
  local branch = tree:add(range, "LNet header")
  local to, from, kind = nid(range(0, 20)), nid(range(20, 20)), range(48, 4):le_uint()
  branch:add(f.destination, range(0, 20), to)
  branch:add(f.source, range(20, 20), from)
  branch:add_le(f.destination_pid, range(40, 4))
  branch:add_le(f.source_pid, range(44, 4))
  branch:add_le(f.lnet_type, range(48, 4))
  branch:add_le(f.length, range(52, 4))
  branch:add_le(f.interface_cookie, range(56, 8))
  branch:add_le(f.object_cookie, range(64, 8))
  if kind ~= REPLY then branch:add_le(f.match_bits, range(72, 8)) end
  if kind == ACK then
    branch:add_le(f.taken, range(80, 4))
  elseif kind == PUT then
    branch:add_le(f.hdr_data, range(80, 8))
    branch:add_le(f.lnet_portal, range(88, 4))
    branch:add_le(f.put_offset, range(92, 4))
  elseif kind == GET then
    branch:add_le(f.lnet_portal, range(80, 4))
    branch:add_le(f.put_offset, range(84, 4))
    branch:add_le(f.sink, range(88, 4))
  end
  branch:append_text(string.format(": %s from %s to %s", TYPES[kind] or kind, from, to))
  return kind
end

-- The records behind the first message; a text for each.
local function records(tvb, at, tree, told)
  while at + RECORD_BYTES + LNET_BYTES <= tvb:len() do
    local length = tvb(at + 4, 4):le_uint()
    local whole = math.min(RECORD_BYTES + LNET_BYTES + length, tvb:len() - at)
    local branch = tree:add(tvb(at, whole), "Record")
    branch:add_le(f.record_id, tvb(at, 2))
    branch:add_le(f.record_length, tvb(at + 4, 4))
    branch:add_le(f.record_crc, tvb(at + 8, 4))
    branch:add_le(f.record_payload_crc, tvb(at + 12, 4))
    local kind = lnet_header(tvb(at + RECORD_BYTES, LNET_BYTES), branch)
    local payload = whole - RECORD_BYTES - LNET_BYTES
    if payload > 0 then branch:add(f.payload, tvb(at + RECORD_BYTES + LNET_BYTES, payload)) end
    if payload < length then branch:add_proto_expert_info(cut) end
    table.insert(told, string.format("%s of %d bytes", TYPES[kind] or kind, length))
    at = at + whole
  end
end

function proto.dissector(tvb, pinfo, tree)
  if tvb:len() < FRAME_BYTES or tvb(0, 4):string() ~= "LNDX" then return 0 end
  pinfo.cols.protocol = "LNet-xdp"
  local kind, flags = tvb(5, 1):uint(), tvb(59, 1):uint()
  local function has(flag) return bit.band(flags, flag) ~= 0 end
  local short = has(FLAG_SHORT)
  local branch = tree:add(proto, tvb(), "LNet over xdp: " .. (KINDS[kind] or kind))
  branch:add(f.magic, tvb(0, 4))
  branch:add(f.version, tvb(4, 1))
  branch:add(f.kind, tvb(5, 1))
  if kind == DATA then
    branch:add(f.type, tvb(6, 1))
    branch:add(f.portal, tvb(7, 1))
  end
  branch:add_le(f.key, tvb(8, 8))
  branch:add_le(f.id, tvb(16, 8))
  branch:add_le(f.initiator, tvb(24, 4))
  branch:add_le(f.offset, tvb(28, 4))
  branch:add_le(f.total, tvb(32, 4))
  branch:add_le(f.number, tvb(36, 4))
  branch:add_le(f.incarnation, tvb(40, 8))
  branch:add_le(f.session, tvb(48, 8))
  branch:add_le(f.oldest, tvb(56, 2))
  branch:add(f.shard, tvb(58, 1))
  local bits = branch:add(f.flags, tvb(59, 1))
  for _, flag in ipairs({ f.has_ack, f.has_records, f.has_checksum, f.has_ticket, f.ack_now, f.short, f.delayed }) do
    bits:add(flag, tvb(59, 1))
  end
  branch:add_le(f.crc, tvb(60, 4))
  if has(FLAG_ACK) then
    branch:add_le(f.acked, tvb(64, 4))
    branch:add_le(f.grant, tvb(68, 4))
  end
  if short then
    branch:add_le(f.hdr_data, tvb(72, 8))
    branch:add_le(f.put_offset, tvb(80, 4))
    if has(FLAG_CHECKSUM) then branch:add_le(f.payload_crc, tvb(84, 4)) end
  else
    if has(FLAG_ACK) then branch:add_le(f.below, tvb(72, 8)) end
    if has(FLAG_CHECKSUM) then branch:add_le(f.payload_crc, tvb(80, 4)) end
    if has(FLAG_TICKET) then branch:add_le(f.ticket, tvb(84, 4)) end
  end

  local at, offset, total = FRAME_BYTES, tvb(28, 4):le_uint(), tvb(32, 4):le_uint()
  local told = {}
  if kind == DATA then
    local name = TYPES[tvb(6, 1):uint()] or "?"
    if offset == 0 and not short then
      if tvb:len() < at + LNET_BYTES then
        branch:add_proto_expert_info(cut)
        return tvb:len()
      end
      lnet_header(tvb(at, LNET_BYTES), branch)
      at = at + LNET_BYTES
    end
    local left = tvb:len() - at
    local payload = has(FLAG_RECORDS) and math.min(total, left) or left
    if payload > 0 then branch:add(f.payload, tvb(at, payload)) end
    table.insert(told, string.format("%s, %d bytes at %d of %d", name, payload, offset, total))
    if has(FLAG_RECORDS) then records(tvb, at + payload, branch, told) end
  elseif kind == HELLO or kind == WELCOME then
    local body = math.min(HANDSHAKE_BYTES, tvb:len() - at)
    if body > 0 then branch:add(f.handshake, tvb(at, body)) end
    if body < HANDSHAKE_BYTES then branch:add_proto_expert_info(cut) end
  end
  local info = KINDS[kind] or tostring(kind)
  if #told > 0 then info = info .. " " .. table.concat(told, "; ") end
  if has(FLAG_ACK) then info = info .. ", acknowledges " .. tvb(64, 4):le_uint() end
  pinfo.cols.info = info
  return tvb:len()
end

-- Nets have ports of their own, so frames are known by how they begin.
proto:register_heuristic("udp", function(tvb, pinfo, tree)
  if tvb:len() < FRAME_BYTES or tvb(0, 4):string() ~= "LNDX" then return false end
  proto.dissector(tvb, pinfo, tree)
  return true
end)
DissectorTable.get("udp.port"):add(988, proto)
