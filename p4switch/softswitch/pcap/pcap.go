// Package pcap writes packet captures in the classic libpcap file format, with
// nanosecond timestamps and the Ethernet link type, which tcpdump and Wireshark
// read.
package pcap

import (
	"encoding/binary"
	"fmt"
	"os"
	"sync"
	"time"
)

// Constants of the file format.
const (
	magicNanoseconds = 0xa1b23c4d
	versionMajor     = 2
	versionMinor     = 4
	linkEthernet     = 1
	fileHeaderLen    = 24
	recordHeaderLen  = 16
	// snapLen is the longest packet in a capture in bytes; longer ones are cut.
	snapLen = 1 << 18
)

// Writer appends packets to one capture file. Its methods may be called
// concurrently; packets are whole in the file when Write returns.
type Writer struct {
	mu   sync.Mutex
	file *os.File
	buf  []byte
}

// Create makes a capture file, replacing one that is there.
func Create(path string) (*Writer, error) {
	f, err := os.Create(path)
	if err != nil {
		return nil, fmt.Errorf("capture: %w", err)
	}
	h := binary.LittleEndian.AppendUint32(nil, magicNanoseconds)
	h = binary.LittleEndian.AppendUint16(h, versionMajor)
	h = binary.LittleEndian.AppendUint16(h, versionMinor)
	h = append(h, make([]byte, 8)...) // time zone and accuracy, always zero
	h = binary.LittleEndian.AppendUint32(h, snapLen)
	h = binary.LittleEndian.AppendUint32(h, linkEthernet)
	if _, err := f.Write(h); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("capture %s: %w", path, err)
	}
	return &Writer{file: f}, nil
}

// Write appends one packet.
func (w *Writer) Write(at time.Time, packet []byte) error {
	kept := packet[:min(len(packet), snapLen)]
	w.mu.Lock()
	defer w.mu.Unlock()
	b := binary.LittleEndian.AppendUint32(w.buf[:0], uint32(at.Unix()))
	b = binary.LittleEndian.AppendUint32(b, uint32(at.Nanosecond()))
	b = binary.LittleEndian.AppendUint32(b, uint32(len(kept)))
	b = binary.LittleEndian.AppendUint32(b, uint32(len(packet)))
	b = append(b, kept...)
	w.buf = b
	if _, err := w.file.Write(w.buf); err != nil {
		return fmt.Errorf("capture %s: %w", w.file.Name(), err)
	}
	return nil
}

// Close ends the capture.
func (w *Writer) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.file.Close()
}
