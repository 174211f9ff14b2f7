package netio

import (
	"bytes"
	"testing"
)

// pieces makes a message of buffers with these sizes.
func pieces(sizes [1 + MaxMore]int) (m Message) {
	m.Buf = make([]byte, sizes[0])
	for i, n := range sizes[1:] {
		m.More[i] = make([]byte, n)
	}
	return m
}

// What Fill puts into pieces, of whatever sizes, is what Append takes out.
func TestFillAndAppend(t *testing.T) {
	datagram := []byte("a datagram of 25 bytes...")
	for _, sizes := range [][1 + MaxMore]int{{25, 0, 0}, {0, 0, 25}, {8, 9, 8}, {8, 0, 40}, {64, 10, 10}, {25, 10, 0}, {3, 22, 5}} {
		m := pieces(sizes)
		if !m.Fill(datagram) || m.Size() != len(datagram) || !bytes.Equal(m.Append(nil), datagram) {
			t.Errorf("%v: %q in %d, %d and %d bytes", sizes, m.Append(nil), len(m.Buf), len(m.More[0]), len(m.More[1]))
		}
	}
	if m := pieces([...]int{8, 8, 8}); m.Fill(datagram) || m.Size() != 24 {
		t.Error("25 bytes fit into 24, or those were cut")
	}
}
