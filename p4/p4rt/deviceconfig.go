package p4rt

import "google.golang.org/protobuf/encoding/protowire"

// deviceConfig is the program in a P4Runtime device config: p4c's bmv2 JSON as
// it is, or inside the old p4.tmp.P4DeviceConfig message (field 3), which bmv2
// still takes too. What is not such a message through and through is taken as it
// is.
func deviceConfig(b []byte) []byte {
	const deviceData = 3
	var data []byte
	for rest := b; len(rest) > 0; {
		num, typ, n := protowire.ConsumeTag(rest)
		if n < 0 || num > deviceData {
			return b
		}
		rest = rest[n:]
		if num == deviceData && typ == protowire.BytesType {
			v, n := protowire.ConsumeBytes(rest)
			if n < 0 {
				return b
			}
			data, rest = v, rest[n:]
			continue
		}
		n = protowire.ConsumeFieldValue(num, typ, rest)
		if n < 0 {
			return b
		}
		rest = rest[n:]
	}
	if data == nil {
		return b
	}
	return data
}
