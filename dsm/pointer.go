package dsm

import "github.com/bifrost-rack/bifrost/dsm/packet"

// ParsePointer reads a global pointer as Pointer.String prints it.
func ParsePointer(s string) (Pointer, error) { return packet.ParsePointer(s) }
