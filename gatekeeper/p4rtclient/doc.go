// Package p4rtclient is a small P4Runtime client: names instead of ids, values
// checked and canonical, errors for each update, everything under a context.
//
//	Program    what a P4Info says: names, ids, widths
//	Client     unary calls: pipeline, Write, Read
//	Session    one stream as primary: PacketIn, PacketOut, digests
//	Keep       a session after the other, for as long as the context lives
//
// It runs over any grpc.ClientConnInterface. Of match kinds it knows exact and
// LPM, of entities table entries and digests: what Bifröst's program has.
package p4rtclient
