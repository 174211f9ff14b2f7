package p4info

import (
	"fmt"
	"strconv"

	configv1 "github.com/p4lang/p4runtime/go/p4/config/v1"
	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Header is a controller header (packet_in or packet_out): fields packed bit by
// bit, in order, most significant bit first, and padded to a whole byte at the
// end. The header of a program that declares none is empty, and then a packet
// is all payload. Padding that the program declares as a field is metadata like
// any other.
type Header struct {
	fields []headerField
	bits   int // all fields together
	values int // bytes that the fields take one by one
	urgent int // index of the field "urgent", -1 if there is none
	port   int // likewise, of "ingress_port"
}

// Urgent reports whether a packet's metadata, as Decode returns it, has a field "urgent"
// that is not 0. Such packets go before others on their way to the controller.
func (h *Header) Urgent(md []*p4v1.PacketMetadata) bool {
	return h.urgent >= 0 && h.fields[h.urgent].strings == nil && md[h.urgent].GetValue()[0] != 0
}

// Port is the field "ingress_port" of a packet's metadata, as Decode returns it; ok is false
// if there is none, or it has a name that is not its number.
func (h *Header) Port(md []*p4v1.PacketMetadata) (n uint32, ok bool) {
	if h.port < 0 {
		return 0, false
	}
	if h.fields[h.port].strings != nil {
		n, err := strconv.ParseUint(string(md[h.port].GetValue()), 10, 32)
		return uint32(n), err == nil
	}
	for _, b := range md[h.port].GetValue() {
		n = n<<8 | uint32(b)
	}
	return n, true
}

type headerField struct {
	id      uint32
	name    string
	offset  int // bits from the header's begin
	width   int // bits; 0 if only the program tells
	strings *Strings
}

// Fields are the names of the header's fields; open tells that widths of some are missing, which only the program tells.
func (h *Header) Fields() (names []string, open bool) {
	for _, f := range h.fields {
		names, open = append(names, f.name), open || f.width == 0
	}
	return names, open
}

// Widths are the widths in bits of all fields, those of strings as elsewhere in the program: 0 if they are nowhere else.
func (h *Header) Widths() (widths []int) {
	for _, f := range h.fields {
		w := f.width
		if f.strings != nil {
			w = f.strings.Width()
		}
		widths = append(widths, w)
	}
	return widths
}

// IsPort tells whether a field is of a type that is translated to strings and has ports.
func (h *Header) IsPort(i int) bool { return h.fields[i].strings != nil && h.fields[i].strings.port }

// SetWidths tells the widths in bits of all fields. It fails if the header has others.
func (h *Header) SetWidths(widths []int) error {
	h.bits, h.values = 0, 0
	for i := range h.fields {
		f := &h.fields[i]
		if f.strings != nil {
			if err := f.strings.SetWidth(widths[i]); err != nil {
				return err
			}
		} else if f.width != widths[i] {
			return fmt.Errorf("metadata %q has %d bits in the P4Info, %d in the program", f.name, f.width, widths[i])
		}
		f.width, f.offset = widths[i], h.bits
		h.bits += f.width
		h.values += byteLen(f.width)
	}
	return nil
}

// Len is the header's length in bytes.
func (h *Header) Len() int { return byteLen(h.bits) }

// Decode splits a frame into the header's metadata, in canonical form, and the
// payload, which shares the frame's memory.
func (h *Header) Decode(frame []byte) ([]*p4v1.PacketMetadata, []byte, error) {
	n := h.Len()
	if len(frame) < n {
		return nil, nil, fmt.Errorf("frame of %d bytes is shorter than its controller header of %d", len(frame), n)
	}
	// This is the way of every held packet, so all messages and all values are
	// allocated together.
	msgs := make([]p4v1.PacketMetadata, len(h.fields))
	md := make([]*p4v1.PacketMetadata, len(h.fields))
	values := make([]byte, h.values)
	for i, f := range h.fields {
		v := values[:byteLen(f.width):byteLen(f.width)]
		values = values[len(v):]
		getBits(v, frame, f.offset, f.width)
		md[i] = &msgs[i]
		md[i].MetadataId, md[i].Value = f.id, Canonical(v)
		if f.strings != nil {
			md[i].Value = f.strings.Text(v)
		}
	}
	return md, frame[n:], nil
}

// Encode builds the frame for a PacketOut: the header from its metadata, then
// the payload. Exactly one value per field must be given, in any order (section
// "Packet I/O"); else the error is INVALID_ARGUMENT.
func (h *Header) Encode(md []*p4v1.PacketMetadata, payload []byte) ([]byte, error) {
	frame := make([]byte, h.Len(), h.Len()+len(payload))
	given := make([]bool, len(h.fields))
	for _, m := range md {
		i := h.index(m.GetMetadataId())
		if i < 0 || given[i] {
			return nil, status.Errorf(codes.InvalidArgument, "metadata id %d is unknown or given twice", m.GetMetadataId())
		}
		given[i] = true
		f, v := h.fields[i], m.GetValue()
		var err error
		if f.strings != nil {
			v, err = f.strings.Bytes(v)
		} else {
			err = CheckWidth(v, f.width)
		}
		if err != nil {
			return nil, within(err, "metadata %q", f.name)
		}
		putBits(frame, f.offset, f.width, v)
	}
	for i, ok := range given {
		if !ok {
			return nil, status.Errorf(codes.InvalidArgument, "metadata %q is missing", h.fields[i].name)
		}
	}
	return append(frame, payload...), nil
}

func (h *Header) index(id uint32) int {
	for i := range h.fields {
		if h.fields[i].id == id {
			return i
		}
	}
	return -1
}

// getBits copies width bits at offset into out, right-aligned; out must be zero.
func getBits(out, b []byte, offset, width int) {
	if offset%8 == 0 && width%8 == 0 {
		copy(out, b[offset/8:])
		return
	}
	for i := range width { // from the least significant bit
		from, to := offset+width-1-i, len(out)*8-1-i
		out[to/8] |= b[from/8] >> (7 - from%8) & 1 << (7 - to%8)
	}
}

// putBits stores the low width bits of v at offset; the place must be zero.
func putBits(b []byte, offset, width int, v []byte) {
	v = Canonical(v)
	if offset%8 == 0 && width%8 == 0 {
		copy(b[(offset+width)/8-len(v):(offset+width)/8], v)
		return
	}
	for i := range min(width, len(v)*8) {
		from, to := len(v)*8-1-i, offset+width-1-i
		b[to/8] |= v[from/8] >> (7 - from%8) & 1 << (7 - to%8)
	}
}

func (p *parser) headers() error {
	for _, m := range p.msg.GetControllerPacketMetadata() {
		o, err := p.object("controller header", m.GetPreamble())
		if err != nil {
			return err
		}
		h, err := p.header(o.Name, m)
		if err != nil {
			return err
		}
		switch o.Name {
		case "packet_in":
			p.info.PacketIn = h
		case "packet_out":
			p.info.PacketOut = h
		default:
			return fmt.Errorf("controller header %q is neither packet_in nor packet_out", o.Name)
		}
	}
	return nil
}

func (p *parser) header(name string, m *configv1.ControllerPacketMetadata) (*Header, error) {
	h := &Header{urgent: -1, port: -1}
	for i, f := range m.GetMetadata() {
		switch f.GetName() {
		case "urgent":
			h.urgent = i
		case "ingress_port":
			h.port = i
		}
		where := fmt.Sprintf("metadata %q of %s", f.GetName(), name)
		w, strings, err := p.fieldWidth(where, f.GetBitwidth(), f.GetTypeName())
		if err != nil {
			return nil, err
		}
		if strings != nil && (f.GetName() == "ingress_port" || f.GetName() == "egress_port") {
			strings.port = true
		}
		if f.GetId() == 0 || h.index(f.GetId()) >= 0 {
			return nil, fmt.Errorf("%s has the id %d, which is zero or taken", where, f.GetId())
		}
		h.fields = append(h.fields, headerField{id: f.GetId(), name: f.GetName(), offset: h.bits, width: w, strings: strings})
		h.bits += w
		h.values += byteLen(w)
	}
	return h, nil
}
